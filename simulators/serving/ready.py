"""A deployment that waits for its first request: what it goes by is looked up, nothing has run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from simulators.core.jit import Floats, Ints, Kernel
from simulators.serving.answer.summary import Run
from simulators.serving.demand.autoscaling import Plan
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import Deployment
from simulators.serving.engine.frontend import NO_SERVER, Frontend, seen_by_clients
from simulators.serving.engine.limits import Limits
from simulators.serving.engine.policies import Scheduler
from simulators.serving.engine.state import State
from simulators.serving.point import ServingPoint
from simulators.serving.prices.iteration_table import IterationTable


class Pool(NamedTuple):
    """Equal replicas: what they may do, and what an iteration of theirs takes."""

    deployment: Deployment
    replicas: int
    limits: Limits
    table: IterationTable
    price: Kernel[..., float]


@dataclass(frozen=True)
class Ready(ABC):
    """A deployment that waits for its first request."""

    point: ServingPoint
    deployment: Deployment
    scheduler: Scheduler
    pools: Sequence[Pool]  # one, or those that read prompts and those that decode
    let_in: Requests
    rejected: int
    frontend: Frontend
    plan: Plan | None

    @property
    def limits(self) -> Limits:
        """What a replica may hold that takes requests."""
        return self.pools[0].limits

    @property
    def has_pools(self) -> bool:
        """Whether other replicas decode than read prompts."""
        return len(self.pools) > 1

    @property
    def requests(self) -> int:
        """How many it serves."""
        return self.let_in.arrival_s.size

    @property
    def may_share(self) -> bool:
        """Whether a limit that is not reached changes nothing.

        A cache of prefixes fills what memory is free, what drafts is told how many may run, and so
        many adapters are kept as a full batch wants.
        """
        limits = self.limits
        plain = not (limits.caches or limits.drafted or limits.host_blocks or self.point.adapters)
        plain = plain and limits.ranks == 1 and not self.has_pools
        return plain and self.scheduler.only_compares

    @abstractmethod
    def run(self) -> Run:
        """Serve all requests."""

    @abstractmethod
    def begin(self) -> State:
        """Return the state before the first request, of replicas that are all the same."""

    @abstractmethod
    def go_on(self, state: State, halt: float = inf) -> None:
        """Serve requests up to just before one that arrives at a moment, or all that are left."""

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
