"""A recorded session under construction: requests, edges, and checks of the fields of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simulators.serving.demand.prefixes import Prefixes
from simulators.serving.demand.session_graph import (
    SessionTrace,
    SessionTraces,
    hashed_paths,
    ordered_session,
)

Edge = tuple[int, int, bool, float]
"""Request that releases, request that is released, whether by dispatch, seconds after it."""

Rows = Sequence[tuple[int, dict[str, Any]]]
"""Line numbers and objects of a file."""


class MalformedError(Exception):
    """What is wrong with a line, as the end of a sentence that names the file."""


def number_of(row: Mapping[str, Any], name: str, where: str, *, least: float = 0.0) -> float:
    """Return a number of a row, which must be at least `least`."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        shown = "missing" if value is None else f"{value!r}"
        raise MalformedError(
            f"{where}: '{name}' is {shown}; a number of at least {least:g} is needed"
        )
    return float(value)


def hash_ids_of(row: Mapping[str, Any], where: str) -> list[int]:
    """Return the `hash_ids` of a row."""
    ids = row.get("hash_ids", [])
    if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
        raise MalformedError(f"{where}: 'hash_ids' must be a list of whole numbers")
    return ids


def check_fields(row: Mapping[str, Any], known: set[str], where: str) -> None:
    """Raise MalformedError if a row has an unknown field."""
    if unknown := sorted(set(row) - known):
        raise MalformedError(
            f"{where}: unknown field '{unknown[0]}', whose meaning is not modelled"
        )


class RecordedSession:
    """Requests and edges of a session under construction."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.columns: dict[str, list[Any]] = {
            key: [] for key in ("start_s", "end_s", "stream", "prompt_tokens", "output_tokens")
        }
        self.hashes: list[list[int]] = []
        self.edges: list[Edge] = []

    def add(self, stream: int, start_s: float, end_s: float, prompt: float, output: float) -> int:
        """Add a request and return its number; 0 output tokens become 1."""
        values = (start_s, end_s, stream, max(1, int(prompt)), max(1, int(output)))
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)
        return len(self.columns["start_s"]) - 1

    def follow(self, before: int, after: int) -> None:
        """Release a request by the answer of another one, with the recorded gap."""
        gap = self.columns["start_s"][after] - self.columns["end_s"][before]
        self.edges.append((before, after, False, max(0.0, gap)))

    def built(self, block: int) -> SessionTrace:
        """Return the session; prefixes by the hashes of blocks."""
        prompt, output = (
            np.array(self.columns[key], np.int64) for key in ("prompt_tokens", "output_tokens")
        )
        paths = hashed_paths(self.hashes, block, prompt, output)
        return ordered_session(self.name, self.columns, self.edges, paths)


def with_global_hashes(trees: list[RecordedSession], block: int, starts_s: Any) -> SessionTraces:
    """Return sessions whose hashes may occur in several of them."""
    hashes = [row for tree in trees for row in tree.hashes]
    prompt, output = (
        np.array([v for tree in trees for v in tree.columns[key]], np.int64)
        for key in ("prompt_tokens", "output_tokens")
    )
    paths = hashed_paths(hashes, block, prompt, output)
    return sessions_along(trees, paths, starts_s)


def sessions_along(trees: list[RecordedSession], paths: Prefixes, starts_s: Any) -> SessionTraces:
    """Return sessions with their parts of the paths of all requests, by arrival."""
    sessions, begin = [], 0
    for tree in trees:
        count = len(tree.columns["start_s"])
        part = paths.take(np.arange(begin, begin + count))
        sessions.append(ordered_session(tree.name, tree.columns, tree.edges, part))
        begin += count
    order = np.argsort(starts_s, kind="stable")
    by_arrival = tuple(sessions[i] for i in order)
    arrival = np.asarray(starts_s, np.float64)[order]
    return SessionTraces(by_arrival, private=False, arrival_s=arrival - arrival.min())
