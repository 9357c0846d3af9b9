"""A whole run: steps until the tokens are used up, checkpoints, and failures between them.

A run on `n` GPUs fails every `mtbf / n` hours, loses the work since the last checkpoint, and takes
`R` to restart. Checkpoints use the best interval, `I = sqrt(2 C M)` (Young, 1974); the goodput is
Daly's first order, `1 / (1 + C/I + (I/2 + R)/M)`, with checkpoint time `C` and mean time `M`.

The loss at the end is an assumption: a scaling law of dense models of up to 16e9 weights on web
text, `L = E + A / N^a + B / D^b` (Hoffmann et al., 2022), with the constants of Besiroglu et al.,
Chinchilla scaling: a replication attempt (2024).
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from simulators.core.jit import Floats

HOUR_S = 3600.0

LEAST_LOSS = 1.8172
OF_WEIGHTS, WEIGHTS_POWER = 482.01, 0.3478
OF_TOKENS, TOKENS_POWER = 2085.43, 0.3658
"""Of the scaling law: `E`, `A` and `a`, `B` and `b`."""


def goodput_share(
    gpus: Floats, *, gpu_mtbf_h: Floats, checkpoint_s: Floats, restart_s: Floats
) -> Floats:
    """Return the share of a run's time in which steps are made that no failure undoes.

    >>> one = np.ones(1)
    >>> share = goodput_share(16384 * one, gpu_mtbf_h=50_700 * one, checkpoint_s=30 * one,
    ...                       restart_s=900 * one)
    >>> round(float(share[0]), 3)
    0.866
    """
    between_s = gpu_mtbf_h * HOUR_S / gpus
    interval_s = checkpoint_interval_s(gpus, gpu_mtbf_h=gpu_mtbf_h, checkpoint_s=checkpoint_s)
    lost_s = (interval_s / 2.0 + restart_s) / between_s
    writing = checkpoint_s / np.maximum(interval_s, 1e-9)
    return np.asarray(1.0 / (1.0 + writing + lost_s), np.float64)


def slowest(gpus: Floats, spread: Floats, quantile: float) -> Floats:
    """Return how far the slowest of some GPUs lies behind the mean, relative, at a quantile.

    Speeds are drawn from a normal distribution, each GPU's once. The largest of `n` draws is below
    `x` with probability `F(x)^n` (Gumbel, Statistics of extremes, 1958), so no draw is needed.

    >>> one = np.ones(1)
    >>> float(slowest(one, 0.02 * one, 0.5)[0])
    0.0
    >>> round(float(slowest(1024 * one, 0.02 * one, 0.5)[0]), 4)
    0.0641
    """
    normal, (numbers, which) = NormalDist(), np.unique(gpus, return_inverse=True)
    behind = [normal.inv_cdf(quantile ** (1.0 / float(number))) for number in numbers]
    return np.asarray(spread * np.array(behind)[which.reshape(-1)], np.float64)


def checkpoint_interval_s(gpus: Floats, *, gpu_mtbf_h: Floats, checkpoint_s: Floats) -> Floats:
    """Return the seconds between checkpoints that lose the least time."""
    between_s = gpu_mtbf_h * HOUR_S / gpus
    return np.asarray(np.sqrt(2.0 * checkpoint_s * between_s), np.float64)


def expected_loss(weights: float, tokens: Floats) -> Floats:
    """Return the loss that the scaling law expects of a model after some tokens.

    >>> round(float(expected_loss(70e9, np.array(1.4e12))), 2)
    1.97
    """
    of_model = LEAST_LOSS + OF_WEIGHTS / weights**WEIGHTS_POWER
    return np.asarray(of_model + OF_TOKENS / tokens**TOKENS_POWER, np.float64)


def tokens_to_loss(weights: float, loss: Floats) -> Floats:
    """Return the tokens after which the scaling law expects a loss; infinitely many if none do.

    >>> float(expected_loss(8e9, tokens_to_loss(8e9, np.array(2.1))))
    2.1
    """
    left = loss - LEAST_LOSS - OF_WEIGHTS / weights**WEIGHTS_POWER
    reached = (OF_TOKENS / np.where(left > 0, left, 1.0)) ** (1.0 / TOKENS_POWER)
    return np.asarray(np.where(left > 0, reached, np.inf), np.float64)
