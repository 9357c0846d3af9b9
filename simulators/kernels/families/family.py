"""The fitted numbers of one fused kernel on a GPU: its own GPU's, or a relative's.

Calibrations hold one entry per framework, kernel and precisions.
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
from simulators.evidence.lookup import Stamp, calibrations, find, nearest_relation, sources
from simulators.evidence.transfer import ARCHITECTURE, OWN
from simulators.kernels.corrections import Correction, GridTable, correction_from, grids_from
from simulators.kernels.profile import Profile, ReductionRates, VectorRates

KINDS = ("mixed", "chain")
"""Kinds of calibration with rules of their own are named by the first word of a kernel's name."""

EIGHT_BITS = "fp8"
"""The format of keys that kernels multiply as they are, or widen where a GPU has no such rate."""


@dataclass(frozen=True)
class Entry:
    """The numbers of one kernel, and what they may be called here."""

    framework: str
    numbers: Mapping[str, float]
    correction: Correction | None
    grid: GridTable | None
    band: Band  # of the 90 % interval
    gpu: str  # that was measured
    calibrated: bool  # measured on this GPU, in this precision
    here: Entry | None = None  # of this GPU for the same work, where another GPU's is taken
    most: float = math.inf  # times what `here` takes, in which nineteen of twenty kernels run


def entry_of(gpu: Gpu, profile: Profile, kernel: str, dtypes: tuple[str, ...]) -> Entry | None:
    """Return the entry for a kernel on a GPU; none if no table was ever fitted for it.

    Kernels are prefill, decode, mixed, mla_prefill, mla_decode, experts ...; of the precisions the
    wanted one is first.
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
        first if first in KINDS else "fused",
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
    """Say whether a kernel was timed in one of some precisions on a GPU of a GPU's architecture.

    By whichever framework.
    """
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
    """Say whether a GPU's attention in a format has its products in 8 bits."""
    if not dtype.endswith(f"_{EIGHT_BITS}"):
        return False
    try:
        return EIGHT_BITS in load_gpu(source).peak_flops
    except UserError:  # a data sheet given by path has no name to be found by
        return False


def seconds_by(entry: Entry, seconds: Callable[[Entry], Floats]) -> Floats:
    """Return the seconds by an entry, those of a kernel of this GPU at most.

    A transferred kernel does not run if the GPU has a kernel for the same work that is faster by
    more than the measured differences between such kernels.
    """
    taken = seconds(entry)
    return taken if entry.here is None else np.minimum(taken, entry.most * seconds(entry.here))


def entry_from(
    table: Mapping[str, Any], source: str, framework: str, *, whole: bool = True
) -> Entry:
    """Return what a calibration holds of a kernel; unless whole, without trees and grid."""
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
    for file in calibrations("fused").get(source, ()):
        found |= read_calibration(file)["entry"]
    return found


O = TypeVar("O")  # noqa: E741 - an operator

Flags = bool | NDArray[np.bool_]

MEASURED_DTYPE = "fp32"
"""The precision the calibrations of all families but tensor-core products were measured in."""


@dataclass(frozen=True, kw_only=True)
class OperatorFamily(Generic[O]):
    """What can be asked of an operator of one family."""

    seconds: Callable[[O, Gpu, Profile], Floats]  # on the GPU itself
    launch_s: Callable[[O, Gpu, Profile], float] = lambda _o, _gpu, profile: profile.kernel_s
    """Of an empty kernel; 0 where `seconds` has it."""
    call: Callable[[O, Gpu, Profile], tuple[float, Floats | float]] | None = None
    """What a call timed alone takes besides: before it streams, and on the host. None: nothing."""
    flops: Callable[[O], Floats]  # asked for, without padding
    moved_bytes: Callable[[O], Floats]  # inputs and outputs, each once
    streams: bool = False  # bound by memory alone
    saving: Callable[[O], Floats | float] = lambda _o: 1.0
    """Times as many FLOPs as the best algorithm known needs."""
    classes: Callable[[O, Gpu, Profile], str | Mapping[str, Flags]]
    """The interval class of all rows, or the rows of each class."""
    entry: Callable[[O, Gpu, Profile], Entry | None] = lambda _o, _gpu, _profile: None
    """What was fitted to this very kernel; it says band and origin."""
    origin: Callable[[O, Gpu, Profile], tuple[bool, Flags]] = lambda _o, _gpu, _p: (False, False)
    """Without an entry: whether rates were fitted on this device, and which rows lie outside."""

    def roofline_s(self, operator: O, gpu: Gpu) -> Floats:
        """Return the least time the data sheet allows."""
        memory_s = self.moved_bytes(operator) / gpu.hbm_bytes_per_s
        if self.streams:
            return memory_s
        peak = gpu.peak(operator.dtype)  # type: ignore[attr-defined]  # every operator has it
        return np.maximum(self.flops(operator) / self.saving(operator) / peak, memory_s)


def streaming(
    rates_of: Callable[[O, Profile], VectorRates | ReductionRates],
) -> dict[str, Any]:
    """Return the fields of `OperatorFamily` shared by families with one set of rates."""

    def call(operator: O, _gpu: Gpu, profile: Profile) -> tuple[float, float]:
        rates = rates_of(operator, profile)
        return rates.ramp_s, rates.dispatch_s

    def origin(operator: O, _gpu: Gpu, profile: Profile) -> tuple[bool, Flags]:
        dtype = operator.dtype  # type: ignore[attr-defined]  # every operator has it
        return rates_of(operator, profile).calibrated and dtype == MEASURED_DTYPE, False

    return {"streams": True, "call": call, "origin": origin}


def outside(sizes: Sequence[Floats], seen: Sequence[tuple[float, float]]) -> NDArray[np.bool_]:
    """Return which sizes are outside the fitted range; all False without a recorded range."""
    beyond = np.zeros(np.broadcast_shapes(*(size.shape for size in sizes)), bool)
    for size, (least, most) in zip(sizes, seen, strict=False):
        beyond = beyond | (size < least) | (size > most)
    return beyond
