"""Axes and metrics of one pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from simulators.catalog.cluster import AUTO
from simulators.composition.replica import DEFAULT_RUNTIME, EFFECTS, FRAMEWORKS, NOTHING
from simulators.core.contract import asked, choice, fact, metric
from simulators.workload.precision import number_bytes, precision

TRAINING = "training"
GRAPH_PHASES = (TRAINING, "inference")
PHASES = ("prefill", "decode", *GRAPH_PHASES)
PER_ROW = ("phase", "batch", "context", "size", "dp")
"""Fields that differ among rows of one replica."""
_count = partial(choice, default=1, at_least=1, at_most=1 << 20)
_scale = partial(choice, default=1.0, at_least=1 / 64, at_most=64)


@dataclass(frozen=True)
class CompositionPoint:
    """A replica and one batch."""

    model: str = asked("the model, or the path of a config.json", names="model")
    gpu: str = choice("the GPU, or the path of a user's data sheet", names="gpu")
    cluster: str = choice("the machine; auto: the one the GPU is sold in", default=AUTO)
    tp: int = _count("tensor-parallel size: GPUs that split every layer")
    pp: int = _count("pipeline-parallel size: stages of consecutive layers")
    phase: str = asked(
        "prefill of whole prompts, decode of one token per request, training, or inference of a "
        "graph model",
        default="decode",
        known=PHASES,
    )
    batch: int = _count("requests in the batch")
    context: int = asked(
        "tokens per prompt, or context of each decode",
        unit="tokens",
        default=1024,
        at_least=1,
        at_most=1 << 31,
    )
    size: int = asked(
        "input size of a graph model: pixels per side, tokens, or rows looked up; 0: the model's",
        default=0,
        at_least=0,
        at_most=1 << 31,
    )
    dp: int = _count("data-parallel size in training: replicas that reduce gradients")
    dtype: str = choice(
        "precision of the weights and their products", default="fp16", reads=precision
    )
    kv_dtype: str = choice("precision of the KV cache", default="fp16", reads=number_bytes)
    runtime: str = choice(
        "runtime: CUDA graphs (graphs), launches one by one (eager), or an engine",
        default=DEFAULT_RUNTIME,
    )
    release: str = choice(
        "release of an engine as runtime: a version such as 0.8.5 or a date such as 2026-01-31; "
        "empty: the latest",
        default="",
    )
    framework: str = choice(
        f"framework of kernels and messages: {', '.join(FRAMEWORKS)}; auto: the runtime's",
        default=AUTO,
        known=(AUTO, *FRAMEWORKS),
    )
    overlap: float = choice(
        "share of tensor-parallel sums hidden by products", default=0.0, at_least=0, at_most=1
    )
    without: str = asked(
        f"disabled effects, joined by +: {', '.join(EFFECTS)}, or nothing", default=NOTHING
    )
    accelerator: str = choice(
        "an accelerator that computes in place of the GPU, with its memory and links; or nothing",
        default=NOTHING,
    )
    sm_scale: float = _scale("SMs of a what-if device, relative")
    clock_scale: float = _scale("clock of a what-if device, relative")
    bandwidth_scale: float = _scale("memory bandwidth of a what-if device, relative")
    l2_scale: float = _scale("L2 size of a what-if device, relative")


_time = partial(metric, unit="s", page="composition.md#latency-and-its-parts")
_energy = partial(metric, unit="J", page="composition.md#energy-of-a-pass")
_throughput = partial(metric, page="composition.md#throughput")
_memory = partial(metric, unit="B", page="composition.md#memory-of-the-fullest-gpu")


@dataclass(frozen=True)
class CompositionMetrics:
    """Time, energy and memory of one pass."""

    latency_s: float = _time("time of the pass through all stages", better="min")
    tokens_per_s: float = _throughput("tokens processed per second", unit="1/s", better="max")
    energy_j: float = _energy("energy of all GPUs during the pass", better="min")
    energy_per_token_j: float = _energy("energy per token")
    mfu: float = _throughput("useful over peak FLOP/s of all GPUs")
    linear_s: float = _time("linear layers, norms, pointwise, embedding, LM head")
    prefill_attention_s: float = _time("prefill attention")
    decode_attention_s: float = _time("decode attention")
    collective_s: float = _time("collectives of tensor and expert ranks")
    send_recv_s: float = _time("messages between pipeline stages")
    launch_s: float = _time("gaps between kernels, and exposed host work")
    prompt_s: float = _time("host time to tokenize prompts")
    latency_s_lo: float = _time("lower end of its 90 % interval")
    latency_s_hi: float = _time("upper end of its 90 % interval")
    energy_j_lo: float = _energy("lower end of its 90 % interval")
    energy_j_hi: float = _energy("upper end of its 90 % interval")
    weight_bytes: float = _memory("weights on the fullest GPU")
    kv_bytes: float = _memory("KV cache of the batch on the fullest GPU")
    activation_bytes: float = _memory("workspace on the fullest GPU")


@dataclass(frozen=True)
class CompositionFacts:
    """Facts of a point that constraints may use without simulation."""

    gpus: int = fact("GPUs of all replicas", needs=("tp", "pp", "dp"))
    model_parameters: int = fact("weights of the model", needs=("model",))
    hbm_bytes_per_gpu: int = fact("memory of one GPU", unit="B", needs=("gpu",))
