"""Sessions of texts: inputs of AIPerf and logs of an OpenAI-compatible server.

AIPerf: `inputs.json` (`data` with `session_id` and `payloads`), or lines with `turns`. Logs: lines
with `messages` or `prompt`, and `usage`. Texts are counted in tokens by `usage`, else by
CHARACTERS_PER_TOKEN. Requests share the messages that begin both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from formats.sessions.recorded import (
    MalformedError,
    RecordedSession,
    Rows,
    list_of,
    number_of,
    object_of,
    optional_number,
    sessions_along,
)
from simulators.serving.demand.prefixes import Prefixes
from simulators.serving.demand.session_graph import OWN_NODE, SessionTraces

CHARACTERS_PER_TOKEN = 4.0
"""English text without a token count: OpenAI's rule of thumb."""

DEFAULT_OUTPUT = 16
"""Output tokens of a request without a limit: the default of the completions API."""


def aiperf_sessions(rows: Rows) -> SessionTraces:
    """Return the sessions of AIPerf inputs; delays are those between turns."""
    if "data" in rows[0][1]:
        groups = list_of(rows[0][1], "data", "line 1")
        if not groups:
            raise MalformedError("line 1: 'data' must be a list of at least one session")
        if len(rows) > 1:
            raise MalformedError(f"line {rows[1][0]}: nothing may follow the object with 'data'")
        named = [(f"session {i + 1}", group) for i, group in enumerate(groups)]
    else:
        named = [(f"line {number}", row) for number, row in rows]
    trees, texts = [], []
    for where, group in named:
        turns = list_of(group, "payloads" if "payloads" in group else "turns", where)
        if not turns:
            raise MalformedError(
                f"{where}: 'payloads' or 'turns' must be a list of at least one turn"
            )
        tree = RecordedSession(str(group.get("session_id", where)))
        history: list[tuple[str, str]] = []
        for place, turn in enumerate(turns):
            at = f"{where}, turn {place + 1}"
            if "messages" in turn or "prompt" in turn:
                said = _messages(turn, at)
            else:
                history = said = [*history, ("user", _text(turn, at))]
            output = number_of(turn, _limit_name(turn), at, least=1) if _limit_name(turn) else 0.0
            texts.append(said)
            prompt = max(1.0, _characters(said) / CHARACTERS_PER_TOKEN)
            req = tree.add(0, 0.0, 0.0, prompt, output or DEFAULT_OUTPUT)
            if place:
                delay_s = optional_number(turn, "delay", at) / 1e3
                tree.edges.append((req - 1, req, False, delay_s))
        trees.append(tree)
    found = sessions_along(trees, _text_paths(trees, texts), np.arange(len(trees)))
    return SessionTraces(found.sessions, private=False)


def _limit_name(row: Mapping[str, Any]) -> str:
    """Return the field with the number of output tokens; empty without one."""
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens", "output_length")
    return next((name for name in names if row.get(name) is not None), "")


def _text(turn: Mapping[str, Any], where: str) -> str:
    for name in ("image", "images", "audio", "audios", "video", "videos"):
        if turn.get(name):
            raise MalformedError(f"{where}: '{name}' is not modelled; only texts are")
    said = turn.get("text", turn.get("texts"))
    if isinstance(said, list):
        said = "".join(list_of({"texts": said}, "texts", where, str))
    if not isinstance(said, str):
        raise MalformedError(f"{where}: 'text' is missing or no text")
    return said


def _messages(row: Mapping[str, Any], where: str) -> list[tuple[str, str]]:
    """Return the roles and texts of a request's messages; a prompt is one message."""
    if "messages" not in row:
        if not isinstance(row.get("prompt"), str):
            raise MalformedError(f"{where}: 'messages' or a text 'prompt' is needed")
        return [("prompt", row["prompt"])]
    said = []
    for message in row["messages"] if isinstance(row["messages"], list) else [None]:
        if not isinstance(message, dict) or "role" not in message:
            raise MalformedError(f"{where}: 'messages' must be a list of objects with a role")
        content = message.get("content") or ""
        if isinstance(content, list):
            list_of(message, "content", where)
        elif not isinstance(content, str):
            raise MalformedError(f"{where}: 'content' must be a text or a list of objects")
        for part in content if isinstance(content, list) else ():
            if part.get("type") not in ("text", "input_text", "output_text"):
                raise MalformedError(
                    f"{where}: a part of type '{part.get('type')}' is not modelled"
                )
            if not isinstance(part.get("text", ""), str):
                raise MalformedError(f"{where}: 'text' of a part must be a text")
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
        said.append((str(message["role"]), content + calls))
    return said


def _characters(said: Sequence[tuple[str, str]]) -> int:
    return sum(len(text) for _, text in said)


def _text_paths(
    trees: Sequence[RecordedSession],
    texts: Sequence[Sequence[tuple[str, str]]],
) -> Prefixes:
    """Return the paths of requests that share the messages at their beginning."""
    known: dict[tuple[int, str, str], int] = {}
    length: dict[int, int] = {}
    prompts = [v for tree in trees for v in tree.columns["prompt_tokens"]]
    outputs = [v for tree in trees for v in tree.columns["output_tokens"]]
    nodes, ends, stops = [], [], []
    for said, prompt, output in zip(texts, prompts, outputs, strict=True):
        total, passed, node, reached = max(1, _characters(said)), 0, -1, 0
        for role, text in said:
            node = known.setdefault((node, role, text), len(known))
            passed += len(text)
            # A message has the tokens that it has in the first request with it.
            reached = min(prompt, max(reached, length.setdefault(node, prompt * passed // total)))
            nodes.append(node)
            ends.append(reached)
        nodes.append(OWN_NODE)
        ends.append(prompt + output - 1)
        stops.append(len(nodes))
    return Prefixes(np.array(nodes), np.array(ends), np.array(stops))


def openai_sessions(rows: Rows) -> SessionTraces:
    """Return the sessions of a server log: requests of equal `session_id`, or each request."""
    trees: dict[str, RecordedSession] = {}
    texts: dict[str, list[list[tuple[str, str]]]] = {}
    for number, row in rows:
        where = f"line {number}"
        asked = object_of(row, "body", where) or object_of(row, "request", where) or row
        answer = object_of(row, "response", where) or row
        answer = object_of(answer, "body", where) or answer
        if optional_number(asked, "n", where) > 1:
            raise MalformedError(f"{where}: n is {asked['n']}; several answers are not modelled")
        said = _messages(asked, where)
        usage = object_of(answer, "usage", where) or object_of(row, "usage", where)
        prompt = _characters(said) / CHARACTERS_PER_TOKEN
        if "prompt_tokens" in usage:
            prompt = number_of(usage, "prompt_tokens", where, least=1)
        output = float(DEFAULT_OUTPUT)
        if "completion_tokens" in usage:
            output = number_of(usage, "completion_tokens", where)
        elif _limit_name(asked):
            output = number_of(asked, _limit_name(asked), where, least=1)
        start_s = _time_s(row, answer, where)
        took = "latency_s" if "latency_s" in row else "duration_s"
        took_s = optional_number(row, took, where)
        metadata = object_of(asked, "metadata", where) or object_of(row, "metadata", where)
        key = str(row.get("session_id") or metadata.get("session_id") or where)
        tree = trees.setdefault(key, RecordedSession(key))
        req = tree.add(0, start_s, start_s + took_s, max(1.0, prompt), output)
        texts.setdefault(key, []).append(said)
        if req:
            if tree.columns["start_s"][req - 1] > start_s:
                raise MalformedError(
                    f"{where}: it begins before the earlier request of its session"
                )
            tree.follow(req - 1, req)
    starts = np.array([tree.columns["start_s"][0] for tree in trees.values()])
    for tree, start in zip(trees.values(), starts.tolist(), strict=True):
        for name in ("start_s", "end_s"):
            tree.columns[name] = [t - start for t in tree.columns[name]]
    every = [text for key in trees for text in texts[key]]
    return sessions_along(list(trees.values()), _text_paths(list(trees.values()), every), starts)


def _time_s(row: Mapping[str, Any], answer: Mapping[str, Any], where: str) -> float:
    for source, name in (
        (row, "timestamp"),
        (row, "start_time"),
        (row, "created"),
        (answer, "created"),
    ):
        value = source.get(name)
        if isinstance(value, str):
            try:
                return datetime.fromisoformat(value).timestamp()
            except ValueError as error:
                raise MalformedError(f"{where}: '{name}' is '{value}', not a time") from error
        if value is not None:
            return number_of(source, name, where)
    raise MalformedError(f"{where}: 'timestamp', 'start_time' or 'created' is needed")
