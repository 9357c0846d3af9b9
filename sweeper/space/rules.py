"""Constraints and derived columns, evaluated on the axes they depend on rather than on all points.

Each is polars SQL over a few axes, so it is evaluated once on the product of those and looked up by
the point's number: a million points are filtered by a few array look-ups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.contract import Describes, load_simulator
from simulators.core.errors import UserError, unknown
from sweeper.space.product import Product
from sweeper.space.spans import Batch
from sweeper.space.sql import computed, names_in, parsed

TABLE = 1 << 21
"""Rows up to which a rule is tabulated over the axes it depends on; larger ones run per batch."""


@dataclass(frozen=True)
class Rule:
    """One SQL expression over points, and the factors whose values decide it."""

    text: str
    what: str  # what messages call it
    condition: bool  # whether its values must be true or false
    roots: tuple[int, ...]  # the factors that decide it
    derived: Mapping[str, str]  # the derived columns it needs, in an order to compute them in
    facts: bool  # whether it, or one of those, needs facts of the simulator
    tables: dict[tuple[int, ...], Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        space: Product,
        text: str,
        what: str,
        before: Mapping[str, Rule],
        *,
        condition: bool = False,
    ) -> Rule:
        """Find out what an expression depends on; `before` are the columns derived before it."""
        home = {n: i for i, f in enumerate(space.factors) for n in f.columns}
        simulator = load_simulator(space.simulator)
        facts = fields(simulator.facts) if isinstance(simulator, Describes) else ()
        needs = {f.name: f.metadata.get("needs") or home for f in facts}
        roots: set[int] = set()
        derived: dict[str, str] = {}
        needs_facts = False
        for name in names_in(text, what):
            if name in home:
                roots.add(home[name])
            elif name in before:
                rule = before[name]
                roots.update(rule.roots)
                derived |= {**rule.derived, name: rule.text}
                needs_facts |= rule.facts
            elif name in needs:
                roots.update(home[n] for n in needs[name])
                needs_facts = True
            else:
                message = f"{what} names '{name}', which is no column"
                raise unknown(message, name, [*home, *before, *needs])
        return cls(text, what, condition, tuple(sorted(roots)), derived, needs_facts)

    def look_up(self, space: Product, where: Batch) -> Any:
        """Return the value for each point: an array of truths, or a typed Arrow column."""
        if math.prod(len(space.factors[r]) for r in self.roots) > TABLE:
            return self._evaluate(space, space.codes(where), len(where))
        table = self.on(space, self.roots)
        codes = space.codes(where)
        position: Any = np.zeros(len(where), np.int64)
        for r in self.roots:
            position = position * len(space.factors[r]) + codes[r]
        return table[position] if isinstance(table, np.ndarray) else table.take(pa.array(position))

    def on(self, space: Product, roots: Sequence[int]) -> Any:
        """Return the value on every combination of the given factors, first slowest."""
        key = tuple(roots)
        if key not in self.tables:
            sizes = [len(space.factors[r]) for r in roots]
            rows = math.prod(sizes)
            grid = np.unravel_index(np.arange(rows), sizes) if sizes else ()
            codes = [np.zeros(rows, np.int64) for _ in space.factors]
            for r, column in zip(roots, grid, strict=True):
                codes[r] = column
            self.tables[key] = self._evaluate(space, codes, rows)
        return self.tables[key]

    def _evaluate(
        self, space: Product, codes: Sequence[NDArray[np.integer[Any]]], rows: int
    ) -> Any:
        columns = {
            name: space.dictionaries[name].take(pa.array(code))
            for position, (factor, code) in enumerate(zip(space.factors, codes, strict=True))
            for name in factor.columns
            if self.facts or position in self.roots
        }
        frame = pl.DataFrame(pl.from_arrow(pa.table(columns)))
        if not columns:
            frame = pl.DataFrame({"": pl.repeat(0, rows, eager=True)})
        if self.facts:
            simulator = load_simulator(space.simulator)
            assert isinstance(simulator, Describes)
            names = space.schema.names
            batch = pa.RecordBatch.from_arrays([columns[n] for n in names], names)
            facts = pl.DataFrame(pl.from_arrow(pa.table(simulator.describe(batch))))
            frame = frame.with_columns(facts.get_columns())
        with computed(self.what):
            for name, text in self.derived.items():
                frame = frame.with_columns(parsed(text, f"derived column '{name}'").alias(name))
            result = frame.select(value=parsed(self.text, self.what))["value"]
        if len(result) != rows:
            if columns:
                raise UserError(
                    f"{self.what} looks at many points at once; it must judge each alone"
                )
            result = result.new_from_index(0, rows)
        if not self.condition:
            return result.to_arrow()
        if result.dtype != pl.Boolean:
            raise UserError(f"{self.what} is not true or false, but {result.dtype}")
        return result.fill_null(value=False).to_numpy()
