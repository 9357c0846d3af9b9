"""Text, tables and bar charts of the HTML report."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import polars as pl

from simulators.core.errors import UserError
from simulators.core.fields import columns_of
from sweeper.query.analysis import sensitivity
from sweeper.query.pareto import qualifying
from sweeper.report.answers import Answers, real
from sweeper.report.browser.markup import bars, escaped, scrolled
from sweeper.report.evidence import Evidence
from sweeper.report.headlines import HEADER, headlines
from sweeper.report.words import reason_in_words
from sweeper.store.keys import SHOWN

_VIEWS = 16
"""Scenarios that the page contains, evenly spread, including the default scenario."""
_TABLE = 2_000
"""Designs of the front in the table; the picture shows all."""


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
        found, simulator = self.answers, self.answers.simulator
        metrics = columns_of(simulator.metrics)
        fields = (*columns_of(simulator.point), *metrics)
        doc = {f.name: str(f.metadata.get("doc", "")) for f in fields}
        named = [(n, "axis") for n in found.space.varied]
        named += [(n, "derived") for n in found.space.derived]
        named += [(f.name, "metric") for f in metrics]
        return {n: (role, found.units.get(n, ""), doc.get(n, "")) for n, role in named}

    @functools.cached_property
    def views(self) -> list[Content]:
        """Contents of the selectable scenarios with a front."""
        whole = self.whole
        if whole is None or not whole.given:
            return [self]
        every, own = whole.scenarios, dict(self.answers.scenario)
        spread = every[:: max(1, -(-len(every) // _VIEWS))]
        shown = [s for s in every if s in spread or s == own]
        found = [dataclasses.replace(self, answers=whole.within(s)) for s in shown if s != own]
        found.insert(shown.index(own), self)
        return [view for view in found if len(view.answers.front)]

    @functools.cached_property
    def place(self) -> int:
        """Index of the view shown first."""
        return next(place for place, view in enumerate(self.views) if view is self)

    def word(self, name: str) -> str:
        """Return the printed name of a column."""
        return self.answers.word(name)

    def sensitivity(self) -> str:
        """Return, for each objective, the share of its variance that each axis explains alone."""
        blocks, axes = [], list(self.answers.space.varied)
        for name in self.answers.objectives:
            try:
                found = sensitivity(self.answers.results, name, axes, where=self.answers.where)
            except UserError:
                continue
            shares = [
                (self.word(axis), share, f"{share:.0%}")
                for axis, share in found.indices.select("axis", "first_order").rows()
                if share >= 0.005
            ]
            shares.append(("interaction", found.interaction, f"{found.interaction:.0%}"))
            blocks.append(f"<h3>{escaped(self.word(name))}</h3>{bars(shares, 1.0)}")
        note = (
            '<p class="note">Share of the variance over qualifying designs that each axis explains '
            "alone (first-order Sobol index); the rest is interaction between axes.</p>"
        )
        return "".join(blocks) + note if blocks else '<p class="note">Too few designs.</p>'

    def waterfall(self) -> str:
        """Return the numbers of points from the whole space to the front."""
        found, space = self.answers, self.answers.space
        removed = space.removed()
        steps: list[tuple[str, float, str]] = [("points of the space", space.size, "")]
        left = space.size - sum(removed.values()) - sum(found.status.values())
        if left > 0:
            steps.append(("− not sampled", left, "lost"))
        steps += [(f"− {text}", count, "lost") for text, count in removed.items()]
        steps += [
            (f"− {reason_in_words(reason)}", count, "lost")
            for reason, count in found.reasons.items()
        ]
        steps.append(("feasible", found.status.get("ok", 0), ""))
        if found.where:
            met = qualifying(found.results, where=found.where).select(pl.len()).collect().item()
            steps.append((f"with {found.where}", met, ""))
        steps.append(("on the front", len(found.front), ""))
        return bars(
            [(label, count, f"{int(count):,}") for label, count, _ in steps],
            float(space.size),
            lost={label for label, _, kind in steps if kind},
        )

    def table(self) -> str:
        """Return the front as a table; `data-row` is the index of a design in the picture."""
        found, front = self.answers, self.answers.front
        chosen = [a for a in found.space.varied if front[a].n_unique() > 1]
        names = list(dict.fromkeys([*chosen, *found.objectives, "equivalents"]))
        same = [
            f"{escaped(self.word(a))} {self.human(a, front[a][0])}"
            for a in found.space.varied
            if a not in names
        ]
        head = '<th scope="col">design</th>' + "".join(map(self._sorts, names))
        kept = list(range(len(front)))
        if len(front) > _TABLE:
            kept = sorted({*range(0, len(front), -(-len(front) // _TABLE)), found.knee})
        lines = []
        for i in kept:
            row = front.row(i, named=True)
            cells = f"<td><code>{row['key'][:SHOWN]}</code></td>" + "".join(
                f'<td data-value="{escaped(row[n])}">{self.human(n, row[n])}</td>' for n in names
            )
            mark = ' class="chosen"' if i == found.knee else ""
            lines.append(f'<tr data-row="{i}" tabindex="0"{mark}>{cells}</tr>')
        said = [f"The table lists {len(kept):,} of {len(front):,} designs."] * (
            len(kept) < len(front)
        )
        said += [f"Same for every row: {', '.join(same)}."] * bool(same)
        return (f'<p class="note">{" ".join(said)}</p>' if said else "") + scrolled(head, lines)

    def _sorts(self, name: str) -> str:
        """Return the header cell of a sortable column."""
        doc = self.columns.get(name, ("", "", ""))[2] or name
        word = "equal designs" if name == "equivalents" else self.word(name)
        return (
            f'<th scope="col" aria-sort="none"><button type="button" data-sort="{escaped(name)}" '
            f'title="{escaped(doc)}">{escaped(word)}</button></th>'
        )

    def glossary(self) -> str:
        """Return the name, unit and description of each column."""
        lines = "".join(
            f"<dt>{escaped(self.word(name))} <code>{escaped(name)}</code></dt>"
            f"<dd>{escaped(doc)}{f' [{escaped(unit)}]' if unit else ''}</dd>"
            for name, (_role, unit, doc) in self.columns.items()
            if doc
        )
        return f"<dl>{lines}</dl>"

    def accuracy(self, names: Collection[str]) -> str:
        """Return the accuracy checks of the simulators, checks that contain `names` first."""
        if not self.evidence.checks:
            return '<p class="note">These simulators have no accuracy checks.</p>'
        head = '<th>check</th><th>value</th><th>limit</th><th>rows</th><th class="text">note</th>'
        lines, known = [], self.evidence.by_group
        here = self.evidence.errors_naming(names, len(self.evidence.checks))
        for check in dict.fromkeys([*here, *self.evidence.checks]):
            value = "-" if check.value is None else f"{check.value:.4g} {escaped(check.unit)}"
            verdict = {None: "", True: "ok", False: "missed"}[check.ok]
            said = f" ({check.verdict})" if check.ok is False else ""
            limit = "" if check.limit is None else f"{check.limit:g}"
            lines.append(
                f'<tr><td class="wrap">{escaped(check.name)}</td>'
                f'<td class="{verdict}">{value}{said}</td>'
                f"<td>{limit}</td><td>{check.rows:,}</td>"
                f'<td class="text wrap">{escaped(check.note)}</td></tr>'
            )
        claimed = [
            "".join(f'<td class="text wrap">{escaped(cell)}</td>' for cell in one.cells(known))
            for one in headlines()
            if one.group in self.evidence.groups
        ]
        titles = "".join(f'<th class="text">{escaped(title)}</th>' for title in HEADER)
        return (
            f'<p class="note">{self.evidence.in_short()}</p>'
            + scrolled(titles, [f"<tr>{cells}</tr>" for cells in claimed])
            + scrolled(head, lines)
        )

    def provenance(self) -> str:
        """Return simulator version, software versions, fixed inputs and result files."""
        found, space = self.answers, self.answers.space
        fixed = {n: v[0] for n, v in space.axes.items() if n not in space.varied and v[0]}
        versions = json.loads((found.folder / "versions.json").read_text(encoding="utf-8"))
        said = {
            "simulator": f"{space.simulator}, version {found.simulator.version}",
            "results": f"{found.store.results}/*.parquet",
            **versions,
            "fixed": json.dumps(fixed, default=str),
        }
        lines = "".join(f"<dt>{escaped(k)}</dt><dd>{escaped(str(v))}</dd>" for k, v in said.items())
        return f"<dl>{lines}</dl>"

    def quantiles(self) -> dict[str, list[tuple[float, str]]]:
        """Return latencies with three or more quantiles: stem to quantiles and columns."""
        found: dict[str, list[tuple[float, str]]] = {}
        for name in self.columns:
            if match := re.fullmatch(r"(.+)_(?:p(\d\d)|(max))_s", name):
                share = 1.0 if match[3] else int(match[2]) / 100
                found.setdefault(match[1], []).append((share, name))
        return {stem: sorted(points) for stem, points in found.items() if len(points) >= 3}

    def human(self, name: str, value: Any) -> str:
        """Return a value with its unit, escaped for HTML."""
        unit = self.answers.units.get(name, "")
        return escaped(self.answers.scaled(name, real(value) if unit else value))
