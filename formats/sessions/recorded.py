"""A recorded session under construction: requests, edges, and checks of the fields of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Ints
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


LARGEST = 1e15
"""Tokens, blocks and times of a file are smaller: milliseconds since 1970 are 1.8e12."""


class MalformedError(Exception):
    """What is wrong with a line, as the end of a sentence that names the file."""


def number_of(row: Mapping[str, Any], name: str, where: str, *, least: float = 0.0) -> float:
    """Return a number of a row, which must be at least `least`."""
    value = row.get(name)
    found = -1.0
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST:
        found = float(value)
    if not found >= least:
        shown = "missing" if value is None else f"{value!r}"
        raise MalformedError(
            f"{where}: '{name}' is {shown}; a number of at least {least:g} and below {LARGEST:g} "
            "is needed"
        )
    return found


def optional_number(row: Mapping[str, Any], name: str, where: str) -> float:
    """Return a number of a row, which must be at least 0; 0 if it is missing or null."""
    return 0.0 if row.get(name) is None else number_of(row, name, where)


def object_of(row: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """Return an object of a row; an empty one if it is missing or null."""
    value = row.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedError(f"{where}: '{name}' is {value!r}; an object is needed")
    return value


def list_of(row: Mapping[str, Any], name: str, where: str, kind: type = dict) -> list[Any]:
    """Return a list of objects, or of another kind, of a row; an empty one if it is missing."""
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise MalformedError(f"{where}: '{name}' must be a list of {_KINDS[kind]}")
    return value


_KINDS: Mapping[type, str] = {dict: "objects", str: "texts", int: "whole numbers"}


def hash_ids_of(
    row: Mapping[str, Any], name: str, where: str, tokens: float, block: int
) -> list[int]:
    """Return the hashes of a prompt: one for each block; the last block may have none."""
    ids, tokens = list_of(row, name, where, int), max(1, int(tokens))
    if len(ids) not in (tokens // block, -(-tokens // block)):
        raise MalformedError(
            f"{where}: '{name}' has {len(ids)} entries for a prompt of {tokens:,} tokens; one "
            f"for each block of {block} tokens is needed"
        )
    if any(isinstance(one, bool) or not -(1 << 63) <= one < 1 << 63 for one in ids):
        raise MalformedError(f"{where}: '{name}' must be a list of whole numbers of 64 bits")
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
        self.places: list[str] = []  # of each prompt, in the file
        self.edges: list[Edge] = []

    def add(self, stream: int, start_s: float, end_s: float, prompt: float, output: float) -> int:
        """Add a request and return its number; 0 output tokens become 1."""
        values = (start_s, end_s, stream, max(1, int(prompt)), max(1, int(output)))
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)
        return len(self.columns["start_s"]) - 1

    def add_prompt(self, hashes: list[int], where: str) -> None:
        """Add the hashes of the next request's prompt, found at a place of the file."""
        self.hashes.append(hashes)
        self.places.append(where)

    def follow(self, before: int, after: int) -> None:
        """Release a request by the answer of another one, with the recorded gap."""
        gap = self.columns["start_s"][after] - self.columns["end_s"][before]
        self.edges.append((before, after, False, max(0.0, gap)))

    def built(self, block: int) -> SessionTrace:
        """Return the session; prefixes by the hashes of blocks."""
        prompt, output = (
            np.array(self.columns[key], np.int64) for key in ("prompt_tokens", "output_tokens")
        )
        paths = _paths([self], block, prompt, output)
        return ordered_session(self.name, self.columns, self.edges, paths)


def with_global_hashes(trees: list[RecordedSession], block: int, starts_s: Any) -> SessionTraces:
    """Return sessions whose hashes may occur in several of them."""
    prompt, output = (
        np.array([v for tree in trees for v in tree.columns[key]], np.int64)
        for key in ("prompt_tokens", "output_tokens")
    )
    return sessions_along(trees, _paths(trees, block, prompt, output), starts_s)


def _paths(trees: Sequence[RecordedSession], block: int, prompt: Ints, output: Ints) -> Prefixes:
    """Return the paths of all prompts.

    Raises:
        MalformedError: a hash follows different blocks; the message names the second place.
    """
    hashes = [row for tree in trees for row in tree.hashes]
    try:
        return hashed_paths(hashes, block, prompt, output)
    except UserError as error:
        before: dict[int, int | None] = {}
        for row, where in zip(hashes, (one for tree in trees for one in tree.places), strict=True):
            for previous, key in zip([None, *row], row, strict=False):
                if before.setdefault(key, previous) != previous:
                    raise MalformedError(f"{where}: {error}") from error
        raise


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
