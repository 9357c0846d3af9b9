"""Passes of a layer: which kernels run in each, how often, and waits for the host.

The passes are forward, input gradients and weight gradients. Recomputed kernels run with the input
gradients, sums over micro-batches with the weight gradients. A host that launches kernels one by
one runs ahead of its GPU until launching a pass takes longer than its kernels; MLPerf Training v4.1
and later submissions avoid that by CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulators.core.jit import Floats
from simulators.training.constants import Constants
from simulators.training.job import Job
from simulators.training.plan import ELEMENTWISE, SELECTIVE, SHARED_GRADIENTS, Plans
from simulators.training.work.messages import LAYERS, Messages
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


def is_launched(piece: str, job: Job) -> bool:
    """Return whether the host launches the kernels of a piece separately, without CUDA graphs."""
    return piece in LAYERS and not (job.cuda_graphs or job.layer_graphs)


def launch_waits_s(
    launches: Mapping[str, float], sent: Messages, shown: Floats, constants: Constants, plans: Plans
) -> Floats:
    """Return the launch waits of a layer's forward and backward pass in seconds.

    `shown` are the seconds of a layer's passes forward, to gradients of inputs and of weights, for
    each row.
    """
    kernels = {phase: np.full(plans.size, launches.get(phase, 0.0)) for phase in PHASES}
    often = in_passes(kernels, plans, is_layer=True)
    kernels_of = np.stack([often[FORWARD], often[INPUTS] + often[WEIGHTS]], axis=1)
    forward, backward = sent.launches
    messages = np.stack([np.full(plans.size, forward), backward + plans.again * forward], axis=1)
    taken = np.stack([shown[:, 0], shown[:, 1] + shown[:, 2]], axis=1)
    waits_s = np.maximum(0.0, constants.launch_s * (kernels_of + messages) - taken)
    return np.asarray(waits_s, np.float64)
