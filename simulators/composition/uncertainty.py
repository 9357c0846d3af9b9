"""The 90 % interval of a pass and its shares by evidence level, from kernels and messages.

Kernels of one family share rates, trees and a framework, so their errors are taken as fully
correlated: half-widths add up. Families are independent and add up by squares, together with a
share of the pass that no kernel explains, measured on held-out passes:

    w = ( (sum of products)^2 + (sum of attention)^2 + ... + (share of the pass)^2 )^(1/2)

On a GPU of an architecture without any measured kernel all families are taken as correlated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.composition.operator_prices import Row, family_of
from simulators.composition.replica import Replica, Runtime
from simulators.core.calibration import read_calibration
from simulators.core.columns import EXTRAPOLATED, FITTED, LEVELS, Shares
from simulators.core.folder import once
from simulators.core.jit import Floats
from simulators.evidence.lookup import has_related_gpu
from simulators.workload.operators import Column

K = TypeVar("K")
Seconds = Mapping[int, Column]
"""By position in `core.columns.LEVELS`."""


def seconds_by_level(rows: Sequence[Row]) -> Seconds:
    """Return the seconds of rows by evidence level."""
    found: dict[int, Column] = {}
    for row in rows:
        levels = np.asarray(row.level)
        for level in range(int(levels.min()), int(levels.max()) + 1):
            here = np.where(levels == level, row.seconds, 0.0) if levels.ndim else row.seconds
            found[level] = found.get(level, 0.0) + here
    return found


def add_up(parts: Iterable[tuple[float, Mapping[K, Any]]], zero: Any = 0.0) -> dict[K, Any]:
    """Return the sum of mappings key by key, each multiplied by its count.

    >>> add_up([(2.0, {"a": 1.0}), (1.0, {"a": 1.0, "b": 3.0})])
    {'a': 3.0, 'b': 3.0}
    """
    found: dict[K, Any] = {}
    for count, part in parts:
        for key, value in part.items():
            found[key] = found.get(key, zero) + count * value
    return found


def runtime_level(replica: Replica) -> int:
    """Return the evidence level of launches and host waits: fitted only on some GPUs."""
    return FITTED if replica.runtime.knows(replica.gpu) else EXTRAPOLATED


def shares(seconds: Seconds) -> Shares:
    """Return the share of each level in the total, one row per level."""
    rows = np.broadcast_arrays(*(seconds.get(level, 0.0) for level in range(len(LEVELS))))
    return np.asarray(np.stack(rows) / np.sum(rows, axis=0), np.float64)


INTERVALS_CALIBRATION = Path(__file__).parent / "calibration" / "intervals.toml"


@dataclass(frozen=True)
class HalfWidth:
    """Half-widths of a 90 % interval, below and above, in seconds."""

    below_s: Column = 0.0
    above_s: Column = 0.0

    def __add__(self, other: HalfWidth) -> HalfWidth:
        return HalfWidth(self.below_s + other.below_s, self.above_s + other.above_s)

    def __rmul__(self, count: float) -> HalfWidth:
        return HalfWidth(count * self.below_s, count * self.above_s)


HalfWidths = Mapping[str, HalfWidth]
"""By family of kernels and messages."""


def half_widths_of(rows: Sequence[Row]) -> HalfWidths:
    """Return the half-widths of rows, added up within each family."""
    each = (HalfWidth(row.seconds - row.lo_s, row.hi_s - row.seconds) for row in rows)
    return added({family_of(row.operator): one} for row, one in zip(rows, each, strict=True))


def added(many: Iterable[HalfWidths]) -> HalfWidths:
    """Return the sums of half-widths by family: errors of one family are correlated."""
    return add_up(((1.0, one) for one in many), HalfWidth())


def interval_s(
    latency_s: Column, half_widths: HalfWidths, unexplained: float
) -> tuple[Floats, Floats]:
    """Return the ends of the 90 % interval of a pass; the lower end is at least 0.

    `unexplained`: half-width of the remaining error that no kernel's interval explains, as a share
    of the pass.

    >>> parts = {"gemm": HalfWidth(0.3, 0.3), "messages": HalfWidth(0.4, 0.4)}
    >>> lo, hi = interval_s(1.0, parts, 0.0)
    >>> float(lo), float(hi)
    (0.5, 1.5)
    """
    unexplained_s = unexplained * np.asarray(latency_s, np.float64)
    below = above = unexplained_s**2
    for one in half_widths.values():
        below = below + np.square(one.below_s)
        above = above + np.square(one.above_s)
    lo_s: Floats = np.maximum(0.0, latency_s - np.sqrt(below))
    hi_s: Floats = latency_s + np.sqrt(above)
    return lo_s, hi_s


def pass_interval_s(
    latency_s: Column, stages: Iterable[HalfWidths], replica: Replica
) -> tuple[Floats, Floats]:
    """Return the ends of the 90 % interval of a pass through all stages of a replica."""
    share = replica.runtime.interval_share.get(replica.gpu.architecture, 1.0)
    half_widths = {family: share * one for family, one in added(stages).items()}
    if not has_related_gpu(replica.gpu, replica.level):
        half_widths = {"all": sum(half_widths.values(), HalfWidth())}
    return interval_s(latency_s, half_widths, unexplained_share(replica.runtime, replica.gpu))


def unexplained_share(runtime: Runtime, gpu: Gpu) -> float:
    """Return the unexplained half-width of a pass as a share; wider on GPUs new to a runtime."""
    shares = once(read_calibration, INTERVALS_CALIBRATION)["unexplained"]
    return float(shares["known_gpus" if runtime.knows(gpu) else "new_gpus"])
