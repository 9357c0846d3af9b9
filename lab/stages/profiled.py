"""A step whose layers were timed: stages of any layers on any GPUs, in place of the kernel model.

What is known of each stage is the time of its forward and backward pass for one micro-batch and of
its update, from a profile of layers; the pipeline is played as any other. Replicas of a stage on
several kinds of GPUs wait for the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulators.core.errors import UserError
from simulators.training.schedule import (
    GPIPE,
    ONE_F_ONE_B,
    SCHEDULES,
    ZERO_BUBBLE,
    play,
    sorted_tasks,
)

ONE_CHUNK = (GPIPE, ONE_F_ONE_B, ZERO_BUBBLE)
"""Schedules whose ranks have one chunk each."""


@dataclass(frozen=True)
class TimedStage:
    """Seconds of a pipeline stage for one micro-batch, on the slowest replica."""

    forward_s: float
    backward_s: float
    update_s: float  # once a step
    sync_s: float = 0.0  # of its gradients over data ranks, once a step


def timed_step_s(
    stages: Sequence[TimedStage],
    micro_batches: int,
    *,
    send_s: float = 0.0,
    schedule: str = "1f1b",
) -> float:
    """Return the seconds of a step over timed stages.

    Args:
        stages: in the order a micro-batch passes them.
        micro_batches: of a step.
        send_s: in which activations reach the next stage.
        schedule: one of those whose ranks have one chunk each.

    Raises:
        UserError: there is no stage, or no such schedule.

    >>> timed_step_s([TimedStage(1.0, 2.0, 0.5)] * 4, 8)
    33.5
    """
    if not stages or schedule not in SCHEDULES or SCHEDULES.index(schedule) not in ONE_CHUNK:
        raise UserError(f"no pipeline of {len(stages)} timed stages runs under '{schedule}'")
    pp = len(stages)
    passes = [(stage.forward_s, stage.backward_s, 0.0, stage.backward_s) for stage in stages]
    seconds = np.array([passes])
    tasks = sorted_tasks(SCHEDULES.index(schedule), pp, 1, micro_batches)
    ends = np.zeros(1)
    play(pp, tasks, seconds, np.array([send_s if pp > 1 else 0.0]), ends)
    return float(ends[0]) + max(stage.update_s + stage.sync_s for stage in stages)
