"""Few-shot latency: a device's cost per layer, learnt from a few samples and from other devices.

A network's latency is nearly a sum of what its layers take, so a device is a vector of weights: its
time per layer of each kind, relative to its mean latency. Weights of devices measured before are a
prior for the next: its mean is theirs, its covariance how they differ, and a spread of its own lets
a device be unlike all of them. Given samples, the posterior is that of Bayesian linear regression
(Bishop, "Pattern Recognition and Machine Learning", 2006, section 3.3); the noise is chosen among
those of the known devices by the evidence. HELP learns across the same devices by gradients (Lee
et al., "Hardware-adaptive efficient latency prediction for NAS via meta-learning", 2021).

Where programs differ by decades, weights are of log seconds, and the features may be the programs
themselves: then the prior says how programs go together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulators.core.calibration import read_calibration
from simulators.core.errors import UserError
from simulators.core.folder import once
from simulators.core.jit import Floats, Ints
from simulators.edge.device import Weights, calibration_of, with_level

LEVEL_SPREAD = 0.15
"""How far the mean of a few samples may be from that of all networks, relative: by leaving out."""

LOG_LEVEL_SPREAD = 1.0
"""The same of log seconds, where all that is known is that devices are of a kind."""


@dataclass(frozen=True)
class Prior:
    """What is known of a device before any of its samples.

    Weights are of features less their mean over all networks, in units of their deviation. `mean`
    has an entry per feature, `spread` a row per way in which devices differ: the covariance of
    weights is `spread.T @ spread` and, on its diagonal, `own` squared.
    """

    centre: Floats
    scale: Floats
    mean: Floats
    spread: Floats
    own: float
    noises: Floats  # residuals of the known devices, relative
    is_log: bool = False

    def design(self, features: Floats) -> Floats:
        """Return features as weights take them, behind a column of ones for the level."""
        return with_level((features - self.centre) / self.scale)

    @property
    def covariance(self) -> Floats:
        """Return the covariance of the level and all weights."""
        features = self.mean.size
        level = LOG_LEVEL_SPREAD if self.is_log else LEVEL_SPREAD
        found = np.zeros((features + 1, features + 1))
        found[0, 0] = level**2
        found[1:, 1:] = self.spread.T @ self.spread + self.own**2 * np.eye(features)
        return found

    def on_features(self, mean: Floats, covariance: Floats) -> tuple[Floats, Floats]:
        """Return weights and their covariance on features as they come."""
        turn = np.eye(mean.size)
        turn[1:, 1:] /= self.scale[:, None]
        turn[0, 1:] = -self.centre / self.scale
        return turn @ mean, turn @ covariance @ turn.T


def prior(space: str) -> Prior:
    """Return what is known of a device before any of its samples."""
    found = once(read_calibration, calibration_of(space))["prior"]
    arrays = {n: np.array(found[n]) for n in ("centre", "scale", "mean", "spread", "noises")}
    return Prior(own=float(found["own"]), is_log=False, **arrays)


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


def adapt(prior: Prior, features: Floats, seconds: Floats) -> Weights:
    """Return a device, given what is known of others and a few of its own latencies.

    Raises:
        UserError: there is no sample, or one that is no positive time.
    """
    if not seconds.size or not np.all(np.isfinite(seconds) & (seconds > 0.0)):
        raise UserError("samples are measured latencies above zero, and at least one of them")
    design, covariance = prior.design(features), prior.covariance
    if prior.is_log:
        unit_s = float(np.exp(np.mean(np.log(seconds) - design[:, 1:] @ prior.mean)))
        level, target = 0.0, np.log(seconds / unit_s)
    else:
        unit_s = float(seconds.mean())
        level, target = 1.0, seconds / unit_s
    expected = np.concatenate([[level], prior.mean])
    off = target - design @ expected
    explained = design @ covariance @ design.T
    noise = max(prior.noises.tolist(), key=lambda one: _log_evidence(explained, off, one))
    gain = np.linalg.solve(
        explained + noise**2 * np.eye(off.size), design @ covariance
    ).T  # of weights by samples
    left = covariance - gain @ design @ covariance
    mean, left = prior.on_features(expected + gain @ off, (left + left.T) / 2.0)
    return Weights(unit_s, mean, left, float(noise), prior.is_log)


def _log_evidence(explained: Floats, off: Floats, noise: float) -> float:
    """Return how likely samples are off by so much, up to a constant."""
    gram = explained + noise**2 * np.eye(off.size)
    _, log_volume = np.linalg.slogdet(gram)
    return -0.5 * float(off @ np.linalg.solve(gram, off) + log_volume)


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
