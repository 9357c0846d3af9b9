"""Messages inside a layer: sums over tensor ranks, keys over context ranks, tokens to experts.

Tensor parallelism sums twice a layer and pass (Shoeybi et al., Megatron-LM, 2019); under sequence
parallelism each sum is a reduce-scatter and a gather (Korthikanti et al., 2022). Context ranks hold
parts of a sequence. A ring passes keys and values on while it attends to those it has (Liu et al.,
Ring attention, 2023), and one that deals out the sequence from both ends, zigzag, balances what a
causal mask leaves; Ulysses swaps heads for tokens (Jacobs et al., 2023); or each rank gathers all
keys. Experts get their tokens by two all-to-alls a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulators.collectives.price import collective_time
from simulators.core.jit import Floats
from simulators.training.job import Job
from simulators.workload.llm.parallelism import kv_heads_per_gpu
from simulators.workload.precision import BYTES

CONTEXT_EXCHANGES = ("ring", "zigzag", "ulysses", "gather")
RING, ZIGZAG, ULYSSES, GATHER = CONTEXT_EXCHANGES
ACTIVATION = BYTES["bf16"]

LAYERS = ("dense", "experts")
SUMS = {"embedding": (1, 0), "dense": (2, 2), "experts": (1, 1), "head": (0, 1)}
"""Sums over tensor ranks of a piece, forward and backward."""

TENSOR, CONTEXT, EXPERTS = "tensor", "context", "experts"


@dataclass(frozen=True)
class Messages:
    """Seconds of a piece's messages per micro-batch, by pass and purpose."""

    forward: Mapping[str, Floats]
    backward: Mapping[str, Floats]
    launches: tuple[int, int] = (0, 0)  # of collectives, in either pass


def messages(job: Job, piece: str, micro_batches: Floats) -> Messages:
    """Return the messages of one piece for a column of micro-batch sizes.

    Messages of context ranks are not reduced by the overlap with attention; callers subtract it.
    """
    tokens = micro_batches * job.sequence / job.cp
    sums = SUMS[piece]
    once_s = tensor_sum_s(job, tokens, job.dtype if piece in LAYERS else "bf16")
    forward: dict[str, Floats] = {TENSOR: sums[0] * once_s}
    backward: dict[str, Floats] = {TENSOR: sums[1] * once_s}
    if piece in LAYERS:
        forward[CONTEXT], backward[CONTEXT] = cp_comm_s(job, micro_batches)
    if piece == "experts":
        exchange_s = expert_exchange_s(job, tokens)
        forward[EXPERTS] = backward[EXPERTS] = exchange_s
    return Messages(forward, backward, _launches(job, piece))


def _launches(job: Job, piece: str) -> tuple[int, int]:
    """Return the collectives of either pass; a sequence-parallel sum is two, gradients go back."""
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

    What sequence-parallel ranks gather is the input of a product in `dtype`: Transformer Engine
    narrows it before it is sent. Sums keep 16 bits.
    """
    if job.tp == 1:
        return np.zeros_like(tokens)
    numbers = tokens * job.model.hidden
    if not job.sequence_parallel:
        return message_s(job, "all_reduce", numbers * ACTIVATION, job.tp, job.tp)
    scatter_s = message_s(job, "reduce_scatter", numbers * ACTIVATION, job.tp, job.tp)
    return scatter_s + message_s(job, "all_gather", numbers * BYTES[dtype], job.tp, job.tp)


def cp_comm_s(job: Job, micro_batches: Floats) -> tuple[Floats, Floats]:
    """Return the seconds in which a layer's context ranks exchange keys, forward and backward."""
    if job.cp == 1:
        return np.zeros_like(micro_batches), np.zeros_like(micro_batches)
    model, span = job.model, job.tp * job.cp
    tokens = micro_batches * job.sequence / job.cp
    kv_bytes = tokens * 2 * kv_heads_per_gpu(model, job.cut) * model.head_dim * ACTIVATION
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
    return hops * hop_s, 2 * hops * hop_s  # backwards gradients travel along


def expert_exchange_s(job: Job, tokens: Floats) -> Floats:
    """Return the seconds in which a layer's tokens reach their experts and sums come back."""
    model, ranks = job.model, job.ep * job.expert_tp
    if ranks == 1:
        return np.zeros_like(tokens)
    span = max(ranks, job.tp)
    size = tokens / job.tp * copies(job, span) * model.hidden * ACTIVATION * job.busiest
    total = np.zeros_like(tokens)
    if job.ep > 1:
        total = total + 2 * message_s(job, "all_to_all", size, job.ep, span)
    if job.expert_tp > 1:
        gathered = size * job.expert_tp
        for kind in ("all_gather", "reduce_scatter"):
            total = total + message_s(job, kind, gathered, job.expert_tp, job.expert_tp)
    return total


def copies(job: Job, span: int) -> float:
    """Return how often a token is sent to its experts.

    Over several nodes it goes to each node once, which hands it on over its own links (DeepSeek-V3,
    2024), however many of its experts are there.

    >>> from simulators.catalog.cluster import load_cluster
    >>> from simulators.catalog.gpu import load_gpu
    >>> from simulators.catalog.model import load_model
    >>> job = Job(model=load_model("deepseek_v3"), gpu=load_gpu("h100_sxm"),
    ...           cluster=load_cluster("dgx_h100"), ep=32)
    >>> copies(job, 8), round(copies(job, 32), 2)
    (8, 3.6)
    """
    nodes, top_k = -(-span // job.cluster.gpus_per_node), job.model.top_k
    return top_k if nodes == 1 else nodes * (1.0 - (1.0 - 1.0 / nodes) ** top_k)


def message_s(job: Job, kind: str, size: Floats, ranks: int, span: int) -> Floats:
    """Return the seconds of a collective of 16-bit numbers, as `collective_time` has its sizes."""
    if ranks <= 1:
        return np.zeros_like(size)
    return collective_time(
        kind, size, ranks=ranks, gpu=job.gpu, cluster=job.cluster, span=span, dtype="bf16"
    ).time_s
