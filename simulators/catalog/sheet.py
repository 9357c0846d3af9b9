"""Reads data sheets: TOML files whose keys are the fields of a dataclass.

Numbers obey the rule of their field, as in a point type. Without a rule they are at least 0
and at most 1e18.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from simulators.core.errors import UserError, suggestion
from simulators.core.fields import ValueRule, hints_of

T = TypeVar("T")
_LARGEST = 1e18  # above all shipped facts, and an integer of 64 bits
_FACT = ValueRule(at_least=0.0, at_most=_LARGEST)
"""Rule of a number whose field has none: sizes, rates, latencies, powers and prices."""
POSITIVE = {"rule": ValueRule(above=0.0, at_most=_LARGEST)}
"""Metadata of a field whose numbers are positive."""
_WIDEST = 500
"""Longest line in which error messages search for a key."""


def fill(kind: type[T], sheet: Mapping[str, Any], path: Path, what: str) -> T:
    """Return the `kind` described by a sheet. The name defaults to the name of the file.

    Errors name `path` and `what`, such as `gpu` or, for tables inside a sheet, `[levels[0]]`.

    Raises:
        UserError: a key is not a field, a field is missing, a value is of the wrong type, or breaks
            the rule of its field.
    """
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in sheet:
        if key not in known:
            raise UserError(
                f"{_place(path, key)}: '{key}' is not a field of a {what}{suggestion(key, known)}"
            )
    nothing = dataclasses.MISSING
    needed = [n for n, f in known.items() if f.default is f.default_factory is nothing]
    given = {*sheet, *(() if what.startswith("[") else ("name",))}
    if missing := [n for n in needed if n not in given]:
        raise UserError(f"{path}: a {what} also needs {', '.join(missing)}")
    hints = hints_of(kind)
    rules = {key: known[key].metadata.get("rule", _FACT) for key in sheet}
    table = f"{what[1:-1]}." if what.startswith("[") else ""
    values = {n: _value(hints[n], v, path, table + n, rules[n]) for n, v in sheet.items()}
    if "name" in known:
        values.setdefault("name", path.stem)
    return kind(**values)


def positive(value: float, path: Path, key: str) -> None:
    """Raise `UserError` unless a number of a sheet is positive and finite."""
    if not 0 < value < float("inf"):
        raise UserError(f"{_place(path, key)}: {key} is {value:g}; it must be positive")


def _value(hint: Any, value: Any, path: Path, key: str, rule: ValueRule) -> Any:
    converted = _converted(hint, value, path, key, rule)
    is_number = isinstance(converted, int | float) and not isinstance(converted, bool)
    if is_number and (wrong := rule.broken_by(key, converted)):
        raise UserError(f"{_place(path, key)}: {wrong}")
    return converted


def _converted(hint: Any, value: Any, path: Path, key: str, rule: ValueRule) -> Any:
    options = typing.get_args(hint) if type(None) in typing.get_args(hint) else (hint,)
    wanted = next(option for option in options if option is not type(None))
    origin = typing.get_origin(wanted) or wanted
    if origin is tuple and isinstance(value, list):
        of = typing.get_args(wanted) or (Any,)
        return tuple(_value(of[0], v, path, f"{key}[{i}]", rule) for i, v in enumerate(value))
    if wanted is Any:
        return value
    if dataclasses.is_dataclass(origin) and isinstance(value, Mapping):
        return fill(origin, value, path, f"[{key}]")  # type: ignore[arg-type]
    if origin is Mapping and isinstance(value, Mapping):
        of = typing.get_args(wanted)[1]
        return {k: _value(of, v, path, f"{key}.{k}", rule) for k, v in value.items()}
    if origin is float and isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value)
    if origin is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, origin) and not (origin is int and isinstance(value, bool)):
        return value
    shown = repr(value) if len(repr(value)) < 80 else f"{repr(value)[:77]}..."
    raise UserError(f"{_place(path, key)}: {key} is {shown}; it must be of type {origin.__name__}")


def _place(path: Path, key: str) -> str:
    """Return the path, with the line number of a key if exactly one line states the key."""
    name = re.escape(re.split(r"[.\[]", re.sub(r"(\[\d+\])+$", "", key))[-1])
    stated = re.compile(rf"""\s*(["']?){name}\1\s*=|\s*\[.*\b{name}\b.*\]""")
    try:
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        found = [n for n, line in lines if len(line) < _WIDEST and stated.match(line)]
    except (OSError, ValueError):
        found = []
    return f"{path}, line {found[0]}" if len(found) == 1 else str(path)
