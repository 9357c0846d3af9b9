"""A measured collective is a start, a rate, and what protocols do in between.

Small messages cost the start whatever their size, large ones their bytes over the rate. Between the
two a library changes its protocol and its algorithm with the size, so the time departs from
`start + bytes / rate` by up to a third, in steps. That departure is kept by octaves of the size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """The time of one collective of one library over its size, in bytes as nccl-tests count."""

    start_s: float
    bytes_per_s: float
    first_octave: float  # log2 of the size the first departure belongs to
    departure: tuple[float, ...]  # log of time over start + bytes / rate, an octave apart
    band: float  # 90 % of held-out |log errors| are below
    measured_from: float  # log2 of the smallest and largest size that was measured
    measured_to: float

    def time_s(self, size_bytes: Floats) -> Floats:
        """Return seconds for every size; beyond the octaves the last departure is kept.

        >>> flat = Curve(1e-5, 1e11, 10.0, (0.0, 0.0), 0.1, 10.0, 20.0)
        >>> flat.time_s(np.array([1e6])).tolist()
        [2e-05]
        """
        octave = np.log2(np.maximum(size_bytes, 1.0)) - self.first_octave
        departed = np.interp(octave, np.arange(len(self.departure)), np.array(self.departure))
        plain: Floats = (self.start_s + size_bytes / self.bytes_per_s) * np.exp(departed)
        return plain

    def covers(self, size_bytes: Floats) -> NDArray[np.bool_]:
        """Say which sizes lie within what was measured."""
        octave = np.log2(np.maximum(size_bytes, 1.0))
        return (octave >= self.measured_from) & (octave <= self.measured_to)

    def weight(self, size_bytes: Floats) -> Floats:
        """Return log2 of the wire's share over the start's: below zero the start dominates."""
        return np.log2(np.maximum(size_bytes, 1.0) / (self.start_s * self.bytes_per_s))


def curve_from(entry: Mapping[str, Any]) -> Curve:
    """Return the curve of one entry of a calibration."""
    return Curve(
        start_s=float(entry["start_s"]),
        bytes_per_s=float(entry["bytes_per_s"]),
        first_octave=float(entry["first_octave"]),
        departure=tuple(map(float, entry["departure"])),
        band=float(entry["band"]),
        measured_from=float(entry["measured_from"]),
        measured_to=float(entry["measured_to"]),
    )


def wire_share(collective: str, ranks: int) -> float:
    """Return the bytes on a rank's link over the size of its buffer (nccl-tests' busbw factor).

    >>> wire_share("all_reduce", 8), wire_share("all_gather", 8), wire_share("send_recv", 8)
    (1.75, 0.875, 1.0)
    """
    if collective in ("send_recv", "broadcast"):
        return 1.0
    around = (ranks - 1) / ranks
    return 2.0 * around if collective == "all_reduce" else around
