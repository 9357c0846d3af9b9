"""How a replica is split across GPUs, and how its tokens are routed to experts.

Tensor parallelism splits heads and widths, pipeline parallelism layers. Under attention data
parallelism a stage is several groups of `tp` ranks. Each group attends to its own requests; the
experts' layers see the tokens of all groups. Whole experts are distributed over `ep` parts of a
stage's ranks, and each expert's width is split over the ranks of a part.

Where tokens prefer some experts, by Zipf's law or by measured counts, the rank that holds these
experts takes longest. A popular expert may be held more than once, as by DeepSeek's load balancer
(github.com/deepseek-ai/EPLB): copies go to the expert with most tokens per copy, one by one, and to
ranks so that ranks get about equal loads.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from simulators.catalog.model import LanguageModel
from simulators.core.errors import Infeasible, UserError
from simulators.workload.precision import BLOCKS, precision

GATHERED = "allgather_reducescatter"
HIGH_THROUGHPUT, LOW_LATENCY = "deepep_high_throughput", "deepep_low_latency"
AUTO = "deepep_auto"
BACKENDS = (GATHERED, HIGH_THROUGHPUT, LOW_LATENCY, AUTO)
"""Backends of expert parallelism: every rank gathers the tokens of all ranks; or DeepEP's kernels
send each token only to the GPUs of its experts, for many tokens, few tokens, or by their number.
Names are those of vLLM's `--all2all-backend`, and of SGLang's `--deepep-mode auto`."""

FEW_TOKENS = 128.0
"""Tokens per rank up to which `deepep_auto` uses low latency: the engines' buffers (SGLang,
`SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK`)."""

MOST_FEW = {LOW_LATENCY: math.inf, HIGH_THROUGHPUT: 0.0, AUTO: FEW_TOKENS}
"""Tokens per rank up to which each backend of DeepEP runs its kernels for few tokens."""


@dataclass(frozen=True)
class Routing:
    """Expert routing: backend, imbalance, and redundant experts."""

    backend: str = GATHERED
    skew: float = 0.0  # Zipf's exponent of how tokens prefer experts
    redundant: int = 0  # redundant copies of experts per layer
    counted: tuple[float, ...] = ()  # measured tokens per expert instead of `skew`, in any unit


USUAL = Routing()

ROUNDING = 0.01
"""Tolerance for counts of an expert that exceed the number of tokens."""


def counted_tokens(text: str) -> tuple[float, ...]:
    """Return the tokens per expert, from numbers separated by commas, or from a file of them.

    Raises:
        UserError: the file is missing, or a value is not a number of at least 0.

    >>> counted_tokens("3, 1, 0, 0")
    (3.0, 1.0, 0.0, 0.0)
    """
    if is_file(text):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"routing_histogram '{text}' cannot be read: {error}") from error
    try:
        found = tuple(float(word) for word in re.split(r"\s*,\s*|\s+", text.strip()))
    except ValueError as error:
        raise UserError(
            f"routing_histogram: a number for each expert, with commas between; {error}"
        ) from error
    if not all(math.isfinite(n) and n >= 0.0 for n in found) or not sum(found):
        raise UserError("routing_histogram: numbers of tokens are at least 0, and some above")
    return found


def is_file(text: str) -> bool:
    """Return whether a histogram is a file name."""
    return bool(re.search(r"[^-+\d.eE,\s]", text))


@functools.lru_cache(maxsize=256)
def skewed_share(
    experts: int,
    top_k: int,
    ranks: int,
    skew: float,
    capacity_factor: float = 0.0,
    redundant: int = 0,
    counted: tuple[float, ...] = (),
) -> float:
    """Return the tokens of the busiest rank over the mean tokens per rank, at least 1.

    A token prefers experts by Zipf's law with exponent `skew` and is routed to `top_k` of them: an
    expert of popularity p is activated with probability 1 - exp(-rate * p), where these sum to
    `top_k`. Experts are assigned to ranks round robin, the most popular first; with redundant
    copies, so that ranks are balanced. Tokens of an expert above `capacity_factor` times the mean
    are dropped (Fedus et al., Switch Transformers, 2022); 0: none. Counted experts are placed on
    ranks in order, as in engines.

    >>> skewed_share(8, 2, 8, 0.0), round(skewed_share(8, 2, 8, 1.0), 2)
    (1.0, 2.42)
    >>> skewed_share(8, 2, 8, 1.0, capacity_factor=1.25), skewed_share(8, 2, 1, 1.0)
    (1.25, 1.0)
    >>> round(skewed_share(8, 2, 8, 1.0, redundant=8), 2)
    1.03
    >>> skewed_share(4, 2, 2, 0.0, counted=(3.0, 3.0, 1.0, 1.0))
    1.5
    """
    if not (skew or counted) or ranks == 1:
        return 1.0
    mean = top_k / experts
    if counted:
        taken = [top_k * tokens / sum(counted) for tokens in counted]
    else:
        weights = [float(i) ** -skew for i in range(1, experts + 1)]
        taken = _taken([weight / sum(weights) for weight in weights], top_k)
    if capacity_factor:
        taken = [min(share, capacity_factor * mean) for share in taken]
    if redundant:
        return max(_balanced(taken, ranks, redundant)) / (top_k / ranks)
    dealt = [taken[rank::ranks] for rank in range(ranks)]
    if counted:
        each = experts // ranks
        dealt = [taken[rank * each : (rank + 1) * each] for rank in range(ranks)]
    return max(map(sum, dealt)) / (top_k / ranks)


def _balanced(taken: list[float], ranks: int, redundant: int) -> list[float]:
    """Return the load of each rank with redundant experts; the busiest are placed first."""
    copies = [1] * len(taken)
    for _ in range(redundant):
        busiest = max(range(len(taken)), key=lambda i: taken[i] / copies[i])
        copies[busiest] += 1
    loads = sorted(
        (t / n for t, n in zip(taken, copies, strict=True) for _ in range(n)), reverse=True
    )
    got, free = [0.0] * ranks, [len(loads) // ranks] * ranks
    for load in loads:
        rank = min((r for r in range(ranks) if free[r]), key=lambda r: got[r])
        got[rank] += load
        free[rank] -= 1
    return got


def _taken(popular: list[float], top_k: int) -> list[float]:
    """Return the probability that a token activates each expert."""
    if top_k >= len(popular):
        return [1.0] * len(popular)
    low, high = 0.0, 1.0
    while _sum(popular, high) < top_k:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _sum(popular, middle) < top_k else (low, middle)
    return [-math.expm1(-high * p) for p in popular]


def _sum(popular: list[float], rate: float) -> float:
    return -sum(math.expm1(-rate * p) for p in popular)


@dataclass(frozen=True)
class Parallelism:
    """Parallelism of one replica."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1
    routing: Routing = USUAL

    @property
    def gpus(self) -> int:
        """GPUs one replica occupies."""
        return self.width * self.pp

    @property
    def width(self) -> int:
        """GPUs of one pipeline stage."""
        return self.tp * self.attention_dp

    @property
    def expert_tp(self) -> int:
        """GPUs that split the width of an expert."""
        return self.width // self.ep


@dataclass(frozen=True)
class Stage:
    """Layers of a pipeline stage, and whether the stage holds the embedding or the LM head."""

    dense_layers: int
    expert_layers: int
    has_embedding: bool
    has_head: bool
    bare_layers: int = 0  # without a feed-forward block

    @property
    def layers(self) -> int:
        """Layers of every kind."""
        return self.dense_layers + self.expert_layers + self.bare_layers


def stage_of(model: LanguageModel, layout: Parallelism, stage: int) -> Stage:
    """Return the layers of a stage; the first stages hold the remainder.

    >>> from simulators.catalog.model import load_model
    >>> stage_of(load_model("deepseek_v3"), Parallelism(tp=8, pp=4), 0)
    Stage(dense_layers=3, expert_layers=13, has_embedding=True, has_head=False, bare_layers=0)
    """
    each, extra = divmod(model.layers, layout.pp)
    first = stage * each + min(stage, extra)
    last = first + each + (stage < extra)
    dense_until = model.dense_layers if model.experts else model.layers
    layers = max(1, model.layers)  # a model may consist of heads alone
    bare = last * model.bare_layers // layers - first * model.bare_layers // layers
    dense = max(0, min(last, dense_until) - first - bare)
    return Stage(
        dense_layers=dense,
        expert_layers=last - first - dense - bare,
        bare_layers=bare,
        has_embedding=stage == 0,
        has_head=stage == layout.pp - 1,
    )


def attending_layers(model: LanguageModel, part: Stage) -> float:
    """Return the number of a stage's layers with full attention: the same share of every stage.

    >>> from simulators.catalog.model import load_model
    >>> model = load_model("gpt_oss_120b")
    >>> attending_layers(model, stage_of(model, Parallelism(), 0))
    18.0
    """
    return part.layers / model.attention_every if model.attention_every > 1 else part.layers


def state_layers(model: LanguageModel, part: Stage) -> float:
    """Return the number of a stage's layers that keep a state instead of keys and values."""
    return part.layers - attending_layers(model, part) if model.has_states else 0.0


def attentions(model: LanguageModel, part: Stage) -> tuple[tuple[float, LanguageModel], ...]:
    """Return the number of a stage's layers with attention, by the sizes of their heads."""
    full = attending_layers(model, part)
    if model.has_states or not (model.window_kv_heads or model.window_head_dim):
        return ((full if model.has_states else part.layers, model),)
    return (full, model), (part.layers - full, model.windowed)


def kv_heads_per_gpu(model: LanguageModel, layout: Parallelism) -> int:
    """Return the number of KV heads on one GPU; heads are replicated if there are more GPUs.

    >>> from simulators.catalog.model import load_model
    >>> kv_heads_per_gpu(load_model("llama2_70b"), Parallelism(tp=16))
    1
    """
    return math.ceil(model.kv_heads / layout.tp)


def check_layout(model: LanguageModel, layout: Parallelism) -> None:
    """Raise `Infeasible` if the parallelism does not fit the model.

    >>> from simulators.catalog.model import load_model
    >>> check_layout(load_model("gpt2"), Parallelism(tp=8))
    Traceback (most recent call last):
        ...
    simulators.core.errors.Infeasible: tp_does_not_divide_heads: tp 8, gpt2 has 12 heads
    """
    tp, pp, ep, name = layout.tp, layout.pp, layout.ep, model.name
    if tp < 1 or pp < 1:
        raise Infeasible("no_gpus", f"tp {tp}, pp {pp}")
    if ep < 1 or layout.attention_dp < 1 or layout.width % ep:
        raise Infeasible("ep_does_not_divide_gpus", f"ep {ep}, {layout.width} GPUs of a stage")
    held = model.experts + layout.routing.redundant
    if ep > 1 and (model.experts == 0 or held % ep):
        raise Infeasible("ep_does_not_divide_experts", f"ep {ep}, {name} has {held} experts")
    _check_routing(model, layout)
    if model.heads % tp:
        raise Infeasible("tp_does_not_divide_heads", f"tp {tp}, {name} has {model.heads} heads")
    kv_heads = model.kv_heads
    if tp > 1 and not model.is_latent and max(kv_heads, tp) % min(kv_heads, tp):
        raise Infeasible("tp_does_not_divide_kv_heads", f"tp {tp}, {name} has {kv_heads} KV heads")
    if pp > max(1, model.layers):  # a model may consist of heads alone
        raise Infeasible("pp_exceeds_layers", f"pp {pp}, {name} has {model.layers}")


def _check_routing(model: LanguageModel, layout: Parallelism) -> None:
    routing, counted = layout.routing, layout.routing.counted
    ep, width = layout.ep, layout.width
    if routing.backend != GATHERED and not (ep == width > 1 and layout.attention_dp > 1):
        raise Infeasible(
            "moe_backend_needs_ep",
            f"{routing.backend} sends tokens of groups of ranks to whole experts: attention_dp "
            f"above 1, and ep {width}, that of all GPUs of a stage",
        )
    if counted and routing.skew:
        raise Infeasible("routing_histogram_beside_skew", "one or the other says it")
    if counted and len(counted) != model.experts:
        raise Infeasible(
            "routing_histogram_of_other_experts", f"{len(counted)} of {model.experts} experts"
        )
    if counted and max(counted) * model.top_k > sum(counted) * (1.0 + ROUNDING):
        raise Infeasible(
            "routing_histogram_above_tokens", f"a token takes {model.top_k} experts, each but once"
        )
    if routing.redundant and layout.ep == 1:
        raise Infeasible("redundant_experts_need_ep", "copies go to other GPUs: ep above 1")


def check_blocks(model: LanguageModel, layout: Parallelism, dtype: str) -> None:
    """Raise `Infeasible` if a rank's slice of a matrix splits a block that shares a scale.

    >>> from simulators.catalog.model import load_model
    >>> check_blocks(load_model("qwen3_235b"), Parallelism(tp=8), "fp8_block")
    Traceback (most recent call last):
        ...
    simulators.core.errors.Infeasible: tp_cuts_blocks: expert_ffn 1536 over 8 GPUs is 192, no \
multiple of the 128 numbers that share a scale in fp8_block; tp 4 is the largest that works
    """
    for name, size, ranks, block in _split_sizes(model, layout, dtype):
        if ranks > 1 and size % (ranks * block):
            works = next(
                (n for n in range(layout.tp - 1, 0, -1) if _works(model, layout, n, dtype)), 0
            )
            largest = f"tp {works} is the largest that works" if works else "no smaller tp works"
            raise Infeasible(
                "tp_cuts_blocks",
                f"{name} {size} over {ranks} GPUs is {size / ranks:g}, no multiple of the {block} "
                f"numbers that share a scale in {dtype}; {largest}",
            )


def _works(model: LanguageModel, layout: Parallelism, tp: int, dtype: str) -> bool:
    fewer = replace(layout, tp=tp, ep=math.gcd(layout.ep, tp * layout.attention_dp))
    sizes = _split_sizes(model, fewer, dtype)
    cuts = any(ranks > 1 and size % (ranks * block) for _, size, ranks, block in sizes)
    return model.heads % tp == 0 and not cuts


def _split_sizes(
    model: LanguageModel, layout: Parallelism, dtype: str
) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, size, number of sharing ranks and block size of quantized matrices.

    A width between two products is an output of the first and an input of the second; keys and
    values are only outputs. Layers with a recurrent state are not checked.
    """
    how = precision(dtype)
    known = {n: b for n, b in BLOCKS.items() if not (model.fp8_channels and n == "fp8_block")}
    if block := known.get(how.weights):
        both = math.lcm(block.outputs, block.inputs)
        yield "heads x head_dim", model.heads * model.value_dim, layout.tp, both
        if not model.is_latent:
            ranks = min(layout.tp, model.kv_heads)
            yield "kv_heads x head_dim", model.kv_heads * model.head_dim, ranks, block.outputs
        if not model.experts or model.dense_layers:
            yield "ffn", model.quantised_ffn or model.ffn, layout.tp, both
        if model.shared_experts:
            yield "shared expert_ffn", model.shared_width, layout.tp, both
    block = known.get(how.expert_weights or how.weights)
    if block and block.of_experts and model.experts:
        both = math.lcm(block.outputs, block.inputs)
        yield "expert_ffn", model.expert_ffn, layout.expert_tp, both
