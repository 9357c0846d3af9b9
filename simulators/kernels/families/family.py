"""An operator family is a handful of formulas over columns; each module of formulas holds one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.intervals import Band
from simulators.kernels.profile import Profile

O = TypeVar("O")  # noqa: E741 - an operator

Floats = NDArray[np.float64]
Flags = bool | NDArray[np.bool_]

MEASURED_DTYPE = "fp32"
"""The precision the calibrations of all families but tensor-core products were measured in."""


def empty_kernel_s(_operator: object, _gpu: Gpu, profile: Profile) -> float:
    """Return the seconds of an empty kernel, which a family adds to its running time."""
    return profile.kernel_s


def band_of_class(_operator: object, _gpu: Gpu, _profile: Profile) -> Band | None:
    """Return no band: the profile holds one for the operator's class."""
    return None


@dataclass(frozen=True, kw_only=True)
class Family(Generic[O]):
    """What can be asked of an operator of one family."""

    seconds: Callable[[O, Gpu, Profile], Floats]  # on the GPU itself
    call_seconds: Callable[[O, Gpu, Profile], Floats]  # timed alone, host included
    flops: Callable[[O], Floats]  # asked for, without padding
    moved_bytes: Callable[[O], Floats]  # inputs and outputs, each once
    roofline_s: Callable[[O, Gpu], Floats]  # the least the data sheet allows
    classes: Callable[[O, Gpu, Profile], NDArray[np.str_]]  # whose rates and band, by row
    origin: Callable[[O, Gpu, Profile], tuple[bool, Flags]]  # calibrated, extrapolated
    launch_s: Callable[[O, Gpu, Profile], float] = empty_kernel_s  # 0 where `seconds` has it
    band: Callable[[O, Gpu, Profile], Band | None] = band_of_class  # of what was fitted by itself
