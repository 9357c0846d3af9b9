"""The arithmetic that a model asks of a step, without padding or copies of heads."""

from __future__ import annotations

import numpy as np

from simulators.composition.replica import Replica
from simulators.core.jit import Floats
from simulators.kernels.price import flops
from simulators.workload.llm.step import Step, chunk_step
from simulators.workload.llm.transformer import forward
from simulators.workload.operators import Collective


def useful_flops(replica: Replica, step: Step) -> Floats:
    """Return the FLOPs of all GPUs of a replica, of each step of a column."""
    total = np.zeros_like(np.asarray(step.tokens, np.float64))
    model, cut, dtypes = replica.model, replica.cut, (replica.dtype, replica.kv_dtype)
    for stage in range(cut.pp):
        for operator in forward(model, cut, step, *dtypes, stage):
            if not isinstance(operator, Collective):
                total = total + cut.tp * operator.repeat * flops(operator)
    return total


def prompt_flops_saved(replica: Replica, prompt: Floats, cached: Floats) -> float:
    """Return the share of the FLOPs of prompts that tokens found in a cache spare, over all.

    A token that is found is not computed, but those after it still attend to it.
    """
    whole = useful_flops(replica, chunk_step(prompt, 0.0 * prompt, 1.0)).sum()
    rest = useful_flops(replica, chunk_step(prompt - cached, cached, 1.0)).sum()
    return float(1.0 - rest / whole)
