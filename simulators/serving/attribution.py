"""Mixtures of two designs: each group of facts is that of the one or of the other design.

A mixture prices kernels, messages, and launches by three replicas, each of one of the two designs;
schedules by one design; and has the KV blocks, the drafts, and the load of one. So a design with
twice the tensor parallelism is split into faster kernels, slower sums, and more KV blocks, though
one option changed all of them.

Where ranks of data-parallel attention differ, the limits and blocks of all ranks together are kept.

Messages over equal links and launches of an equal runtime differ by the GPU alone, so they change
together with its kernels. What the simulator leaves unexplained of a measured difference most
likely lies where the options that differ change predictions, on measured pairs of one such option.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from simulators.core.errors import UserError
from simulators.core.fields import columns_of, updated
from simulators.serving.deployment import Deployment
from simulators.serving.measured.intervals import error_shares, remainders, with_intervals
from simulators.serving.options import AUTO, EVENT, OFF, ON
from simulators.serving.point import DEMANDED, ServingPoint
from simulators.serving.prices.hardware import Hardware
from simulators.serving.run import PreparedRun, RunCache, prepare

GROUPS = KERNELS, COMMUNICATION, HOST, SCHEDULING, KV_CACHE, SPECULATION, LOAD = (
    "kernels",
    "communication",
    "launches and host",
    "scheduling and queueing",
    "KV cache and prefix hits",
    "speculation",
    "client and load",
)
"""Groups of facts."""

CONFIRMED_BY = {
    KERNELS: "profile one decode and one prefill iteration of both (nsys, rocprof): the time of "
    "each kernel; `sweeper measure` times the operators alone",
    COMMUNICATION: "all-reduce and all-to-all of the message sizes of both (nccl-tests), and their "
    "share of the trace of one iteration",
    HOST: "gaps between kernels in the trace of one iteration, and TTFT of one request on an idle "
    "server",
    SCHEDULING: "running and waiting requests and tokens per iteration over time "
    "(num_requests_running, num_requests_waiting, iteration_tokens)",
    KV_CACHE: "KV blocks at start, use of the KV cache, preemptions and prefix hits over time "
    "(num_gpu_blocks, kv_cache_usage, num_preemptions, prefix_cache_hits)",
    SPECULATION: "accepted tokens per draft position (spec_decode_num_accepted_tokens_per_pos)",
    LOAD: "lengths, arrivals and number of requests that the client of both sent",
}
"""The measurement that confirms the share of a group; names in brackets are counters of vLLM."""

METRICS = ("ttft_mean_s", "tpot_mean_s", "tokens_per_s")
"""Metrics whose difference is attributed."""

_PREFIXES = {
    KV_CACHE: ("cache.", "memory_fraction"),
    SPECULATION: ("speculation.",),
    HOST: ("client.frontend",),
    LOAD: ("measurement.",),
    SCHEDULING: (
        *("scheduling.", "autoscaling.", "scheduler", "router", "chunk_size", "max_batch"),
        *("max_context", "replicas", "runtime"),
    ),
}
"""Beginnings of the fields of a group; `runtime` decides about rules of its release, while its
kernels and launches follow the replicas. All other fields describe kernels."""

RESOLVED = {
    "chunk_size": "token_budget",
    "max_batch": "max_num_seqs",
    "memory_fraction": "gpu_memory_utilization",
    "cache.block_size": "block_size",
    "cache.prefix_caching": "is_prefix_caching",
}
"""Options that a point may leave to the engine, and the attributes that hold their values."""


RELEASE = "release"
OPTIONS = {
    "GPU": ("gpu",),
    "precision": ("dtype", "kv_dtype"),
    RELEASE: ("runtime",),
    "tensor parallelism": ("tp",),
    "expert parallelism": ("ep",),
    "chunk size": ("chunk_size",),
    "speculation": ("speculation.method", "speculation.num_draft_tokens"),
}
"""Options of a deployment that benchmarks record, and the fields of a point that they set."""


def group_of(name: str) -> str:
    """Return the group of facts that a field of a point belongs to.

    >>> group_of("cache.block_size"), group_of("qps"), group_of("tp")
    ('KV cache and prefix hits', 'client and load', 'kernels')
    """
    if name in DEMANDED:
        return LOAD
    return next((group for group, start in _PREFIXES.items() if name.startswith(start)), KERNELS)


@dataclass(frozen=True)
class Design:
    """One of the two designs, with resolved options, looked up and ready to run."""

    point: ServingPoint
    cache: RunCache
    prepared: PreparedRun

    @property
    def hardware(self) -> Hardware:
        """The replica of the design."""
        return self.prepared.deployment.hardware

    @property
    def kv_blocks(self) -> int:
        """KV blocks of all ranks of a replica."""
        limits = self.prepared.pools[0].limits
        return limits.blocks * limits.ranks

    @property
    def half_widths(self) -> Mapping[str, float]:
        """Half-widths of the 90 % intervals of metrics, in logarithms; empty if unknown."""
        found = with_intervals(
            self.prepared.run().metrics(),
            self.cache.bands(self.point),
            think_s=self.point.client.think_s,
        )
        ends = {n: (getattr(found, f"{n}_lo"), getattr(found, f"{n}_hi")) for n in METRICS}
        return {n: math.log(high / low) / 2.0 for n, (low, high) in ends.items() if low and high}

    def fields(self, group: str) -> dict[str, Any]:
        """Return the fields of a group and their values."""
        names = (column.name for column in columns_of(ServingPoint))
        return {name: attrgetter(name)(self.point) for name in names if group_of(name) == group}


def design_of(point: ServingPoint, cache: RunCache | None = None) -> Design:
    """Return a design to be mixed with another one.

    Raises:
        Infeasible: the design cannot exist.
        UserError: the design has an analytic model, or separate pools.
    """
    if point.fidelity != EVENT:
        raise UserError(
            f"compare --explain needs designs of fidelity 'event', not '{point.fidelity}'"
        )
    if point.pools.prefill_gpus:
        raise UserError("compare --explain does not support separate prefill and decode pools")
    cache = cache or RunCache()
    own = {name: attrgetter(attribute)(point) for name, attribute in RESOLVED.items()}
    point = updated(point, own)
    return Design(point, cache, prepare(point, cache=cache))


@dataclass(frozen=True)
class Mixtures:
    """All mixtures of two designs."""

    old: Design
    new: Design
    changed: Collection[str] = ()  # `OPTIONS` that differ, though no field does

    @property
    def remainder(self) -> Mapping[str, float]:
        """Likely shares of groups in what is unexplained; empty if unknown.

        The mean over the options that differ and have measured pairs.
        """
        points = self.old.point, self.new.point
        differ = [
            option
            for option, names in OPTIONS.items()
            if option in self.changed
            or any(len({attrgetter(name)(one) for one in points}) > 1 for name in names)
        ]
        known = [remainders()[option] for option in differ if option in remainders()]
        groups = dict.fromkeys(group for shares in known for group in shares)
        return {n: math.fsum(one.get(n, 0.0) for one in known) / len(known) for n in groups}

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of facts that differ."""
        return tuple(group for group in GROUPS if self._differs(group))

    def _differs(self, group: str) -> bool:
        old, new = self.old, self.new
        are_others = old.hardware != new.hardware
        if group == KERNELS:
            return are_others
        if group in self._with_kernels:
            return False
        if group == COMMUNICATION:
            return are_others and any(one.hardware.replica.layout.gpus > 1 for one in (old, new))
        if group == HOST:
            return are_others or old.prepared.frontend != new.prepared.frontend
        differ = old.fields(group) != new.fields(group)
        if group == SCHEDULING:
            return differ or old.point.attention_dp != new.point.attention_dp
        return differ or (group == KV_CACHE and old.kv_blocks != new.kv_blocks)

    @property
    def _with_kernels(self) -> Collection[str]:
        """Groups that differ by the GPU alone, and change together with its kernels."""
        old, new = (one.hardware.replica for one in (self.old, self.new))
        if old.gpu == new.gpu or old.layout != new.layout or old.runtime.name != new.runtime.name:
            return ()
        found = []
        if old.gpu.link_bytes_per_s == new.gpu.link_bytes_per_s:
            found.append(COMMUNICATION)
        if self.old.fields(HOST) == self.new.fields(HOST):
            found.append(HOST)
        return found

    @property
    def confirmed_by(self) -> Mapping[str, str]:
        """Measurements that confirm the share of a group."""
        return CONFIRMED_BY

    @property
    def scales(self) -> Mapping[str, float]:
        """Combined half-widths of the 90 % intervals of both, in logarithms, by metric.

        Empty with a user's operator times.
        """
        widths = [one.half_widths for one in (self.old, self.new)]
        return {n: math.hypot(*(one[n] for one in widths)) for n in METRICS if n in widths[0]}

    @property
    def half_widths(self) -> Mapping[str, float]:
        """Half-widths of the 90 % interval of ln(new / old), by metric; empty if unknown."""
        return {name: error_shares()[name] * scale for name, scale in self.scales.items()}

    def run(self, taken: Collection[str]) -> Mapping[str, float]:
        """Return `METRICS` of the mixture whose groups `taken` are those of the new design.

        Raises:
            Infeasible: the mixture cannot exist, since no request fits.
        """
        taken = [*taken, *(self._with_kernels if KERNELS in taken else ())]
        by = {group: self.new if group in taken else self.old for group in GROUPS}
        point = self._point(by)
        host, runtime = by[HOST].cache, by[HOST].point.runtime
        cache = RunCache(
            server=lambda _: host.server(runtime), process=lambda _: host.process(runtime)
        )
        built = self._deployment(by)
        cache.deployment = lambda _: built
        cache.requests = by[LOAD].cache.requests
        found = prepare(point, cache=cache).run().metrics()
        return {name: getattr(found, name) or math.nan for name in METRICS}

    def _point(self, by: Mapping[str, Design]) -> ServingPoint:
        fields: dict[str, Any] = {}
        for group, design in by.items():
            fields |= design.fields(group)
        ranks = by[SCHEDULING].point.attention_dp / by[KERNELS].point.attention_dp
        for name in ("max_batch", "chunk_size"):
            fields[name] = max(1, round(fields[name] * ranks))
        rule = by[SCHEDULING].prepared.pools[0].limits.async_scheduling
        if not rule:
            fields["scheduling.async_scheduling"] = OFF
        elif fields["scheduling.async_scheduling"] == ON:
            fields["scheduling.async_scheduling"] = AUTO  # where the mixture's drafts allow it
        return updated(by[KERNELS].point, fields)

    def _deployment(self, by: Mapping[str, Design]) -> Deployment:
        kernels, messages, host = (by[group].hardware for group in (KERNELS, COMMUNICATION, HOST))
        description, replica = kernels.description, kernels.replica
        if messages != kernels:
            description += f" messages {messages.description}"
            replica = replace(replica, messages_as=messages.replica)
        if host != kernels:
            description += f" host {host.description}"
            replica = replace(replica, host_as=host.replica)
        mixed = Hardware(description, replica, by[KV_CACHE].kv_blocks)
        return replace(by[KERNELS].prepared.deployment, hardware=mixed)


def mixtures(
    old: ServingPoint,
    new: ServingPoint,
    caches: Sequence[RunCache] = (),
    changed: Collection[str] = (),
) -> Mixtures:
    """Return the mixtures of two designs; `caches` hold constants of the one and of the other.

    `changed`: options that differ in ways the points do not show, such as two releases that share a
    runtime.

    Raises:
        Infeasible: one of the designs cannot exist.
        UserError: the designs serve different models, one is not simulated by events, or a changed
            option is unknown.
    """
    if unknown := [name for name in changed if name not in OPTIONS]:
        raise UserError(f"unknown option '{unknown[0]}'; known: {', '.join(OPTIONS)}")
    if old.model != new.model:
        raise UserError(
            f"compare --explain needs designs of one model, not {old.model} and {new.model}"
        )
    first, second = caches or (None, None)
    return Mixtures(design_of(old, first), design_of(new, second), tuple(changed))
