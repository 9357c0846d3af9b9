"""Axes: the notation of their values, and the factors of a space that they form.

An axis is a value, a list, or a string: `1..8`, `0..1 lin 11`, `0.5..32 log 13`, `pow2 1..64`.
`capacity 0.1..64` asks for the largest value that meets the `slo:` of the space, `first analytic
then event` for the second value only on the front of the first. An axis is never a mapping, which
Hydra could not override with a list, and never a call, which Hydra reads as a function.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simulators.core.columns import schema_of
from simulators.core.contract import Simulator
from simulators.core.errors import UserError, suggestion, unknown
from simulators.core.fields import columns_of, option_groups
from simulators.core.folder import FOLDERS
from sweeper.space.space_file import SpaceConfig
from sweeper.space.sql import named, number

Scalar = str | int | float | bool | None

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(
    rf"^\s*(?:(?P<kind>pow2|capacity)\s+)?(?P<lo>{_NUMBER})\s*\.\.\s*(?P<hi>{_NUMBER})"
    rf"(?:\s+(?P<how>lin|log)\s+(?P<count>\d+))?\s*$"
)
_LIKE_A_RANGE = re.compile(rf"{_NUMBER}\s*\.\.|^\s*(pow2|capacity)\b")
_REFINED = re.compile(r"^\s*first\s+(\S+)\s+then\s+(\S+)\s*$")
CAPACITY_STEP = 1.025  # ratio of neighbouring values of a capacity axis: the wanted precision
EXPECTED = (
    "write 1..8, 0..1 lin 11, 0.5..32 log 13, pow2 1..64, capacity 0.1..64, a value or a list"
)
_LARGEST = 10_000_000
_WIDEST = 2**63 - 1


@dataclass(frozen=True)
class Factor:
    """Axes that vary together, with one row per combination of values."""

    columns: Mapping[str, tuple[Scalar, ...]]

    def __post_init__(self) -> None:
        if len({len(values) for values in self.columns.values()}) != 1:
            sizes = ", ".join(f"{n} has {len(v)}" for n, v in self.columns.items())
            raise UserError(f"zipped axes must have as many values as each other: {sizes}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def at(self, values: Mapping[str, Any]) -> Factor:
        """Return the rows in which the given columns have the given values."""
        asked = [(column, values[name]) for name, column in self.columns.items() if name in values]
        kept = [i for i in range(len(self)) if all(column[i] == value for column, value in asked)]
        return Factor(
            {name: tuple(column[i] for i in kept) for name, column in self.columns.items()}
        )


def values_of(
    name: str, written: Any, kind: pa.DataType, *, nullable: bool, repeat: bool = False
) -> tuple[Scalar, ...]:
    """Return the values of one axis, cast to the type of the simulator's field.

    Values may `repeat` in zipped axes.

    >>> values_of("n", "pow2 1..8", pa.int64(), nullable=False)
    (1, 2, 4, 8)
    >>> values_of("rate", "1..4 log 3", pa.float64(), nullable=False)
    (1.0, 2.0, 4.0)
    """
    if isinstance(written, dict):
        raise UserError(f"axis '{name}' is a mapping; {EXPECTED}")
    if isinstance(written, str) and not pa.types.is_string(kind) and _LIKE_A_RANGE.search(written):
        items = _range(name, written, whole=pa.types.is_integer(kind))
    else:
        several: Any = refined_values(written) or written
        items = list(several) if isinstance(several, list | tuple) else [written]
    if not items:
        raise UserError(f"axis '{name}' has no values; {EXPECTED}")
    values = tuple(cast(name, item, kind, nullable=nullable) for item in items)
    if not repeat:
        _check_distinct(f"axis '{name}' has the value", values)
    return values


def cast(name: str, item: Any, kind: pa.DataType, *, nullable: bool) -> Scalar:
    """Return a value converted to the type of its field. Raises UserError for another type."""
    if item is None or (item == "null" and nullable):
        if not nullable:
            raise UserError(f"axis '{name}' cannot be null; {_kind_name(kind)} is wanted")
        return None
    value = _typed(item, kind)
    if value is None:
        raise UserError(f"axis '{name}': {item!r} is not {_kind_name(kind)}")
    return value


def _typed(item: Any, kind: pa.DataType) -> Scalar:
    """Return a value converted to a type; None if the value is of another type."""
    if pa.types.is_boolean(kind):
        return item if isinstance(item, bool) else None
    if isinstance(item, list | dict):
        return None
    if pa.types.is_string(kind):
        return str(item)
    whole = pa.types.is_integer(kind)
    try:
        # As a float a large whole number would lose its last digits.
        number = item if whole and isinstance(item, int) else float(item)
    except (TypeError, ValueError, OverflowError):
        return None
    if isinstance(item, bool) or not -math.inf < number < math.inf:
        return None
    if whole:
        return int(number) if number == int(number) and abs(number) <= _WIDEST else None
    return number + 0.0  # there is one zero: -0.0 would be a second value with the same answers


def is_capacity(written: Any) -> bool:
    """Return whether an axis asks for the largest value that meets the `slo:`."""
    return isinstance(written, str) and written.split()[:1] == ["capacity"]


def refined_values(written: Any) -> tuple[str, ...]:
    """Return the two values of an axis written `first A then B`; empty for another axis.

    >>> refined_values("first analytic then event")
    ('analytic', 'event')
    """
    match = _REFINED.match(written) if isinstance(written, str) else None
    return match.groups() if match else ()


def _range(name: str, text: str, *, whole: bool) -> list[float]:
    def refused(why: str) -> UserError:
        return UserError(f"axis '{name}': '{text}' {why}")

    match = _RANGE.match(text)
    if match is None or (match["kind"] and match["how"]):
        raise UserError(f"axis '{name}': cannot read '{text}'; {EXPECTED}")
    kind, how, low, high = match["kind"], match["how"], float(match["lo"]), float(match["hi"])
    if high < low:
        raise refused(f"runs backwards; write {match['hi']}..{match['lo']}")
    if low <= 0 and (kind or how == "log"):
        raise refused("must start above 0")
    if not math.isfinite(high / low if kind else high - low):
        raise refused("spans more than a number can hold")
    if kind == "pow2":
        powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        if not powers:
            raise UserError(f"axis '{name}': there is no power of two in '{text}'")
        return [2.0**e for e in powers]
    if kind == "capacity":
        count = math.ceil(math.log(high / low) / math.log(CAPACITY_STEP)) + 1
        return _spaced("log", low, high, max(count, 2), whole=whole)
    if how is None:
        if low != int(low) or high != int(high):
            raise refused(f"needs a count, as in '{text} lin 11'")
        if high - low >= _LARGEST:
            raise refused(f"has more than {_LARGEST:,} values")
        return [float(v) for v in range(int(low), int(high) + 1)]
    count = int(match["count"])
    if not 2 <= count <= _LARGEST:
        raise refused(f"needs 2 to {_LARGEST:,} values")
    return _spaced(how, low, high, count, whole=whole)


def _spaced(how: str, low: float, high: float, count: int, *, whole: bool) -> list[float]:
    """Return numbers at equal distances or ratios, to ten digits: 0.5..32 log 13 includes 1."""
    spaced = (np.linspace if how == "lin" else np.geomspace)(low, high, count)
    spaced[0], spaced[-1] = low, high
    numbers = [float(f"{v:.10g}") for v in spaced]
    return list(dict.fromkeys(float(round(v)) for v in numbers)) if whole else numbers


def _kind_name(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "a whole number"
    if pa.types.is_floating(kind):
        return "a number"
    return "true or false" if pa.types.is_boolean(kind) else "a name"


def factors_of(written: SpaceConfig, simulator: Simulator) -> tuple[Factor, ...]:
    """Return the factors of a space: its axes, its union, and other inputs at their defaults."""
    union = _union(written.union, simulator)
    for name in written.axes:
        if union and name in union.columns:
            raise UserError(f"axis '{name}' stands both in `axes` and in `union`")
    zipped = {name for one in written.zip for name in ([one] if isinstance(one, str) else one)}
    columns = {
        name: axis_values(name, v, simulator, repeat=name in zipped)
        for name, v in written.axes.items()
    }
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


def _check_distinct(what: str, values: Sequence[Any]) -> None:
    if len(set(values)) < len(values):
        twice = next(v for i, v in enumerate(values) if v in values[:i])
        raise UserError(f"{what} {twice!r} twice")


def axis_values(
    name: str, written: Any, simulator: Simulator, *, repeat: bool = False
) -> tuple[Scalar, ...]:
    """Return the values of one axis, in the type of the simulator's column.

    Values of a zipped axis may `repeat`.
    """
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
    values = values_of(name, written, kind, nullable=column.is_nullable, repeat=repeat)
    if rule := column.metadata.get("rule"):
        values = tuple(rule.spelt(v) if isinstance(v, str) else v for v in values)
        wrong = (rule.broken_by(name, v) for v in values if isinstance(v, int | float))
        if error := next(filter(None, wrong), None):
            raise UserError(f"axis {error}")
    if folder := column.metadata.get("names", ""):
        usual = (None, column.default, column.metadata.get("otherwise"))
        values = tuple(v if v in usual else _found(folder, str(v)) for v in values)
    return values if repeat else tuple(dict.fromkeys(values))


def _found(kind: str, value: str) -> str:
    """Return the entry behind an alias, or the path of a file. Raises for another word."""
    folder = FOLDERS[kind]
    known, options = folder.parted(value)
    if options:
        return _found(kind, known) + options
    if value in folder.names() or Path(value).is_file():
        return value
    if (name := named(kind, value)) != value or folder.has(value):
        return name
    if spelt := next((n for n in folder.names() if n.lower() == value.lower()), ""):
        return spelt
    looks_like_module = "." in value and os.sep not in value and folder.suffix == ".py"
    if os.sep in value or (Path(value).suffix and not looks_like_module):
        raise UserError(f"{kind} '{value}': there is no such file (seen from {Path.cwd()})")
    if not looks_like_module:
        folder.find(value)
    return value


def _zipped(
    columns: Mapping[str, tuple[Scalar, ...]], written: Sequence[str | list[str]]
) -> list[Factor]:
    """Return a factor per axis or group of zipped axes, in the order of the first axes."""
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
    factors = [Factor({n: columns[n] for n in group}) for group in together]
    for factor in factors:
        if len(factor.columns) > 1:
            rows = list(zip(*factor.columns.values(), strict=True))
            _check_distinct(f"`zip` has the values of {', '.join(factor.columns)}", rows)
    return factors


def _union(grids: Sequence[Mapping[str, Any]], simulator: Simulator) -> Factor | None:
    """Return the rows of several small grids as one factor, without repeated rows."""
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
