"""Read the results of a space from the store: Pareto front, knee, counts and units."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from simulators.core.columns import schema_of
from simulators.core.contract import Notes, Reprices, Simulator, load_simulator
from simulators.core.errors import UserError, listed, suggestion, unknown
from simulators.core.fields import columns_of
from sweeper.query.analysis import Sensitivity, sensitivities
from sweeper.query.pareto import (
    alike,
    knee,
    pareto_front,
    qualifying,
    rows_at,
    sampled,
    unstated,
)
from sweeper.query.scenarios import WORST, across, priced, repriced, scenarios_of
from sweeper.questions import CarriesLoad
from sweeper.report.run_folder import DamagedRun, asked, has_ended, rows_of, runs, url_of
from sweeper.report.scatter import Picture, plot
from sweeper.space.design_space import DesignSpace, Objectives, given, objectives, where
from sweeper.space.shipped_files import scenarios, spaces
from sweeper.space.space_file import SpaceConfig
from sweeper.store.keys import SHOWN, Definition, begin_with, keys
from sweeper.store.store import Store
from sweeper.text import human, in_words, reason_in_words

KNEE = "knee"
"""Alias of the key of the front's knee."""
_FEW = 3
"""Most values of an axis that the progress of an unfinished run lists."""
_IN_MEMORY = 2_000_000
"""Most rows that are kept in memory."""
_SAMPLED = 500_000
"""Rows of which sensitivities are computed, where more qualify: their error is about 0.15 %."""


@dataclass(frozen=True)
class Answers:
    """Results of the last run of a space.

    Each combination of values of `given` axes is a scenario with a separate front. `each` yields
    the results per scenario, `at` selects scenarios, and `across` evaluates one design for all
    scenarios. Without a selection, the knee of the scenario `usual` is used.
    """

    name: str
    space: DesignSpace
    store: Store
    wanted: Objectives
    where: str | None  # the condition designs on the front must meet
    folder: Path  # of the run
    given: tuple[str, ...] = ()  # axes that vary and are not chosen
    scenario: Mapping[str, Any] = field(default_factory=dict)  # selected values of given axes
    how: str = ""  # aggregation over scenarios: worst or mean
    scanned: pl.LazyFrame | None = field(default=None, compare=False)  # rows, if selected already

    @functools.cached_property
    def simulator(self) -> Simulator:
        """The simulator."""
        return load_simulator(self.space.simulator)

    @functools.cached_property
    def results(self) -> pl.LazyFrame:
        """All rows, once per price list."""
        rows = self.scanned
        return repriced(rows_of(self.store, self.space), self.space) if rows is None else rows

    def in_prices(self, lists: str | None) -> Answers:
        """Return the results at other price lists; `lists` are names separated by commas."""
        if not lists:
            return self
        axes = {"prices": lists.split(","), "usd_per_gpu_hour": None}
        simulator = self.simulator
        if not isinstance(simulator, Reprices) or "prices" not in simulator.priced:
            raise UserError(f"designs of '{self.space.simulator}' have no costs")
        space = priced(self.space, {n: axes[n] for n in simulator.priced if n in axes})
        others = [n for n in self.given if n not in simulator.priced]
        known = [n for n in simulator.priced if n in space.varied]
        return dataclasses.replace(self, space=space, given=(*others, *known))

    @functools.cached_property
    def unfinished(self) -> str:
        """The progress of an unfinished run, and axes with few values so far."""
        if has_ended(self.folder):
            return ""
        done = self.store.scan()
        seen = done.select(pl.len(), *(pl.col(n).unique().implode() for n in self.space.varied))
        rows = seen.collect().to_dicts()[0]
        count, lacking = rows.pop("len"), []
        for name, values in rows.items():
            if values and len(values) < len(set(self.space.axes[name])) and len(values) <= _FEW:
                ordered = [v for v in dict.fromkeys(self.space.axes[name]) if v in values]
                said = " and ".join(self.human(name, v) for v in ordered)
                lacking.append(f"so far only {name} {said}")
        total = f" of {self.points:,}" if self.points else ""
        return f"{count:,}{total} points done" + "".join(f", {said}" for said in lacking)

    @functools.cached_property
    def others(self) -> list[str]:
        """Other definitions of the space that were run, latest first."""
        files = sorted(self.folder.parent.glob("*/definition.json"), reverse=True)
        found = dict.fromkeys(definition_in(file) for file in files)
        return [digits for digits in found if digits not in ("", self.store.definition.id)]

    @property
    def points(self) -> int | None:
        """Number of points of the run, if known at its start."""
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        points = config.get("points")
        return None if points is None else int(points)

    @functools.cached_property
    def scenarios(self) -> list[dict[str, Any]]:
        """Scenarios with results, in the order of the axes; one is empty without given axes."""
        return scenarios_of(self.results, self.given, self.space.axes)

    def within(self, scenario: Mapping[str, Any], rows: pl.LazyFrame | None = None) -> Answers:
        """Return the results of the scenarios with these values of given axes."""
        if not scenario:
            return self
        return dataclasses.replace(
            self,
            space=self.space.at(scenario),
            given=tuple(n for n in self.given if n not in scenario),
            scenario={**self.scenario, **scenario},
            scanned=self.results.filter(alike(scenario, scenario)) if rows is None else rows,
        )

    @functools.cached_property
    def loaded(self) -> Answers:
        """The results with all rows in memory; as they are if there are too many rows."""
        if self.results.select(pl.len()).collect().item() > _IN_MEMORY:
            return self
        return dataclasses.replace(self, scanned=self.results.collect().lazy())

    def each(self) -> Iterator[Answers]:
        """Yield the results of each scenario."""
        if not self.given:
            yield self
            return
        whole = None
        if self.results.select(pl.len()).collect().item() <= _IN_MEMORY:
            whole = self.results.collect().partition_by(list(self.given), as_dict=True)
        for scenario in self.scenarios:
            rows = None if whole is None else whole[tuple(scenario.values())].lazy()
            yield self.within(scenario, rows)

    @functools.cached_property
    def usual(self) -> Answers:
        """Results of the middle scenario, or of the next scenario with a front."""
        middle = len(self.scenarios) // 2
        outward = sorted(range(len(self.scenarios)), key=lambda i: abs(i - middle))
        found = [self.within(self.scenarios[i]) for i in outward]
        return next((one for one in found if len(one.front)), next(iter(found), self))

    def at(self, text: str | None) -> Answers:
        """Return the results of the scenarios selected by text such as `qps=4,model=gpt2`.

        Raises:
            UserError: unknown axis or value.
        """
        chosen: dict[str, Any] = {}
        for word in filter(None, (text or "").split(",")):
            name, _, value = word.partition("=")
            if name not in self.given:
                raise unknown(
                    f"'{word}': '{name}' is not a scenario axis", name, self.given, "Scenario axes"
                )
            values = list(dict.fromkeys(self.space.axes[name]))
            spelt = {self.human(name, v): v for v in values} | {str(v): v for v in values}
            spelt |= {f"{v:g}": v for v in values if isinstance(v, float)}
            if value not in spelt:
                message = f"'{word}': {name} does not take the value '{value}'"
                raise unknown(message, value, [self.human(name, v) for v in values], "Values")
            chosen[name] = spelt[value]
        return self.within(chosen)

    def asking(self, wanted: Objectives, condition: str | None) -> Answers:
        """Return the results for other objectives and another condition."""
        given, rows = tuple(n for n in self.given if n not in wanted), self.results
        return dataclasses.replace(self, wanted=wanted, where=condition, given=given, scanned=rows)

    def across(self, how: str = WORST) -> Answers:
        """Return results of designs over all scenarios: the worst or mean of each objective."""
        if not self.given:
            return self
        chosen = [n for n in self.space.axes if n not in self.given]
        rows = (
            across(self.results, self.given, chosen, self.objectives, where=self.where, how=how)
            .collect()
            .lazy()
        )
        return dataclasses.replace(
            self,
            space=self.space.at(self.scenarios[0]),
            given=(),
            how=how,
            where=None,
            scanned=rows,
        )

    @property
    def asked(self) -> str:
        """The scenario as text; empty if there is only one."""
        if self.how:
            return f"all scenarios together, {self.how} value of each objective"
        return ", ".join(f"{n}={self.human(n, v)}" for n, v in self.scenario.items())

    @property
    def title(self) -> str:
        """The name of the space and the scenario."""
        return f"{self.name}, {self.asked}" if self.asked else self.name

    @functools.cached_property
    def objectives(self) -> Objectives:
        """The objectives with values; for example, unpriced designs have no cost."""
        silent = unstated(self.results, self.wanted, where=self.where)
        return {n: d for n, d in self.wanted.items() if n not in silent} or self.wanted

    @functools.cached_property
    def front(self) -> pl.DataFrame:
        """The Pareto front of each scenario, with the designs' keys."""
        found = pareto_front(self.results, self.objectives, where=self.where, per=self.given)
        return self.named(found)

    @functools.cached_property
    def knees(self) -> pl.DataFrame:
        """The knee of each scenario's front; `designs` is the size of the front."""
        groups = (
            self.front.partition_by(self.given, as_dict=True) if self.given else {(): self.front}
        )
        rows = [
            front[[knee(front, self.objectives)]].with_columns(designs=pl.lit(len(front)))
            for front in (groups.get(tuple(s.values())) for s in self.scenarios)
            if front is not None and len(front)
        ]
        return pl.concat(rows) if rows else self.front.with_columns(designs=pl.lit(0))

    @functools.cached_property
    def knee(self) -> int:
        """The row of the knee on the front of one scenario."""
        assert not self.given, "each scenario has a knee of its own"
        return knee(self.front, self.objectives)

    @property
    def best(self) -> dict[str, Any]:
        """The design at the knee."""
        return self.front.row(self.knee, named=True)

    @functools.cached_property
    def status(self) -> dict[str, int]:
        """Rows by status."""
        status = self.results.group_by(pl.col("status").cast(pl.String)).len()
        counted = status.collect(engine="streaming")
        return dict(sorted(counted.rows()))

    @functools.cached_property
    def reasons(self) -> dict[str, int]:
        """Number of rows that are not `ok` by code of the reason, most frequent first."""
        word = pl.col("reason").cast(pl.String).str.split(":").list.first()
        rows = self.results.filter(pl.col("reason").is_not_null())
        counted = rows.group_by(word).len().collect(engine="streaming")
        return dict(sorted(counted.rows(), key=lambda row: -row[1]))

    @property
    def reasons_in_words(self) -> list[str]:
        """The reasons as sentences with the number of points and an example."""
        texts = self.results.filter(pl.col("reason").is_not_null())
        word = pl.col("reason").cast(pl.String)
        said = texts.group_by(word.str.split(":").list.first().alias("word")).agg(word.min())
        sentences = {
            word: reason_in_words(example).replace(" (", " (example: ", 1)
            for word, example in said.collect().rows()
        }
        return [
            f"{n:,} point{'s' if n > 1 else ''}: {sentences[word]}."
            for word, n in self.reasons.items()
        ]

    def waterfall(self) -> list[tuple[str, int]]:
        """Return the numbers of points from the whole space to the front, with labels."""
        space, removed = self.space, self.space.removed()
        left = space.size - sum(removed.values()) - sum(self.status.values())
        steps = [("points of the space", space.size)]
        steps += [("− not sampled", left)] if left > 0 else []
        steps += [(f"− {text}", count) for text, count in removed.items()]
        steps += [(f"− {reason_in_words(r)}", count) for r, count in self.reasons.items()]
        steps.append(("feasible", self.status.get("ok", 0)))
        if self.where:
            steps.append((f"with {self.where}", self.qualified))
        return [*steps, ("on the front", len(self.front))]

    def plot(self) -> Picture:
        """Return a picture of all qualifying designs and the front, in the first two objectives.

        Raises:
            UserError: there is one objective, or no design qualifies.
        """
        return plot(self.results, dict(list(self.objectives.items())[:2]), where=self.where)

    def _repr_html_(self) -> str:
        """Return the title, the number of rows, the front as a table, and its picture."""
        counted = ", ".join(f"{count:,} {status}" for status, count in self.status.items())
        shown = ["key", *self.space.varied, *self.objectives]
        table = self.front.select(n for n in shown if n in self.front.columns)
        picture = ""
        with contextlib.suppress(UserError):
            picture = self.plot().svg
        heads = f"<b>{escape(self.title)}</b>: {escape(counted)}; {len(self.front):,} on the front"
        return f"<div>{heads}{table._repr_html_()}{picture}</div>"

    def sensitivities(self, metrics: Iterable[str]) -> list[Sensitivity]:
        """Return the sensitivity to the axes of each metric with at least two values.

        Of more than half a million qualifying rows, so many random rows are used.
        """
        known = set(self.results.collect_schema().names())
        named, axes = [metric for metric in metrics if metric in known], list(self.space.varied)
        rows = qualifying(self.results, where=self.where).select(
            list(dict.fromkeys([*axes, *named]))
        )
        if self.qualified > _SAMPLED:
            rows = pl.concat(sampled(rows, -(-self.qualified // _SAMPLED))).lazy()
        return [one for one in sensitivities(rows, named, axes) if one is not None]

    @functools.cached_property
    def qualified(self) -> int:
        """Number of feasible rows that meet the condition."""
        found = qualifying(self.results, where=self.where).select(pl.len())
        return int(found.collect(engine="streaming").item())

    @functools.cached_property
    def units(self) -> dict[str, str]:
        """The unit of each axis and metric."""
        fields = [*self.space.schema, *schema_of(self.simulator.metrics)]
        return {f.name: f.metadata[b"unit"].decode() for f in fields}

    @property
    def load(self) -> tuple[str, str] | None:
        """The load axis and the throughput metric, if any."""
        found = self.simulator
        return (found.load, found.throughput) if isinstance(found, CarriesLoad) else None

    @property
    def notes(self) -> Sequence[str]:
        """Notes of the simulator on its results."""
        axes = {name: tuple(dict.fromkeys(v)) for name, v in self.space.axes.items()}
        return self.simulator.notes(axes) if isinstance(self.simulator, Notes) else ()

    def human(self, name: str, value: Any) -> str:
        """Return a value of a column with its unit."""
        return human(value, self.units.get(name, ""))

    def word(self, name: str) -> str:
        """Return the name of a column in a sentence."""
        return in_words(name, self.units.get(name, ""))

    def scaled(self, name: str, value: Any) -> str:
        """Return a value with its unit; whole numbers of objectives also get a scaled unit."""
        return self.human(name, real(value) if name in self.objectives else value)

    def choices(self, row: Mapping[str, Any]) -> list[str]:
        """Return the values of a design on the axes that vary."""
        return [f"{a}={self.human(a, row[a])}" for a in self.space.varied]

    def named(self, designs: pl.DataFrame) -> pl.DataFrame:
        """Return designs with their keys in front."""
        return designs.insert_column(0, keys(self.store.definition, designs))

    def design(self, prefix: str) -> tuple[str, dict[str, Any]]:
        """Return key and row of the design whose key starts with `prefix`, or of the `knee`."""
        if prefix == KNEE:
            if self.usual.front.is_empty():
                raise UserError("no design qualifies, so there is no knee")
            row = {n: v for n, v in self.usual.best.items() if n != "equivalents"}
            return row.pop("key"), row
        definition = self.store.definition
        found = begin_with(definition, self.results, prefix)
        if len(found) != 1:
            what = "several keys start" if len(found) else "no key starts"
            others = begin_with(definition, self.results, prefix[:2])["key"][:5].str.head(SHOWN)
            near = ", ".join(others)
            raise UserError(f"{what} with '{prefix}'" + (f"\nSimilar keys: {near}" if near else ""))
        return found["key"][0], rows_at(self.results, found["__row"]).drop("__row").to_dicts()[0]


def point_of(simulator: Simulator, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of the simulator in a row."""
    return {f.name: row[f.name] for f in columns_of(simulator.point) if f.name in row}


def real(value: Any) -> Any:
    """Return a whole number as a float, which `human` prints with a scaled unit."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def latest(name: str, outputs: str) -> Answers:
    """Return the results of the last run of a space.

    Runs with overridden axes have other definitions; `NAME@DIGITS` selects one definition. Damaged
    runs are skipped with a warning.
    """
    name, _, mark = name.partition("@")
    folders = runs(outputs, name)
    if mark:
        known = [definition_in(run / "definition.json") for run in folders]
        folders = [run for run, own in zip(folders, known, strict=True) if own.startswith(mark)]
        if known and not folders:
            raise unknown(
                f"no run of '{name}' has the definition {mark}", mark, list(dict.fromkeys(known))
            )
    for folder in reversed(folders):
        try:
            stored, written = asked(folder)
            store = Store(f"{url_of(folder) or outputs}/{name}", stored)
            return answers_to(written, stored.as_defined_now, store, folder, name)
        except DamagedRun as error:
            if folder is folders[0]:
                raise
            warnings.warn(str(error), stacklevel=2)
    known = sorted(p.parent.name for p in Path(outputs).glob("*/runs"))
    missing = f"there are no results of '{name}' under {outputs}{suggestion(name, known)}"
    if name in spaces() or name in scenarios():
        missing += f"; run  python -m sweeper +space={name}"
    raise UserError(f"{missing}\nResults there: {listed(name, known)}")


def definition_in(file: Path) -> str:
    """Return the digits of the definition of a run; empty if its file is damaged."""
    try:
        return Definition.from_json(file.read_text(encoding="utf-8")).id
    except (OSError, ValueError):
        return ""


def answers_to(
    written: SpaceConfig, space: DesignSpace, store: Store, folder: Path, name: str
) -> Answers:
    """Return the results of a space with rows in a store."""
    space = priced(space, written.axes)
    wanted = objectives(written, space)
    condition, known = where(written, space), given(written, space, wanted)
    return Answers(name, space, store, wanted, condition, folder, known)


def stacked(tables: Sequence[tuple[Answers, pl.DataFrame]]) -> pl.DataFrame:
    """Concatenate tables; axes fixed by a scenario become columns."""
    kinds = {name: kind for _, table in tables for name, kind in table.schema.items()}
    whole = []
    for one, table in tables:
        fixed = [
            pl.lit(one.space.axes[name][0] if name in one.space.axes else None)
            .cast(kind)
            .alias(name)
            for name, kind in kinds.items()
            if name not in table.columns
        ]
        whole.append(table.with_columns(fixed).select(list(kinds)))
    return pl.concat(whole, how="vertical_relaxed")
