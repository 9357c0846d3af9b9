"""Operators of a training step: those of a forward pass, and what their gradients are made of.

A product `m x n x k` has two gradients of its size: of its input, `m x k x n`, and of its weights,
`k x n x m`. Fused attention computes its scores once more (Dao et al., FlashAttention, 2022). Where
attention is not fused, products, softmax and dropout are kernels that keep their results
(Korthikanti et al., Reducing activation recomputation, 2022). Under sequence parallelism norms see
a tensor rank's share of the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from simulators.training.job import UNFUSED, Job
from simulators.workload.llm.attention import prefill_operators
from simulators.workload.llm.parallelism import Stage
from simulators.workload.llm.shard import Shard
from simulators.workload.llm.step import Step
from simulators.workload.llm.transformer import head_operators, token_operators
from simulators.workload.operators import (
    Attention,
    Column,
    Compute,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Norm,
)
from simulators.workload.precision import BYTES

NOTHING = Stage(dense_layers=0, expert_layers=0, has_embedding=False, has_head=False)
PIECES = {
    "embedding": replace(NOTHING, has_embedding=True),
    "dense": replace(NOTHING, dense_layers=1),
    "experts": replace(NOTHING, expert_layers=1),
    "head": replace(NOTHING, has_head=True),
}
"""What a model is made of; the order is that of `schedule.play`'s columns."""

FORWARD, INPUTS, WEIGHTS, AGAIN = "forward", "inputs", "weights", "again"
"""Passes: forward, gradients of inputs, of weights, and the part of forward that selective
recomputation runs again, which is attention without its projections."""

ATTENTION_BACKWARD = 2.5
"""Products of fused attention's backward pass over those of its forward."""

KEPT_NORMS = ("attention_norm", "ffn_norm", "final_norm", "latent_norms")


@dataclass(frozen=True)
class Task:
    """A kernel of one pass of a piece; those of attention's core are told apart."""

    kernel: Compute
    phase: str
    is_core: bool = False


def tasks(job: Job, piece: str, micro_batch: Column) -> list[Task]:
    """Return the kernels of one piece of a model, for one micro-batch on one rank.

    Args:
        job: what is trained, and how it is cut.
        piece: one of `PIECES`.
        micro_batch: sequences.
    """
    part = PIECES[piece]
    tokens = micro_batch * job.sequence / job.cp
    shard = Shard(job.model, job.cut, part, job.dtype)
    found: list[Task] = []
    for operator in token_operators(shard, tokens):
        if operator.repeat:
            found += _with_gradients(_shared_out(operator, job))
    for operator in head_operators(shard, tokens):
        found += _with_gradients(_shared_out(operator, job))
    if part.has_head:
        found += _loss(job, tokens)
    if part.layers:
        found += [
            Task(task.kernel, task.phase, is_core=True)
            for task in _attention(job, shard, micro_batch)
        ]
    return found


def _shared_out(operator: Compute, job: Job) -> Compute:
    """Return an operator with the tokens that one tensor rank norms."""
    if operator.name not in KEPT_NORMS and not isinstance(operator, Embedding):
        return operator
    share = job.norm_ranks
    if isinstance(operator, Elementwise):
        return replace(operator, elements=operator.elements / share)
    if isinstance(operator, Norm | Embedding):
        return replace(operator, rows=operator.rows / share)
    return operator


def _attention(job: Job, shard: Shard, micro_batch: Column) -> Iterable[Task]:
    """Return attention between the projections: one kernel, or products with all scores."""
    tokens = micro_batch * job.sequence / job.cp
    step = Step(
        prefills=micro_batch,
        prefill_tokens=tokens,
        prefill_pairs=micro_batch * job.sequence * (job.sequence + 1.0) / 2.0 / job.cp,
        prefill_kv_tokens=micro_batch * job.sequence,
    )
    for operator in prefill_operators(shard, step):
        if isinstance(operator, Attention) and job.attention == UNFUSED:
            yield from _unfused(operator, job)
        elif isinstance(operator, Attention):
            yield Task(operator, FORWARD)
            yield Task(replace(operator, pairs=ATTENTION_BACKWARD * operator.pairs), INPUTS)
        else:
            yield from _with_gradients(operator)


def _unfused(attention: Attention, job: Job) -> Iterable[Task]:
    """Return attention as products, a masked softmax and dropout, each over all scores."""
    length, heads = float(job.sequence), attention.heads
    batch = attention.requests * heads
    numbers = batch * length * (length / job.cp)
    scores = Gemm(
        name="scores", m=length / job.cp, n=length, k=attention.head_dim, batch=batch, dtype="bf16"
    )
    sums = replace(scores, name="weighted_values", n=attention.head_dim, k=length)
    softmax = Norm(
        name="masked_softmax", rows=numbers / length, cols=length, kind="softmax", dtype="bf16"
    )
    dropout = Elementwise(name="dropout", elements=numbers, reads=1.0, writes=1.5, dtype="bf16")
    for product in (scores, sums):
        yield Task(product, FORWARD)
        yield Task(product, INPUTS)  # of either factor
        yield Task(product, INPUTS)
    yield Task(softmax, FORWARD)
    yield Task(dropout, FORWARD)
    yield Task(replace(dropout, reads=2.0, writes=1.0), INPUTS)
    yield Task(replace(dropout, reads=1.5, writes=1.0), INPUTS)


def _with_gradients(operator: Compute) -> list[Task]:
    """Return an operator of a forward pass and its gradients."""
    forward = Task(operator, FORWARD)
    if isinstance(operator, Gemm):
        m, n, k = operator.m, operator.n, operator.k
        inputs = replace(operator, n=k, k=n, weight_dtype=operator.dtype)
        weights = replace(operator, m=k, n=n, k=m, weight_dtype=operator.dtype)
        return [forward, Task(inputs, INPUTS), Task(weights, WEIGHTS)]
    if isinstance(operator, GroupedGemm):
        inputs_of = replace(operator, n=operator.k, k=operator.n)
        return [forward, Task(inputs_of, INPUTS), Task(operator, WEIGHTS)]
    if isinstance(operator, Norm):
        moved = Elementwise(
            name=operator.name, elements=operator.rows * operator.cols, reads=2.0, writes=1.0
        )
        return [forward, Task(moved, INPUTS)]
    if isinstance(operator, Embedding):
        moved = Elementwise(name=operator.name, elements=operator.rows * operator.cols, reads=2.0)
        return [forward, Task(moved, WEIGHTS)]
    if isinstance(operator, Elementwise):
        back = replace(operator, reads=operator.reads + operator.writes, writes=operator.reads)
        return [forward, Task(back, INPUTS)]
    return [forward, Task(operator, INPUTS)]


def _loss(job: Job, tokens: Column) -> list[Task]:
    """Return the cross entropy of a rank's part of the logits: fp32 numbers, read and written."""
    wide = BYTES["fp32"] / BYTES["bf16"]
    logits = tokens * job.model.vocab / job.tp
    forward = Elementwise(name="loss", elements=logits, reads=1.0 + 2 * wide, writes=wide)
    backward = Elementwise(name="loss", elements=logits, reads=wide, writes=1.0)
    return [Task(forward, FORWARD), Task(backward, INPUTS)]
