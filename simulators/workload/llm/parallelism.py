"""How a replica is cut across GPUs: heads and widths by tensor, layers by pipeline parallelism.

Under attention data parallelism a stage is several groups of `tp` ranks. Each group attends to
requests of its own; in the experts' layers the tokens of all groups meet. Experts are dealt whole
to `ep` parts of a stage's ranks, and each expert's width is cut over the ranks of a part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulators.catalog.model import LanguageModel
from simulators.core.errors import Infeasible


@dataclass(frozen=True)
class Parallelism:
    """How one replica is cut across GPUs."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1

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
    """The layers that one pipeline stage holds, and whether it holds the ends of the model."""

    dense_layers: int
    expert_layers: int
    has_embedding: bool
    has_head: bool

    @property
    def layers(self) -> int:
        """Layers of either kind."""
        return self.dense_layers + self.expert_layers


def stage_of(model: LanguageModel, cut: Parallelism, stage: int) -> Stage:
    """Return the layers of one stage; layers that do not divide evenly go to the first stages.

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
    if cut.ep > 1 and (model.experts == 0 or model.experts % cut.ep):
        raise Infeasible(
            "ep_does_not_divide_experts", f"ep {cut.ep}, {model.name} has {model.experts} experts"
        )
    if model.heads % cut.tp:
        raise Infeasible(
            "tp_does_not_divide_heads", f"tp {cut.tp}, {model.name} has {model.heads} heads"
        )
    if cut.pp > model.layers:
        raise Infeasible("pp_exceeds_layers", f"pp {cut.pp}, {model.name} has {model.layers}")
