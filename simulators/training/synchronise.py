"""Gradient and weight exchange of data-parallel ranks, and the optimizer step.

A distributed optimizer reduce-scatters gradients and gathers weights; plain data parallelism
all-reduces gradients (Rajbhandari et al., ZeRO, 2020). Both overlap with the last backward or the
next forward pass. Fully sharded ranks gather each layer's weights in every pass and scatter its
gradients, one layer ahead (Zhao et al., PyTorch FSDP, 2023). Sharding over fewer ranks than there
are copies adds an all-reduce over the copies (hierarchical sharding).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.core.jit import Floats
from simulators.kernels.price import price
from simulators.training.job import Job
from simulators.training.memory import optimized_weights, parameters
from simulators.training.plan import Plans
from simulators.training.work.messages import message_s
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
    optimizer_s: Floats  # on GPUs
    host_s: Floats  # or on the host's CPUs, until weights are back
    to_host_s: Floats  # in which gradients reach the host
    compressing_s: Floats  # of gradients that are sent in fewer bits than they have


def exchange(job: Job, plans: Plans) -> Exchange:
    """Return what data ranks of each row exchange, on the first stage, which holds the most."""
    held = parameters(job, plans)
    found = np.zeros((4, plans.size))
    held_by = plans.dp * plans.models * job.cp
    for copies, shards in sorted(set(zip(held_by.tolist(), plans.shards.tolist(), strict=True))):
        rows = (held_by == copies) & (plans.shards == shards)
        mine = plans.where(rows)
        found[:, rows] += _of_copies(job, mine, held.first[rows], copies, shards)
        if job.model.experts:
            ranks = job.tp / (job.ep * job.expert_tp)
            copies, shards = (max(1, int(number * ranks)) for number in (copies, shards))
            found[:, rows] += _of_copies(job, mine, held.first_experts[rows], copies, shards)
    gradients_s, weights_s, gather_s, scatter_s = found
    updated = optimized_weights(job, plans, held) * job.trained_share
    reads, writes = ADAM_NUMBERS
    adam = Elementwise(name="adam", elements=updated, reads=reads, writes=writes, dtype="fp32")
    on_gpu_s = price(adam, job.gpu).latency_s
    host_s, to_host_s = _on_host_s(job, plans, updated)
    return Exchange(
        gradients_s=gradients_s,
        weights_s=weights_s,
        layer_gather_s=gather_s,
        layer_scatter_s=scatter_s,
        optimizer_s=np.where(plans.offloads > 0, 0.0, on_gpu_s),
        host_s=host_s,
        to_host_s=to_host_s,
        compressing_s=_compressing_s(job, plans, held.first + held.first_experts),
    )


def _of_copies(job: Job, plans: Plans, numbers: Floats, copies: int, shards: int) -> Floats:
    """Return seconds to send gradients, weights, a layer's weights and a layer's gradients.

    The weights are held by `copies` ranks, of which `shards` share them out.
    """
    found = np.zeros((4, plans.size))
    if copies == 1:
        return found
    span = plans.dp[0] * plans.models[0] * job.cp * job.tp
    inside = max(shards, int(span * shards // copies))
    layer = numbers / np.ceil(job.model.layers / plans.pp)
    is_shared, is_full = plans.zero >= 1, plans.zero >= 3
    sent = plans.gradient_bytes * job.trained_share
    weights = WEIGHT * np.where(is_full, 1.0, job.trained_share)
    if not is_shared.all():
        whole = message_s(job, "all_reduce", sent * numbers, copies, int(span))
        found[0] = np.where(is_shared, 0.0, whole)
    if is_shared.any():
        sizes = np.where(is_full, layer, numbers)
        scatter_s = message_s(job, "reduce_scatter", sent * sizes, shards, inside)
        gather_s = message_s(job, "all_gather", weights * sizes, shards, inside)
        if shards < copies:
            left = sent * sizes / shards
            scatter_s = scatter_s + message_s(job, "all_reduce", left, copies // shards, int(span))
        found[0] += np.where(is_shared & ~is_full, scatter_s, 0.0)
        found[1] = np.where(is_shared & ~is_full, gather_s, 0.0)
        found[2], found[3] = np.where(is_full, gather_s, 0.0), np.where(is_full, scatter_s, 0.0)
    return found


def _on_host_s(job: Job, plans: Plans, updated: Floats) -> tuple[Floats, Floats]:
    """Return the seconds in which the host updates weights, and gradients reach it before.

    CPUs of a node serve its ranks in turn. Weights return while later ones are updated; gradients
    leave while the backward pass runs (Ren et al., ZeRO-Offload, 2021).
    """
    link = job.gpu.pcie_bytes_per_s
    if not plans.offloads.any() or not link:
        return np.zeros(plans.size), np.zeros(plans.size)
    on_node = np.minimum(job.cluster.gpus_per_node, plans.pp * plans.dp * job.tp * job.cp)
    crossing_s = plans.offloads * WEIGHT * updated / link
    update_s = plans.offloads * updated * on_node / plans.host_adam_per_s
    return np.maximum(update_s, crossing_s), crossing_s


def _compressing_s(job: Job, plans: Plans, numbers: Floats) -> Floats:
    """Return the seconds of narrowing gradients of 16 bits before they are sent, and widening."""
    is_narrow = (plans.gradient_bytes < WEIGHT) & (plans.dp * job.cp * plans.models > 1)
    if not is_narrow.any():
        return np.zeros(plans.size)
    moved = numbers * job.trained_share * (1.0 + plans.gradient_bytes / WEIGHT)
    walk = Elementwise(name="narrowing", elements=moved, dtype="bf16")
    return np.asarray(np.where(is_narrow, price(walk, job.gpu).latency_s, 0.0), np.float64)


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
            found[rows] = message_s(job, "send_recv", size[rows], 2, span)
    return found
