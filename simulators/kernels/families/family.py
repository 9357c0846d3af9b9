"""What every operator family offers: a handful of formulas over columns, one family a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.entries import Entry
from simulators.kernels.profile import Profile, ReductionRates, VectorRates

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
