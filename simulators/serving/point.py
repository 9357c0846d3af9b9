"""One deployment and the load on it: the fields are the axes of a serving design space."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from simulators.catalog.engine import reference_engine, resolve_runtime
from simulators.catalog.price import DEFAULT as PUBLIC_CLOUD
from simulators.composition.replica import EFFECTS, FRAMEWORKS, NOTHING
from simulators.core.contract import choice, fields_of, group
from simulators.workload.llm.adapters import ALL, TARGETS
from simulators.workload.llm.routing import BACKENDS, GATHERED
from simulators.workload.precision import number_bytes, precision

GAPS = POISSON, EVEN = "poisson", "even"
MODULATED = MMPP, DIURNAL = "mmpp", "diurnal"
CLOSED = "closed"
SHAPES = EVENLY, AS_WORKLOAD, BENCH_SERVING = "evenly", "as_workload", "bench_serving"
ARRIVALS = (*GAPS, CLOSED, *MODULATED)
MIXED_STEPS = BATCH, UNIFIED, OVERLAPPED, ADDITIVE = "batch", "unified", "overlapped", "additive"
SAMPLINGS = LIKELIEST, NUCLEUS = "likeliest", "nucleus"
OFFLOADS = HOST, PEER, SSD = "host", "peer", "ssd"
PREEMPTIONS = RECOMPUTE, SWAP, CACHED = "recompute", "swap", "cached"
FRONTENDS = AUTO, NONE = "auto", "none"
FIDELITIES = EVENT, ANALYTIC = "event", "analytic"
WINDOWS = STEADY, WHOLE = "steady", "whole"
FIXED, ADAPTIVE = "fixed", "adaptive"
LINKS = _, NVLINK, RDMA, ETHERNET, INFINITE = AUTO, "nvlink", "rdma", "ethernet", "infinite"
TRANSFERS = SERIAL, BY_LAYER = "serial", "by_layer"
ADAPTER_KERNELS = GROUPED, BY_TOKEN = "grouped", "by_token"
SHARINGS = TIME_SLICE, MPS, MIG = "time_slice", "mps", "mig"
INTERFERENCES = EXPECTED, LOWER, UPPER = "expected", "lower", "upper"
POOLS = SPLIT, ONE_POOL = "split", "shared"
NGRAM, DRAFT, MEDUSA, EAGLE, EAGLE3, MTP = "ngram", "draft", "medusa", "eagle", "eagle3", "mtp"
SPECULATIONS = (NOTHING, NGRAM, DRAFT, MEDUSA, EAGLE, EAGLE3, MTP)

DEFAULT_SCHEDULER = reference_engine().default_scheduler

built = functools.partial(choice, part="deployment")
asked = functools.partial(choice, part="demand", given=True)


@dataclass(frozen=True)
class SpeculationConfig:
    """Tokens drafted ahead and checked in one pass."""

    method: str = built(
        "what drafts tokens that one pass checks: ngram (a look-up), draft (draft_model), medusa "
        "(a head for each place), eagle, eagle3 or mtp (a head of one layer), or nothing",
        known=SPECULATIONS,
        default=NOTHING,
    )
    draft_model: str = built("of speculation draft", names="model", default=NOTHING)
    num_draft_tokens: int = built(
        "drafted for each sequence and iteration", at_least=0, at_most=16, default=3
    )
    topk: int = built(
        "guesses that a draft branches into; 1: a chain", at_least=1, at_most=16, default=1
    )
    tree_nodes: int = built(
        "tokens of a tree that one pass checks, the likeliest; 0: num_draft_tokens times topk",
        at_least=0,
        at_most=128,
        default=0,
    )
    disable_batch: int = choice(
        "running requests up to which tokens are drafted; 0: all that run", at_least=0, default=0
    )
    rule: str = choice(
        "how many are drafted: fixed; or adaptive, up to num_draft_tokens, as many as bring most "
        "tokens a second at the number that run or wait",
        known=(FIXED, ADAPTIVE),
        default=FIXED,
    )
    acceptance: str = choice(
        "share of drafted tokens that the model agrees with, given those before: one, or one for "
        "each position; empty: as measured of the method",
        default="",
    )


@dataclass(frozen=True)
class CacheConfig:
    """Blocks of the KV cache: prefixes, preemption, offloading."""

    block_size: int = choice("tokens per KV block", at_least=1, default=16)
    watermark: float = choice(
        "share of KV blocks kept free at admission", at_least=0.0, below=1.0, default=0.01
    )
    prefix_caching: bool = choice(
        "whether prompts find blocks of others that begin alike; else all are computed whole",
        default=False,
    )
    prefix_host_bytes: float = choice(
        "host memory per GPU that keeps what the prefix cache evicts, if moving it back is quicker "
        "than computing it",
        unit="B",
        at_least=0.0,
        default=0.0,
    )
    preemption: str = choice(
        "what becomes of a running request without memory: recompute, swap to the host, or cached: "
        "recompute what others took of its blocks, as with prefix_caching",
        known=PREEMPTIONS,
        default=RECOMPUTE,
    )
    swap_bytes: float = choice(
        "memory per GPU for swapped requests", unit="B", at_least=0.0, default=4e9
    )
    offload_to: str = choice(
        "what takes what swap and prefix_host_bytes move out: the host's memory; a peer's, "
        "another GPU that has room, over the links between GPUs; or, of prefixes, an ssd, one for "
        "each GPU",
        known=OFFLOADS,
        default=HOST,
    )


@dataclass(frozen=True)
class PoolsConfig:
    """Separate GPUs for prefill and decode."""

    prefill_gpus: int = built(
        "GPUs that only read prompts, of each copy; 0: no separate pools, all do both",
        at_least=0,
        default=0,
    )
    decode_gpus: int = built(
        "GPUs that decode what those have read, of each copy", at_least=0, default=0
    )
    prefill_tp: int = built("tp of what reads prompts; 0: tp", at_least=0, default=0)
    decode_tp: int = built("tp of what decodes; 0: tp", at_least=0, default=0)
    decode_gpu: str = built("GPU of what decodes; nothing: the same", names="gpu", default=NOTHING)
    kv_link: str = built(
        "what KV caches move by between pools: nvlink (within a node), rdma, ethernet, infinite "
        "(moving is free), or auto: NVLink where both pools fit in a node, else RDMA",
        known=LINKS,
        default=AUTO,
    )
    kv_link_bytes_per_s: float | None = built(
        "what each GPU's end of that link sustains; null: a share of its data sheet's, as measured",
        unit="B/s",
        above=0.0,
        default=None,
    )
    kv_transfer: str = built(
        "serial, when a prompt has been read; or by_layer, while later layers are computed",
        known=TRANSFERS,
        default=SERIAL,
    )


@dataclass(frozen=True)
class MoeConfig:
    """Experts: exchange of tokens, copies, routing."""

    backend: str = built(
        f"how tokens get to experts on other GPUs, of attention_dp: {', '.join(BACKENDS)}",
        known=BACKENDS,
        default=GATHERED,
    )
    redundant_experts: int = built(
        "copies of experts a layer holds besides one of each, so that ranks work alike",
        at_least=0,
        default=0,
    )
    routing_skew: float = built(
        "how much tokens prefer some experts: the exponent of Zipf's law; 0: not at all",
        at_least=0.0,
        default=0.0,
        given=True,
    )
    routing_histogram: str = built(
        "tokens that each expert of a layer got, in the order of ranks: a number for each, with "
        "commas between, or the path of a file of them; empty: routing_skew says it",
        default="",
        given=True,
    )


@dataclass(frozen=True)
class SchedulingConfig:
    """Details of the scheduler."""

    max_batch_tokens: int = choice(
        "prompt tokens of a batch of whole prompts", at_least=1, default=4096
    )
    poll_interval: int = choice(
        "decode iterations between looks at the queue, of schedulers that wait; 0: their default",
        at_least=0,
        default=0,
    )
    mixed_step: str = built(
        "prefills and decodes of one iteration: unified, in one attention kernel too, where the "
        "engine's library has one; batch, in a kernel each; overlapped, the attention of both at "
        "once on every SM; or additive, each reading the weights",
        known=MIXED_STEPS,
        default=UNIFIED,
    )


@dataclass(frozen=True)
class ArrivalsConfig:
    """When requests arrive."""

    process: str = asked(
        f"gaps between arrivals: {', '.join(ARRIVALS)}", known=ARRIVALS, default=POISSON
    )
    clients: int = asked("of closed arrivals: each asks when answered", at_least=1, default=64)
    burst_ratio: float = asked("of mmpp: rate in bursts over between", above=0.0, default=4.0)
    burst_s: float = asked("of mmpp: mean length of a burst", unit="s", above=0.0, default=10.0)
    calm_s: float = asked("of mmpp: mean time between bursts", unit="s", above=0.0, default=50.0)
    swing: float = asked(
        "of diurnal: highest rate over the mean, less one", at_least=0.0, at_most=1.0, default=0.5
    )
    period_s: float = asked("of diurnal: peak to peak", unit="s", above=0.0, default=86_400.0)


@dataclass(frozen=True)
class LengthsConfig:
    """How lengths of prompts and answers vary."""

    spread: float = asked(
        "fixed lengths are drawn evenly from those down to this share less",
        at_least=0.0,
        below=1.0,
        default=0.0,
    )
    shape: str = asked(
        "how fixed lengths differ: evenly, by spread; as_workload, stretched until they are "
        "means; or bench_serving: those that the client of that name draws under this seed",
        known=SHAPES,
        default=EVENLY,
    )
    max_output_tokens: int = asked("longer answers end there; 0: none do", at_least=0, default=0)


@dataclass(frozen=True)
class SessionsConfig:
    """Conversations, and what their prompts share."""

    turns: int = asked(
        "requests of a session, each after the answer before it, which its prompt repeats",
        at_least=1,
        default=1,
    )
    turn_tokens: int = asked(
        "that each later turn of a session adds to what was said: a tool's answer, say; 0: as many "
        "as a first prompt has",
        at_least=0,
        default=0,
    )
    system_prompt_tokens: int = asked(
        "that all prompts begin with, before what the workload or a session says",
        at_least=0,
        default=0,
    )


@dataclass(frozen=True)
class ClientConfig:
    """The client and the server in front of the engine."""

    think_s: float = asked(
        "how long such a client, or the user of a session, waits before",
        unit="s",
        at_least=0.0,
        default=0.0,
    )
    frontend: str = choice(
        "server between client and engine: auto (of the runtime's framework, if any) or none",
        known=FRONTENDS,
        default=AUTO,
    )
    frontend_s: float = choice(
        "that a request takes to the engine besides", unit="s", at_least=0.0, default=0.0
    )
    stream_interval: int = built(
        "iterations between messages of an answer to its client; 0: it is sent whole",
        at_least=0,
        default=1,
    )


@dataclass(frozen=True)
class MeasurementConfig:
    """Which part of which runs is measured."""

    warmup: int = choice(
        "first requests left out of latencies and rates", at_least=0, default=0, given=True
    )
    window: str = choice(
        "what rates and costs are of: steady, the run without its ramp and drain; or whole, as "
        "programs count that measure a server",
        known=WINDOWS,
        default=STEADY,
    )


@dataclass(frozen=True)
class AutoscaleConfig:
    """Replicas that follow the load."""

    min_replicas: int = built(
        "replicas that always run, of those at most; others are started and stopped with the load; "
        "0: all of them run",
        at_least=0,
        default=0,
    )
    replica_qps: float = built(
        "arrivals per second for which a replica is started", unit="1/s", above=0.0, default=1.0
    )
    startup_s: float = built(
        "from the start of a replica to its first request", unit="s", at_least=0.0, default=60.0
    )
    interval_s: float = built(
        "between looks at the arrivals since the last one", unit="s", above=0.0, default=15.0
    )
    scale_down_s: float = built(
        "for how long fewer replicas must do before one is stopped",
        unit="s",
        at_least=0.0,
        default=300.0,
    )


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters."""

    adapters: int = built(
        "low-rank adapters (LoRA) of which each request wants one; 0: none", at_least=0, default=0
    )
    rank: int = built("of all of them", at_least=1, default=16)
    targets: str = built(
        "what they adapt: attention (the projections around it), or all linear layers",
        known=TARGETS,
        default=ALL,
    )
    zipf: float = built(
        "exponent of their popularity; 0: all are wanted alike", at_least=0.0, default=0.0
    )
    kernels: str = built(
        "grouped: tokens of one adapter are multiplied together (SGMV); or by_token: in "
        "decodes each token reads its own (BGMV, S-LoRA)",
        known=ADAPTER_KERNELS,
        default=GROUPED,
    )
    slots: int = built(
        "adapters that a GPU keeps, the others wait on the host; 0: all that a batch may want, of "
        "by_token as many as it wants on average",
        at_least=0,
        default=0,
    )


@dataclass(frozen=True)
class ColocationConfig:
    """Other models on the same GPUs."""

    models: str = built(
        "other models on the same GPUs, each a process of its own, joined by +; or nothing",
        default=NOTHING,
    )
    qps: float | None = built(
        "requests per second to each of them, of lengths like the model's; null: as many as to it",
        unit="1/s",
        above=0.0,
        default=None,
    )
    sharing: str = built(
        "how models share a GPU: time_slice (by turns), mps (each on a share of the SMs), or mig "
        "(a slice with memory of its own)",
        known=SHARINGS,
        default=TIME_SLICE,
    )
    sm_share: float = built(
        "of mps: share of the SMs that the model may use", above=0.0, at_most=1.0, default=1.0
    )
    other_sm_share: float = built(
        "of mps: that each other model may use; 0: what sm_share leaves, evenly",
        at_least=0.0,
        at_most=1.0,
        default=0.0,
    )
    mig_slice: str = built("of mig: the profile, as in 3g; empty: the whole GPU", default="")
    kv_pool: str = built(
        "what weights leave of the memory of several models: split evenly; or one shared pool, "
        "of which the model has what the others do not hold",
        known=POOLS,
        default=SPLIT,
    )
    interference: str = built(
        "how often others are at work: expected, by their load; or the bounds: lower (never) and "
        "upper (always, with as much memory traffic as they can get)",
        known=INTERFERENCES,
        default=EXPECTED,
    )
    time_share: float = built(
        "of a GPU's time that kernels get, where others have the rest",
        above=0.0,
        at_most=1.0,
        default=1.0,
    )
    power_share: float = built(
        "of a GPU's watts at rest that are the design's, where others have the rest",
        above=0.0,
        at_most=1.0,
        default=1.0,
    )


@dataclass(frozen=True)
class DynamicInferenceConfig:
    """Layers that tokens skip: early exit, mixture of depths, pruned prompts."""

    exit_depth: float = built(
        "share of layers a decoded token passes: early exit", above=0.0, at_most=1.0, default=1.0
    )
    exit_depth_std: float = built(
        "its deviation between tokens", at_least=0.0, below=0.5, default=0.0
    )
    mod_capacity: float = built(
        "that every other layer takes: mixture of depths", above=0.0, at_most=1.0, default=1.0
    )
    prune_keep_ratio: float = built(
        "share of a prompt that layers after prune_after take", above=0.0, at_most=1.0, default=1.0
    )
    prune_after_layer: int = built("layers before a prompt is pruned", at_least=0, default=2)


@dataclass(frozen=True)
class PowerConfig:
    """Clocks and power limits of GPUs."""

    clock_hz: float = built(
        "clock that GPUs are locked to (nvidia-smi --lock-gpu-clocks); 0: none, they run at their "
        "highest",
        unit="Hz",
        at_least=0.0,
        default=0.0,
    )
    limit_w: float = built(
        "of a GPU (nvidia-smi --power-limit), for which it lowers its clock; 0: the data sheet's",
        unit="W",
        at_least=0.0,
        default=0.0,
    )


@dataclass(frozen=True)
class ServingPoint:
    """One deployment and what is asked of it."""

    model: str = built("the language model", names="model", given=True)
    gpu: str = built("the GPU, or the path of a data sheet of one's own", names="gpu")
    cluster: str = built("the nodes; auto: those the GPU is usually bought in", default="auto")
    tp: int = built("tensor parallel degree", at_least=1, default=1)
    pp: int = built("pipeline stages", at_least=1, default=1)
    ep: int = built("parts of a stage that whole experts are dealt to", at_least=1, default=1)
    attention_dp: int = built(
        "groups of tp GPUs that attend to requests of their own and share the experts",
        at_least=1,
        default=1,
    )
    replicas: int = built("copies, each on tp * pp * attention_dp GPUs", at_least=1, default=1)
    scheduler: str = choice("how batches are formed", names="scheduler", default=DEFAULT_SCHEDULER)
    router: str = choice("which replica takes a request", names="router", default="round_robin")
    chunk_size: int = choice("tokens of an iteration with chunks", at_least=1, default=512)
    max_batch: int = choice("requests a replica runs at a time", at_least=1, default=128)
    qps: float | None = asked(
        "requests per second to all replicas; null keeps a trace's arrivals, and in the analytic "
        "fidelity gives each freed seat to a new request",
        unit="1/s",
        above=0.0,
        default=1.0,
    )
    workload: str = asked(
        "lengths: chat, code, sharegpt, summarization, a file of one's own, or the path of a trace",
        names="workload",
        default="chat",
    )
    prompt_tokens: int = asked("of every prompt; 0: the workload's", at_least=0, default=0)
    output_tokens: int = asked("of every answer; 0: the workload's", at_least=0, default=0)
    requests: int = asked("simulated; of a trace the first, 0: all", at_least=0, default=500)
    seed: int = asked("of arrivals and lengths", at_least=0, default=0)
    sampling: str = built(
        "how tokens are drawn: the likeliest; or nucleus, of the likeliest that add up to a share "
        "(top_p), for which engines sort the vocabulary",
        known=SAMPLINGS,
        default=LIKELIEST,
    )
    iteration_table: str = choice(
        "path of operator times of one's own; empty: iterations are priced by composition",
        default="",
        given=True,
    )
    memory_fraction: float = choice(
        "share of GPU memory the engine may use", above=0.0, at_most=1.0, default=0.9
    )
    dtype: str = built("precision: fp16, fp8, int8, w4a16 ...", default="fp16", reads=precision)
    kv_dtype: str = built("precision of the KV cache", default="fp16", reads=number_bytes)
    runtime: str = built(
        f"what runs the kernels: {', '.join(FRAMEWORKS)}, graphs, eager ...; auto: the engine "
        f"whose scheduler it is, {reference_engine().name} for those of none",
        default=AUTO,
    )
    release: str = built(
        "of the engine: a version such as 0.8.5 or a date such as 2026-01-31, which choose its "
        "runtime; empty: today's",
        default="",
    )
    accelerator: str = built(
        "an accelerator that computes in the GPU's place, its memory and links kept; or nothing",
        default=NOTHING,
    )
    without: str = built(
        f"effects beside kernels that are left out, joined by +: {', '.join(EFFECTS)}, or nothing",
        default=NOTHING,
        given=True,
    )
    max_context: int = choice(
        "longest prompt and output together; 0: as long as the model allows", at_least=0, default=0
    )
    slo_ttft_s: float = choice("deadline of the first token", unit="s", default=1.0, given=True)
    slo_tpot_s: float = choice(
        "deadline of the mean later token", unit="s", default=0.05, given=True
    )
    prices: str = built("price list", names="price", default=PUBLIC_CLOUD, given=True)
    usd_per_gpu_hour: float | None = built(
        "overrides the price list", unit="$", default=None, given=True
    )
    fidelity: str = choice(
        f"how it is answered: {' or '.join(FIDELITIES)} (a steady state, without percentiles)",
        known=FIDELITIES,
        default=EVENT,
        given=True,
    )
    sm_scale: float = built("SMs of a what-if device, relative", above=0.0, default=1.0)
    clock_scale: float = built("clock of such a device, relative", above=0.0, default=1.0)
    bandwidth_scale: float = built("its memory bandwidth, relative", above=0.0, default=1.0)
    l2_scale: float = built("its L2 size, relative", above=0.0, default=1.0)
    speculation: SpeculationConfig = group(
        SpeculationConfig, "tokens drafted ahead and checked in one pass"
    )
    cache: CacheConfig = group(
        CacheConfig, "blocks of the KV cache: prefixes, preemption, offloading"
    )
    pools: PoolsConfig = group(PoolsConfig, "separate GPUs for prefill and decode")
    moe: MoeConfig = group(MoeConfig, "experts: exchange of tokens, copies, routing")
    scheduling: SchedulingConfig = group(SchedulingConfig, "details of the scheduler")
    arrivals: ArrivalsConfig = group(ArrivalsConfig, "when requests arrive")
    lengths: LengthsConfig = group(LengthsConfig, "how lengths of prompts and answers vary")
    sessions: SessionsConfig = group(SessionsConfig, "conversations, and what their prompts share")
    client: ClientConfig = group(ClientConfig, "the client and the server in front of the engine")
    measurement: MeasurementConfig = group(
        MeasurementConfig, "which part of which runs is measured"
    )
    autoscaling: AutoscaleConfig = group(AutoscaleConfig, "replicas that follow the load")
    lora: LoraConfig = group(LoraConfig, "low-rank adapters")
    colocation: ColocationConfig = group(ColocationConfig, "other models on the same GPUs")
    dynamic: DynamicInferenceConfig = group(
        DynamicInferenceConfig,
        "layers that tokens skip: early exit, mixture of depths, pruned prompts",
    )
    power: PowerConfig = group(PowerConfig, "clocks and power limits of GPUs")

    def __post_init__(self) -> None:
        """Resolve the runtime by scheduler and release; the release is empty afterwards."""
        if self.runtime == AUTO or self.release:
            resolved = resolve_runtime(self.runtime, self.scheduler, self.release)
            object.__setattr__(self, "runtime", resolved)
            object.__setattr__(self, "release", "")


DEPLOYED = fields_of(ServingPoint, "deployment")
"""The fields of a point that say what stands in the rack, and what it costs."""

DEMANDED = fields_of(ServingPoint, "demand")
"""Those that say which requests come and when: points alike in them answer the same."""
