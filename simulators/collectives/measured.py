"""Measured times of NCCL and other libraries inside a node, by size, ranks, precision and GPU.

A curve has a start time, a rate, and corrections in between. Small messages take the start time,
large messages their bytes over the rate; between the two a library changes its protocol and its
algorithm, so the time departs from `start + bytes / rate` by up to a third, in steps. The departure
is stored at every second octave of the size.

Between two measured rank counts the time is interpolated over log2(ranks) at equal bytes on the
wire; beyond the last, it grows per doubling as on other GPUs. A broadcast is priced as an
all-gather of the same total, a send as half an exchange between two ranks: both are marked as
extrapolated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulators.core.calibration import read_calibration
from simulators.core.columns import EXTRAPOLATED, MEASURED
from simulators.core.errors import Infeasible, UnknownNameError
from simulators.core.folder import PACKAGE, Folder
from simulators.core.jit import Floats

Bools = NDArray[np.bool_]

GROWTH = PACKAGE / "collectives" / "calibration" / "growth.toml"
OWN_CALIBRATIONS = Path("catalog") / "networks"
NETWORKS = Folder("measured network", "collectives/calibration/networks")

NEAREST = {
    "fp16": ("fp16", "bf16"),
    "bf16": ("bf16", "fp16"),
    "fp32": ("fp16", "bf16"),
    "int8": ("int8",),
    "fp8": ("int8", "fp16", "bf16"),
}
"""In-switch reduction takes floating point but not int8, so an int8 curve is not an fp16 curve."""
COPIES, ANY = ("all_gather", "all_to_all"), "any"
"""Name of the curve of all precisions, for collectives without arithmetic."""
STAND_INS = {"broadcast": "all_gather", "send_recv": "all_to_all"}
"""Measured collective whose curve replaces that of an unmeasured collective."""
PCIE_NETWORKS = ("l40s", "rtx_pro_6000", "b60")
OCTAVES = 2.0
"""Between two departures of a curve. With sizes left out, the mean error is 5.4 % at one or two
octaves and 6.0 % at three."""
PADDED = 16
"""Doublings of a message whose times limit the message's own beyond the measured ranks."""
STEP_BAND = 1.5
"""Each doubling of the ranks beyond the measured ones widens the interval by this factor."""


@dataclass(frozen=True)
class Curve:
    """Measured time of a library's collective by size, in bytes as nccl-tests count."""

    start_s: float
    bytes_per_s: float
    first_octave: float  # log2 of the size of the first departure
    departure: tuple[float, ...]  # log of time over start + bytes / rate, `OCTAVES` apart
    band: float  # 90 % of held-out |log errors| are below
    measured_from: float  # log2 of the smallest and largest size that was measured
    measured_to: float

    def time_s(self, size_bytes: Floats) -> Floats:
        """Return the seconds of every size; beyond the octaves the last departure applies.

        >>> flat = Curve(1e-5, 1e11, 10.0, (0.0, 0.0), 0.1, 10.0, 20.0)
        >>> flat.time_s(np.array([1e6])).tolist()
        [2e-05]
        """
        place = (np.log2(np.maximum(size_bytes, 1.0)) - self.first_octave) / OCTAVES
        departed = np.interp(place, np.arange(len(self.departure)), np.array(self.departure))
        plain: Floats = (self.start_s + size_bytes / self.bytes_per_s) * np.exp(departed)
        return plain

    def covers(self, size_bytes: Floats) -> Bools:
        """Return a mask of the sizes within the measured range."""
        octave = np.log2(np.maximum(size_bytes, 1.0))
        return (octave >= self.measured_from) & (octave <= self.measured_to)

    def weight(self, size_bytes: Floats) -> Floats:
        """Return log2 of transfer time over start time; below zero the start time dominates."""
        return np.log2(np.maximum(size_bytes, 1.0) / (self.start_s * self.bytes_per_s))


@dataclass(frozen=True)
class CollectiveTime:
    """Seconds of every size, their 90 % interval, and the evidence level."""

    time_s: Floats
    lo_s: Floats
    hi_s: Floats
    level: NDArray[np.int64]  # positions in `core.columns.LEVELS`


def over_nodes(
    kind: str,
    between: CollectiveTime,
    inside: Callable[[str], CollectiveTime],
) -> CollectiveTime:
    """Return the time of a collective over several nodes: a part between nodes, parts inside.

    The buffer is reduce-scattered inside a node, each GPU combines its share between nodes, and the
    result is gathered inside; collectives without a reduction cross whole. The parts overlap, as in
    NCCL's rings, and the slower part counts.
    """
    halves = {"all_reduce": ("reduce_scatter", "all_gather"), "send_recv": ()}
    parts = [inside(part) for part in halves.get(kind, (kind,))]
    columns = {}
    for name in ("time_s", "lo_s", "hi_s"):
        nodes_s = sum((getattr(part, name) for part in parts), start=np.zeros(()))
        ports_s = getattr(between, name)
        columns[name] = np.maximum(ports_s, nodes_s)
    return CollectiveTime(level=between.level, **columns)


def measured_time(
    *, gpu: str, library: str, collective: str, dtype: str, ranks: int, size_bytes: Floats
) -> CollectiveTime:
    """Return the time of a collective on the GPUs of one node.

    Sizes are buffers as in nccl-tests: for an all-gather, the final buffer of a rank. The library
    is `nccl`, or a framework with a measured all-reduce.

    Raises:
        UnknownNameError: the library was not measured on this GPU.
        Infeasible: this collective was not measured with the library.
    """
    if ranks < 1:
        raise Infeasible("no_ranks", f"{ranks} ranks")
    if ranks == 1:
        nothing = np.zeros_like(size_bytes)
        return CollectiveTime(nothing, nothing, nothing, np.full(size_bytes.shape, MEASURED))
    source = STAND_INS.get(collective, collective)
    if collective == "send_recv":
        ranks, size_bytes = 2, 2.0 * size_bytes
    timed = _over_ranks(_curves_of(gpu, library, source, dtype), source, ranks, size_bytes, gpu)
    if source == collective:
        return timed
    return dataclasses.replace(timed, level=np.full(size_bytes.shape, EXTRAPOLATED))


def libraries_of(gpu: str, collective: str) -> tuple[str, ...]:
    """Return the libraries with a measured collective on a GPU; empty for an unknown GPU."""
    try:
        curves = _all_curves(gpu)
    except UnknownNameError:
        return ()
    source = STAND_INS.get(collective, collective)
    return tuple(sorted({key[0] for key in curves if key[1] == source}))


def busbw_factor(collective: str, ranks: int) -> float:
    """Return the bytes on a rank's link over the size of its buffer, as nccl-tests define it.

    >>> busbw_factor("all_reduce", 8), busbw_factor("all_gather", 8), busbw_factor("send_recv", 8)
    (1.75, 0.875, 1.0)
    """
    if collective in ("broadcast", "send_recv") or ranks < 2:
        return 1.0
    return (2.0 if collective == "all_reduce" else 1.0) * (ranks - 1) / ranks


def _over_ranks(
    curves: dict[int, Curve], collective: str, ranks: int, size_bytes: Floats, gpu: str
) -> CollectiveTime:
    """Return the time of a rank count: from its curve, between two curves, or beyond the last."""
    if ranks in curves:
        exact = curves[ranks]
        beyond = ~exact.covers(size_bytes)
        wide = np.where(beyond, STEP_BAND * exact.band, exact.band)
        return _with_band(exact.time_s(size_bytes), wide, beyond)
    wire = size_bytes * busbw_factor(collective, ranks)
    above = [n for n in sorted(curves) if n > ranks]
    below = [n for n in sorted(curves) if n < ranks]
    everywhere = np.ones(size_bytes.shape, bool)
    grid, log_growth, band = _growth("pcie" if gpu in PCIE_NETWORKS else "nvlink", collective)
    if above and below:
        low, high = below[-1], above[0]
        part = np.log2(ranks / low) / np.log2(high / low)
        log_low, log_high = (
            np.log(curves[n].time_s(wire / busbw_factor(collective, n))) for n in (low, high)
        )
        time_s = np.exp((1.0 - part) * log_low + part * log_high)
        widest = max(curves[low].band, curves[high].band, band)
        return _with_band(time_s, STEP_BAND * widest, everywhere)
    last = below[-1] if below else above[0]
    doublings = float(np.log2(ranks / last))
    # A message that is padded to a larger size is never faster than the message itself.
    size = np.multiply.outer(2.0 ** np.arange(PADDED + 1), wire / busbw_factor(collective, last))
    grown = np.interp(curves[last].weight(size), grid, log_growth) * doublings
    time_s = (curves[last].time_s(size) * np.exp(grown)).min(axis=0)
    wide = max(band, curves[last].band) * STEP_BAND ** max(0.0, abs(doublings) - 1.0)
    return _with_band(time_s, wide, everywhere)


def _with_band(time_s: Floats, wide: Floats | float, extrapolated: Bools) -> CollectiveTime:
    level = np.where(extrapolated, EXTRAPOLATED, MEASURED)
    return CollectiveTime(time_s, time_s * np.exp(-wide), time_s * np.exp(wide), level)


def _curves_of(gpu: str, library: str, collective: str, dtype: str) -> dict[int, Curve]:
    """Return the curves of the nearest measured precision, by ranks."""
    curves = _all_curves(gpu)
    libraries = sorted({key[0] for key in curves})
    if library not in libraries:
        raise UnknownNameError(f"library of gpu {gpu}", library, libraries)
    for kind in (ANY,) if collective in COPIES else NEAREST.get(dtype, (dtype,)):
        if found := {k[3]: c for k, c in curves.items() if k[:3] == (library, collective, kind)}:
            return found
    known = sorted({f"{k[1]} in {k[2]}" for k in curves if k[0] == library})
    raise Infeasible(
        "not_measured",
        f"{library} on {gpu}: no {collective} in {dtype}; there is {', '.join(known)}",
    )


def _all_curves(gpu: str) -> dict[tuple[str, str, str, int], Curve]:
    """Return the curves of a GPU by library, collective, precision and ranks."""
    return NETWORKS.load(gpu, _read_curves)


def _read_curves(path: Path) -> dict[tuple[str, str, str, int], Curve]:
    names = [f.name for f in dataclasses.fields(Curve)]
    found = {}
    for entry in read_calibration(path)["curve"]:
        values = {n: float(entry[n]) for n in names if n != "departure"}
        curve = Curve(**values, departure=tuple(map(float, entry["departure"])))
        found[entry["library"], entry["collective"], entry["dtype"], int(entry["ranks"])] = curve
    return found


@functools.lru_cache(maxsize=64)
def _growth(fabric: str, collective: str) -> tuple[Floats, Floats, float]:
    """Return weights, the growth of the log time per doubling of the ranks, and its band."""
    content = read_calibration(GROWTH)
    entry = content[fabric][collective]
    grid = np.array(content["provenance"]["weight"])
    return grid, np.array(entry["log_growth"]), float(entry["band"])
