"""Co-located models: reduce a design with neighbours to a design alone on a GPU partition.

A process alone on a share `x` of the SMs keeps all of the bandwidth: the kernel model with fewer
SMs prices it. While neighbours are busy, bandwidth is shared max-min fairly: every process gets its
demand up to an even share, and the rest is divided.

    bandwidth beside others   b = max(1 - traffic of neighbours, 1 / processes)
    SMs beside others         x / max(1, sum of all shares)
    over time                 1 / effective = (1 - p) / alone + p / beside

`p` is the probability that a neighbour is busy. With time slicing, kernels take `1 + sum of the
neighbours' busy shares` times as long. Context switches and L2 evictions are not modelled.

The busy share of each model depends on its partition, and each partition on the busy shares of the
neighbours: a fixed-point iteration over steady states solves both. The result is a device with
fewer SMs, less bandwidth or less time. Memory traffic of a model is the minimum bytes of the mean
request's operators over their time: its prefill alone, and its share of the decode batches.
Latencies include mean interference: bursts of a neighbour are averaged over time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from simulators.catalog.gpu import load_gpu, mig_slice
from simulators.catalog.model import load_model
from simulators.composition.price import Iteration, iteration
from simulators.composition.replica import NOTHING
from simulators.core.columns import batch_of
from simulators.core.errors import Infeasible
from simulators.core.fields import updated, values_of
from simulators.kernels.price import moved_bytes
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.deployment import deployment_of, usd_per_gpu_hour_of
from simulators.serving.engine.limits import load_scheduler
from simulators.serving.gpu_shares import (
    WITHOUT_NEIGHBOURS,
    is_default,
    price_share,
    shares_gpu,
    sm_share_of_others,
)
from simulators.serving.options import (
    ANALYTIC,
    DEFAULT_SCHEDULER,
    LOWER,
    MIG,
    MODULATED,
    MPS,
    ONE_POOL,
    POISSON,
    TIME_SLICE,
    UPPER,
)
from simulators.serving.point import ServingPoint
from simulators.serving.row_defaults import with_engine_defaults
from simulators.serving.steady.design import EVENT_ONLY, lengths_of
from simulators.workload.llm.memory import weight_bytes
from simulators.workload.llm.step import decode_step, prefill_step
from simulators.workload.operators import Collective

BANDWIDTH_STEPS = 256
"""Bandwidth shares are rounded to this many steps, so that equal shares reuse price tables."""


@dataclass(frozen=True)
class NeighbourLoad:
    """Load of another process on the GPU."""

    busy: float = 0.0  # share of the time in which the process has work
    traffic: float = 0.0  # share of the memory bandwidth used while busy
    kv_bytes: float = 0.0  # KV cache on each GPU, mean over time


IDLE, ALWAYS_BUSY = NeighbourLoad(), NeighbourLoad(busy=1.0, traffic=1.0)
"""Bounds of a neighbour's load: idle, or always busy with the whole bandwidth."""


@dataclass(frozen=True)
class GpuPartition:
    """Shares of a whole GPU for one process."""

    sms: float = 1.0
    bandwidth: float = 1.0
    time: float = 1.0


def time_slice_partition(others: Sequence[NeighbourLoad]) -> GpuPartition:
    """Return the partition of a process under time slicing.

    >>> time_slice_partition([NeighbourLoad(busy=1.0), NeighbourLoad(busy=0.5)]).time
    0.4
    """
    return GpuPartition(time=1.0 / (1.0 + sum(other.busy for other in others)))


def sm_share_partition(
    share: float, shares: Sequence[float], others: Sequence[NeighbourLoad]
) -> GpuPartition:
    """Return the partition of a process on a share of the SMs, with neighbours on `shares`.

    >>> sm_share_partition(0.5, [0.5], [IDLE])
    GpuPartition(sms=0.5, bandwidth=1.0, time=1.0)
    >>> sm_share_partition(1.0, [1.0], [NeighbourLoad(busy=1.0, traffic=0.75)])
    GpuPartition(sms=0.5, bandwidth=0.5, time=1.0)
    """
    beside = 1.0 - prod(1.0 - other.busy for other in others)
    if beside <= 0.0:
        return GpuPartition(sms=share)
    taken = sum(other.busy * other.traffic for other in others) / beside
    left = max(1.0 - taken, 1.0 / (1 + len(others)))
    bandwidth = 1.0 / ((1.0 - beside) + beside / left)
    oversubscription = max(1.0, share + sum(shares))
    return GpuPartition(
        sms=share / ((1.0 - beside) + beside * oversubscription),
        bandwidth=round(bandwidth * BANDWIDTH_STEPS) / BANDWIDTH_STEPS,
    )


SteadyStateFunction = Callable[[ServingPoint], ServingMetrics]
"""Function from a point to its steady-state metrics."""


def analytic_point(point: ServingPoint) -> ServingPoint:
    """Return the most similar point that the analytic fidelity supports.

    Bursts become Poisson arrivals, and schedulers without a closed form the default scheduler.
    """
    usual = {name: value for name, value in EVENT_ONLY.items() if name != "ep"}
    known = updated(point, {**usual, "fidelity": ANALYTIC, "usd_per_gpu_hour": None, "seed": 0})
    if known.arrivals.process in MODULATED:
        known = updated(known, {"arrivals.process": POISSON})
    policy = load_scheduler(known.scheduler)
    has_closed_form = policy.chunked or policy.prefill_first
    return known if has_closed_form else replace(known, scheduler=DEFAULT_SCHEDULER)


def load_on_partition(point: ServingPoint, steady_state: SteadyStateFunction) -> NeighbourLoad:
    """Return the load of a model on its partition of the GPU.

    Raises:
        Infeasible: the point has no steady state.
    """
    state = steady_state(point)
    replica = deployment_of(point).hardware.replica
    held = state.kv_use_mean * state.kv_blocks * point.block_size
    context = float(point.max_context or replica.model.max_context)
    row = with_engine_defaults(batch_of(ServingPoint, values_of(point)))
    lengths, _ = lengths_of(row, np.array([context]))
    prompt, output, keys = (float(x[0]) for x in (lengths.prompt, lengths.output, lengths.keys))
    batch = max(1.0, state.mean_batch)
    passes = (
        (1.0, iteration(replica, prefill_step(1.0, prompt))),
        (max(output - 1.0, 0.0) / batch, iteration(replica, decode_step(batch, keys))),
    )
    seconds = sum(count * float(np.asarray(one.latency_s)) for count, one in passes)
    moved = sum(count * _moved_bytes(one) for count, one in passes)
    return NeighbourLoad(
        busy=1.0 if state.saturated else min(1.0, state.utilization),
        traffic=min(1.0, moved / (seconds * load_gpu(point.gpu).hbm_bytes_per_s)),
        kv_bytes=held * replica.kv_token_bytes,
    )


def _moved_bytes(one: Iteration) -> float:
    """Return the minimum bytes moved by the kernels of a pass."""
    return sum(
        float(np.asarray(moved_bytes(row.operator))) * row.operator.repeat
        for row in one.rows
        if not isinstance(row.operator, Collective) and np.any(row.seconds)
    )


GB = 1e9

MAX_ROUNDS, TOLERANCE = 12, 1e-3
"""Most fixed-point iterations, and the largest change of a busy share at convergence."""


MPS_ONLY = ("sm_share", "other_sm_share")
NOT_FOR_SLICES = (*MPS_ONLY, "kv_pool", "interference", "qps")
"""Fields of `colocation` that do not apply to a MIG slice."""


@dataclass(frozen=True)
class Tenant:
    """A co-located model: the point without neighbours, and the share of the SMs."""

    point: ServingPoint
    sm_share: float


def as_partition(point: ServingPoint, steady_state: SteadyStateFunction) -> ServingPoint:
    """Validate a point and reduce it to its partition of the GPUs.

    `steady_state` returns the steady-state metrics of a point. A point without co-located models
    is returned unchanged.

    Raises:
        Infeasible: the weights of all models do not fit, or the GPU cannot be shared in this way.
        UserError: a name is unknown.
    """
    if not shares_gpu(point):
        return point
    _check(point)
    if point.colocation.sharing == MIG:
        own, part = _on_mig_slice(point)
    else:
        tenants = _tenants(point)
        others = _neighbour_loads(point, tenants, steady_state)
        own, part = tenants[0].point, _partition(point.colocation.sharing, tenants, 0, others)
        if point.colocation.kv_pool == ONE_POOL and point.colocation.interference != UPPER:
            own = _with_shared_kv_pool(point, tenants, others)
    usd, share = usd_per_gpu_hour_of(point), price_share(point)
    own = _on_partition(own, part, None if usd is None else usd * share)
    return updated(own, {"colocation.power_share": own.colocation.power_share * share})


def _check(point: ServingPoint) -> None:
    if point.iteration_table or point.accelerator != NOTHING:
        raise Infeasible(
            "sharing_needs_composition",
            "times of user operators or other accelerators do not scale to a partition",
        )
    if point.pools.prefill_gpus:
        raise Infeasible("shared_gpus_have_no_separate_pools")
    if point.colocation.sharing == MIG:
        if point.colocation.models != NOTHING:
            raise Infeasible("mig_slices_are_apart", "a model on a slice has no neighbours")
        for name in NOT_FOR_SLICES:
            if not is_default(point, name):
                reason = f"mig_has_no_colocation_{name}"
                raise Infeasible(reason, "a model on a slice has no neighbours")
        if not point.colocation.mig_slice:
            raise Infeasible("mig_needs_mig_slice")
        if point.tp * point.pp * point.attention_dp > 1:
            raise Infeasible("mig_needs_one_gpu", "slices exchange no data")
    elif point.colocation.mig_slice:
        raise Infeasible("mig_slice_needs_sharing_mig")
    for name in MPS_ONLY:
        if point.colocation.sharing == TIME_SLICE and not is_default(point, name):
            raise Infeasible(f"{name}_needs_sharing_mps")


def _on_mig_slice(point: ServingPoint) -> tuple[ServingPoint, GpuPartition]:
    """Return the point with the memory and L2 of its MIG slice, and the slice."""
    gpu = load_gpu(point.gpu)
    profile = mig_slice(gpu, point.colocation.mig_slice)
    share = profile.memory_share
    whole = point.gpu_memory_utilization * share
    if load_scheduler(point.scheduler).fraction_of_free:
        whole = _memory_fraction(point, share * gpu.hbm_bytes, point.gpu_memory_utilization)
    own = updated(point, WITHOUT_NEIGHBOURS)
    own = replace(own, memory_fraction=whole, l2_scale=own.l2_scale * share)
    return own, GpuPartition(sms=profile.sm_count / gpu.sm_count, bandwidth=share)


def _on_partition(point: ServingPoint, part: GpuPartition, usd: float | None) -> ServingPoint:
    return replace(
        point,
        sm_scale=point.sm_scale * part.sms,
        bandwidth_scale=point.bandwidth_scale * part.bandwidth,
        colocation=replace(point.colocation, time_share=point.colocation.time_share * part.time),
        usd_per_gpu_hour=usd,
    )


def _tenants(point: ServingPoint) -> tuple[Tenant, ...]:
    """Return the point's own model and its neighbours, with free memory split evenly.

    Raises:
        Infeasible: the weights of all models do not fit.
    """
    own = updated(point, WITHOUT_NEIGHBOURS)
    if point.colocation.models == NOTHING:
        return (Tenant(own, point.colocation.sm_share),)
    share = sm_share_of_others(point) if point.colocation.sharing == MPS else 1.0
    load = point.qps if point.colocation.qps is None else point.colocation.qps
    names = point.colocation.models.split("+")
    models = [own, *(_neighbour(own, name, load) for name in names)]
    weights = [_weight_bytes(one) for one in models]
    even = _free_bytes(point, weights) / len(models)
    shares = [point.colocation.sm_share] + [share] * len(names)
    return tuple(
        Tenant(replace(one, memory_fraction=_memory_fraction(one, held + even, 1.0)), x)
        for one, held, x in zip(models, weights, shares, strict=True)
    )


def _neighbour(own: ServingPoint, model: str, qps: float | None) -> ServingPoint:
    """Return a neighbour model on the GPUs of a point; dense models have `ep` 1."""
    ep = own.ep if load_model(model).experts else 1
    return updated(own, {"model": model, "qps": qps, "arrivals.process": POISSON, "ep": ep})


def _with_shared_kv_pool(
    point: ServingPoint, tenants: Sequence[Tenant], others: Sequence[NeighbourLoad]
) -> ServingPoint:
    """Return the point with the free blocks of a shared KV pool, at least an even share."""
    weights = [_weight_bytes(one.point) for one in tenants]
    rest = _free_bytes(point, weights) - sum(other.kv_bytes for other in others)
    own = tenants[0].point
    fraction = _memory_fraction(own, weights[0] + rest, 1.0) if rest > 0.0 else 0.0
    return replace(own, memory_fraction=max(own.gpu_memory_utilization, fraction))


def _partition(
    sharing: str, tenants: Sequence[Tenant], which: int, others: Sequence[NeighbourLoad]
) -> GpuPartition:
    if sharing == TIME_SLICE:
        return time_slice_partition(others)
    shares = [t.sm_share for i, t in enumerate(tenants) if i != which]
    return sm_share_partition(tenants[which].sm_share, shares, others)


def _neighbour_loads(
    point: ServingPoint, tenants: Sequence[Tenant], steady_state: SteadyStateFunction
) -> tuple[NeighbourLoad, ...]:
    """Return the loads of the neighbours.

    Raises:
        Infeasible: the expected load is wanted of a model with expert parallelism.
    """
    count = len(tenants) - 1
    if point.colocation.interference == LOWER or not count:
        return (IDLE,) * count
    if point.colocation.interference == UPPER:
        return (ALWAYS_BUSY,) * count
    if any(one.point.ep > 1 for one in tenants):
        raise Infeasible(
            "expected_interference_needs_ep_1",
            "the analytic fidelity has no ep; use interference lower or upper",
        )
    asked = tuple(Tenant(analytic_point(one.point), one.sm_share) for one in tenants)
    return _equilibrium_loads(point.colocation.sharing, asked, steady_state)[1:]


@functools.lru_cache(maxsize=256)
def _equilibrium_loads(
    sharing: str, tenants: tuple[Tenant, ...], steady_state: SteadyStateFunction
) -> tuple[NeighbourLoad, ...]:
    """Return the load of every tenant at the fixed point of loads and partitions."""
    found = [IDLE] * len(tenants)
    for _ in range(MAX_ROUNDS):
        before = list(found)
        for i, tenant in enumerate(tenants):
            part = _partition(sharing, tenants, i, found[:i] + found[i + 1 :])
            found[i] = load_on_partition(_on_partition(tenant.point, part, None), steady_state)
        moved = [abs(new.busy - old.busy) for new, old in zip(found, before, strict=True)]
        if max(moved) < TOLERANCE:
            break
    return tuple(found)


def _free_bytes(point: ServingPoint, weights: Sequence[float]) -> float:
    """Return the usable memory of the engines without the weights of all models.

    Raises:
        Infeasible: the weights fill the usable memory.
    """
    usable = point.gpu_memory_utilization * load_gpu(point.gpu).hbm_bytes
    if load_scheduler(point.scheduler).fraction_of_free:
        usable += (1.0 - point.gpu_memory_utilization) * sum(weights)
    if (rest := usable - sum(weights)) <= 0.0:
        needed, has = sum(weights) / GB, usable / GB
        raise Infeasible("colocated_weights_exceed_hbm", f"need {needed:.1f} GB, have {has:.1f} GB")
    return rest


def _weight_bytes(point: ServingPoint) -> float:
    replica = deployment_of(point).hardware.replica
    return weight_bytes(replica.model, replica.layout, replica.dtype)


def _memory_fraction(point: ServingPoint, memory_bytes: float, fraction_of_free: float) -> float:
    """Return the `memory_fraction` with which a scheduler's engine uses `memory_bytes`.

    Engines whose fraction refers to free memory use `fraction_of_free` of the free memory.
    """
    memory = float(load_gpu(point.gpu).hbm_bytes)
    if not load_scheduler(point.scheduler).fraction_of_free:
        return memory_bytes / memory
    weights = _weight_bytes(updated(point, WITHOUT_NEIGHBOURS))
    if memory_bytes <= weights:
        raise Infeasible("weights_exceed_hbm")
    return fraction_of_free * (memory_bytes - weights) / (memory - weights)
