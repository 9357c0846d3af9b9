"""Option groups of a serving point, such as `SpeculationConfig`, and the words they accept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulators.catalog.engine import reference_engine
from simulators.composition.replica import NOTHING
from simulators.core.contract import choice
from simulators.workload.llm.parallelism import BACKENDS
from simulators.workload.llm.transformer import ALL, TARGETS

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
SERVERS = WARM, FRESH = "warm", "fresh"
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

option = functools.partial(choice, part="deployment")
load_option = functools.partial(choice, part="demand", given=True)


def one_of(
    doc: str, known: Sequence[str], *, declare: Callable[..., Any] = option, **options: Any
) -> Any:
    """Declare a field with a list of known values, the first of which is the default."""
    return declare(doc, known=known, default=known[0], **options)


def pool_option(pool: str, name: str, **rule: Any) -> Any:
    """Declare an option of one of two separate pools, by default that of the whole deployment."""
    default = NOTHING if "known" in rule else None
    unset = default or "null"
    return option(f"{name} of {pool} replicas; {unset}: {name}", default=default, **rule)


@dataclass(frozen=True)
class SpeculationConfig:
    """Speculative decoding."""

    method: str = one_of(
        "speculative decoding: ngram, draft (draft_model), medusa, eagle, eagle3, mtp or nothing",
        SPECULATIONS,
    )
    draft_model: str = option("draft model of method draft", names="model", default=NOTHING)
    num_draft_tokens: int = option(
        "draft tokens per sequence and iteration", at_least=0, at_most=16, default=3
    )
    topk: int = option("branches of a draft tree; 1: a chain", at_least=1, at_most=16, default=1)
    tree_nodes: int = option(
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
        "memory per GPU for swapped requests",
        unit="B",
        at_least=0.0,
        default=4e9,
        acts_if={"cache.preemption": (SWAP,)},
    )
    offload_to: str = one_of(
        "target of swapped requests and evicted prefixes: host, peer (another GPU), ssd (prefixes)",
        OFFLOADS,
        declare=choice,
        acts_if={"cache.preemption": (SWAP,), "cache.prefix_host_bytes": ()},
    )
    view_refresh_s: float = choice(
        "age at which a router's view of the prefix caches is renewed; 0: always current",
        unit="s",
        at_least=0.0,
        at_most=1e9,
        default=0.0,
    )


OF_TIERS = {"cache.prefix_host_bytes": (), "kv_tiers.nvme_bytes": (), "kv_tiers.remote_bytes": ()}
"""Options of which one, above zero, gives the KV cache a tier."""


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
        acts_if={"kv_tiers.nvme_bytes": ()},
    )
    nvme_write_bytes_per_s: float | None = choice(
        "write rate of the drives per GPU; null: 4.1 GB/s, one PCIe 4.0 drive",
        unit="B/s",
        above=0.0,
        default=None,
        acts_if={"kv_tiers.nvme_bytes": ()},
    )
    nvme_latency_s: float = choice(
        "latency of a load from NVMe",
        unit="s",
        at_least=0.0,
        at_most=3600.0,
        default=1e-4,
        acts_if={"kv_tiers.nvme_bytes": ()},
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
        acts_if={"kv_tiers.remote_bytes": ()},
    )
    remote_write_bytes_per_s: float | None = choice(
        "write rate of the store per GPU of a replica; null: the network card's",
        unit="B/s",
        above=0.0,
        default=None,
        acts_if={"kv_tiers.remote_bytes": ()},
    )
    remote_total_bytes_per_s: float | None = choice(
        "rate of the whole store, for all replicas; null: no limit",
        unit="B/s",
        above=0.0,
        default=None,
        acts_if={"kv_tiers.remote_bytes": ()},
    )
    remote_latency_s: float = choice(
        "latency of a load from the store",
        unit="s",
        at_least=0.0,
        at_most=3600.0,
        default=1e-3,
        acts_if={"kv_tiers.remote_bytes": ()},
    )
    shared: str = choice(
        "nearest tier (host, nvme or remote) that all replicas share, as they share the tiers "
        "behind it; or nothing",
        known=(REMOTE, NVME, HOST_MEMORY, NOT_SHARED),
        default=REMOTE,
        acts_if=OF_TIERS,
    )
    write_policy: str = choice(
        "when blocks are written to tiers: write_through (to all tiers when a request ends), "
        "write_through_selective (then, if used twice) or write_back (to the next tier, on "
        "eviction)",
        known=WRITE_POLICIES,
        default=THROUGH,
        acts_if=OF_TIERS,
    )
    eviction: str = choice(
        "eviction from tiers: lru, lfu, or belady (farthest next use: an upper bound of hits)",
        known=EVICTIONS,
        default=LRU,
        acts_if=OF_TIERS,
    )
    page_tokens: int = choice(
        "tokens of a page; tiers store and load whole pages; 0: a KV block",
        at_least=0,
        default=0,
        acts_if=OF_TIERS,
    )
    load: str = choice(
        "what waits for a load: the batch, or only the request while others run",
        known=LOADS,
        default=OF_BATCH,
        acts_if=OF_TIERS,
    )


@dataclass(frozen=True)
class PoolsConfig:
    """Separate prefill and decode replicas."""

    prefill_gpus: int = option(
        "GPUs of prefill replicas, per copy; 0: no separate pools", at_least=0, default=0
    )
    decode_gpus: int = option("GPUs of decode replicas, per copy", at_least=0, default=0)
    prefill_tp: int = option("tp of prefill replicas; 0: tp", at_least=0, default=0)
    decode_tp: int = option("tp of decode replicas; 0: tp", at_least=0, default=0)
    prefill_ep: int | None = pool_option("prefill", "ep", at_least=1)
    decode_ep: int | None = pool_option("decode", "ep", at_least=1)
    prefill_attention_dp: int | None = pool_option("prefill", "attention_dp", at_least=1)
    decode_attention_dp: int | None = pool_option("decode", "attention_dp", at_least=1)
    prefill_chunk_size: int | None = pool_option("prefill", "chunk_size", at_least=1)
    decode_chunk_size: int | None = pool_option("decode", "chunk_size", at_least=1)
    prefill_max_batch: int | None = pool_option("prefill", "max_batch", at_least=1)
    decode_max_batch: int | None = pool_option("decode", "max_batch", at_least=1)
    prefill_memory_fraction: float | None = pool_option(
        "prefill", "memory_fraction", above=0.0, at_most=1.0
    )
    decode_memory_fraction: float | None = pool_option(
        "decode", "memory_fraction", above=0.0, at_most=1.0
    )
    prefill_moe_backend: str = pool_option("prefill", "moe.backend", known=(NOTHING, *BACKENDS))
    decode_moe_backend: str = pool_option("decode", "moe.backend", known=(NOTHING, *BACKENDS))
    prefill_redundant_experts: int | None = pool_option(
        "prefill", "moe.redundant_experts", at_least=0
    )
    decode_redundant_experts: int | None = pool_option(
        "decode", "moe.redundant_experts", at_least=0
    )
    decode_gpu: str = option("GPU of decode replicas; nothing: gpu", names="gpu", default=NOTHING)
    kv_link: str = one_of(
        "link of KV transfers: nvlink (within a node), rdma, ethernet, infinite, or auto "
        "(NVLink within a node, else RDMA)",
        LINKS,
    )
    kv_link_bytes_per_s: float | None = option(
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
    redundant_experts: int = option(
        "expert copies per layer, for balanced ranks", at_least=0, default=0
    )
    two_batch_overlap: bool = option(
        "whether a batch runs as two halves: kernels of one hide DeepEP's messages of the other",
        default=False,
    )
    routing_skew: float = option(
        "expert popularity: exponent of Zipf's law; 0: uniform",
        at_least=0.0,
        default=0.0,
        given=True,
    )
    routing_histogram: str = option(
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
    mixed_step: str = option(
        "prefills and decodes of one iteration: unified (one attention kernel, where "
        "available), batch (a kernel each), overlapped (both at once), additive (one after "
        "the other)",
        known=MIXED_STEPS,
        default=UNIFIED,
    )


@dataclass(frozen=True)
class ArrivalsConfig:
    """Arrival process."""

    process: str = one_of(
        f"gaps between arrivals: {', '.join(ARRIVALS)}", ARRIVALS, declare=load_option
    )
    clients: int = load_option(
        "clients of a closed loop", at_least=1, default=64, acts_if={"arrivals.process": (CLOSED,)}
    )
    burst_ratio: float = load_option(
        "mmpp: rate in bursts over the rate between",
        above=0.0,
        default=4.0,
        acts_if={"arrivals.process": (MMPP,)},
    )
    burst_s: float = load_option(
        "mmpp: mean length of a burst",
        unit="s",
        above=0.0,
        default=10.0,
        acts_if={"arrivals.process": (MMPP,)},
    )
    calm_s: float = load_option(
        "mmpp: mean time between bursts",
        unit="s",
        above=0.0,
        default=50.0,
        acts_if={"arrivals.process": (MMPP,)},
    )
    swing: float = load_option(
        "diurnal: peak rate over the mean, minus 1",
        at_least=0.0,
        at_most=1.0,
        default=0.5,
        acts_if={"arrivals.process": (DIURNAL,)},
    )
    period_s: float = load_option(
        "diurnal: time from peak to peak",
        unit="s",
        above=0.0,
        default=86_400.0,
        acts_if={"arrivals.process": (DIURNAL,)},
    )


@dataclass(frozen=True)
class LengthsConfig:
    """Distribution of prompt and output lengths."""

    spread: float = load_option(
        "fixed lengths are uniform down to this share below them",
        at_least=0.0,
        below=1.0,
        default=0.0,
        acts_if={"prompt_tokens": (), "output_tokens": ()},
    )
    shape: str = one_of(
        "distribution of fixed lengths: evenly (by spread), as_workload (scaled to these "
        "means) or bench_serving (as that client draws them)",
        SHAPES,
        declare=load_option,
        acts_if={"prompt_tokens": (), "output_tokens": ()},
    )
    max_output_tokens: int = load_option("limit of the output; 0: none", at_least=0, default=0)


@dataclass(frozen=True)
class SessionsConfig:
    """Multi-turn sessions and shared prefixes."""

    turns: int = load_option(
        "requests per session; each prompt repeats the turns before it", at_least=1, default=1
    )
    turn_tokens: int = load_option(
        "new prompt tokens of later turns, as of a tool's answer; 0: as the first prompt",
        at_least=0,
        default=0,
    )
    system_prompt_tokens: int = load_option("tokens that begin all prompts", at_least=0, default=0)
    duration_s: float = load_option(
        "sessions of agents: time of sending, after each client has warmed up in the middle of a "
        "session; 0: every session once, from its start",
        unit="s",
        at_least=0.0,
        default=0.0,
    )


@dataclass(frozen=True)
class ClientConfig:
    """Client and API server."""

    think_s: float = load_option(
        "think time of closed-loop clients and between turns of a session",
        unit="s",
        at_least=0.0,
        default=0.0,
        acts_if={"arrivals.process": (CLOSED,), "sessions.turns": ()},
    )
    frontend: str = one_of(
        "API server: auto (that of the runtime's framework) or none", FRONTENDS, declare=choice
    )
    frontend_s: float = choice(
        "additional latency before the engine", unit="s", at_least=0.0, default=0.0
    )
    ignore_eos: bool = load_option(
        "whether clients ask for answers of their longest length, as benchmark clients do",
        default=True,
    )
    stream_interval: int = option(
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
    server: str = one_of(
        "server at the first request: warm (has answered such requests) or fresh (started for this "
        "load: kernels that run for the first time are compiled or loaded)",
        SERVERS,
        declare=choice,
    )


@dataclass(frozen=True)
class AutoscaleConfig:
    """Autoscaling of replicas."""

    min_replicas: int = option(
        "replicas that always run, of `replicas` at most; 0: no autoscaling", at_least=0, default=0
    )
    replica_qps: float = option(
        "arrivals per second for each started replica", unit="1/s", above=0.0, default=1.0
    )
    startup_s: float = option("time to start a replica", unit="s", at_least=0.0, default=60.0)
    interval_s: float = option("interval of scaling decisions", unit="s", above=0.0, default=15.0)
    scale_down_s: float = option(
        "time of lower load before a replica stops", unit="s", at_least=0.0, default=300.0
    )


@dataclass(frozen=True)
class LoraConfig:
    """LoRA adapters."""

    adapters: int = option("LoRA adapters, one per request; 0: none", at_least=0, default=0)
    rank: int = option("rank of all adapters", at_least=1, default=16)
    targets: str = option(
        "adapted layers: attention projections, or all linear layers", known=TARGETS, default=ALL
    )
    zipf: float = option("adapter popularity: exponent of Zipf's law", at_least=0.0, default=0.0)
    kernels: str = one_of(
        "adapter kernels: grouped by adapter (SGMV) or by_token in decodes (BGMV, S-LoRA)",
        ADAPTER_KERNELS,
    )
    slots: int = option(
        "adapters kept on a GPU; 0: those of a full batch (by_token: their mean)",
        at_least=0,
        default=0,
    )


@dataclass(frozen=True)
class ColocationConfig:
    """Several models on the same GPUs."""

    models: str = option("other models on the same GPUs, joined by +, or nothing", default=NOTHING)
    qps: float | None = option(
        "requests per second to each of them, with this model's lengths; null: the same",
        unit="1/s",
        above=0.0,
        default=None,
        acts_if={"colocation.models": ()},
    )
    sharing: str = one_of(
        "GPU sharing: time_slice, mps (shares of the SMs) or mig (a slice with its own memory)",
        SHARINGS,
    )
    sm_share: float = option("mps: SM share of the model", above=0.0, at_most=1.0, default=1.0)
    other_sm_share: float = option(
        "mps: SM share of each other model; 0: an equal part of the rest",
        at_least=0.0,
        at_most=1.0,
        default=0.0,
    )
    mig_slice: str = option("mig: profile, such as 3g; empty: the whole GPU", default="")
    kv_pool: str = one_of(
        "KV memory of co-located models: split evenly, or one shared pool",
        POOLS,
        acts_if={"colocation.models": ()},
    )
    interference: str = one_of(
        "load of the other models: expected, lower bound (idle) or upper bound (always busy)",
        INTERFERENCES,
        acts_if={"colocation.models": ()},
    )
    time_share: float = option("share of a GPU's time", above=0.0, at_most=1.0, default=1.0)
    power_share: float = option("share of a GPU's idle power", above=0.0, at_most=1.0, default=1.0)


@dataclass(frozen=True)
class DynamicInferenceConfig:
    """Early exit, mixture of depths, pruned prompts."""

    exit_depth: float = option(
        "early exit: mean share of layers of a decoded token", above=0.0, at_most=1.0, default=1.0
    )
    exit_depth_std: float = option(
        "early exit: its standard deviation", at_least=0.0, below=0.5, default=0.0
    )
    mod_capacity: float = option(
        "mixture of depths: share of tokens in every other layer",
        above=0.0,
        at_most=1.0,
        default=1.0,
    )
    prune_keep_ratio: float = option(
        "pruned prompts: share of tokens kept after prune_after_layer",
        above=0.0,
        at_most=1.0,
        default=1.0,
    )
    prune_after_layer: int = option(
        "pruned prompts: layers before pruning",
        at_least=0,
        default=2,
        acts_if={"dynamic.prune_keep_ratio": ()},
    )


@dataclass(frozen=True)
class PowerConfig:
    """GPU clocks and power limits."""

    clock_hz: float = option(
        "locked GPU clock (nvidia-smi --lock-gpu-clocks); 0: the highest",
        unit="Hz",
        at_least=0.0,
        default=0.0,
    )
    limit_w: float = option(
        "GPU power limit (nvidia-smi --power-limit); 0: the data sheet's",
        unit="W",
        at_least=0.0,
        default=0.0,
    )
