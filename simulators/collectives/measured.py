"""What NCCL and its rivals were measured to take, between and beyond the sizes and ranks measured.

A curve is looked up by GPU, library, collective, precision and ranks. Between two measured rank
counts the time is interpolated over log2(ranks) at equal bytes on the wire; beyond the last, it
grows per doubling as it was seen to grow on other GPUs. A broadcast is priced as an all-gather of
the same total, a send as half an exchange between two ranks: both are marked as extrapolated.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulators.collectives.curves import Curve, curve_from, wire_share
from simulators.core.calibration import read_calibration
from simulators.core.errors import Infeasible, UnknownNameError
from simulators.core.folder import PACKAGE, Folder

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CALIBRATIONS = PACKAGE / "collectives" / "calibration" / "networks"
GROWTH = PACKAGE / "collectives" / "calibration" / "growth.toml"
OWN_CALIBRATIONS = Path("catalog") / "networks"
NETWORKS = Folder("measured network", "collectives/calibration/networks")

AUTO = "auto"
"""Instead of a precision: the one that was measured and is nearest in bytes."""
NEAREST = {
    "fp16": ("fp16", "bf16"), "bf16": ("bf16", "fp16"), "fp32": ("fp16", "bf16"),
    "int8": ("int8",), "fp8": ("int8", "fp16", "bf16"),
}  # fmt: skip
"""In-switch reduction takes floating point but not int8, so an int8 curve is not an fp16 curve."""
PCIE_NETWORKS = ("l40s", "rtx_pro_6000", "b60")
STEP_BAND = 1.5
"""Each further doubling beyond what was measured widens the interval by this factor."""


@dataclass(frozen=True)
class Timed:
    """Seconds with their 90 % interval, and how they came about."""

    time_s: Floats
    lo_s: Floats
    hi_s: Floats
    extrapolated: Bools


def measured_time(
    *, gpu: str, library: str, collective: str, dtype: str, ranks: int, size_bytes: Floats
) -> Timed:
    """Return what a collective takes on the GPUs of one node.

    Args:
        gpu: whose interconnect, by the name of its data sheet.
        library: `nccl`, or a framework's own all-reduce: `trtllm`, `sglang`, `vllm` ...
        collective: which.
        dtype: precision of the numbers.
        ranks: GPUs that take part.
        size_bytes: buffers as nccl-tests count them: of an all-gather, what each rank has in the
            end.

    Raises:
        UnknownNameError: nobody measured the library on this GPU.
        Infeasible: nobody measured this collective with it.
    """
    if ranks < 1:
        raise Infeasible("no_ranks", f"{ranks} ranks")
    if ranks == 1:
        nothing = np.zeros_like(size_bytes)
        return Timed(nothing, nothing, nothing, np.zeros(size_bytes.shape, bool))
    if collective == "send_recv":
        swap = measured_time(
            gpu=gpu, library=library, collective="all_to_all", dtype=dtype, ranks=2,
            size_bytes=2.0 * size_bytes,
        )  # fmt: skip
        return Timed(swap.time_s, swap.lo_s, swap.hi_s, np.ones(size_bytes.shape, bool))
    source = "all_gather" if collective == "broadcast" else collective
    curves = _family(gpu, library, source, dtype)
    timed = _over_ranks(curves, source, ranks, size_bytes, gpu)
    if source != collective:
        return Timed(timed.time_s, timed.lo_s, timed.hi_s, np.ones(size_bytes.shape, bool))
    return timed


def libraries_of(gpu: str, collective: str) -> tuple[str, ...]:
    """Return the libraries whose collective was measured on a GPU; of an unknown GPU none."""
    if not NETWORKS.has(gpu):
        return ()
    path = NETWORKS.find(gpu)
    source = {"send_recv": "all_to_all", "broadcast": "all_gather"}.get(collective, collective)
    curves = _curves(path, path.stat().st_mtime_ns)
    return tuple(sorted({key[0] for key in curves if key[1] == source}))


def _over_ranks(
    curves: dict[int, Curve], collective: str, ranks: int, size_bytes: Floats, gpu: str
) -> Timed:
    known = sorted(curves)
    wire = size_bytes * wire_share(collective, ranks)
    if ranks in curves:
        time_s, inside = curves[ranks].time_s(size_bytes), curves[ranks].covers(size_bytes)
        return _with_band(time_s, np.full(time_s.shape, curves[ranks].band), ~inside)
    above = [n for n in known if n > ranks]
    below = [n for n in known if n < ranks]
    if above and below:
        low, high = below[-1], above[0]
        part = np.log2(ranks / low) / np.log2(high / low)
        log_low, log_high = (
            np.log(curves[n].time_s(wire / wire_share(collective, n))) for n in (low, high)
        )
        band = max(curves[low].band, curves[high].band, _growth(gpu, collective)[2])
        time_s = np.exp((1.0 - part) * log_low + part * log_high)
        return _with_band(time_s, np.full(time_s.shape, band), np.ones(time_s.shape, bool))
    near = below[-1] if below else above[0]
    doublings = float(np.log2(ranks / near))
    nearby = wire / wire_share(collective, near)
    grid, log_growth, band = _growth(gpu, collective)
    grown = np.interp(curves[near].weight(nearby), grid, log_growth) * doublings
    time_s = curves[near].time_s(nearby) * np.exp(grown)
    wide = band * STEP_BAND ** max(0.0, abs(doublings) - 1.0)
    return _with_band(time_s, np.full(time_s.shape, wide), np.ones(time_s.shape, bool))


def _with_band(time_s: Floats, band: Floats, extrapolated: Bools) -> Timed:
    wide = np.where(extrapolated, STEP_BAND * band, band)
    return Timed(time_s, time_s * np.exp(-wide), time_s * np.exp(wide), extrapolated)


def _family(gpu: str, library: str, collective: str, dtype: str) -> dict[int, Curve]:
    """Return the curves by ranks, of the nearest precision that was measured."""
    path = NETWORKS.find(gpu)
    curves = _curves(path, path.stat().st_mtime_ns)
    libraries = sorted({key[0] for key in curves})
    if library not in libraries:
        raise UnknownNameError(f"library of gpu {gpu}", library, libraries)
    for kind in NEAREST.get(dtype, (dtype,)):
        if family := {k[3]: c for k, c in curves.items() if k[:3] == (library, collective, kind)}:
            return family
    known = sorted({f"{k[1]} in {k[2]}" for k in curves if k[0] == library})
    raise Infeasible(
        "not_measured",
        f"{library} on {gpu}: no {collective} in {dtype}; there is {', '.join(known)}",
    )


@functools.lru_cache(maxsize=64)
def _curves(path: Path, _mtime_ns: int) -> dict[tuple[str, str, str, int], Curve]:
    return {
        (e["library"], e["collective"], e["dtype"], int(e["ranks"])): curve_from(e)
        for e in read_calibration(path)["curve"]
    }


def _growth(gpu: str, collective: str) -> tuple[Floats, Floats, float]:
    fabric = "pcie" if gpu in PCIE_NETWORKS else "nvlink"
    return _read_growth(fabric, collective)


@functools.lru_cache(maxsize=64)
def _read_growth(fabric: str, collective: str) -> tuple[Floats, Floats, float]:
    content = read_calibration(GROWTH)
    grid = np.array(content["provenance"]["weight"])
    entry = content[fabric][collective]
    return grid, np.array(entry["log_growth"]), float(entry["band"])
