"""The 90 % intervals of latencies, where deployments of the runtime's framework were measured.

The band of a deployment is that of the residuals of deployments left out of the fit: how far whole
groups of them, each a model on a GPU, were measured from what was predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulators.composition.replica import load_runtime
from simulators.serving.answer.metrics import WITH_BAND, ServingMetrics
from simulators.serving.engine.frontend import band_of, is_measured


def bands_of(runtime: str) -> Mapping[str, tuple[float, float]]:
    """Return the bands of metrics where the runtime's framework was measured, else none."""
    framework = load_runtime(runtime).framework
    if not is_measured(framework):
        return {}
    return {name: band_of(framework, name.partition("_")[0]) for name in WITH_BAND}


def banded(metrics: ServingMetrics, bands: Mapping[str, tuple[float, float]]) -> ServingMetrics:
    """Return the metrics with the 90 % intervals that these bands make of them."""
    found: dict[str, Any] = {}
    for name, (lo, hi) in bands.items():
        value = getattr(metrics, name)
        if value is not None:
            found |= {f"{name}_lo": value * lo, f"{name}_hi": value * hi}
    return replace(metrics, **found)
