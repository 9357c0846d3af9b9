"""Operators of a rank from a JSON file: compute, messages, and what waits for what.

The schema, version 1, is a JSON object: `{"schema": "sweeper-operator-graph", "version": 1,
"operators": [...]}`, one file per rank. An operator has an `id`, a `name`, a `kind` (`compute`,
`collective`, `send`, `recv`), the ids it waits for in `after`, `duration_ns` (compute), and
`collective`, `size_bytes`, `peer`, `tag` and `group` (communication; the group lists the ranks that
take part, and is empty for all). Ids are unique and issue order is by id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from simulators.collectives.algorithms import COLLECTIVES
from simulators.core.errors import UnknownNameError, UserError

SCHEMA: Final = "sweeper-operator-graph"
VERSION: Final = 1
KINDS = ("compute", "collective", "send", "recv")
TEXTS, LISTS = ("name", "kind", "collective"), ("after", "group")
"""Entries of an operator that are words or lists; all others are whole numbers."""


@dataclass(frozen=True)
class Operator:
    """One node of an operator graph."""

    id: int
    name: str
    kind: str
    after: tuple[int, ...] = ()
    duration_ns: int = 0
    collective: str = ""
    size_bytes: int = 0
    peer: int = -1
    tag: int = 0
    group: tuple[int, ...] = ()


@dataclass(frozen=True)
class Message:
    """A collective or a send among some ranks."""

    kind: str
    size_bytes: int
    ranks: tuple[int, ...]


def read_graph(path: Path) -> tuple[Operator, ...]:
    """Return the operators of a file in the project's schema.

    Raises:
        UserError: the file is not one, or of another version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as an operator graph: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UserError(f"{path}: is not an operator graph; its schema is not '{SCHEMA}'")
    if content.get("version") != VERSION:
        raise UserError(f"{path}: has version {content.get('version')}; version {VERSION} is read")
    entries = content.get("operators")
    if not isinstance(entries, list):
        raise UserError(f"{path}: its operators are not a list")
    return tuple(_operator(entry, path) for entry in entries)


def _operator(entry: Any, path: Path) -> Operator:
    known = {f.name for f in fields(Operator)}
    if not isinstance(entry, dict) or not {"id", "name", "kind"} <= set(entry):
        raise UserError(f"{path}: an operator needs id, name and kind, not {entry}")
    for name in entry:
        if name not in known:
            raise UnknownNameError(f"entry of an operator in {path}:", name, known)
        if not _is_valid(name, entry[name]):
            raise UserError(f"{path}: {name} of an operator is {entry[name]!r}")
    lists = {name: tuple(entry.get(name, ())) for name in LISTS}
    return _checked(Operator(**{**entry, **lists}), path)


def _is_valid(name: str, value: Any) -> bool:
    """Say whether a value is of its entry's type, and not negative where that means nothing."""
    if name in TEXTS:
        return isinstance(value, str)
    if name in LISTS:
        return isinstance(value, list) and all(type(v) is int for v in value)
    return type(value) is int and (value >= 0 or name in ("peer", "tag"))


def _checked(operator: Operator, path: Path) -> Operator:
    if operator.kind not in KINDS:
        raise UnknownNameError(f"kind of an operator in {path}:", operator.kind, KINDS)
    if operator.kind == "collective" and operator.collective not in COLLECTIVES:
        raise UnknownNameError(f"collective in {path}:", operator.collective, COLLECTIVES)
    return operator
