"""A design space is a product of axes; a point is a number in mixed radix.

The first axis is the slowest, so that neighbours share what is dear to set up. Axes that belong
together (`zip`, `union`) form one factor of the product. Constraints and derived columns are polars
SQL. Each depends on a few axes only, so it is evaluated once on the product of those and looked up
by the point's number: a million points are filtered by a few array look-ups.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from simulators.core.columns import schema_of
from simulators.core.contract import Describes, load_simulator
from simulators.core.errors import UserError, suggestion
from sweeper.notation import Scalar

Index = NDArray[np.int64]
Codes = NDArray[np.int32]

_TABLE = 1 << 21
"""Rows up to which a rule is tabulated over the axes it depends on; larger ones run per batch."""


@dataclass(frozen=True)
class Span:
    """A range of point numbers, without those in `without` (sorted; answered elsewhere)."""

    lo: int
    hi: int
    without: Index = field(default_factory=lambda: np.empty(0, np.int64), compare=False)

    def __len__(self) -> int:
        return self.hi - self.lo - len(self.without)

    def index(self) -> Index:
        """Return the numbers themselves."""
        numbers = np.arange(self.lo, self.hi, dtype=np.int64)
        return np.delete(numbers, self.without - self.lo) if len(self.without) else numbers

    def cut(self, lo: int, hi: int) -> Span:
        """Return the part of the range from `lo` to `hi`."""
        first, last = np.searchsorted(self.without, (lo, hi))
        return Span(lo, hi, self.without[first:last])


@dataclass(frozen=True)
class Factor:
    """Axes that move together: one row per joint choice. A plain axis is a factor of one column."""

    columns: Mapping[str, tuple[Scalar, ...]]

    def __post_init__(self) -> None:
        if len({len(values) for values in self.columns.values()}) != 1:
            sizes = ", ".join(f"{n} has {len(v)}" for n, v in self.columns.items())
            raise UserError(f"zipped axes must have as many values as each other: {sizes}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def axis(name: str, *values: Scalar) -> Factor:
    """Return one axis with these values."""
    return Factor({name: values})


@dataclass(frozen=True)
class DesignSpace:
    """All combinations of the axes' values that the constraints allow.

    Args:
        simulator: what the points are for; its point type gives every column its type.
        factors: the axes, slowest first. Together they set every field of the point type.
        derived: further columns as SQL over axes, earlier derived columns and facts.
        constraints: SQL conditions over the same; a point stays where all are true.

    >>> len(DesignSpace.of("kernels", gpu="l4", op="gemm", m="1..4"))
    4
    """

    simulator: str
    factors: tuple[Factor, ...]
    derived: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        simulator: str,
        *,
        constraints: Sequence[str] = (),
        derived: Mapping[str, str] | None = None,
        **axes: Any,
    ) -> DesignSpace:
        """Return the space that a `spaces/*.yaml` with these keys describes.

        Args:
            simulator: the model that answers it.
            constraints: SQL conditions over axes, derived columns and facts.
            derived: further columns as SQL.
            **axes: a value, a list, or a range in words such as "0.5..32 log 13".

        Raises:
            UserError: something in it is misspelt, missing or of the wrong type.
        """
        from sweeper.config import space_of

        written = {"simulator": simulator, "axes": axes, "derived": dict(derived or {})}
        return space_of({**written, "constraints": list(constraints)})

    def __len__(self) -> int:
        return self.size

    @property
    def size(self) -> int:
        """Points before constraints (`len` cannot pass 2**63; this can)."""
        return math.prod(len(f) for f in self.factors)

    @property
    def axes(self) -> dict[str, tuple[Scalar, ...]]:
        """The values of each column of a point, in the order of the factors."""
        return {name: values for f in self.factors for name, values in f.columns.items()}

    @property
    def varied(self) -> tuple[str, ...]:
        """The columns that take more than one value."""
        return tuple(name for name, values in self.axes.items() if len(set(values)) > 1)

    def codes(self, where: Span | Index) -> list[Codes]:
        """Return for each factor which of its rows every point takes."""
        result: list[Codes] = []
        stride = self.size
        for factor in self.factors:
            stride //= len(factor)
            if len(factor) == 1:
                rows = len(where)
                result.append(np.broadcast_to(np.int32(0), rows))
            elif isinstance(where, Span) and not len(where.without):
                first, last = where.lo // stride, (where.hi - 1) // stride
                steps: Codes = (np.arange(first, last + 1) % len(factor)).astype(np.int32)
                offset = where.lo - first * stride
                if stride < len(where):
                    result.append(np.repeat(steps, stride)[offset : offset + len(where)])
                else:  # at most two steps: repeat each as often as it is seen, not `stride` times
                    seen = min(stride - offset, len(where))
                    counts = (seen, len(where) - seen)[: len(steps)]
                    result.append(np.repeat(steps, counts))
            else:
                index = where.index() if isinstance(where, Span) else where
                result.append(((index // stride) % len(factor)).astype(np.int32))
        return result

    def batch(self, where: Span | Index, kept: NDArray[np.bool_] | None = None) -> pa.RecordBatch:
        """Return points as dictionary-encoded columns, ready for the simulator."""
        columns: dict[str, pa.Array] = {}
        for factor, codes in zip(self.factors, self.codes(where), strict=True):
            chosen = pa.array(codes if kept is None else codes[kept])
            for name in factor.columns:
                columns[name] = _encoded(chosen, self._dictionaries[name])
        ordered = {name: columns[name] for name in self._schema.names}
        return pa.RecordBatch.from_arrays(list(ordered.values()), list(ordered))

    def points(self, index: Span | Index) -> pl.DataFrame:
        """Return points by number, with plain columns in the order of the point type."""
        arrays = {}
        for factor, codes in zip(self.factors, self.codes(index), strict=True):
            for name in factor.columns:
                arrays[name] = self._dictionaries[name].take(pa.array(codes))
        table = pa.table({name: arrays[name] for name in self._schema.names})
        return pl.DataFrame(pl.from_arrow(table))

    def index_of(
        self, points: pl.DataFrame, trusted: Sequence[pl.DataFrame] | None = None
    ) -> Index:
        """Return the number of each point, -1 where it is not of this space (constraints apart).

        Args:
            points: rows with at least the columns of the factors.
            trusted: per factor the rows to recognise, with a column `code`; all when None.
        """
        total = np.zeros(len(points), np.int64)
        inside = np.ones(len(points), bool)
        tables = trusted or [self.factor_table(i) for i in range(len(self.factors))]
        for factor, table in zip(self.factors, tables, strict=True):
            names = list(factor.columns)
            found = points.select(names).join(
                table, on=names, how="left", nulls_equal=True, maintain_order="left"
            )["code"]
            codes = found.fill_null(-1).to_numpy()
            inside &= codes >= 0
            total = total * len(factor) + codes
        return np.where(inside, total, -1)

    def factor_table(self, position: int) -> pl.DataFrame:
        """Return the rows of one factor with their `code`."""
        return self._factor_tables[position]

    def kept(self, where: Span | Index) -> NDArray[np.bool_] | None:
        """Return which points all constraints allow; None when every one of them is."""
        mask: NDArray[np.bool_] | None = None
        for rule in self.rules:
            allowed = rule.look_up(self, where)
            mask = allowed if mask is None else mask & allowed
        return None if mask is None or mask.all() else mask

    def derive(self, where: Span | Index) -> dict[str, pa.Array]:
        """Return the derived columns of points by number."""
        return {name: column.look_up(self, where) for name, column in self._columns.items()}

    def derived_type(self, name: str) -> pa.DataType:
        """Return the type of a derived column."""
        return self._columns[name].look_up(self, np.zeros(1, np.int64)).type

    def removed(self) -> dict[str, int]:
        """Return how many points each constraint removes that no earlier one removed.

        Exact, and counted on the axes the constraints depend on, not on all points.
        """
        roots = sorted({r for rule in self.rules for r in rule.roots})
        shape = math.prod(len(self.factors[r]) for r in roots)
        if shape > 50 * _TABLE:
            raise UserError(f"the constraints couple {shape:,} combinations: too many to count")
        weight = self.size // max(shape, 1)
        alive = np.ones(shape, bool)
        counts: dict[str, int] = {}
        for text, rule in zip(self.constraints, self.rules, strict=True):
            allowed = rule.on(self, roots)
            counts[text] = int((alive & ~allowed).sum()) * weight
            alive &= allowed
        return counts

    @functools.cached_property
    def rules(self) -> tuple[_Rule, ...]:
        """The constraints, each with the factors it depends on."""
        columns = self._columns
        return tuple(_Rule.of(self, t, f"constraint '{t}'", columns) for t in self.constraints)

    @functools.cached_property
    def _columns(self) -> dict[str, _Rule]:
        columns: dict[str, _Rule] = {}
        for name, text in self.derived.items():
            columns[name] = _Rule.of(self, text, f"derived column '{name}'", columns)
        return columns

    @functools.cached_property
    def _schema(self) -> pa.Schema:
        return schema_of(load_simulator(self.simulator).point)

    @functools.cached_property
    def _dictionaries(self) -> dict[str, pa.Array]:
        return {n: pa.array(v, self._schema.field(n).type) for n, v in self.axes.items()}

    @functools.cached_property
    def _factor_tables(self) -> tuple[pl.DataFrame, ...]:
        tables = (
            pa.table({n: self._dictionaries[n] for n in factor.columns}) for factor in self.factors
        )
        return tuple(
            pl.DataFrame(pl.from_arrow(table)).with_columns(
                code=pl.int_range(pl.len(), dtype=pl.Int64)
            )
            for table in tables
        )

    def __getstate__(self) -> dict[str, Any]:
        """Travel without the caches."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class _Rule:
    """One SQL expression, and the factors whose values decide it."""

    text: str
    what: str
    roots: tuple[int, ...]
    before: tuple[str, ...]
    facts: bool
    tables: dict[tuple[int, ...], Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, space: DesignSpace, text: str, what: str, before: Mapping[str, _Rule]) -> _Rule:
        """Find out what an expression depends on.

        Raises:
            UserError: it is not SQL, or names a column that is not there.
        """
        home = {n: i for i, f in enumerate(space.factors) for n in f.columns}
        simulator = load_simulator(space.simulator)
        facts = _needs(simulator.facts) if isinstance(simulator, Describes) else {}
        roots: set[int] = set()
        uses_facts = False
        for name in names_in(text, what):
            if name in home:
                roots.add(home[name])
            elif name in before:
                roots.update(before[name].roots)
                uses_facts |= before[name].facts
            elif name in facts:
                roots.update(home[n] for n in facts[name] or home)
                uses_facts = True
            else:
                known = [*home, *before, *facts]
                raise UserError(
                    f"{what} names '{name}', which is no column{suggestion(name, known)}\n"
                    f"Known: {', '.join(known)}"
                )
        return cls(text, what, tuple(sorted(roots)), tuple(before), uses_facts)

    def look_up(self, space: DesignSpace, where: Span | Index) -> Any:
        """Return the value for each point: an array of truths, or a typed Arrow column."""
        if math.prod(len(space.factors[r]) for r in self.roots) > _TABLE:
            return self._evaluate(space, space.codes(where), len(where))
        table = self.on(space, list(self.roots))
        codes = space.codes(where)
        position: Any = np.zeros(len(where), np.int64)
        for r in self.roots:
            position = position * len(space.factors[r]) + codes[r]
        return table[position] if isinstance(table, np.ndarray) else table.take(pa.array(position))

    def on(self, space: DesignSpace, roots: Sequence[int]) -> Any:
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
        self, space: DesignSpace, codes: Sequence[NDArray[np.integer[Any]]], rows: int
    ) -> Any:
        columns = {
            name: space._dictionaries[name].take(pa.array(code))
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
            batch = pa.RecordBatch.from_arrays(
                [columns[n] for n in space._schema.names], list(space._schema.names)
            )
            facts = pl.DataFrame(pl.from_arrow(pa.table(simulator.describe(batch))))
            frame = frame.with_columns(facts.get_columns())
        try:
            for name in self.before:
                if name in self._needed_before(space):
                    frame = frame.with_columns(pl.sql_expr(space.derived[name]).alias(name))
            result = frame.select(value=pl.sql_expr(self.text))["value"]
        except pl.exceptions.PolarsError as error:
            raise UserError(f"{self.what} cannot be computed: {error}") from error
        if len(result) != rows:
            if columns:
                raise UserError(
                    f"{self.what} looks at many points at once; it must judge each alone"
                )
            result = result.new_from_index(0, rows)
        if not self.what.startswith("constraint"):
            return result.to_arrow()
        if result.dtype != pl.Boolean:
            raise UserError(f"{self.what} is not true or false, but {result.dtype}")
        return result.fill_null(value=False).to_numpy()

    def _needed_before(self, space: DesignSpace) -> set[str]:
        needed: set[str] = set()
        waiting = set(names_in(self.text, self.what))
        while waiting:
            name = waiting.pop()
            if name in self.before and name not in needed:
                needed.add(name)
                waiting.update(names_in(space.derived[name], name))
        return needed


@functools.lru_cache(maxsize=1024)
def names_in(text: str, what: str) -> tuple[str, ...]:
    """Return the columns an SQL expression names.

    Raises:
        UserError: it is not an SQL expression.
    """
    try:
        return tuple(dict.fromkeys(pl.sql_expr(text).meta.root_names()))
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{what} is not an SQL expression: {error}") from error


def _encoded(codes: pa.Array, values: pa.Array) -> pa.DictionaryArray:
    """Return a dictionary-encoded column; a null is a missing code, as Parquet wants it."""
    if values.null_count:
        places = pc.cumulative_sum(pc.cast(values.is_valid(), pa.int32()))
        codes = pc.if_else(values.is_valid(), pc.subtract(places, 1), None).take(codes)
        values = values.drop_null()
    return pa.DictionaryArray.from_arrays(codes, values)


def _needs(facts: type) -> dict[str, tuple[str, ...]]:
    """Return for each fact the fields it depends on; empty when it may depend on all."""
    return {f.name: f.metadata.get("needs", ()) for f in fields(facts)}
