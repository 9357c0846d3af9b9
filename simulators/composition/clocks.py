"""A board at its power limit lowers its clock, and whole models keep it there longer than kernels.

Isolated kernels are timed on boards that have rested; the matrix units of a prompt of many tokens
work without rest. While they work, a board that was measured under both takes a fitted share of
their least possible time more. Boards nobody measured so take the mean of those that were.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.calibration import read_calibration
from simulators.kernels.latency import flops
from simulators.workload.operators import Attention, Column, Compute, Gemm, GroupedGemm

CALIBRATION = Path(__file__).parent / "calibration" / "clocks.toml"
OTHER = "other"


def slowdown(gpu: Gpu) -> float:
    """Return what is added while matrix units work, as a share of their least possible time."""
    return _slowdown(gpu.measured_as or gpu.name)


@functools.lru_cache(maxsize=256)
def _slowdown(name: str) -> float:
    fitted: dict[str, float] = read_calibration(CALIBRATION)["slowdown"]
    return fitted.get(name, fitted[OTHER])


def throttled_s(operator: Compute, gpu: Gpu, share: float) -> Column:
    """Return the seconds that a lowered clock adds to one operator."""
    if not isinstance(operator, Gemm | GroupedGemm | Attention):
        return 0.0
    return share * np.asarray(flops(operator), np.float64) / gpu.peak(operator.dtype)
