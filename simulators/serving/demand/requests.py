"""Requests of a design point: arrivals, lengths, sessions, closed-loop clients, shared prefixes.

Arrivals. The same seed draws the same gaps of mean one for every design and every rate, which only
scales them: designs are compared on common random numbers. A varying rate is a constant rate with a
varying clock: the integral of the rate turns a Poisson process of unit rate into one of any rate
(the time-change theorem; Çınlar, "Introduction to Stochastic Processes", 1975). The mean rate
equals `qps`. `mmpp` has two states, calm and burst, each held for an exponential time (Fischer and
Meier-Hellstern, "The Markov-modulated Poisson process cookbook", 1993); the probability of the
first state is its share of the time. A `diurnal` rate is a sine that starts at its mean and rises.

Lengths come from a workload, a trace, the point itself, a workload scaled to the means of the
point, or a benchmark client's distribution. A closed-loop client sends its next request after an
answer. In a session each prompt repeats the conversation so far and arrives a think time after the
answer. A tool call is such a turn, which adds the tool's output. A system prompt precedes every
prompt.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.core.errors import Infeasible, UserError
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.prefixes import ChainedPaths, Prefixes, of_hashes, of_sessions, own
from simulators.serving.demand.session_graph import RequestGraph, SessionTraces, played
from simulators.serving.demand.sessions import sessions_of
from simulators.serving.demand.workloads import (
    Trace,
    is_trace,
    load_trace,
    load_workload,
)
from simulators.serving.options import (
    AS_WORKLOAD,
    BENCH_SERVING,
    CLOSED,
    DIURNAL,
    EVEN,
    MMPP,
    POISSON,
    SHAPES,
    ArrivalsConfig,
)
from simulators.serving.point import ServingPoint

N = TypeVar("N", np.int64, np.float64)

_BLOCK = 64
"""Pairs of states per draw; the draws of a shorter run are a prefix of a longer run's."""

_HALVINGS = 60
"""Bisection steps: more than double precision can resolve."""


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of one purpose; other purposes do not shift its numbers.

    >>> stream(1, "gaps").random() == stream(1, "gaps").random()
    True
    """
    return np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))


def arrival_times(point: ServingPoint, trace: Trace | None, count: int) -> Floats:
    """Return the arrival times of the trace, scaled to `qps` if given, or drawn ones.

    A session counts as one arrival.
    """
    if trace is not None and trace.arrival_s is not None:
        arrival = trace.arrival_s[:count]
        if point.qps is not None and arrival[-1] > 0.0:
            arrival = arrival * ((count - 1) / arrival[-1] / point.qps)
        return arrival
    if point.qps is None:
        raise UserError(
            f"workload '{point.workload}' has no arrival times, so qps is needed. Only a trace "
            "with arrival times allows qps null"
        )
    rate, process = point.qps / point.sessions.turns, point.arrivals.process
    if process in VARYING:
        return VARYING[process](point.seed, count, rate, point.arrivals)
    return _unit_arrivals(point.seed, count, process) / rate


@functools.lru_cache(maxsize=64)
def _unit_arrivals(seed: int, count: int, process: str) -> Floats:
    """Return arrival times at one request per second."""
    draw = stream(seed, "gaps")
    gaps = np.ones(count) if process == EVEN else draw.standard_exponential(count)
    return _read_only(np.cumsum(gaps))


@functools.lru_cache(maxsize=64)
def _mmpp_arrivals(seed: int, count: int, rate: float, how: ArrivalsConfig) -> Floats:
    """Return MMPP arrivals: times at which the integral of the rate equals Poisson arrivals."""
    even_s = _unit_arrivals(seed, count, POISSON) / rate
    draw = stream(seed, "states")
    share = how.burst_s / (how.burst_s + how.calm_s)
    calm = 1.0 / (1.0 + share * (how.burst_ratio - 1.0))
    rates, means_s = np.array([calm, calm * how.burst_ratio]), np.array([how.calm_s, how.burst_s])
    if draw.random() < share:
        rates, means_s = rates[::-1], means_s[::-1]
    held, reached = [np.zeros(1)], 0.0
    while reached <= even_s[-1]:
        block = draw.standard_exponential((_BLOCK, 2)) * means_s
        reached += float((block * rates).sum())
        held.append(block.ravel())
    spans = np.concatenate(held)
    rate_then = np.concatenate([np.zeros(1), np.resize(rates, spans.size - 1)])
    return _read_only(np.interp(even_s, np.cumsum(spans * rate_then), np.cumsum(spans)))


@functools.lru_cache(maxsize=64)
def _diurnal_arrivals(seed: int, count: int, rate: float, how: ArrivalsConfig) -> Floats:
    """Return diurnal arrivals: solve `t + a (1 - cos(w t)) / w = u` for Poisson arrivals `u`."""
    even_s = _unit_arrivals(seed, count, POISSON) / rate
    w = 2.0 * np.pi / how.period_s
    low, high = even_s - 2.0 * how.swing / w, even_s
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        early = middle + how.swing * (1.0 - np.cos(w * middle)) / w < even_s
        low, high = np.where(early, middle, low), np.where(early, high, middle)
    return _read_only(np.maximum.accumulate(high))


VARYING = {MMPP: _mmpp_arrivals, DIURNAL: _diurnal_arrivals}
"""Arrivals at a varying rate, by process."""


def _read_only(array: NDArray[N]) -> NDArray[N]:
    """Return an array made read-only, because several points share it."""
    array.flags.writeable = False
    return array


@dataclass(frozen=True)
class Requests:
    """Requests of all clients, in order of arrival."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    draws: Floats  # two uniform numbers per request, for random routers
    clients: int = 0  # of a closed loop, where `arrival_s` is a think time; 0: open loop
    service_s: Floats | float = 0.0  # of the API server, which serves one request after another
    delay_s: float = 0.0  # further delay of each request before the engine
    stream_s: float = 0.0  # from engine to client, per running request, for every token
    session: Ints | None = None  # ascending; the `arrival_s` of a later turn is a think time
    routable: Ints | None = None  # the first so many replicas can receive the request; None: all
    prefixes: Prefixes | ChainedPaths | None = None  # shared prefixes; None: none
    graph: RequestGraph | None = None  # what each request waits for, in place of `arrival_s`

    def take(self, which: Ints) -> Requests:
        """Return the requests of a mask or of ascending indices."""
        columns: dict[str, Any] = {
            name: column[which]
            for name, column in vars(self).items()
            if isinstance(column, np.ndarray)
        }
        prefixes = self.prefixes and self.prefixes.take(which)
        graph = None
        if self.graph is not None:
            kept = np.zeros(self.arrival_s.size, bool)
            kept[which] = True
            graph = self.graph.take(kept)
        return replace(self, **columns, prefixes=prefixes, graph=graph)


def requests_of(point: ServingPoint) -> Requests:
    """Return the requests of a point."""
    closed, load = point.arrivals.process == CLOSED, point.sessions
    least = point.arrivals.clients if closed else 1
    if traces := sessions_of(point.workload, point.seed, point.requests, least):
        return behind_system_prompt(_of_agents(point, traces), load.system_prompt_tokens)
    if load.duration_s:
        raise UserError(
            f"sessions.duration_s is {load.duration_s:g}; workload '{point.workload}' has no "
            "sessions of agents"
        )
    return _independent_requests(point)


def _of_agents(point: ServingPoint, traces: SessionTraces) -> Requests:
    """Return the requests of sessions of agents.

    Clients of a closed loop are lanes. In an open loop sessions arrive at a rate that brings `qps`
    requests per second, or as recorded.
    """
    for name, value in (
        ("prompt_tokens", point.prompt_tokens),
        ("output_tokens", point.output_tokens),
        ("lengths.spread", point.lengths.spread),
        ("lengths.shape", SHAPES.index(point.lengths.shape)),
        ("lengths.max_output_tokens", point.lengths.max_output_tokens),
        ("sessions.turns", point.sessions.turns - 1),
        ("sessions.turn_tokens", point.sessions.turn_tokens),
        ("client.think_s", point.client.think_s),
    ):
        if value:
            raise UserError(f"{name} has no meaning for sessions of agents, which bring their own")
    closed, count = point.arrivals.process == CLOSED, len(traces.sessions)
    starts_s = None
    if not closed:
        if point.sessions.duration_s:
            raise UserError("sessions.duration_s needs arrivals.process closed: lanes of sessions")
        per_session = traces.requests() / count
        recorded = traces.arrival_s
        if point.qps is not None:
            rate = point.qps / per_session
            process = point.arrivals.process
            if process in VARYING:
                starts_s = VARYING[process](point.seed, count, rate, point.arrivals)
            else:
                starts_s = _unit_arrivals(point.seed, count, process) / rate
        elif recorded is None:
            raise UserError(
                f"workload '{point.workload}' has no arrival times of sessions, so qps or "
                "arrivals.process closed is needed"
            )
        else:
            starts_s = recorded
    lanes = point.arrivals.clients if closed else 0
    draws = stream(point.seed, "lanes").random(max(lanes, 1)).tolist()
    found = played(traces, lanes, point.sessions.duration_s, iter(draws), starts_s)
    return Requests(
        arrival_s=np.zeros(found.play.size),
        prompt_tokens=found.prompt_tokens,
        output_tokens=found.output_tokens,
        draws=_draws(point.seed, found.play.size),
        clients=lanes,
        session=found.play,
        prefixes=found.paths,
        graph=found.graph,
    )


def _independent_requests(point: ServingPoint) -> Requests:
    """Return the requests of a workload without sessions of agents."""
    trace = load_trace(point.workload, point.requests) if is_trace(point.workload) else None
    closed, sessions = point.arrivals.process == CLOSED, point.sessions
    if sessions.turns > 1 and (closed or trace):
        raise UserError(
            f"sessions.turns is {sessions.turns}; closed-loop arrivals and traces have no sessions"
        )
    prompt, output = token_counts(point.workload, point.seed, point.requests)
    count = prompt.size
    if point.lengths.shape == BENCH_SERVING:
        most = point.prompt_tokens, point.output_tokens
        prompt, output = bench_serving_lengths(point.seed, count, most, point.lengths.spread)
    else:
        if point.prompt_tokens:
            prompt = _stated_lengths(point, "prompt_tokens", prompt)
        if point.output_tokens:
            output = _stated_lengths(point, "output_tokens", output)
    if point.lengths.max_output_tokens:
        output = np.minimum(output, point.lengths.max_output_tokens)
    # Clients of a closed loop send their first requests together and think before the later ones.
    thinking_s = np.where(np.arange(count) < point.arrivals.clients, 0.0, point.client.think_s)
    asked = Requests(
        arrival_s=thinking_s if closed else arrival_times(point, trace, count),
        prompt_tokens=prompt,
        output_tokens=output,
        draws=_draws(point.seed, count),
        clients=point.arrivals.clients if closed else 0,
        prefixes=None
        if trace is None or point.prompt_tokens
        else _trace_prefixes(trace, prompt, output),
    )
    if sessions.turn_tokens and sessions.turns == 1:
        raise Infeasible("turn_tokens_needs_turns", "a session of one request has no later turn")
    if sessions.turns > 1:
        asked = in_sessions(asked, sessions.turns, point.client.think_s, sessions.turn_tokens)
    return behind_system_prompt(asked, sessions.system_prompt_tokens)


def _trace_prefixes(trace: Trace, prompt: Ints, output: Ints) -> Prefixes | None:
    if trace.hashes is None:
        return None
    stops = trace.hashes.stops[: prompt.size]
    hashes = trace.hashes.hashes[: stops[-1]]
    return of_hashes(hashes, stops, trace.hashes.tokens, prompt, output)


def token_counts(workload: str, seed: int, requests: int) -> tuple[Ints, Ints]:
    """Return the prompt and output tokens of a workload's requests: drawn, or the trace's first."""
    if sessions := sessions_of(workload, seed, requests, 1):
        prompts, outputs = (
            np.concatenate([getattr(one, name) for one in sessions.sessions])
            for name in ("prompt_tokens", "output_tokens")
        )
        return prompts, outputs
    if not is_trace(workload):
        if requests == 0:
            raise UserError("requests is 0; it must be at least 1 without a trace")
        return _workload_lengths(workload, seed, requests, load_workload(workload))
    trace = load_trace(workload, requests)
    first = slice(requests or None)
    return trace.prompt_tokens[first], trace.output_tokens[first]


def max_prefix_hits(workload: str, prompt: Ints, output: Ints) -> Ints:
    """Return the cached tokens of each prompt with an unlimited prefix cache; 0 without hashes."""
    prefixes = None
    if is_trace(workload):
        prefixes = _trace_prefixes(load_trace(workload, prompt.size), prompt, output)
    return np.zeros(prompt.size, np.int64) if prefixes is None else prefixes.max_prefix_hits()


def _stated_lengths(point: ServingPoint, name: str, drawn: Ints) -> Ints:
    """Return the lengths for a stated `prompt_tokens` or `output_tokens` of the point.

    They are constant, uniform up to the stated length, or the workload's `drawn` lengths scaled to
    the stated mean.
    """
    tokens = getattr(point, name)
    if point.lengths.shape == AS_WORKLOAD:
        return scaled_to_mean(drawn, tokens)
    if point.lengths.spread == 0.0:
        return np.full(drawn.size, tokens)
    return _uniform_lengths(point.seed, name, drawn.size, tokens, point.lengths.spread)


def scaled_to_mean(lengths: Ints, mean: float) -> Ints:
    """Return the lengths times one factor, so that their mean is `mean` up to rounding.

    >>> scaled_to_mean(np.array([1, 20, 39]), 40).tolist()
    [2, 40, 78]
    """
    longer: Ints = np.maximum(1, np.rint(lengths * (mean / lengths.mean()))).astype(np.int64)
    return longer


@functools.lru_cache(maxsize=64)
def bench_serving_lengths(
    seed: int, count: int, most: tuple[int, int], spread: float
) -> tuple[Ints, Ints]:
    """Return the prompt and output tokens that SGLang's benchmark client draws, bit-identical.

    `sample_random_requests` of `bench_serving.py` uses numpy's legacy generator, prompts first.

    Args:
        seed: its `--seed`, by default 1.
        count: its `--num-prompts`.
        most: its `--random-input-len` and `--random-output-len`.
        spread: 1 less its `--random-range-ratio`.

    Raises:
        UserError: a maximum length is 0.

    >>> [lengths.tolist() for lengths in bench_serving_lengths(1, 3, (1000, 8000), 0.2)]
    [[837, 940, 872], [7305, 7115, 7247]]
    """
    if not all(most):
        raise UserError("lengths.shape bench_serving needs both prompt_tokens and output_tokens")
    generator = np.random.RandomState(seed)
    least = [max(1, int(longest * (1.0 - spread))) for longest in most]
    prompt, output = (
        generator.randint(low, high + 1, size=count).astype(np.int64)
        for low, high in zip(least, most, strict=True)
    )
    return _read_only(prompt), _read_only(output)


@functools.lru_cache(maxsize=256)
def _uniform_lengths(seed: int, name: str, count: int, most: int, spread: float) -> Ints:
    drawn = stream(seed, name).random(count)
    return _read_only(np.maximum(1, np.rint(most * (1.0 - spread * drawn))).astype(np.int64))


@functools.lru_cache(maxsize=64)
def _workload_lengths(workload: str, seed: int, count: int, _version: object) -> tuple[Ints, Ints]:
    prompt, output = load_workload(workload).draw(stream(seed, "lengths").random((count, 2)))
    return _read_only(prompt), _read_only(output)


@functools.lru_cache(maxsize=64)
def _draws(seed: int, count: int) -> Floats:
    return _read_only(stream(seed, "routing").random((count, 2)))


def in_sessions(asked: Requests, turns: int, think_s: float, added: int = 0) -> Requests:
    """Return the requests grouped into sessions of `turns` consecutive requests.

    The first arrivals become the arrivals of the sessions; the last session may be shorter. Later
    turns have `added` new prompt tokens, or their own prompt tokens if `added` is 0.
    """
    count = asked.arrival_s.size
    session, turn = np.divmod(np.arange(count), turns)
    if added:
        asked = replace(asked, prompt_tokens=np.where(turn == 0, asked.prompt_tokens, added))
    said = np.cumsum(np.append(0, asked.prompt_tokens + asked.output_tokens))
    history = said[:-1] - said[session * turns]
    return replace(
        asked,
        arrival_s=np.where(turn == 0, asked.arrival_s[session], think_s),
        prompt_tokens=asked.prompt_tokens + history,
        session=session,
        prefixes=of_sessions(turn, asked.prompt_tokens + history + asked.output_tokens),
    )


def behind_system_prompt(asked: Requests, tokens: int) -> Requests:
    """Return the requests with a system prompt of some tokens before every prompt."""
    if tokens == 0:
        return asked
    alone = asked.prefixes or own(asked.prompt_tokens + asked.output_tokens)
    longer = asked.prompt_tokens + tokens
    return replace(asked, prompt_tokens=longer, prefixes=alone.behind(tokens))
