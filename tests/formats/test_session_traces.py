"""Traces of agents in the formats of other tools become sessions; malformed ones are refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.session_traces import sessions_of
from simulators.core.errors import UserError
from simulators.serving.demand.prefixes import Prefixes
from simulators.serving.demand.session_graph import OWN_NODE, SessionTrace, SessionTraces

PLAY = {
    "id": "play",
    "block_size": 4,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "n", "in": 8, "out": 3, "hash_ids": [1, 2], "api_time": 2.0},
        {
            "t": 1.0,
            "type": "subagent",
            "agent_id": "agent_1",
            "subagent_type": "Explore",
            "status": "completed",
            "duration_ms": 4000,
            "requests": [
                {"t": 1.0, "type": "n", "in": 4, "out": 2, "hash_ids": [9], "api_time": 1.0},
                {"t": 3.0, "type": "n", "in": 9, "out": 2, "hash_ids": [9, 10], "api_time": 2.0},
            ],
        },
        {"t": 3.5, "type": "n", "in": 12, "out": 1, "hash_ids": [1, 2, 3], "api_time": 1.0},
        {"t": 6.0, "type": "s", "in": 16, "out": 0, "hash_ids": [1, 2, 3, 4], "api_time": 1.0},
    ],
}


def written(tmp_path: Path, *rows: Any, name: str = "trace.jsonl") -> Path:
    """Write objects as lines, or one object as a JSON file."""
    path = tmp_path / name
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if name.endswith(".gz"):
        with gzip.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
    return path


def read(tmp_path: Path, *rows: Any, name: str = "trace.jsonl") -> SessionTraces:
    """Return the sessions of objects."""
    found = sessions_of(written(tmp_path, *rows, name=name))
    assert found is not None
    return found


def edges(session: SessionTrace) -> set[tuple[float, float, bool, float]]:
    """Return the edges of a session: both starts, whether by dispatch, seconds."""
    columns = (session.start_s[session.before], session.start_s[session.after])
    rows = zip(*columns, session.on_dispatch, session.delay_s.round(6), strict=True)
    return {(float(b), float(a), bool(on), float(s)) for b, a, on, s in rows}


def hits(traces: SessionTraces) -> list[int]:
    """Return the cached tokens of all requests, in order, with an unlimited prefix cache."""
    nodes: list[Any] = []
    ends, stops = [], []
    for one in traces.sessions:
        stops.append(one.paths.stops + sum(part.size for part in nodes))
        nodes.append(one.paths.nodes)
        ends.append(one.paths.ends)
    all_nodes = np.concatenate(nodes)
    own = all_nodes == OWN_NODE
    all_nodes = np.where(own, all_nodes.max() + 1 + np.cumsum(own), all_nodes)
    found: list[int] = (
        Prefixes(all_nodes, np.concatenate(ends), np.concatenate(stops)).max_prefix_hits().tolist()
    )
    return found


def test_weka_sub_agent_is_spawned_and_joined(tmp_path: Path) -> None:
    [session] = read(tmp_path, PLAY).sessions
    assert session.start_s.tolist() == [0.0, 1.0, 3.0, 3.5, 6.0]
    assert session.stream.tolist() == [0, 1, 1, 0, 0]
    assert session.output_tokens.tolist() == [3, 2, 2, 1, 1]
    assert edges(session) == {
        (0.0, 3.5, False, 1.5),  # the next turn
        (3.5, 6.0, False, 1.5),
        (0.0, 1.0, True, 1.0),  # the sub-agent begins while its parent's request runs
        (1.0, 3.0, False, 1.0),
        (3.0, 6.0, False, 1.0),  # the join: the first turn after the sub-agent's end at 5 s
    }


def test_weka_prompts_share_hashed_blocks(tmp_path: Path) -> None:
    assert hits(read(tmp_path, PLAY)) == [0, 0, 4, 8, 12]


def test_weka_times_of_sub_agents_may_be_relative(tmp_path: Path) -> None:
    relative = json.loads(json.dumps(PLAY))
    for child in relative["requests"][1]["requests"]:
        child["t"] -= 1.0
    for found in (read(tmp_path, relative), read(tmp_path, PLAY, name="one.json")):
        assert found.sessions[0].start_s.tolist() == [0.0, 1.0, 3.0, 3.5, 6.0]


def test_weka_background_agent_is_not_joined(tmp_path: Path) -> None:
    late = json.loads(json.dumps(PLAY))
    late["requests"][1]["duration_ms"] = 60_000
    [session] = read(tmp_path, late).sessions
    assert (3.0, 6.0, False, 1.0) not in edges(session)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hash_id_scope": "global"}, "line 1: hash_id_scope is 'global'"),
        ({"block_size": 0}, "line 1: 'block_size' is 0; a number of at least 1"),
        ({"weather": 1}, "line 1: unknown field 'weather', whose meaning is not modelled"),
        ({"requests": []}, "line 1: 'requests' must be a list of at least one request"),
        ({"requests": [{"type": "x"}]}, "line 1, request 1: 'type' must be n, s or subagent"),
        ({"requests": [{"t": 0, "type": "n", "in": 8}]}, "request 1: 'out' is missing"),
        (
            {"requests": [{"t": 0, "type": "n", "in": 8, "out": 1, "hash_ids": [1]}]},
            "line 1, request 1: 'hash_ids' has 1 entries for a prompt of 8 tokens; one for each",
        ),
        (
            {
                "requests": [
                    {"t": 0, "type": "n", "in": 8, "out": 1, "hash_ids": [1, 2]},
                    {"t": 1, "type": "n", "in": 8, "out": 1, "hash_ids": [3, 2]},
                ]
            },
            "line 1, request 2: .* 2 follows different blocks",
        ),
    ],
)
def test_malformed_weka_session_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, {**PLAY, **change})
    with pytest.raises(UserError, match="line 2: 'requests' must be a list"):
        read(tmp_path, PLAY, {"id": "empty"})


HEADER = {
    "schema": "dynamo.agentic_mooncake",
    "version": 2,
    "block_size": 4,
    "hash_id_scope": "local",
    "source": {"format": "weka", "digest": "0"},
}


JOIN = (("b1", "completion", 0, "join"), ("a1", "completion", 40, "join"))


def row(key: str, prompt: int, hashes: list[int], *waits: Any, **more: Any) -> dict[str, Any]:
    """Return a row of agentic Mooncake."""
    dependencies = [
        {"request_id": k, "trigger": t, "delay_ms": ms, "relation": r} for k, t, ms, r in waits
    ]
    return {
        **{"request_id": key, "play_id": "p", "session_id": key[0], "model": "m"},
        **{"input_length": prompt, "output_length": 2, "hash_ids": hashes},
        **{"not_before_ms": 0, "dependencies": dependencies, **more},
    }


def test_agentic_mooncake_dependencies_become_edges(tmp_path: Path) -> None:
    [session] = read(
        tmp_path,
        HEADER,
        row(
            "join", 12, [1, 2, 3], ("b1", "completion", 0, "join"), ("a1", "completion", 40, "join")
        ),
        row("a1", 4, [1]),
        row("b1", 8, [1, 2], ("a1", "dispatch", 250, "spawn")),
    ).sessions
    order = session.prompt_tokens.tolist()
    assert order == [4, 8, 12]  # no request before those it waits for
    rows = zip(session.before, session.after, session.on_dispatch, session.delay_s, strict=True)
    assert {(order[b], order[a], bool(on), s) for b, a, on, s in rows} == {
        (4, 8, True, 0.25),
        (8, 12, False, 0.0),
        (4, 12, False, 0.04),
    }


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{**HEADER, "version": 3}, row("a", 4, [1])], "line 1: version 3 of the schema"),
        (
            [HEADER, row("a", 4, [1], ("b", "completion", 0, "join"))],
            "request 'b'.*not in the file",
        ),
        ([HEADER, row("a", 4, [1], ("a", "start", 0, "join"))], "must be dispatch or completion"),
        ([HEADER, row("a", 4, [1]), row("a", 4, [1])], "line 3: 'request_id' is missing or occurs"),
        ([HEADER, row("a", 4, [1], priority=3)], "'priority' is not modelled"),
        (
            [
                HEADER,
                row("a", 4, [1], ("b", "completion", 0, "join")),
                row("b", 4, [1], ("a", "completion", 0, "join")),
            ],
            "2 requests wait for each other",
        ),
    ],
)
def test_malformed_agentic_mooncake_is_refused(
    tmp_path: Path, rows: list[Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, *rows)


def ended(key: str, session: str, start_ms: int, took_ms: int, *hashes: int, **context: str) -> Any:
    """Return a request_end of a Dynamo trace."""
    return {
        "event": {
            "schema": "dynamo.request.trace.v1",
            "event_type": "request_end",
            "event_time_unix_ms": start_ms + took_ms,
            "agent_context": {"session_id": session, **context},
            "request": {
                "request_id": key,
                "output_tokens": 5,
                "request_received_ms": start_ms,
                "total_time_ms": took_ms,
                "replay": {
                    "trace_block_size": 4,
                    "input_length": 4 * len(hashes),
                    "input_sequence_hashes": list(hashes),
                },
            },
        }
    }


TOOL = {
    "schema": "dynamo.request.trace.v1",
    "event_type": "tool_end",
    "event_time_unix_ms": 1_000_009_000,
    "agent_context": {"session_id": "root"},
    "tool": {
        "tool_call_id": "t1",
        "tool_class": "Task",
        "claude": {
            "source_request_id": "r1",
            "consumer_request_id": "r2",
            "child_session_id": "child",
            "execution_mode": "blocking",
        },
    },
}


@pytest.mark.parametrize("tools", [[TOOL], []])
def test_dynamo_child_session_is_spawned_and_joined(tmp_path: Path, tools: list[Any]) -> None:
    begin = 1_000_000_000
    found = read(
        tmp_path,
        ended("r1", "root", begin, 2000, 1),
        ended("c1", "child", begin + 1000, 3000, 7, parent_session_id="root"),
        *tools,
        ended("r2", "root", begin + 9000, 1000, 1, 2),
        ended("other", "second", begin + 5000, 1000, 1),
        name="trace.jsonl.gz",
    )
    assert found.arrival_s is not None
    assert found.arrival_s.tolist() == [0.0, 5.0]
    assert edges(found.sessions[0]) == {
        (0.0, 9.0, False, 7.0),
        (0.0, 1.0, True, 1.0),
        (1.0, 9.0, False, 5.0),
    }
    assert hits(found) == [0, 0, 4, 4]


def changed(value: Any, place: str, to: Any) -> Any:
    """Return a copy of an object with another value at a dotted place; `...` removes it."""
    found = json.loads(json.dumps(value))
    *path, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    inner = found
    for key in path:
        inner = inner[key]
    if to is ...:
        del inner[last]
    else:
        inner[last] = to
    return found


@pytest.mark.parametrize(
    ("place", "to", "message"),
    [
        ("event", "text", "line 2: 'event' is 'text'; an object is needed"),
        ("event.schema", "dynamo.request.trace.v9", "line 2: schema 'dynamo.request.trace.v9'"),
        ("event.request", [], r"line 2: 'request' is \[\]; an object is needed"),
        ("event.request.replay", ..., "line 2: 'trace_block_size' is missing; a number of at leas"),
        ("event.request.replay.trace_block_size", 8, "line 2: trace_block_size is 8; that of"),
        ("event.request.replay.input_length", -4, "line 2: 'input_length' is -4; a number of at"),
        (
            "event.request.replay.input_sequence_hashes",
            [1],
            "line 2: 'input_sequence_hashes' has 1 entries for a prompt of 8 tokens; one for each",
        ),
        (
            "event.request.replay.input_sequence_hashes",
            ["a", "b"],
            "line 2: 'input_sequence_hashes' must be a list of whole numbers",
        ),
        (
            "event.request.replay.input_sequence_hashes",
            [3, 1],
            "line 2: hash_ids must cover a block and all blocks before it; 1 follows different",
        ),
        ("event.request.output_tokens", ..., "line 2: 'output_tokens' is missing; a number of at"),
        ("event.request.total_time_ms", "5", "line 2: 'total_time_ms' is '5'; a number of at leas"),
        ("event.request.request_id", "r1", "line 2: 'request_id' is missing or occurs twice"),
        ("event.request.request_id", None, "line 2: 'request_id' is missing or occurs twice"),
        ("event.agent_context", "root", "line 2: 'agent_context' is 'root'; an object is needed"),
        ("event.agent_context", {"x": 1}, "line 2: 'agent_context' needs a session_id"),
        ("event.agent_context.parent_session_id", "root", "session 'root' is its own parent"),
    ],
)
def test_malformed_dynamo_event_is_refused(
    tmp_path: Path, place: str, to: Any, message: str
) -> None:
    good = ended("r1", "root", 0, 1, 1), ended("r2", "root", 9, 1, 1, 2)
    read(tmp_path, *good)
    with pytest.raises(UserError, match=f"trace '.*trace.jsonl', {message}"):
        read(tmp_path, good[0], changed(good[1], place, to))


@pytest.mark.parametrize(
    ("place", "to", "message"),
    [
        ("tool.claude.source_request_id", ..., "line 3: the tool has no source_request_id"),
        ("tool.claude.source_request_id", "r9", "line 3: request 'r9' is not in the file"),
        ("tool.claude.consumer_request_id", "r9", "line 3: request 'r9' is not in the file"),
        ("tool.claude", 5, "line 3: 'claude' is 5; an object is needed"),
    ],
)
def test_malformed_dynamo_tool_is_refused(
    tmp_path: Path, place: str, to: Any, message: str
) -> None:
    events = (
        ended("r1", "root", 0, 1, 1),
        ended("c1", "child", 2, 1, 7, parent_session_id="root"),
        changed(TOOL, place, to),
        ended("r2", "root", 9, 1, 1, 2),
    )
    with pytest.raises(UserError, match=f"trace '.*trace.jsonl', {message}"):
        read(tmp_path, *events)


def test_dynamo_trace_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 1: no event is a request_end"):
        read(tmp_path, TOOL)


def test_dynamo_trace_with_and_without_context_is_refused(tmp_path: Path) -> None:
    plain = ended("r2", "root", 9, 1, 1)
    del plain["event"]["agent_context"]
    with pytest.raises(UserError, match="only some requests have an agent_context"):
        read(tmp_path, ended("r1", "root", 0, 1, 1), plain)


def test_aiperf_turns_share_the_messages_before_them(tmp_path: Path) -> None:
    system = {"role": "system", "content": "s" * 400}
    first = {"role": "user", "content": "u" * 200}
    answer = {"role": "assistant", "content": "a" * 100}
    payloads = [
        {"messages": [system, first], "max_tokens": 7},
        {"messages": [system, first, answer, {"role": "user", "content": "v" * 100}]},
    ]
    inputs = {"data": [{"session_id": "one", "payloads": payloads}]}
    [session] = read(tmp_path, inputs, name="inputs.json").sessions
    assert session.prompt_tokens.tolist() == [150, 200]  # four characters per token
    assert session.output_tokens.tolist() == [7, 16]
    lines = {"session_id": "two", "turns": [{"text": "x" * 40}, {"text": "y" * 40, "delay": 1500}]}
    found = read(tmp_path, lines)
    assert found.sessions[0].delay_s.tolist() == [1.5]
    assert hits(found) == [0, 10]
    with pytest.raises(UserError, match="turn 1: 'images' is not modelled"):
        read(tmp_path, {"turns": [{"text": "x", "images": ["picture.png"]}]})


AIPERF = {
    "session_id": "two",
    "turns": [{"text": "x" * 40}, {"texts": ["y", "z"], "delay": 1500, "max_tokens": 3}],
}


@pytest.mark.parametrize(
    ("place", "to", "message"),
    [
        ("turns", [], "line 2: 'payloads' or 'turns' must be a list of at least one turn"),
        ("turns", "text", "line 2: 'turns' must be a list of objects"),
        ("turns.1", "text", "line 2: 'turns' must be a list of objects"),
        ("turns.0.text", ..., "line 2, turn 1: 'text' is missing or no text"),
        ("turns.0.text", 7, "line 2, turn 1: 'text' is missing or no text"),
        ("turns.1.texts", ["y", 7], "line 2, turn 2: 'texts' must be a list of texts"),
        ("turns.1.image", "a.png", "line 2, turn 2: 'image' is not modelled; only texts are"),
        ("turns.1.delay", "soon", "line 2, turn 2: 'delay' is 'soon'; a number of at least 0"),
        ("turns.1.delay", -1, "line 2, turn 2: 'delay' is -1; a number of at least 0"),
        ("turns.1.max_tokens", 0, "line 2, turn 2: 'max_tokens' is 0; a number of at least 1"),
        ("turns.1.messages", "hello", "line 2, turn 2: 'messages' must be a list of objects with"),
        ("turns.1.messages", [{}], "line 2, turn 2: 'messages' must be a list of objects with"),
        ("turns.1.prompt", ["a"], "line 2, turn 2: 'messages' or a text 'prompt' is needed"),
    ],
)
def test_malformed_line_of_aiperf_is_refused(
    tmp_path: Path, place: str, to: Any, message: str
) -> None:
    read(tmp_path, AIPERF, AIPERF)
    with pytest.raises(UserError, match=f"trace '.*trace.jsonl', {message}"):
        read(tmp_path, AIPERF, changed(AIPERF, place, to))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "line 1: 'data' must be a list of at least one session"),
        ("sessions", "line 1: 'data' must be a list of objects"),
        ([{"session_id": "a"}], "session 1: 'payloads' or 'turns' must be a list of at least one"),
        ([{"payloads": ["hello"]}], "session 1: 'payloads' must be a list of objects"),
    ],
)
def test_malformed_inputs_of_aiperf_are_refused(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"trace '.*inputs.json', {message}"):
        read(tmp_path, {"data": data}, name="inputs.json")
    with pytest.raises(UserError, match="line 2: nothing may follow the object with 'data'"):
        read(tmp_path, {"data": [AIPERF]}, AIPERF)


LOGGED = {
    "timestamp": 10.0,
    "session_id": "s",
    "request": {"messages": [{"role": "user", "content": "a" * 300}], "max_tokens": 9},
    "response": {"usage": {"prompt_tokens": 100, "completion_tokens": 9}},
    "latency_s": 1.0,
}


@pytest.mark.parametrize(
    ("place", "to", "message"),
    [
        ("timestamp", ..., "line 2: 'timestamp', 'start_time' or 'created' is needed"),
        ("timestamp", "noon", "line 2: 'timestamp' is 'noon', not a time"),
        ("timestamp", [], r"line 2: 'timestamp' is \[\]; a number of at least 0"),
        ("timestamp", 9.0, "line 2: it begins before the earlier request of its session"),
        ("latency_s", "1 s", "line 2: 'latency_s' is '1 s'; a number of at least 0"),
        ("request", "text", "line 2: 'request' is 'text'; an object is needed"),
        ("request.messages", ..., "line 2: 'messages' or a text 'prompt' is needed"),
        ("request.messages", {}, "line 2: 'messages' must be a list of objects with a role"),
        ("request.messages.0.role", ..., "line 2: 'messages' must be a list of objects with a"),
        ("request.messages.0.content", 7, "line 2: 'content' must be a text or a list of objects"),
        ("request.messages.0.content", ["a"], "line 2: 'content' must be a list of objects"),
        (
            "request.messages.0.content",
            [{"type": "text", "text": 7}],
            "line 2: 'text' of a part must be a text",
        ),
        ("request.n", 2, "line 2: n is 2; several answers are not modelled"),
        ("request.n", "2", "line 2: 'n' is '2'; a number of at least 0"),
        ("response", "text", "line 2: 'response' is 'text'; an object is needed"),
        ("response.usage", [1], r"line 2: 'usage' is \[1\]; an object is needed"),
        ("response.usage.prompt_tokens", 0, "line 2: 'prompt_tokens' is 0; a number of at leas"),
        ("response.usage.completion_tokens", "9", "line 2: 'completion_tokens' is '9'; a numbe"),
        ("request.metadata", "s", "line 2: 'metadata' is 's'; an object is needed"),
    ],
)
def test_malformed_line_of_an_openai_log_is_refused(
    tmp_path: Path, place: str, to: Any, message: str
) -> None:
    read(tmp_path, LOGGED, LOGGED)
    with pytest.raises(UserError, match=f"trace '.*trace.jsonl', {message}"):
        read(tmp_path, LOGGED, changed(LOGGED, place, to))


PLACES = [
    *[(PLAY, place) for place in ("id", "requests.0", "requests.1.t", "requests.1.requests.0.t")],
    *[(PLAY, f"requests.0.{name}") for name in ("t", "in", "out", "hash_ids", "api_time")],
    *[(PLAY, f"requests.1.{name}") for name in ("requests", "duration_ms", "status")],
    *[(AIPERF, place) for place in ("turns", "turns.0", "turns.1.delay", "turns.1.texts")],
    *[(LOGGED, f"request.{name}") for name in ("messages", "max_tokens", "messages.0.content")],
    *[(LOGGED, name) for name in ("timestamp", "session_id", "response", "latency_s")],
    *[(ended("r", "s", 0, 1, 1), f"event.{name}") for name in ("request", "agent_context")],
    *[(ended("r", "s", 0, 1, 1), f"event.request.{name}") for name in ("request_id", "replay")],
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("at"), inner),
    max_leaves=4,
)


@settings(max_examples=150)
@given(st.sampled_from(PLACES), JSON)
def test_any_value_is_read_or_refused_with_the_name_of_the_file(
    where: tuple[Any, str], to: Any
) -> None:
    with TemporaryDirectory() as folder:
        path = written(Path(folder), where[0], changed(where[0], where[1], to))
        message = ""
        try:
            sessions_of(path)
        except UserError as error:
            message = str(error)
    assert message.startswith(f"trace '{path}', " if message else "")


def test_log_of_an_openai_server_counts_tokens_by_usage(tmp_path: Path) -> None:
    def line(seconds: float, prompt: int, *texts: str, **more: Any) -> dict[str, Any]:
        return {
            "timestamp": seconds,
            "request": {"messages": [{"role": "user", "content": text} for text in texts]},
            "response": {"usage": {"prompt_tokens": prompt, "completion_tokens": 9}},
            "latency_s": 1.0,
            **more,
        }

    found = read(
        tmp_path,
        line(10.0, 100, "a" * 300, session_id="s"),
        line(11.0, 100, "a" * 300, session_id="t"),
        line(15.0, 160, "a" * 300, "b" * 180, session_id="s"),
    )
    first, second = found.sessions
    assert first.prompt_tokens.tolist() == [100, 160]
    assert first.delay_s.tolist() == [4.0]
    assert second.output_tokens.tolist() == [9]
    assert hits(found) == [0, 100, 100]
    with pytest.raises(UserError, match="line 1: 'timestamp', 'start_time' or 'created' is needed"):
        read(tmp_path, {"messages": [{"role": "user", "content": "a"}]})
    with pytest.raises(UserError, match="a part of type 'image_url' is not modelled"):
        read(tmp_path, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})


def test_plain_traces_have_no_sessions(tmp_path: Path) -> None:
    plain = {"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1]}
    assert sessions_of(written(tmp_path, plain)) is None
    with pytest.raises(UserError, match="has no rows"):
        sessions_of(written(tmp_path))
    (tmp_path / "broken.jsonl").write_text(json.dumps(LOGGED) + "\n{")
    with pytest.raises(UserError, match=r"trace '.*broken.jsonl', line 2 cannot be read"):
        sessions_of(tmp_path / "broken.jsonl")
    with pytest.raises(UserError, match="is no object"):
        sessions_of(written(tmp_path, [plain], name="list.json"))
