"""Corrects predictions of deployments by measured ones of like load: a Gaussian process.

A family is one model, GPU, framework, precision and version. What its rows have in common is a
factor; what it depends on shows in rows of like load. Both are a Gaussian process over the
logarithm of measured over predicted times (kriging; Rasmussen and Williams, "Gaussian processes for
machine learning", 2006, section 2.2): a deviation that all rows share, one that fades with
distance, and one of each row alone. A row twice as far off as families are from each other is
believed so far: beyond lie queues that filled and engines that stalled, and tell nothing of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulators.core.jit import Floats
from simulators.serving.measured_deployments import Deployed

SHARED = {"TPOT": 0.2, "TTFT": 0.3}
LOCAL = {"TPOT": 0.15, "TTFT": 0.3}
ALONE = {"TPOT": 0.05, "TTFT": 0.1}
"""Deviations of the logarithm: of a whole family, of rows of like load, of a single row."""

BELIEVED = 2.0
"""Deviations of family and load together within which a row is believed."""

REACH = (3.0, 2.0, 4.0, 4.0, 1.0)
"""Octaves over which a deviation fades: of clients, GPUs, prompt, output, attention groups. A
choice; accuracy changes by a tenth of itself if any of them is doubled."""


class DeploymentLoad(NamedTuple):
    """Load of a deployment and its number of GPUs: the columns of `REACH`."""

    clients: float
    gpus: float
    prompt: float
    output: float
    attention_dp: float


Deviations = dict[str, list[tuple[DeploymentLoad, float]]]
"""By metric: measured loads of a family, and measured over predicted time of each."""


def load_of(row: Deployed) -> DeploymentLoad:
    """Return the load of a measured row."""
    return DeploymentLoad(row.clients, row.cut.gpus, row.prompt, row.output, row.cut.attention_dp)


def corrected(
    known: Sequence[tuple[DeploymentLoad, float]], rows: Sequence[DeploymentLoad], metric: str
) -> Floats:
    """Return factors for the predictions of loads of a family, from known ones of a metric."""
    seen = _place([row for row, _ in known])
    limit = BELIEVED * np.hypot(SHARED[metric], LOCAL[metric])
    ratio = np.clip(np.log([ratio for _, ratio in known]), -limit, limit)
    spread = _covariance(seen, seen, metric) + ALONE[metric] ** 2 * np.eye(ratio.size)
    weights = np.linalg.solve(spread, ratio)
    return np.asarray(np.exp(_covariance(_place(rows), seen, metric) @ weights), np.float64)


def _place(rows: Sequence[DeploymentLoad]) -> Floats:
    """Return where loads lie, in units of the reach."""
    return np.asarray(np.log2(np.array(rows, np.float64)) / REACH, np.float64)


def _covariance(one: Floats, other: Floats, metric: str) -> Floats:
    distance = np.square(one[:, None, :] - other[None, :, :]).sum(axis=-1)
    return np.asarray(
        SHARED[metric] ** 2 + LOCAL[metric] ** 2 * np.exp(-distance / 2.0), np.float64
    )
