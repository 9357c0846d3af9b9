"""Sessions of agents for replays of engines: turns, forks with a shared prefix, and joins.

A main agent takes turns; a turn forks sub-agents that share a part of its prompt, or start afresh
beside it. A later turn waits for all of them. `simulators.serving.demand` builds paths and graph
from chained hashes of blocks, as it does for recorded sessions; the driver of an engine gets the
tokens and the edges. All times are ticks, so that no request is sent when a batch ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from simulators.core.jit import Ints
from simulators.serving.demand.session_graph import (
    PlayedSessions,
    SessionTrace,
    SessionTraces,
    hashed_paths,
    ordered_session,
    played,
)

TICK_S = 2.0**-25
"""Times of a request are odd multiples: no batch ends at the time of an arrival."""

BLOCK = 16
"""Tokens of a hashed block."""


def drawn_forks(seed: int, sessions: int, prompt: int, output: int) -> dict[str, Any]:
    """Return columns of the requests of forked sessions, and the sessions as `played`.

    Args:
        seed: of the draws.
        sessions: number of sessions; each has a main agent and up to three sub-agents.
        prompt: mean number of tokens that a turn adds to its prompt.
        output: mean number of output tokens.
    """
    random = np.random.default_rng(seed)
    drawn = tuple(_session(random, name, prompt, output) for name in range(sessions))
    starts_s = np.array(2 * np.sort(random.integers(1, 1 << 27, sessions)) + 1) * np.float64(TICK_S)
    return columns_of(played(SessionTraces(drawn), 0, 0.0, iter(()), starts_s))


def columns_of(sessions: PlayedSessions) -> dict[str, Any]:
    """Return the columns that a driver reads: lengths, edges, and paths of shared tokens.

    A request without an edge from another request is sent at `given_s`.
    """
    graph, count = sessions.graph, sessions.prompt_tokens.size
    opened = dict(zip(graph.opened.tolist(), graph.opened_s.tolist(), strict=True))
    given_s = np.zeros(count)
    after = np.full(count, -1)
    edges = []
    columns = graph.before, graph.after, graph.on_dispatch, graph.delay_s
    for before, req, on_dispatch, delay_s in zip(*(c.tolist() for c in columns), strict=True):
        if req >= count:
            continue
        if before < count:
            edges.append((before, req, on_dispatch, delay_s))
            after[req] = -3
        else:
            given_s[req] = opened[before] + delay_s
    paths = sessions.paths
    return {
        "given_s": given_s,
        "after": after,
        "session": np.full(count, -1),
        "prefix_group": np.full(count, -1),
        "prefix_tokens": np.zeros(count, np.int64),
        "prompt_tokens": sessions.prompt_tokens,
        "output_tokens": sessions.output_tokens,
        "edges": edges,
        "nodes": np.split(paths.nodes, paths.stops[:-1]),
        "ends": np.split(paths.ends, paths.stops[:-1]),
        "played": sessions,
    }


def _session(random: np.random.Generator, name: int, prompt: int, output: int) -> SessionTrace:
    """Return a session of three to five turns, with forks and a join."""
    hashes: list[list[int]] = []
    rows: list[tuple[float, int, int, int]] = []  # start, stream, prompt, output
    edges: list[tuple[int, int, bool, float]] = []
    fresh: Iterator[int] = iter(range(1 << 40))

    def turn(stream: int, history: list[int]) -> int:
        more = 1 + int(random.exponential(prompt)) // BLOCK
        hashes.append([*history, *(next(fresh) for _ in range(more))])
        short = int(random.integers(0, BLOCK)) if len(hashes[-1]) > len(history) else 0
        tokens = BLOCK * len(hashes[-1]) - short
        rows.append((float(len(rows)), stream, tokens, 2 + int(random.exponential(output))))
        return len(rows) - 1

    def whole(req: int) -> list[int]:
        return hashes[req][: rows[req][2] // BLOCK]

    last, forked = turn(0, []), list[int]()
    for place in range(int(random.integers(2, 5))):
        for _ in range(int(random.integers(0, 3))):
            shared = whole(last)[: int(random.integers(0, 1 + len(whole(last))))]
            child = turn(len(rows), shared)
            on_dispatch = bool(random.integers(2))
            edges.append((last, child, on_dispatch, _ticks(random, odd=not on_dispatch)))
            if random.integers(2):
                following = turn(rows[child][1], whole(child))
                edges.append((child, following, False, _ticks(random, odd=True)))
                child = following
            forked.append(child)
        following = turn(0, whole(last))
        waited = [last, *(forked if place % 2 else ())]
        edges += [(one, following, False, _ticks(random, odd=True)) for one in waited]
        forked = [] if place % 2 else forked
        last = following
    start, stream, prompts, outputs = (list(column) for column in zip(*rows, strict=True))
    lengths: tuple[Ints, Ints] = np.array(prompts), np.array(outputs)
    return ordered_session(
        str(name),
        {
            "start_s": np.where(np.arange(len(rows)) > 0, start, 0.0),
            "end_s": start,
            "stream": stream,
            "prompt_tokens": prompts,
            "output_tokens": outputs,
        },
        edges,
        hashed_paths(hashes, BLOCK, *lengths),
    )


def _ticks(random: np.random.Generator, *, odd: bool) -> float:
    """Return a delay of up to two seconds, an odd or even number of ticks."""
    return float(2 * random.integers(1, 1 << 25) + odd) * TICK_S
