"""The axes of a space as they are written: values become the simulator's types, axes factors.

Every mistake is reported in the words it was made in.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulators.core.columns import schema_of
from simulators.core.contract import Simulator
from simulators.core.errors import UserError, suggestion, unknown
from simulators.core.fields import columns_of, option_groups
from simulators.core.folder import FOLDERS
from sweeper.space.notation import EXPECTED, Scalar, values_of
from sweeper.space.product import Factor
from sweeper.space.space_config import SpaceConfig
from sweeper.space.spelling import named, number


def factors_of(written: SpaceConfig, simulator: Simulator) -> tuple[Factor, ...]:
    """Return the factors of a space: axes, union, and all other inputs at their defaults."""
    union = _union(written.union, simulator)
    for name in written.axes:
        if union and name in union.columns:
            raise UserError(f"axis '{name}' stands both in `axes` and in `union`")
    columns = {name: axis_values(name, v, simulator) for name, v in written.axes.items()}
    factors = _zipped(columns, written.zip)
    if union:
        factors.append(union)
    return (*factors, *defaults(simulator, {n for f in factors for n in f.columns}))


def defaults(simulator: Simulator, given: Container[str]) -> tuple[Factor, ...]:
    """Return a factor for each field of the simulator that is not given, at its default."""
    left = {c.name: c.default for c in columns_of(simulator.point) if c.name not in given}
    if missing := [name for name, value in left.items() if value is dataclasses.MISSING]:
        raise UserError(
            f"the simulator '{simulator.name}' also needs the axes: {', '.join(missing)}"
        )
    return tuple(Factor({name: (value,)}) for name, value in left.items())


def axis_values(name: str, written: Any, simulator: Simulator) -> tuple[Scalar, ...]:
    """Return the values of one axis as they are written, in the type of the simulator's column."""
    columns = {c.name: c for c in columns_of(simulator.point)}
    if name in option_groups(simulator.point):
        options = [known for known in columns if known.startswith(f"{name}.")]
        raise UserError(f"axis '{name}' is a group of options; write {', '.join(options)}")
    if (first := name.partition(".")[0]) in columns and first != name:
        raise UserError(f"axis '{first}' is a mapping; {EXPECTED}")
    if name not in columns:
        message = f"axis '{name}' is not an input of the simulator '{simulator.name}'"
        raise unknown(message, name, columns, "Its inputs")
    column, kind = columns[name], schema_of(simulator.point).field(name).type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        written = number(written, column.metadata.get("unit", ""))
    values = values_of(name, written, kind, nullable=column.is_nullable)
    if folder := column.metadata.get("names", ""):
        usual = (None, column.default, column.metadata.get("otherwise"))
        found = (v if v in usual else _found(folder, str(v)) for v in values)
        values = tuple(dict.fromkeys(found))
    return values


def _found(kind: str, value: str) -> str:
    """Return the name that a word is an alias of, or the path it is; refuse any other word."""
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


def _zipped(
    columns: Mapping[str, tuple[Scalar, ...]], written: Sequence[str | list[str]]
) -> list[Factor]:
    """Return a factor per axis or per group of axes, at the place of the group's first axis."""
    alone = [name for name in written if isinstance(name, str)]
    groups = [alone] if alone else [group for group in written if isinstance(group, list)]
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


def _union(grids: Sequence[Mapping[str, Any]], simulator: Simulator) -> Factor | None:
    """Return several small grids over the same axes as one factor: their rows, without repeats."""
    if not grids:
        return None
    names = list(grids[0])
    rows: dict[tuple[Scalar, ...], None] = {}
    for grid in grids:
        if set(grid) != set(names):
            raise UserError(f"each grid of `union` must name the same axes: {', '.join(names)}")
        values = (axis_values(name, grid[name], simulator) for name in names)
        rows |= dict.fromkeys(itertools.product(*values))
    return Factor(dict(zip(names, zip(*rows, strict=True), strict=True)))
