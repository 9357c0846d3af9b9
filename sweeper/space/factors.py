"""The axes of a space as they are written: values become the simulator's types, axes factors.

Every mistake is reported in the words it was made in.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import typing
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulators.core.columns import schema_of
from simulators.core.contract import Simulator, default_of
from simulators.core.errors import UserError, suggestion, unknown
from simulators.core.folder import FOLDERS
from sweeper.space.notation import Scalar, values_of
from sweeper.space.product import Factor
from sweeper.space.spelling import named, number


def factors_of(written: Mapping[str, Any], simulator: Simulator) -> tuple[Factor, ...]:
    """Return the factors of a space: axes, union, and all other fields at their defaults."""
    axes = {str(name): values for name, values in mapping(written, "axes").items()}
    union = _union(written.get("union") or [], simulator)
    for name in axes:
        check_axis(name, simulator)
        if union and name in union.columns:
            raise UserError(f"axis '{name}' stands both in `axes` and in `union`")
    columns = {name: axis_values(name, values, simulator) for name, values in axes.items()}
    factors = _zipped(columns, written.get("zip") or [])
    if union:
        factors.append(union)
    return (*factors, *defaults(simulator, {n for f in factors for n in f.columns}))


def defaults(simulator: Simulator, given: Container[str]) -> tuple[Factor, ...]:
    """Return a factor for each field of the simulator that is not given, at its default."""
    left = {n: default_of(f) for n, f in _fields(simulator).items() if n not in given}
    if missing := [name for name, value in left.items() if value is dataclasses.MISSING]:
        raise UserError(
            f"the simulator '{simulator.name}' also needs the axes: {', '.join(missing)}"
        )
    return tuple(Factor({name: (value,)}) for name, value in left.items())


def mapping(written: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return what a space says under a key that holds names."""
    value = written.get(key) or {}
    if not isinstance(value, Mapping):
        raise UserError(f"`{key}` is a mapping from names, not {value!r}")
    return value


def check_axis(name: str, simulator: Simulator) -> None:
    """Raise `UserError` unless `name` is an input of the simulator."""
    known = schema_of(simulator.point).names
    if name not in known:
        message = f"axis '{name}' is not an input of the simulator '{simulator.name}'"
        raise unknown(message, name, known, "Its inputs")


def axis_values(name: str, written: Any, simulator: Simulator) -> tuple[Scalar, ...]:
    """Return the values of one axis as they are written, in the type of the simulator's field."""
    kind = schema_of(simulator.point).field(name).type
    nullable = name in _nullable(simulator.point)
    field = _fields(simulator)[name]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        written = number(written, field.metadata.get("unit", ""))
    values = values_of(name, written, kind, nullable=nullable)
    if folder := field.metadata.get("names", ""):
        usual = (None, default_of(field), field.metadata.get("otherwise"))
        found = (v if v in usual else _found(folder, str(v)) for v in values)
        values = tuple(dict.fromkeys(found))
    return values


@functools.cache
def _nullable(point: type) -> frozenset[str]:
    """Return the inputs that may be left out."""
    hints = typing.get_type_hints(point)
    return frozenset(name for name, hint in hints.items() if type(None) in typing.get_args(hint))


def _found(kind: str, value: str) -> str:
    """Return the name that a word stands for, or the path it is; that nothing does is a mistake."""
    folder = FOLDERS[kind]
    if value in folder.names() or Path(value).is_file():
        return value
    if (name := named(kind, value)) != value:
        return name
    looks_like_module = "." in value and os.sep not in value and folder.suffix == ".py"
    if os.sep in value or (Path(value).suffix and not looks_like_module):
        raise UserError(f"{kind} '{value}': there is no such file (seen from {Path.cwd()})")
    if not looks_like_module:
        folder.find(value)
    return value


def _zipped(columns: dict[str, tuple[Scalar, ...]], groups: Any) -> list[Factor]:
    """Return one factor per axis, or per group of axes that move together, where its first was."""
    if not isinstance(groups, list):
        raise UserError("`zip` is a list of lists of axes that move together, as in [[tp, pp]]")
    groups = [groups] if groups and all(isinstance(g, str) for g in groups) else groups
    home: dict[str, list[str]] = {}
    for group in groups:
        for name in group:
            if name not in columns:
                raise UserError(
                    f"`zip` names '{name}', which is no axis{suggestion(name, columns)}"
                )
            if name in home:
                raise UserError(f"`zip` names '{name}' twice")
            home[name] = group
    together = dict.fromkeys(tuple(home.get(name, [name])) for name in columns)
    return [Factor({n: columns[n] for n in group}) for group in together]


def _union(grids: Any, simulator: Simulator) -> Factor | None:
    """Return several small grids over the same axes as one factor: their rows, without repeats."""
    if not grids:
        return None
    if not isinstance(grids, list) or not all(isinstance(g, Mapping) for g in grids):
        raise UserError("`union` is a list of small grids, as in [{x: 1, y: [4, 8]}, …]")
    names = list(grids[0])
    rows: dict[tuple[Scalar, ...], None] = {}
    for grid in grids:
        if set(grid) != set(names):
            raise UserError(f"each grid of `union` must name the same axes: {', '.join(names)}")
        for name in names:
            check_axis(name, simulator)
        values = (axis_values(name, grid[name], simulator) for name in names)
        rows |= dict.fromkeys(itertools.product(*values))
    return Factor(dict(zip(names, zip(*rows, strict=True), strict=True)))


def _fields(simulator: Simulator) -> dict[str, dataclasses.Field[Any]]:
    return {f.name: f for f in dataclasses.fields(simulator.point)}
