"""How a replica is cut across GPUs: heads and widths by tensor, layers by pipeline parallelism.

Under attention data parallelism a stage is several groups of `tp` ranks. Each group attends to
requests of its own; in the experts' layers the tokens of all groups meet. Experts are dealt whole
to `ep` parts of a stage's ranks, and each expert's width is cut over the ranks of a part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulators.catalog.model import LanguageModel
from simulators.core.errors import Infeasible
from simulators.workload.llm.routing import GATHERED, ROUNDING, USUAL, Routing
from simulators.workload.precision import BLOCKS, precision


@dataclass(frozen=True)
class Parallelism:
    """How one replica is cut across GPUs."""

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
        """GPUs over which the width of an expert is cut."""
        return self.width // self.ep


@dataclass(frozen=True)
class Stage:
    """Layers of a pipeline stage, and whether the stage holds the embedding or the LM head."""

    dense_layers: int
    expert_layers: int
    has_embedding: bool
    has_head: bool

    @property
    def layers(self) -> int:
        """Layers of either kind."""
        return self.dense_layers + self.expert_layers


def stage_of(model: LanguageModel, cut: Parallelism, stage: int) -> Stage:
    """Return the layers of a stage; the first stages hold the remainder.

    >>> from simulators.catalog.model import load_model
    >>> stage_of(load_model("deepseek_v3"), Parallelism(tp=8, pp=4), 0)
    Stage(dense_layers=3, expert_layers=13, has_embedding=True, has_head=False)
    """
    each, extra = divmod(model.layers, cut.pp)
    first = stage * each + min(stage, extra)
    last = first + each + (stage < extra)
    dense_until = model.dense_layers if model.experts else model.layers
    dense = max(0, min(last, dense_until) - first)
    return Stage(
        dense_layers=dense,
        expert_layers=last - first - dense,
        has_embedding=stage == 0,
        has_head=stage == cut.pp - 1,
    )


def attending_layers(model: LanguageModel, part: Stage) -> float:
    """Return the layers of a stage that see all tokens before: an even share of every stage's.

    >>> from simulators.catalog.model import load_model
    >>> model = load_model("gpt_oss_120b")
    >>> attending_layers(model, stage_of(model, Parallelism(), 0))
    18.0
    """
    return part.layers / model.attention_every if model.attention_every > 1 else part.layers


def kv_heads_per_gpu(model: LanguageModel, cut: Parallelism) -> int:
    """Return the key-value heads on one GPU; where there are fewer heads than GPUs, copies.

    >>> from simulators.catalog.model import load_model
    >>> kv_heads_per_gpu(load_model("llama2_70b"), Parallelism(tp=16))
    1
    """
    return math.ceil(model.kv_heads / cut.tp)


def check_cut(model: LanguageModel, cut: Parallelism) -> None:
    """Raise `Infeasible` if the model cannot be cut this way.

    >>> from simulators.catalog.model import load_model
    >>> check_cut(load_model("gpt2"), Parallelism(tp=8))
    Traceback (most recent call last):
        ...
    simulators.core.errors.Infeasible: tp_does_not_divide_heads: tp 8, gpt2 has 12 heads
    """
    if cut.tp < 1 or cut.pp < 1:
        raise Infeasible("no_gpus", f"tp {cut.tp}, pp {cut.pp}")
    if cut.ep < 1 or cut.attention_dp < 1 or cut.width % cut.ep:
        raise Infeasible("ep_does_not_divide_gpus", f"ep {cut.ep}, {cut.width} GPUs of a stage")
    held = model.experts + cut.routing.redundant
    if cut.ep > 1 and (model.experts == 0 or held % cut.ep):
        raise Infeasible(
            "ep_does_not_divide_experts", f"ep {cut.ep}, {model.name} has {held} experts"
        )
    _check_routing(model, cut)
    if model.heads % cut.tp:
        raise Infeasible(
            "tp_does_not_divide_heads", f"tp {cut.tp}, {model.name} has {model.heads} heads"
        )
    if cut.pp > max(1, model.layers):  # heads alone have none
        raise Infeasible("pp_exceeds_layers", f"pp {cut.pp}, {model.name} has {model.layers}")


def _check_routing(model: LanguageModel, cut: Parallelism) -> None:
    """Raise `Infeasible` if the experts cannot be reached, copied, or counted as is asked."""
    routing, counted = cut.routing, cut.routing.counted
    if routing.backend != GATHERED and not (cut.ep == cut.width > 1 and cut.attention_dp > 1):
        raise Infeasible(
            "moe_backend_needs_ep",
            f"{routing.backend} sends tokens of groups of ranks to whole experts: attention_dp "
            f"above 1, and ep {cut.width}, that of all GPUs of a stage",
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
    if routing.redundant and cut.ep == 1:
        raise Infeasible("redundant_experts_need_ep", "copies go to other GPUs: ep above 1")


def check_blocks(model: LanguageModel, cut: Parallelism, dtype: str) -> None:
    """Raise `Infeasible` if a rank's slice of a matrix ends within a block that shares a scale.

    >>> from simulators.catalog.model import load_model
    >>> check_blocks(load_model("qwen3_235b"), Parallelism(tp=8), "fp8_block")
    Traceback (most recent call last):
        ...
    simulators.core.errors.Infeasible: tp_cuts_blocks: expert_ffn 1536 over 8 GPUs is 192, no \
multiple of the 128 numbers that share a scale in fp8_block; tp 4 is the largest that works
    """
    for name, size, ranks, block in _split_sizes(model, cut, dtype):
        if ranks > 1 and size % (ranks * block):
            works = next((n for n in range(cut.tp - 1, 0, -1) if _works(model, cut, n, dtype)), 0)
            largest = f"tp {works} is the largest that works" if works else "no smaller tp works"
            raise Infeasible(
                "tp_cuts_blocks",
                f"{name} {size} over {ranks} GPUs is {size / ranks:g}, no multiple of the {block} "
                f"numbers that share a scale in {dtype}; {largest}",
            )


def _works(model: LanguageModel, cut: Parallelism, tp: int, dtype: str) -> bool:
    """Return whether fewer tensor ranks divide the heads and cut no block."""
    fewer = replace(cut, tp=tp, ep=math.gcd(cut.ep, tp * cut.attention_dp))
    sizes = _split_sizes(model, fewer, dtype)
    cuts = any(ranks > 1 and size % (ranks * block) for _, size, ranks, block in sizes)
    return model.heads % tp == 0 and not cuts


def _split_sizes(
    model: LanguageModel, cut: Parallelism, dtype: str
) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, size, number of sharing ranks and block size of quantised matrices.

    Widths between two products are outputs of the first and inputs of the second; keys and values
    are outputs alone. Latent attention's have the sizes of heads, layers with a state go without.
    """
    how = precision(dtype)
    known = {n: b for n, b in BLOCKS.items() if not (model.fp8_channels and n == "fp8_block")}
    if block := known.get(how.weights):
        both = math.lcm(block.outputs, block.inputs)
        head = model.v_head_dim if model.is_latent else model.head_dim
        yield "heads x head_dim", model.heads * head, cut.tp, both
        if not model.is_latent:
            ranks = min(cut.tp, model.kv_heads)
            yield "kv_heads x head_dim", model.kv_heads * head, ranks, block.outputs
        if not model.experts or model.dense_layers:
            yield "ffn", model.quantised_ffn or model.ffn, cut.tp, both
        if model.shared_experts:
            yield "shared expert_ffn", model.shared_experts * model.expert_ffn, cut.tp, both
    block = known.get(how.expert_weights or how.weights)
    if block and block.of_experts and model.experts:
        both = math.lcm(block.outputs, block.inputs)
        yield "expert_ffn", model.expert_ffn, cut.expert_tp, both
