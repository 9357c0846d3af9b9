"""Compiled programs on chips: which take long together, where nothing is known of their layers.

A program is a model compiled for a runtime in a precision, or a benchmark on a board. Its log
latency on a chip is a program's mean and a chip's level, and what is left goes together: by how
chips measured before departed from that sum, and by what programs share (a runtime, a precision, a
model). That is a prior of `few_shot.py` whose features are the programs themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.fits.methods.few_shot import Prior
from simulators.core.jit import Floats

OWN = 0.1
"""How far a program may be off by itself, in log seconds: a choice, as is the next."""

SHARED = 0.1
"""How far programs that share a label are off together."""

NOISES = (0.03, 0.1, 0.3)
"""What latencies may scatter by, beyond that; a chip's samples choose."""

ROUNDS = 30
"""Of fitting chips and programs in turn, until neither moves: gaps in the table ask for it."""

STILL = 1e-12
"""Log seconds by which programs that do not move may move."""


def learn_programs(log_s: Floats, weights: Floats, labels: Sequence[Sequence[str]] = ()) -> Prior:
    """Return how programs go together.

    Args:
        log_s: a row per chip, a column per program; not a number where it was not measured.
        weights: of each chip: how alike it is to the one to come.
        labels: what programs share, each a label per program.
    """
    there = ~np.isnan(log_s)
    share = weights / weights.sum()
    mean, level = np.zeros(log_s.shape[1]), np.zeros(len(log_s))
    for _ in range(ROUNDS):
        before = mean
        mean = _mean(log_s - level[:, None], there, share[:, None], axis=0)
        level = _mean(log_s - mean, there, np.ones_like(mean), axis=1)
        level -= share @ level
        if np.abs(mean - before).max() < STILL:
            break
    left = np.where(there, log_s - mean - level[:, None], 0.0)
    known = mean - mean[there.any(axis=0)].mean()
    rows = [np.sqrt(share)[:, None] * left]
    for label in labels:
        kinds = np.array(label)
        rows.append(SHARED * (np.unique(kinds)[:, None] == kinds).astype(np.float64))
    size = mean.size
    return Prior(
        np.zeros(size),
        np.ones(size),
        known,
        np.concatenate(rows),
        OWN,
        np.array(NOISES),
        is_log=True,
    )


def _mean(values: Floats, there: np.ndarray, weights: Floats, axis: int) -> Floats:
    """Return weighted means of what is there; zero where nothing is."""
    total = np.sum(np.where(there, values * weights, 0.0), axis=axis)
    weight = np.sum(np.where(there, weights, 0.0), axis=axis)
    return np.asarray(total / np.where(weight > 0.0, weight, 1.0), np.float64)


def one_hot(programs: Sequence[int], count: int) -> Floats:
    """Return the features of programs, given their numbers.

    >>> one_hot([1], 3).tolist()
    [[0.0, 1.0, 0.0]]
    """
    return np.asarray(np.eye(count)[list(programs)], np.float64).reshape(-1, count)
