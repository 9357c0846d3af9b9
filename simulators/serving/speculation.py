"""Speculative decoding: draft tokens, their acceptance, and the drafter's hardware.

Acceptance. A draft token counts if all draft tokens before it are accepted. Draft token `i` is
accepted, given that the earlier ones are, with probability `a_i` (Leviathan et al., "Fast inference
from transformers via speculative decoding", 2023), so an iteration brings `1 + sum of a_1 ... a_i`
tokens. A model with a published acceptance length for the method and number of draft tokens
(`catalog/acceptance_lengths.toml`) accepts so many; position `i` then is reached in as many
iterations as a draft of `i` tokens adds tokens to one of `i - 1`. Other models have the method's
rates, which fall with the position and come from measured traces (`calibration/acceptance.toml`);
beyond the last measured position its rate is used.

Trees. A level counts if the model's token is among its nodes, so an iteration brings 1 plus the
path probabilities of all nodes (Cai et al., Medusa, 2024). The tree grows by its most likely next
node; as in EAGLE-2 (Li et al., 2024) at most `topk` nodes of a level have children, at most `topk`
each. EAGLE-2 grows another tree in every iteration by the confidence of its drafter; here all trees
are the mean one and bring 15 % fewer tokens than published. The odds that one of the first `r`
candidates is right are those of the first times `r^growth`, fitted to Medusa's heads.

Drafters. A draft model runs once for each draft token, and prefills prompts as the model does. A
head (Li et al., EAGLE, 2024; DeepSeek-V3's multi-token prediction, 2024) is one more layer with the
model's own embedding and output; EAGLE-3 has a smaller output of its own. Medusa's heads, one for
each position, are a square layer and an output each, applied to the states of all verified tokens.
An n-gram lookup costs no GPU time. With a tree, each pass but the first drafts for `width` nodes of
a sequence. The host waits for the accepted tokens before it launches the next drafts, so draft
batches have the host time of an iteration too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path
from typing import Any

import simulators.catalog
from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.replica import NOTHING
from simulators.core.calibration import read_calibration
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import once, read_toml
from simulators.serving.options import ADAPTIVE, DRAFT, EAGLE, EAGLE3, MEDUSA, MTP, NGRAM
from simulators.serving.point import ServingPoint
from simulators.serving.prices.hardware import Hardware
from simulators.workload.llm.memory import kv_bytes_per_token, weight_bytes
from simulators.workload.llm.parallelism import check_layout
from simulators.workload.precision import precision

CALIBRATION = Path(__file__).parent / "calibration" / "acceptance.toml"
PUBLISHED = Path(simulators.catalog.__file__).with_name("acceptance_lengths.toml")


def survival(method: str, written: str, drafted: int, model: str = "") -> tuple[float, ...]:
    """Return the probabilities that at least 1, 2 ... draft tokens of an iteration are accepted.

    `written` holds one acceptance rate for all positions or one per position, or `length=` and a
    mean number of tokens per iteration; if empty, the published length of the model or else the
    measured rates of the method are used.
    A length means synthetic acceptance, as benchmarks set it in vLLM and SGLang: the first drafts
    are always accepted, the next one with the probability that gives the length.

    Raises:
        UserError: a rate is not between 0 and 1, or the method has no measured rates.

    >>> survival("", "0.5", 3)
    (0.5, 0.25, 0.125)
    >>> [round(share, 2) for share in survival("mtp", "length=2.6", 3)]
    [1.0, 0.6, 0.0]
    >>> [round(share, 2) for share in survival("mtp", "", 3, "deepseek_v4_pro")]
    [0.79, 0.48, 0.22]
    """
    return tuple(accumulate(rates_of(method, written, drafted, model), mul))


def rates_of(method: str, written: str, drafted: int, model: str = "") -> list[float]:
    """Return the conditional acceptance rate of each position; the last rate is repeated."""
    if written.strip().startswith(FORCED):
        return _forced_rates(written, drafted)
    if written.strip():
        rates = _rates(written)
    else:
        rates = published_rates(method, model, drafted) or measured_rates(method)
    return [*rates, *[rates[-1]] * max(0, drafted - len(rates))][:drafted]


def published_rates(method: str, model: str, drafted: int) -> tuple[float, ...]:
    """Return the acceptance rates of a model's published length, by position; empty without one.

    Between numbers of draft tokens without a length, positions share one rate. Lengths of more
    drafts are sometimes shorter: all shares are then scaled so that the length of `drafted` tokens
    is the published one.

    >>> [round(rate, 2) for rate in published_rates("mtp", "deepseek_v3", 3)]
    [0.7, 0.7, 0.54]
    """
    facts = once(read_toml, PUBLISHED).get(method, {}).get(model)
    if facts is None or not drafted:
        return ()
    lengths: list[float] = facts["lengths"]
    shares: list[float] = [1.0]
    past, length = 0, 1.0
    for count, found in zip(facts.get("drafts", range(1, 1 + len(lengths))), lengths, strict=True):
        rate = _shared_rate((found - length) / shares[-1], count - past) if shares[-1] else 0.0
        shares += [shares[-1] * rate**place for place in range(1, 1 + count - past)]
        past, length = count, found
        if count >= drafted:
            break
    del shares[0], shares[drafted:]
    if past == drafted and shares[0] > 0.0:
        shares = [min(1.0, share * (length - 1.0) / sum(shares)) for share in shares]
    return tuple(share / max(before, 1e-12) for before, share in pairwise([1.0, *shares]))


def _shared_rate(added: float, positions: int) -> float:
    """Return the rate r of equal positions that add `r + r^2 + ...` tokens; 1 at most."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        tokens = math.fsum(middle**place for place in range(1, 1 + positions))
        low, high = (low, middle) if tokens >= added else (middle, high)
    return high


def mean_acceptance_length(survival: tuple[float, ...]) -> float:
    """Return the mean number of tokens per sequence and iteration.

    >>> mean_acceptance_length((0.5, 0.25))
    1.75
    """
    return 1.0 + sum(survival)


def last_step_excess(survival: tuple[float, ...]) -> float:
    """Return the mean tokens by which the last iteration overshoots the end of a long output.

    Steps of X tokens overshoot a distant end by `(E[X^2] / E[X] - 1) / 2` on average (renewal
    theory; Feller, 1971), and `E[X (X - 1)] / 2` is the sum of `i S_i`.

    >>> last_step_excess(())
    0.0
    >>> last_step_excess((1.0,))
    0.5
    """
    return sum(i * share for i, share in enumerate(survival, 1)) / mean_acceptance_length(survival)


def measured_rates(method: str) -> tuple[float, ...]:
    """Return the measured acceptance rates of a method, by position.

    Raises:
        UserError: the method has no measured rates.
    """
    known = {name: tuple(rates) for name, rates in _fitted()["rates"].items()}
    if method not in known:
        raise UserError(
            f"no acceptance rate of '{method}' is measured; set acceptance=0.7, or one rate per "
            f"position: acceptance='0.7 0.65 0.6'. Measured: {', '.join(known)}"
        )
    return known[method]


def times_interval() -> tuple[float, float]:
    """Return the 90 % interval of TPOT for models without a measured acceptance rate."""
    low, high = _fitted()["times"]["ends"]
    return float(low), float(high)


def _fitted() -> Mapping[str, Any]:
    return once(read_calibration, CALIBRATION)


FORCED = "length="
"""Prefix of an acceptance that states the mean number of tokens per iteration."""


def _forced_rates(written: str, drafted: int) -> list[float]:
    """Return the rates that give a stated mean number of tokens per iteration."""
    try:
        length = float(written.strip().removeprefix(FORCED))
    except ValueError:
        length = 0.0
    if not 1.0 <= length <= 1.0 + drafted:
        raise UserError(
            f"acceptance '{written}': write a length from 1 to {1 + drafted}, for {drafted} draft "
            "tokens, as in length=2.6"
        )
    return [min(1.0, max(0.0, length - 1.0 - place)) for place in range(drafted)]


def _rates(written: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(word) for word in re.split(r"[,\s]+", written.strip()))
    except ValueError:
        rates = (-1.0,)
    if not all(0.0 <= rate <= 1.0 for rate in rates):
        raise UserError(
            f"acceptance '{written}': write one rate between 0 and 1, or one for each position"
        )
    return rates


def tree_survival(
    rates: Sequence[float], growth: float, topk: int, nodes: int
) -> tuple[tuple[float, ...], int]:
    """Return the probabilities of accepting at least 1, 2 ... levels, and the number of nodes.

    Args:
        rates: probability that the first candidate of each level is right, given earlier levels.
        growth: exponent of the odds over the number of candidates.
        topk: most children of a node, and most nodes of a level with children.
        nodes: most nodes of the tree, without the root (the model's own token).

    >>> tree_survival((0.5, 0.5), 1.0, 1, 2)
    ((0.5, 0.25), 2)
    >>> [round(share, 3) for share in tree_survival((0.5, 0.5), 1.0, 2, 3)[0]]
    [0.667, 0.25]
    """
    candidates = [ranked(rate, growth, topk) for rate in rates]
    shares, parents, count = [0.0] * len(rates), [0] * len(rates), 0
    heap: list[tuple[float, int, int, float]] = []  # less its path's probability; place in tree

    def offer(level: int, rank: int, above: float) -> None:
        if level < len(rates) and rank < topk:
            heappush(heap, (-above * candidates[level][rank], level, rank, above))

    offer(0, 0, 1.0)
    while heap and count < nodes:
        less, level, rank, above = heappop(heap)
        count += 1
        shares[level] -= less
        offer(level, rank + 1, above)
        if parents[level] < topk:
            parents[level] += 1
            offer(level + 1, 0, -less)
    return tuple(shares), count


def ranked(rate: float, growth: float, topk: int) -> list[float]:
    """Return the probabilities that the first, second ... candidate is right.

    >>> [round(share, 3) for share in ranked(0.5, 1.0, 3)]
    [0.5, 0.167, 0.083]
    """
    if rate in (0.0, 1.0):
        return [rate, *[0.0] * (topk - 1)]
    odds = rate / (1.0 - rate)
    among = [0.0, *(odds * r**growth / (1.0 + odds * r**growth) for r in range(1, topk + 1))]
    return [after - before for before, after in pairwise(among)]


@dataclass(frozen=True)
class Drafter:
    """A drafter: hardware, numbers of draft tokens, and acceptance rates."""

    drafted: int  # draft tokens per sequence and iteration
    survival: tuple[float, ...]  # probabilities that at least 1, 2 ... draft tokens are accepted
    hardware: Hardware | None  # of the draft passes; None: drafting costs no GPU time
    weight_bytes: float = 0.0  # on the fullest GPU, in addition to the model's
    kv_bytes_per_token: float = 0.0
    alone: int = 0  # passes that draft one token per sequence
    wide: int = 0  # passes that draft `width` tokens per sequence
    width: int = 1
    up_to: tuple[int, ...] = ()  # running requests up to which at least 1, 2 ... are drafted


NO_DRAFTER = Drafter(0, (), None)

MOST_OUTPUTS = 32_000
"""Vocabulary of EAGLE-3's heads, the most frequent tokens (vllm-project/speculators, `eagle3`)."""

BATCHES = 2
"""Launches of the host per iteration for drafts: the draft passes, replayed as one graph, and a
pass of the head over the accepted tokens (sgl-project/sglang, `eagle_worker.py`: `draft`,
`forward_draft_extend_after_decode`)."""


def drafter_of(point: ServingPoint, hardware: Hardware) -> Drafter | None:
    """Return the drafter of a point; None without speculative decoding.

    Raises:
        Infeasible: the draft model does not fit the parallelism, or there is a pipeline.
        UserError: a name is unknown, or an acceptance rate is invalid.
    """
    config = point.speculation
    if config.method == NOTHING or config.num_draft_tokens == 0:
        return None
    if point.pp > 1:
        raise Infeasible("speculation_needs_pp_1", f"pp {point.pp}")
    if point.iteration_table:
        raise Infeasible("speculation_needs_composition", "iteration_table has no drafter times")
    drafted, accepted = shape_of(point)
    up_to = (config.disable_batch,) * len(accepted) if config.disable_batch else ()
    target = hardware.replica
    if (model := _drafting_model(point, target.model)) is None:
        return Drafter(drafted, accepted, None, up_to=up_to)
    is_head = config.method != DRAFT
    check_layout(model, target.layout)
    is_narrow = is_head and config.method != MTP  # heads are not quantized with the model
    dtype = precision(target.dtype).activations if is_narrow else target.dtype
    dtype = dtype if dtype in ("fp16", "bf16") else "bf16" if is_narrow else target.dtype
    depth, is_tree = len(accepted), config.topk > 1
    alone, wide, width = (1, depth - 1, config.topk) if is_tree else (depth, 0, 1)
    host_s = BATCHES * target.launcher.runtime.host_s / depth
    if config.method == MEDUSA:  # all heads at once, in the verified batch
        alone, wide, width, host_s = 0, 1, 1 + drafted, 0.0
    once = replace(target.runtime, host_s=host_s, sequence_s=0.0, prepare_s=0.0)
    replica = replace(target, model=model, runtime=once, dtype=dtype, host_as=None)
    weights = weight_bytes(model, target.layout, dtype)
    if is_head:  # shares the model's embedding and output
        weights -= weight_bytes(replace(model, layers=0), target.layout, dtype)
    if config.method in (EAGLE3, MEDUSA):  # has an output of its own
        outputs = model.vocab * model.hidden / target.layout.tp
        weights += outputs * precision(dtype).activation_bytes
    return Drafter(
        drafted,
        accepted,
        Hardware(f"{hardware.description} drafts: {model!r} {dtype} {host_s}", replica),
        weights,
        kv_bytes_per_token(model, target.layout, target.kv_dtype),
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
    config, depth = point.speculation, point.speculation.num_draft_tokens
    nodes = config.tree_nodes or depth * config.topk
    model = load_model(point.model).name
    rates = rates_of(config.method, config.acceptance, depth, model)
    if config.topk > 1 and config.method == NGRAM:
        raise Infeasible("ngram_drafts_no_tree")
    if config.topk > 1 and config.rule == ADAPTIVE:
        raise Infeasible("adaptive_drafts_are_a_chain")
    if nodes < depth or (config.topk == 1 and nodes > depth):
        raise Infeasible("draft_nodes_do_not_fit", f"{nodes} nodes, {depth} levels")
    growth = float(_fitted()["ranks"]["growth"])
    shares, count = tree_survival(rates, growth, config.topk, nodes)
    return count, shares


def _drafting_model(point: ServingPoint, target: LanguageModel) -> LanguageModel | None:
    """Return the model that drafts; None for n-gram lookup.

    Raises:
        Infeasible: no draft model is named.
    """
    config = point.speculation
    if config.method == DRAFT:
        if config.draft_model == NOTHING:
            raise Infeasible("speculation_draft_needs_draft_model")
        return load_model(config.draft_model)
    if config.method == MEDUSA:  # no layers: output projections and square layers
        outputs = config.num_draft_tokens * (target.vocab + target.hidden)
        name = f"{target.name} heads"
        return replace(target, name=name, layers=0, dense_layers=0, bare_layers=0, vocab=outputs)
    if config.method == MTP:  # like the last layer
        return replace(target, name=f"{target.name} mtp", layers=1, dense_layers=0, bare_layers=0)
    if config.method == EAGLE3:
        return replace(dense_layer(target), vocab=min(target.vocab, MOST_OUTPUTS))
    return dense_layer(target) if config.method == EAGLE else None


def dense_layer(model: LanguageModel) -> LanguageModel:
    """Return a model of one layer without experts."""
    head = replace(model, name=f"{model.name} head", layers=1, bare_layers=0)
    ffn = model.ffn or 4 * model.hidden
    return replace(head, dense_layers=1, ffn=ffn) if model.experts else head
