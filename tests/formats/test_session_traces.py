"""Traces of agents in the formats of other tools become sessions; malformed ones are refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
            "request 1 of the session has 1 hash_ids for 8 tokens",
        ),
        (
            {
                "requests": [
                    {"t": 0, "type": "n", "in": 8, "out": 1, "hash_ids": [1, 2]},
                    {"t": 1, "type": "n", "in": 8, "out": 1, "hash_ids": [3, 2]},
                ]
            },
            "2 follows different blocks",
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
    (tmp_path / "broken.jsonl").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        sessions_of(tmp_path / "broken.jsonl")
    with pytest.raises(UserError, match="is no object"):
        sessions_of(written(tmp_path, [plain], name="list.json"))
