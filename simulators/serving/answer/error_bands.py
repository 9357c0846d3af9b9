"""The 90 % intervals of latencies: what engines were seen to err by, wider where less is known.

Deployments of a framework that were left out of the fit, each group of a model on a GPU at a time,
show how far measured times lie from predicted ones: the band of the framework. Their kernels and
messages have intervals of their own. Where those of a deployment reach further than theirs usually
did, since its GPU lends from others, what is more adds by squares:

    w = ( (band of the framework)^2 + (reach here)^2 - (usual reach)^2 )^(1/2)    in logarithms

An engine that nobody measured has the widest band of those that were. A 99th percentile lies
further off than a mean: by what published runs show, and that adds by squares too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulators.composition.replica import load_runtime
from simulators.core.calibration import read_calibration
from simulators.core.folder import once
from simulators.serving.answer.metrics import WITH_BAND, ServingMetrics
from simulators.serving.engine.frontend import band_of, measured_frameworks
from simulators.serving.prices.iteration_table import Ends

CALIBRATION = Path(__file__).parents[1] / "calibration" / "usual_reach.toml"


def bands_of(runtime: str) -> Mapping[str, Ends]:
    """Return the band of a runtime's framework, of `ttft` and `tpot`: ratios to what is predicted.

    >>> low, high = bands_of("vllm")["tpot"]
    >>> low < 1.0 < high
    True
    """
    known, framework = measured_frameworks(), load_runtime(runtime).framework
    alike = [framework] if framework in known else known
    return {metric: widest([band_of(one, metric) for one in alike]) for metric in ("ttft", "tpot")}


def widest(bands: list[Ends]) -> Ends:
    """Return the band that holds all of these."""
    return min(low for low, _ in bands), max(high for _, high in bands)


def deployment_bands(runtime: str, reach: Mapping[str, Ends]) -> Mapping[str, Ends]:
    """Return the bands of a deployment whose passes have intervals of this reach, by metric."""
    framework, bands = load_runtime(runtime).framework, bands_of(runtime)
    return {metric: widened_by(framework, metric, bands[metric], reach) for metric in bands}


def widened_by(framework: str, metric: str, band: Ends, reach: Mapping[str, Ends]) -> Ends:
    """Return a framework's band of a metric for a deployment whose passes have this reach."""
    usual = _fitted()["usual"]
    alike = [framework] if framework in usual else list(usual)
    before = widest([usual[one][metric] for one in alike])
    return widened(band, before, reach.get(metric, before))


def widened(band: Ends, usual: Ends, reach: Ends) -> Ends:
    """Return a band seen where intervals reached as far as `usual`, for one of another reach.

    >>> [round(end, 2) for end in widened((0.8, 1.25), (0.9, 1.1), (0.5, 1.1))]
    [0.49, 1.25]
    """
    far = []
    for end, before, here in zip(band, usual, reach, strict=True):
        more = max(0.0, math.log(max(here, LEAST)) ** 2 - math.log(before) ** 2)
        far.append(math.sqrt(math.log(end) ** 2 + more))
    return math.exp(-far[0]), math.exp(far[1])


NONE = (1.0, 1.0)
LEAST = 1e-2
"""Intervals reach no further down than to this share."""


def banded(metrics: ServingMetrics, bands: Mapping[str, Ends]) -> ServingMetrics:
    """Return the metrics with the 90 % intervals that the bands of `ttft` and `tpot` make."""
    found: dict[str, Any] = {}
    for name in WITH_BAND if bands else ():
        metric, of = name.split("_")[:2]
        value, (low, high) = getattr(metrics, name), bands[metric]
        if of == "p99":
            tails = _fitted()["tail"]
            low, high = widened((low, high), NONE, tails[metric])
        if value is not None:
            found |= {f"{name}_lo": value * low, f"{name}_hi": value * high}
    return replace(metrics, **found)


def _fitted() -> Mapping[str, Any]:
    return once(read_calibration, CALIBRATION)
