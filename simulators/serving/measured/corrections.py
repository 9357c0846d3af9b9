"""Corrections of predictions by a user's own measured deployments.

`sweeper calibrate NAME --measured FILE` writes a runtime whose times are scaled by the family's
factor, with the measured rows. The remaining deviations of these rows are smoothed over loads. In a
closed loop, rates follow from TTFT and TPOT; goodput, energy and queues are not corrected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulators.catalog.model import load_model
from simulators.composition.replica import NOTHING
from simulators.core.calibration import read_choice
from simulators.core.folder import RUNTIMES
from simulators.core.jit import Floats
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.measured.deployments import Deployed, measured_deployment, point_of
from simulators.serving.options import CLOSED, SpeculationConfig
from simulators.serving.point import ServingPoint

FAMILY_SD = {"TPOT": 0.08, "TTFT": 0.22}
LOAD_SD = {"TPOT": 0.12, "TTFT": 0.5}
ROW_SD = {"TPOT": 0.05, "TTFT": 0.11}
"""Standard deviations of ln(measured / predicted): shared by a family, local to a load, per row."""

MAX_DEVIATIONS = 2.0
"""Rows are clipped to this many standard deviations of family and load together: larger deviations
come from filled queues and stalled engines, which do not carry over to other loads."""

LENGTH_SCALES = {"TPOT": (1.9, 1.3, 2.7, 4.2, 0.9), "TTFT": (2.5, 1.2, 1.5, 6.4, 0.8)}
"""Length scales of clients, GPUs, prompt, output and attention groups, in octaves. Deviations and
scales have the least error over random triples of rows of public families, each of a model, GPU and
release. With the scales of a model fitted to other models, errors after three rows of a server are
5.0 % (TPOT, mean) and 10.1 % (TTFT, median)."""


class DeploymentLoad(NamedTuple):
    """Load of a deployment and its number of GPUs, in the order of `LENGTH_SCALES`."""

    clients: float
    gpus: float
    prompt: float
    output: float
    attention_dp: float


Deviations = dict[str, list[tuple[DeploymentLoad, float]]]
"""By metric: loads of the measured rows of a family, and measured over predicted time."""


def load_of(row: Deployed) -> DeploymentLoad:
    """Return the load of a measured row."""
    return DeploymentLoad(
        row.clients, row.layout.gpus, row.prompt, row.output, row.layout.attention_dp
    )


def corrected(
    known: Sequence[tuple[DeploymentLoad, float]], rows: Sequence[DeploymentLoad], metric: str
) -> Floats:
    """Return correction factors for predictions of some loads, from the known rows of a metric.

    The mean of a Gaussian process over ln(measured / predicted) (kriging; Rasmussen and Williams,
    "Gaussian processes for machine learning", 2006, section 2.2) with a deviation shared by the
    family, one that fades with the distance of loads, and one of each row.
    """
    seen = _scaled_loads([row for row, _ in known], metric)
    limit = MAX_DEVIATIONS * np.hypot(FAMILY_SD[metric], LOAD_SD[metric])
    ratio = np.clip(np.log([ratio for _, ratio in known]), -limit, limit)
    spread = _covariance(seen, seen, metric) + ROW_SD[metric] ** 2 * np.eye(ratio.size)
    weights = np.linalg.solve(spread, ratio)
    return np.asarray(
        np.exp(_covariance(_scaled_loads(rows, metric), seen, metric) @ weights), np.float64
    )


def _scaled_loads(rows: Sequence[DeploymentLoad], metric: str) -> Floats:
    """Return the logarithms of loads in units of the length scales."""
    return np.asarray(np.log2(np.array(rows, np.float64)) / LENGTH_SCALES[metric], np.float64)


def _covariance(one: Floats, other: Floats, metric: str) -> Floats:
    distance = np.square(one[:, None, :] - other[None, :, :]).sum(axis=-1)
    return np.asarray(
        FAMILY_SD[metric] ** 2 + LOAD_SD[metric] ** 2 * np.exp(-distance / 2.0), np.float64
    )


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
        if not rows or not _is_same_family(point, rows[0]):
            return metrics
        if point.runtime not in self._deviations:
            self._deviations[point.runtime] = _deviations(rows, point.runtime, predict)
        ttft, tpot = (
            float(corrected(known, [_load(point)], metric)[0]) if known else 1.0
            for metric, known in self._deviations[point.runtime].items()
        )
        return _scaled(metrics, ttft, tpot)


def has_own_rows(point: ServingPoint) -> bool:
    """Return whether the point's runtime has measured rows of the point's family."""
    rows = measured_rows(point.runtime)
    return bool(rows) and _is_same_family(point, rows[0])


def measured_rows(runtime: str) -> tuple[Deployed, ...]:
    """Return the measured rows in a runtime's file; empty without such rows."""
    return RUNTIMES.load(runtime, _measured)


def _measured(file: Path) -> tuple[Deployed, ...]:
    return tuple(measured_deployment(row) for row in read_choice(file).get("measured", ()))


def _is_same_family(point: ServingPoint, row: Deployed) -> bool:
    """Return whether a point has the model, GPU, dtype and drafts of a row in a closed loop.

    bf16 and fp16 count as equal.
    """
    dtypes = {dtype.replace("fp16", "bf16") for dtype in (point.dtype, row.dtype)}
    is_model = row.model in (point.model, load_model(point.model).name)
    is_equal = is_model and point.gpu == row.gpu and len(dtypes) == 1
    is_equal &= drafts_of(point.speculation) == drafts_of(row.speculation)
    has_lengths = min(point.prompt_tokens, point.output_tokens) > 0
    return is_equal and has_lengths and point.arrivals.process == CLOSED


def drafts_of(config: SpeculationConfig) -> tuple[str, int]:
    """Return the method of speculation and the number of draft tokens; nothing and 0 without.

    >>> drafts_of(SpeculationConfig()), drafts_of(SpeculationConfig("mtp"))
    (('nothing', 0), ('mtp', 3))
    """
    is_off = config.method == NOTHING or not config.num_draft_tokens
    return (NOTHING, 0) if is_off else (config.method, config.num_draft_tokens)


def _load(point: ServingPoint) -> DeploymentLoad:
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
    scaled = {n: value * factors[n] for n, value in found.items() if value is not None}
    return replace(metrics, **scaled)
