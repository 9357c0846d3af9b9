"""Which of three passes runs a kernel of a layer, and how often.

The passes are forward, gradients of inputs and gradients of weights. Recomputation runs kernels of
the forward pass again with the gradients of inputs; sums over micro-batches belong to the gradients
of weights.
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Floats
from simulators.training.plan import ELEMENTWISE, SELECTIVE, SHARED_GRADIENTS, Plans
from simulators.training.work.operators import (
    AGAIN,
    AGAIN_ELEMENTWISE,
    FORWARD,
    INPUTS,
    SUMS,
    WEIGHTS,
)

RUNS_AGAIN = {AGAIN: SELECTIVE, AGAIN_ELEMENTWISE: ELEMENTWISE}
"""Recomputation that runs parts of a forward pass again, by those parts."""
PHASES = (FORWARD, INPUTS, WEIGHTS, SUMS, *RUNS_AGAIN)


def in_passes(sums: dict[str, Floats], plans: Plans, *, is_layer: bool) -> dict[str, Floats]:
    """Return sums of all phases as those of three passes, recomputation with the gradients."""
    again = {phase: sums.pop(phase) for phase in RUNS_AGAIN}
    sums[WEIGHTS] += runs(SUMS, plans) * sums.pop(SUMS)
    if is_layer:
        for phase, seconds in again.items():
            sums[INPUTS] += runs(phase, plans) * seconds
        sums[INPUTS] += plans.again * sums[FORWARD]
    return sums


def runs(phase: str, plans: Plans) -> Floats:
    """Return how often a layer runs the kernels of a phase, for each row.

    Gradients that data ranks share out are scattered after each micro-batch, and summed in shares.
    """
    often = np.ones(plans.size)
    if phase == FORWARD:
        often += plans.again
    elif phase in RUNS_AGAIN:
        often *= plans.recompute == RUNS_AGAIN[phase]
    elif phase == SUMS:
        often *= plans.zero < SHARED_GRADIENTS
    return often
