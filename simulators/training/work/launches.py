"""What layers wait for the host that launches their kernels one by one.

A host runs ahead of its GPU, which waits for it only where kernels and messages of a pass take
less than launching them does: where little of a layer is left to a rank, and where adapters and
rings add many small ones (from MLPerf Training v4.1 on such layers are replayed as CUDA graphs).
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Floats
from simulators.training.constants import Constants
from simulators.training.job import Job
from simulators.training.plan import Plans
from simulators.training.work.messages import LAYERS, Messages
from simulators.training.work.operators import FORWARD, INPUTS, WEIGHTS
from simulators.training.work.phases import PHASES, in_passes
from simulators.training.work.pieces import Piece


def is_launched(piece: str, job: Job) -> bool:
    """Say whether a host launches the kernels of a piece one by one: of layers, but in graphs."""
    return piece in LAYERS and not (job.cuda_graphs or job.layer_graphs)


def launch_waits_s(
    piece: Piece, sent: Messages, shown: Floats, constants: Constants, plans: Plans
) -> Floats:
    """Return what a layer's forward and backward pass wait for the host that launches them.

    Args:
        piece: the layer.
        sent: its messages.
        shown: seconds of its passes forward, to gradients of inputs and of weights, for each row.
        constants: with what a launch takes.
        plans: that say which passes run kernels again.
    """
    kernels = {phase: np.full(plans.size, piece.launches.get(phase, 0.0)) for phase in PHASES}
    often = in_passes(kernels, plans, is_layer=True)
    kernels_of = np.stack([often[FORWARD], often[INPUTS] + often[WEIGHTS]], axis=1)
    forward, backward = sent.launches
    messages = np.stack([np.full(plans.size, forward), backward + plans.again * forward], axis=1)
    taken = np.stack([shown[:, 0], shown[:, 1] + shown[:, 2]], axis=1)
    waits_s = np.maximum(0.0, constants.launch_s * (kernels_of + messages) - taken)
    return np.asarray(waits_s, np.float64)
