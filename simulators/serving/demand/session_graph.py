"""Session trees of agents: requests that depend on other requests, and lanes that replay them.

A session is a tree of streams: a main agent and its sub-agents. An edge releases a request some
time after another one is sent (`dispatch`: a sub-agent that runs beside its parent) or answered
(the next turn after tool and think time, a join). A request is sent at the latest of its edges.

A lane replays one session at a time. When a session is drained, its lane plays the next one of the
list, which wraps. With a duration, the first sessions of all lanes start in the middle, between
START_SHARES of the span of their requests. The last earlier request of each live stream is sent
with one output token, which caches its prefix, then WARMUP_REQUESTS more requests, one after
another. When all lanes have done so, the time of measurement starts, and requests are sent for the
duration. This is the load of AgentX (SemiAnalysis, agentx-harness, 2026), with two differences: a
session without requests in flight is idle for 300 s at most in the recording here, not in the
replay; and a client with no request in flight waits as recorded, not for 10 s at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.prefixes import ChainedPaths, Prefixes

Bools = NDArray[np.bool_]

OWN_NODE = -1
"""Last node of every path: the rest of a prompt and its output, which no other request shares."""

START_SHARES = (0.25, 0.75)
"""Shares of a session between which a lane starts: InferenceX's settings of agentx-harness."""

WARMUP_REQUESTS = 10
"""Requests of a lane between the primers and the measurement, with one output token each."""

FASTEST_TOKEN_S = 2.5e-4
"""A time per output token that no deployment undercuts: bounds how many sessions a lane plays."""

LONGEST_IDLE_S = 300.0
"""Longest time without a request in flight that is kept of a recorded session."""


def hashed_paths(
    hashes: Sequence[Sequence[int]], block: int, prompt: Ints, output: Ints
) -> Prefixes:
    """Return the paths of prompts with chained hashes of their blocks of `block` tokens.

    Blocks that always occur together are one node. The last block of a prompt may have fewer tokens
    or no hash.

    Raises:
        UserError: a prompt has another number of hashes, or a hash has two predecessors.

    >>> paths = hashed_paths([[7, 8], [7, 8, 9]], 4, np.array([8, 12]), np.array([2, 2]))
    >>> paths.nodes.tolist(), paths.ends.tolist()
    ([0, -1, 0, 1, -1], [8, 9, 8, 12, 13])
    """
    counts = np.array([len(row) for row in hashes], np.int64)
    wrong = (counts != prompt // block) & (counts != -(-prompt // block))
    if wrong.any():
        row = int(wrong.argmax())
        raise UserError(
            f"request {row + 1} of the session has {counts[row]} hash_ids for {prompt[row]:,} "
            f"tokens; one for each block of {block} tokens is needed"
        )
    flat = np.array([key for row in hashes for key in row], np.int64)
    stops = np.cumsum(counts)
    _, first, number, occurs = np.unique(
        flat, return_index=True, return_inverse=True, return_counts=True
    )
    number = number.reshape(-1)
    before = np.concatenate([[-1], number[:-1]])
    begins = (stops - counts)[counts > 0]
    before[begins] = -1
    if (before != before[first][number]).any():
        key = int(flat[(before != before[first][number]).argmax()])
        raise UserError(
            f"hash_ids must cover a block and all blocks before it; {key} follows different blocks"
        )
    last = np.zeros(flat.size, bool)
    last[(stops - 1)[counts > 0]] = True
    behind = np.append(occurs[number][1:], 0)
    kept = np.flatnonzero(last | (occurs[number] != behind))
    place = kept - np.repeat(stops - counts, counts)[kept]
    req = np.repeat(np.arange(counts.size), counts)[kept]
    _, nodes = np.unique(number[kept], return_inverse=True)
    ends = np.minimum(block * (place + 1), prompt[req])
    inner = np.searchsorted(req, np.arange(counts.size), side="right")
    return Prefixes(
        np.insert(nodes.reshape(-1), inner, OWN_NODE),
        np.insert(ends, inner, prompt + output - 1),
        inner + np.arange(1, counts.size + 1),
    )


def grown_paths(stream: Ints, prompt: Ints, output: Ints, fresh: Bools) -> ChainedPaths:
    """Return the paths of streams whose prompts contain the prompts before them.

    A request that is `fresh` shares nothing with earlier requests: the first of a stream, or the
    first after its history was summarized.

    >>> fresh = np.array([True, False])
    >>> paths = grown_paths(np.array([0, 0]), np.array([8, 12]), np.array([2, 2]), fresh)
    >>> paths.expanded().nodes.tolist(), paths.expanded().ends.tolist()
    ([0, 2, 0, 1, 3], [8, 9, 8, 12, 13])
    """
    order = np.argsort(stream, kind="stable")
    is_first = fresh[order] | (np.diff(stream[order], prepend=-1) != 0)
    place = np.arange(order.size)
    first = np.maximum.accumulate(np.where(is_first, place, 0))
    begins, stops = np.empty_like(order), np.empty_like(order)
    begins[order], stops[order] = first, place + 1
    return ChainedPaths(order, prompt[order], begins, stops, prompt + output - 1)


@dataclass(frozen=True)
class SessionTrace:
    """A recorded session: requests in an order in which each follows those it depends on."""

    name: str
    start_s: Floats  # recorded, from the start of the session
    end_s: Floats
    stream: Ints  # number of the agent
    prompt_tokens: Ints
    output_tokens: Ints
    before: Ints  # of each edge: the request that releases
    after: Ints  # of each edge: the request that is released
    on_dispatch: Bools  # of each edge: released when `before` is sent, not when it is answered
    delay_s: Floats  # of each edge
    paths: Prefixes | ChainedPaths


@dataclass(frozen=True)
class SessionTraces:
    """Sessions in the order of their file; with `private` prefixes, no session shares a prefix."""

    sessions: tuple[SessionTrace, ...]
    private: bool = True
    arrival_s: Floats | None = None  # of each session, if recorded

    def first(self, count: int) -> SessionTraces:
        """Return the first sessions."""
        arrival_s = None if self.arrival_s is None else self.arrival_s[:count]
        return replace(self, sessions=self.sessions[:count], arrival_s=arrival_s)

    def requests(self) -> int:
        """Return the number of requests of all sessions."""
        return sum(one.start_s.size for one in self.sessions)


def ordered_session(
    name: str,
    columns: dict[str, Any],
    edges: Sequence[tuple[int, int, bool, float]],
    paths: Prefixes | ChainedPaths,
) -> SessionTrace:
    """Return a session with its requests sorted so that causes come before their effects.

    Args:
        name: of the session, for messages.
        columns: the columns of `SessionTrace` with one value per request.
        edges: request that releases, request that is released, whether by dispatch, seconds.
        paths: of the requests.

    Raises:
        UserError: the edges form a cycle.
    """
    count = len(columns["start_s"])
    start = np.asarray(columns["start_s"], np.float64)
    children: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for before, after, _, _ in edges:
        children[before].append(after)
        missing[after] += 1
    ready = [(float(start[i]), i) for i in range(count) if not missing[i]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, req = heapq.heappop(ready)
        order.append(req)
        for child in children[req]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, (float(start[child]), child))
    if len(order) < count:
        raise UserError(f"session '{name}': {count - len(order)} requests wait for each other")
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    table = np.array([(b, a) for b, a, _, _ in edges], np.int64).reshape(-1, 2)
    rows = np.array(order, np.int64)
    end = np.asarray(columns["end_s"], np.float64)
    cut = without_idle(start, end)
    shorter = cut[table[:, 1]] - cut[table[:, 0]]
    return SessionTrace(
        name=name,
        start_s=(start - cut)[rows],
        end_s=(end - cut)[rows],
        **{
            key: np.asarray(columns[key], np.int64)[rows]
            for key in ("stream", "prompt_tokens", "output_tokens")
        },
        before=place[table[:, 0]],
        after=place[table[:, 1]],
        on_dispatch=np.array([on for *_, on, _ in edges], bool),
        delay_s=np.maximum(np.array([delay for *_, delay in edges], np.float64) - shorter, 0.0),
        paths=paths.take(rows),
    )


def without_idle(start_s: Floats, end_s: Floats, longest_s: float = LONGEST_IDLE_S) -> Floats:
    """Return how much earlier each request starts if idle times are cut to `longest_s`.

    >>> without_idle(np.array([0.0, 1000.0]), np.array([10.0, 1010.0])).tolist()
    [0.0, 690.0]
    """
    order = np.argsort(start_s, kind="stable")
    busy_until = np.maximum.accumulate(end_s[order])
    idle = np.maximum(start_s[order][1:] - busy_until[:-1] - longest_s, 0.0)
    cut = np.empty(start_s.size)
    cut[order] = np.concatenate([[0.0], np.cumsum(idle)])
    return cut


PLAIN, NEXT_SESSION, WINDOW = range(3)
"""Kinds of gates: `simulators/serving/engine/replica.py`."""


@dataclass(frozen=True)
class RequestGraph:
    """Edges between requests, and gates: nodes without a request that resolve edges.

    Nodes are requests, then gates. Gates from `first_session` to `sessions_end` start the sessions
    that wait for a lane, in order.
    """

    gate_kind: Ints
    pending: Ints  # of each node: unresolved edges
    before: Ints  # of each edge
    after: Ints
    on_dispatch: Bools
    delay_s: Floats
    opened: Ints  # gates that open by themselves
    opened_s: Floats  # when
    first_session: int
    sessions_end: int
    duration_s: float  # of sending, from the opening of the WINDOW gate
    is_warmup: Bools  # of each request
    of_whole_session: Bools  # of each request: whether its session is played from start to end
    requests_per_session: float  # of the recorded sessions

    def take(self, kept: Bools) -> RequestGraph:
        """Return the graph of the requests of a mask; others become gates, which pass edges on."""
        count = kept.size
        gates = self.gate_kind.size
        number = np.empty(count + gates, np.int64)
        number[:count][kept] = np.arange(kept.sum())
        number[count:] = kept.sum() + np.arange(gates)
        number[:count][~kept] = kept.sum() + gates + np.arange((~kept).sum())
        pending = np.empty_like(self.pending)
        pending[number] = self.pending
        return replace(
            self,
            gate_kind=np.append(self.gate_kind, np.zeros((~kept).sum(), np.int64)),
            pending=pending,
            before=number[self.before],
            after=number[self.after],
            opened=number[self.opened],
            first_session=self.first_session - count + int(kept.sum()),
            sessions_end=self.sessions_end - count + int(kept.sum()),
            is_warmup=self.is_warmup[kept],
            of_whole_session=self.of_whole_session[kept],
        )


@dataclass(frozen=True)
class Play:
    """One play of a session: the rows of its requests, and whether a request warms up."""

    session: int
    rows: Ints
    warmup: Bools
    since_s: float  # recorded time at which the measured part begins
    drained_s: float  # lower bound of its length; infinite: it ends after the duration


@dataclass(frozen=True)
class PlayedSessions:
    """Requests of all plays, in order of plays, with their graph."""

    play: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    paths: Prefixes | ChainedPaths
    graph: RequestGraph


def earliest_s(session: SessionTrace, rest: Bools, since_s: float) -> Floats:
    """Return lower bounds of the times at which the requests of `rest` are sent.

    Times count from `since_s` of the recording; a request that depends on none of `rest` is sent as
    recorded. Other requests have 0.
    """
    inner = np.flatnonzero(rest[session.before] & rest[session.after])
    found = np.where(rest, np.maximum(session.start_s - since_s, 0.0), 0.0)
    found[session.after[inner]] = 0.0
    took = FASTEST_TOKEN_S * session.output_tokens
    inner = inner[np.argsort(session.after[inner], kind="stable")]
    spent = session.delay_s + np.where(session.on_dispatch, 0.0, took[session.before])
    columns = (session.before[inner], session.after[inner], spent[inner])
    for before, after, least in zip(*(column.tolist() for column in columns), strict=True):
        found[after] = max(found[after], found[before] + least)
    return found


def plays_of(
    sessions: Sequence[SessionTrace], lanes: int, duration_s: float, draws: Iterator[float]
) -> list[Play]:
    """Return the plays that fill the lanes for a duration; without one, every session once."""
    if not duration_s:
        counts = [one.start_s.size for one in sessions]
        return [Play(i, np.arange(n), np.zeros(n, bool), 0.0, 0.0) for i, n in enumerate(counts)]
    plays: list[Play] = []
    free: list[tuple[float, int]] = []
    for lane in range(lanes):
        which = lane % len(sessions)
        plays.append(_from_the_middle(sessions[which], which, next(draws), duration_s))
        heapq.heappush(free, (plays[-1].drained_s, lane))
    while free[0][0] < duration_s:
        begin_s, lane = heapq.heappop(free)
        which = len(plays) % len(sessions)
        every = np.ones(sessions[which].start_s.size, bool)
        plays.append(_play(sessions[which], which, every, 0.0, duration_s - begin_s))
        heapq.heappush(free, (begin_s + plays[-1].drained_s, lane))
    return plays


def _play(session: SessionTrace, which: int, rest: Bools, since_s: float, left_s: float) -> Play:
    """Return a play of the requests of `rest` that can be sent within some time."""
    sent_s = earliest_s(session, rest, since_s)
    rows = np.flatnonzero(rest & (sent_s <= left_s))
    drained_s = np.inf
    if rows.size == np.count_nonzero(rest):
        took_s = FASTEST_TOKEN_S * session.output_tokens[rows]
        drained_s = float((sent_s[rows] + took_s).max(initial=FASTEST_TOKEN_S))
    return Play(which, rows, np.zeros(rows.size, bool), since_s, drained_s)


def _from_the_middle(session: SessionTrace, which: int, draw: float, duration_s: float) -> Play:
    """Return a play that starts at a share of the span of a session's requests."""
    low, high = START_SHARES
    start_s, end_s, stream = session.start_s, session.end_s, session.stream
    begin_s = start_s.min() + (low + (high - low) * draw) * float(np.ptp(start_s))
    past = start_s < begin_s
    primers = []
    for own in np.unique(stream):
        mine = np.flatnonzero(stream == own)
        earlier = mine[past[mine]]
        if earlier.size and (earlier.size < mine.size or end_s[mine].max() > begin_s):
            primers.append(int(earlier[np.argmax(start_s[earlier])]))
    later = np.flatnonzero(~past)
    later = later[np.argsort(start_s[later], kind="stable")]
    warm = np.array([*sorted(primers), *later[:WARMUP_REQUESTS]], np.int64)
    since_s = max(begin_s, float(end_s[warm].max(initial=0.0)))
    rest = np.zeros(start_s.size, bool)
    rest[later[WARMUP_REQUESTS:]] = True
    found = _play(session, which, rest, since_s, duration_s)
    return replace(
        found,
        rows=np.concatenate([warm, found.rows]),
        warmup=np.arange(warm.size + found.rows.size) < warm.size,
    )


class _Edges:
    """Edges of a graph under construction."""

    def __init__(self) -> None:
        self.parts: list[tuple[Any, Any, Any, Any]] = []

    def add(self, before: Any, after: Any, delay_s: Any = 0.0, on_dispatch: Any = False) -> None:
        before, after, delay_s, on_dispatch = np.broadcast_arrays(
            before, after, delay_s, on_dispatch
        )
        self.parts.append((before, after, delay_s, on_dispatch))

    def columns(self) -> tuple[Ints, Ints, Floats, Bools]:
        columns = [np.concatenate([np.atleast_1d(p[i]) for p in self.parts]) for i in range(4)]
        kinds = (np.int64, np.int64, np.float64, np.bool_)
        return tuple(c.astype(k) for c, k in zip(columns, kinds, strict=True))  # type: ignore[return-value]


def played(
    traces: SessionTraces,
    lanes: int,
    duration_s: float,
    draws: Iterator[float],
    starts_s: Floats | None = None,
) -> PlayedSessions:
    """Return the requests of lanes that replay sessions, with their dependencies.

    Args:
        traces: the sessions, in order.
        lanes: sessions that are live at once; ignored with `starts_s`.
        duration_s: time of sending after a warm-up; 0: each session once, without a warm-up.
        draws: uniform numbers, one per lane, that select where its first session starts.
        starts_s: start of each session (open loop); None: the lanes' (closed loop).
    """
    sessions = traces.sessions
    plays = plays_of(sessions, lanes, duration_s, draws)
    output = np.concatenate(
        [np.where(p.warmup, 1, sessions[p.session].output_tokens[p.rows]) for p in plays]
    )
    prompt = np.concatenate([sessions[p.session].prompt_tokens[p.rows] for p in plays])
    play_of = np.repeat(np.arange(len(plays)), [play.rows.size for play in plays])
    graph = _graph_of(traces, plays, play_of, lanes, duration_s, starts_s)
    last_ends = prompt + output - 1
    parts = [sessions[play.session].paths for play in plays]
    rows_of = [play.rows for play in plays]
    chains = [part for part in parts if isinstance(part, ChainedPaths)]
    paths = (
        _chained(chains, rows_of, last_ends)
        if traces.private and len(chains) == len(parts)
        else _listed(parts, rows_of, last_ends, is_private=traces.private)
    )
    return PlayedSessions(play_of, prompt, output, paths, graph)


def _graph_of(
    traces: SessionTraces,
    plays: Sequence[Play],
    play_of: Ints,
    lanes: int,
    duration_s: float,
    starts_s: Floats | None,
) -> RequestGraph:
    """Return the dependencies of the requests of all plays; `play_of` is the play of each."""
    count = play_of.size
    first_gate, window = count, count + 2 * len(plays)
    before, after, delay_s, on_dispatch = _edges_of(
        traces.sessions, plays, (first_gate, window), lanes if duration_s else 0
    )
    kinds = np.zeros(2 * len(plays) + 2, np.int64)
    kinds[len(plays) : 2 * len(plays)] = PLAIN if starts_s is not None else NEXT_SESSION
    kinds[-2] = WINDOW
    live = len(plays) if starts_s is not None else min(lanes, len(plays))
    opened = first_gate + np.arange(live)
    opened_s = np.zeros(live) if starts_s is None else starts_s[:live]
    is_warmup = np.concatenate([play.warmup for play in plays])
    if not is_warmup.any():
        opened, opened_s = np.append(opened, window), np.append(opened_s, 0.0)
    return RequestGraph(
        gate_kind=kinds,
        pending=np.bincount(after, minlength=count + kinds.size),
        before=before,
        after=after,
        on_dispatch=on_dispatch,
        delay_s=delay_s,
        opened=opened,
        opened_s=opened_s,
        first_session=first_gate + live,
        sessions_end=first_gate + len(plays),
        duration_s=duration_s or np.inf,
        is_warmup=is_warmup,
        of_whole_session=np.array([one.drained_s < np.inf for one in plays])[play_of]
        & ~np.isin(play_of, play_of[is_warmup]),
        requests_per_session=traces.requests() / len(traces.sessions),
    )


def _edges_of(
    sessions: Sequence[SessionTrace], plays: Sequence[Play], gates: tuple[int, int], lanes: int
) -> tuple[Ints, Ints, Floats, Bools]:
    """Return the edges of all plays as columns; `lanes`: lanes that warm up before the window.

    `gates` are the first gate, which starts the first play, and the gate of the window.
    """
    first_gate, window = gates
    edges, offset = _Edges(), 0
    for number, play in enumerate(plays):
        _add_play(edges, sessions[play.session], play, offset, (first_gate + number, window))
        ended = first_gate + len(plays) + number
        if play.rows.size:
            edges.add(offset + np.arange(play.rows.size), ended)
        if play.drained_s == np.inf:
            edges.add(window + 1, ended)  # a gate that never opens
        if number < lanes:
            edges.add(window, ended)  # a lane drained by its warm-up waits for the others
        offset += play.rows.size
    return edges.columns()


def _chained(
    parts: Sequence[ChainedPaths], rows_of: Sequence[Ints], last_ends: Ints
) -> ChainedPaths:
    """Return the paths of the played rows of sessions, which share no prefix."""
    nodes, shared = [], 0
    for part in parts:
        nodes.append(part.nodes + shared)
        shared += int(part.nodes.max(initial=-1)) + 1
    starts = np.cumsum([0, *(part.nodes.size for part in parts[:-1])])
    begins, stops = (
        np.concatenate(
            [
                getattr(part, name)[rows] + start
                for part, rows, start in zip(parts, rows_of, starts, strict=True)
            ]
        )
        for name in ("begins", "stops")
    )
    ends = np.concatenate([part.ends for part in parts])
    return ChainedPaths(np.concatenate(nodes), ends, begins, stops, last_ends)


def _listed(
    parts: Sequence[Prefixes | ChainedPaths],
    rows_of: Sequence[Ints],
    last_ends: Ints,
    *,
    is_private: bool,
) -> Prefixes:
    """Return the paths of the played rows of sessions, each stored apart."""
    nodes, ends, stops = [], [], []
    shared = steps = 0
    for part, rows in zip(parts, rows_of, strict=True):
        whole = part.expanded() if isinstance(part, ChainedPaths) else part
        paths = whole.take(rows)
        nodes.append(np.where(paths.nodes >= 0, paths.nodes + shared * is_private, OWN_NODE))
        shared += int(whole.nodes.max(initial=-1)) + 1
        ends.append(paths.ends)
        stops.append(paths.stops + steps)
        steps += paths.nodes.size
    all_nodes, all_ends, all_stops = map(np.concatenate, (nodes, ends, stops))
    own = all_nodes == OWN_NODE
    all_nodes[own] = int(all_nodes.max(initial=-1)) + 1 + np.arange(int(own.sum()))
    all_ends[all_stops - 1] = last_ends
    return Prefixes(all_nodes, all_ends, all_stops)


def _add_play(
    edges: _Edges, session: SessionTrace, play: Play, offset: int, gates: tuple[int, int]
) -> None:
    """Add the edges of a play: between its requests, from its start gate, from the window gate."""
    start, window = gates
    rows = play.rows
    place = np.full(session.start_s.size, -1)
    place[rows] = offset + np.arange(rows.size)
    is_warmup = np.zeros(session.start_s.size, bool)
    is_warmup[rows[play.warmup]] = True
    measured = np.zeros(session.start_s.size, bool)
    measured[rows[~play.warmup]] = True
    kept = measured[session.before] & measured[session.after]
    edges.add(
        place[session.before[kept]],
        place[session.after[kept]],
        session.delay_s[kept],
        session.on_dispatch[kept],
    )
    follows = np.zeros(measured.size, bool)
    follows[session.after[kept]] = True
    if not play.warmup.any():
        roots = np.flatnonzero(measured & ~follows)
        edges.add(start, place[roots], session.start_s[roots])
        return
    other = np.zeros(measured.size, bool)
    other[session.after[~kept]] = True
    late = np.flatnonzero(measured & (other | ~follows))
    edges.add(window, place[late], np.maximum(session.start_s[late] - play.since_s, 0.0))
    warm = place[rows[play.warmup]]
    primers = warm[: max(0, warm.size - WARMUP_REQUESTS)]
    further = warm[primers.size :]
    if primers.size:
        edges.add(start, primers)
        if further.size:
            edges.add(primers, further[0])
    elif further.size:
        edges.add(start, further[0])
    edges.add(further[:-1], further[1:])
    edges.add(warm, window)
