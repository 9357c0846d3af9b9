"""Axes and metrics of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from simulators.catalog.cluster import AUTO
from simulators.catalog.price import DEFAULT
from simulators.core.contract import asked, choice, fact, metric
from simulators.training.job import (
    ATTENTIONS,
    CONTEXT_EXCHANGES,
    CROSS_ENTROPIES,
    EXPERT_OVERLAPS,
    FLASH,
    FUSED,
    FUSIONS,
    LORA_TARGETS,
    ZIGZAG,
    recompute_of,
)
from simulators.training.schedule import SCHEDULES
from simulators.training.stages import read_layout
from simulators.training.stragglers import GPU_SPREAD
from simulators.training.stragglers import KINDS as STRAGGLERS

DTYPES = ("bf16", "fp16", "fp8", "fp4")
GRADIENTS = ("fp32", "bf16", "fp8", "int4")
ACTIVATION_DTYPES = ("bf16", "fp8")
MOMENTS = ("fp32", "bf16")

_degree = partial(choice, at_least=1, at_most=1 << 16)


@dataclass(frozen=True)
class TrainingPoint:
    """A training run: model, GPUs, parallelism, kernels and number of tokens."""

    model: str = asked("the model, or the path of a config.json", names="model")
    gpu: str = choice("the GPU, or the path of a user's data sheet", names="gpu")
    cluster: str = choice("the machine; auto: the one the GPU is sold in", default=AUTO)
    tp: int = _degree("tensor-parallel size: GPUs that split every layer", default=1)
    pp: int = _degree("pipeline-parallel size: stages of consecutive layers", default=1)
    dp: int = _degree("data-parallel size: replicas that reduce their gradients", default=1)
    cp: int = _degree("context-parallel size: GPUs that split every sequence", default=1)
    ep: int = _degree("expert-parallel size, within data, context and tensor ranks", default=1)
    expert_tp: int = _degree("tensor-parallel size of every expert", default=1)
    chunks: int = _degree(
        "virtual pipeline stages per rank, if interleaved; always 2 for dualpipe_v", default=1
    )
    first_stage_layers: int = choice(
        "layers of the first pipeline rank; 0: as many as the others",
        default=0,
        at_least=0,
    )
    last_stage_layers: int = choice(
        "layers of the last pipeline rank; 0: as many as the others", default=0, at_least=0
    )
    pipeline_layout: str = choice(
        "content of every chunk of a pipeline in Megatron-LM's notation, such as Et*3|(tt|)*29mL: "
        "embedding, layers, multi-token prediction, loss; empty: an even split",
        default="",
        reads=read_layout,
    )
    batch: int = asked("global batch size in sequences", default=1024, at_least=1)
    micro_batch: int = choice("micro-batch size in sequences", default=1, at_least=1)
    sequence: int = asked("sequence length in tokens", default=4096, at_least=1)
    dtype: str = choice("precision of the linear layers' products", default="bf16", known=DTYPES)
    schedule: str = choice(
        f"pipeline schedule: {', '.join(SCHEDULES)}", default="1f1b", known=SCHEDULES
    )
    recompute: str = choice(
        "activation recomputation: none, selective (attention), elementwise (norms and "
        "activations, but no product), selective_op (torchtitan's: every other product), full "
        "layers, or Megatron-LM's modules joined by +: core_attn, layernorm, moe_act, "
        "mla_up_proj, mlp, moe",
        default="selective",
        reads=recompute_of,
    )
    recompute_layers: int = choice(
        "recomputed layers per pipeline rank under full; 0: all layers", default=0, at_least=0
    )
    activation_dtype: str = choice(
        "precision of activations kept between two products of a feed-forward block",
        default="bf16",
        known=ACTIVATION_DTYPES,
    )
    offload_layers: int = choice(
        "layers per pipeline rank whose activations wait in host memory", default=0, at_least=0
    )
    zero: int = choice(
        "ZeRO stage: 0 none, 1 optimizer states, 2 and gradients, 3 and weights",
        default=1,
        at_least=0,
        at_most=3,
    )
    shard_ranks: int = choice(
        "ranks of a ZeRO sharding group; 0: all data and context ranks", default=0, at_least=0
    )
    sequence_parallel: bool = choice("whether tensor ranks split norms too", default=True)
    attention: str = choice(
        "kernels of attention: the GPU's best (flash), FlashAttention-2 (flash2), products that "
        "store all scores (unfused), or the GPU's best fp8 kernel (flash_fp8)",
        default=FLASH,
        known=ATTENTIONS,
    )
    fusion: str = choice(
        "kernels between products: fused, or PyTorch's eager kernels", default=FUSED, known=FUSIONS
    )
    cross_entropy: str = choice(
        "kernels of the loss: fused, or PyTorch's, which keep fp32 copies of all logits",
        default=CROSS_ENTROPIES[0],
        known=CROSS_ENTROPIES,
    )
    cuda_graphs: bool = choice(
        "whether whole steps are replayed as CUDA graphs, so that no layer waits for launches",
        default=False,
    )
    routing_skew: float = asked(
        "imbalance of expert routing: the exponent of Zipf's law; 0: uniform",
        default=0.0,
        at_least=0.0,
    )
    capacity_factor: float = choice(
        "capacity of an expert over the mean load; 0: no token is dropped",
        default=0.0,
        at_least=0.0,
    )
    dispatch_dtype: str = choice(
        "precision of tokens on their way to experts; results return in 16 bits",
        default="bf16",
        known=ACTIVATION_DTYPES,
    )
    expert_overlap: str = choice(
        "whether messages to experts overlap the compute of another micro-batch (interleaved, "
        "dualpipe, or no pipeline); auto: where experts are on several nodes",
        default=EXPERT_OVERLAPS[0],
        known=EXPERT_OVERLAPS,
    )
    context_exchange: str = choice(
        "exchange of keys and values between context ranks",
        default=ZIGZAG,
        known=CONTEXT_EXCHANGES,
        acts_if={"cp": ()},
    )
    lora_rank: int = asked(
        "rank of LoRA adapters, other weights frozen; 0: all weights are trained",
        default=0,
        at_least=0,
    )
    lora_targets: str = asked(
        "products with adapters: attention's projections, or all of a dense layer",
        default=LORA_TARGETS[0],
        known=LORA_TARGETS,
        acts_if={"lora_rank": ()},
    )
    gradient_dtype: str = choice(
        "precision of gradient communication; fp8 and int4 add compression kernels",
        default="fp32",
        known=GRADIENTS,
    )
    optimizer_dtype: str = choice(
        "precision of Adam's two moments; weights have an fp32 copy besides",
        default="fp32",
        known=MOMENTS,
    )
    offload: bool = choice(
        "whether host memory holds optimizer states and host CPUs update weights", default=False
    )
    host_adam_per_s: float = asked(
        "weights updated per second by a node's CPUs: 10e9 in 2.57 s (Ren et al., ZeRO-Offload, "
        "2021, two Xeon 8168)",
        unit="1/s",
        default=3.9e9,
        above=0,
        acts_if={"offload": ()},
    )
    overlap: bool = choice(
        "whether gradient reduction overlaps the backward pass; of ZeRO 3 also gathers of weights",
        default=True,
    )
    tp_overlap: bool = choice(
        "whether, with `overlap`, tensor-parallel messages overlap the products around them "
        "(Transformer Engine, torchtitan's asynchronous TP)",
        default=True,
    )
    mtp_layers: int = asked(
        "layers that predict a further token each (multi-token prediction), with the head",
        default=0,
        at_least=0,
    )
    oom_limit: float = asked(
        "largest accepted probability that a rank runs out of memory; 0.5: the predicted memory "
        "must fit",
        default=0.5,
        above=0,
        at_most=1,
    )
    tokens: float = asked("tokens of the whole run", default=1e12, above=0)
    target_loss: float = asked("target loss, instead of `tokens`; 0: none", default=0.0, at_least=0)
    token_bytes: float = asked(
        "bytes read from storage per token of a batch: 4 for text", unit="B", default=4.0, above=0
    )
    storage_bytes_per_s: float = asked(
        "storage bandwidth of a node: 2 TB/s over 2,048 nodes (Grattafiori et al., 2024)",
        unit="B/s",
        default=1e9,
        above=0,
    )
    gpu_mtbf_h: float = asked(
        "mean time between failures of a GPU: 419 failures in 54 days of 16,384 "
        "(Grattafiori et al., 2024)",
        unit="h",
        default=50_700.0,
        above=0,
    )
    checkpoint_s: float = asked(
        "pause of training per checkpoint; 0: bytes over storage bandwidth",
        unit="s",
        default=0.0,
        at_least=0,
    )
    restart_s: float = asked(
        "seconds from a failure until training resumes", unit="s", default=900.0, at_least=0
    )
    gpu_spread: float = asked(
        "relative standard deviation of GPU speed: fast and slow GPUs of a cluster differ by 8 %, "
        "four deviations (Sinha et al., SC 2022)",
        default=0.02,
        at_least=0,
        at_most=0.5,
    )
    stragglers: str = asked(
        "delays of `step_mean_s`, `step_p50_s` and `step_p95_s`: those of the slowest GPU "
        "(gpu_spread), or those of whole jobs in production (Lin et al., OSDI 2025)",
        default=GPU_SPREAD,
        known=STRAGGLERS,
    )
    prices: str = asked("the price list", names="price", default=DEFAULT)


_time = partial(metric, unit="s", page="training.md#step-time-and-its-parts")
_spread = partial(metric, unit="s", page="training.md#stragglers")
_memory = partial(metric, unit="B", page="training.md#memory-of-the-fullest-rank")
_rate = partial(metric, page="training.md#rates")
_run = partial(metric, page="training.md#a-whole-run")


@dataclass(frozen=True)
class TrainingMetrics:
    """Time, memory, energy and cost of a training step and of the run."""

    step_s: float = _time("time of one step", better="min")
    step_s_lo: float = _time("lower end of its 90 % interval")
    step_s_hi: float = _time("upper end of its 90 % interval")
    step_mean_s: float = _spread("expected step time over draws of `stragglers`")
    step_p50_s: float = _spread("median step time over draws of `stragglers`")
    step_p95_s: float = _spread("95th percentile of the step time over draws of `stragglers`")
    compute_s: float = _time("kernel time of a rank")
    bubble_s: float = _time("pipeline bubble: waits of a rank for other stages")
    tp_comm_s: float = _time("exposed tensor-parallel communication")
    cp_comm_s: float = _time("exposed context-parallel communication")
    ep_comm_s: float = _time("exposed expert all-to-all communication")
    dp_comm_s: float = _time("exposed data-parallel communication of gradients and weights")
    straggler_s: float = _time("straggler wait: wait for the slowest data rank")
    optimizer_s: float = _time(
        "optimizer update, on GPUs or hosts, and wait for the host between steps"
    )
    loading_s: float = _time("wait for the batch from storage")
    tokens_per_s: float = _rate("tokens of all replicas per second", unit="1/s", better="max")
    tokens_per_s_per_gpu: float = _rate("tokens per second and GPU", unit="1/s", better="max")
    flops_per_s_per_gpu: float = _rate("useful FLOPs per second and GPU", unit="FLOP/s")
    mfu: float = _rate("useful FLOP/s over the peak FLOP/s of the products' precision")
    bubble_share: float = _rate("pipeline bubble over the pipeline's time")
    memory_bytes: float = _memory("memory of the fullest rank", better="min")
    oom_probability: float = _memory(
        "probability that the fullest rank runs out of memory", unit="", better="min"
    )
    trained_parameters: float = _memory(
        "number of trained weights: all of the model, or the adapters", unit=""
    )
    weight_bytes: float = _memory("weights on the fullest rank")
    gradient_bytes: float = _memory("gradients on the fullest rank")
    optimizer_state_bytes: float = _memory("optimizer states on the fullest rank")
    activation_bytes: float = _memory("activations saved for the backward pass")
    workspace_bytes: float = _memory("logits and recomputed activations of a layer")
    host_bytes: float = _memory("host memory per node for offloaded states")
    energy_j: float = _run("energy of all GPUs in a step", unit="J")
    run_tokens: float = _run("tokens of the run: `tokens`, or enough for `target_loss`")
    loss: float = _run("final loss expected by a scaling law; an assumption; null with LoRA")
    checkpoint_every_s: float = _run("optimal time between checkpoints", unit="s")
    checkpoint_pause_s: float = _run("pause of the run per checkpoint", unit="s")
    run_s: float = _run("time of the whole run, failures included", unit="s", better="min")
    goodput_share: float = _run("share of the run's time in steps that no failure undoes")
    run_energy_j: float = _run("energy of all GPUs in the run", unit="J")
    run_cost_usd: float = _run("GPU-hours of the run at the list's price", unit="$", better="min")
    run_carbon_g: float = _run("CO2 of the run at the list's grid and site", unit="g")


@dataclass(frozen=True)
class TrainingFacts:
    """Facts of a point that constraints may use without simulation."""

    gpus: int = fact("GPUs of all replicas", needs=("tp", "pp", "dp", "cp"))
    model_parameters: int = fact("weights of the model", needs=("model",))
    batch_tokens: int = fact("tokens of a step", needs=("batch", "sequence"))
    micro_batches: float = fact(
        "micro-batches of a replica in a step", needs=("batch", "dp", "micro_batch")
    )
