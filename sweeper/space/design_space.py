"""Design spaces: the product of the axes, without points that violate a constraint."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from simulators.core.columns import schema_of
from simulators.core.contract import Describes, Simulator, load_simulator, register
from simulators.core.errors import UserError, unknown
from sweeper.space.counts import Counts, counts_of, drawn
from sweeper.space.factors import defaults, factors_of
from sweeper.space.notation import Scalar
from sweeper.space.product import Factor, Product
from sweeper.space.rules import Rule
from sweeper.space.space_config import SpaceConfig, parse_space
from sweeper.space.spans import Batch, Index, Mask, Span

_LARGEST = 2**62
"""Points have 64-bit numbers; the last bit allows counting past the end."""


@dataclass(frozen=True)
class DesignSpace(Product):
    """All combinations of the axes' values that the constraints allow.

    `derived` are further columns as SQL over axes, earlier derived columns and facts of the
    simulator; `constraints` are SQL conditions over the same, and a point stays where all are true.

    >>> len(DesignSpace.of("kernels", gpu="l4", op="gemm", m="1..4"))
    4
    """

    derived: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        simulator: str | Simulator,
        *,
        constraints: Sequence[str] = (),
        derived: Mapping[str, str] | None = None,
        **axes: Any,
    ) -> DesignSpace:
        """Return the space that a `spaces/*.yaml` with these keys describes.

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
        """Return which points all constraints allow; None when every one of them is."""
        mask: Mask | None = None
        for rule in self.rules:
            allowed = rule.look_up(self, where)
            mask = allowed if mask is None else mask & allowed
        return None if mask is None or mask.all() else mask

    def count(self, where: Batch) -> int:
        """Return how many points of a batch the constraints allow."""
        kept = self.kept(where) if self.constraints else None
        return len(where) if kept is None else int(kept.sum())

    def derive(self, where: Batch) -> dict[str, pa.Array]:
        """Return the derived columns of points by number."""
        return {name: column.look_up(self, where) for name, column in self._columns.items()}

    def derived_type(self, name: str) -> pa.DataType:
        """Return the type of a derived column."""
        return self._columns[name].look_up(self, np.zeros(1, np.int64)).type

    def removed(self) -> Mapping[str, int]:
        """Return how many points each constraint removes that no earlier one removed."""
        return self.counts.removed

    @functools.cached_property
    def counts(self) -> Counts:
        """The same, and which of the numbers are estimates."""
        return counts_of(self, self.rules)

    @property
    def share(self) -> float:
        """The share of all points that the constraints allow."""
        return (self.size - sum(self.removed().values())) / self.size

    def drawn(self, random: np.random.Generator, count: int) -> Index:
        """Return numbers of points drawn at random, nearly all of them allowed."""
        return drawn(self, self.rules, random, count)

    @functools.cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The constraints, each with the factors it depends on."""
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
    """Return the design space that a `spaces/*.yaml` describes, parsed or as plain values."""
    config = written if isinstance(written, SpaceConfig) else parse_space(written)
    if not config.simulator:
        raise UserError("a space needs `simulator:`, the model that answers it")
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
    return space


def completed(space: DesignSpace) -> DesignSpace:
    """Return a stored space with the fields its simulator has gained since, at their defaults."""
    gained = defaults(load_simulator(space.simulator), space.axes)
    return dataclasses.replace(space, factors=(*space.factors, *gained)) if gained else space


def _conditional(conditions: Mapping[str, Any], space: DesignSpace) -> tuple[str, ...]:
    """Return the constraints that keep axes at their first value where they do not count."""
    found = []
    for name, sql in conditions.items():
        if name not in space.axes:
            raise unknown(f"`when` names '{name}', which is no axis", name, list(space.axes))
        factor = next(f for f in space.factors if name in f.columns)
        found.append(f"({sql}) OR {_first_of(name, factor)}")
    return tuple(found)


def _first_of(name: str, factor: Factor) -> str:
    """Return an SQL condition: the axis has its first value, per choice of its factor."""
    others = [n for n in factor.columns if n != name]
    firsts: dict[tuple[Scalar, ...], Scalar] = {}
    for *choice, value in zip(*(factor.columns[n] for n in (*others, name)), strict=True):
        firsts.setdefault(tuple(choice), value)
    if len(firsts) == len(factor) > 1:
        raise UserError(
            f"`when` names '{name}', which has one value for each choice of {', '.join(others)}: "
            "there are no others to leave out"
        )
    for other in tuple(others):  # those that do not decide which value is the first
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
    """Return as SQL that an axis has a value."""
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
