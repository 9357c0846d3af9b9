"""One deployment and what is asked of it: the fields are the axes of a serving design space."""

from __future__ import annotations

from dataclasses import dataclass

from simulators.catalog.price import DEFAULT as PUBLIC_CLOUD
from simulators.composition.replica import EFFECTS, NOTHING
from simulators.core.contract import choice
from simulators.serving.demand.arrivals import KNOWN

MIXED_STEPS = BATCH, ADDITIVE = "batch", "additive"
PREEMPTIONS = RECOMPUTE, SWAP, CACHED = "recompute", "swap", "cached"
FIDELITIES = EVENT, ANALYTIC = "event", "analytic"


@dataclass(frozen=True)
class ServingPoint:
    """One deployment and what is asked of it."""

    model: str = choice("the language model", names="model")
    gpu: str = choice("the GPU, or the path of a data sheet of one's own", names="gpu")
    cluster: str = choice("the nodes; auto: those the GPU is usually bought in", default="auto")
    tp: int = choice("tensor parallel degree", default=1)
    pp: int = choice("pipeline stages", default=1)
    ep: int = choice("parts of a stage's GPUs among which experts are dealt whole", default=1)
    attention_dp: int = choice(
        "groups of tp GPUs that attend to requests of their own and share the experts", default=1
    )
    replicas: int = choice("copies of the model, each on tp * pp * attention_dp GPUs", default=1)
    scheduler: str = choice("how batches are formed", names="scheduler", default="vllm")
    router: str = choice("which replica takes a request", names="router", default="round_robin")
    chunk_size: int = choice("tokens of an iteration, where prompts are chunked", default=512)
    max_batch: int = choice("requests a replica runs at a time", default=128)
    max_batch_tokens: int = choice("prompt tokens of a batch of whole prompts", default=4096)
    poll_interval: int = choice(
        "decode iterations between looks at the queue, of schedulers that wait; 0: their default",
        default=0,
    )
    qps: float | None = choice(
        "requests per second to all replicas; null keeps a trace's arrivals, and in the analytic "
        "fidelity gives each freed seat to a new request", unit="1/s", default=1.0,
    )  # fmt: skip
    workload: str = choice(
        "lengths: chat, code, a file of one's own, or the path of a trace", names="workload",
        default="chat",
    )  # fmt: skip
    prompt_tokens: int = choice("length of every prompt; 0: as the workload says", default=0)
    output_tokens: int = choice("length of every answer; 0: as the workload says", default=0)
    length_spread: float = choice(
        "fixed lengths are drawn evenly from those down to this share less", default=0.0
    )
    requests: int = choice("requests simulated; of a trace the first, 0 for all", default=500)
    seed: int = choice("of arrivals and lengths", default=0)
    seeds: int = choice(
        "runs to average, with this seed and those after it; latencies get confidence intervals",
        default=1,
    )
    arrivals: str = choice(f"gaps between arrivals: {', '.join(KNOWN)}", default="poisson")
    burstiness: float = choice("coefficient of variation of gamma gaps", default=1.0)
    clients: int = choice("of closed arrivals: each asks again when it is answered", default=64)
    think_s: float = choice(
        "how long such a client, or the user of a session, waits before", unit="s", default=0.0
    )
    frontend: str = choice(
        "server between client and engine: auto (of the runtime's framework, if any) or none",
        default="auto",
    )
    frontend_s: float = choice("that a request takes to the engine besides", unit="s", default=0.0)
    patience_s: float | None = choice(
        "how long after its arrival an unfinished request is given up by its client; null: never",
        unit="s", default=None,
    )  # fmt: skip
    warmup: int = choice("requests left out of latencies and rates, the first", default=0)
    cooldown: int = choice("requests left out of latencies and rates, the last", default=0)
    turns: int = choice(
        "requests of a session, each after the answer before it, which its prompt repeats",
        default=1,
    )
    burst_ratio: float = choice("of mmpp: rate in a burst over the rate between", default=4.0)
    burst_s: float = choice("of mmpp: mean length of a burst", unit="s", default=10.0)
    calm_s: float = choice("of mmpp: mean time between bursts", unit="s", default=50.0)
    swing: float = choice("of diurnal: highest rate over the mean, less one", default=0.5)
    period_s: float = choice("of diurnal: from peak to peak", unit="s", default=86_400.0)
    mixed_step: str = choice(
        "prefills and decodes of one iteration: as one batch, or additive, each reading the "
        "weights", default=BATCH,
    )  # fmt: skip
    iteration_table: str = choice(
        "path of operator times of one's own; empty: iterations are priced by composition",
        default="",
    )
    block_size: int = choice("tokens per KV block", default=16)
    memory_fraction: float = choice("share of GPU memory the engine may use", default=0.9)
    watermark: float = choice("share of KV blocks kept free at admission", default=0.01)
    preemption: str = choice(
        "what becomes of a running request without memory: recompute, swap to the host, or cached: "
        "recompute what others took of its blocks",
        default=RECOMPUTE,
    )
    swap_bytes: float = choice("host memory per GPU for swapped requests", unit="B", default=4e9)
    dtype: str = choice("precision: fp16, bf16, fp8, int8, w8a16, w4a16 ...", default="fp16")
    kv_dtype: str = choice("precision of the KV cache", default="fp16")
    runtime: str = choice("how kernels are launched: graphs, eager ...", default="graphs")
    without: str = choice(
        f"effects beside kernels that are left out, joined by +: {', '.join(EFFECTS)}, or nothing",
        default=NOTHING,
    )
    max_context: int = choice(
        "longest prompt and output together; 0: as long as the model allows", default=0
    )
    slo_ttft_s: float = choice("deadline of the first token", unit="s", default=1.0)
    slo_tpot_s: float = choice("deadline of the mean later token", unit="s", default=0.05)
    prices: str = choice("price list", names="price", default=PUBLIC_CLOUD)
    usd_per_gpu_hour: float | None = choice("overrides the price list", unit="$", default=None)
    fidelity: str = choice(
        f"how it is answered: {' or '.join(FIDELITIES)} (a steady state, without percentiles)",
        default=EVENT,
    )
    sm_scale: float = choice("SMs of a what-if device, relative", default=1.0)
    clock_scale: float = choice("clock of a what-if device, relative", default=1.0)
    bandwidth_scale: float = choice("memory bandwidth of a what-if device, relative", default=1.0)
    l2_scale: float = choice("L2 size of a what-if device, relative", default=1.0)
