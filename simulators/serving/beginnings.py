"""What the beginning of a run proves of all of it: no percentile and no cost is below these bounds.

Until its next request comes, a run of the first requests alone is the run of all of them: what they
have waited by then is exact. All others take at least what an engine with nothing else to do would
need: an iteration is no quicker than linear layers and messages of its tokens, and its launch.
Percentiles rise with each latency, so those of bounds are bounds of those.

A cost falls with the tokens that are answered in its window. The window begins at some moment `b`
after the first arrival, as long after it as a request takes, and is at least as long as that. What
was answered before `b` is known where `b` is within the beginning, so that no rate exceeds

    (tokens that can be answered by the last arrival - those answered by b) / max(e - b, b - first)

of any `b`, where `e` is the last arrival at the soonest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from simulators.catalog.price import usd_per_mtok
from simulators.core.columns import points_of
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints, Kernel
from simulators.core.rules import check_point
from simulators.serving.answer.percentiles import COLUMNS, SHARES, spread
from simulators.serving.answer.served_alike import WATCHED, Likeness, Ready, any_batch, may_share
from simulators.serving.answer.user_measurements import has_own_rows
from simulators.serving.demand.autoscaling import Plan
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import Deployment
from simulators.serving.engine import replica as at
from simulators.serving.engine.frontend import Frontend, behind
from simulators.serving.engine.service import in_line
from simulators.serving.point import STEADY, ServingPoint
from simulators.serving.prices.iteration_table import IterationTable
from simulators.serving.prices.least_iteration import LeastIteration, least_iteration

LATENCIES = tuple(f"{name}_{column}_s" for name in ("ttft", "tpot") for column in COLUMNS)
COST = "cost_usd_per_mtok"
BOUNDED = (*LATENCIES, COST)

ROUNDING = 1e-9
"""Relative: sums of a bound and of what it bounds are added up in another order."""

NOTHING: Mapping[str, float] = dict.fromkeys(BOUNDED, 0.0)
IMPOSSIBLE: Mapping[str, float] = dict.fromkeys(BOUNDED, np.inf)

KEPT = 1 << 15
"""Designs of which beginnings are kept."""


class Pool(Protocol):
    """Equal replicas, and what an iteration of theirs takes."""

    @property
    def replicas(self) -> int:
        """How many there are."""
        ...

    @property
    def table(self) -> IterationTable:
        """What iterations are priced by."""
        ...

    @property
    def price(self) -> Kernel[..., float]:
        """What reads that."""
        ...


class Startable(Ready, Protocol):
    """A deployment that waits for its first request, and can serve the first ones alone."""

    @property
    def deployment(self) -> Deployment:
        """What stands in the rack."""
        ...

    @property
    def pools(self) -> Sequence[Pool]:
        """Its replicas."""
        ...

    @property
    def let_in(self) -> Requests:
        """What is asked of it."""
        ...

    @property
    def frontend(self) -> Frontend:
        """What clients see it through."""
        ...

    @property
    def plan(self) -> Plan | None:
        """Replicas that come and go."""
        ...

    def beginning(self, count: int) -> Startable:
        """Return the same before the first so many requests."""
        ...


@dataclass(frozen=True)
class Seen:
    """What a beginning has shown, and of which designs it is the beginning."""

    share: float
    likeness: Likeness
    bounds: Mapping[str, float]


SEEN: dict[ServingPoint, list[Seen]] = {}
"""The beginnings that were simulated in this process, by design."""


def bounds_by_beginnings(
    batch: pa.RecordBatch,
    share: float,
    limits: Mapping[str, float],
    ready_of: Callable[[ServingPoint], Startable],
) -> dict[str, Floats]:
    """Return what metrics of event-driven designs are not below, infinite where none can be.

    Args:
        batch: designs.
        share: of the requests, that are simulated; below one.
        limits: metrics that are not above these, in designs of interest; a cost is bounded only
            where clients see what they wait for, or the longest of those waits is limited.
        ready_of: looks up what a point needs before its first request.
    """
    found = [_bounds(p, share, limits, ready_of) for p in points_of(ServingPoint, batch)]
    return {name: np.array([one[name] for one in found]) for name in BOUNDED}


def _bounds(
    point: ServingPoint,
    share: float,
    limits: Mapping[str, float],
    ready_of: Callable[[ServingPoint], Startable],
) -> Mapping[str, float]:
    """Return the bounds of one design; of designs that are served alike one begins."""
    check_point(point)
    if point.seeds > 1 or point.warmup or point.cooldown or has_own_rows(point):
        return NOTHING
    try:
        ready = ready_of(point)
    except Infeasible:
        return IMPOSSIBLE
    if not _is_plain(ready):
        return NOTHING
    if not share:
        return _Beginning(ready, share).bounds(limits)
    design = any_batch(point) if may_share(ready) else point
    for answer in WATCHED.get(design, ()):
        if answer.likeness.holds_for(ready):
            known = vars(answer.metrics)
            return {name: np.inf if known[name] is None else known[name] for name in BOUNDED}
    for seen in SEEN.get(design, ()):
        if seen.share == share and seen.likeness.holds_for(ready):
            return seen.bounds
    beginning = _Beginning(ready, share)
    bounds = beginning.bounds(limits)
    if design not in SEEN and len(SEEN) == KEPT:
        oldest = next(iter(SEEN))
        del SEEN[oldest], WATCHED[oldest]
    WATCHED.setdefault(design, [])
    SEEN.setdefault(design, []).append(Seen(share, beginning.likeness, bounds))
    return bounds


def _is_plain(ready: Startable) -> bool:
    """Return whether requests come when they come, and each is computed whole, token by token."""
    asked, limits = ready.let_in, ready.limits
    comes = not asked.clients and asked.session is None and ready.plan is None
    waits = bool(np.isinf(asked.patience_s).all())
    whole = not (limits.caches or limits.drafted or ready.point.adapters)
    return comes and waits and whole and limits.ranks == 1 and not ready.has_pools


class _Beginning:
    """Lower bounds of when each request has its first token and its last one."""

    def __init__(self, ready: Startable, share: float) -> None:
        point, asked = ready.point, ready.let_in
        self.ready, self.asked_s = ready, asked.arrival_s
        come = behind(asked, ready.frontend, ready.pools[0].replicas)
        arrival_s = in_line(asked.arrival_s, np.asarray(come.service_s)) + come.delay_s
        self.output = asked.output_tokens
        self.later = np.maximum(self.output - 1, 1)
        least = least_iteration(ready.pools[0].table, point.pp, ready.pools[0].price)
        decode_s = least.decode_s
        prompt_s = _prompts_s(least, asked.prompt_tokens, ready)
        self.first_s, self.tpot_s = arrival_s + prompt_s, np.full(self.output.size, decode_s)
        self.until_s, self.done = -np.inf, np.zeros(self.output.size, bool)
        count = int(share * self.output.size)
        if count:
            self._begin(count, arrival_s)
        answer_s = np.where(self.output > 1, self.tpot_s * self.later, 0.0)
        self.end_s = np.maximum(self.first_s + answer_s, np.where(self.done, 0.0, self.until_s))

    def _begin(self, count: int, arrival_s: Floats) -> None:
        """Serve the first requests, and believe what happens before the next one comes."""
        state = self.ready.beginning(count).run().state
        self.likeness = Likeness.of(self.ready, state)
        until_s = self.until_s = float(arrival_s[count:].min())
        begun_s, ended_s = state.times[:, at.FIRST_TOKEN], state.times[:, at.COMPLETED]
        began = (begun_s >= 0.0) & (begun_s < until_s)
        done = began & (ended_s >= 0.0) & (ended_s < until_s)
        waits_s = np.maximum(self.first_s[:count], until_s)
        self.first_s[:count] = np.where(began, begun_s, waits_s)
        so_far_s = (np.where(done, ended_s, until_s) - begun_s) / self.later[:count]
        idle_s = self.tpot_s[:count]
        self.tpot_s[:count] = np.where(
            done, so_far_s, np.where(began, np.maximum(idle_s, so_far_s), idle_s)
        )
        self.done[:count] = done

    def bounds(self, limits: Mapping[str, float]) -> Mapping[str, float]:
        """Return what metrics are not below."""
        seen_s = np.where(self.output > 1, self.tpot_s, 0.0) * self.ready.frontend.iterations
        ttft = spread(self.first_s - self.asked_s + seen_s)
        tpot = spread(self.tpot_s[self.output > 1])
        found = dict(zip(LATENCIES, (*ttft, *tpot), strict=True))
        built = self.ready.deployment
        if built.usd_per_gpu_hour is None:
            found[COST] = np.inf
        else:
            most_per_s = self._most_tokens_per_s(limits)
            found[COST] = usd_per_mtok(built.usd_per_gpu_hour, built.gpus, most_per_s)
        return {name: value * (1.0 - ROUNDING) for name, value in found.items()}

    def _most_tokens_per_s(self, limits: Mapping[str, float]) -> float:
        """Return a rate that no window of the run exceeds, of those that rates may be of."""
        first_s, last_s = float(self.asked_s[0]), self._last_s(limits)
        whole = float(self.output.sum() / (self.end_s.max() - first_s))
        if self.ready.point.window != STEADY:
            return whole
        if not last_s > first_s:
            return np.inf
        possible = float(self.output[self.end_s <= self.asked_s[-1]].sum())
        order = np.flatnonzero(self.done)
        order = order[np.argsort(self.end_s[order])]
        answered = np.concatenate(([0], np.cumsum(self.output[order])))
        # From one of these moments to the next no more was answered; past the last who knows.
        moments = np.concatenate(([first_s], self.end_s[order], [np.inf]))
        begin_s = np.clip((first_s + last_s) / 2.0, moments[:-1], moments[1:])
        span_s = np.maximum(last_s - begin_s, begin_s - first_s)
        return max(whole, float(((possible - answered) / span_s).max()))

    def _last_s(self, limits: Mapping[str, float]) -> float:
        """Return when the last request was asked at the soonest, as its client sees it.

        A client sees its first token some iterations late, which counts as if it had asked sooner.
        Where a percentile of the time to the first token is limited, so is that lateness, of one of
        the last requests at least.
        """
        if not self.ready.frontend.iterations:
            return float(self.asked_s[-1])
        found, count = -np.inf, self.asked_s.size
        for share, column in zip(SHARES, COLUMNS[1:-1], strict=True):
            limit = limits.get(f"ttft_{column}_s", np.inf)
            within = int(share * (count - 1)) + 1  # as many wait no longer than that
            found = max(found, float(self.asked_s[within - 1]) - limit)
        return found


def _prompts_s(least: LeastIteration, prompt_tokens: Ints, ready: Startable) -> Floats:
    """Return what each prompt takes at least, in one iteration or in as many as it has chunks."""
    if not ready.scheduler.chunked:
        return least.of(prompt_tokens)
    sizes = np.arange(1, max(1, min(ready.limits.chunk, int(prompt_tokens.max()))) + 1)
    each_s = least.of(sizes)
    chunks = -(-prompt_tokens // sizes[-1])
    whole_s: Floats = np.maximum(chunks * each_s[0], prompt_tokens * (each_s / sizes).min())
    return whole_s
