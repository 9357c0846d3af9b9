"""The time that lowered clocks add: whole models keep boards at their power limit.

Isolated kernels are timed on boards that have rested; the matrix units of a prompt of many tokens
work without rest. While they work, a board that was measured under both takes a fitted share of
their least possible time more. Another takes what its matrix units ask for: power rises with the
clock and twice with the voltage that follows it, so that a clock under a power limit goes with the
cube root of the FLOPs asked of each joule, from the measured board of the nearest lithography. A
GeForce at half the matrix rate of its sisters never meets its limit. Boards pressed harder than
those measured are not extrapolated to: none takes more than their mean, and no more do products of
an H200 and a B200 in loops so long that a meter could settle (0.17 to 0.23 of their least time).
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from simulators.catalog.gpu import Gpu, as_sold, load_gpu
from simulators.core.calibration import read_calibration
from simulators.kernels.price import flops
from simulators.workload.operators import Attention, Column, Compute, Gemm, GroupedGemm

CALIBRATION = Path(__file__).parent / "calibration" / "clocks.toml"
OTHER = "other"
SOURCES = {
    "ampere": "a100_sxm",
    "ampere_ga10x": "a100_sxm",
    "ada": "h100_sxm",
    "hopper": "h100_sxm",
    "blackwell": "h100_sxm",
    "blackwell_rtx": "h100_sxm",
}
"""By architecture, the measured board of the nearest lithography: TSMC's 7 nm beside Samsung's 8;
TSMC's 4N, of which Blackwell's 4NP is a variant. A FLOP of an older architecture or of another
vendor's takes other joules than any of these."""


def slowdown(gpu: Gpu) -> float:
    """Return what is added while matrix units work, as a share of their least possible time.

    A board held at a lower clock has as much less to give up.
    """
    if not gpu.validated:
        return 0.0
    fitted, name = _calibration(), gpu.measured_as or gpu.name
    full = fitted[name] if name in fitted else transferred_slowdown(gpu)
    return full if gpu.clock_share == 1.0 else max(0.0, gpu.clock_share * (1.0 + full) - 1.0)


def transferred_slowdown(gpu: Gpu) -> float:
    """Return the slowdown that a measured GPU predicts for another, at most the mean share."""
    fitted = _calibration()
    if gpu.architecture not in SOURCES:
        return fitted[OTHER]
    source = SOURCES[gpu.architecture]
    pressed = flops_per_j(as_sold(gpu)) / flops_per_j(load_gpu(source))
    clock = (1.0 - fitted[source]) * float(np.cbrt(1.0 / pressed))
    return min(max(1.0 - clock, 0.0), fitted[OTHER])


def flops_per_j(gpu: Gpu) -> float:
    """Return how hard matrix units press on the power limit: 16-bit peak over watts."""
    return gpu.peak("fp16") / gpu.tdp_w


def throttled_s(operator: Compute, gpu: Gpu, share: float) -> Column:
    """Return the seconds that a lowered clock adds to one operator."""
    if not isinstance(operator, Gemm | GroupedGemm | Attention):
        return 0.0
    return share * np.asarray(flops(operator), np.float64) / gpu.peak(operator.dtype)


@functools.cache
def _calibration() -> dict[str, float]:
    """Return the fitted shares by board."""
    content: dict[str, dict[str, float]] = read_calibration(CALIBRATION)
    return content["slowdown"]
