"""Plans of the rows of a job: pp, dp, micro-batches, schedule, recomputation, sharding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats, Ints
from simulators.training.schedule.orders import DUALPIPE

RECOMPUTES = ("none", "selective", "full", "elementwise")
NONE, SELECTIVE, FULL, ELEMENTWISE = range(len(RECOMPUTES))

SHARED_GRADIENTS = 2
"""From this stage of ZeRO on data ranks share out gradients too."""


@dataclass(frozen=True, kw_only=True)
class Plans:
    """One entry a row."""

    pp: Ints
    dp: Ints
    chunks: Ints  # of layers on a rank; 1 unless interleaved or folded
    micro_batch: Floats  # sequences
    micro_batches: Ints  # of a pipeline in a step
    schedule: Ints  # position in `schedule.orders.SCHEDULES`
    recompute: Ints  # position in `RECOMPUTES`
    again: Floats  # share of a rank's layers that run again whole
    zero: Ints  # what data ranks share out: 0 nothing, 1 states, 2 gradients, 3 weights
    shards: Ints  # of those that hold the same weights, among which it is shared out
    gradient_bytes: Floats  # of one number of a gradient that is sent
    overlaps: Ints  # whether gradients are sent while the backward pass runs
    offloads: Ints  # whether optimiser states are on the host
    host_adam_per_s: Floats  # weights that a node's CPUs update

    @property
    def size(self) -> int:
        """Number of rows."""
        return int(self.pp.size)

    @property
    def models(self) -> Ints:
        """Copies of the model that run through each pipeline."""
        return np.where(self.schedule == DUALPIPE, 2, 1)

    def where(self, chosen: NDArray[np.bool_] | Ints) -> Plans:
        """Return some of the rows."""
        return Plans(**{name: column[chosen] for name, column in vars(self).items()})
