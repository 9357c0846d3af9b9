"""A deployment and its load: the fields of `ServingPoint` are the axes of a serving space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from simulators.catalog.carbon import read_grid
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
from simulators.serving.options import (
    AUTO,
    DEFAULT_SCHEDULER,
    FIDELITIES,
    SAMPLINGS,
    ArrivalsConfig,
    AutoscaleConfig,
    CacheConfig,
    ClientConfig,
    ColocationConfig,
    DynamicInferenceConfig,
    KVTiersConfig,
    LengthsConfig,
    LoraConfig,
    MeasurementConfig,
    MoeConfig,
    PoolsConfig,
    PowerConfig,
    SchedulingConfig,
    SessionsConfig,
    SpeculationConfig,
    load_option,
    one_of,
    option,
)
from simulators.workload.precision import number_bytes, precision


@dataclass(frozen=True)
class ServingPoint:
    """A deployment and its load."""

    model: str = option("the language model", names="model", given=True)
    gpu: str = option("the GPU, or the path of a data sheet", names="gpu")
    cluster: str = option("the nodes; auto: the usual ones of the GPU", default="auto")
    tp: int = option("tensor parallel degree", at_least=1, default=1)
    pp: int = option("pipeline stages", at_least=1, default=1)
    ep: int = option("expert parallel degree", at_least=1, default=1)
    attention_dp: int = option(
        "data parallel degree of attention: groups of tp GPUs that share the experts",
        at_least=1,
        default=1,
    )
    replicas: int = option("replicas of tp * pp * attention_dp GPUs each", at_least=1, default=1)
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
    qps: float | None = load_option(
        "requests per second to all replicas; null: the trace's arrivals, or (analytic) a "
        "full batch",
        unit="1/s",
        above=0.0,
        default=1.0,
    )
    workload: str = load_option(
        "lengths: chat, code, sharegpt, summarization, agentic, a file, or the path of a trace",
        names="workload",
        default="chat",
    )
    prompt_tokens: int = load_option("prompt tokens; 0: the workload's", at_least=0, default=0)
    output_tokens: int = load_option("output tokens; 0: the workload's", at_least=0, default=0)
    requests: int = load_option("simulated requests; 0: all of a trace", at_least=0, default=500)
    seed: int = load_option("seed of arrivals and lengths", at_least=0, default=0)
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
    dtype: str = option(
        "precision: fp16, fp8, int8, w4a16 ...; auto: the checkpoint's",
        default=AUTO,
        reads=lambda text: text == AUTO or precision(text),
    )
    kv_dtype: str = option("precision of the KV cache", default="fp16", reads=number_bytes)
    runtime: str = option(
        f"what runs the kernels: {', '.join(FRAMEWORKS)}, graphs, eager ...; auto: the engine "
        f"whose scheduler it is, {reference_engine().name} for those of none",
        default=AUTO,
    )
    release: str = option(
        "engine version such as 0.8.5, or date such as 2026-01-31, that selects the runtime; "
        "empty: today's",
        default="",
    )
    accelerator: str = option(
        "accelerator in place of the GPU's compute, or nothing", default=NOTHING
    )
    without: str = option(
        f"effects beside kernels that are left out, joined by +: {', '.join(EFFECTS)}, or nothing",
        default=NOTHING,
        given=True,
    )
    max_context: int = choice(
        "longest prompt and output together; 0: the model's limit", at_least=0, default=0
    )
    slo_ttft_s: float = choice("SLO of TTFT", unit="s", above=0.0, default=1.0, given=True)
    slo_tpot_s: float = choice("SLO of TPOT", unit="s", above=0.0, default=0.05, given=True)
    prices: str = option("price list", names="price", default=PUBLIC_CLOUD, given=True)
    usd_per_gpu_hour: float | None = option(
        "overrides the price list", unit="$", at_least=0.0, default=None, given=True
    )
    grid: str = choice(
        "grid of the electricity: a nation, as in france, or grams of CO2e per kWh; empty: the "
        "price list's",
        default="",
        reads=read_grid,
        given=True,
    )
    gpu_life_years: float = choice(
        "years of use over which the carbon of making a GPU is spread, as price lists of owned "
        "nodes depreciate them",
        unit="",
        above=0.0,
        default=4.0,
        given=True,
    )
    fidelity: str = one_of(
        f"how it is answered: {' or '.join(FIDELITIES)} (a steady state, without percentiles)",
        FIDELITIES,
        declare=choice,
        given=True,
    )
    sm_scale: float = option("what-if: SMs, relative", above=0.0, default=1.0)
    clock_scale: float = option("what-if: clock, relative", above=0.0, default=1.0)
    bandwidth_scale: float = option("what-if: memory bandwidth, relative", above=0.0, default=1.0)
    l2_scale: float = option("what-if: L2 size, relative", above=0.0, default=1.0)
    speculation: SpeculationConfig = group(SpeculationConfig, switch="method")
    cache: CacheConfig = group(CacheConfig)
    kv_tiers: KVTiersConfig = group(KVTiersConfig)
    pools: PoolsConfig = group(PoolsConfig, switch="prefill_gpus")
    moe: MoeConfig = group(MoeConfig)
    scheduling: SchedulingConfig = group(SchedulingConfig)
    arrivals: ArrivalsConfig = group(ArrivalsConfig)
    lengths: LengthsConfig = group(LengthsConfig)
    sessions: SessionsConfig = group(SessionsConfig)
    client: ClientConfig = group(ClientConfig)
    measurement: MeasurementConfig = group(MeasurementConfig)
    autoscaling: AutoscaleConfig = group(AutoscaleConfig, switch="min_replicas")
    lora: LoraConfig = group(LoraConfig, switch="adapters")
    colocation: ColocationConfig = group(ColocationConfig)
    dynamic: DynamicInferenceConfig = group(DynamicInferenceConfig)
    power: PowerConfig = group(PowerConfig)

    def __post_init__(self) -> None:
        """Resolve names that are left to the engine; the release is empty afterwards."""
        stated = {name: attrgetter(name)(self) for name in ("model", "gpu", *NAMES)}
        found = resolved_names(stated)
        changed = {name: value for name, value in found.items() if value != stated[name]}
        for name, value in changed.items():
            group, _, field = name.rpartition(".")
            if group:
                value = updated(getattr(self, group), {field: value})
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
