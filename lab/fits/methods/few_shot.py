"""Priors over devices: what measured devices have in common, and which networks to measure next.

HELP learns across the same devices by gradients (Lee et al., "Hardware-adaptive efficient latency
prediction for NAS via meta-learning", 2021). Where programs differ by decades, weights are of log
seconds. The posterior of one device is `planning.calibrate.edge`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planning.calibrate.edge import Prior as Prior
from planning.calibrate.edge import adapt as adapt
from planning.calibrate.edge import prior as prior
from simulators.core.jit import Floats, Ints
from simulators.edge.device import Weights, with_level


def learn(
    features: Floats, seconds: Sequence[Floats], families: Sequence[str], own: float
) -> Prior:
    """Return what devices have in common, from latencies of many networks on each.

    Args:
        features: a row per network.
        seconds: of each device, in the order of the networks.
        families: of each device; devices of one family count together as one.
        own: spread of weights beyond what the devices show; chosen by leaving families out.
    """
    centre, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    design = with_level((features - centre) / scale)
    fits = [_least_squares(design, one) for one in seconds]
    weights = np.array([weights[1:] for weights, _ in fits])
    share = np.array([1.0 / families.count(family) for family in families])
    distinct = len(set(families))
    mean = share @ weights / distinct
    spread = np.sqrt(share / max(distinct - 1, 1))[:, None] * (weights - mean)
    return Prior(centre, scale, mean, spread, own, np.array([noise for _, noise in fits]))


def fitted(features: Floats, seconds: Floats) -> Weights:
    """Return a device of which many networks were measured: nothing but its noise is unsure."""
    weights, noise = _least_squares(with_level(features), seconds)
    none = np.zeros((weights.size, weights.size))
    return Weights(float(seconds.mean()), weights, none, noise)


def _least_squares(design: Floats, seconds: Floats) -> tuple[Floats, float]:
    """Return the weights of a device on all networks, relative to its mean, and what is left."""
    relative = seconds / seconds.mean()
    gram = design.T @ design + np.eye(design.shape[1])  # one network's worth of doubt
    weights = np.linalg.solve(gram, design.T @ relative)
    return weights, float(np.sqrt(np.mean((relative - design @ weights) ** 2)))


def choose(prior: Prior, features: Floats, count: int) -> Ints:
    """Return the networks whose latencies teach most about those of all, one after another.

    Each is the one that lowers the mean variance of all networks most, given those before it.

    >>> one = np.ones(1)
    >>> prior = Prior(0 * one, one, 0 * one, np.ones((1, 1)), 0.0, 0.1 * one)
    >>> choose(prior, np.array([[0.0], [0.1], [3.0]]), 1).tolist()
    [2]
    """
    design, covariance = prior.design(features), prior.covariance
    spread = design.T @ design / len(design)
    noise = float(np.median(prior.noises)) ** 2
    chosen: list[int] = []
    for _ in range(min(count, len(design))):
        reach = design @ covariance
        variance = np.einsum("ij,ij->i", reach, design) + noise
        gain = np.einsum("ij,ij->i", reach @ spread, reach) / variance
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        covariance = covariance - np.outer(reach[best], reach[best]) / variance[best]
    return np.array(chosen, np.int64)
