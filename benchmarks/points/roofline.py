"""A GEMM on a roofline: a simulator so fast that a sweep measures only the overhead.

Williams, Waterman and Patterson, "Roofline" (2009): time is the larger of arithmetic over the peak
rate and traffic over the memory bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from simulators.core.columns import categories, numbers, outcome
from simulators.core.contract import choice, metric

_PEAK_FLOPS = {f"device_{i}": 100e12 * 1.25**i for i in range(32)}
"""Hypothetical devices, each 25 % faster than the previous device."""


@dataclass(frozen=True)
class RooflinePoint:
    """A GEMM and the device it runs on."""

    device: str = choice("one of the hypothetical devices")
    m: int = choice("rows")
    n: int = choice("columns")
    k: int = choice("inner length")
    batch: int = choice("products")
    bandwidth: float = choice("memory bandwidth", unit="bytes/s")
    devices: int = choice("how many share the work")


@dataclass(frozen=True)
class Metrics:
    """Metrics of the roofline."""

    latency_s: float = metric("time", unit="s", better="min")
    cost: float = metric("device-seconds per TFLOP", better="min")
    mfu: float = metric("share of the peak", better="max")
    intensity: float = metric("FLOP per byte")


@dataclass(frozen=True)
class Roofline:
    """Roofline model on columns."""

    name: str = "benchmarks.points.roofline"
    version: int = 1
    point: type = RooflinePoint
    metrics: type = Metrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the roofline of every row."""
        codes, names = categories(batch, "device")
        peak = np.array([_PEAK_FLOPS[name] for name in names])[codes]
        m, n, k, products, bandwidth, devices = (
            numbers(batch, name) for name in ("m", "n", "k", "batch", "bandwidth", "devices")
        )
        share = products / devices
        flops = 2.0 * m * n * k * share
        traffic = 2.0 * (m * k + k * n + m * n) * share
        compute_s = flops / peak
        latency_s = np.maximum(compute_s, traffic / bandwidth)
        columns = {
            "latency_s": latency_s,
            "cost": latency_s * devices * 1e12 / flops,
            "mfu": compute_s / latency_s,
            "intensity": flops / traffic,
        }
        return outcome(Metrics, columns)


SIMULATOR = Roofline()
