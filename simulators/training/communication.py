"""Communication of a training step: messages inside layers, gradients, weights and the optimizer.

Tensor parallelism sums twice per layer and pass (Shoeybi et al., Megatron-LM, 2019); under sequence
parallelism each sum is a reduce-scatter and a gather (Korthikanti et al., 2022). Context ranks hold
parts of a sequence. A ring passes keys and values on while it attends to those it has (Liu et al.,
Ring attention, 2023); zigzag assigns each rank a part from both ends of the sequence, which
balances a causal mask; Ulysses swaps heads for tokens (Jacobs et al., 2023); or each rank gathers
all keys. Experts get their tokens by two all-to-alls per pass.

A distributed optimizer reduce-scatters gradients and gathers weights; plain data parallelism
all-reduces gradients (Rajbhandari et al., ZeRO, 2020). Both overlap with the last backward or the
next forward pass. Fully sharded ranks gather each layer's weights in every pass and scatter its
gradients, one layer ahead (Zhao et al., PyTorch FSDP, 2023). Sharding over fewer ranks than there
are copies adds an all-reduce over the copies (hierarchical sharding).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulators.collectives.price import collective_time
from simulators.core.jit import Floats
from simulators.kernels.price import price
from simulators.training.job import ALLTOALL, GATHER, ULYSSES, Job, Plans
from simulators.training.memory import most_weights, optimized_weights, parameters
from simulators.workload.llm.parallelism import kv_heads_per_gpu
from simulators.workload.operators import Elementwise
from simulators.workload.precision import BYTES

ACTIVATION = BYTES["bf16"]

LAYERS = ("dense", "experts")
SUMS = {"embedding": (1, 0), "dense": (2, 2), "experts": (1, 1), "head": (0, 1)}
"""Number of tensor-parallel sums of a piece, forward and backward."""

TENSOR, CONTEXT, EXPERTS = "tensor", "context", "experts"


@dataclass(frozen=True)
class Messages:
    """Seconds of a piece's messages per micro-batch, by pass and purpose."""

    forward: Mapping[str, Floats]
    backward: Mapping[str, Floats]
    launches: tuple[int, int] = (0, 0)  # of collectives, in either pass


def messages(job: Job, piece: str, micro_batches: Floats) -> Messages:
    """Return the messages of one piece for a column of micro-batch sizes.

    Callers subtract the overlap of context messages with attention.
    """
    tokens = micro_batches * job.sequence / job.cp
    sums = SUMS[piece]
    once_s = tensor_sum_s(job, tokens, job.dtype if piece in LAYERS else "bf16")
    forward: dict[str, Floats] = {TENSOR: sums[0] * once_s}
    backward: dict[str, Floats] = {TENSOR: sums[1] * once_s}
    if piece in LAYERS:
        forward[CONTEXT], backward[CONTEXT] = cp_comm_s(job, micro_batches)
    if piece == "experts":
        forward[EXPERTS] = expert_exchange_s(job, tokens, job.dispatch_dtype)
        backward[EXPERTS] = expert_exchange_s(job, tokens, "bf16")
    return Messages(forward, backward, _launches(job, piece))


def _launches(job: Job, piece: str) -> tuple[int, int]:
    """Return the number of collectives in the forward and the backward pass.

    A sequence-parallel sum is two collectives.
    """
    tensor = (1 + job.sequence_parallel) * (job.tp > 1)
    experts = 2 * (piece == "experts") * ((job.ep > 1) + (job.expert_tp > 1))
    once = {ULYSSES: 2, GATHER: 1}.get(job.context_exchange, job.cp - 1) * (job.cp > 1)
    context = (once, once if job.context_exchange == ULYSSES else 2 * once)
    forward, backward = (
        tensor * number + (experts + ring) * (piece in LAYERS)
        for number, ring in zip(SUMS[piece], context, strict=True)
    )
    return forward, backward


def tensor_sum_s(job: Job, tokens: Floats, dtype: str) -> Floats:
    """Return the seconds of one sum of activations over tensor ranks.

    Sequence-parallel ranks gather the input of a product in `dtype`, which Transformer Engine
    quantizes before communication. Sums keep 16 bits.
    """
    if job.tp == 1:
        return np.zeros_like(tokens)
    numbers = tokens * job.model.hidden
    if not job.sequence_parallel:
        return message_s(job, "all_reduce", numbers * ACTIVATION, job.tp, job.tp)
    scatter_s = message_s(job, "reduce_scatter", numbers * ACTIVATION, job.tp, job.tp)
    return scatter_s + message_s(job, "all_gather", numbers * BYTES[dtype], job.tp, job.tp)


def cp_comm_s(job: Job, micro_batches: Floats) -> tuple[Floats, Floats]:
    """Return the seconds of a layer's exchange of keys, forward and backward."""
    if job.cp == 1:
        return np.zeros_like(micro_batches), np.zeros_like(micro_batches)
    model, span = job.model, job.tp * job.cp
    tokens = micro_batches * job.sequence / job.cp
    kv_bytes = tokens * 2 * kv_heads_per_gpu(model, job.layout) * model.head_dim * ACTIVATION
    if job.context_exchange == ULYSSES:
        heads = (2 * model.heads / job.tp * model.head_dim) * tokens * ACTIVATION + kv_bytes
        once_s = message_s(job, "all_to_all", heads, job.cp, span)
        return once_s, once_s
    if job.context_exchange == GATHER:
        gathered_s = message_s(job, "all_gather", kv_bytes * job.cp, job.cp, span)
        summed_s = message_s(job, "reduce_scatter", kv_bytes * job.cp, job.cp, span)
        return gathered_s, gathered_s + summed_s
    hop_s = message_s(job, "send_recv", kv_bytes, 2, span)
    hops = job.cp - 1
    return hops * hop_s, 2 * hops * hop_s  # the backward pass also sends gradients


def expert_exchange_s(job: Job, tokens: Floats, dispatch_dtype: str) -> Floats:
    """Return the seconds of a layer's dispatch of tokens to experts and combine of results."""
    model, ranks = job.model, job.ep * job.expert_tp
    if ranks == 1:
        return np.zeros_like(tokens)
    span = max(ranks, job.tp)
    size = tokens / job.tp * copies(job, span) * model.hidden * ACTIVATION * job.busiest
    total = np.zeros_like(tokens)
    if job.ep > 1:
        dispatch = size * BYTES[dispatch_dtype] / ACTIVATION
        for sent in (dispatch, size):
            total = total + message_s(job, "all_to_all", sent, job.ep, span)
    if job.expert_tp > 1:
        gathered = size * job.expert_tp
        for kind in ("all_gather", "reduce_scatter"):
            total = total + message_s(job, kind, gathered, job.expert_tp, job.expert_tp)
    return total


def copies(job: Job, span: int) -> float:
    """Return the mean number of copies of a token that are sent to experts.

    DeepEP sends a token once to each rank with one of its experts; over several nodes, once to each
    such node, where it is forwarded over the node's own links (DeepSeek-V3, 2024).

    >>> from simulators.catalog.cluster import load_cluster
    >>> from simulators.catalog.gpu import load_gpu
    >>> from simulators.catalog.model import load_model
    >>> job = Job(model=load_model("deepseek_v3"), gpu=load_gpu("h100_sxm"),
    ...           cluster=load_cluster("dgx_h100"), ep=32)
    >>> round(copies(job, 8), 2), round(copies(job, 32), 2)
    (5.25, 3.6)

    Ranks that share experts (`expert_tp`) gather the tokens of their group afterwards.
    """
    if job.dispatcher == ALLTOALL:
        return job.model.top_k
    nodes = -(-span // job.cluster.gpus_per_node)
    places = min(job.ep, span if nodes == 1 else nodes)
    return float(places * (1.0 - (1.0 - 1.0 / places) ** job.model.top_k))


def message_s(job: Job, kind: str, size: Floats, ranks: int, span: int) -> Floats:
    """Return the seconds of a collective of 16-bit numbers; sizes as in `collective_time`."""
    if ranks <= 1:
        return np.zeros_like(size)
    return collective_time(
        kind, size, ranks=ranks, gpu=job.gpu, cluster=job.cluster, span=span, dtype="bf16"
    ).time_s


WEIGHT = BYTES["bf16"]
ADAM_NUMBERS = (9.0, 3.5)
"""fp32 numbers that an optimizer step reads and writes per weight: the gradient three times (norm,
clearing, update), weight and two moments, and the 16-bit weight."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Seconds of data-parallel communication and the optimizer, on the fullest rank by row."""

    gradients_s: Floats  # summed or scattered, once a step
    weights_s: Floats  # gathered, once a step
    layer_gather_s: Floats  # of one layer's weights, each pass, under full sharding
    layer_scatter_s: Floats  # of one layer's gradients
    optimizer_s: Floats  # on GPUs
    host_s: Floats  # on the host's CPUs, until weights are back
    to_host_s: Floats  # transfer of gradients to the host
    compressing_s: Floats  # compression of gradients for communication


def exchange(job: Job, plans: Plans) -> Exchange:
    """Return the communication of data ranks on the first stage, or the fullest."""
    held = parameters(job, plans)
    shared, experts = most_weights(job, plans, held)
    found = np.zeros((4, plans.size))
    held_by = plans.dp * plans.models * job.cp
    for copies, shards in sorted(set(zip(held_by.tolist(), plans.shards.tolist(), strict=True))):
        rows = (held_by == copies) & (plans.shards == shards)
        mine = plans.where(rows)
        found[:, rows] += _of_copies(job, mine, shared[rows], copies, shards)
        if job.model.experts:
            ranks = job.tp / (job.ep * job.expert_tp)
            copies, shards = (max(1, int(number * ranks)) for number in (copies, shards))
            found[:, rows] += _of_copies(job, mine, experts[rows], copies, shards)
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
        compressing_s=_compressing_s(job, plans, shared + experts),
    )


def _of_copies(job: Job, plans: Plans, numbers: Floats, copies: int, shards: int) -> Floats:
    """Return the seconds of gradients, weights, a layer's weights and a layer's gradients.

    `copies` ranks hold the same weights; `shards` of them form a sharding group.
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
    """Return the seconds of the host's update, and of the transfer of gradients to the host.

    The CPUs of a node serve its ranks in turn. Updated weights return while others are updated;
    gradients are sent during the backward pass (Ren et al., ZeRO-Offload, 2021).
    """
    link = job.gpu.pcie_bytes_per_s
    if not plans.offloads.any() or not link:
        return np.zeros(plans.size), np.zeros(plans.size)
    on_node = np.minimum(job.cluster.gpus_per_node, plans.pp * plans.dp * job.tp * job.cp)
    crossing_s = plans.offloads * WEIGHT * updated / link
    update_s = plans.offloads * updated * on_node / plans.host_adam_per_s
    return np.maximum(update_s, crossing_s), crossing_s


def _compressing_s(job: Job, plans: Plans, numbers: Floats) -> Floats:
    """Return the seconds to compress 16-bit gradients before communication, and to expand them."""
    is_narrow = (plans.gradient_bytes < WEIGHT) & (plans.dp * job.cp * plans.models > 1)
    if not is_narrow.any():
        return np.zeros(plans.size)
    moved = numbers * job.trained_share * (1.0 + plans.gradient_bytes / WEIGHT)
    walk = Elementwise(name="narrowing", elements=moved, dtype="bf16")
    return np.asarray(np.where(is_narrow, price(walk, job.gpu).latency_s, 0.0), np.float64)


def send_s(job: Job, plans: Plans) -> Floats:
    """Return the seconds to send a micro-batch's activations to the next stage.

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
