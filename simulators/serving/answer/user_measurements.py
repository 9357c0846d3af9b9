"""Correction of predicted latencies by a user's own measured deployments of the same family.

`sweeper calibrate NAME --measured FILE` writes a runtime whose times are scaled by the family's
factor, with the measured rows. The remaining deviations of these rows are smoothed over loads
(`neighbour_correction.py`). In a closed loop, rates follow from TTFT and TPOT; goodput, energy and
queues are not corrected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from simulators.core.calibration import read_choice
from simulators.core.folder import RUNTIMES
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.answer.neighbour_correction import (
    DeploymentLoad,
    Deviations,
    corrected,
    load_of,
)
from simulators.serving.measured_deployments import Deployed, measured_deployment, point_of
from simulators.serving.point import CLOSED, ServingPoint

Predict = Callable[[ServingPoint], ServingMetrics]

PER_TOKEN = ("tpot_", "itl_")
RATES = ("requests_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu")


class UserRows:
    """Measured rows of runtimes and their deviations from predictions, cached."""

    def __init__(self) -> None:
        self._rows = functools.cache(measured_rows)
        self._deviations: dict[str, Deviations] = {}

    def correct(
        self, metrics: ServingMetrics, point: ServingPoint, predict: Predict
    ) -> ServingMetrics:
        """Return the metrics, corrected by the measured rows of the point's runtime."""
        rows = self._rows(point.runtime)
        if not rows or not _is_like(point, rows[0]):
            return metrics
        if point.runtime not in self._deviations:
            self._deviations[point.runtime] = _deviations(rows, point.runtime, predict)
        ttft, tpot = (
            float(corrected(known, [_load(point)], metric)[0]) if known else 1.0
            for metric, known in self._deviations[point.runtime].items()
        )
        return _scaled(metrics, ttft, tpot)


def has_own_rows(point: ServingPoint) -> bool:
    """Return whether the point's runtime has measured rows of its family."""
    rows = measured_rows(point.runtime)
    return bool(rows) and _is_like(point, rows[0])


def measured_rows(runtime: str) -> tuple[Deployed, ...]:
    """Return the measured rows of a runtime's file, if it has any."""
    return RUNTIMES.load(runtime, _measured)


def _measured(file: Path) -> tuple[Deployed, ...]:
    return tuple(measured_deployment(row) for row in read_choice(file).get("measured", ()))


def _is_like(point: ServingPoint, row: Deployed) -> bool:
    """Return whether a point has the model, GPU and dtype of a row and a closed-loop load.

    bf16 and fp16 count as equal.
    """
    dtypes = {dtype.replace("fp16", "bf16") for dtype in (point.dtype, row.dtype)}
    family = (point.model, point.gpu) == (row.model, row.gpu) and len(dtypes) == 1
    return (
        family
        and point.arrivals.process == CLOSED
        and min(point.prompt_tokens, point.output_tokens) > 0
    )


def _load(point: ServingPoint) -> DeploymentLoad:
    """Return the load of one replica."""
    return DeploymentLoad(
        clients=point.arrivals.clients / point.replicas,
        gpus=point.tp * point.pp * point.attention_dp,
        prompt=point.prompt_tokens,
        output=point.output_tokens,
        attention_dp=point.attention_dp,
    )


def _deviations(rows: Sequence[Deployed], runtime: str, predict: Predict) -> Deviations:
    """Return the ratios of measured over predicted TTFT and TPOT."""
    first, later = [], []
    for row in rows:
        found = predict(point_of(row, runtime))
        if isfinite(row.ttft_s) and found.ttft_mean_s:
            first.append((load_of(row), row.ttft_s / found.ttft_mean_s))
        if found.tpot_mean_s:
            later.append((load_of(row), row.tpot_s / found.tpot_mean_s))
    return {"TTFT": first, "TPOT": later}


def _scaled(metrics: ServingMetrics, ttft: float, tpot: float) -> ServingMetrics:
    """Return the metrics with scaled TTFT and TPOT, and rates and costs derived from both."""
    first_s, whole_s = metrics.ttft_mean_s, metrics.e2e_mean_s
    if not first_s or not whole_s:
        return metrics
    longer = (ttft * first_s + tpot * (whole_s - first_s)) / whole_s
    factors = dict.fromkeys(RATES, 1.0 / longer)
    factors |= {"cost_usd_per_mtok": longer, "tokens_per_s_per_user": 1.0 / tpot}
    for name in metrics.__dataclass_fields__:
        if name.startswith("ttft_"):
            factors[name] = ttft
        elif name.startswith(PER_TOKEN):
            factors[name] = tpot
        elif name.startswith("e2e_"):
            factors[name] = longer
    found: dict[str, Any] = {name: getattr(metrics, name) for name in factors}
    return replace(
        metrics, **{n: value * factors[n] for n, value in found.items() if value is not None}
    )
