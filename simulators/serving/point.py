"""A deployment and its load: the fields of `ServingPoint` are the axes of a serving space."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from simulators.catalog.engine import reference_engine
from simulators.catalog.price import DEFAULT as PUBLIC_CLOUD
from simulators.composition.engine_defaults import (
    NAMES,
    cache_defaults,
    limits,
    resolved_names,
)
from simulators.composition.replica import EFFECTS, FRAMEWORKS, NOTHING
from simulators.core.contract import choice, fields_of, group
from simulators.core.fields import updated
from simulators.workload.llm.parallelism import BACKENDS
from simulators.workload.llm.transformer import ALL, TARGETS
from simulators.workload.precision import number_bytes, precision

GAPS = POISSON, EVEN = "poisson", "even"
MODULATED = MMPP, DIURNAL = "mmpp", "diurnal"
CLOSED = "closed"
SHAPES = EVENLY, AS_WORKLOAD, BENCH_SERVING = "evenly", "as_workload", "bench_serving"
ARRIVALS = (*GAPS, CLOSED, *MODULATED)
MIXED_STEPS = BATCH, UNIFIED, OVERLAPPED, ADDITIVE = "batch", "unified", "overlapped", "additive"
SAMPLINGS = LIKELIEST, NUCLEUS = "likeliest", "nucleus"
OFFLOADS = HOST, PEER, SSD = "host", "peer", "ssd"
NOT_SHARED = "nothing"
TIERS = HOST_MEMORY, NVME, REMOTE = "host", "nvme", "remote"
"""From the nearest to the farthest."""
WRITE_POLICIES = THROUGH, SELECTIVE, BACK = "write_through", "write_through_selective", "write_back"
EVICTIONS = LRU, LFU, BELADY = "lru", "lfu", "belady"
LOADS = OF_BATCH, OF_REQUEST = "batch", "request"
PREEMPTIONS = RECOMPUTE, SWAP, CACHED = "recompute", "swap", "cached"
FRONTENDS = AUTO, NONE = "auto", "none"
RULES = _, ON, OFF = AUTO, "on", "off"
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


def one_of(
    doc: str, known: Sequence[str], *, declare: Callable[..., Any] = built, **options: Any
) -> Any:
    """Declare a field with a list of known values, the first of which is the default."""
    return declare(doc, known=known, default=known[0], **options)


def of_pool(pool: str, option: str, **rule: Any) -> Any:
    """Declare an option of one of two separate pools, by default that of the whole deployment."""
    default = NOTHING if "known" in rule else None
    unset = default or "null"
    return built(f"{option} of {pool} replicas; {unset}: {option}", default=default, **rule)


@dataclass(frozen=True)
class SpeculationConfig:
    """Speculative decoding."""

    method: str = one_of(
        "speculative decoding: ngram, draft (draft_model), medusa, eagle, eagle3, mtp or nothing",
        SPECULATIONS,
    )
    draft_model: str = built("draft model of method draft", names="model", default=NOTHING)
    num_draft_tokens: int = built(
        "draft tokens per sequence and iteration", at_least=0, at_most=16, default=3
    )
    topk: int = built("branches of a draft tree; 1: a chain", at_least=1, at_most=16, default=1)
    tree_nodes: int = built(
        "verified tokens of a tree; 0: num_draft_tokens * topk", at_least=0, at_most=128, default=0
    )
    disable_batch: int = choice(
        "running requests above which nothing is drafted; 0: no limit", at_least=0, default=0
    )
    rule: str = choice(
        "number of draft tokens: fixed, or adaptive (up to num_draft_tokens, by load)",
        known=(FIXED, ADAPTIVE),
        default=FIXED,
    )
    acceptance: str = choice(
        "acceptance rate of draft tokens, given the earlier ones: one, or one per position; or "
        "length=2.6, tokens per iteration; empty: as measured",
        default="",
    )


@dataclass(frozen=True)
class CacheConfig:
    """KV cache: blocks, prefix caching, preemption, offloading."""

    block_size: int | None = choice(
        "tokens per KV block; null: the engine's default", at_least=1, default=None
    )
    watermark: float | None = choice(
        "share of KV blocks kept free at admission while requests run; null: the scheduler's",
        at_least=0.0,
        below=1.0,
        default=None,
    )
    prefix_caching: bool | None = choice(
        "whether prompts reuse cached KV blocks; null: the engine's default, off with swapping",
        default=None,
    )
    prefix_host_bytes: float = choice(
        "host memory per GPU for evicted prefixes, used where copying is faster than computing",
        unit="B",
        at_least=0.0,
        default=0.0,
    )
    preemption: str = one_of(
        "preemption by recompute, swap (to the host) or cached (recompute overwritten blocks only)",
        PREEMPTIONS,
        declare=choice,
    )
    swap_bytes: float = choice(
        "memory per GPU for swapped requests", unit="B", at_least=0.0, default=4e9
    )
    offload_to: str = one_of(
        "target of swapped requests and evicted prefixes: host, peer (another GPU), ssd (prefixes)",
        OFFLOADS,
        declare=choice,
    )
    view_refresh_s: float = choice(
        "age at which a router's view of the prefix caches is renewed; 0: always current",
        unit="s",
        at_least=0.0,
        at_most=1e9,
        default=0.0,
    )


@dataclass(frozen=True)
class KVTiersConfig:
    """Tiers of the KV cache behind `cache.prefix_host_bytes`: NVMe drives and a remote store."""

    nvme_bytes: float = choice(
        "NVMe drives per GPU for cached prefixes", unit="B", at_least=0.0, default=0.0
    )
    nvme_read_bytes_per_s: float | None = choice(
        "read rate of the drives per GPU; null: 6.9 GB/s, one PCIe 4.0 drive",
        unit="B/s",
        above=0.0,
        default=None,
    )
    nvme_write_bytes_per_s: float | None = choice(
        "write rate of the drives per GPU; null: 4.1 GB/s, one PCIe 4.0 drive",
        unit="B/s",
        above=0.0,
        default=None,
    )
    nvme_latency_s: float = choice(
        "latency of a load from NVMe", unit="s", at_least=0.0, at_most=3600.0, default=1e-4
    )
    remote_bytes: float = choice(
        "remote store for cached prefixes, shared by all replicas",
        unit="B",
        at_least=0.0,
        default=0.0,
    )
    remote_read_bytes_per_s: float | None = choice(
        "read rate of the store per GPU of a replica; null: the network card's",
        unit="B/s",
        above=0.0,
        default=None,
    )
    remote_write_bytes_per_s: float | None = choice(
        "write rate of the store per GPU of a replica; null: the network card's",
        unit="B/s",
        above=0.0,
        default=None,
    )
    remote_total_bytes_per_s: float | None = choice(
        "rate of the whole store, for all replicas; null: no limit",
        unit="B/s",
        above=0.0,
        default=None,
    )
    remote_latency_s: float = choice(
        "latency of a load from the store", unit="s", at_least=0.0, at_most=3600.0, default=1e-3
    )
    shared: str = choice(
        "nearest tier (host, nvme or remote) that all replicas share, as they share the tiers "
        "behind it; or nothing",
        known=(REMOTE, NVME, HOST_MEMORY, NOT_SHARED),
        default=REMOTE,
    )
    write_policy: str = choice(
        "when blocks are written to tiers: write_through (to all tiers when a request ends), "
        "write_through_selective (then, if used twice) or write_back (to the next tier, on "
        "eviction)",
        known=WRITE_POLICIES,
        default=THROUGH,
    )
    eviction: str = choice(
        "eviction from tiers: lru, lfu, or belady (farthest next use: an upper bound of hits)",
        known=EVICTIONS,
        default=LRU,
    )
    page_tokens: int = choice(
        "tokens of a page; tiers store and load whole pages; 0: a KV block",
        at_least=0,
        default=0,
    )
    load: str = choice(
        "what waits for a load: the batch, or only the request while others run",
        known=LOADS,
        default=OF_BATCH,
    )


@dataclass(frozen=True)
class PoolsConfig:
    """Separate prefill and decode replicas."""

    prefill_gpus: int = built(
        "GPUs of prefill replicas, per copy; 0: no separate pools", at_least=0, default=0
    )
    decode_gpus: int = built("GPUs of decode replicas, per copy", at_least=0, default=0)
    prefill_tp: int = built("tp of prefill replicas; 0: tp", at_least=0, default=0)
    decode_tp: int = built("tp of decode replicas; 0: tp", at_least=0, default=0)
    prefill_ep: int | None = of_pool("prefill", "ep", at_least=1)
    decode_ep: int | None = of_pool("decode", "ep", at_least=1)
    prefill_attention_dp: int | None = of_pool("prefill", "attention_dp", at_least=1)
    decode_attention_dp: int | None = of_pool("decode", "attention_dp", at_least=1)
    prefill_chunk_size: int | None = of_pool("prefill", "chunk_size", at_least=1)
    decode_chunk_size: int | None = of_pool("decode", "chunk_size", at_least=1)
    prefill_max_batch: int | None = of_pool("prefill", "max_batch", at_least=1)
    decode_max_batch: int | None = of_pool("decode", "max_batch", at_least=1)
    prefill_memory_fraction: float | None = of_pool(
        "prefill", "memory_fraction", above=0.0, at_most=1.0
    )
    decode_memory_fraction: float | None = of_pool(
        "decode", "memory_fraction", above=0.0, at_most=1.0
    )
    prefill_moe_backend: str = of_pool("prefill", "moe.backend", known=(NOTHING, *BACKENDS))
    decode_moe_backend: str = of_pool("decode", "moe.backend", known=(NOTHING, *BACKENDS))
    prefill_redundant_experts: int | None = of_pool("prefill", "moe.redundant_experts", at_least=0)
    decode_redundant_experts: int | None = of_pool("decode", "moe.redundant_experts", at_least=0)
    decode_gpu: str = built("GPU of decode replicas; nothing: gpu", names="gpu", default=NOTHING)
    kv_link: str = one_of(
        "link of KV transfers: nvlink (within a node), rdma, ethernet, infinite, or auto "
        "(NVLink within a node, else RDMA)",
        LINKS,
    )
    kv_link_bytes_per_s: float | None = built(
        "rate of that link per GPU; null: the measured share of its data sheet",
        unit="B/s",
        above=0.0,
        default=None,
    )
    kv_transfer: str = one_of(
        "KV transfer: serial (after the prefill) or by_layer (during it)", TRANSFERS
    )


@dataclass(frozen=True)
class MoeConfig:
    """Mixture of experts: dispatch, redundant experts, routing."""

    backend: str = one_of(
        f"how tokens get to experts on other GPUs, of attention_dp: {', '.join(BACKENDS)}", BACKENDS
    )
    redundant_experts: int = built(
        "expert copies per layer, for balanced ranks", at_least=0, default=0
    )
    two_batch_overlap: bool = built(
        "whether a batch runs as two halves: kernels of one hide DeepEP's messages of the other",
        default=False,
    )
    routing_skew: float = built(
        "expert popularity: exponent of Zipf's law; 0: uniform",
        at_least=0.0,
        default=0.0,
        given=True,
    )
    routing_histogram: str = built(
        "tokens of each expert of a layer, by rank: comma-separated numbers or a file; empty: "
        "routing_skew",
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
        "decode iterations between polls of the queue; 0: the scheduler's default",
        at_least=0,
        default=0,
    )
    async_scheduling: str = one_of(
        "whether the next batch is formed when one is launched, so that slots and blocks are free "
        "an iteration later: on, off, or auto (the default of the engine's release)",
        RULES,
        declare=choice,
    )
    scheduler_reserve_full_isl: str = one_of(
        "whether a prompt is admitted only if all of it fits in the KV cache: on, off, or auto "
        "(the default of the engine's release)",
        RULES,
        declare=choice,
    )
    long_prefill_token_threshold: int = choice(
        "prompt tokens of a request in one batch while others run or wait; 0: no limit",
        at_least=0,
        default=0,
    )
    schedule_conservativeness: float = choice(
        "factor of the output tokens that running requests are expected to write at admission",
        above=0.0,
        default=1.0,
    )
    mixed_step: str = built(
        "prefills and decodes of one iteration: unified (one attention kernel, where "
        "available), batch (a kernel each), overlapped (both at once), additive (one after "
        "the other)",
        known=MIXED_STEPS,
        default=UNIFIED,
    )


@dataclass(frozen=True)
class ArrivalsConfig:
    """Arrival process."""

    process: str = one_of(f"gaps between arrivals: {', '.join(ARRIVALS)}", ARRIVALS, declare=asked)
    clients: int = asked("clients of a closed loop", at_least=1, default=64)
    burst_ratio: float = asked("mmpp: rate in bursts over the rate between", above=0.0, default=4.0)
    burst_s: float = asked("mmpp: mean length of a burst", unit="s", above=0.0, default=10.0)
    calm_s: float = asked("mmpp: mean time between bursts", unit="s", above=0.0, default=50.0)
    swing: float = asked(
        "diurnal: peak rate over the mean, minus 1", at_least=0.0, at_most=1.0, default=0.5
    )
    period_s: float = asked(
        "diurnal: time from peak to peak", unit="s", above=0.0, default=86_400.0
    )


@dataclass(frozen=True)
class LengthsConfig:
    """Distribution of prompt and output lengths."""

    spread: float = asked(
        "fixed lengths are uniform down to this share below them",
        at_least=0.0,
        below=1.0,
        default=0.0,
    )
    shape: str = one_of(
        "distribution of fixed lengths: evenly (by spread), as_workload (scaled to these "
        "means) or bench_serving (as that client draws them)",
        SHAPES,
        declare=asked,
    )
    max_output_tokens: int = asked("limit of the output; 0: none", at_least=0, default=0)


@dataclass(frozen=True)
class SessionsConfig:
    """Multi-turn sessions and shared prefixes."""

    turns: int = asked(
        "requests per session; each prompt repeats the turns before it", at_least=1, default=1
    )
    turn_tokens: int = asked(
        "new prompt tokens of later turns, as of a tool's answer; 0: as the first prompt",
        at_least=0,
        default=0,
    )
    system_prompt_tokens: int = asked("tokens that begin all prompts", at_least=0, default=0)
    duration_s: float = asked(
        "sessions of agents: time of sending, after each client has warmed up in the middle of a "
        "session; 0: every session once, from its start",
        unit="s",
        at_least=0.0,
        default=0.0,
    )


@dataclass(frozen=True)
class ClientConfig:
    """Client and API server."""

    think_s: float = asked(
        "think time of closed-loop clients and between turns of a session",
        unit="s",
        at_least=0.0,
        default=0.0,
    )
    frontend: str = one_of(
        "API server: auto (that of the runtime's framework) or none", FRONTENDS, declare=choice
    )
    frontend_s: float = choice(
        "additional latency before the engine", unit="s", at_least=0.0, default=0.0
    )
    ignore_eos: bool = asked(
        "whether clients ask for answers of their longest length, as benchmark clients do",
        default=True,
    )
    stream_interval: int = built(
        "iterations between streamed messages; 0: no streaming", at_least=0, default=1
    )


@dataclass(frozen=True)
class MeasurementConfig:
    """Requests and time window that metrics refer to."""

    warmup: int = choice(
        "first requests that latencies leave out", at_least=0, default=0, given=True
    )
    window: str = one_of(
        "window of rates and costs: steady (without ramp and drain) or whole (as benchmark "
        "clients count); of sessions of agents always the time of sending",
        WINDOWS,
        declare=choice,
    )


@dataclass(frozen=True)
class AutoscaleConfig:
    """Autoscaling of replicas."""

    min_replicas: int = built(
        "replicas that always run, of `replicas` at most; 0: no autoscaling", at_least=0, default=0
    )
    replica_qps: float = built(
        "arrivals per second for each started replica", unit="1/s", above=0.0, default=1.0
    )
    startup_s: float = built("time to start a replica", unit="s", at_least=0.0, default=60.0)
    interval_s: float = built("interval of scaling decisions", unit="s", above=0.0, default=15.0)
    scale_down_s: float = built(
        "time of lower load before a replica stops", unit="s", at_least=0.0, default=300.0
    )


@dataclass(frozen=True)
class LoraConfig:
    """LoRA adapters."""

    adapters: int = built("LoRA adapters, one per request; 0: none", at_least=0, default=0)
    rank: int = built("rank of all adapters", at_least=1, default=16)
    targets: str = built(
        "adapted layers: attention projections, or all linear layers", known=TARGETS, default=ALL
    )
    zipf: float = built("adapter popularity: exponent of Zipf's law", at_least=0.0, default=0.0)
    kernels: str = one_of(
        "adapter kernels: grouped by adapter (SGMV) or by_token in decodes (BGMV, S-LoRA)",
        ADAPTER_KERNELS,
    )
    slots: int = built(
        "adapters kept on a GPU; 0: those of a full batch (by_token: their mean)",
        at_least=0,
        default=0,
    )


@dataclass(frozen=True)
class ColocationConfig:
    """Several models on the same GPUs."""

    models: str = built("other models on the same GPUs, joined by +, or nothing", default=NOTHING)
    qps: float | None = built(
        "requests per second to each of them, with this model's lengths; null: the same",
        unit="1/s",
        above=0.0,
        default=None,
    )
    sharing: str = one_of(
        "GPU sharing: time_slice, mps (shares of the SMs) or mig (a slice with its own memory)",
        SHARINGS,
    )
    sm_share: float = built("mps: SM share of the model", above=0.0, at_most=1.0, default=1.0)
    other_sm_share: float = built(
        "mps: SM share of each other model; 0: an equal part of the rest",
        at_least=0.0,
        at_most=1.0,
        default=0.0,
    )
    mig_slice: str = built("mig: profile, such as 3g; empty: the whole GPU", default="")
    kv_pool: str = one_of("KV memory of co-located models: split evenly, or one shared pool", POOLS)
    interference: str = one_of(
        "load of the other models: expected, lower bound (idle) or upper bound (always busy)",
        INTERFERENCES,
    )
    time_share: float = built("share of a GPU's time", above=0.0, at_most=1.0, default=1.0)
    power_share: float = built("share of a GPU's idle power", above=0.0, at_most=1.0, default=1.0)


@dataclass(frozen=True)
class DynamicInferenceConfig:
    """Early exit, mixture of depths, pruned prompts."""

    exit_depth: float = built(
        "early exit: mean share of layers of a decoded token", above=0.0, at_most=1.0, default=1.0
    )
    exit_depth_std: float = built(
        "early exit: its standard deviation", at_least=0.0, below=0.5, default=0.0
    )
    mod_capacity: float = built(
        "mixture of depths: share of tokens in every other layer",
        above=0.0,
        at_most=1.0,
        default=1.0,
    )
    prune_keep_ratio: float = built(
        "pruned prompts: share of tokens kept after prune_after_layer",
        above=0.0,
        at_most=1.0,
        default=1.0,
    )
    prune_after_layer: int = built("pruned prompts: layers before pruning", at_least=0, default=2)


@dataclass(frozen=True)
class PowerConfig:
    """GPU clocks and power limits."""

    clock_hz: float = built(
        "locked GPU clock (nvidia-smi --lock-gpu-clocks); 0: the highest",
        unit="Hz",
        at_least=0.0,
        default=0.0,
    )
    limit_w: float = built(
        "GPU power limit (nvidia-smi --power-limit); 0: the data sheet's",
        unit="W",
        at_least=0.0,
        default=0.0,
    )


@dataclass(frozen=True)
class ServingPoint:
    """A deployment and its load."""

    model: str = built("the language model", names="model", given=True)
    gpu: str = built("the GPU, or the path of a data sheet", names="gpu")
    cluster: str = built("the nodes; auto: the usual ones of the GPU", default="auto")
    tp: int = built("tensor parallel degree", at_least=1, default=1)
    pp: int = built("pipeline stages", at_least=1, default=1)
    ep: int = built("expert parallel degree", at_least=1, default=1)
    attention_dp: int = built(
        "data parallel degree of attention: groups of tp GPUs that share the experts",
        at_least=1,
        default=1,
    )
    replicas: int = built("replicas of tp * pp * attention_dp GPUs each", at_least=1, default=1)
    scheduler: str = choice(
        f"scheduler; auto: that of the runtime's engine, {reference_engine().name} for runtime "
        f"auto, {DEFAULT_SCHEDULER} for runtimes without an engine",
        names="scheduler",
        default=AUTO,
    )
    router: str = choice("router of requests to replicas", names="router", default="round_robin")
    chunk_size: int | None = choice(
        "token budget of an iteration with chunked prefill; null: the engine's default on the GPU",
        at_least=1,
        default=None,
    )
    max_batch: int | None = choice(
        "running requests per replica; null: the engine's default on the GPU",
        at_least=1,
        default=None,
    )
    qps: float | None = asked(
        "requests per second to all replicas; null: the trace's arrivals, or (analytic) a "
        "full batch",
        unit="1/s",
        above=0.0,
        default=1.0,
    )
    workload: str = asked(
        "lengths: chat, code, sharegpt, summarization, agentic, a file, or the path of a trace",
        names="workload",
        default="chat",
    )
    prompt_tokens: int = asked("prompt tokens; 0: the workload's", at_least=0, default=0)
    output_tokens: int = asked("output tokens; 0: the workload's", at_least=0, default=0)
    requests: int = asked("simulated requests; 0: all of a trace", at_least=0, default=500)
    seed: int = asked("seed of arrivals and lengths", at_least=0, default=0)
    sampling: str = one_of(
        "sampling: likeliest, or nucleus (top_p), for which engines sort the vocabulary", SAMPLINGS
    )
    iteration_table: str = choice(
        "file of measured operator times; empty: priced by composition", default="", given=True
    )
    memory_fraction: float | None = choice(
        "share of GPU memory for the engine; null: the engine's default on the GPU",
        above=0.0,
        at_most=1.0,
        default=None,
    )
    dtype: str = built(
        "precision: fp16, fp8, int8, w4a16 ...; auto: the checkpoint's",
        default=AUTO,
        reads=lambda text: text == AUTO or precision(text),
    )
    kv_dtype: str = built("precision of the KV cache", default="fp16", reads=number_bytes)
    runtime: str = built(
        f"what runs the kernels: {', '.join(FRAMEWORKS)}, graphs, eager ...; auto: the engine "
        f"whose scheduler it is, {reference_engine().name} for those of none",
        default=AUTO,
    )
    release: str = built(
        "engine version such as 0.8.5, or date such as 2026-01-31, that selects the runtime; "
        "empty: today's",
        default="",
    )
    accelerator: str = built(
        "accelerator in place of the GPU's compute, or nothing", default=NOTHING
    )
    without: str = built(
        f"effects beside kernels that are left out, joined by +: {', '.join(EFFECTS)}, or nothing",
        default=NOTHING,
        given=True,
    )
    max_context: int = choice(
        "longest prompt and output together; 0: the model's limit", at_least=0, default=0
    )
    slo_ttft_s: float = choice("SLO of TTFT", unit="s", above=0.0, default=1.0, given=True)
    slo_tpot_s: float = choice("SLO of TPOT", unit="s", above=0.0, default=0.05, given=True)
    prices: str = built("price list", names="price", default=PUBLIC_CLOUD, given=True)
    usd_per_gpu_hour: float | None = built(
        "overrides the price list", unit="$", at_least=0.0, default=None, given=True
    )
    fidelity: str = one_of(
        f"how it is answered: {' or '.join(FIDELITIES)} (a steady state, without percentiles)",
        FIDELITIES,
        declare=choice,
        given=True,
    )
    sm_scale: float = built("what-if: SMs, relative", above=0.0, default=1.0)
    clock_scale: float = built("what-if: clock, relative", above=0.0, default=1.0)
    bandwidth_scale: float = built("what-if: memory bandwidth, relative", above=0.0, default=1.0)
    l2_scale: float = built("what-if: L2 size, relative", above=0.0, default=1.0)
    speculation: SpeculationConfig = group(SpeculationConfig)
    cache: CacheConfig = group(CacheConfig)
    kv_tiers: KVTiersConfig = group(KVTiersConfig)
    pools: PoolsConfig = group(PoolsConfig)
    moe: MoeConfig = group(MoeConfig)
    scheduling: SchedulingConfig = group(SchedulingConfig)
    arrivals: ArrivalsConfig = group(ArrivalsConfig)
    lengths: LengthsConfig = group(LengthsConfig)
    sessions: SessionsConfig = group(SessionsConfig)
    client: ClientConfig = group(ClientConfig)
    measurement: MeasurementConfig = group(MeasurementConfig)
    autoscaling: AutoscaleConfig = group(AutoscaleConfig)
    lora: LoraConfig = group(LoraConfig)
    colocation: ColocationConfig = group(ColocationConfig)
    dynamic: DynamicInferenceConfig = group(DynamicInferenceConfig)
    power: PowerConfig = group(PowerConfig)

    def __post_init__(self) -> None:
        """Resolve names that are left to the engine; the release is empty afterwards."""
        stated = {name: attrgetter(name)(self) for name in ("model", "gpu", *NAMES)}
        found = resolved_names(stated)
        changed = {name: value for name, value in found.items() if value != stated[name]}
        for name, value in changed.items():
            group, _, option = name.rpartition(".")
            if group:
                value = updated(getattr(self, group), {option: value})
            object.__setattr__(self, group or name, value)

    @property
    def token_budget(self) -> int:
        """Tokens of an iteration with chunked prefill: `chunk_size`, or the engine's default."""
        return self._limits["chunk_size"] if self.chunk_size is None else self.chunk_size

    @property
    def max_num_seqs(self) -> int:
        """Running requests of a replica: `max_batch`, or the engine's default."""
        return self._limits["max_batch"] if self.max_batch is None else self.max_batch

    @property
    def gpu_memory_utilization(self) -> float:
        """Share of GPU memory for the engine: `memory_fraction`, or the engine's default."""
        stated = self.memory_fraction
        return float(self._limits["memory_fraction"] if stated is None else stated)

    @property
    def block_size(self) -> int:
        """Tokens per KV block: `cache.block_size`, or the engine's default."""
        stated = self.cache.block_size
        return self._cache_defaults["cache.block_size"] if stated is None else stated

    @property
    def is_prefix_caching(self) -> bool:
        """Whether prompts reuse KV blocks: `cache.prefix_caching`, or the engine's default."""
        stated = self.cache.prefix_caching
        return self._cache_defaults["cache.prefix_caching"] if stated is None else stated

    @property
    def _limits(self) -> Mapping[str, Any]:
        return limits(self.scheduler, self.gpu, self.tp, self.attention_dp)

    @property
    def _cache_defaults(self) -> Mapping[str, Any]:
        return cache_defaults(self.scheduler, self.cache.preemption)


DEPLOYED = fields_of(ServingPoint, "deployment")
"""Fields that describe the deployment and its cost."""

DEMANDED = fields_of(ServingPoint, "demand")
"""Fields that describe the load: points with equal values serve the same requests."""
