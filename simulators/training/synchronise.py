"""What data-parallel ranks exchange: gradients at the end of a step, weights where they share them.

A distributed optimiser reduce-scatters gradients and gathers weights; plain data parallelism sums
gradients (Rajbhandari et al., ZeRO, 2020). Both run behind the last backward, or the next forward,
as far as these reach. Fully sharded ranks gather each layer's weights in every pass and scatter its
gradients, one layer ahead of the computing (Zhao et al., PyTorch FSDP, 2023). Sharing among fewer
ranks than there are copies leaves a sum over the copies (hierarchical sharding).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.collectives.price import collective_time
from simulators.core.jit import Floats
from simulators.kernels.price import price
from simulators.training.job import Job
from simulators.training.memory import parameters
from simulators.training.plan import Plans
from simulators.workload.operators import Elementwise
from simulators.workload.precision import BYTES

WEIGHT = BYTES["bf16"]
ADAM_NUMBERS = (9.0, 3.5)
"""Numbers of fp32 that an optimiser step reads and writes per weight: gradient thrice (its norm,
its clearing, itself), weight and two moments, and the narrow weight besides."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Seconds after or behind the passes of one row's fullest rank."""

    gradients_s: Floats  # summed or scattered, once a step
    weights_s: Floats  # gathered, once a step
    layer_gather_s: Floats  # of one layer's weights, each pass, under full sharding
    layer_scatter_s: Floats  # of one layer's gradients
    optimizer_s: Floats
    optimizer_j: Floats


def exchange(job: Job, plans: Plans) -> Exchange:
    """Return what data ranks of each row exchange, on the first stage, which holds the most."""
    held = parameters(job, plans)
    out = {n: np.zeros(plans.size) for n in ("gradients_s", "weights_s", "gather", "scatter")}
    per_layer = held.first / np.maximum(1.0, np.ceil(job.model.layers / plans.pp))
    experts_layer = held.first_experts / np.maximum(1.0, np.ceil(job.model.layers / plans.pp))
    sharded = plans.zero >= 3
    for dp, shards in sorted(set(zip(plans.dp.tolist(), plans.shards.tolist(), strict=True))):
        rows = (plans.dp == dp) & (plans.shards == shards)
        copies = dp * job.cp
        expert_copies = max(1, copies * job.tp // (job.ep * job.expert_tp))
        for numbers, layer, ranks, among in (
            (held.first[rows], per_layer[rows], copies, min(shards, copies)),
            (held.first_experts[rows], experts_layer[rows], expert_copies,
             max(1, min(expert_copies, shards * job.tp // (job.ep * job.expert_tp)))),
        ):  # fmt: skip
            size = plans.gradient_bytes[rows] * numbers
            span = copies * job.tp
            if ranks > 1:
                is_shared = plans.zero[rows] >= 1
                whole_s = _time_s(job, "all_reduce", size, ranks, span)
                scatter_s = _time_s(job, "reduce_scatter", size, among, span * among // ranks)
                if among < ranks:
                    left = size / among
                    scatter_s = scatter_s + _time_s(job, "all_reduce", left, ranks // among, span)
                gather_s = _time_s(
                    job, "all_gather", WEIGHT * numbers, among, span * among // ranks
                )
                full = sharded[rows]
                out["gradients_s"][rows] += np.where(
                    full, 0.0, np.where(is_shared, scatter_s, whole_s)
                )
                out["weights_s"][rows] += np.where(is_shared & ~full, gather_s, 0.0)
                if full.any():
                    inside = span * among // ranks
                    out["gather"][rows] += np.where(
                        full, _time_s(job, "all_gather", WEIGHT * layer, among, inside), 0.0
                    )
                    sent = plans.gradient_bytes[rows] * layer
                    out["scatter"][rows] += np.where(
                        full, _time_s(job, "reduce_scatter", sent, among, inside), 0.0
                    )
    shared = plans.zero >= 1
    updated = held.first / np.where(shared, plans.shards, 1.0)
    updated = updated + held.first_experts / np.where(
        shared, np.maximum(1.0, plans.shards * job.tp / (job.ep * job.expert_tp)), 1.0
    )
    reads, writes = ADAM_NUMBERS
    walk = Elementwise(name="adam", elements=updated, reads=reads, writes=writes, dtype="fp32")
    optimizer_s = np.asarray(price(walk, job.gpu).latency_s)
    return Exchange(
        gradients_s=out["gradients_s"],
        weights_s=out["weights_s"],
        layer_gather_s=out["gather"],
        layer_scatter_s=out["scatter"],
        optimizer_s=optimizer_s,
        optimizer_j=optimizer_s,
    )


def send_s(job: Job, plans: Plans) -> Floats:
    """Return the seconds in which a micro-batch's activations reach the next stage.

    Each tensor rank sends its share; the receivers gather it over their own links.
    """
    size = plans.micro_batch * job.sequence / job.cp * job.model.hidden * WEIGHT / job.tp
    found = np.zeros(plans.size)
    for dp in np.unique(plans.dp):
        rows = (plans.dp == dp) & (plans.pp > 1)
        if rows.any():
            span = 2 * int(dp) * job.tp * job.cp
            found[rows] = _time_s(job, "send_recv", size[rows], 2, span)
    return found


def _time_s(job: Job, kind: str, size: Floats, ranks: int, span: int) -> Floats:
    if ranks <= 1:
        return np.zeros_like(size)
    return collective_time(
        kind, size, ranks=ranks, gpu=job.gpu, cluster=job.cluster, span=span, dtype="bf16"
    ).time_s
