"""90 % prediction intervals of latencies, from held-out errors of measured deployments.

`composition` combines the intervals of kernels and messages into the interval `r` of a forward
pass, which is wide where kernel times are transferred from another GPU. The error of the engine is
independent, so squares add. The widths are fitted to deployments whose model on that GPU was held
out, some with the kernels of their GPU or architecture hidden (`lab.fits deployment_bands`):

    scale = ( engine^2 + (ln(r_high) ln(1 / r_low))^(3/2) )^(1/2)
    ends of the interval = exp( -below * scale ), exp( +above * scale )

The kernels of one GPU share an error of unknown sign, so both ends of `r` count for either end.
Errors of transferred kernels are correlated, so the scale grows faster than `r`. An engine without
measured deployments has the widest interval of all engines. A 99th percentile has a further,
independent error, fitted to published runs. Intervals of rates and costs follow from those of
latencies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simulators.composition.replica import FRAMEWORKS, load_runtime
from simulators.core.calibration import read_calibration
from simulators.core.folder import once
from simulators.core.jit import Floats
from simulators.serving.answer.metrics import WITH_BAND, ServingMetrics
from simulators.serving.prices.iteration_table import Ends

CALIBRATION = Path(__file__).parents[1] / "calibration" / "deployment_bands.toml"

UNMEASURED = "unmeasured"
"""Entry of engines without measured deployments."""

LEAST = 1e-2
"""Lower ends of intervals are clipped at this share."""

POWER = 1.5
"""Exponent of errors over the log width of a pass: maximum likelihood among 1, 1.25 ... 3 for 372
forward passes on five GPUs of equal weight, with kernels measured, hidden, and hidden with
their architecture's. Leave-one-GPU-out interval scores are least at 1.6."""


@dataclass(frozen=True)
class Width:
    """Width of the error distribution of a latency, in logarithms."""

    engine: float  # of the engine, beside the intervals of its passes
    below: float  # lower end of the 90 % interval, in units of the combined scale
    above: float

    def band(self, reach: Ends) -> Ends:
        """Return the 90 % interval of measured over predicted time, given that of the passes.

        >>> some = Width(engine=0.0, below=1.0, above=0.5)
        >>> [round(end, 2) for end in some.band((math.exp(-0.5), math.exp(0.5)))]
        [0.7, 1.19]
        """
        far = float(scale(self.engine, np.array(reach)))
        return math.exp(-self.below * far), math.exp(self.above * far)


def scale(engine: float | Floats, ends: Floats) -> Floats:
    """Return the error scale of passes; each row of `ends` is one interval."""
    reach = np.sqrt(np.prod(np.abs(np.log(np.maximum(ends, LEAST))), axis=-1))
    found: Floats = np.hypot(engine, reach**POWER)
    return found


def width_from(table: Mapping[str, float]) -> Width:
    """Return the width in a table of the calibration."""
    return Width(**{name: float(table[name]) for name in ("engine", "below", "above")})


def deployment_bands(runtime: str, reach: Mapping[str, Ends]) -> Mapping[str, Ends]:
    """Return the 90 % intervals of latencies by metric, given those of the passes (`reach`).

    >>> low, high = deployment_bands("vllm", {"tpot": (0.8, 1.2)})["tpot"]
    >>> low < 1.0 < high
    True
    """
    engines = engines_of(load_runtime(runtime).framework)
    found = {}
    for metric, ends in reach.items():
        bands = [shipped_width(engine, metric).band(ends) for engine in engines]
        lows, highs = zip(*bands, strict=True)
        found[metric] = min(lows), max(highs)
    return found


def engines_of(framework: str) -> tuple[str, ...]:
    """Return the engines whose widths apply to a framework: all engines if it is unmeasured."""
    return (framework,) if framework in FRAMEWORKS else (UNMEASURED, *FRAMEWORKS)


def shipped_width(engine: str, metric: str) -> Width:
    """Return the fitted width of `tpot` or `ttft` of an engine."""
    return width_from(_fitted()["width"][engine][metric])


def banded(
    metrics: ServingMetrics, bands: Mapping[str, Ends], *, think_s: float = 0.0
) -> ServingMetrics:
    """Return the metrics with 90 % intervals, from the relative intervals of `ttft` and `tpot`."""
    found: dict[str, Any] = {}
    for name in WITH_BAND if bands else ():
        metric, of = name.split("_")[:2]
        value, band = getattr(metrics, name), bands[metric]
        if of == "p99":
            tails = _fitted()["tail"]
            band = both(band, tails[metric]["ends"])
        if value is not None:
            found |= {f"{name}_lo": value * band[0], f"{name}_hi": value * band[1]}
    low, high = rate_band(metrics, bands, think_s) if bands else (None, None)
    if low and high:
        rate, cost = metrics.tokens_per_s, metrics.cost_usd_per_mtok
        found |= {"tokens_per_s_lo": rate * low, "tokens_per_s_hi": rate * high}
        if cost is not None:
            found |= {"cost_usd_per_mtok_lo": cost / high, "cost_usd_per_mtok_hi": cost / low}
    return replace(metrics, **found)


def rate_band(metrics: ServingMetrics, bands: Mapping[str, Ends], think_s: float) -> Ends:
    """Return the relative 90 % interval of throughput, from the intervals of latencies.

    In an open loop the throughput equals the arrival rate, unless the run is saturated: then the
    throughput scales with TPOT. In a closed loop the throughput scales with the time per request;
    TTFT and TPOT are assumed to err in the same direction, which makes the interval wide.
    """
    is_closed = metrics.backlog_growth is None
    if not is_closed and not metrics.saturated:
        return 1.0, 1.0
    slow = np.array(bands["tpot"])
    if is_closed and metrics.ttft_mean_s is not None and metrics.e2e_mean_s is not None:
        first_s = metrics.ttft_mean_s
        times_s = np.array([first_s, metrics.e2e_mean_s - first_s, think_s])
        slow = times_s @ np.array([bands["ttft"], bands["tpot"], (1.0, 1.0)]) / times_s.sum()
    fast = (1.0 / slow).tolist()
    return fast[1], fast[0]


def both(one: Ends, other: Ends) -> Ends:
    """Return the combined interval of two independent errors: squares of logarithms add.

    >>> [round(end, 3) for end in both((1.0, 2.0), (0.5, 1.0))]
    [0.5, 2.0]
    """
    low, high = np.hypot(np.log(one), np.log(other)).tolist()
    return math.exp(-low), math.exp(high)


def _fitted() -> Mapping[str, Any]:
    return once(read_calibration, CALIBRATION)
