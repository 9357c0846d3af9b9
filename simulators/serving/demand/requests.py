"""The requests of a design point: arrival times, lengths, sessions and closed-loop clients.

Lengths come from a workload, a trace, the point itself, a workload scaled to the means of the
point, or a benchmark client's distribution. A closed-loop client sends its next request after an
answer. In a session each prompt repeats the conversation so far and arrives a think time after the
answer. A tool call is such a turn, which adds the tool's output. A system prompt precedes every
prompt. Shared prefixes are passed on to the prefix cache.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulators.core.errors import Infeasible, UserError
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.arrivals import arrival_times, stream
from simulators.serving.demand.prefixes import Prefixes, of_hashes, of_sessions, own
from simulators.serving.demand.traces import Trace, is_trace, load_trace
from simulators.serving.demand.workloads import load_workload
from simulators.serving.point import AS_WORKLOAD, BENCH_SERVING, CLOSED, ServingPoint


@dataclass(frozen=True)
class Requests:
    """Requests of all clients, in order of arrival."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    draws: Floats  # two uniform numbers per request, for routers that toss coins
    clients: int = 0  # of a closed system, where `arrival_s` is the time a client thinks; 0: open
    service_s: Floats | float = 0.0  # that a server before the engine works on each, one by one
    delay_s: float = 0.0  # that each takes to the engine besides
    session: Ints | None = None  # rising; a later turn's `arrival_s` is the time its user thinks
    routable: Ints | None = None  # replicas that each may go to, the first so many; None: all
    prefixes: Prefixes | None = None  # what they have in common; None: nothing

    def take(self, which: Ints) -> Requests:
        """Return some of the requests."""
        columns: dict[str, Any] = {
            name: column[which]
            for name, column in vars(self).items()
            if isinstance(column, np.ndarray)
        }
        prefixes = self.prefixes and self.prefixes.take(which)
        return replace(self, **columns, prefixes=prefixes)


def requests_of(point: ServingPoint) -> Requests:
    """Return the requests of a point."""
    trace = load_trace(point.workload) if is_trace(point.workload) else None
    closed = point.arrivals.process == CLOSED
    if point.sessions.turns > 1 and (closed or trace):
        raise UserError(
            f"sessions.turns is {point.sessions.turns}; sessions are drawn, so neither closed "
            "arrivals nor a trace can have them"
        )
    prompt, output = token_counts(point.workload, point.seed, point.requests)
    count = prompt.size
    if point.lengths.shape == BENCH_SERVING:
        most = point.prompt_tokens, point.output_tokens
        prompt, output = bench_serving_lengths(point.seed, count, most, point.lengths.spread)
    else:
        if point.prompt_tokens:
            prompt = _stated(point, "prompt_tokens", prompt)
        if point.output_tokens:
            output = _stated(point, "output_tokens", output)
    if point.lengths.max_output_tokens:
        output = np.minimum(output, point.lengths.max_output_tokens)
    # Closed clients think before each request but the first, and all of those come at once.
    thinking_s = np.where(np.arange(count) < point.arrivals.clients, 0.0, point.client.think_s)
    asked = Requests(
        arrival_s=thinking_s if closed else _arriving(point, trace, count),
        prompt_tokens=prompt,
        output_tokens=output,
        draws=_draws(point.seed, count),
        clients=point.arrivals.clients if closed else 0,
        prefixes=None if trace is None or point.prompt_tokens else _hashed(trace, prompt, output),
    )
    if point.sessions.turn_tokens and point.sessions.turns == 1:
        raise Infeasible("turn_tokens_needs_turns", "a session of one request has no later turn")
    if point.sessions.turns > 1:
        asked = in_sessions(
            asked, point.sessions.turns, point.client.think_s, point.sessions.turn_tokens
        )
    return behind_system_prompt(asked, point.sessions.system_prompt_tokens)


def _hashed(trace: Trace, prompt: Ints, output: Ints) -> Prefixes | None:
    """Return the shared prefixes of a trace's first requests, from its block hashes."""
    if trace.hashes is None:
        return None
    stops = trace.hashes.stops[: prompt.size]
    hashes = trace.hashes.hashes[: stops[-1]]
    return of_hashes(hashes, stops, trace.hashes.tokens, prompt, output)


def token_counts(workload: str, seed: int, requests: int) -> tuple[Ints, Ints]:
    """Return the prompt and output tokens of a trace's first requests, or of requests drawn."""
    if not is_trace(workload):
        if requests == 0:
            raise UserError("requests is 0; a workload that is drawn needs at least 1")
        return _drawn(workload, seed, requests, load_workload(workload))
    trace = load_trace(workload)
    first = slice(requests or None)
    return trace.prompt_tokens[first], trace.output_tokens[first]


def max_prefix_hits(workload: str, prompt: Ints, output: Ints) -> Ints:
    """Return the cached tokens of each prompt with an unlimited prefix cache; 0 without hashes."""
    prefixes = _hashed(load_trace(workload), prompt, output) if is_trace(workload) else None
    return np.zeros(prompt.size, np.int64) if prefixes is None else prefixes.max_prefix_hits()


def _arriving(point: ServingPoint, trace: Trace | None, count: int) -> Floats:
    """Return arrival times: those of the trace, scaled if a rate is given, or drawn ones."""
    if trace is None or trace.arrival_s is None:
        return arrival_times(point, count)
    arrival = trace.arrival_s[:count]
    if point.qps is not None and arrival[-1] > 0.0:
        arrival = arrival * ((count - 1) / arrival[-1] / point.qps)
    return arrival


def _stated(point: ServingPoint, name: str, drawn: Ints) -> Ints:
    """Return lengths of which the point states one.

    They are equal, or drawn evenly below it, or as the workload's were `drawn`, with it as mean.
    """
    tokens = getattr(point, name)
    if point.lengths.shape == AS_WORKLOAD:
        return stretched(drawn, tokens)
    if point.lengths.spread == 0.0:
        return np.full(drawn.size, tokens)
    return _spread(point.seed, name, drawn.size, tokens, point.lengths.spread)


def stretched(lengths: Ints, mean: float) -> Ints:
    """Return lengths by one factor longer or shorter, so that this is their mean, but for rounding.

    >>> stretched(np.array([1, 20, 39]), 40).tolist()
    [2, 40, 78]
    """
    longer: Ints = np.maximum(1, np.rint(lengths * (mean / lengths.mean()))).astype(np.int64)
    return longer


@functools.lru_cache(maxsize=64)
def bench_serving_lengths(
    seed: int, count: int, most: tuple[int, int], spread: float
) -> tuple[Ints, Ints]:
    """Return prompt and output tokens as the client of SGLang draws them, one by one the same.

    `sample_random_requests` of `bench_serving.py` takes numpy's first generator, prompts first.

    Args:
        seed: its `--seed`, by default 1.
        count: its `--num-prompts`.
        most: its `--random-input-len` and `--random-output-len`.
        spread: 1 less its `--random-range-ratio`.

    Raises:
        UserError: lengths that are the workload's have no longest.

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
    prompt.flags.writeable = output.flags.writeable = False
    return prompt, output


@functools.lru_cache(maxsize=256)
def _spread(seed: int, name: str, count: int, most: int, spread: float) -> Ints:
    drawn = stream(seed, name).random(count)
    lengths: Ints = np.maximum(1, np.rint(most * (1.0 - spread * drawn))).astype(np.int64)
    lengths.flags.writeable = False
    return lengths


@functools.lru_cache(maxsize=64)
def _drawn(workload: str, seed: int, count: int, _version: object) -> tuple[Ints, Ints]:
    """Return prompt and output tokens of a named workload."""
    prompt, output = load_workload(workload).draw(stream(seed, "lengths").random((count, 2)))
    prompt.flags.writeable = output.flags.writeable = False
    return prompt, output


@functools.lru_cache(maxsize=64)
def _draws(seed: int, count: int) -> Floats:
    """Return two uniform numbers per request."""
    draws = stream(seed, "routing").random((count, 2))
    draws.flags.writeable = False
    return draws


def in_sessions(asked: Requests, turns: int, think_s: float, added: int = 0) -> Requests:
    """Return the requests grouped into sessions of consecutive turns.

    The first arrivals become those of the sessions, of which the last may be shorter. Later turns
    ask as many tokens as are `added`, if any are said to be.
    """
    count = asked.arrival_s.size
    session, turn = np.divmod(np.arange(count), turns)
    if added:
        asked = replace(asked, prompt_tokens=np.where(turn == 0, asked.prompt_tokens, added))
    said = np.concatenate(
        [np.zeros(1, np.int64), np.cumsum(asked.prompt_tokens + asked.output_tokens)]
    )
    history = said[:-1] - said[session * turns]
    return replace(
        asked,
        arrival_s=np.where(turn == 0, asked.arrival_s[session], think_s),
        prompt_tokens=asked.prompt_tokens + history,
        session=session,
        prefixes=of_sessions(turn, asked.prompt_tokens + history + asked.output_tokens),
    )


def behind_system_prompt(asked: Requests, tokens: int) -> Requests:
    """Return the same requests, whose prompts all begin with the same tokens."""
    if tokens == 0:
        return asked
    alone = asked.prefixes or own(asked.prompt_tokens + asked.output_tokens)
    longer = asked.prompt_tokens + tokens
    return replace(asked, prompt_tokens=longer, prefixes=alone.behind(tokens))
