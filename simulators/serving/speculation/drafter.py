"""Draft models: a small model, a one-layer head on the target's hidden states, or n-gram lookup.

A draft model runs once for each drafted token, at the batch of the sequences, and reads prompts as
the model does. A head (Li et al., EAGLE, 2024; DeepSeek-V3's multi-token prediction, 2024) is one
more layer with the model's own embedding and output, also run once for each; EAGLE-3's has an
output of its own, of fewer tokens. Medusa's heads (Cai et al., 2024), one for each place, are
products on the states that the pass leaves of all it checked: a square layer and an output each. An
n-gram look-up in the text so far costs nothing that would be
seen beside a pass.

Where drafts branch into a tree (`tree`), each pass but the first drafts for `width` nodes of a
sequence, and the model checks all nodes. The host waits for what was accepted before it hands the
GPU the next drafts, so what an engine's host is seen to take of an iteration is taken for those
batches too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.replica import NOTHING
from simulators.core.errors import Infeasible
from simulators.serving.deployment import Hardware
from simulators.serving.point import (
    ADAPTIVE,
    DRAFT,
    EAGLE,
    EAGLE3,
    MEDUSA,
    MTP,
    NGRAM,
    ServingPoint,
)
from simulators.serving.speculation.acceptance import odds_growth, rates_of
from simulators.serving.speculation.tree import tree_survival
from simulators.workload.llm.memory import kv_bytes_per_token, weight_bytes
from simulators.workload.llm.parallelism import check_cut
from simulators.workload.precision import precision


@dataclass(frozen=True)
class Drafter:
    """A drafter: hardware, numbers of draft tokens, and acceptance rates."""

    drafted: int  # tokens of a sequence and iteration
    survival: tuple[float, ...]  # shares of iterations that accept at least 1, 2 ... of them
    hardware: Hardware | None  # of its passes, one for each level; None: they cost nothing
    weight_bytes: float = 0.0  # on the fullest GPU, beside the model's own
    kv_bytes_per_token: float = 0.0
    alone: int = 0  # passes that draft one token for each sequence
    wide: int = 0  # and that draft `width`
    width: int = 1
    up_to: tuple[int, ...] = ()  # running requests up to which at least 1, 2 ... are drafted


NO_DRAFTER = Drafter(0, (), None)

MOST_OUTPUTS = 32_000
"""Tokens that EAGLE-3's heads draft of, the most frequent (vllm-project/speculators, `eagle3`)."""

BATCHES = 2
"""That a host hands over for the drafts of an iteration, beside their check: the passes, replayed
at once, and one in which the head reads what was accepted (sgl-project/sglang, `eagle_worker.py`:
`draft`, `forward_draft_extend_after_decode`)."""


def drafter_of(point: ServingPoint, hardware: Hardware) -> Drafter | None:
    """Return the drafter of a design, or None.

    Raises:
        Infeasible: the draft model cannot be cut as the model is, or there is a pipeline.
        UserError: a name is unknown, or rates of acceptance are none.
    """
    if point.speculation.method == NOTHING or point.speculation.num_draft_tokens == 0:
        return None
    if point.pp > 1:
        raise Infeasible("speculation_needs_pp_1", f"pp {point.pp}")
    if point.iteration_table:
        raise Infeasible("speculation_needs_composition", "operator times of one's own have none")
    drafted, accepted = shape_of(point)
    up_to = (
        (point.speculation.disable_batch,) * len(accepted)
        if point.speculation.disable_batch
        else ()
    )
    target = hardware.replica
    if (model := _drafting_model(point, target.model)) is None:
        return Drafter(drafted, accepted, None, up_to=up_to)
    is_head = point.speculation.method != DRAFT
    check_cut(model, target.cut)
    is_narrow = (
        is_head and point.speculation.method != MTP
    )  # heads are not quantised with the model
    dtype = precision(target.dtype).activations if is_narrow else target.dtype
    dtype = dtype if dtype in ("fp16", "bf16") else "bf16" if is_narrow else target.dtype
    depth, is_tree = len(accepted), point.speculation.topk > 1
    alone, wide, width = (1, depth - 1, point.speculation.topk) if is_tree else (depth, 0, 1)
    host_s = BATCHES * target.runtime.host_s / depth
    if point.speculation.method == MEDUSA:  # all heads at once, in the batch of the check
        alone, wide, width, host_s = 0, 1, 1 + drafted, 0.0
    once = replace(target.runtime, host_s=host_s, sequence_s=0.0, prepare_s=0.0)
    replica = replace(target, model=model, runtime=once, dtype=dtype)
    weights = weight_bytes(model, target.cut, dtype)
    if is_head:  # shares the model's embedding and output
        weights -= weight_bytes(replace(model, layers=0), target.cut, dtype)
    if point.speculation.method in (EAGLE3, MEDUSA):  # has outputs of its own
        outputs = model.vocab * model.hidden / target.cut.tp
        weights += outputs * precision(dtype).activation_bytes
    return Drafter(
        drafted,
        accepted,
        Hardware(f"{hardware.description} drafts: {model!r} {dtype} {host_s}", replica),
        weights,
        kv_bytes_per_token(model, target.cut, target.kv_dtype),
        alone,
        wide,
        width,
        up_to,
    )


def shape_of(point: ServingPoint) -> tuple[int, tuple[float, ...]]:
    """Return the tokens drafted, and shares of iterations that accept at least 1, 2 ... levels.

    Raises:
        Infeasible: the method drafts no such tree.
        UserError: rates of acceptance are none.
    """
    depth, nodes = (
        point.speculation.num_draft_tokens,
        point.speculation.tree_nodes or point.speculation.num_draft_tokens * point.speculation.topk,
    )
    rates = rates_of(point.speculation.method, point.speculation.acceptance, depth)
    if point.speculation.topk > 1 and point.speculation.method == NGRAM:
        raise Infeasible("ngram_drafts_no_tree")
    if point.speculation.topk > 1 and point.speculation.rule == ADAPTIVE:
        raise Infeasible("adaptive_drafts_are_a_chain")
    if nodes < depth or (point.speculation.topk == 1 and nodes > depth):
        raise Infeasible("draft_nodes_do_not_fit", f"{nodes} nodes, {depth} levels")
    shares, count = tree_survival(rates, odds_growth(), point.speculation.topk, nodes)
    return count, shares


def _drafting_model(point: ServingPoint, target: LanguageModel) -> LanguageModel | None:
    """Return the model whose passes draft; none of a look-up.

    Raises:
        Infeasible: no draft model is named.
    """
    if point.speculation.method == DRAFT:
        if point.speculation.draft_model == NOTHING:
            raise Infeasible("speculation_draft_needs_draft_model")
        return load_model(point.speculation.draft_model)
    if point.speculation.method == MEDUSA:
        return outputs_alone(target, point.speculation.num_draft_tokens)
    heads: dict[str, Callable[[LanguageModel], LanguageModel]] = {
        EAGLE: dense_layer,
        EAGLE3: few_outputs,
        MTP: last_layer,
    }
    head = heads.get(point.speculation.method)
    return head(target) if head else None


def last_layer(model: LanguageModel) -> LanguageModel:
    """Return a model with one layer like the last layer of a model (multi-token prediction)."""
    return replace(model, name=f"{model.name} mtp", layers=1, dense_layers=0)


def outputs_alone(model: LanguageModel, heads: int) -> LanguageModel:
    """Return a model without layers for Medusa heads: output projections and square layers."""
    outputs = heads * (model.vocab + model.hidden)
    return replace(model, name=f"{model.name} heads", layers=0, dense_layers=0, vocab=outputs)


def few_outputs(model: LanguageModel) -> LanguageModel:
    """Return a one-layer dense model with a vocabulary of the most frequent tokens."""
    return replace(dense_layer(model), vocab=min(model.vocab, MOST_OUTPUTS))


def dense_layer(model: LanguageModel) -> LanguageModel:
    """Return a model of one layer without experts."""
    if not model.experts:
        return replace(model, name=f"{model.name} head", layers=1)
    return replace(
        model,
        name=f"{model.name} head",
        layers=1,
        dense_layers=1,
        ffn=model.ffn or 4 * model.hidden,
    )
