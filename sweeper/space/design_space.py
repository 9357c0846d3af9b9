"""Design spaces: the product of the axes, without points that violate a constraint.

Objectives and conditions say which points are good. Given axes are scenarios (a model, a load):
they are not chosen, and designs of different scenarios are not compared.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import polars as pl
import pyarrow as pa

from simulators.core.columns import OUTCOME, schema_of
from simulators.core.contract import (
    Describes,
    Direction,
    Simulator,
    given_of,
    load_simulator,
    objectives_of,
    register,
)
from simulators.core.errors import UserError, unknown
from simulators.core.fields import check_effects
from sweeper.space.axes import Factor, Scalar, defaults, factors_of
from sweeper.space.points import Batch, Index, Mask, Product, Span
from sweeper.space.rules import Counts, Rule, counts_of, drawn
from sweeper.space.space_file import SpaceConfig, parse_space
from sweeper.space.sql import condition, joined

_LARGEST = 2**62  # points have 64-bit numbers; the last bit allows counting past the end


_SHOWN, _FEW, _WIDE = 7, 4, 96
"""Axes, values per axis and characters per line of a printed space."""


@dataclass(frozen=True)
class DesignSpace(Product):
    """All combinations of the axes' values that the constraints allow.

    `derived` are further columns as SQL over axes, earlier derived columns and facts of the
    simulator. `constraints` are SQL conditions over the same columns; all must be true.

    >>> len(DesignSpace.of("kernels", gpu="l4", op="gemm", m="1..4"))
    4
    """

    derived: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return the simulator, the number of points and the axes that vary, in ten lines at most.

        >>> DesignSpace.of("kernels", gpu="l4", op="gemm", m="1..400")
        DesignSpace of 'kernels': 400 points
          m: 1, 2, 3, 4, ... (400)
        """
        varied = self.varied
        lines = [f"DesignSpace of '{self.simulator}': {self.size:,} points"]
        for name in varied[:_SHOWN]:
            values = list(dict.fromkeys(self.axes[name]))
            more = f", ... ({len(values):,})" if len(values) > _FEW else ""
            lines.append(f"  {name}: {', '.join(map(str, values[:_FEW]))}{more}")
        if len(varied) > _SHOWN:
            lines.append(f"  and {len(varied) - _SHOWN} more: {', '.join(varied[_SHOWN:])}")
        if self.constraints:
            lines.append(f"  constraints: {' AND '.join(self.constraints)}")
        return "\n".join(line if len(line) <= _WIDE else f"{line[:_WIDE]} ..." for line in lines)

    @classmethod
    def of(
        cls,
        simulator: str | Simulator,
        *,
        constraints: Sequence[str] = (),
        derived: Mapping[str, str] | None = None,
        **axes: Any,
    ) -> DesignSpace:
        """Return the space that a space file with these keys describes.

        Each of `**axes` is a value, a list, or a range in words such as "0.5..32 log 13". The
        simulator is a name, a dotted module, a file, a folder, or an object.
        """
        name = simulator if isinstance(simulator, str) else register(simulator)
        written = {"simulator": name, "axes": axes, "derived": dict(derived or {})}
        return space_of({**written, "constraints": list(constraints)})

    def at(self, values: Mapping[str, Any]) -> DesignSpace:
        """Return the part of the space in which some axes have these values.

        >>> DesignSpace.of("kernels", gpu="l4", op="gemm", m="1..4").at({"m": 2}).varied
        ()
        """
        return dataclasses.replace(self, factors=tuple(f.at(values) for f in self.factors))

    def kept(self, where: Batch) -> Mask | None:
        """Return a mask of the points that all constraints allow; None if all are allowed."""
        mask: Mask | None = None
        for rule in self.rules:
            allowed = rule.look_up(self, where)
            mask = allowed if mask is None else mask & allowed
        return None if mask is None or mask.all() else mask

    def count(self, where: Batch) -> int:
        """Return the number of points of a batch that the constraints allow."""
        kept = self.kept(where) if self.constraints else None
        return len(where) if kept is None else int(kept.sum())

    def derive(self, where: Batch) -> dict[str, pa.Array]:
        """Return the derived columns of points by number."""
        return {name: column.look_up(self, where) for name, column in self._columns.items()}

    def derived_type(self, name: str) -> pa.DataType:
        """Return the type of a derived column."""
        return self._columns[name].look_up(self, np.zeros(1, np.int64)).type

    def removed(self) -> Mapping[str, int]:
        """Return the number of points that each constraint removes and no earlier one."""
        return self.counts.removed

    @functools.cached_property
    def counts(self) -> Counts:
        """The numbers of removed points, with the constraints whose numbers are sampled."""
        return counts_of(self, self.rules)

    @property
    def share(self) -> float:
        """The share of all points that the constraints allow."""
        return (self.size - sum(self.removed().values())) / self.size

    def drawn(self, random: np.random.Generator, count: int) -> Index:
        """Return random point numbers; nearly all of the points are allowed."""
        return drawn(self, self.rules, random, count)

    @functools.cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The constraints, each with the factors that it depends on."""
        return tuple(
            Rule.of(self, text, f"constraint '{text}'", self._columns, condition=True)
            for text in self.constraints
        )

    @functools.cached_property
    def _columns(self) -> dict[str, Rule]:
        columns: dict[str, Rule] = {}
        for name, text in self.derived.items():
            columns[name] = Rule.of(self, text, f"derived column '{name}'", columns)
        return columns


def space_of(written: Mapping[str, Any] | SpaceConfig) -> DesignSpace:
    """Return the design space of a space file, parsed or as plain values."""
    config = written if isinstance(written, SpaceConfig) else parse_space(written)
    if not config.simulator:
        raise UserError("a space needs `simulator:`, the model that evaluates its points")
    simulator = load_simulator(config.simulator)
    space = DesignSpace(
        simulator=config.simulator,
        factors=factors_of(config, simulator),
        derived={name: str(sql) for name, sql in config.derived.items()},
    )
    single = isinstance(config.constraints, str)
    constraints = [config.constraints] if single else config.constraints
    space = dataclasses.replace(
        space, constraints=(*map(str, constraints), *_conditional(config.when, space))
    )
    if space.size > _LARGEST:
        raise UserError(
            f"the space has {float(space.size):.3g} points, more than can be numbered; "
            "take values out of its longest axes"
        )
    _check_names(space, simulator)
    check_effects(simulator.point, space.axes)
    return space


def completed(space: DesignSpace) -> DesignSpace:
    """Return a stored space with the fields that its simulator has gained, at their defaults."""
    gained = defaults(load_simulator(space.simulator), space.axes)
    return dataclasses.replace(space, factors=(*space.factors, *gained)) if gained else space


def _conditional(conditions: Mapping[str, Any], space: DesignSpace) -> tuple[str, ...]:
    """Return the constraints that fix axes at the first value where their condition is false."""
    found = []
    for name, sql in conditions.items():
        if name not in space.axes:
            raise unknown(f"`when` names '{name}', which is no axis", name, list(space.axes))
        factor = next(f for f in space.factors if name in f.columns)
        found.append(f"({sql}) OR {_first_of(name, factor)}")
    return tuple(found)


def _first_of(name: str, factor: Factor) -> str:
    others = [n for n in factor.columns if n != name]
    firsts: dict[tuple[Scalar, ...], Scalar] = {}
    for *choice, value in zip(*(factor.columns[n] for n in (*others, name)), strict=True):
        firsts.setdefault(tuple(choice), value)
    if len(firsts) == len(factor) > 1:
        raise UserError(
            f"`when` names '{name}', which has one value for each choice of {', '.join(others)}: "
            "no other value can be left out"
        )
    for other in tuple(others):  # axes on which the first value does not depend
        place = others.index(other)
        pairs = dict.fromkeys(((*k[:place], *k[place + 1 :]), v) for k, v in firsts.items())
        if len(fewer := dict(pairs.keys())) == len(pairs):
            firsts = fewer
            others.remove(other)
    return " OR ".join(
        " AND ".join(map(_equals, (*others, name), (*choice, value)))
        for choice, value in firsts.items()
    )


def _equals(name: str, value: Scalar) -> str:
    quoted = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
    return f"{name} IS NULL" if value is None else f"{name} = {quoted}"


def _check_names(space: DesignSpace, simulator: Simulator) -> None:
    """Evaluate every expression once, so that mistakes are reported at load time."""
    taken = {*space.axes, *schema_of(simulator.metrics).names}
    for name in space.derived:
        if name in taken:
            raise UserError(f"derived column '{name}' has the name of an axis or a metric")
    _ = space.rules, space.derive(Span(0, min(1, len(space))))
    if isinstance(simulator, Describes):
        overlap = set(schema_of(simulator.facts).names) & set(space.derived)
        if overlap:
            raise UserError(f"derived column '{overlap.pop()}' has the name of a fact")


Objectives = Mapping[str, Direction]
"""Objectives: columns, each with `min` or `max`."""
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)


def check_directions(wanted: Objectives) -> None:
    """Raise UserError unless every objective has the direction `min` or `max`."""
    for name, direction in wanted.items():
        if direction not in (known := get_args(Direction)):
            message = f"objective '{name}': '{direction}' is neither min nor max"
            raise unknown(message, str(direction), known)


def objectives(written: SpaceConfig, space: DesignSpace) -> dict[str, Direction]:
    """Return the objectives of the space, by default those of the simulator.

    Raises:
        UserError: there are none, or an objective is no numeric column.
    """
    simulator = load_simulator(space.simulator)
    wanted: dict[str, Direction] = dict(written.objectives) or objectives_of(simulator)
    metrics, point = schema_of(simulator.metrics), space.schema
    known = [*metrics.names, *space.derived, *point.names]
    if not wanted:
        raise UserError(
            f"the space names no `objectives:` and the simulator '{space.simulator}' has none "
            f"of its own; write e.g. objectives: {{{known[0]}: min}}"
        )
    for name in wanted:
        if name not in known:
            what = f"neither a metric nor an axis of the simulator '{space.simulator}'"
            raise unknown(f"objective '{name}' is {what}", name, known)
        kinds = metrics if name in metrics.names else point
        kind = space.derived_type(name) if name in space.derived else kinds.field(name).type
        if not any(is_one(kind) for is_one in _NUMBERS):
            raise UserError(f"objective '{name}' is not a number, but {kind}")
    return wanted


def given(written: SpaceConfig, space: DesignSpace, wanted: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the varying axes that are given, named by `given:` or by the simulator.

    Objectives (`wanted`) are chosen, not given.
    """
    usual = given_of(load_simulator(space.simulator).point)
    named = usual if written.given is None else written.given
    for name in named:
        if name not in space.axes:
            raise unknown(f"`given` names '{name}', which is no axis", name, list(space.axes))
    return tuple(n for n in space.varied if n in named and n not in wanted)


def where(written: SpaceConfig, space: DesignSpace) -> str | None:
    """Return the condition that rows of the front must meet; None without a condition."""
    return joined(*(checked(text, space) for text in (written.slo, written.where)))


def checked(text: str | None, space: DesignSpace) -> str | None:
    """Return a condition on the results of a space. Raises UserError for another text."""
    if text is not None:
        condition(text, _types_of(space))
    return text


def _types_of(space: DesignSpace) -> dict[str, pl.DataType]:
    derived = [pa.field(name, space.derived_type(name)) for name in space.derived]
    answer = [*schema_of(load_simulator(space.simulator).metrics), *OUTCOME]
    known = {f.name: f for f in [*space.schema, *derived, *answer]}
    frame = pl.DataFrame(pl.from_arrow(pa.schema(list(known.values())).empty_table()))
    words = [n for n, kind in frame.schema.items() if kind == pl.Categorical]
    return dict(frame.with_columns(pl.col(words).cast(pl.String)).schema)


def columns_of(space: DesignSpace) -> list[str]:
    """Return the names of the columns of the rows of a space."""
    metrics = schema_of(load_simulator(space.simulator).metrics).names
    return [*space.axes, *space.derived, *dict.fromkeys([*metrics, *OUTCOME.names])]
