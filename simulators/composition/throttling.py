"""The time that lowered clocks add: whole models keep boards at their power limit.

Isolated kernels are timed on boards that have rested; the matrix units of a prompt of many tokens
work without rest. While they work, a board that was measured under both takes a fitted share of
their least possible time more. Boards nobody measured so take the mean of those that were; less, by
a line through them, where fewer FLOPs are asked of each joule: a GeForce at half the matrix rate of
its sisters hardly meets its limit. Boards pressed harder than the mean are not extrapolated to.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from simulators.catalog.gpu import Gpu, as_sold
from simulators.core.calibration import read_calibration
from simulators.kernels.price import flops
from simulators.workload.operators import Attention, Column, Compute, Gemm, GroupedGemm

CALIBRATION = Path(__file__).parent / "calibration" / "clocks.toml"
OTHER = "other"
LINE = "line"

MODERN = ("ampere", "ampere_ga10x", "ada", "hopper", "blackwell", "blackwell_rtx")
"""Architectures the line speaks of: a FLOP of an older one or of another vendor's takes other
joules than one of the boards it was drawn through."""


def slowdown(gpu: Gpu) -> float:
    """Return what is added while matrix units work, as a share of their least possible time.

    A board held at a lower clock has as much less to give up.
    """
    if not gpu.validated:
        return 0.0
    full = _at_full_clock(gpu)
    return full if gpu.clock_share == 1.0 else max(0.0, gpu.clock_share * (1.0 + full) - 1.0)


def _at_full_clock(gpu: Gpu) -> float:
    """Return the share for a board whose clock nobody holds down."""
    known = _calibration()
    fitted, line = known["slowdown"], known[LINE]
    if (name := gpu.measured_as or gpu.name) in fitted:
        return fitted[name]
    if gpu.architecture not in MODERN:
        return fitted[OTHER]
    by_line = fitted[OTHER] + line["slope"] * (flops_per_j(as_sold(gpu)) - line["flops_per_j"])
    return min(max(by_line, 0.0), fitted[OTHER])


def flops_per_j(gpu: Gpu) -> float:
    """Return how hard matrix units press on the power limit: 16-bit peak over watts."""
    return gpu.peak("fp16") / gpu.tdp_w


def throttled_s(operator: Compute, gpu: Gpu, share: float) -> Column:
    """Return the seconds that a lowered clock adds to one operator."""
    if not isinstance(operator, Gemm | GroupedGemm | Attention):
        return 0.0
    return share * np.asarray(flops(operator), np.float64) / gpu.peak(operator.dtype)


@functools.cache
def _calibration() -> dict[str, dict[str, float]]:
    """Return the fitted shares by board, and the line through them."""
    content: dict[str, dict[str, float]] = read_calibration(CALIBRATION)
    return content
