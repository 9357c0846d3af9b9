"""What attention over context ranks keeps of one GPU's pace: balance, smaller kernels, sends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulators.training.job import Job
from simulators.training.work.messages import context_s
from simulators.training.work.operators import FORWARD, INPUTS
from simulators.training.work.pieces import ATTENTION, SCORES, pieces


def attention_share(job: Job, *, backward: bool = False) -> float:
    """Return an even share of a single GPU's time of attention over the time of the ranks.

    Args:
        job: of which one sequence is attended to.
        backward: whether the backward pass is counted too.
    """
    alone_s = sum(_attention_s(replace(job, cp=1), backward))
    kernels_s, exposed_s = _attention_s(job, backward)
    return alone_s / job.cp / (kernels_s + exposed_s)


def _attention_s(job: Job, backward: bool) -> tuple[float, float]:
    """Return the seconds of a layer's attention on one rank, and of the sends it does not hide."""
    one = np.ones(1)
    seconds = pieces(job, one)["dense"].seconds
    phases = (FORWARD, INPUTS) if backward else (FORWARD,)
    kernels_s, exposed_s = 0.0, 0.0
    for phase, sent in zip(phases, context_s(job, one), strict=False):
        attending = float(seconds[phase, ATTENTION][0])
        kernels_s += attending + float(seconds.get((phase, SCORES), np.zeros(1))[0])
        exposed_s += max(0.0, float(sent[0]) - attending)
    return kernels_s, exposed_s
