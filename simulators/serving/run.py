"""One run of a design point: its deployment is looked up and its requests are served."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter
from typing import TypeVar

import numpy as np

from simulators.composition.replica import NOTHING, Runtime, load_runtime
from simulators.core.errors import Infeasible, UserError
from simulators.core.rules import check_point
from simulators.serving.adapters.popularity import popularity
from simulators.serving.answer.error_bands import both, deployment_bands
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.answer.served_alike import WATCHED, Answer, Likeness, any_batch
from simulators.serving.answer.summary import Run
from simulators.serving.answer.user_measurements import UserRows
from simulators.serving.begun_runs import run_out
from simulators.serving.demand.arrivals import stream
from simulators.serving.demand.autoscaling import Plan, plan_of
from simulators.serving.demand.requests import Requests, requests_of
from simulators.serving.deployment import Deployment, deployment_of, pools_of
from simulators.serving.engine import replica as at
from simulators.serving.engine.frontend import (
    Frontend,
    behind,
    frontend_of,
    load_frontend,
    load_process,
)
from simulators.serving.engine.limits import Limits, limits_of
from simulators.serving.engine.policies import Scheduler, load_router, load_scheduler
from simulators.serving.engine.service import Decoders, Engine, before, go_on, serve
from simulators.serving.engine.state import State
from simulators.serving.point import ADAPTIVE, DEMANDED, DEPLOYED, EVENT, ServingPoint
from simulators.serving.pools.link import link_of
from simulators.serving.prices.batch_price import prices_of
from simulators.serving.prices.iteration_table import Ends
from simulators.serving.ready import Pool, Ready
from simulators.serving.speculation.acceptance import times_interval
from simulators.serving.speculation.adaptive import MeanLoad, worth_drafting
from simulators.serving.speculation.drafter import drafter_of

V = TypeVar("V")

MOST = 64
"""Deployments, or demands, of a batch that are kept at a time."""


class Answers:
    """Metrics of deployments, whose runs may have begun; those that are served alike run once."""

    def __init__(self) -> None:
        self._known: dict[ServingPoint, list[Answer]] = {}

    def metrics(self, ready: Ready) -> ServingMetrics:
        """Return the metrics of a run of a deployment.

        Raises:
            Infeasible: no request of the window is answered.
            UserError: a request never ends.
        """
        if not ready.may_share:
            return run_out(ready).metrics()
        design = any_batch(ready.point)
        known = self._known.setdefault(design, [])
        for answer in known:
            if answer.likeness.holds_for(ready.limits, ready.rejected):
                return answer.metrics_within(ready.limits)
        run = run_out(ready)
        found, held = run.judged()
        known.append(Answer(Likeness.of(ready.limits, ready.rejected, run.state), found, held))
        if design in WATCHED:
            WATCHED[design].append(known[-1])
        return found


class Shelf:
    """What the points of one batch have in common is looked up once.

    Args:
        runtime: what the name of a runtime stands for.
        server: what server stands before it.
        process: what it takes where none does.
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
        self.answers = Answers()
        self.admitted: dict[tuple[int, bytes], tuple[Requests, Requests]] = {}
        self.deployment = _once(functools.partial(deployment_of, runtime=runtime), DEPLOYED)
        self.requests = _once(requests_of, DEMANDED)
        self.bands = _once(self._bands, (*DEPLOYED, "iteration_table", "acceptance"))

    def _bands(self, point: ServingPoint) -> Mapping[str, Ends]:
        """Return how far latencies of a deployment may be off; of a user's own times, nothing.

        Drafts that nobody said how often to accept bring other tokens of an iteration elsewhere.
        """
        if point.iteration_table:
            return {}
        built = self.deployment(point)
        reach = [prices_of(point, pool.hardware)[0].reach for pool in built.pools or (built,)]
        found = deployment_bands(point.runtime, {**reach[0], "tpot": reach[-1]["tpot"]})
        if point.speculation == NOTHING or not point.draft_tokens or point.acceptance.strip():
            return found
        return {**found, "tpot": both(found["tpot"], times_interval())}


def _once(find: Callable[[ServingPoint], V], fields: Sequence[str]) -> Callable[[ServingPoint], V]:
    """Return what finds something of a point, once for all points alike in some fields."""
    known: dict[object, V] = {}
    key = attrgetter(*fields)

    def found(point: ServingPoint) -> V:
        alike = key(point)
        if alike not in known:
            if len(known) == MOST:
                del known[next(iter(known))]
            known[alike] = find(point)
        return known[alike]

    return found


def run_of(
    point: ServingPoint,
    asked: Requests | None = None,
    *,
    shelf: Shelf | None = None,
    log_rows: int = 0,
) -> Run:
    """Return a run of one deployment.

    Other requests than those of the point's workload may be `asked`; `shelf` has what other points
    have looked up already.

    Raises:
        Infeasible: it cannot be built, or no request fits into it.
        UserError: a name or a file cannot be used.
    """
    return ready_of(point, asked, shelf=shelf).run(log_rows)


@dataclass(frozen=True)
class Served(Ready):
    """Such a deployment with the engine that will serve it."""

    engine: Engine

    @property
    def _come(self) -> Requests:
        """What is asked of the engine."""
        return behind(
            _found_in_cache(self.point, self.let_in), self.frontend, self.pools[0].replicas
        )

    def begin(self) -> State:
        """Return the state before the first request, of replicas that are all the same."""
        (pool,) = self.pools
        shape, table = pool.table.shape, pool.table.table
        return before(self.limits, self._come, pool.replicas, 0, shape, table)

    def run(self, log_rows: int = 0) -> Run:
        """Serve all requests; so many batches are logged."""
        first = self.pools[0]
        state = serve(
            self.engine,
            self.limits,
            self._come,
            replicas=first.replicas,
            shape=first.table.shape,
            table=first.table.table,
            log_rows=log_rows,
            decoders=_decoders(self.point, *self.pools) if self.has_pools else None,
        )
        return self.ended(state)

    def go_on(self, state: State, halt: float = inf) -> None:
        """Serve requests up to just before one that arrives at a moment, or all that are left."""
        go_on(self.engine, state, halt)


def ready_of(
    point: ServingPoint, asked: Requests | None = None, *, shelf: Shelf | None = None
) -> Served:
    """Return the deployment of a point, with all that it goes by looked up; see `run_of`."""
    if point.pp > point.max_batch:
        raise Infeasible(
            "batch_smaller_than_pipeline", f"max_batch {point.max_batch}, pp {point.pp}"
        )
    shelf = shelf or Shelf()
    deployment, scheduler = shelf.deployment(point), shelf.scheduler(point.scheduler)
    asked = asked or shelf.requests(point)
    if deployment.pools and not scheduler.takes_up:
        raise Infeasible(f"{point.scheduler}_has_no_separate_pools")
    pools = [
        _pool(part, built, scheduler, asked, is_decoder=place > 0)
        for place, (part, built) in enumerate(
            zip(pools_of(point), deployment.pools or (deployment,), strict=True)
        )
    ]
    let_in, rejected = _admitted(asked, [pool.limits for pool in pools], shelf)
    engine = Engine(scheduler, shelf.router(point.router), pools[0].price)
    frontend = frontend_of(point, shelf.server, shelf.process)
    plan = _plan(point, let_in)
    if plan:
        let_in = replace(let_in, routable=plan.routable)
    return Served(point, deployment, scheduler, pools, let_in, rejected, frontend, plan, engine)


def _pool(
    point: ServingPoint,
    built: Deployment,
    scheduler: Scheduler,
    asked: Requests,
    *,
    is_decoder: bool,
) -> Pool:
    """Return the replicas of a point without separate pools, or of one that has decodes alone."""
    drafter = drafter_of(point, built.hardware)
    table, price = prices_of(point, built.hardware, drafter)
    if drafter and point.draft_rule == ADAPTIVE:
        prompt, output = (float(np.mean(n)) for n in (asked.prompt_tokens, asked.output_tokens))
        load = MeanLoad(
            context=prompt + output / 2.0,
            prompt_tokens=0.0 if is_decoder else prompt,
            output_tokens=output,
            seats=point.max_batch,
            budget=float(point.chunk_size) if scheduler.chunked else inf,
        )
        worth = worth_drafting(drafter.survival, table, price, load)
        up_to = drafter.up_to or (at.ALL_DECODES,) * len(worth)
        drafter = replace(drafter, up_to=tuple(map(min, up_to, worth)))
    lengths = asked.prompt_tokens, asked.output_tokens
    limits = limits_of(point, built.hardware, scheduler, lengths, drafter)
    return Pool(built, point.replicas, limits, table, price)


def _decoders(point: ServingPoint, reader: Pool, decoder: Pool) -> Decoders:
    """Return the replicas that decode what others read, and the link between them.

    Raises:
        Infeasible: the pools have no link.
    """
    ends = (pool.deployment.hardware.replica for pool in (reader, decoder))
    return Decoders(
        limits=decoder.limits,
        replicas=decoder.replicas,
        shape=decoder.table.shape,
        table=decoder.table.table,
        link=link_of(point, *ends),
    )


def _found_in_cache(point: ServingPoint, asked: Requests) -> Requests:
    """Return requests that have in common what a prefix cache finds.

    That is nothing without one, and nothing of those that want different adapters, whose keys
    differ: each request, or each session, draws its own.
    """
    if not point.prefix_cache:
        return replace(asked, prefixes=None)
    if point.adapters <= 1 or asked.prefixes is None:
        return asked
    who = np.arange(asked.arrival_s.size) if asked.session is None else asked.session
    draws = stream(point.seed, "adapters").random(int(who.max()) + 1)
    shares = np.cumsum(popularity(point.adapters, point.adapter_zipf))
    adapter = np.searchsorted(shares[:-1], draws, side="right")
    return replace(asked, prefixes=asked.prefixes.apart(adapter[who]))


def _plan(point: ServingPoint, let_in: Requests) -> Plan | None:
    """Return the replicas that come and go with the arrivals, if they do.

    Raises:
        Infeasible: arrivals depend on answers, or replicas do not all do the same.
    """
    if point.min_replicas > point.replicas:
        raise Infeasible(
            "min_replicas_above_replicas", f"{point.min_replicas} of {point.replicas} replicas"
        )
    if not point.min_replicas or point.min_replicas == point.replicas:
        return None
    if point.prefill_gpus:
        raise Infeasible("min_replicas_has_no_separate_pools")
    if let_in.clients or let_in.session is not None:
        raise Infeasible("min_replicas_needs_open_arrivals", "clients wait for their answers")
    return plan_of(point, let_in.arrival_s)


def logged_run(point: ServingPoint) -> Run:
    """Return a run of the first seed of a point, with every iteration logged.

    Raises:
        Infeasible: it cannot be built, or no request fits into it.
        UserError: a choice means nothing, or the point asks for a steady state.
    """
    if point.fidelity != EVENT:
        raise UserError(f"fidelity '{point.fidelity}' has no events to report; ask for '{EVENT}'")
    check_point(point)
    state = run_of(point).state
    batches = int(state.pool[:, at.ITERATIONS].sum() * state.limits[at.RANKS])  # at most
    return run_of(point, log_rows=batches)


def _admitted(asked: Requests, pools: Sequence[Limits], shelf: Shelf) -> tuple[Requests, int]:
    """Return the requests that could ever run, and how many could not; of two pools one reads.

    Points that let in the same have the same.
    """
    *readers, decoders = pools
    fit = decoders.admits(asked.prompt_tokens, asked.output_tokens)
    for limits in readers:
        fit = np.intersect1d(fit, limits.admits(asked.prompt_tokens, 0 * asked.output_tokens))
    rejected = asked.prompt_tokens.size - fit.size
    if fit.size == 0:
        least = min(pools, key=lambda limits: limits.blocks * limits.block_size)
        raise Infeasible(
            "no_request_fits",
            f"{rejected} requests, {least.blocks * least.block_size} tokens of KV memory, "
            f"{least.most_tokens} of context",
        )
    if not rejected:
        return asked, 0
    known, key = shelf.admitted, (id(asked), fit.tobytes())  # as long as it is kept, it is that one
    if key not in known:
        if len(known) == MOST:
            del known[next(iter(known))]
        known[key] = asked, asked.take(fit)
    return known[key][1], rejected
