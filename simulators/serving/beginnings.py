"""What the beginning of a run proves of all of it: no percentile and no cost is below these bounds.

A run halts before a request comes: what others have waited by then is exact. What is left takes at
least what an engine with nothing else to do would need: an iteration is no quicker than linear
layers and messages of its tokens, and its launch.
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

import numpy as np
import pyarrow as pa

from simulators.catalog.price import usd_per_mtok
from simulators.core.columns import points_of
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints
from simulators.core.rules import check_point
from simulators.serving.answer.percentiles import COLUMNS, SHARES, spread
from simulators.serving.answer.served_alike import WATCHED, Likeness, any_batch
from simulators.serving.answer.user_measurements import has_own_rows
from simulators.serving.begun_runs import (
    BEFORE,
    HALTED,
    WENT_ON,
    Halted,
    at_once,
    forget_some,
    halted,
)
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from simulators.serving.engine.frontend import behind
from simulators.serving.engine.service import in_line
from simulators.serving.engine.state import State
from simulators.serving.point import STEADY, ServingPoint
from simulators.serving.prices.iteration_table import IterationTable
from simulators.serving.prices.least_iteration import LeastIteration, least_iteration
from simulators.serving.ready import Ready

LATENCIES = tuple(f"{name}_{column}_s" for name in ("ttft", "tpot") for column in COLUMNS)
COST = "cost_usd_per_mtok"
BOUNDED = (*LATENCIES, COST)

ROUNDING = 1e-9
"""Relative: sums of a bound and of what it bounds are added up in another order."""

NOTHING: Mapping[str, float] = dict.fromkeys(BOUNDED, 0.0)
IMPOSSIBLE: Mapping[str, float] = dict.fromkeys(BOUNDED, np.inf)

KEPT, IDLE_KEPT = 1 << 15, 1 << 10
"""Designs of which beginnings are kept, and pairs of requests and engines that are idle."""


@dataclass(frozen=True)
class Seen:
    """What a beginning has shown, and of which designs it is the beginning."""

    share: float  # of the run that was seen
    simulated: float  # the part of it that had not been by then
    limits: Mapping[str, float]  # by which bounds go
    likeness: Likeness  # says of whom it is the beginning
    bounds: Mapping[str, float]  # what metrics are not below


@dataclass(frozen=True)
class Look:
    """A design that has bounds, and what it shares with those that are served alike."""

    ready: Ready
    design: ServingPoint


SEEN: dict[ServingPoint, list[Seen]] = {}
"""The beginnings that were simulated in this process, by design."""
LOOKS: dict[ServingPoint, Look | Mapping[str, float]] = {}
"""The designs that were looked at in this process, or what is known of those that cannot begin."""


def bounds_by_beginnings(
    batch: pa.RecordBatch,
    share: float,
    limits: Mapping[str, float],
    ready_of: Callable[[ServingPoint], Ready],
) -> dict[str, Floats]:
    """Return what metrics of event-driven designs are not below, infinite where none can be.

    Of the requests a share below one is simulated. A cost is bounded only where clients see what
    they wait for, or the longest of those waits is limited.
    """
    looks = [_look(point, ready_of) for point in points_of(ServingPoint, batch)]
    alike: dict[ServingPoint, list[int]] = {}
    for row, look in enumerate(looks):
        if isinstance(look, Look):
            alike.setdefault(look.design, []).append(row)
    found = [NOTHING if isinstance(look, Look) else look for look in looks]
    if len(SEEN) + len(alike) > KEPT:
        forget()

    def look_at(rows: Sequence[int]) -> None:
        left_behind: list[Halted] = []
        for row in rows:
            look = looks[row]
            assert isinstance(look, Look)
            found[row] = _bounds(look, share, limits, left_behind)

    at_once(look_at, list(alike.values()))
    forget_some()
    return {name: np.array([one[name] for one in found]) for name in BOUNDED}


def forget() -> None:
    """Forget all that was looked at."""
    for cache in (LOOKS, SEEN, WATCHED, HALTED, WENT_ON, IDLE, BEFORE):
        cache.clear()


def _look(
    point: ServingPoint, ready_of: Callable[[ServingPoint], Ready]
) -> Look | Mapping[str, float]:
    """Return a design that has bounds, or those of one that has none of its own."""
    if point not in LOOKS:
        LOOKS[point] = _first_look(point, ready_of)
    return LOOKS[point]


def _first_look(
    point: ServingPoint, ready_of: Callable[[ServingPoint], Ready]
) -> Look | Mapping[str, float]:
    check_point(point)
    if point.seeds > 1 or point.warmup or point.cooldown or has_own_rows(point):
        return NOTHING
    try:
        ready = ready_of(point)
    except Infeasible:
        return IMPOSSIBLE
    if not _is_plain(ready):
        return NOTHING
    return Look(ready, any_batch(point) if ready.may_share else point)


def _bounds(
    look: Look, share: float, limits: Mapping[str, float], left_behind: list[Halted]
) -> Mapping[str, float]:
    """Return the bounds of one design; of designs that are served alike one begins.

    Where one goes on, others that are served alike no longer go on from where it was.
    """
    ready, design = look.ready, look.design
    for answer in WATCHED.get(design, ()):
        if answer.likeness.holds_for(ready.limits, ready.rejected):
            known = vars(answer.metrics)
            return {name: np.inf if known[name] is None else known[name] for name in BOUNDED}
    for seen in SEEN.get(design, ()):
        if (
            seen.share == share
            and seen.limits == limits
            and seen.likeness.holds_for(ready.limits, ready.rejected)
        ):
            return seen.bounds
    come = int(share * ready.requests)
    if not come:
        likeness = Likeness.of(ready.limits, ready.rejected, None)
        seen = Seen(share, 0.0, limits, likeness, _Beginning(ready).bounds(limits))
    else:
        run = halted(ready, left_behind)
        before = min(run.come, come)
        if design != ready.point and 0 < before < come:
            left_behind.append(run.apart())
        state = run.go_on(come)
        likeness = run.likeness = Likeness.of(ready.limits, ready.rejected, state)
        bounds = _Beginning(ready, state, run.come).bounds(limits)
        seen = Seen(share, (come - before) / ready.requests, limits, likeness, bounds)
    WATCHED.setdefault(design, [])
    SEEN.setdefault(design, []).append(seen)
    return seen.bounds


def _is_plain(ready: Ready) -> bool:
    """Return whether requests come when they come, and each is computed whole, token by token."""
    asked, limits = ready.let_in, ready.limits
    comes = not asked.clients and asked.session is None and ready.plan is None
    waits = bool(np.isinf(asked.patience_s).all())
    whole = not (limits.caches or limits.drafted or ready.point.adapters)
    return comes and waits and whole and limits.ranks == 1 and not ready.has_pools


@dataclass(frozen=True)
class Idle:
    """What an engine takes at least that has nothing else to do, for requests that come in line."""

    asked: Requests  # the requests; kept as `table` is, so that both are those
    table: IterationTable  # what prices iterations
    first_s: Floats  # when each has its first token
    decode_s: float  # an iteration in which somebody decodes


IDLE: dict[object, Idle] = {}
"""Of the deployments and requests that were looked at in this process."""


def _idle(ready: Ready) -> Idle:
    """Return what an engine takes at least of what is asked."""
    pool, asked, pp = ready.pools[0], ready.let_in, ready.point.pp
    chunk = ready.limits.chunk if ready.scheduler.chunked else 0
    key = id(asked), id(pool.table), pool.replicas, pp, chunk, ready.frontend
    if key not in IDLE:
        heard = behind(asked, ready.frontend, pool.replicas)
        arrival_s = in_line(asked.arrival_s, np.asarray(heard.service_s)) + heard.delay_s
        least = least_iteration(pool.table, pp, pool.price)
        first_s = arrival_s + _prompts_s(least, asked.prompt_tokens, ready)
        if len(IDLE) == IDLE_KEPT:
            IDLE.pop(next(iter(IDLE)), None)
        IDLE[key] = Idle(asked, pool.table, first_s, least.decode_s)
    return IDLE[key]


class _Beginning:
    """Lower bounds of when each request has its first token and its last one."""

    def __init__(self, ready: Ready, state: State | None = None, come: int = 0) -> None:
        asked = ready.let_in
        self.ready, self.asked_s = ready, asked.arrival_s
        self.output = asked.output_tokens
        self.later = np.maximum(self.output - 1, 1)
        idle = _idle(ready)
        self.decode_s, self.first_s = idle.decode_s, idle.first_s
        self.tpot_s = np.full(self.output.size, self.decode_s)
        self.until_s, self.done = -np.inf, np.zeros(self.output.size, bool)
        if state is not None:
            self._seen(state, come)
        answer_s = np.where(self.output > 1, self.tpot_s * self.later, 0.0)
        self.end_s = np.maximum(self.first_s + answer_s, np.where(self.done, 0.0, self.until_s))

    def _seen(self, state: State, come: int) -> None:
        """Believe what happened before the next request comes; what is left takes its time."""
        until_s = self.until_s = float(state.times[come, at.ARRIVAL])
        begun_s, ended_s = state.times[:, at.FIRST_TOKEN], state.times[:, at.COMPLETED]
        began = (begun_s >= 0.0) & (begun_s < until_s)
        done = self.done = began & (ended_s >= 0.0) & (ended_s < until_s)
        self.first_s = np.where(began, begun_s, np.maximum(self.first_s, until_s))
        # The first of the tokens that are left comes at that moment at the soonest.
        soonest_s = until_s + (_tokens_left(state) - 1) * self.decode_s
        took_s = (np.where(done, ended_s, soonest_s) - begun_s) / self.later
        waits_s = np.where(began, np.maximum(self.tpot_s, took_s), self.tpot_s)
        self.tpot_s = np.where(done, took_s, waits_s)

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


def _prompts_s(least: LeastIteration, prompt_tokens: Ints, ready: Ready) -> Floats:
    """Return what each prompt takes at least, in one iteration or in as many as it has chunks."""
    if not ready.scheduler.chunked:
        return least.of(prompt_tokens)
    sizes = np.arange(1, max(1, min(ready.limits.chunk, int(prompt_tokens.max()))) + 1)
    each_s = least.of(sizes)
    chunks = -(-prompt_tokens // sizes[-1])
    whole_s: Floats = np.maximum(chunks * each_s[0], prompt_tokens * (each_s / sizes).min())
    return whole_s


def _tokens_left(state: State) -> Ints:
    """Return how many tokens of its answer each request still waits for."""
    request = state.request
    left = request[:, at.PROMPT] + request[:, at.OUTPUT]
    left = left - np.maximum(request[:, at.DONE], request[:, at.PROMPT])
    stages = state.in_flight.shape[1]
    for replica, pool in enumerate(state.pool):
        for place in range(pool[at.OLDEST], pool[at.OLDEST] + pool[at.FLIGHT]):
            slot = replica * stages + state.in_flight[replica, place % stages]
            left[state.batch[slot, : state.sizes[slot]]] -= state.rounds[slot, at.MADE]
    return np.asarray(left, np.int64)
