"""Sessions with hashed prompt blocks: Weka/AgentX, agentic Mooncake and Dynamo request traces.

Weka: an object per session, `requests` with `hash_ids`, and entries of type `subagent` with the
requests of a sub-agent. Agentic Mooncake, version 2: a header, then a row per request with its
`dependencies`; version 1: rows with `wait_for`. Dynamo: events of requests and tools.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from formats.sessions.recorded import (
    MalformedError,
    RecordedSession,
    Rows,
    check_fields,
    hash_ids_of,
    list_of,
    number_of,
    object_of,
    optional_number,
    with_global_hashes,
)
from simulators.serving.demand.session_graph import SessionTraces

SLACK_S = 1e-6
"""Recorded times closer than this are equal (Weka's rule)."""

MOONCAKE_BLOCK = 512
"""Tokens per hash of rows without a header: Mooncake's block."""

WEKA_REQUEST = {
    *("t", "type", "model", "in", "out", "hash_ids", "api_time", "ttft", "think_time", "stop"),
    *("input_types", "output_types"),
}
WEKA_AGENT = {
    *("t", "type", "agent_id", "subagent_type", "duration_ms", "status", "requests"),
    *("total_tokens", "tool_use_count", "tool_tokens", "system_tokens", "models"),
}
WEKA_PLAY = {
    *("id", "models", "block_size", "hash_id_scope", "requests", "tool_tokens"),
    *("system_tokens", "totals"),
}
RELATIONS = ("sequence", "spawn", "join", "replay_barrier")
TRIGGERS = ("dispatch", "completion")


def weka_sessions(rows: Rows) -> SessionTraces:
    """Return the sessions of a Weka/AgentX trace, whose prefixes are private to each session.

    Times of sub-agents are absolute, or relative to their entry if any of them precedes its entry.
    """
    for number, play in rows:
        if not isinstance(play.get("requests"), list) or not play["requests"]:
            raise MalformedError(
                f"line {number}: 'requests' must be a list of at least one request"
            )
    relative = any(
        _is_before_marker(entry, f"line {number}")
        for number, play in rows
        for entry in play["requests"]
        if isinstance(entry, dict) and entry.get("type") == "subagent"
    )
    sessions, blocks = [], set()
    for number, play in rows:
        where = f"line {number}"
        check_fields(play, WEKA_PLAY, where)
        if play.get("hash_id_scope", "local") != "local":
            raise MalformedError(
                f"{where}: hash_id_scope is '{play['hash_id_scope']}'; only local hashes are known"
            )
        block = int(number_of(play, "block_size", where, least=1))
        blocks.add(block)
        if len(blocks) > 1:
            raise MalformedError(f"{where}: block_size differs from that of earlier sessions")
        sessions.append(_weka_session(play, block, where, relative).built(block))
    return SessionTraces(tuple(sessions))


def _is_before_marker(entry: Mapping[str, Any], where: str) -> bool:
    begin_s = optional_number(entry, "t", where) - SLACK_S
    children = list_of(entry, "requests", where)
    return any(optional_number(child, "t", where) < begin_s for child in children)


def _weka_session(
    play: Mapping[str, Any], block: int, where: str, relative: bool
) -> RecordedSession:
    """Return a session of a Weka trace: streams of the main agent and of its sub-agents.

    Requests of the main agent without a common first block with any earlier one are a stream of
    their own, tied to the first request of the session. Streams of parallel agents that share first
    blocks with the main agent are not split out.
    """
    session = RecordedSession(str(play.get("id", where)))
    mains: list[int] = []
    agents: list[tuple[list[int], int | None, float]] = []  # requests, owner, end
    streams = 0
    for place, entry in enumerate(play["requests"]):
        at = f"{where}, request {place + 1}"
        if not isinstance(entry, dict) or entry.get("type") not in ("n", "s", "subagent"):
            raise MalformedError(f"{at}: 'type' must be n, s or subagent")
        if entry["type"] != "subagent":
            mains.append(_weka_request(session, entry, (0, 0.0, block), at))
            continue
        check_fields(entry, WEKA_AGENT, at)
        marker = number_of(entry, "t", at)
        streams += 1
        mine = []
        for i, child in enumerate(list_of(entry, "requests", at)):
            inside = f"{at}, its request {i + 1}"
            if child.get("type") not in ("n", "s"):
                raise MalformedError(
                    f"{inside}: 'type' must be n or s; deeper agents are not modelled"
                )
            begin_s = marker if relative else 0.0
            mine.append(_weka_request(session, child, (streams, begin_s, block), inside))
        ends = [session.columns["end_s"][i] for i in mine]
        end = marker + optional_number(entry, "duration_ms", at) / 1e3
        if entry.get("duration_ms") is None:
            end = max(ends, default=marker)
        agents.append((mine, mains[-1] if mains else None, end))
    start, ends = session.columns["start_s"], session.columns["end_s"]
    chains: dict[int, list[int]] = {}
    for req in mains:
        ids = session.hashes[req]
        key = ids[0] if ids else -1
        chains.setdefault(key, []).append(req)
    for number, chain in enumerate(chains.values()):
        for req in chain:
            session.columns["stream"][req] = 0 if number == 0 else streams + number
        for before, after in pairwise(chain):
            session.follow(before, after)
        if number:
            delay = max(0.0, start[chain[0]] - start[mains[0]])
            session.edges.append((mains[0], chain[0], True, delay))
    main_chain = {req: chain for chain in chains.values() for req in chain}
    for mine, owner, end in agents:
        if not mine:
            continue
        mine.sort(key=start.__getitem__)
        for before, after in pairwise(mine):
            session.follow(before, after)
        if owner is None:
            continue
        is_beside = start[mine[0]] < ends[owner]
        delay = start[mine[0]] - (start[owner] if is_beside else ends[owner])
        session.edges.append((owner, mine[0], is_beside, max(0.0, delay)))
        for target in main_chain[owner]:
            if target > owner and start[target] >= end - SLACK_S:
                session.follow(mine[-1], target)
                break
    return session


def _weka_request(
    session: RecordedSession, row: Mapping[str, Any], of: tuple[int, float, int], where: str
) -> int:
    """Add a request; `of`: its stream, when the times of the stream begin, and tokens per block."""
    stream, begin_s, block = of
    check_fields(row, WEKA_REQUEST, where)
    start_s = begin_s + number_of(row, "t", where)
    took_s = optional_number(row, "api_time", where)
    prompt, output = number_of(row, "in", where, least=1), number_of(row, "out", where)
    session.add_prompt(hash_ids_of(row, "hash_ids", where, prompt, block), where)
    return session.add(stream, start_s, start_s + took_s, prompt, output)


MOONCAKE_ROW = {
    *("request_id", "play_id", "session_id", "model", "input_length", "input_tokens"),
    *("output_length", "output_tokens", "hash_ids", "not_before_ms", "source_play_ordinal"),
    *("output_token_ids", "recorded_api_time_ms", "dependencies", "wait_for", "delay", "delay_ms"),
    *("tool_wait_ms", "timestamp", "branches", "tool_events"),
}
UNMODELLED_ORDER = ("priority", "strict_priority", "policy_class")


def agentic_mooncake_sessions(rows: Rows) -> SessionTraces:
    """Return the plays of an agentic Mooncake trace; without a header, all rows are one play."""
    header, block, private = rows[0][1], MOONCAKE_BLOCK, False
    if "schema" in header:
        if header.get("version") != 2:
            raise MalformedError(
                f"line 1: version {header.get('version')} of the schema is not known"
            )
        block = int(number_of(header, "block_size", "line 1", least=1))
        private = header.get("hash_id_scope", "local") == "local"
        rows = rows[1:]
    plays: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    owner: dict[str, str] = {}
    for number, row in rows:
        where = f"line {number}"
        for name in UNMODELLED_ORDER:
            if row.get(name):
                raise MalformedError(f"{where}: '{name}' is not modelled; remove it")
        check_fields(row, MOONCAKE_ROW | set(UNMODELLED_ORDER), where)
        key = row.get("request_id")
        if not isinstance(key, str | int) or str(key) in owner:
            raise MalformedError(f"{where}: 'request_id' is missing or occurs twice")
        play = str(row.get("play_id", "" if "schema" not in header else key))
        owner[str(key)] = play
        plays.setdefault(play, []).append((where, row))
    trees = [_mooncake_play(name, lines, owner, block) for name, lines in plays.items()]
    if private:
        return SessionTraces(tuple(tree.built(block) for tree in trees))
    found = with_global_hashes(trees, block, np.arange(len(trees)))
    return SessionTraces(found.sessions, private=False)


def _mooncake_play(
    name: str, lines: Sequence[tuple[str, dict[str, Any]]], owner: Mapping[str, str], block: int
) -> RecordedSession:
    session, number = RecordedSession(name), {}
    streams: dict[str, int] = {}
    for where, row in lines:
        prompt = number_of(row, "input_length" if "input_length" in row else "input_tokens", where)
        output = number_of(
            row, "output_length" if "output_length" in row else "output_tokens", where
        )
        time = "not_before_ms" if "not_before_ms" in row else "timestamp"
        least_s = optional_number(row, time, where) / 1e3
        took_s = optional_number(row, "recorded_api_time_ms", where) / 1e3
        stream = streams.setdefault(str(row.get("session_id", "")), len(streams))
        session.add_prompt(hash_ids_of(row, "hash_ids", where, prompt, block), where)
        number[str(row["request_id"])] = session.add(
            stream, least_s, least_s + took_s, prompt, output
        )
    for where, row in lines:
        mine = number[str(row["request_id"])]
        for edge in _mooncake_edges(row, where):
            key, trigger, delay_ms = edge
            if key not in number:
                reason = "belongs to another play" if key in owner else "is not in the file"
                raise MalformedError(f"{where}: request '{key}', which it waits for, {reason}")
            session.edges.append((number[key], mine, trigger == "dispatch", delay_ms / 1e3))
    return session


def _mooncake_edges(row: Mapping[str, Any], where: str) -> Iterator[tuple[str, str, float]]:
    for edge in list_of(row, "dependencies", where):
        if edge.get("trigger") not in TRIGGERS:
            raise MalformedError(
                f"{where}: 'trigger' of a dependency must be {' or '.join(TRIGGERS)}"
            )
        if edge.get("relation", RELATIONS[0]) not in RELATIONS:
            raise MalformedError(f"{where}: relation '{edge['relation']}' is not known")
        yield str(edge.get("request_id")), edge["trigger"], number_of(edge, "delay_ms", where)
    delay_ms = optional_number(row, "delay_ms" if "delay_ms" in row else "delay", where)
    delay_ms += optional_number(row, "tool_wait_ms", where)
    for key in list_of(row, "wait_for", where, object):
        yield str(key), "completion", delay_ms


def dynamo_sessions(rows: Rows) -> SessionTraces:
    """Return the sessions of a Dynamo request trace, each with its child sessions."""
    events = [(n, object_of(row, "event", f"line {n}") or row) for n, row in rows]
    requests = [(n, e) for n, e in events if e.get("event_type") == "request_end"]
    tools = [(n, e) for n, e in events if e.get("event_type") in ("tool_end", "tool_error")]
    if not requests:
        raise MalformedError("line 1: no event is a request_end")
    contexts = [object_of(e, "agent_context", f"line {n}") for n, e in requests]
    has_context = [bool(context) for context in contexts]
    if any(has_context) != all(has_context):
        number = requests[has_context.index(False)][0]
        raise MalformedError(f"line {number}: only some requests have an agent_context")
    begin_ms = min(_dynamo_times(e, f"line {n}")[0] for n, e in requests)
    trees: dict[str, RecordedSession] = {}
    streams: dict[str, list[int]] = {}
    parent = _dynamo_parents(requests, contexts)
    root_of = functools.partial(_root_of, parent)
    numbers: dict[str, tuple[str, int]] = {}
    stream_number: dict[str, int] = {}
    blocks = set()
    for (number, event), context in zip(requests, contexts, strict=True):
        where = f"line {number}"
        if event.get("schema", "dynamo.request.trace.v1") != "dynamo.request.trace.v1":
            raise MalformedError(f"{where}: schema '{event['schema']}' is not known")
        row = object_of(event, "request", where)
        replay = object_of(row, "replay", where)
        block = int(number_of(replay, "trace_block_size", where, least=1))
        blocks.add(block)
        if len(blocks) > 1:
            raise MalformedError(
                f"{where}: trace_block_size is {block}; that of earlier requests differs"
            )
        if row.get("request_id") is None or str(row["request_id"]) in numbers:
            raise MalformedError(f"{where}: 'request_id' is missing or occurs twice")
        key = str(context.get("session_id", row["request_id"]))
        tree = trees.setdefault(root_of(key), RecordedSession(root_of(key)))
        start_ms, end_ms = _dynamo_times(event, where)
        prompt = number_of(replay, "input_length", where, least=1)
        tree.add_prompt(hash_ids_of(replay, "input_sequence_hashes", where, prompt, block), where)
        req = tree.add(
            stream_number.setdefault(key, len(stream_number)),
            (start_ms - begin_ms) / 1e3,
            (end_ms - begin_ms) / 1e3,
            prompt,
            number_of(row, "output_tokens", where),
        )
        streams.setdefault(key, []).append(req)
        numbers[str(row.get("request_id"))] = (root_of(key), req)
    described = _dynamo_tools(tools, numbers)
    for key, mine in streams.items():
        tree = trees[root_of(key)]
        mine.sort(key=tree.columns["start_s"].__getitem__)
        for before, after in pairwise(mine):
            tree.follow(before, after)
        if key in parent:
            _add_dynamo_child(tree, mine, streams.get(parent[key], []), described.get(key))
    block, starts = max(blocks), [min(tree.columns["start_s"]) for tree in trees.values()]
    for tree, start in zip(trees.values(), starts, strict=True):
        for name in ("start_s", "end_s"):
            tree.columns[name] = [t - start for t in tree.columns[name]]
    return with_global_hashes(list(trees.values()), block, np.array(starts))


def _dynamo_parents(
    requests: Sequence[tuple[int, Any]], contexts: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return the parent session of each child session."""
    parent = {}
    for (number, _), context in zip(requests, contexts, strict=True):
        if context and context.get("session_id") is None:
            raise MalformedError(f"line {number}: 'agent_context' needs a session_id")
        if context.get("parent_session_id"):
            parent[str(context["session_id"])] = str(context["parent_session_id"])
    return parent


def _root_of(parent: Mapping[str, str], key: str) -> str:
    """Return the session without a parent above a session."""
    seen = {key}
    while key in parent:
        key = parent[key]
        if key in seen:
            raise MalformedError(f"session '{key}' is its own parent")
        seen.add(key)
    return key


def _dynamo_times(event: Mapping[str, Any], where: str) -> tuple[float, float]:
    """Return start and end of a request in ms."""
    row = object_of(event, "request", where)
    took_ms = optional_number(row, "total_time_ms", where)
    if row.get("request_received_ms") is None:
        end_ms = number_of(event, "event_time_unix_ms", where)
        return end_ms - took_ms, end_ms
    start_ms = number_of(row, "request_received_ms", where)
    if row.get("total_time_ms") is None:
        return start_ms, number_of(event, "event_time_unix_ms", where)
    return start_ms, start_ms + took_ms


Described = tuple[int, int | None]
"""Requests that spawn a child session and that wait for it; None: none waits."""


def _dynamo_tools(tools: Rows, numbers: Mapping[str, tuple[str, int]]) -> dict[str, Described]:
    found: dict[str, Described] = {}
    for number, event in tools:
        where = f"line {number}"
        claude = object_of(object_of(event, "tool", where), "claude", where)
        child = claude.get("child_session_id")
        if not child:
            continue
        source, consumer = claude.get("source_request_id"), claude.get("consumer_request_id")
        for key in (source, consumer):
            if key is not None and str(key) not in numbers:
                raise MalformedError(f"{where}: request '{key}' is not in the file")
        if source is None:
            raise MalformedError(f"{where}: the tool has no source_request_id")
        waits = None if consumer is None else numbers[str(consumer)][1]
        found[str(child)] = (numbers[str(source)][1], waits)
    return found


def _add_dynamo_child(
    tree: RecordedSession, mine: list[int], parents: list[int], described: Described | None
) -> None:
    """Add the edges between a child session and its parent: spawn and join."""
    start, end = tree.columns["start_s"], tree.columns["end_s"]
    last_end = max(end[i] for i in mine)
    if described is None:
        earlier = [p for p in parents if start[p] <= start[mine[0]]]
        later = [p for p in parents if start[p] >= last_end]
        source = max(earlier, key=start.__getitem__) if earlier else None
        target = min(later, key=start.__getitem__) if later else None
    else:
        source, target = described
    if source is not None:
        delay = max(0.0, start[mine[0]] - start[source])
        tree.edges.append((source, mine[0], True, delay))
    if target is not None:
        tree.follow(mine[-1], target)
