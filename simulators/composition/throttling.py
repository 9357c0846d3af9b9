"""Time added by lower clocks: whole models keep GPUs at their power limit.

Kernels were timed alone on rested GPUs; matrix units in a long prompt work without rest. A GPU that
was measured both ways takes a fitted share of the roofline time longer. For another GPU, power
rises with the clock and twice with the voltage that follows it, so the clock under a power limit
goes with the cube root of FLOPs per joule, relative to the measured GPU of the nearest process
node; a GeForce at half the matrix rate never reaches its limit. The slowdown is capped at the mean
of the measured GPUs; long loops on an H200 and a B200 show no more (0.17 to 0.23 of their roofline
time).
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
"""By architecture, the measured GPU of the nearest lithography: TSMC's 7 nm beside Samsung's 8;
TSMC's 4N, of which Blackwell's 4NP is a variant. A FLOP of an older architecture or of another
vendor's takes other joules than any of these."""


def slowdown(gpu: Gpu) -> float:
    """Return what is added while matrix units work, as a share of their least possible time.

    A GPU held at a lower clock has as much less to give up.
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
    """Return the fitted shares by GPU."""
    content: dict[str, dict[str, float]] = read_calibration(CALIBRATION)
    return content["slowdown"]
