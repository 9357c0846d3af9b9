"""Constraints and derived columns, and how many points the constraints remove.

Each rule is polars SQL over a few axes. It is evaluated once on the product of these axes and
looked up by point number, so a million points are filtered by a few array look-ups. Groups of
factors that share no constraint are counted apart: the share of points that both groups leave is
the product of their shares. A group too large for a table is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.contract import Describes, load_simulator
from simulators.core.errors import UserError, unknown
from sweeper.space.points import Batch, Index, Mask, Product, number_of
from sweeper.space.sql import computed, names_in, parsed
from sweeper.text import counted

TABLE = 1 << 21
"""Largest table of a rule over the axes it depends on; larger rules are evaluated per batch."""

_AT_ONCE = 1 << 18  # rows whose values are computed at a time


@dataclass(frozen=True)
class Rule:
    """An SQL expression over points, and the factors that it depends on."""

    text: str
    what: str  # name in messages
    condition: bool  # whether values must be true or false
    roots: tuple[int, ...]  # factors that the expression depends on
    derived: Mapping[str, str]  # derived columns that it needs, in the order of computation
    facts: bool  # whether facts of the simulator are needed
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
        """Return the rule of an expression; `before` are the columns derived earlier."""
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
        """Return the value of each point: a boolean array, or a typed Arrow column."""
        if math.prod(len(space.factors[r]) for r in self.roots) > TABLE:
            return self._evaluate_in_slices(space, space.codes(where), len(where))
        table = self.on(space, self.roots)
        codes = space.codes(where)
        roots = list(self.roots)
        position = np.zeros(len(where), np.int64) + number_of(
            [codes[r] for r in roots], space.sizes[roots]
        )
        return table[position] if isinstance(table, np.ndarray) else table.take(pa.array(position))

    def on(self, space: Product, roots: Sequence[int]) -> Any:
        """Return the value of every combination of the given factors, the first slowest."""
        key = tuple(roots)
        if key not in self.tables:
            sizes = [len(space.factors[r]) for r in roots]
            rows = math.prod(sizes)
            grid = np.unravel_index(np.arange(rows), sizes) if sizes else ()
            codes = [np.zeros(rows, np.int64) for _ in space.factors]
            for r, column in zip(roots, grid, strict=True):
                codes[r] = column
            self.tables[key] = self._evaluate_in_slices(space, codes, rows)
        return self.tables[key]

    def _evaluate_in_slices(
        self, space: Product, codes: Sequence[NDArray[np.integer[Any]]], rows: int
    ) -> Any:
        """Return the value of each row; the memory of intermediate columns is bounded."""
        starts = range(0, max(rows, 1), _AT_ONCE)
        sliced = ([code[start : start + _AT_ONCE] for code in codes] for start in starts)
        found = [
            self._evaluate(space, some, min(rows - start, _AT_ONCE))
            for start, some in zip(starts, sliced, strict=True)
        ]
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if self.condition else pa.concat_arrays(found)

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


_LARGEST = 50 * TABLE  # largest group of factors whose combinations are all counted
_SAMPLE = 1 << 16  # points sampled of a larger group: a share of 0.1 is known to about 1 %


@dataclass(frozen=True)
class Counts:
    """Number of points that each constraint removes first; `about`: the sampled numbers."""

    removed: Mapping[str, int]
    about: frozenset[str] = frozenset()

    @property
    def in_words(self) -> list[str]:
        """One line per constraint.

        >>> Counts({"tp <= 4": 1200}, frozenset(["tp <= 4"])).in_words
        ['about 1,200 points excluded by constraint tp <= 4']
        """
        return [
            f"{'about ' * (text in self.about)}{counted(count, 'point')} "
            f"excluded by constraint {text}"
            for text, count in self.removed.items()
            if count
        ]


def counts_of(space: Product, rules: Sequence[Rule]) -> Counts:
    """Return the number of points that each constraint removes and no earlier one."""
    left = [(1, 1)] * len(rules)  # remaining and all combinations per group
    alive, removed, about = space.size, dict.fromkeys((r.text for r in rules), 0), set[str]()
    tallies: dict[int, tuple[int, tuple[int, int]]] = {}
    for group in coupled(rules):
        shares, exact = _tally(space, [rules[i] for i in group])
        about |= set() if exact else {rules[i].text for i in group}
        tallies |= {i: (group[0], share) for i, share in zip(group, shares, strict=True)}
    for i, rule in enumerate(rules):
        home, left[home] = tallies[i]
        still = space.size * math.prod(a for a, _ in left) // math.prod(b for _, b in left)
        removed[rule.text] += alive - still
        alive = still
    return Counts(removed, frozenset(about))


def coupled(rules: Sequence[Rule]) -> list[list[int]]:
    """Return the numbers of the rules in groups; rules of one group share factors."""
    groups: list[tuple[set[int], list[int]]] = []
    for i, rule in enumerate(rules):
        roots, members = set(rule.roots), [i]
        apart = []
        for group in groups:
            if group[0] & roots:
                roots, members = roots | group[0], [*group[1], *members]
            else:
                apart.append(group)
        groups = [*apart, (roots, members)]
    return [sorted(members) for _, members in groups]


def _tally(space: Product, rules: Sequence[Rule]) -> tuple[list[tuple[int, int]], bool]:
    """Return the share that remains after each rule, and whether the share is exact."""
    if _countable(space, rules):
        return [(int(np.count_nonzero(a)), a.size) for a in _alive(space, rules)], True
    points = np.random.default_rng(0).integers(space.size, size=_SAMPLE)
    met, shares = np.ones(_SAMPLE, bool), []
    for rule in rules:
        met &= rule.look_up(space, points)
        shares.append(
            (max(int(np.count_nonzero(met)), 1), _SAMPLE)
        )  # a sample cannot prove that no point remains
    return shares, False


def drawn(space: Product, rules: Sequence[Rule], random: np.random.Generator, count: int) -> Index:
    """Return `count` uniformly random point numbers that the rules allow.

    Each group of coupled factors is drawn from its allowed combinations, so that a small share of
    allowed points costs no time. A group that is too large is drawn from all combinations.
    """
    codes = [random.integers(len(factor), size=count) for factor in space.factors]
    for group in coupled(rules):
        judged = [rules[i] for i in group]
        roots = _roots(judged)
        if not roots or not _countable(space, judged):
            continue
        *_, alive = _alive(space, judged)
        if len(places := np.flatnonzero(alive)):
            found = np.unravel_index(places[random.integers(len(places), size=count)], alive.shape)
            for root, column in zip(roots, found, strict=True):
                codes[root] = column
    return number_of(codes, space.sizes)


def _alive(space: Product, rules: Sequence[Rule]) -> Iterator[Mask]:
    """Yield, after each rule, a mask of the remaining combinations of all factors."""
    roots = _roots(rules)
    sizes = [len(space.factors[r]) for r in roots]
    alive = np.ones(sizes, bool)
    for rule in rules:
        shape = [n if r in rule.roots else 1 for r, n in zip(roots, sizes, strict=True)]
        alive &= rule.on(space, rule.roots).reshape(shape)
        yield alive


def _roots(rules: Sequence[Rule]) -> list[int]:
    return sorted({r for rule in rules for r in rule.roots})


def _countable(space: Product, rules: Sequence[Rule]) -> bool:
    """Return whether tables of all rules, and of the rules together, are small enough."""
    whole = math.prod(len(space.factors[r]) for r in _roots(rules))
    tables = (math.prod(len(space.factors[r]) for r in rule.roots) for rule in rules)
    return whole <= _LARGEST and max(tables) <= 8 * TABLE
