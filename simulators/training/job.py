"""The training job: fields that all rows of a batch share, the plans of its rows, fitted constants.

A replica's ranks are numbered tensor ranks first, then context, data and pipeline ranks, as
Megatron-LM places them: neighbors share the most traffic. Experts are distributed over ranks that
otherwise hold different tokens: tensor ranks of a layer's experts first, then `ep` of them.

Constants are fitted to measured training steps: one set for all models and GPUs. A pace is the time
of a kernel in a training step over its time alone, at the lower clock of a warm GPU. A share is the
part of a message that stays exposed although there is compute to hide it behind. Messages of tensor
and expert ranks are exposed unless the framework pipelines them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.cluster import Cluster
from simulators.catalog.gpu import Gpu
from simulators.catalog.model import LanguageModel
from simulators.core.calibration import read_calibration
from simulators.core.errors import Infeasible, UnknownNameError
from simulators.core.folder import once
from simulators.core.jit import Floats, Ints
from simulators.evidence.intervals import UNKNOWN
from simulators.training.schedule import DUALPIPE, PAIRING, stage_of
from simulators.training.stages import PipelinedModel, chunk_contents
from simulators.workload.llm.parallelism import Parallelism, check_layout, skewed_share
from simulators.workload.llm.transformer import TARGETS, adapter_numbers

CALIBRATION = Path(__file__).parent / "calibration" / "steps.toml"

UNKNOWN_BAND = 1.0 / UNKNOWN, UNKNOWN
"""Interval of steps on architectures on which no step was measured."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Fitted constants: times of a training step beyond those of kernels and messages alone."""

    products: Mapping[str, float] = field(default_factory=dict)  # pace, by architecture
    formats: Mapping[str, float] = field(default_factory=dict)  # pace of fp8 and fp4 products
    attention: Mapping[str, float] = field(default_factory=dict)  # by kernel and architecture
    streams: Mapping[str, float] = field(default_factory=dict)  # pace, by fusion
    step_s: float = 0.0  # wait for the host between steps
    layer_s: float = 0.0  # wait for launches, per layer and pass
    mixture_s: float = 0.0  # the same of expert layers, whose host waits for counts of tokens
    launch_s: float = 0.0  # launch of one kernel or message of a layer
    exposed: Mapping[str, float] = field(default_factory=dict)  # share, by purpose of messages
    late: float = 0.0  # straggler wait per doubling of the data ranks, as a share of the step
    band: tuple[float, float] = UNKNOWN_BAND  # 90 % interval of measured over predicted

    def band_on(self, gpu: Gpu) -> tuple[float, float]:
        """Return the 90 % interval of measured over predicted steps on a GPU.

        Steps were measured on the architectures whose products have a fitted pace. On others the
        interval is that of kernels without any measurement.

        >>> from simulators.catalog.gpu import load_gpu
        >>> load_constants().band_on(load_gpu("tpu_v5p"))
        (0.5, 2.0)
        """
        return self.band if gpu.architecture in self.products else UNKNOWN_BAND


def load_constants() -> Constants:
    """Return the fitted constants.

    Raises:
        UserError: the calibration is unreadable or was changed by hand.
    """
    return constants_of(once(read_calibration, CALIBRATION)["step"])


def constants_of(table: Mapping[str, Any]) -> Constants:
    """Return the constants of a calibration's table."""
    return Constants(**{f.name: table[f.name] for f in fields(Constants) if f.name in table})


MODULES = ("core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe")
"""Modules that Megatron-LM recomputes one by one (`--recompute-modules`): attention without its
projections, norms, the activation of any feed-forward block, MLA's up-projections, dense
feed-forward blocks, and expert layers behind their norm."""
CORE_ATTN, LAYERNORM, ACTIVATIONS, MLA_UP, MLP, MOE = (1 << n for n in range(len(MODULES)))
FULL, OPS = 1 << len(MODULES), 2 << len(MODULES)
NONE, SELECTIVE, ELEMENTWISE = 0, CORE_ATTN, LAYERNORM | ACTIVATIONS

RECOMPUTES = {
    "none": NONE,
    "selective": SELECTIVE,
    "elementwise": ELEMENTWISE,
    "selective_op": OPS,
    "full": FULL,
}
"""Words for usual sets of modules. `full` recomputes whole layers, `selective_op` all but attention
and every other product, as torchtitan does by default."""


def recompute_of(word: str) -> int:
    """Return the bits of recomputed modules, which are joined by `+`, as in `mla_up_proj+mlp`.

    Raises:
        UserError: a module is unknown.

    >>> recompute_of("none"), recompute_of("layernorm+moe_act") == recompute_of("elementwise")
    (0, True)
    """
    if word in RECOMPUTES:
        return RECOMPUTES[word]
    names = word.split("+")
    for name in names:
        if name not in MODULES:
            alone = RECOMPUTES if len(names) == 1 else ()  # words are not combined
            raise UnknownNameError("recompute", name, (*alone, *MODULES))
    return sum(1 << i for i, name in enumerate(MODULES) if name in names)


def modules_of(recompute: int) -> tuple[str, ...]:
    """Return the names of recomputed modules.

    >>> modules_of(recompute_of("elementwise"))
    ('layernorm', 'moe_act')
    """
    return tuple(name for n, name in enumerate(MODULES) if recompute >> n & 1)


CROSS_ENTROPIES = ("fused", "eager")
"""Kernels of the loss: one pass over the logits (Megatron-LM, Transformer Engine), or PyTorch's."""

DISPATCHERS = ("flex", "alltoall")
FLEX, ALLTOALL = DISPATCHERS
"""Messages to experts: DeepEP's or HybridEP's kernels, which send a token once to each rank or node
with one of its experts, or NCCL's all-to-all, which sends a copy to each expert (Megatron-Core,
`--moe-token-dispatcher-type`)."""

EXPERT_OVERLAPS = ("auto", "on", "off")
"""Whether messages to experts overlap the compute of another micro-batch; auto: where experts are
on several nodes, as recipes do."""

SHARED_GRADIENTS = 2
"""First ZeRO stage that shards gradients."""


@dataclass(frozen=True, kw_only=True)
class Plans:
    """Plans of the rows of a job; one array entry per row."""

    pp: Ints
    dp: Ints
    chunks: Ints  # of layers on a rank; 1 unless interleaved or folded
    micro_batch: Floats  # sequences
    micro_batches: Ints  # of a pipeline in a step
    schedule: Ints  # position in `schedule.SCHEDULES`
    recompute: Ints  # bits of `MODULES`, or `FULL`
    again: Floats  # share of a rank's layers that are fully recomputed
    zero: Ints  # ZeRO stage: 0 none, 1 optimizer states, 2 gradients, 3 weights
    shards: Ints  # ranks of a sharding group
    gradient_bytes: Floats  # of one number of a communicated gradient
    overlaps: Ints  # whether gradient reduction overlaps the backward pass
    tp_overlaps: Ints  # whether tensor-parallel messages overlap the products around them
    offloads: Ints  # whether optimizer states are on the host
    host_adam_per_s: Floats  # weights that a node's CPUs update
    moment_bytes: Floats  # of one number of Adam's moments
    offloaded: Floats  # layers of a rank whose activations are on the host
    first: Ints  # layers of the first pipeline rank; 0: as many as the others
    last: Ints  # layers of the last pipeline rank

    @property
    def size(self) -> int:
        """Number of rows."""
        return int(self.pp.size)

    @property
    def models(self) -> Ints:
        """Copies of the model that run through each pipeline."""
        return np.where(self.schedule == DUALPIPE, 2, 1)

    def ranks(self, model: PipelinedModel) -> Ints:
        """Return the ranks whose memory is compared, (ranks, rows).

        The first, second and last rank, or all ranks under a layout, and of models with a few dense
        layers before those with experts.
        """
        if model.layout or 0 < model.dense < model.layers:
            return np.minimum(np.arange(self.pp.max())[:, None], self.pp - 1)
        return np.stack([np.zeros_like(self.pp), np.minimum(1, self.pp - 1), self.pp - 1])

    def stages(self, model: PipelinedModel) -> Ints:
        """Return what `ranks` hold, (ranks, rows, 5): see `stages.chunk_contents`."""
        shapes = (self.schedule, self.pp, self.chunks, self.first, self.last)
        keys = functools.reduce(lambda key, column: (key << 12) + column, shapes)
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        kinds = np.stack([column[first] for column in shapes], axis=1).tolist()
        ranks = self.ranks(model)[:, first].T.tolist()
        held = [rank_contents(model, *kind, tuple(r)) for kind, r in zip(kinds, ranks, strict=True)]
        return np.array(held, np.int64)[which].transpose(1, 0, 2)

    def where(self, chosen: NDArray[np.bool_] | Ints) -> Plans:
        """Return a selection of the rows."""
        return Plans(**{name: column[chosen] for name, column in vars(self).items()})


@functools.lru_cache(maxsize=4096)
def rank_contents(
    model: PipelinedModel,
    schedule: int,
    pp: int,
    chunks: int,
    first: int,
    last: int,
    ranks: tuple[int, ...],
) -> Ints:
    """Return what some ranks hold, in the columns of `chunk_contents`: (ranks, 5)."""
    number = pp * chunks
    every = chunk_contents(model, pp, chunks, first, last)
    copies = range(2 if schedule == DUALPIPE else chunks)
    stages = [[stage_of(schedule, c, rank, pp) % number for c in copies] for rank in ranks]
    return np.array([every[mine].sum(axis=0) for mine in stages], np.int64)


ATTENTIONS = ("flash", "flash2", "unfused", "flash_fp8")
FLASH, FLASH2, UNFUSED, FLASH_FP8 = ATTENTIONS
"""Kernels of attention: the best one for the GPU; FlashAttention-2, written for Ampere; separate
products, softmax and dropout that store all scores, as until 2022; or the best fp8 kernel, in both
directions."""

LORA_TARGETS = TARGETS
"""Products with adapters: projections of attention, or all products of a dense layer."""

CONTEXT_EXCHANGES = ("ring", "zigzag", "ulysses", "gather")
RING, ZIGZAG, ULYSSES, GATHER = CONTEXT_EXCHANGES
RINGS = (RING, ZIGZAG)
"""Exchanges in which context ranks attend to the keys of one rank at a time."""

FUSIONS = ("fused", "eager")
FUSED, EAGER = FUSIONS
"""Kernels between products: one fused kernel, or PyTorch's kernels one after another."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Fields that rows with the same layer times have in common."""

    model: LanguageModel
    gpu: Gpu
    cluster: Cluster
    dtype: str = "bf16"
    sequence: int = 2048
    tp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int = 1
    sequence_parallel: bool = True  # norms are split over tensor ranks
    attention: str = FLASH
    fusion: str = FUSED
    context_exchange: str = "zigzag"
    lora_rank: int = 0  # of adapters, all else frozen; 0: none
    lora_targets: str = LORA_TARGETS[0]
    routing_skew: float = 0.0  # Zipf's exponent of how tokens prefer experts
    capacity_factor: float = 0.0  # of experts, beyond which tokens are dropped; 0: none are
    cuda_graphs: bool = False  # replay whole steps, so that no layer waits for launches
    layer_graphs: bool = False  # replay layers alone: what is between steps waits for its host
    activation_dtype: str = "bf16"  # of what is kept between two products of a block
    dispatch_dtype: str = "bf16"  # of tokens on their way to experts; results return in 16 bits
    dispatcher: str = FLEX  # of tokens to experts: one of `DISPATCHERS`
    expert_overlap: str = EXPERT_OVERLAPS[0]
    cross_entropy: str = CROSS_ENTROPIES[0]
    mtp_layers: int = 0  # layers that predict a further token, each with a head
    pipeline_layout: str = ""  # content of each chunk of a pipeline; empty: an even split
    predicted_share: float = 1.0  # share of tokens with logits; small for masked language models

    @property
    def pipelined(self) -> PipelinedModel:
        """Layers that pipelines run."""
        model = self.model
        dense = model.layers - model.expert_layers
        return PipelinedModel(model.layers, dense, self.mtp_layers, self.pipeline_layout)

    @property
    def groups(self) -> int:
        """Groups of tensor ranks that share an expert layer."""
        return max(1, self.ep * self.expert_tp // self.tp)

    @property
    def layout(self) -> Parallelism:
        """Parallelism of one pipeline stage."""
        if self.ep * self.expert_tp == 1:
            return Parallelism(tp=self.tp)
        return Parallelism(tp=self.tp, ep=self.ep, attention_dp=self.groups)

    @property
    def busiest(self) -> float:
        """Tokens of the busiest expert rank over the mean tokens per rank."""
        return skewed_share(
            self.model.experts, self.model.top_k, self.ep, self.routing_skew, self.capacity_factor
        )

    @property
    def trained_share(self) -> float:
        """Share of the weights that is trained: all, or the adapters' weights over the model's."""
        model = self.model
        adapters = self.lora_rank * adapter_numbers(model, self.lora_targets)
        return adapters / model.parameters if self.lora_rank else 1.0

    @property
    def fuses_experts(self) -> bool:
        """Whether experts run as one fused block (Transformer Engine's grouped MLP in CuTe DSL).

        Only this block leaves the tokens per expert on the GPU, as replay of whole steps needs.
        """
        on_blackwell = self.gpu.architecture == "blackwell" and self.dtype == "fp8"
        return self.cuda_graphs and on_blackwell and self.model.experts > 0

    @property
    def norm_ranks(self) -> int:
        """Ranks that split norms and pointwise kernels (sequence parallelism)."""
        return self.tp if self.sequence_parallel else 1


def hides_expert_exchange(job: Job, plans: Plans) -> NDArray[np.bool_]:
    """Return per row whether expert all-to-all overlaps the compute of another micro-batch.

    Megatron-Core pairs the forward pass of a chunk with the backward pass of another chunk
    (`--overlap-moe-expert-parallel-comm`). This needs an interleaved pipeline or no pipeline, and
    no fully recomputed layer. Dualpipe pairs passes in the same way.
    """
    if job.expert_overlap == "off":
        return np.zeros(plans.size, np.bool_)
    pairs = (plans.chunks > 1) | np.isin(plans.schedule, PAIRING)
    if job.expert_overlap == "auto":
        pairs &= job.ep * job.expert_tp > job.cluster.gpus_per_node
    else:
        pairs |= (plans.pp == 1) & (plans.micro_batches > 1)
    return np.asarray((plans.overlaps > 0) & pairs & (plans.recompute != FULL), np.bool_)


def check_job(job: Job) -> None:
    """Raise `Infeasible` if the parallelism does not fit the model, or the GPU lacks a dtype."""
    ranks = job.ep * job.expert_tp
    if ranks > 1 and ranks % job.tp and job.tp % ranks:
        raise Infeasible(
            "experts_do_not_divide_ranks", f"ep {job.ep} x expert_tp {job.expert_tp}, tp {job.tp}"
        )
    check_layout(job.model, job.layout)
    if job.model.bare_layers:
        raise Infeasible("layers_without_feed_forward", f"{job.model.name} has such layers")
    if job.lora_rank and job.model.is_latent:
        raise Infeasible("adapters_not_modelled", f"latent attention of {job.model.name}")
    if job.lora_rank and job.lora_targets == LORA_TARGETS[1] and job.model.experts:
        raise Infeasible("adapters_not_modelled", f"experts of {job.model.name}, lora_targets all")
    if job.model.index_heads or job.model.compress_ratios:
        raise Infeasible(
            "sparse_attention_not_trained", f"the backward pass of {job.model.name} is not modelled"
        )
    if job.sequence % job.cp:
        raise Infeasible("cp_does_not_divide_sequence", f"cp {job.cp}, {job.sequence} tokens")
    for dtype in ("bf16", job.dtype, "fp8" if job.attention == FLASH_FP8 else "bf16"):
        if dtype not in job.gpu.peak_flops:
            has = ", ".join(job.gpu.peak_flops)
            raise Infeasible("dtype_not_supported", f"gpu '{job.gpu.name}' has {has}, not {dtype}")
