"""Words become objects, and every mistake is reported in the words it was made in."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulators.core.columns import OUTCOME, schema_of
from simulators.core.contract import (
    Describes,
    Direction,
    Simulator,
    default_of,
    load_simulator,
    objectives_of,
)
from simulators.core.errors import UserError, suggestion
from simulators.core.folder import FOLDERS
from sweeper.notation import Scalar, is_capacity, values_of
from sweeper.query import condition
from sweeper.samplers import Sampler
from sweeper.samplers._capacity import Capacity
from sweeper.space import DesignSpace, Factor

KEYS = ("simulator", "axes", "zip", "union", "derived", "constraints", "slo", "where", "objectives")
_LARGEST = 2**62
"""Points have 64-bit numbers; the last bit is room to count past the end."""


def space_of(written: Mapping[str, Any]) -> DesignSpace:
    """Return the design space a `spaces/*.yaml` describes.

    Raises:
        UserError: something in it is misspelt, missing, of the wrong type or empty.
    """
    for key in written:
        if key not in KEYS:
            raise UserError(
                f"a space has no key '{key}'{suggestion(key, KEYS)}\nKnown: {', '.join(KEYS)}"
            )
    if not written.get("simulator"):
        raise UserError("a space needs `simulator:`, the model that answers it")
    simulator = load_simulator(str(written["simulator"]))
    axes = {str(name): values for name, values in _mapping(written, "axes").items()}
    union = _union(written.get("union") or [], simulator)
    for name in axes:
        check_axis(name, simulator)
        if union and name in union.columns:
            raise UserError(f"axis '{name}' stands both in `axes` and in `union`")
    factors = _zipped(
        {n: _values(n, v, simulator) for n, v in axes.items()}, written.get("zip") or []
    )
    if union:
        factors.append(union)
    space = DesignSpace(
        simulator=str(written["simulator"]),
        factors=(*factors, *_defaults(simulator, {n for f in factors for n in f.columns})),
        derived={str(n): str(sql) for n, sql in _mapping(written, "derived").items()},
        constraints=_constraints(written.get("constraints") or ()),
    )
    if space.size > _LARGEST:
        raise UserError(
            f"the space has {float(space.size):.3g} points, more than can be numbered; "
            "take values out of its longest axes"
        )
    _check_names(space, simulator)
    return space


def completed(space: DesignSpace) -> DesignSpace:
    """Return a stored space with the fields its simulator has gained since, at their defaults."""
    given = {n for f in space.factors for n in f.columns}
    gained = _defaults(load_simulator(space.simulator), given)
    return dataclasses.replace(space, factors=(*space.factors, *gained)) if gained else space


def objectives(written: Mapping[str, Any], space: DesignSpace) -> dict[str, Direction]:
    """Return what the space wants small or large: its `objectives`, else all the simulator has.

    Raises:
        UserError: an objective is no metric, or its direction is neither `min` nor `max`.
    """
    simulator = load_simulator(space.simulator)
    wanted = dict(_mapping(written, "objectives")) or objectives_of(simulator)
    metrics = schema_of(simulator.metrics)
    point = schema_of(simulator.point)
    known = [*metrics.names, *space.derived, *point.names]
    if not wanted:
        raise UserError(
            f"the space names no `objectives:` and the simulator '{space.simulator}' has none "
            f"of its own; write e.g. objectives: {{{known[0]}: min}}"
        )
    for name, direction in wanted.items():
        if name not in known:
            raise UserError(
                f"objective '{name}' is neither a metric nor an axis of the simulator "
                f"'{space.simulator}'"
                f"{suggestion(name, known)}\nKnown: {', '.join(known)}"
            )
        if direction not in ("min", "max"):
            raise UserError(f"objective '{name}' is {direction!r}; write min or max")
        kinds = metrics if name in metrics.names else point
        kind = space.derived_type(name) if name in space.derived else kinds.field(name).type
        if not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        ):
            raise UserError(f"objective '{name}' is not a number, but {kind}")
    return wanted


def where(written: Mapping[str, Any], space: DesignSpace) -> str | None:
    """Return the condition results must meet to be on the front, if the space has one.

    Raises:
        UserError: it is no SQL condition over axes, derived columns and metrics.
    """
    found = [text for key in ("slo", "where") if (text := _condition(written, key, space))]
    return " AND ".join(f"({t})" for t in found) if len(found) > 1 else "".join(found) or None


def search(written: Mapping[str, Any], space: DesignSpace) -> Sampler | None:
    """Return the bisection of the axis that asks for a capacity, if one does.

    Raises:
        UserError: several axes do, or none although there is an `slo`, or there is no `slo`.
    """
    asked = [name for name, values in _mapping(written, "axes").items() if is_capacity(values)]
    slo = _condition(written, "slo", space)
    if len(asked) > 1:
        raise UserError(f"only one axis can ask for a capacity, not {' and '.join(asked)}")
    if asked and slo is None:
        raise UserError(
            f"axis '{asked[0]}' asks for a capacity, so the space needs an `slo:`, such as "
            "slo: ttft_p99_s <= 1 AND NOT saturated"
        )
    if slo is not None and not asked:
        raise UserError(
            "`slo` is met by bisection: write an axis as capacity 0.1..64, or use `where`"
        )
    if not asked:
        return None
    home = next(f for f in space.factors if asked[0] in f.columns)
    if len(home.columns) > 1:
        raise UserError(f"axis '{asked[0]}' asks for a capacity and cannot be zipped with others")
    assert slo is not None
    return Capacity(asked[0], slo)


def _condition(written: Mapping[str, Any], key: str, space: DesignSpace) -> str | None:
    text = written.get(key)
    if text is None:
        return None
    if not isinstance(text, str):
        raise UserError(f"`{key}` is one SQL condition over the results, not {text!r}")
    metrics = schema_of(load_simulator(space.simulator).metrics).names
    condition(text, [*space.axes, *space.derived, *dict.fromkeys([*metrics, *OUTCOME.names])])
    return text


def check_axis(name: str, simulator: Simulator) -> None:
    """Raise `UserError` unless `name` is an input of the simulator."""
    known = schema_of(simulator.point).names
    if name not in known:
        raise UserError(
            f"axis '{name}' is not an input of the simulator '{simulator.name}'"
            f"{suggestion(name, known)}\nIts inputs: {', '.join(known)}"
        )


def _values(name: str, written: Any, simulator: Simulator) -> tuple[Scalar, ...]:
    kind = schema_of(simulator.point).field(name).type
    nullable = type(None) in typing.get_args(typing.get_type_hints(simulator.point)[name])
    values = values_of(name, written, kind, nullable=nullable)
    folder = _fields(simulator)[name].metadata.get("names", "")
    if folder:
        for value in values:
            if value is not None and value != default_of(_fields(simulator)[name]):
                _check_named(folder, str(value))
    return values


def _check_named(kind: str, value: str) -> None:
    folder = FOLDERS[kind]
    if value in folder.names() or Path(value).is_file():
        return
    looks_like_module = "." in value and os.sep not in value and folder.suffix == ".py"
    if os.sep in value or (Path(value).suffix and not looks_like_module):
        raise UserError(f"{kind} '{value}': there is no such file (seen from {Path.cwd()})")
    if not looks_like_module:
        folder.find(value)


def _zipped(columns: dict[str, tuple[Scalar, ...]], groups: Any) -> list[Factor]:
    if not isinstance(groups, list):
        raise UserError("`zip` is a list of lists of axes that move together, as in [[tp, pp]]")
    groups = [groups] if groups and all(isinstance(g, str) for g in groups) else groups
    home: dict[str, int] = {}
    for number, group in enumerate(groups):
        for name in group:
            if name not in columns:
                raise UserError(
                    f"`zip` names '{name}', which is no axis{suggestion(name, columns)}"
                )
            if name in home:
                raise UserError(f"`zip` names '{name}' twice")
            home[name] = number
    factors: list[Factor] = []
    done: set[int] = set()
    for name, values in columns.items():
        if name not in home:
            factors.append(Factor({name: values}))
        elif home[name] not in done:
            done.add(home[name])
            factors.append(Factor({n: columns[n] for n in groups[home[name]]}))
    return factors


def _union(grids: Any, simulator: Simulator) -> Factor | None:
    """Return several small grids over the same axes as one factor: their rows, without repeats."""
    if not grids:
        return None
    if not isinstance(grids, list) or not all(isinstance(g, Mapping) for g in grids):
        raise UserError("`union` is a list of small grids, as in [{gpu: h100_sxm, tp: [4, 8]}, …]")
    names = list(grids[0])
    rows: dict[tuple[Scalar, ...], None] = {}
    for grid in grids:
        if set(grid) != set(names):
            raise UserError(f"each grid of `union` must name the same axes: {', '.join(names)}")
        for name in names:
            check_axis(name, simulator)
        part = DesignSpace(
            simulator.name,
            tuple(Factor({n: _values(n, grid[n], simulator)}) for n in names),
        )
        codes = part.codes(_all(part))
        columns = [
            [f.columns[n][c] for c in code]
            for f, n, code in zip(part.factors, names, codes, strict=True)
        ]
        rows |= dict.fromkeys(zip(*columns, strict=True))
    return Factor(dict(zip(names, map(tuple, zip(*rows, strict=True)), strict=True)))


def _all(space: DesignSpace) -> Any:
    from sweeper.space import Span

    return Span(0, len(space))


def _constraints(written: Any) -> tuple[str, ...]:
    if isinstance(written, str):
        return (written,)
    if not isinstance(written, list | tuple):
        raise UserError(f"`constraints` is a list of SQL conditions, not {written!r}")
    return tuple(str(sql) for sql in written)


def _defaults(simulator: Simulator, given: set[str]) -> tuple[Factor, ...]:
    missing = [
        name
        for name, f in _fields(simulator).items()
        if name not in given and default_of(f) is dataclasses.MISSING
    ]
    if missing:
        raise UserError(
            f"the simulator '{simulator.name}' also needs the axes: {', '.join(missing)}"
        )
    return tuple(
        Factor({name: (default_of(f),)})
        for name, f in _fields(simulator).items()
        if name not in given
    )


def _check_names(space: DesignSpace, simulator: Simulator) -> None:
    taken = {*space.axes, *schema_of(simulator.metrics).names}
    for name in space.derived:
        if name in taken:
            raise UserError(f"derived column '{name}' has the name of an axis or a metric")
    _ = space.rules, space.derive(_all_of_first(space))
    if isinstance(simulator, Describes):
        overlap = set(schema_of(simulator.facts).names) & set(space.derived)
        if overlap:
            raise UserError(f"derived column '{overlap.pop()}' has the name of a fact")


def _all_of_first(space: DesignSpace) -> Any:
    from sweeper.space import Span

    return Span(0, min(1, len(space)))


def _fields(simulator: Simulator) -> dict[str, dataclasses.Field[Any]]:
    return {f.name: f for f in dataclasses.fields(simulator.point)}


def _mapping(written: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = written.get(key) or {}
    if not isinstance(value, Mapping):
        raise UserError(f"`{key}` is a mapping from names, not {value!r}")
    return value
