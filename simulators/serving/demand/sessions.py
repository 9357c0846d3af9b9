"""Sessions of agents: those of a trace, or drawn from a few statistics for planners without one.

A workload file with a table `[sessions]` describes agents; `[prompt]` are the first prompts of main
agents, `[[output]]` the answers of all requests:

    [sessions]
    context_limit = 990_000         # a longer prompt is replaced by a summary
    summary_tokens = 30_000
    first_token_s = 2.0             # recorded service: latency, and time per output token
    token_s = 0.015
    turns = {distribution = "lognormal", mean = 130, sigma = 0.9, least = 20, most = 2000}
    growth = {...}                  # tokens of tool results and user messages before a later turn
    [sessions.gap_s]                # tool and think time before a later turn
    probability = [0.0, 0.5, 1.0]   # interpolated in logarithms
    seconds = [0.2, 4.9, 3600.0]
    [sessions.sub_agents]
    share = 0.45                    # sessions with sub-agents
    groups = {...}                  # groups of sub-agents in such a session
    fan_out = {...}                 # sub-agents of a group, which run together
    turns = {...}
    prompt = {...}                  # first prompts, which share nothing with the main agent's
    growth = {...}
    gap_s = {...}

The next turn of the main agent joins a group: it waits for all of its sub-agents.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from simulators.core.calibration import read_choice
from simulators.core.errors import UserError
from simulators.core.folder import WORKLOADS, reader
from simulators.core.jit import Floats
from simulators.serving.demand.session_graph import (
    SessionTrace,
    SessionTraces,
    grown_paths,
    ordered_session,
)
from simulators.serving.demand.workloads import (
    Distribution,
    Positive,
    TokenCount,
    distribution_of,
    is_trace,
)

SESSIONS = "sessions"


class GapQuantiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quantiles of times, interpolated in logarithms."""

    probability: tuple[float, ...]
    seconds: tuple[Positive, ...]

    def __post_init__(self) -> None:
        known = self.probability
        is_rising = sorted(set(known)) == list(known) and sorted(self.seconds) == [*self.seconds]
        is_whole = (known[:1], known[-1:]) == ((0.0,), (1.0,))
        if len(known) != len(self.seconds) or not is_rising or not is_whole:
            raise ValueError("probability must rise from 0 to 1, with one number of seconds each")

    def at(self, probability: Floats) -> Floats:
        """Return the seconds at an array of probabilities.

        >>> gaps = GapQuantiles((0.0, 0.5, 1.0), (1.0, 10.0, 1000.0))
        >>> gaps.at(np.array([0.5, 0.75])).round(6).tolist()
        [10.0, 100.0]
        """
        seconds: Floats = np.exp(np.interp(probability, self.probability, np.log(self.seconds)))
        return seconds


Table = dict[str, Any]


class SubAgents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sub-agents of a session."""

    share: Annotated[float, msgspec.Meta(ge=0, le=1)]
    groups: Table
    fan_out: Table
    turns: Table
    prompt: Table
    growth: Table
    gap_s: GapQuantiles


class SessionStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[sessions]` of a workload file."""

    context_limit: TokenCount
    summary_tokens: TokenCount
    first_token_s: Positive
    token_s: Positive
    turns: Table
    growth: Table
    gap_s: GapQuantiles
    sub_agents: SubAgents


def has_sessions(workload: str) -> bool:
    """Return whether a workload, a file of statistics or a trace, has sessions of agents.

    >>> has_sessions("agentic"), has_sessions("chat")
    (True, False)
    """
    if is_trace(workload):
        return load_sessions(workload) is not None
    return WORKLOADS.load(workload, _sheet).get(SESSIONS) is not None


def _sheet(path: Path) -> Table:
    found: Table = read_choice(path)
    return {**found, "path": path}


@functools.lru_cache(maxsize=8)
def drawn_sessions(workload: str, seed: int, requests: int, least: int) -> SessionTraces:
    """Return drawn sessions: at least `least`, with at least `requests` requests in all.

    Raises:
        UserError: a table is missing or invalid.
    """
    sheet = WORKLOADS.load(workload, _sheet)
    draw = _Drawing(sheet, seed)
    sessions: list[SessionTrace] = []
    count = 0
    while count < requests or len(sessions) < least:
        sessions.append(draw.session(len(sessions)))
        count += sessions[-1].start_s.size
    return SessionTraces(tuple(sessions))


def sessions_of(workload: str, seed: int, requests: int, clients: int) -> SessionTraces | None:
    """Return the sessions of agents of a workload, drawn or of a trace; None without sessions.

    At least `clients` sessions are drawn, with at least `requests` requests. Of a trace, so many of
    the first sessions are returned that they have `requests` requests; 0: all.
    """
    if not is_trace(workload):
        if not has_sessions(workload):
            return None
        return drawn_sessions(workload, seed, requests, clients)
    traces = load_sessions(workload)
    if traces is None or not requests:
        return traces
    counts = np.cumsum([one.start_s.size for one in traces.sessions])
    return traces.first(int(np.searchsorted(counts, requests)) + 1)


def load_sessions(path: str) -> SessionTraces | None:
    """Return the sessions of agents of a trace, cached until the file changes; None without.

    Raises:
        UserError: the file cannot be read or is malformed; the message names line and field.
    """
    file = Path(path)
    try:
        stat = file.stat()
    except OSError as error:
        raise UserError(f"trace '{path}': {error.strerror}") from error
    if file.suffix in (".parquet", ".csv"):
        return None
    return _sessions(file, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4)
def _sessions(file: Path, _mtime_ns: int, _size: int) -> SessionTraces | None:
    found: SessionTraces | None = reader("session_traces", "sessions_of")(file)
    if found is None and file.suffix != ".jsonl":
        raise UserError(f"trace '{file}' has no sessions in a known format")
    return found


class _Drawing:
    """Draws sessions one after another; each has its own random numbers."""

    def __init__(self, sheet: Table, seed: int) -> None:
        path, self.seed = sheet["path"], seed
        try:
            self.known = msgspec.convert(sheet[SESSIONS], SessionStatistics)
        except (msgspec.ValidationError, ValueError) as error:
            raise UserError(f"{path}: [sessions] {error}") from error
        agents = self.known.sub_agents
        tables = {
            "turns": self.known.turns,
            "growth": self.known.growth,
            **{f"sub_agents.{n}": getattr(agents, n) for n in _OF_SUB_AGENTS},
        }
        self.of: dict[str, Distribution] = {
            name: distribution_of(path, f"[sessions] {name}", table)
            for name, table in tables.items()
        }
        self.of["prompt"] = distribution_of(path, "[prompt]", sheet.get("prompt"))
        outputs = sheet.get("output")
        if not isinstance(outputs, list) or len(outputs) != 1:
            raise UserError(f"{path}: sessions of agents need one [[output]], for all requests")
        self.of["output"] = distribution_of(path, "[[output]]", outputs[0])

    def session(self, number: int) -> SessionTrace:
        """Return a session by its number."""
        draw = np.random.default_rng([self.seed, number])
        agents = self.known.sub_agents
        turns = self._one("turns", draw)
        groups: dict[int, int] = {}
        if draw.random() < agents.share and turns > 1:
            wanted = min(self._one("sub_agents.groups", draw), turns - 1)
            for place in draw.choice(turns - 1, wanted, replace=False).tolist():
                groups[place] = self._one("sub_agents.fan_out", draw)
        rows: dict[str, list[Any]] = {name: [] for name in (*_COLUMNS, "fresh")}
        edges: list[tuple[int, int, bool, float]] = []
        streams, place = 0, 0
        last = self._add(rows, 0, 0.0, self._one("prompt", draw), self._one("output", draw))
        starts = sorted(groups)
        while place < turns - 1:
            joined = []
            begin_s = rows["end_s"][last]
            for _ in range(groups.get(place, 0)):
                streams += 1
                count, first = (self._one(f"sub_agents.{n}", draw) for n in ("turns", "prompt"))
                mine = self._add(rows, streams, begin_s, first, self._one("output", draw))
                joined.append(self._chain(rows, edges, [mine], count - 1, streams, draw))
                edges.append((last, mine, False, 0.0))
            later = [start for start in starts if start > place]
            count = min([*later, turns - 1]) - place
            last = self._chain(rows, edges, joined or [last], count, 0, draw, before=last)
            place += count
        fresh = np.array(rows.pop("fresh"), bool)
        own, prompt, output = (np.array(rows[name], np.int64) for name in _COLUMNS[2:])
        paths = grown_paths(own, prompt, output, fresh)
        return ordered_session(f"session {number + 1}", rows, edges, paths)

    def _add(
        self,
        rows: dict[str, list[Any]],
        agent: int,
        start_s: float,
        prompt: int,
        output: int,
        is_fresh: bool = True,
    ) -> int:
        """Add a turn and return its request."""
        end_s = start_s + self.known.first_token_s + self.known.token_s * output
        for name, value in zip(
            rows, (start_s, end_s, agent, prompt, output, is_fresh), strict=True
        ):
            rows[name].append(value)
        return len(rows["start_s"]) - 1

    def _chain(
        self,
        rows: dict[str, list[Any]],
        edges: list[tuple[int, int, bool, float]],
        waits: list[int],
        count: int,
        agent: int,
        draw: np.random.Generator,
        before: int | None = None,
    ) -> int:
        """Add later turns of an agent, each after a gap; return the last request.

        The first of them waits for the requests `waits` and continues the turn `before`, or the
        first of `waits`.
        """
        gaps = self.known.sub_agents.gap_s if agent else self.known.gap_s
        growth = self.of["sub_agents.growth" if agent else "growth"]
        drawn = draw.random((count, 3))
        columns = gaps.at(drawn[:, 0]), growth.at(drawn[:, 1]), self.of["output"].at(drawn[:, 2])
        last = waits[0] if before is None else before
        for gap_s, grown, output in zip(*(column.tolist() for column in columns), strict=True):
            prompt = rows["prompt_tokens"][last] + rows["output_tokens"][last] + int(grown)
            is_fresh = prompt > self.known.context_limit
            if is_fresh:
                prompt = self.known.summary_tokens
            start_s = max(rows["end_s"][i] for i in waits) + gap_s
            last = self._add(rows, agent, start_s, prompt, int(output), is_fresh)
            edges.extend((i, last, False, gap_s) for i in waits)
            waits = [last]
        return last

    def _one(self, name: str, draw: np.random.Generator) -> int:
        return int(self.of[name].at(draw.random(1))[0])


_COLUMNS = ("start_s", "end_s", "stream", "prompt_tokens", "output_tokens")
_OF_SUB_AGENTS = ("groups", "fan_out", "turns", "prompt", "growth")
