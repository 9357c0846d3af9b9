"""Simulation of a design point: look up the deployment, then serve the requests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np

from simulators.composition.replica import NOTHING, Runtime, load_runtime
from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import check_point
from simulators.core.jit import Kernel
from simulators.serving.adapters import popularity
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.answer.summary import ServingRun
from simulators.serving.demand.requests import Requests, requests_of, stream
from simulators.serving.demand.sessions import has_sessions
from simulators.serving.deployment import (
    NO_SERVER,
    AutoscalingPlan,
    Deployment,
    Frontend,
    deployment_of,
    frontend_of,
    load_frontend,
    load_process,
    load_rank_wait_s,
    plan_of,
    pools_of,
)
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_transfer import link_of
from simulators.serving.engine.limits import (
    ReplicaLimits,
    Scheduler,
    limits_of,
    load_router,
    load_scheduler,
)
from simulators.serving.engine.replica import ReplicaState
from simulators.serving.engine.service import (
    Decoders,
    EngineKernels,
    after_frontend,
    seen_by_clients,
    serve,
)
from simulators.serving.equal_runs import CompletedRun, RunConditions
from simulators.serving.first_use import Stalls, after_stall, stall_s
from simulators.serving.measured.corrections import UserRows
from simulators.serving.measured.intervals import (
    combined_interval,
    fitted_width,
    latency_intervals,
)
from simulators.serving.options import ADAPTIVE, BELADY, EVENT
from simulators.serving.point import DEMANDED, DEPLOYED, ServingPoint
from simulators.serving.prices.batch_price import MeanLoad, prices_of, worth_drafting
from simulators.serving.prices.iteration_table import Ends, IterationTable
from simulators.serving.speculation import drafter_of, times_interval

V = TypeVar("V")

CACHE_SIZE = 64
"""Most deployments, and most sets of requests, in a cache."""
MOST_COMPLETED = 1024
"""Most completed runs in a cache: loads and schedulers may vary between two equal runs."""


class RunCache:
    """Deployments and requests that several points of one batch share.

    Args:
        runtime: loads a runtime by name.
        server: loads the API server of a runtime by name.
        process: loads the engine process of a runtime by name, for `frontend=none`.
    """

    def __init__(
        self,
        runtime: Callable[[str], Runtime] = load_runtime,
        server: Callable[[str], Frontend] = load_frontend,
        process: Callable[[str], Frontend] = load_process,
    ) -> None:
        self.scheduler = functools.cache(load_scheduler)
        self.router = functools.cache(load_router)
        self.server = functools.cache(server)
        self.process = functools.cache(process)
        self.user_rows = UserRows()
        self.width_of = fitted_width  # of intervals, by engine and metric
        self.tails: Mapping[str, Ends] | None = None  # of 99th percentiles, in place of the fitted
        self.rank_wait_s = load_rank_wait_s()
        self.stalls: Stalls | None = None  # of fresh servers, in place of the fitted ones
        self.deployment = _once(functools.partial(deployment_of, runtime=runtime), DEPLOYED)
        self.requests = _once(requests_of, DEMANDED)
        self.completed: dict[object, CompletedRun] = {}  # by point without its limit of requests
        self.bands = _once(
            self._bands, (*DEPLOYED, "iteration_table", "speculation.acceptance", "workload")
        )

    def remember(self, key: object, run: CompletedRun) -> None:
        """Keep what a run was, in place of the oldest if there are many."""
        if len(self.completed) == MOST_COMPLETED:
            del self.completed[next(iter(self.completed))]
        self.completed[key] = run

    def _bands(self, point: ServingPoint) -> Mapping[str, Ends]:
        """Return the 90 % intervals of a deployment's latencies; none with a user's operator times.

        Measured acceptance rates add their own error to the times between tokens. No deployment was
        measured under sessions of agents.
        """
        if point.iteration_table:
            return {}
        built = self.deployment(point)
        reach = [prices_of(point, pool.hardware)[0].reach for pool in built.pools or (built,)]
        found = latency_intervals(
            point.runtime,
            {**reach[0], "tpot": reach[-1]["tpot"]},
            self.width_of,
            is_measured_load=not has_sessions(point.workload),
        )
        drafts = point.speculation
        if drafts.method == NOTHING or not drafts.num_draft_tokens or drafts.acceptance.strip():
            return found
        return {**found, "tpot": combined_interval(found["tpot"], times_interval())}


def _once(find: Callable[[ServingPoint], V], fields: Sequence[str]) -> Callable[[ServingPoint], V]:
    """Return `find` with a bounded cache whose key is the values of some fields of the point."""
    known: dict[object, V] = {}
    key = attrgetter(*fields)

    def found(point: ServingPoint) -> V:
        values = key(point)
        if values not in known:
            if len(known) == CACHE_SIZE:
                del known[next(iter(known))]
            known[values] = find(point)
        return known[values]

    return found


class ReplicaPool(NamedTuple):
    """Equal replicas: deployment, limits, and the price of iterations."""

    deployment: Deployment
    replicas: int
    limits: ReplicaLimits
    table: IterationTable
    price: Kernel[..., float]


@dataclass(frozen=True)
class PreparedRun:
    """A deployment and its requests, before the first arrival."""

    point: ServingPoint
    deployment: Deployment
    pools: Sequence[ReplicaPool]  # one, or prefill replicas and decode replicas
    admitted: Requests
    rejected: int
    frontend: Frontend
    plan: AutoscalingPlan | None
    engine: EngineKernels
    stalled_s: float = 0.0  # at the first prompts of a fresh server

    @property
    def conditions(self) -> RunConditions | None:
        """The conditions under which another design has an equal run; None if they are unknown."""
        [first, *others], asked = self.pools, self.admitted
        limits = first.limits
        is_unknown = others or asked.prefixes is not None or asked.graph is not None
        is_unknown = is_unknown or limits.reserves or limits.ranks > 1 or self.stalled_s > 0.0
        if is_unknown or not self.engine.scheduler.limits_only_refuse:
            return None
        longest = int((asked.prompt_tokens + asked.output_tokens).max())
        return RunConditions(
            self.deployment, self.frontend, first.table, limits, self.rejected, longest
        )

    def run(self, log_rows: int = 0) -> ServingRun:
        """Serve all requests and return the run; log at most `log_rows` batches.

        Raises:
            Infeasible: the pools have no link.
            UserError: a request never completes.
        """
        first, *others = self.pools
        decoders = None
        for decode in others:
            ends = [(pool.deployment.hardware.replica, pool.limits.ranks) for pool in self.pools]
            decoders = Decoders(
                limits=decode.limits,
                replicas=decode.replicas,
                shape=decode.table.shape,
                table=decode.table.table,
                link=link_of(self.point, ends),
            )
        requests = _with_shared_prefixes(self.point, self.admitted)
        state = serve(
            self.engine,
            first.limits,
            after_frontend(requests, self.frontend, first.replicas),
            replicas=first.replicas,
            shape=first.table.shape,
            table=first.table.table,
            log_rows=log_rows,
            decoders=decoders,
        )
        state = state._replace(tree=state.tree[:0].copy())  # frees its memory
        served, completed = self.admitted, state.times[:, at.COMPLETED] >= 0.0
        if served.graph is not None and not completed.all():  # others were never sent
            served = _without_cut_sessions(served, state).take(np.flatnonzero(completed))
            state = state._replace(request=state.request[completed], times=state.times[completed])
        if self.frontend != NO_SERVER:
            state = seen_by_clients(state)
        state = after_stall(state, self.stalled_s)
        tables = [pool.table for pool in self.pools]
        return ServingRun(
            self.point, self.deployment, tables, served, self.rejected, state, self.plan
        )


def _without_cut_sessions(asked: Requests, state: ReplicaState) -> Requests:
    """Return the requests with the sessions that the end of sending cut marked as not whole."""
    graph, session = asked.graph, asked.session
    if graph is None or session is None:
        return asked
    cut = np.isin(session, session[state.times[:, at.COMPLETED] < 0.0])
    return replace(asked, graph=replace(graph, of_whole_session=graph.of_whole_session & ~cut))


def run_of(
    point: ServingPoint,
    asked: Requests | None = None,
    *,
    cache: RunCache | None = None,
    log_rows: int = 0,
) -> ServingRun:
    """Simulate one deployment and return the run.

    Args:
        point: the deployment and its load.
        asked: requests that replace those of the point's workload.
        cache: deployments and requests shared with other points of the batch.
        log_rows: largest number of logged batches.

    Raises:
        Infeasible: the deployment cannot be built, or no request fits.
        UserError: a name or a file is invalid.
    """
    return prepare(point, asked, cache=cache).run(log_rows)


def metrics_of(point: ServingPoint, cache: RunCache) -> ServingMetrics:
    """Return the metrics of a point; it is not simulated if the cache knows an equal run.

    Raises:
        Infeasible: the deployment cannot be built, or no request fits.
        UserError: a name or a file is invalid.
    """
    prepared, key = prepare(point, cache=cache), replace(point, max_batch=None)
    conditions, known = prepared.conditions, cache.completed.get(key)
    if known and conditions and known.holds_for(conditions):
        return known.metrics_under(conditions.limits)
    run = prepared.run()
    metrics = run.metrics()
    if conditions:
        most_running = int(run.state.pool[:, at.MOST_RUNNING].max())
        cache.remember(key, CompletedRun(conditions, most_running, run.kv_use, metrics))
    return metrics


def prepare(
    point: ServingPoint, asked: Requests | None = None, *, cache: RunCache | None = None
) -> PreparedRun:
    """Look up the deployment, the requests and the policies of a point; see `run_of`."""
    is_clairvoyant = point.kv_tiers.eviction == BELADY
    if is_clairvoyant and (point.sessions.turns > 1 or has_sessions(point.workload)):
        raise Infeasible(
            "belady_needs_order",
            "later turns arrive when earlier ones have completed; write lru or lfu",
        )
    cache = cache or RunCache()
    deployment, scheduler = cache.deployment(point), cache.scheduler(point.scheduler)
    asked = asked or cache.requests(point)
    if deployment.pools and not scheduler.kv_transfer:
        raise Infeasible(f"{point.scheduler}_has_no_separate_pools")
    pools = [
        _pool(part, built, scheduler, asked, is_decoder=place > 0)
        for place, (part, built) in enumerate(
            zip(pools_of(point), deployment.pools or (deployment,), strict=True)
        )
    ]
    pools[1:] = [_with_tiers_of(pools[0], pool) for pool in pools[1:]]
    admitted, rejected = _admitted(asked, [pool.limits for pool in pools])
    plan = _autoscaling_plan(point, admitted)
    if plan:
        admitted = replace(admitted, routable=plan.routable)
    return PreparedRun(
        point,
        deployment,
        pools,
        admitted,
        rejected,
        frontend_of(point, cache.server, cache.process, cache.rank_wait_s),
        plan,
        EngineKernels(scheduler, cache.router(point.router), pools[0].price),
        stall_s(point, admitted, cache.stalls),
    )


def _pool(
    point: ServingPoint,
    built: Deployment,
    scheduler: Scheduler,
    asked: Requests,
    *,
    is_decoder: bool,
) -> ReplicaPool:
    if point.pp > point.max_num_seqs:
        sizes = f"max_batch {point.max_num_seqs}, pp {point.pp}"
        raise Infeasible("batch_smaller_than_pipeline", sizes)
    drafter = drafter_of(point, built.hardware)
    table, price = prices_of(point, built.hardware, drafter)
    if drafter and point.speculation.rule == ADAPTIVE:
        prompt, output = (float(np.mean(n)) for n in (asked.prompt_tokens, asked.output_tokens))
        load = MeanLoad(
            context=prompt + output / 2.0,
            prompt_tokens=0.0 if is_decoder else prompt,
            output_tokens=output,
            max_batch=point.max_num_seqs,
            budget=float(point.token_budget) if scheduler.chunked else inf,
        )
        worth = worth_drafting(drafter.survival, table, price, load)
        up_to = drafter.up_to or (at.ALL_DECODES,) * len(worth)
        drafter = replace(drafter, up_to=tuple(map(min, up_to, worth)))
    lengths = asked.prompt_tokens, asked.output_tokens
    limits = limits_of(point, built.hardware, scheduler, lengths, drafter)
    return ReplicaPool(built, point.replicas, limits, table, price)


def _with_tiers_of(prefills: ReplicaPool, pool: ReplicaPool) -> ReplicaPool:
    """Return decode replicas with the tiers of the KV cache that prefill replicas load from.

    A shared tier is one store, of the prefill replicas' capacity.
    """
    first, own = prefills.limits, {tier.name: tier for tier in pool.limits.tiers}
    tiers = tuple(
        replace(own.get(tier.name, tier), capacity=tier.capacity)
        if tier.is_shared
        else own.get(tier.name, tier)
        for tier in first.tiers
    )
    limits = replace(
        pool.limits,
        tiers=tiers,
        inline_tiers=first.inline_tiers,
        loads_request=first.loads_request,
    )
    return pool._replace(limits=limits)


def _with_shared_prefixes(point: ServingPoint, asked: Requests) -> Requests:
    """Return the requests with the prefixes that a prefix cache can share; none without a cache.

    Requests for different LoRA adapters share no prefix. The adapter of each request, or of each
    session, is drawn at random.
    """
    if not point.is_prefix_caching:
        return replace(asked, prefixes=None)
    if point.lora.adapters <= 1 or asked.prefixes is None:
        return asked
    users = np.arange(asked.arrival_s.size) if asked.session is None else asked.session
    draws = stream(point.seed, "adapters").random(int(users.max()) + 1)
    shares = np.cumsum(popularity(point.lora.adapters, point.lora.zipf))
    adapter = np.searchsorted(shares[:-1], draws, side="right")
    return replace(asked, prefixes=asked.prefixes.apart(adapter[users]))


def _autoscaling_plan(point: ServingPoint, admitted: Requests) -> AutoscalingPlan | None:
    """Return the autoscaling plan; None if the number of replicas is fixed.

    Raises:
        Infeasible: arrivals depend on completions, or there are separate pools.
    """
    least = point.autoscaling.min_replicas
    if least > point.replicas:
        raise Infeasible("min_replicas_above_replicas", f"{least} of {point.replicas} replicas")
    if not least or least == point.replicas:
        return None
    if point.pools.prefill_gpus:
        raise Infeasible("min_replicas_has_no_separate_pools")
    if admitted.clients or admitted.session is not None:
        raise Infeasible("min_replicas_needs_open_arrivals", "clients wait for their answers")
    return plan_of(point, admitted.arrival_s)


def logged_run(point: ServingPoint) -> ServingRun:
    """Return the run of a point with every iteration logged.

    Raises:
        Infeasible: the deployment cannot be built, or no request fits.
        UserError: the point is invalid or has no events.
    """
    if point.fidelity != EVENT:
        raise UserError(f"fidelity '{point.fidelity}' has no events to report; ask for '{EVENT}'")
    check_point(point)
    state = run_of(point).state
    batches = int(state.pool[:, at.ITERATIONS].sum() * state.own[:, at.RANKS].max())  # at most
    return run_of(point, log_rows=batches)


def _admitted(asked: Requests, pools: Sequence[ReplicaLimits]) -> tuple[Requests, int]:
    """Return the requests that fit into every pool, and the number of rejected requests.

    Prefill replicas hold prompts only.

    Raises:
        Infeasible: no request fits.
    """
    *prefill_pools, decoders = pools
    fit = decoders.admits(asked.prompt_tokens, asked.output_tokens)
    for limits in prefill_pools:
        fit = np.intersect1d(fit, limits.admits(asked.prompt_tokens, 0 * asked.output_tokens))
    rejected = asked.prompt_tokens.size - fit.size
    if fit.size == 0:
        least = min(pools, key=lambda limits: limits.blocks * limits.block_size)
        raise Infeasible(
            "no_request_fits",
            f"{rejected} requests of {asked.prompt_tokens.min():.0f} prompt tokens or more, "
            f"{least.blocks * least.block_size} tokens of KV memory, {least.max_model_len} of "
            "context",
        )
    return (asked.take(fit) if rejected else asked), rejected
