"""Point and metrics of one pass: their fields are axes, columns and documentation."""

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


@dataclass(frozen=True)
class CompositionPoint:
    """A replica and the batch it processes once."""

    model: str = asked("the model, or the path of a config.json", names="model")
    gpu: str = choice("the GPU, or the path of a data sheet of one's own", names="gpu")
    cluster: str = choice("the machine; auto: the one the GPU is sold in", default=AUTO)
    tp: int = choice("GPUs that share every layer", default=1)
    pp: int = choice("groups of GPUs that share the layers out", default=1)
    phase: str = asked(
        "prefill of whole prompts, decode of one token each, training; a graph's: inference",
        default="decode",
        known=PHASES,
    )
    batch: int = choice("requests in the batch", default=1, at_least=1)
    context: int = asked("tokens of each prompt, or read by each decode", default=1024, at_least=1)
    size: int = asked(
        "of a graph model's inputs: pixels a side, tokens, rows looked up; 0: its usual",
        default=0,
        at_least=0,
    )
    dp: int = choice(
        "GPUs that train on batches of their own and sum gradients", default=1, at_least=1
    )
    dtype: str = choice(
        "precision of the weights and their products", default="fp16", reads=precision
    )
    kv_dtype: str = choice("precision of the KV cache", default="fp16", reads=number_bytes)
    runtime: str = choice(
        "how kernels are launched: graphs, or one by one: eager", default=DEFAULT_RUNTIME
    )
    release: str = choice(
        "of an engine that is the runtime: a version such as 0.8.5 or a date such as 2026-01-31; "
        "empty: today's",
        default="",
    )
    framework: str = choice(
        f"whose kernels and messages: {', '.join(FRAMEWORKS)}; auto: the runtime's",
        default=AUTO,
        known=(AUTO, *FRAMEWORKS),
    )
    overlap: float = choice(
        "share of the sums over tensor ranks hidden by products", default=0.0, at_least=0, at_most=1
    )
    without: str = asked(
        f"effects left out, joined by +: {', '.join(EFFECTS)}, or nothing", default=NOTHING
    )
    accelerator: str = choice(
        "an accelerator that computes in the GPU's place, its memory and links kept; or nothing",
        default=NOTHING,
    )
    sm_scale: float = choice("SMs of a what-if device, relative", default=1.0, above=0)
    clock_scale: float = choice("clock of a what-if device, relative", default=1.0, above=0)
    bandwidth_scale: float = choice(
        "memory bandwidth of a what-if device, relative", default=1.0, above=0
    )
    l2_scale: float = choice("L2 size of a what-if device, relative", default=1.0, above=0)


_time = partial(metric, unit="s", page="composition.md#latency-and-its-parts")
_energy = partial(metric, unit="J", page="composition.md#energy-of-a-pass")
_memory = partial(metric, unit="B", page="composition.md#memory-of-the-fullest-gpu")


@dataclass(frozen=True)
class CompositionMetrics:
    """Where the time, the energy and the memory of one pass go."""

    latency_s: float = _time("time of the pass through all stages", better="min")
    tokens_per_s: float = metric(
        "tokens processed over that time",
        unit="1/s",
        better="max",
        page="composition.md#throughput",
    )
    energy_j: float = _energy("energy of all GPUs during the pass", better="min")
    energy_per_token_j: float = _energy("that over the tokens")
    mfu: float = metric("useful over peak FLOP/s of all GPUs", page="composition.md#throughput")
    linear_s: float = _time("linear layers, norms, pointwise, embedding, LM head")
    prefill_attention_s: float = _time("attention of prompts")
    decode_attention_s: float = _time("attention of new tokens")
    collective_s: float = _time("sums over tensor ranks")
    send_recv_s: float = _time("messages between pipeline stages")
    launch_s: float = _time("gaps between kernels and host work that shows")
    prompt_s: float = _time("the host's time to turn text into tokens")
    latency_s_lo: float = _time("lower end of its 90 % interval")
    latency_s_hi: float = _time("upper end of its 90 % interval")
    energy_j_lo: float = _energy("lower end of its 90 % interval")
    energy_j_hi: float = _energy("upper end of its 90 % interval")
    weight_bytes: float = _memory("weights on the fullest GPU")
    kv_bytes: float = _memory("KV cache of the batch on the fullest GPU")
    activation_bytes: float = _memory("workspace on the fullest GPU")


@dataclass(frozen=True)
class CompositionFacts:
    """What a constraint may ask about a point without simulating it."""

    gpus: int = fact("GPUs of all replicas", needs=("tp", "pp", "dp"))
    model_parameters: int = fact("weights of the model", needs=("model",))
    hbm_bytes_per_gpu: int = fact("memory of one GPU", unit="B", needs=("gpu",))
