"""Data of the HTML report that the template `page.html` prints: one `Content` per scenario."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from simulators.core.checks import Check
from simulators.core.errors import UserError
from simulators.core.fields import columns_of
from sweeper.query.pareto import alike
from sweeper.query.uncertainty import probable_front
from sweeper.report.answers import Answers, real
from sweeper.report.evidence import (
    Evidence,
    named_facts,
    shares_in_words,
    shares_of_row,
    weakest_in_words,
)

_VIEWS = 16
"""Scenarios that the page contains, evenly spread, including the default scenario."""
_TABLE = 2_000
"""Designs of the front in the table; the picture shows all."""
_SCENARIOS = 500
"""Scenarios in the table of knees, evenly spread."""
_DRAWS = 400


def described(answers: Answers) -> dict[str, tuple[str, str, str]]:
    """Return the columns of a sweep that vary: name to role, unit and description."""
    simulator = answers.simulator
    metrics = columns_of(simulator.metrics)
    doc = {f.name: f.metadata.get("doc", "") for f in (*columns_of(simulator.point), *metrics)}
    roles = dict.fromkeys(answers.space.varied, "axis")
    roles |= dict.fromkeys(answers.space.derived, "derived")
    roles |= {f.name: "metric" for f in metrics}
    return {n: (role, answers.units.get(n, ""), doc.get(n, "")) for n, role in roles.items()}


@dataclass(frozen=True)
class Content:
    """A sweep with a front, its accuracy checks and its scenarios."""

    answers: Answers
    question: str  # the question that the space answers
    evidence: Evidence  # accuracy of the simulators behind the results
    band: float  # half-width of 90 % intervals where the simulator states none
    whole: Answers | None = None  # results of all scenarios, if there are several

    @functools.cached_property
    def columns(self) -> dict[str, tuple[str, str, str]]:
        """Columns of the page: name to role, unit and description."""
        return described(self.answers)

    @functools.cached_property
    def views(self) -> list[Content]:
        """Contents of the selectable scenarios with a front."""
        whole = self.whole
        if whole is None or not whole.given:
            return [self]
        every, own = whole.scenarios, dict(self.answers.scenario)
        spread = every[:: max(1, -(-len(every) // _VIEWS))]
        shown = [s for s in every if s in spread or s == own]
        found = [
            dataclasses.replace(self, answers=whole.within(s).loaded) for s in shown if s != own
        ]
        found.insert(shown.index(own), self)
        return [view for view in found if len(view.answers.front)]

    @functools.cached_property
    def place(self) -> int:
        """Index of the view shown first."""
        return next(place for place, view in enumerate(self.views) if view is self)

    def scenario_values(self, name: str) -> list[str]:
        """Return the selectable values of a scenario axis."""
        values = (v.answers.human(name, v.answers.scenario[name]) for v in self.views)
        return list(dict.fromkeys(values))

    def word(self, name: str) -> str:
        """Return the printed name of a column."""
        return self.answers.word(name)

    def human(self, name: str, value: Any) -> str:
        """Return a value with its unit."""
        unit = self.answers.units.get(name, "")
        return self.answers.scaled(name, real(value) if unit else value)

    @functools.cached_property
    def evidence_of_time(self) -> str:
        """Return the knee's time by evidence level; empty if the rows state no levels."""
        best = self.answers.best
        said = shares_in_words(shares_of_row(best))
        return said and said + weakest_in_words(self.answers.simulator, best)

    def errors_here(self) -> tuple[list[str], list[Check]]:
        """Return the model and the GPU of the knee, and the accuracy checks that name them."""
        names = named_facts(self.answers.simulator, self.answers.best)
        return names, self.evidence.errors_naming(names)

    @functools.cached_property
    def p_front(self) -> tuple[float | None, list[str]]:
        """P(on the front) of the knee, None if undefined, and objectives with assumed intervals."""
        found = self.answers
        stated = [
            n
            for n in found.objectives
            if f"{n}_lo" in found.front.columns and not found.front[f"{n}_lo"].has_nulls()
        ]
        bands = {n: self.band for n in found.objectives if n not in stated}
        try:
            likely = probable_front(
                found.results, found.objectives, bands, where=found.where, draws=_DRAWS, limit=5_000
            )
        except UserError:  # an objective that no logarithm describes
            return None, list(bands)
        match = likely.filter(alike(found.best, found.space.axes))
        return float(match["p_front"][0]) if len(match) else 0.0, list(bands)

    def best_by(self, name: str) -> Mapping[str, Any]:
        """Return the design of the front with the best value of one objective."""
        column = self.answers.front[name]
        best = column.min() if self.answers.objectives[name] == "min" else column.max()
        return self.answers.front.filter(pl.col(name) == best).row(0, named=True)

    def knees(self) -> list[dict[str, Any]]:
        """Return the knees of all scenarios; `view` is the index of the scenario's view, if any."""
        assert self.whole is not None
        given, table = self.whole.given, self.whole.knees
        places = {
            tuple(view.answers.scenario[n] for n in given): place
            for place, view in enumerate(self.views)
        }
        shown = table.gather_every(max(1, -(-len(table) // _SCENARIOS)))
        return [
            {**row, "view": places.get(tuple(row[n] for n in given))}
            for row in shown.iter_rows(named=True)
        ]

    def sensitivities(self) -> list[tuple[str, list[tuple[str, float]], int]]:
        """Return, for each objective, the share of its variance that each axis explains alone.

        The last value is the number of designs, which may be a random sample.
        """
        blocks = []
        for found in self.answers.sensitivities(self.answers.objectives):
            shares = [
                (self.word(axis), share)
                for axis, share in found.indices.select("axis", "first_order").rows()
                if share >= 0.005
            ]
            shares.append(("interaction", found.interaction))
            blocks.append((self.word(found.metric), shares, found.rows))
        return blocks

    @property
    def table_columns(self) -> list[str]:
        """Columns of the table of the front: axes that differ, and objectives."""
        found, front = self.answers, self.answers.front
        differing = [a for a in found.space.varied if front[a].n_unique() > 1]
        return list(dict.fromkeys([*differing, *found.objectives, "equivalents"]))

    def table_rows(self) -> list[tuple[int, dict[str, Any]]]:
        """Return rows of the front, evenly spread, with their indices in the picture."""
        front = self.answers.front
        step = max(1, -(-len(front) // _TABLE))
        kept = sorted({*range(0, len(front), step), self.answers.knee})
        return [(i, front.row(i, named=True)) for i in kept]

    def checks(self) -> list[Check]:
        """Return the accuracy checks of the simulators, those that name the knee's parts first."""
        names, checks = self.errors_here()[0], self.evidence.checks
        return list(dict.fromkeys([*self.evidence.errors_naming(names, len(checks)), *checks]))

    def provenance(self) -> dict[str, str]:
        """Return simulator version, software versions, fixed inputs and result files."""
        found, space = self.answers, self.answers.space
        fixed = {n: v[0] for n, v in space.axes.items() if n not in space.varied and v[0]}
        versions = json.loads((found.folder / "versions.json").read_text(encoding="utf-8"))
        return {
            "simulator": f"{space.simulator}, version {found.simulator.version}",
            "results": f"{found.store.results}/*.parquet",
            **versions,
            "fixed": json.dumps(fixed, default=str),
        }

    def quantiles(self) -> dict[str, list[tuple[float, str]]]:
        """Return latencies with three or more quantiles: stem to quantiles and columns."""
        found: dict[str, list[tuple[float, str]]] = {}
        for name in self.columns:
            if match := re.fullmatch(r"(.+)_(?:p(\d\d)|(max))_s", name):
                share = 1.0 if match[3] else int(match[2]) / 100
                found.setdefault(match[1], []).append((share, name))
        return {stem: sorted(points) for stem, points in found.items() if len(points) >= 3}
