"""A prior over compiled programs on chips, where the layers of the programs are not known.

A program is a model compiled for a runtime in a precision, or a benchmark on a GPU. Its log latency
on a chip is the program's mean plus the chip's level; residuals correlate as on chips measured
before, and between programs that share a label (a runtime, a precision, a model). The features of
this prior (`few_shot.py`) are the programs themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.fits.methods.few_shot import Prior
from simulators.core.jit import Floats

OWN, SHARED, NOISES = 0.1, 0.1, (0.03, 0.1, 0.3)
"""Deviations in log seconds: of a program by itself, of programs that share a label, and candidates
for the noise of samples. All three are choices."""

ROUNDS, STILL = 30, 1e-12
"""Most rounds of fitting chips and programs in turn, and the move below which they end."""


def learn_programs(log_s: Floats, weights: Floats, labels: Sequence[Sequence[str]] = ()) -> Prior:
    """Return the prior of the programs' log latencies on a new chip.

    Args:
        log_s: a row per chip, a column per program; NaN where not measured.
        weights: of each chip: its similarity to the new one.
        labels: kinds of labels, each with a label per program.
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
    """Return weighted means of the entries that are there; zero where none is."""
    total = np.sum(np.where(there, values * weights, 0.0), axis=axis)
    weight = np.sum(np.where(there, weights, 0.0), axis=axis)
    return np.asarray(total / np.where(weight > 0.0, weight, 1.0), np.float64)


def one_hot(programs: Sequence[int], count: int) -> Floats:
    """Return the features of programs, given their numbers.

    >>> one_hot([1], 3).tolist()
    [[0.0, 1.0, 0.0]]
    """
    return np.asarray(np.eye(count)[list(programs)], np.float64).reshape(-1, count)
