"""A deployment that waits for its first request: all that it goes by is looked up, nothing has run.

It serves all requests at once, or begins, and goes on up to a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np

from simulators.core.jit import Floats, Ints, Kernel
from simulators.serving.adapters.popularity import drawn
from simulators.serving.answer.summary import Run
from simulators.serving.demand.autoscaling import Plan
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import Deployment
from simulators.serving.engine.frontend import NO_SERVER, Frontend, behind, seen_by_clients
from simulators.serving.engine.limits import Limits
from simulators.serving.engine.policies import Scheduler
from simulators.serving.engine.service import Decoders, Engine, before, go_on, serve
from simulators.serving.engine.state import State
from simulators.serving.point import ServingPoint
from simulators.serving.pools.link import link_of
from simulators.serving.prices.iteration_table import IterationTable


class Pool(NamedTuple):
    """Equal replicas: what they may do, and what an iteration of theirs takes."""

    deployment: Deployment
    replicas: int
    limits: Limits
    table: IterationTable
    price: Kernel[..., float]


@dataclass(frozen=True)
class Ready:
    """A deployment that waits for its first request."""

    point: ServingPoint
    deployment: Deployment
    engine: Engine
    pools: Sequence[Pool]  # one, or those that read prompts and those that decode
    let_in: Requests
    rejected: int
    frontend: Frontend
    plan: Plan | None

    @property
    def scheduler(self) -> Scheduler:
        """How batches are formed."""
        return self.engine.scheduler

    @property
    def limits(self) -> Limits:
        """What a replica may hold that takes requests."""
        return self.pools[0].limits

    @property
    def has_pools(self) -> bool:
        """Whether other replicas decode than read prompts."""
        return len(self.pools) > 1

    @property
    def _come(self) -> Requests:
        """What is asked of the engine."""
        return behind(
            _found_in_cache(self.point, self.let_in), self.frontend, self.pools[0].replicas
        )

    @property
    def requests(self) -> int:
        """How many it serves."""
        return self.let_in.arrival_s.size

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

    @property
    def read(self) -> tuple[Ints | Floats, ...]:
        """What a run reads besides its limits."""
        pool, asked = self.pools[0], self.let_in
        lengths = asked.prompt_tokens, asked.output_tokens
        return pool.table.shape, pool.table.table, asked.arrival_s, *lengths

    def ended(self, state: State) -> Run:
        """Return the run that left a state behind."""
        point, let_in = self.point, self.let_in
        if self.frontend != NO_SERVER:
            state = seen_by_clients(state, self.frontend, let_in.output_tokens)
        tables = [pool.table for pool in self.pools]
        return Run(point, self.deployment, tables, let_in, self.rejected, state, self.plan)


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
    adapter = drawn(point.adapters, point.adapter_zipf, int(who.max()) + 1, point.seed)
    return replace(asked, prefixes=asked.prefixes.apart(adapter[who]))
