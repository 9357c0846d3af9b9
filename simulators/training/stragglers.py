"""Step times under stragglers: the slowest of many GPUs, or the slowdown of jobs in production.

`gpu_spread`: every GPU has a speed of its own, normally distributed. A step waits for the slowest
of `n`; the largest of `n` draws is below `x` with probability `F(x)^n` (Gumbel, Statistics of
extremes, 1958), so no draw is needed.

`production`: published quantiles of the slowdown of whole jobs, which uneven stages and sequences,
the host and broken machines cause. The logarithm of the slowdown is interpolated, and continued,
linearly in `-ln(share of slower jobs)`: an exponential tail.
"""

from __future__ import annotations

import functools
from pathlib import Path
from statistics import NormalDist, fmean

import numpy as np

from simulators.core.folder import read_toml
from simulators.core.jit import Floats

KINDS = GPU_SPREAD, PRODUCTION = "gpu_spread", "production"
FILE = Path(__file__).with_suffix(".toml")
STEPS = 1000
"""Points of a quadrature over quantiles."""
MIDDLES = (np.arange(STEPS) + 0.5) / STEPS


def slowest(gpus: Floats, spread: Floats, quantile: float) -> Floats:
    """Return the relative delay of the slowest GPU behind the mean, at a quantile.

    >>> one = np.ones(1)
    >>> float(slowest(one, 0.02 * one, 0.5)[0])
    0.0
    >>> round(float(slowest(1024 * one, 0.02 * one, 0.5)[0]), 4)
    0.0641
    """
    normal, (numbers, which) = NormalDist(), np.unique(gpus, return_inverse=True)
    behind = [normal.inv_cdf(quantile ** (1.0 / float(number))) for number in numbers]
    return np.asarray(spread * np.array(behind)[which.reshape(-1)], np.float64)


def slowest_mean(gpus: Floats, spread: Floats) -> Floats:
    """Return the expected relative delay of the slowest GPU behind the mean.

    >>> one = np.ones(1)
    >>> round(float(slowest_mean(2 * one, 0.02 * one)[0]), 4)  # 0.02 / sqrt(pi)
    0.0113
    """
    numbers, which = np.unique(gpus, return_inverse=True)
    behind = np.array([_mean_of_largest(float(number)) for number in numbers])
    return np.asarray(spread * behind[which.reshape(-1)], np.float64)


@functools.lru_cache(maxsize=4096)
def _mean_of_largest(count: float) -> float:
    normal = NormalDist()
    return fmean(normal.inv_cdf(q ** (1.0 / count)) for q in MIDDLES.tolist())


def production_slowdown(quantile: Floats) -> Floats:
    """Return the slowdown that a share `quantile` of production jobs does not exceed.

    >>> production_slowdown(np.array([0.0, 0.575, 0.9])).round(3).tolist()
    [1.0, 1.1, 1.271]
    """
    known = read_toml(FILE)[PRODUCTION]
    places = -np.log(np.array(known["slower_share"], np.float64))
    logs = np.log(np.array(known["slowdown"], np.float64))
    wanted = -np.log1p(-np.asarray(quantile, np.float64))
    slope = (logs[-1] - logs[-2]) / (places[-1] - places[-2])
    beyond = np.maximum(wanted - places[-1], 0.0) * slope
    return np.asarray(np.exp(np.interp(wanted, places, logs) + beyond), np.float64)


def production_mean() -> float:
    """Return the mean slowdown of production jobs.

    >>> round(production_mean(), 3)
    1.128
    """
    return float(production_slowdown(MIDDLES).mean())


def least_gpus() -> int:
    """Return the size of the smallest job among the production jobs."""
    return int(read_toml(FILE)[PRODUCTION]["least_gpus"])
