"""Fit the time in which a host launches a kernel or a message, to adapters trained without graphs.

Steps of pre-training keep GPUs busier than their hosts. Adapters over eight GPUs do not: in
MLPerf's first round with them such layers had no CUDA graphs, in later ones they have. Submitters
are dealt to two halves; the time fitted to one half tests the systems of the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.tables.training import LORA, TrainingSubmission, submissions
from simulators.training.job import Constants
from simulators.training.step import steps, work_of

TIMES_S = np.geomspace(5e-5, 5e-4, 117)
"""Times that are tried, 2 % apart; of those that fit alike the first counts."""
FIRST, SECOND = "submitters_first", "submitters_second"
"""Tables of what is fitted to either half of the submitters."""
FEW_GPUS = 4
"""GPUs to which a layer of 70B parameters is kept that hosts have time to launch."""


def without_graphs(rows: Iterable[TrainingSubmission]) -> list[TrainingSubmission]:
    """Return the systems that train adapters and launch every kernel of a layer."""
    return [row for row in rows if row.benchmark == LORA and not row.job.layer_graphs]


def in_first_half(rows: Iterable[TrainingSubmission]) -> frozenset[str]:
    """Return the submitters of the first half; either half has some that cut layers thin."""
    thin: dict[str, bool] = {}
    for row in without_graphs(rows):
        is_thin = row.job.tp * row.job.cp > FEW_GPUS
        thin[row.submitter] = thin.get(row.submitter, False) or is_thin
    first: set[str] = set()
    for kind in (True, False):
        mine = [name for name, is_thin in thin.items() if is_thin == kind]
        first.update(sorted(mine, key=_digest)[::2])
    return frozenset(first)


def launch_times_s(reference: Path, constants: Constants) -> dict[str, float]:
    """Return the time fitted to all systems, under no name, and to those of each half."""
    rows = without_graphs(submissions(reference))
    first = in_first_half(rows)
    halves = {
        "": rows,
        FIRST: [row for row in rows if row.submitter in first],
        SECOND: [row for row in rows if row.submitter not in first],
    }
    return {name: fitted_launch_s(mine, constants) for name, mine in halves.items()}


def fitted_launch_s(rows: Sequence[TrainingSubmission], constants: Constants) -> float:
    """Return the time under which steps are off by the least, in the mean of logarithms."""
    works = [work_of(row.job, row.plans) for row in rows]
    measured_s = np.array([row.seconds for row in rows])

    def error(seconds: float) -> float:
        tried = replace(constants, launch_s=seconds)
        ours_s = np.array([steps(work, tried).step_s[0] for work in works])
        return float(np.mean(np.abs(np.log(ours_s / measured_s))))

    return float(min(TIMES_S, key=error))


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
