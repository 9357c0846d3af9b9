"""What one pass is asked by, and what it answers: fields are axes, columns and documentation."""

from __future__ import annotations

from dataclasses import dataclass

from simulators.catalog.cluster import AUTO
from simulators.collectives.protocols import LIBRARIES
from simulators.composition.replica import DEFAULT_RUNTIME, EFFECTS, NOTHING
from simulators.core.contract import choice, fact, metric

TRAINING = "training"
GRAPH_PHASES = (TRAINING, "inference")
PHASES = ("prefill", "decode", *GRAPH_PHASES)
SCALES = ("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")
PER_ROW = ("phase", "batch", "context", "size", "dp")
"""Fields that differ among rows of one replica."""


@dataclass(frozen=True)
class CompositionPoint:
    """A replica and the batch it processes once."""

    model: str = choice("the model, or the path of a config.json", names="model")
    gpu: str = choice("the GPU, or the path of a data sheet of one's own", names="gpu")
    cluster: str = choice("the machine; auto: the one the GPU is sold in", default=AUTO)
    tp: int = choice("GPUs that share every layer", default=1)
    pp: int = choice("groups of GPUs that share the layers out", default=1)
    phase: str = choice(
        "prefill of whole prompts, decode of one token each, training; a graph's: inference",
        default="decode",
        known=PHASES,
    )
    batch: int = choice("requests in the batch", default=1, at_least=1)
    context: int = choice("tokens of each prompt, or read by each decode", default=1024, at_least=1)
    size: int = choice(
        "of a graph model's inputs: pixels a side, tokens, rows looked up; 0: its usual",
        default=0,
        at_least=0,
    )
    dp: int = choice(
        "GPUs that train on batches of their own and sum gradients", default=1, at_least=1
    )
    dtype: str = choice("precision of the weights and their products", default="fp16")
    kv_dtype: str = choice("precision of the KV cache", default="fp16")
    runtime: str = choice(
        "how kernels are launched: graphs, eager, eager_tp", default=DEFAULT_RUNTIME
    )
    framework: str = choice(
        f"whose kernels and messages: {', '.join(LIBRARIES)}; auto: the runtime's",
        default=AUTO,
        known=(AUTO, *LIBRARIES),
    )
    overlap: float = choice(
        "share of the sums over tensor ranks hidden by products", default=0.0, at_least=0, at_most=1
    )
    without: str = choice(
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


@dataclass(frozen=True)
class CompositionMetrics:
    """Where the time, the energy and the memory of one pass go."""

    latency_s: float = metric("time of the pass through all stages", unit="s", better="min")
    tokens_per_s: float = metric("tokens processed over that time", unit="1/s", better="max")
    energy_j: float = metric("energy of all GPUs during the pass", unit="J", better="min")
    energy_per_token_j: float = metric("that over the tokens", unit="J")
    mfu: float = metric("useful over peak FLOP/s of all GPUs")
    linear_s: float = metric("linear layers, norms, pointwise, embedding, LM head", unit="s")
    prefill_attention_s: float = metric("attention of prompts", unit="s")
    decode_attention_s: float = metric("attention of new tokens", unit="s")
    collective_s: float = metric("sums over tensor ranks", unit="s")
    send_recv_s: float = metric("messages between pipeline stages", unit="s")
    launch_s: float = metric("gaps between kernels and host work that shows", unit="s")
    prompt_s: float = metric("the host's time to turn text into tokens", unit="s")
    latency_s_lo: float = metric("lower end of its 90 % interval", unit="s")
    latency_s_hi: float = metric("upper end of its 90 % interval", unit="s")
    energy_j_lo: float = metric("lower end of its 90 % interval", unit="J")
    energy_j_hi: float = metric("upper end of its 90 % interval", unit="J")
    weight_bytes: float = metric("weights on the fullest GPU", unit="B")
    kv_bytes: float = metric("KV cache of the batch on the fullest GPU", unit="B")
    activation_bytes: float = metric("workspace on the fullest GPU", unit="B")


@dataclass(frozen=True)
class CompositionFacts:
    """What a constraint may ask about a point without simulating it."""

    gpus: int = fact("GPUs of all replicas", needs=("tp", "pp", "dp"))
    model_parameters: int = fact("weights of the model", needs=("model",))
    hbm_bytes_per_gpu: int = fact("memory of one GPU", unit="B", needs=("gpu",))
