"""90 % prediction intervals of latencies, rates and costs.

`composition` combines the intervals of kernels and messages into the interval
`r` of a forward pass, which is wide where kernel times are transferred from another GPU. The error
of the engine is independent, so squares add. The widths are fitted to deployments whose model on
that GPU was held out, some with the kernels of their GPU or architecture hidden (`lab.fits
deployment_bands`):

    w     = ( ln(r_high) ln(1 / r_low) )^(1/2)
    scale = ( engine^2 + min(w^(3/2), w)^2 )^(1/2)
    ends of the interval = exp( -below * scale ), exp( +above * scale )

Releases before the measured ones have a further width, fitted to results printed in documentation:
the wider of both applies.

The kernels of one GPU share an error of unknown sign, so both ends of `r` count for either end.
Errors of transferred kernels are correlated, so the scale grows faster than `w`, up to the width of
a factor of e: passes known by data sheets alone are as uncertain as their own interval says, and
not more. An engine without
measured deployments has the widest interval of all engines. A 99th percentile has a further,
independent error, fitted to published runs. Intervals of rates and costs follow from those of
latencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simulators.composition.replica import FRAMEWORKS, Runtime, load_runtime
from simulators.core.calibration import read_calibration, read_choice
from simulators.core.folder import RUNTIMES, once
from simulators.core.jit import Floats
from simulators.serving.answer.metrics import WITH_INTERVAL, ServingMetrics
from simulators.serving.prices.iteration_table import Ends

CALIBRATION = Path(__file__).parents[1] / "calibration" / "deployment_bands.toml"
DIFFERENCES = Path(__file__).parents[1] / "calibration" / "differences.toml"

UNMEASURED = "unmeasured"
"""Entry of engines without measured deployments."""

ALL_ENGINES = UNMEASURED, *FRAMEWORKS

OLDER_RELEASE = "older"
"""Entry of releases before those of the measured deployments."""

MIN_RATIO = 1e-2
"""Lower ends of intervals are clipped at this ratio."""

PASS_EXPONENT = 1.5
"""Exponent of errors over the log width of a pass: maximum likelihood among 1, 1.25 ... 3 for 372
forward passes on five GPUs of equal weight, with kernels measured, hidden, and hidden with
their architecture's. Leave-one-GPU-out interval scores are least at 1.6."""


@dataclass(frozen=True)
class Width:
    """Width of the error distribution of a latency, in logarithms."""

    engine: float  # of the engine, beside the intervals of its passes
    below: float  # lower end of the 90 % interval, in units of the combined scale
    above: float

    def interval(self, passes: Ends) -> Ends:
        """Return the 90 % interval of measured over predicted time, given that of the passes.

        >>> some = Width(engine=0.0, below=1.0, above=0.5)
        >>> [round(end, 2) for end in some.interval((math.exp(-0.5), math.exp(0.5)))]
        [0.7, 1.19]
        """
        size = float(scale(self.engine, np.array(passes)))
        return math.exp(-self.below * size), math.exp(self.above * size)


def scale(engine: float | Floats, ends: Floats) -> Floats:
    """Return the error scale of passes; each row of `ends` is one interval."""
    log_width = np.sqrt(np.prod(np.abs(np.log(np.maximum(ends, MIN_RATIO))), axis=-1))
    found: Floats = np.hypot(engine, np.minimum(log_width**PASS_EXPONENT, log_width))
    return found


def width_from(table: Mapping[str, float]) -> Width:
    """Return the width in a table of the calibration."""
    return Width(**{name: float(table[name]) for name in ("engine", "below", "above")})


def fitted_width(engine: str, metric: str) -> Width:
    """Return the fitted width of `tpot` or `ttft` of an engine."""
    return width_from(_fitted()["width"][engine][metric])


def latency_intervals(
    runtime: str,
    passes: Mapping[str, Ends],
    width_of: Callable[[str, str], Width] = fitted_width,
    *,
    is_measured_load: bool = True,
) -> Mapping[str, Ends]:
    """Return the 90 % intervals of latencies by metric, given the intervals of the passes.

    Under a kind of load that no deployment was measured with, they are the widest of all engines,
    and of older releases if the runtime is one.
    `width_of`: the width of an engine and a metric.

    >>> low, high = latency_intervals("vllm", {"tpot": (0.8, 1.2)})["tpot"]
    >>> low < 1.0 < high
    True
    """
    engines = engines_of(load_runtime(runtime))
    if not is_measured_load:
        engines = *ALL_ENGINES, *engines
    found = {}
    for metric, ends in passes.items():
        intervals = [width_of(engine, metric).interval(ends) for engine in engines]
        lows, highs = zip(*intervals, strict=True)
        found[metric] = min(lows), max(highs)
    return found


def newest_measurement(runtime: str) -> str:
    """Return the day of the newest deployment that a runtime was fitted to; empty if unknown."""
    found = read_choice(RUNTIMES.find(load_runtime(runtime).like or runtime))
    return str(found.get("provenance", {}).get("newest", ""))


def engines_of(runtime: Runtime) -> tuple[str, ...]:
    """Return the entries whose widths apply to a runtime: all engines if its engine is unmeasured.

    A release that copies a later one with slower kernels also has the width of older releases.
    """
    if runtime.framework not in FRAMEWORKS:
        return ALL_ENGINES
    is_older = runtime.like and runtime.batch_times
    return (runtime.framework, OLDER_RELEASE) if is_older else (runtime.framework,)


def with_intervals(
    metrics: ServingMetrics,
    intervals: Mapping[str, Ends],
    *,
    think_s: float = 0.0,
    tails: Mapping[str, Ends] | None = None,
) -> ServingMetrics:
    """Return the metrics with 90 % intervals, from the relative intervals of `ttft` and `tpot`.

    `tails` replaces the fitted errors of 99th percentiles over means.
    """
    found: dict[str, Any] = {}
    tails = fitted_tails() if tails is None else tails
    for name in WITH_INTERVAL if intervals else ():
        metric, statistic = name.split("_")[:2]
        value, ends = getattr(metrics, name), intervals[metric]
        if statistic == "p99":
            ends = combined_interval(ends, tails[metric])
        if value is not None:
            found |= {f"{name}_lo": value * ends[0], f"{name}_hi": value * ends[1]}
    low, high = rate_interval(metrics, intervals, think_s) if intervals else (None, None)
    if low and high:
        rate, cost = metrics.tokens_per_s, metrics.cost_usd_per_mtok
        found |= {"tokens_per_s_lo": rate * low, "tokens_per_s_hi": rate * high}
        if cost is not None:
            found |= {"cost_usd_per_mtok_lo": cost / high, "cost_usd_per_mtok_hi": cost / low}
    return replace(metrics, **found)


def rate_interval(metrics: ServingMetrics, intervals: Mapping[str, Ends], think_s: float) -> Ends:
    """Return the relative 90 % interval of throughput, from the intervals of latencies.

    In an open loop the throughput equals the arrival rate, unless the run is saturated: then the
    throughput scales with TPOT. In a closed loop the throughput scales with the time per request;
    TTFT and TPOT are assumed to err in the same direction, which makes the interval wide.
    """
    is_closed = metrics.backlog_growth is None
    if not is_closed and not metrics.saturated:
        return 1.0, 1.0
    slow = np.array(intervals["tpot"])
    if is_closed and metrics.ttft_mean_s is not None and metrics.e2e_mean_s is not None:
        first_s = metrics.ttft_mean_s
        times_s = np.array([first_s, metrics.e2e_mean_s - first_s, think_s])
        parts = np.array([intervals["ttft"], intervals["tpot"], (1.0, 1.0)])
        slow = times_s @ parts / times_s.sum()
    fast = (1.0 / slow).tolist()
    return fast[1], fast[0]


def combined_interval(one: Ends, other: Ends) -> Ends:
    """Return the combined interval of two independent errors: squares of logarithms add.

    >>> [round(end, 3) for end in combined_interval((1.0, 2.0), (0.5, 1.0))]
    [0.5, 2.0]
    """
    low, high = np.hypot(np.log(one), np.log(other)).tolist()
    return math.exp(-low), math.exp(high)


def fitted_tails() -> Mapping[str, Ends]:
    """Return the ends of the error of a 99th percentile over the mean, by metric."""
    return {metric: tuple(one["ends"]) for metric, one in _fitted()["tail"].items()}


def tail_rows() -> int:
    """Return the number of results that the errors of 99th percentiles are fitted to."""
    return int(_fitted()["provenance"]["tails"])


def _fitted() -> Mapping[str, Any]:
    return once(read_calibration, CALIBRATION)


def remainders() -> Mapping[str, Mapping[str, float]]:
    """Return likely shares of groups of facts in an unexplained difference, by option.

    Mean shares of predicted differences on measured pairs that differ in the option alone.
    """
    found: Mapping[str, Mapping[str, float]] = once(read_calibration, DIFFERENCES)["remainder"]
    return found


def error_shares() -> Mapping[str, float]:
    """Return, by metric, the half-width of ln(new / old) over the combined half-width of both.

    Below 1, because two predictions of one simulator have errors in common.
    """
    fitted = once(read_calibration, DIFFERENCES)["share"]
    tails = {name.replace("mean", "p99"): share for name, share in fitted.items()}
    rates = dict.fromkeys(("tokens_per_s", "cost_usd_per_mtok"), fitted["tpot_mean_s"])
    return {**rates, **tails, **fitted}
