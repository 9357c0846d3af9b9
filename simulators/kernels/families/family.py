"""What all operator families share: the interface, and the fitted constants of one kernel.

Calibrations hold one entry per framework, kernel and precision. A GPU without its own entry uses
the entry of another GPU (`evidence/lookup.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import read_calibration
from simulators.core.errors import UserError
from simulators.core.jit import Floats
from simulators.evidence.intervals import Band, band_from
from simulators.evidence.lookup import (
    STATES,
    Stamp,
    calibrations,
    find,
    nearest_relation,
    sources,
)
from simulators.evidence.transfer import ARCHITECTURE, OWN
from simulators.kernels.corrections import Correction, GridTable, correction_from, grids_from
from simulators.kernels.profile import Profile, ReductionRates, VectorRates

KINDS = {
    "mixed": "mixed",
    "chain": "chain",
    "delta": STATES,
    "convolution": STATES,
    "mixing": STATES,
    "sparse": STATES,
    "index": STATES,
}
"""Kinds of calibration other than `fused`, by the first word of a kernel's name."""

EIGHT_BITS = "fp8"
"""Format of keys that kernels multiply directly, or widen on GPUs without such a rate."""


@dataclass(frozen=True)
class Entry:
    """The fitted constants of one kernel, and their evidence on a GPU."""

    framework: str
    numbers: Mapping[str, float]
    correction: Correction | None
    grid: GridTable | None
    band: Band  # of the 90 % interval
    gpu: str  # the measured GPU
    calibrated: bool  # measured on this GPU in this precision
    here: Entry | None = None  # this GPU's own entry for the same work, if the entry is transferred
    most: float = math.inf  # upper limit of the time, as a multiple of the time by `here`


def entry_of(gpu: Gpu, profile: Profile, kernel: str, dtypes: tuple[str, ...]) -> Entry | None:
    """Return the entry for a kernel on a GPU, or None if no table was fitted for it.

    Args:
        gpu: the GPU.
        profile: gives framework and level of information.
        kernel: prefill, decode, mixed, mla_prefill, mla_decode, experts ...
        dtypes: the requested precision, followed by its substitutes.
    """
    nearest = nearest_relation(profile.asked)
    name = gpu.measured_as or gpu.name
    widens = EIGHT_BITS not in gpu.peak_flops
    return _entry(
        name, gpu.architecture, profile.framework, nearest, kernel, dtypes, widens, profile.stamp
    )


@functools.lru_cache(maxsize=1024)
def _entry(
    gpu: str,
    architecture: str,
    framework: str,
    nearest: str,
    kernel: str,
    dtypes: tuple[str, ...],
    widens: bool,
    now: Stamp,
) -> Entry | None:
    def look(source: str, whose: str, dtype: str) -> Mapping[str, Any] | None:
        if widens and source != gpu and multiplies_narrow(source, dtype):
            return None
        return tables_of(source, now).get(f"{whose}.{kernel}.{dtype}")

    first = kernel.partition("_")[0]
    found = find(
        KINDS.get(first, "fused"),
        gpu,
        architecture,
        look,
        family=f"{kernel}.{dtypes[0]}",
        framework=framework,
        precisions=dtypes,
        nearest=nearest,
    )
    if found is None:
        return None
    entry = entry_from(found.numbers, found.gpu, found.framework, whole=found.error.whole)
    entry = replace(entry, band=found.widened(entry.band), calibrated=found.is_own)
    if (here := found.here) is None:
        return entry
    known = entry_from(here.numbers, here.gpu, here.framework, whole=here.error.whole)
    return replace(entry, here=known, most=here.error.hi)


def is_timed(gpu: Gpu, profile: Profile, kernel: str, dtypes: tuple[str, ...]) -> bool:
    """Return whether any framework's kernel was timed on the architecture in these precisions."""
    name = gpu.measured_as or gpu.name
    return _is_timed(name, gpu.architecture, kernel, dtypes, profile.stamp)


@functools.lru_cache(maxsize=256)
def _is_timed(
    gpu: str, architecture: str, kernel: str, dtypes: tuple[str, ...], now: Stamp
) -> bool:
    gpus = [
        one.gpu
        for one in sources("fused", gpu, architecture)
        if one.relation in (OWN, ARCHITECTURE)
    ]
    named = {name.partition(".")[2] for source in gpus for name in tables_of(source, now)}
    return any(f"{kernel}.{dtype}" in named for dtype in dtypes)


def multiplies_narrow(source: str, dtype: str) -> bool:
    """Return whether a GPU multiplies 8-bit keys of attention without widening them."""
    if not dtype.endswith(f"_{EIGHT_BITS}"):
        return False
    try:
        return EIGHT_BITS in load_gpu(source).peak_flops
    except UserError:  # a data sheet given by path has no name to be found by
        return False


def seconds_by(entry: Entry, seconds: Callable[[Entry], Floats]) -> Floats:
    """Return the seconds of a kernel by its entry.

    The time of a transferred entry is limited to `most` times the time of the GPU's own kernel for
    the same work, because the engine would otherwise run that kernel.
    """
    found = seconds(entry)
    return found if entry.here is None else np.minimum(found, entry.most * seconds(entry.here))


def entry_from(
    table: Mapping[str, Any], source: str, framework: str, *, whole: bool = True
) -> Entry:
    """Return the entry of a calibration table; trees and grid are included only if `whole`."""
    return Entry(
        framework=framework,
        numbers={key: float(value) for key, value in table["numbers"].items()},
        correction=correction_from(table["correction"])
        if whole and "correction" in table
        else None,
        grid=grids_from(table["grid"]) if whole and "grid" in table else None,
        band=band_from(table["band"]),
        gpu=source,
        calibrated=True,
    )


@functools.lru_cache(maxsize=16)
def tables_of(source: str, _now: Stamp) -> Mapping[str, Any]:
    """Return a GPU's entries by name."""
    found: dict[str, Any] = {}
    for file in calibrations(STATES).get(source, ()):
        found |= read_calibration(file)["entry"]
    return found


O = TypeVar("O")  # noqa: E741 - an operator

Flags = bool | NDArray[np.bool_]

MEASURED_DTYPE = "fp32"
"""Precision of the measurements of all families except tensor-core products."""


@dataclass(frozen=True, kw_only=True)
class OperatorFamily(Generic[O]):
    """The formulas of one family of operators, over columns of sizes."""

    seconds: Callable[[O, Gpu, Profile], Floats]  # time on the GPU
    launch_s: Callable[[O, Gpu, Profile], float] = lambda _o, _gpu, profile: profile.kernel_s
    """Seconds of an empty kernel; 0 if `seconds` includes the launch."""
    call: Callable[[O, Gpu, Profile], tuple[float, Floats | float]] | None = None
    """Extra seconds of a call timed alone: ramp on the GPU, and dispatch on the host."""
    flops: Callable[[O], Floats]  # without padding
    moved_bytes: Callable[[O], Floats]  # inputs and outputs, each once
    streams: bool = False  # bound by memory alone
    saving: Callable[[O], Floats | float] = lambda _o: 1.0
    """FLOPs over the FLOPs of the best known algorithm."""
    classes: Callable[[O, Gpu, Profile], str | Mapping[str, Flags]]
    """The interval class of all rows, or a mask of rows per class."""
    entry: Callable[[O, Gpu, Profile], Entry | None] = lambda _o, _gpu, _profile: None
    """The entry of the kernel, which gives band and evidence."""
    origin: Callable[[O, Gpu, Profile], tuple[bool, Flags]] = lambda _o, _gpu, _p: (False, False)
    """Without an entry: whether rates were fitted on this GPU, and a mask of extrapolated rows."""

    def roofline_s(self, operator: O, gpu: Gpu) -> Floats:
        """Return the least time in seconds that the data sheet allows."""
        memory_s = self.moved_bytes(operator) / gpu.hbm_bytes_per_s
        if self.streams:
            return memory_s
        peak = gpu.peak(operator.dtype)  # type: ignore[attr-defined]  # every operator has it
        return np.maximum(self.flops(operator) / self.saving(operator) / peak, memory_s)


def streaming(rates_of: Callable[[O, Profile], VectorRates | ReductionRates]) -> dict[str, Any]:
    """Return the `OperatorFamily` fields of memory-bound families, given their rates."""

    def call(operator: O, _gpu: Gpu, profile: Profile) -> tuple[float, float]:
        rates = rates_of(operator, profile)
        return rates.ramp_s, rates.dispatch_s

    def origin(operator: O, _gpu: Gpu, profile: Profile) -> tuple[bool, Flags]:
        dtype = operator.dtype  # type: ignore[attr-defined]  # every operator has it
        return rates_of(operator, profile).calibrated and dtype == MEASURED_DTYPE, False

    return {"streams": True, "call": call, "origin": origin}


def outside(sizes: Sequence[Floats], seen: Sequence[tuple[float, float]]) -> NDArray[np.bool_]:
    """Return a mask of the rows outside the fitted range; all False without a recorded range."""
    beyond = np.zeros(np.broadcast_shapes(*(size.shape for size in sizes)), bool)
    for size, (least, most) in zip(sizes, seen, strict=False):
        beyond = beyond | (size < least) | (size > most)
    return beyond
