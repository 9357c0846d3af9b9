"""The deployment of a design point: model, GPUs, cost, autoscaling and API server.

Autoscaling: at every interval the arrival rate gives the wanted replicas, `ceil(rate /
replica_qps)`; the maximum over the last `scale_down_s` is kept (Kubernetes' horizontal autoscaler
with a request metric: interval 15 s, stabilisation window 300 s by default). A started replica
receives requests after `startup_s`. A stopped replica receives no more and completes its requests.
The plan depends on the arrivals alone.

The API server of a framework parses, tokenises, polls and streams. It adds a delay to every
request, longer for longer prompts, and some iterations to the first token: engines poll for new
requests every few iterations, prepare one iteration during another, and send tokens in groups.
These times are fitted by framework to measured times to the first token. A client inside the
engine's process has none of them, except the measured time to hand over a request and its first
token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from simulators.catalog.accelerator import load_accelerator
from simulators.catalog.cluster import Cluster, cluster_for
from simulators.catalog.engine import engine_order, kernel_choices
from simulators.catalog.gpu import Gpu, load_gpu, what_if, with_clock_share
from simulators.catalog.model import LanguageModel, load_model
from simulators.catalog.price import load_prices
from simulators.composition.engine_defaults import checkpoint_dtype
from simulators.composition.replica import (
    NOTHING,
    Effects,
    Replica,
    Runtime,
    effects_without,
    load_runtime,
    runtime_across,
)
from simulators.core.calibration import read_calibration
from simulators.core.columns import numbers, table_of
from simulators.core.contract import fact
from simulators.core.errors import Infeasible
from simulators.core.fields import columns_of, updated
from simulators.core.folder import once
from simulators.core.jit import Floats, Ints
from simulators.kernels.energy import idle_w_of, with_power_shares
from simulators.serving.options import (
    AUTO,
    NONE,
    NUCLEUS,
    OFF,
    ON,
    OVERLAPPED,
    UNIFIED,
    PoolsConfig,
)
from simulators.serving.point import ServingPoint
from simulators.serving.prices.hardware import Hardware
from simulators.serving.row_groups import kinds_of
from simulators.workload.llm.memory import kv_bytes_per_token, weight_bytes
from simulators.workload.llm.parallelism import (
    GATHERED,
    Parallelism,
    Routing,
    check_blocks,
    check_layout,
    counted_tokens,
)
from simulators.workload.precision import number_bytes, precision

K = TypeVar("K")


@dataclass(frozen=True)
class Deployment:
    """Replicas on GPUs, and their cost per hour."""

    hardware: Hardware
    gpus: int
    usd_per_gpu_hour: float | None
    flops_per_token: float
    peak_flops: float
    pools: tuple[Deployment, ...] = ()  # separate prefill and decode replicas, if any


LOWEST_CLOCK_HZ = 1e8
"""Clocks below are mistakes of unit: the lowest clocks that drivers lock are 132 MHz and more."""

PARALLELISM = ("tp", "pp", "ep", "attention_dp", "moe.redundant_experts")
"""Fields of a point that set the parallelism of a replica."""

OF_POOL = {
    "gpu": "gpu",
    "tp": "tp",
    "ep": "ep",
    "attention_dp": "attention_dp",
    "chunk_size": "chunk_size",
    "max_batch": "max_batch",
    "memory_fraction": "memory_fraction",
    "moe_backend": "moe.backend",
    "redundant_experts": "moe.redundant_experts",
}
"""Options of a deployment that a pool may set itself, by their name after that of the pool."""

ONE_POOL: Mapping[str, Any] = {
    f"pools.{column.name}": column.default
    for column in columns_of(PoolsConfig)
    if column.name.startswith(("prefill_", "decode_"))
}
"""Fields of a point that describe separate pools, and their values without."""

POOLS = tuple(ONE_POOL)


@dataclass(frozen=True)
class Facts:
    """Facts of a deployment that do not depend on requests."""

    gpus: int = fact("GPUs of all replicas", needs=(*PARALLELISM, "replicas", *POOLS))
    weight_bytes_per_gpu: float = fact(
        "weights on the fullest GPU",
        unit="B",
        needs=("model", "dtype", "gpu", *PARALLELISM, *POOLS),
    )
    kv_bytes_per_token: float = fact(
        "KV cache of one token on the fullest GPU",
        unit="B",
        needs=("model", "kv_dtype", *PARALLELISM, *POOLS),
    )
    hbm_bytes: float = fact(
        "memory of one GPU; of two kinds, the fuller one's", unit="B", needs=("gpu", *POOLS)
    )
    model_parameters: float = fact("weights of the model", needs=("model",))


@dataclass(frozen=True, eq=False)
class _ById(Generic[K]):
    """A catalog object as a cache key, compared by identity because comparing content is slow."""

    value: K

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@functools.lru_cache(maxsize=1024)
def _description(key: _ById[Any]) -> str:
    return repr(key.value)


def deployment_of(
    point: ServingPoint, runtime: Callable[[str], Runtime] = load_runtime
) -> Deployment:
    """Return the deployment of a point; `runtime` loads a runtime by name.

    With separate pools, the hardware is that of the prefill replicas, and costs are means over all
    GPUs.

    Raises:
        Infeasible: the model cannot be partitioned in this way, or the GPU lacks the precision.
        UserError: a name is unknown.
    """
    pools = pools_of(point)
    if len(pools) > 1:
        return _combined([deployment_of(pool, runtime) for pool in pools])
    model, sheet = load_model(point.model), load_gpu(point.gpu)
    moe = point.moe
    counted = counted_tokens(moe.routing_histogram) if moe.routing_histogram else ()
    routing = Routing(moe.backend, moe.routing_skew, moe.redundant_experts, counted)
    layout = Parallelism(point.tp, point.pp, point.ep, point.attention_dp, routing)
    array = point.accelerator
    hardware = _hardware(
        _ById(model),
        _ById(sheet),
        _ById(cluster_for(point.cluster, sheet)),
        _ById(runtime_across(runtime(point.runtime), layout.width, runtime)),
        layout,
        (point.dtype, point.kv_dtype),
        (point.sm_scale, point.clock_scale, point.bandwidth_scale, point.l2_scale),
        effects_without(point.without),
        ("", "") if array == NOTHING else (array, repr(load_accelerator(array))),
        (
            point.scheduling.mixed_step,
            point.sampling,
            point.client.stream_interval,
            moe.two_batch_overlap,
        ),
        (point.colocation.time_share, point.colocation.power_share),
        (point.power.clock_hz, point.power.limit_w),
    )
    return Deployment(
        hardware=hardware,
        gpus=layout.gpus * point.replicas,
        usd_per_gpu_hour=usd_per_gpu_hour_of(point),
        flops_per_token=2.0 * model.active_parameters,
        peak_flops=hardware.replica.gpu.peak(precision(point.dtype).compute),
    )


def usd_per_gpu_hour_of(point: ServingPoint) -> float | None:
    """Return the price of a GPU-hour: the point's own, or the listed one; None if unknown."""
    if point.usd_per_gpu_hour is not None:
        return point.usd_per_gpu_hour
    prices, gpu = load_prices(point.prices), load_gpu(point.gpu)
    return prices.usd_per_gpu_hour(gpu) if prices.quote(gpu) else None


def pools_of(point: ServingPoint) -> tuple[ServingPoint, ...]:
    """Return one point per pool: the point itself, or prefill replicas and decode replicas.

    Raises:
        Infeasible: only one pool has GPUs, or the GPUs of a pool do not make whole replicas.

    >>> from simulators.serving.options import PoolsConfig
    >>> both = ServingPoint("llama3_1_8b", "h100_sxm", pools=PoolsConfig(1, 4, 0, 2))
    >>> [(pool.tp, pool.replicas) for pool in pools_of(both)]
    [(1, 1), (2, 2)]
    """
    asked = point.pools
    if not asked.prefill_gpus and not asked.decode_gpus:
        return (point,)
    if not asked.prefill_gpus or not asked.decode_gpus:
        gpus = f"prefill_gpus {asked.prefill_gpus}, decode_gpus {asked.decode_gpus}"
        raise Infeasible("one_pool_without_the_other", gpus)
    return tuple(_pool(point, pool) for pool in ("prefill", "decode"))


def _pool(point: ServingPoint, pool: str) -> ServingPoint:
    """Return the point of one pool; unset options are those of the whole deployment."""
    if point.scheduling.async_scheduling == ON:
        raise Infeasible("async_scheduling_has_no_separate_pools")
    own = own_options(lambda name: attrgetter(name)(point), pool)
    part = updated(point, {**ONE_POOL, **own, "scheduling.async_scheduling": OFF})
    gpus, each = getattr(point.pools, f"{pool}_gpus"), part.tp * part.pp * part.attention_dp
    if gpus % each:
        raise Infeasible(f"{pool}_pool_is_no_whole_replicas", f"{gpus} GPUs, {each} a replica")
    return replace(part, replicas=point.replicas * gpus // each)


def own_options(value: Callable[[str], Any], pool: str) -> dict[str, Any]:
    """Return the options that a pool sets itself; `value` returns that of a field by name."""
    names = {option: f"pools.{pool}_{name}" for name, option in OF_POOL.items()}
    stated = {option: value(name) for option, name in names.items() if name in ONE_POOL}
    unset = (None, NOTHING)
    return {
        option: own
        for option, own in stated.items()
        if own not in unset and (option, own) != ("tp", 0)
    }


def _combined(pools: Sequence[Deployment]) -> Deployment:
    """Combine pools into one deployment: all GPUs, mean cost and peak FLOP/s per GPU."""
    gpus = sum(pool.gpus for pool in pools)
    usd = [pool.usd_per_gpu_hour for pool in pools]
    costs = [pool.gpus * each for pool, each in zip(pools, usd, strict=True) if each is not None]
    return replace(
        pools[0],
        gpus=gpus,
        usd_per_gpu_hour=sum(costs) / gpus if len(costs) == len(pools) else None,
        peak_flops=sum(pool.gpus * pool.peak_flops for pool in pools) / gpus,
        pools=tuple(pools),
    )


@functools.lru_cache(maxsize=1024)
def _hardware(
    model: _ById[LanguageModel],
    gpu: _ById[Gpu],
    cluster: _ById[Cluster],
    runtime: _ById[Runtime],
    layout: Parallelism,
    dtypes: tuple[str, str],
    scales: tuple[float, float, float, float],
    effects: Effects,
    array: tuple[str, str],
    steps: tuple[str, str, int, bool],
    shares: tuple[float, float],
    power: tuple[float, float],
) -> Hardware:
    """Return a validated replica; its description names everything that sets iteration times.

    Raises:
        Infeasible: the GPU lacks a precision, kernel, clock or power limit.
    """
    (dtype, kv_dtype), (accelerator, _) = dtypes, array
    mixed_step, sampling, stream_interval, two_batch_overlap = steps
    (time_share, power_share), (clock_hz, power_limit_w) = shares, power
    number_bytes(kv_dtype)
    check_layout(model.value, layout)
    if two_batch_overlap and layout.routing.backend == GATHERED:
        raise Infeasible("two_batch_overlap_needs_deepep", "it hides the messages of DeepEP")
    check_blocks(model.value, layout, dtype)
    if model.value.attention_sinks and not accelerator:
        _check_sinks(runtime.value.framework, gpu.value)
    _check_dtype(gpu.value, dtype)
    sm, clock, bandwidth, l2 = scales
    device = what_if(
        gpu.value, sm_scale=sm, clock_scale=clock, bandwidth_scale=bandwidth, l2_scale=l2
    )
    if accelerator and (clock_hz or power_limit_w):
        raise Infeasible(
            "accelerator_has_no_gpu_clock", f"power.clock_hz, power.limit_w: {accelerator} computes"
        )
    device = _at_clock(device, clock_hz)
    _check_power_limit(device, power_limit_w)
    if power_share < 1.0:
        work = max(sm, bandwidth)  # the partition's share of the GPU's power limit, at least
        device = with_power_shares(device, power_share, work)
        power_limit_w *= work
    replica = Replica(
        model.value,
        device,
        cluster.value,
        layout,
        dtype=dtype,
        kv_dtype=kv_dtype,
        runtime=runtime.value,
        effects=effects,
        accelerator=accelerator,
        unified=mixed_step == UNIFIED,
        overlapped=mixed_step == OVERLAPPED,
        nucleus=sampling == NUCLEUS,
        stream_interval=stream_interval,
        two_batch_overlap=two_batch_overlap,
        time_share=time_share,
        power_limit_w=power_limit_w,
    )
    parts = tuple(map(_description, (model, gpu, cluster, runtime)))
    steps_of = f"{replica.unified} {replica.overlapped} {replica.nucleus} {steps[2:]}"
    choices = f"{layout} {dtypes} {scales} {effects} {array} {steps_of} {shares} {power}"
    return Hardware(f"{parts} {choices}", replica)


def _check_dtype(gpu: Gpu, dtype: str) -> None:
    """Raise Infeasible if a GPU has no peak rate for the products of a precision."""
    how = precision(dtype)
    for needed in (how.compute, how.activations):
        if needed not in gpu.peak_flops:
            raise Infeasible("dtype_not_supported", f"{gpu.name} has no {needed} rate")


def _at_clock(gpu: Gpu, clock_hz: float) -> Gpu:
    """Return a GPU with a locked clock (0: its highest one), or raise Infeasible."""
    if clock_hz > gpu.clock_hz:
        raise Infeasible(
            "gpu_clock_too_high",
            f"power.clock_hz {clock_hz:g}: {gpu.name} runs at {gpu.clock_hz:g} at most",
        )
    if 0.0 < clock_hz < LOWEST_CLOCK_HZ:
        raise Infeasible(
            "gpu_clock_too_low",
            f"power.clock_hz {clock_hz:g}: no GPU runs below {LOWEST_CLOCK_HZ:g}; write hertz, as "
            f"in {gpu.clock_hz:g}",
        )
    return with_clock_share(gpu, clock_hz / gpu.clock_hz) if clock_hz else gpu


def _check_power_limit(gpu: Gpu, limit_w: float) -> None:
    """Raise Infeasible if a GPU cannot run at a power limit; 0: the data sheet's."""
    if limit_w and limit_w <= idle_w_of(gpu):
        raise Infeasible(
            "power_limit_too_low",
            f"power.limit_w {limit_w:g}: {gpu.name} draws {idle_w_of(gpu):g} W at rest",
        )
    if limit_w and limit_w < (gpu.least_limit_w or 0.0):
        raise Infeasible(
            "power_limit_too_low",
            f"power.limit_w {limit_w:g}: {gpu.name} accepts {gpu.least_limit_w:g} W or more",
        )
    if limit_w > gpu.tdp_w:
        raise Infeasible(
            "power_limit_too_high",
            f"power.limit_w {limit_w:g}: {gpu.name} draws {gpu.tdp_w:g} W at most",
        )


def _check_sinks(framework: str, gpu: Gpu) -> None:
    """Raise Infeasible if a framework has no attention kernel with sinks on a GPU."""

    def is_without(engine: str) -> bool:
        return gpu.architecture in kernel_choices(engine).without_attention_sinks

    if is_without(framework):
        others = ", ".join(name for name in engine_order() if not is_without(name))
        raise Infeasible(
            "no_attention_sinks",
            f"{framework} has no attention with sinks on {gpu.name}; frameworks that do: {others}",
        )


def describe(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the `Facts` of every row; rows of equal model, parallelism and GPU share a lookup."""
    names = ("model", "dtype", "kv_dtype", *PARALLELISM, "gpu", *POOLS)
    kind = kinds_of(batch, names)
    first = batch.select(names).take(pa.array(np.unique(kind, return_index=True)[1]))
    facts_of_pool = functools.cache(_facts_of_pool)
    known = [_facts(row, facts_of_pool) for row in first.to_pylist()]
    gpus, *others = np.array(known, np.float64).reshape(len(known), 5)[kind].T
    return table_of(Facts, [gpus * numbers(batch, "replicas"), *others])


def _facts(
    row: Mapping[str, Any], facts_of_pool: Callable[..., tuple[float, ...]]
) -> tuple[float, ...]:
    """Return the facts of one replica; with separate pools, of the pool with less free memory."""
    pools, gpus = [row], row["tp"] * row["pp"] * row["attention_dp"]
    if row["pools.prefill_gpus"]:
        gpus = row["pools.prefill_gpus"] + row["pools.decode_gpus"]
        pools = [{**row, **own_options(row.get, pool)} for pool in ("prefill", "decode")]
    shared = row["model"], row["gpu"], row["dtype"], row["kv_dtype"]
    found = [
        facts_of_pool(*shared, *(pool[name] for name in PARALLELISM), pool["gpu"]) for pool in pools
    ]
    return gpus, *max(found, key=lambda one: one[0] / one[2])


def _facts_of_pool(
    model_name: str, gpu: str, dtype: str, kv_dtype: str, *parallelism: Any
) -> tuple[float, ...]:
    """Return bytes of weights and of a token's KV cache on a GPU, its memory, and parameters."""
    tp, pp, ep, attention_dp, redundant, own_gpu = parallelism
    model = load_model(model_name)
    dtype = checkpoint_dtype(model_name, gpu) if dtype == AUTO else dtype
    layout = Parallelism(tp, pp, ep, attention_dp, Routing(redundant=redundant))
    weights = weight_bytes(model, layout, dtype)
    kv = kv_bytes_per_token(model, layout, kv_dtype)
    return weights, kv, float(load_gpu(own_gpu).hbm_bytes), float(model.parameters)


@dataclass(frozen=True)
class AutoscalingPlan:
    """The number of replicas over time; replicas start in order and stop in reverse order."""

    decisions_s: Floats  # times of the scaling decisions
    wanted: Ints  # replicas after each decision, starting ones included
    startup_s: float
    routable: Ints  # per request, the number of replicas that can receive the request

    def paid_s(
        self, replica: Ints, arrival_s: Floats, end_s: Floats, span: tuple[float, float]
    ) -> float:
        """Return the replica-seconds that are charged within a span (begin, end).

        A replica is charged from its start until it is stopped and drained; overlapping runs of one
        replica count once. `replica`, `arrival_s` and `end_s` describe the requests.
        """
        begin, end = span
        paid = 0.0
        for i in range(int(self.wanted.max())):
            mine, paid_until = replica == i, begin
            for start, stop in self._runs(i, end):
                inside = mine & (arrival_s >= start) & (arrival_s <= stop)
                drained = float(end_s[inside].max(initial=stop))
                paid += max(0.0, min(end, drained) - max(paid_until, start))
                paid_until = max(paid_until, drained)
        return paid

    def _runs(self, replica: int, end_s: float) -> list[tuple[float, float]]:
        """Return the start and stop times of a replica, one pair per run."""
        on = np.concatenate([[False], self.wanted > replica, [False]])
        moments = np.append(self.decisions_s, max(end_s, float(self.decisions_s[-1])))
        starts, stops = (np.flatnonzero(on[1:] & ~on[:-1]), np.flatnonzero(on[:-1] & ~on[1:]))
        return list(zip(moments[starts].tolist(), moments[stops].tolist(), strict=True))


def plan_of(point: ServingPoint, arrival_s: Floats) -> AutoscalingPlan:
    """Return the autoscaling plan for requests that arrive at ascending times."""
    config = point.autoscaling
    keep = int(np.ceil(config.scale_down_s / config.interval_s))
    decisions_s = np.arange(0.0, float(arrival_s[-1]) + config.interval_s, config.interval_s)
    arrived = np.searchsorted(arrival_s, decisions_s, side="right")
    rate = np.diff(arrived, prepend=0) / config.interval_s
    least = config.min_replicas
    needed = np.clip(np.ceil(rate / config.replica_qps), least, point.replicas).astype(np.int64)
    needed[0] = least
    wanted = np.array([needed[max(0, i - keep) : i + 1].max() for i in range(needed.size)])
    routable = _routable(decisions_s, wanted, config.startup_s, arrival_s)
    return AutoscalingPlan(decisions_s, wanted, config.startup_s, routable)


def _routable(decisions_s: Floats, wanted: Ints, startup_s: float, arrival_s: Floats) -> Ints:
    """Return the replicas that can receive each request: wanted for at least `startup_s`."""
    last = np.searchsorted(decisions_s, arrival_s, side="right") - 1
    ready = np.searchsorted(decisions_s, arrival_s - startup_s, side="right") - 1
    pairs, which = np.unique(np.stack((ready, last)), axis=1, return_inverse=True)
    least = int(wanted[0])
    count = [
        max(least, int(wanted[then : now + 1].min())) if then >= 0 else least
        for then, now in pairs.T.tolist()
    ]
    return np.array(count, np.int64)[which.reshape(-1)]


CALIBRATION = Path(__file__).parent / "calibration" / "frontends.toml"
IN_PROCESS = CALIBRATION.with_name("in_process.toml")
RANK_WAIT = CALIBRATION.with_name("pools.toml")


@dataclass(frozen=True)
class Frontend:
    """The time that a framework's API server adds to the first token."""

    request_s: float = 0.0  # per request
    token_s: float = 0.0  # per prompt token; requests are served one after another
    stream_s: float = 0.0  # per running request, as the server sends their tokens one by one


NO_SERVER = Frontend()
NUMBERS = tuple(f.name for f in fields(Frontend))


def frontend_of(
    point: ServingPoint,
    server: Callable[[str], Frontend],
    process: Callable[[str], Frontend],
    rank_wait_s: float = 0.0,
) -> Frontend:
    """Return the delays of a point's API server, or of the engine's process without a server.

    `server` and `process` load these delays by the name of a runtime. `rank_wait_s`: the time that
    a prompt waits for other ranks, if prefill workers have data-parallel attention.
    """
    found = (process if point.client.frontend == NONE else server)(point.runtime)
    ranks = point.pools.prefill_attention_dp or point.attention_dp
    waits_s = rank_wait_s if point.pools.prefill_gpus and ranks > 1 else 0.0
    return replace(found, request_s=found.request_s + point.client.frontend_s + waits_s)


def load_frontend(runtime: str) -> Frontend:
    """Return the API server of a runtime's framework; `NO_SERVER` for an unknown framework."""
    known = once(read_calibration, CALIBRATION)["frontend"]
    numbers = known.get(load_runtime(runtime).framework, {})
    return Frontend(**{name: numbers[name] for name in NUMBERS if name in numbers})


def load_rank_wait_s() -> float:
    """Return the time that a prompt waits in a pool of workers with data-parallel attention.

    The ranks of a worker run their iterations together. Engines hold a prompt back for a while, so
    that other ranks get prompts too (`batching_wait_iters` and `timeout_iters` of TensorRT-LLM).
    """
    return float(once(read_calibration, RANK_WAIT)["prefill"]["rank_wait_s"])


def load_process(runtime: str) -> Frontend:
    """Return the request overhead of an engine that runs in its client's process (no server)."""
    return Frontend(**once(read_calibration, IN_PROCESS)["in_process"].get(runtime, {}))
