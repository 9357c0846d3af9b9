"""Recorded sessions of agents, in the format of any of several tools.

Files hold one JSON object per line (`.jsonl`, `.jsonl.gz`), or one object (`.json`): Weka/AgentX,
agentic Mooncake and Dynamo traces (`sessions/hashed.py`), inputs of AIPerf and logs of an
OpenAI-compatible server (`sessions/text.py`).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from formats.sessions.hashed import agentic_mooncake_sessions, dynamo_sessions, weka_sessions
from formats.sessions.recorded import MalformedError
from formats.sessions.text import aiperf_sessions, openai_sessions
from simulators.core.errors import UserError
from simulators.serving.demand.session_graph import SessionTraces


def sessions_of(path: Path) -> SessionTraces | None:
    """Return the sessions of a file; None if it is a plain trace of requests.

    Raises:
        UserError: the file cannot be read or is malformed; the message names line and field.
    """
    with closing(_objects(path)) as rows:
        first = next(rows, None)
        if first is None:
            raise UserError(f"trace '{path}' has no rows")
        for is_format, read in _FORMATS:
            if is_format(first[1]):
                lines = [first, *rows]
                try:
                    return read(lines)
                except (MalformedError, UserError) as error:
                    raise UserError(f"trace '{path}', {error}") from error
    return None


def _objects(path: Path) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Yield line numbers and objects of a file."""
    try:
        if path.suffix == ".json":
            found = json.loads(path.read_text("utf-8"))
            if not isinstance(found, dict):
                raise UserError(f"trace '{path}' is no object; write .jsonl, an object a line")
            yield 1, found
            return
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as text:
            for number, line in enumerate(text, start=1):
                if line.strip():
                    try:
                        found = json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise UserError(
                            f"trace '{path}', line {number} cannot be read: {error}"
                        ) from error
                    if not isinstance(found, dict):
                        raise UserError(f"trace '{path}', line {number}: an object is needed")
                    yield number, found
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"trace '{path}' cannot be read: {error}") from error


def _has(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: any(name in row for name in names)


_FORMATS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Callable[..., SessionTraces]], ...] = (
    (lambda row: row.get("schema") == "dynamo.agentic_mooncake", agentic_mooncake_sessions),
    (
        lambda row: any(
            isinstance(part, dict) and "event_type" in part for part in (row, row.get("event"))
        ),
        dynamo_sessions,
    ),
    (lambda row: isinstance(row.get("requests"), list), weka_sessions),
    (_has("wait_for", "dependencies"), agentic_mooncake_sessions),
    (_has("data", "payloads", "turns"), aiperf_sessions),
    (
        lambda row: any(
            isinstance(part, dict) and ("messages" in part or "prompt" in part)
            for part in (row, row.get("body"), row.get("request"))
        ),
        openai_sessions,
    ),
)
"""Formats by their first object, and their readers."""
