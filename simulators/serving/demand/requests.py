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

Shared prefixes. Each request is a path through a prefix tree, from its first token on. A node is a
run of tokens that requests share: a stretch of the system prompt, the history of a session up to a
turn, or a block of a trace, whose hash covers its content and all tokens before. The last node of a
path belongs to one request: the rest of its prompt and its output, without the last token, whose
keys are never computed.
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
from simulators.serving.demand.workloads import Trace, is_trace, load_trace, load_workload
from simulators.serving.point import (
    AS_WORKLOAD,
    BENCH_SERVING,
    CLOSED,
    DIURNAL,
    EVEN,
    MMPP,
    POISSON,
    ArrivalsConfig,
    ServingPoint,
)

N = TypeVar("N", np.int64, np.float64)

STRETCH = 512
"""Tokens of a system prompt per node of the tree, the unit of its cache hits. A choice: at most the
tokens that engines compute at a time."""


@dataclass(frozen=True)
class Prefixes:
    """Paths of requests through the prefix tree; shared prefixes are nodes of equal number."""

    nodes: Ints  # of all requests, paths concatenated
    ends: Ints  # tokens of the request up to the end of each node
    stops: Ints  # end of each request's path

    def take(self, which: Ints) -> Prefixes:
        """Return the paths of some requests.

        >>> two = own([3, 5])
        >>> two.take(np.array([1])).ends.tolist()
        [4]
        """
        starts, counts = self._starts()[which], np.diff(self.stops, prepend=0)[which]
        rows = _ranges(starts, counts)
        return Prefixes(self.nodes[rows], self.ends[rows], np.cumsum(counts))

    def apart(self, group: Ints) -> Prefixes:
        """Return the paths with nodes shared only within a group of requests.

        >>> of_sessions(np.array([0, 1, 0]), np.array([9, 9, 9])).apart(np.array([0, 1, 0])).nodes
        array([0, 2, 3, 1])
        """
        groups = np.repeat(group, np.diff(self.stops, prepend=0))
        pairs = np.unique(np.stack((groups, self.nodes)), axis=1, return_inverse=True)[1]
        return Prefixes(pairs.reshape(-1), self.ends, self.stops)

    def behind(self, system_tokens: int) -> Prefixes:
        """Return the paths with the nodes of one system prompt in front.

        >>> own([3, 5]).behind(1000).ends.tolist()
        [512, 1000, 1002, 512, 1000, 1004]
        """
        if system_tokens == 0:
            return self
        ends = np.append(np.arange(STRETCH, system_tokens, STRETCH), system_tokens)
        first = int(self.nodes.max()) + 1
        places = np.repeat(self._starts(), ends.size)
        return Prefixes(
            np.insert(self.nodes, places, np.tile(first + np.arange(ends.size), self.stops.size)),
            np.insert(self.ends + system_tokens, places, np.tile(ends, self.stops.size)),
            self.stops + ends.size * np.arange(1, self.stops.size + 1),
        )

    def max_prefix_hits(self) -> Ints:
        """Return the cached tokens of each request, in order, with an unlimited prefix cache.

        >>> of_sessions(np.array([0, 1, 0]), np.array([10, 30, 8])).max_prefix_hits().tolist()
        [0, 9, 0]
        """
        req = np.repeat(np.arange(self.stops.size), np.diff(self.stops, prepend=0))
        first = np.full(int(self.nodes.max()) + 1, self.stops.size)
        np.minimum.at(first, self.nodes, req)
        new = np.flatnonzero(first[self.nodes] == req)  # includes the last node of every path
        starts = self._starts()
        reached = new[np.searchsorted(new, starts)]
        found: Ints = np.where(reached > starts, self.ends[reached - 1], 0)
        return found

    def _starts(self) -> Ints:
        return np.concatenate([np.zeros(1, np.int64), self.stops[:-1]])


def own(tokens: Ints) -> Prefixes:
    """Return paths without shared nodes; `tokens` counts prompt and output of each request.

    >>> own([3, 5]).nodes.tolist()
    [0, 1]
    """
    ends = np.asarray(tokens, np.int64) - 1
    return Prefixes(np.arange(ends.size), ends, np.arange(1, ends.size + 1))


def of_sessions(turn: Ints, tokens: Ints) -> Prefixes:
    """Return the paths of requests that repeat the earlier turns of their session.

    Turns of a session are consecutive; `tokens` counts prompt (with the history) and output.

    >>> of_sessions(np.array([0, 1, 0]), np.array([10, 30, 8])).nodes.tolist()
    [0, 0, 1, 2]
    """
    counts = turn + 1
    nodes = _ranges(np.arange(turn.size) - turn, counts)
    return Prefixes(nodes, np.asarray(tokens, np.int64)[nodes] - 1, np.cumsum(counts))


def of_hashes(hashes: Ints, stops: Ints, hashed: int, prompt: Ints, output: Ints) -> Prefixes:
    """Return the paths of requests whose prompt blocks are identified by hashes.

    `hashes` are those of all requests' blocks of `hashed` tokens, concatenated; each request's end
    at `stops`. The last block of a prompt may have fewer tokens.

    >>> of_hashes(np.array([7, 8, 7]), np.array([2, 3]), 4, np.array([6, 3]), np.array([9, 9])).ends
    array([ 4,  6, 14,  3, 11])
    """
    known, numbered = np.unique(hashes, return_inverse=True)
    counts = np.diff(stops, prepend=0)
    place = _ranges(np.zeros(stops.size, np.int64), counts)
    ends = np.minimum(hashed * (place + 1), np.repeat(prompt, counts))
    return Prefixes(
        np.insert(numbered.reshape(-1), stops, known.size + np.arange(stops.size)),
        np.insert(ends, stops, prompt + output - 1),
        stops + np.arange(1, stops.size + 1),
    )


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """Return ranges of `counts` integers from each start, concatenated.

    >>> _ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    first = np.cumsum(counts) - counts
    rows: Ints = np.arange(int(counts.sum())) - np.repeat(first - starts, counts)
    return rows


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
    prefixes: Prefixes | None = None  # shared prefixes; None: none

    def take(self, which: Ints) -> Requests:
        """Return the requests of a mask or of indices."""
        columns: dict[str, Any] = {
            name: column[which]
            for name, column in vars(self).items()
            if isinstance(column, np.ndarray)
        }
        prefixes = self.prefixes and self.prefixes.take(which)
        return replace(self, **columns, prefixes=prefixes)


def requests_of(point: ServingPoint) -> Requests:
    """Return the requests of a point."""
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
