"""What layers wait for the host that launches their kernels one by one.

A host runs ahead of its GPU, which waits for it only where kernels and messages of a pass take
less than launching them does: where little of a layer is left to a rank, and where adapters and
rings add many small kernels (NVIDIA, MLPerf Training v4.1, replays such layers as CUDA graphs).
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Floats
from simulators.training.constants import Constants
from simulators.training.job import Job
from simulators.training.plan import Plans
from simulators.training.work.operators import FORWARD, INPUTS, WEIGHTS
from simulators.training.work.phases import PHASES, in_passes
from simulators.training.work.pieces import Piece

LAYERS = ("dense", "experts")


def is_launched(piece: str, job: Job) -> bool:
    """Say whether a host launches the kernels of a piece one by one: of layers, but in graphs."""
    return piece in LAYERS and not (job.cuda_graphs or job.layer_graphs)


def launch_waits_s(piece: Piece, shown: Floats, constants: Constants, plans: Plans) -> Floats:
    """Return what a layer's forward and backward pass wait for the host that launches them.

    A host runs ahead of its GPU until it needs longer for a pass than kernels and messages do.
    """
    kernels = {phase: np.full(plans.size, piece.launches.get(phase, 0.0)) for phase in PHASES}
    often = in_passes(kernels, plans, is_layer=True)
    launches = np.stack([often[FORWARD], often[INPUTS] + often[WEIGHTS]], axis=1)
    taken = np.stack([shown[:, 0], shown[:, 1] + shown[:, 2]], axis=1)
    return np.maximum(0.0, constants.kernel_s * launches - taken)
