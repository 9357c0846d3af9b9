"""What the HTML report says of a sweep in words, tables and bars."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from simulators.core.errors import UserError
from sweeper.query.pareto import alike, qualifying
from sweeper.query.sensitivity import sensitivity
from sweeper.query.uncertainty import probable_front
from sweeper.report.answers import Answers
from sweeper.report.evidence import Evidence
from sweeper.report.headlines import HEAD, headlines_of
from sweeper.store.keys import SHOWN

_TABLE = 100
"""Designs of the front that stand in the table; all of them are in the picture."""
_DRAWS = 400


@dataclass(frozen=True)
class Content:
    """A sweep that has a front, and what is known of how it came about."""

    answers: Answers
    question: str  # what the space asks, in words
    evidence: Evidence  # accuracy of the simulators behind the results
    band: float  # half the 90 % interval of objectives for which the simulator states none
    whole: Answers | None = None  # the answers to all scenarios, where there are several

    @functools.cached_property
    def columns(self) -> dict[str, tuple[str, str, str]]:
        """The columns a page may draw: name to role, unit and one sentence."""
        found, simulator = self.answers, self.answers.simulator
        metrics = dataclasses.fields(simulator.metrics)
        fields = (*dataclasses.fields(simulator.point), *metrics)
        doc = {f.name: str(f.metadata.get("doc", "")) for f in fields}
        named = [(n, "axis") for n in found.space.varied]
        named += [(n, "derived") for n in found.space.derived]
        named += [(f.name, "metric") for f in metrics]
        return {n: (role, found.units.get(n, ""), doc.get(n, "")) for n, role in named}

    def answer(self) -> str:
        """Return the answer: which design, how much, how sure."""
        found, row = self.answers, self.answers.best
        design = ", ".join(f"<b>{_e(a)} {self._human(a, row[a])}</b>" for a in found.space.varied)
        tiles = "".join(
            f'<div class="tile"><b>{self._human(n, row[n])}</b><span>{_e(n)}</span></div>'
            for n in found.objectives
        )
        sure, why = self._sure()
        tiles += f'<div class="tile"><b>{sure}</b><span>likely to be on the front</span></div>'
        asked = f"For {_e(found.asked)}: take" if found.asked else "Take"
        return (
            f'{self._scenarios()}<p class="says">{asked} {design}.</p>'
            f'<div class="tiles">{tiles}</div>'
            f"<p>{self._why()} {_e(why)} {self.evidence.in_short()}</p>"
            f"<p>{self._best_of_each()}</p>"
            f'<p class="note">{" ".join(map(_e, found.notes))}</p>'
            f"<p><code>python -m sweeper show {_e(found.name)} {row['key'][:SHOWN]}</code></p>"
        )

    def _scenarios(self) -> str:
        """Return which design each scenario takes, where there are several."""
        if self.whole is None or not self.whole.given:
            return ""
        whole, knees = self.whole, self.whole.knees
        chosen = [n for n in whole.space.varied if n not in whole.given]
        names = [*whole.given, *chosen, *whole.objectives]
        head = "".join(f"<th>{_e(n)}</th>" for n in names)
        step = max(1, -(-len(knees) // _TABLE))
        lines = [
            "<tr>" + "".join(f"<td>{self._human(n, row[n])}</td>" for n in names) + "</tr>"
            for row in knees.gather_every(step).iter_rows(named=True)
        ]
        note = (
            f'<p class="note">Of {len(whole.scenarios):,} scenarios ({", ".join(whole.given)}) '
            "each has a front of its own; this is the knee of each. All below is of one of them; "
            "<code>--at</code> chooses another, <code>--across</code> one design for all.</p>"
        )
        return _scrolled(head, lines) + note

    def _why(self) -> str:
        found = self.answers
        equal = found.best["equivalents"]
        others = f" {equal - 1:,} further designs measure exactly the same." if equal > 1 else ""
        met = f" among those with <code>{_e(found.where)}</code>" if found.where else ""
        return (
            f"It is the knee of the Pareto front: of {len(found.front):,} designs that nothing "
            f"beats in {_listed(list(found.objectives))} together{met}, it is nearest to the best "
            f"of each.{others}"
        )

    def _sure(self) -> tuple[str, str]:
        """Return the probability that the chosen design is on the front, and what it rests on."""
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
            return "-", ""
        match = likely.filter(alike(found.best, found.space.axes))
        share = float(match["p_front"][0]) if len(match) else 0.0
        source = (
            "by the intervals the simulator states"
            if not bands
            else f"if each objective of each design errs by up to {self.band:.0%} on its own, "
            "nine times in ten"
        )
        return f"{share:.0%}", f"That share of draws keeps it on the front {source}."

    def _best_of_each(self) -> str:
        said, front, best = [], self.answers.front, self.answers.best
        for name, direction in self.answers.objectives.items():
            value = front[name].min() if direction == "min" else front[name].max()
            row = front.filter(pl.col(name) == value).row(0, named=True)
            differs = [
                f"{_e(a)} {self._human(a, row[a])}"
                for a in self.answers.space.varied
                if row[a] != best[a]
            ]
            how = " with " + ", ".join(differs) if differs else ", the same design"
            word = "Lowest" if direction == "min" else "Highest"
            said.append(f"{word} {_e(name)}: {self._human(name, value)}{how}.")
        return " ".join(said)

    def sensitivity(self) -> str:
        """Return, for each objective, the share of its variance that each axis explains alone."""
        blocks, axes = [], list(self.answers.space.varied)
        for name in self.answers.objectives:
            try:
                found = sensitivity(self.answers.results, name, axes, where=self.answers.where)
            except UserError:
                continue
            bars = [
                (axis, share, f"{share:.0%}")
                for axis, share in found.indices.select("axis", "first_order").rows()
                if share >= 0.005
            ]
            bars.append(("axes together", found.interaction, f"{found.interaction:.0%}"))
            blocks.append(f"<h3>{_e(name)}</h3>{_bars(bars, 1.0)}")
        note = (
            '<p class="note">Share of the variance over qualifying designs that each axis explains '
            "by itself (first-order Sobol index); what is left is the axes acting together.</p>"
        )
        return "".join(blocks) + note if blocks else '<p class="note">Too few designs to say.</p>'

    def waterfall(self) -> str:
        """Return what became of the points, from the whole space to the front."""
        found, space = self.answers, self.answers.space
        removed = space.removed()
        bars: list[tuple[str, float, str]] = [("points of the space", space.size, "")]
        left = space.size - sum(removed.values()) - sum(found.status.values())
        if left > 0:
            bars.append(("− not sampled", left, "lost"))
        bars += [(f"− {text}", count, "lost") for text, count in removed.items()]
        bars += [(f"− {reason}", count, "lost") for reason, count in found.reasons.items()]
        bars.append(("feasible", found.status.get("ok", 0), ""))
        if found.where:
            met = qualifying(found.results, where=found.where).select(pl.len()).collect().item()
            bars.append((f"with {found.where}", met, ""))
        bars.append(("on the front", len(found.front), ""))
        return _bars(
            [(label, count, f"{int(count):,}") for label, count, _ in bars],
            float(space.size),
            lost={label for label, _, kind in bars if kind},
        )

    def table(self) -> str:
        """Return the front, the chosen design marked; rows refer to the picture by number."""
        found, front = self.answers, self.answers.front
        chosen = [a for a in found.space.varied if front[a].n_unique() > 1]
        names = [*chosen, *found.objectives, "equivalents"]
        head = "".join(f"<th>{_e(n)}</th>" for n in ("key", *names))
        step = max(1, -(-len(front) // _TABLE))
        kept = sorted({*range(0, len(front), step), found.knee})
        lines = []
        for i in kept:
            row = front.row(i, named=True)
            cells = f"<td><code>{row['key'][:SHOWN]}</code></td>" + "".join(
                f"<td>{self._human(n, row[n])}</td>" for n in names
            )
            mark = ' class="chosen"' if i == found.knee else ""
            lines.append(f'<tr data-row="{i}" tabindex="0"{mark}>{cells}</tr>')
        more = f'<p class="note">{len(kept)} of {len(front)} designs of the front.</p>'
        return _scrolled(head, lines) + (more if step > 1 else "")

    def accuracy(self) -> str:
        """Return the checks of the simulators that were used, on rows outside their fits."""
        if not self.evidence.checks:
            return '<p class="note">No accuracy table travels with these simulators.</p>'
        head = '<th>check</th><th>value</th><th>limit</th><th>rows</th><th class="text">note</th>'
        lines, known = [], self.evidence.by_room
        for check in self.evidence.checks:
            value = "-" if check.value is None else f"{check.value:.4g} {_e(check.unit)}"
            verdict = {None: "", True: "ok", False: "missed"}[check.ok]
            said = f" ({check.verdict})" if check.ok is False else ""
            limit = "" if check.limit is None else f"{check.limit:g}"
            lines.append(
                f'<tr><td class="wrap">{_e(check.name)}</td>'
                f'<td class="{verdict}">{value}{said}</td>'
                f'<td>{limit}</td><td>{check.rows:,}</td><td class="text wrap">{_e(check.note)}'
                "</td></tr>"
            )
        claimed = [
            "".join(f'<td class="text wrap">{_e(cell)}</td>' for cell in one.cells(known))
            for one in headlines_of(self.evidence)
        ]
        titles = "".join(f'<th class="text">{_e(title)}</th>' for title in HEAD)
        return (
            f'<p class="note">{self.evidence.in_short()}</p>'
            + _scrolled(titles, [f"<tr>{cells}</tr>" for cells in claimed])
            + _scrolled(head, lines)
        )

    def provenance(self) -> str:
        """Return what the results were made with and where they are."""
        found, space = self.answers, self.answers.space
        fixed = {n: v[0] for n, v in space.axes.items() if n not in space.varied and v[0]}
        versions = json.loads((found.folder / "versions.json").read_text(encoding="utf-8"))
        said = {
            "simulator": f"{space.simulator}, version {found.simulator.version}",
            "results": f"{found.store.results}/*.parquet",
            **versions,
            "fixed": json.dumps(fixed, default=str),
        }
        lines = "".join(f"<dt>{_e(k)}</dt><dd>{_e(str(v))}</dd>" for k, v in said.items())
        return f"<dl>{lines}</dl>"

    def quantiles(self) -> dict[str, list[tuple[float, str]]]:
        """Return the latencies of which several quantiles are columns: stem to share and column."""
        found: dict[str, list[tuple[float, str]]] = {}
        for name in self.columns:
            if match := re.fullmatch(r"(.+)_(?:p(\d\d)|(max))_s", name):
                share = 1.0 if match[3] else int(match[2]) / 100
                found.setdefault(match[1], []).append((share, name))
        return {stem: sorted(points) for stem, points in found.items() if len(points) >= 3}

    def _human(self, name: str, value: Any) -> str:
        return _e(self.answers.scaled(name, value))


def _e(text: object) -> str:
    return html.escape(str(text))


def _listed(names: Sequence[str]) -> str:
    words = [f"<code>{_e(n)}</code>" for n in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _scrolled(head: str, lines: Sequence[str]) -> str:
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _bars(
    bars: Sequence[tuple[str, float, str]],
    whole: float,
    *,
    lost: frozenset[str] | set[str] = frozenset(),
) -> str:
    """Return horizontal bars: label, length, and the amount in words."""
    lines = []
    for label, amount, said in bars:
        kind = "fill lost" if label in lost else "fill"
        width = f"{100 * amount / whole if whole else 0:.2f}%"
        lines.append(
            f'<span>{_e(label)}</span><div class="track"><div class="{kind}" style="width:{width}">'
            f'</div></div><span class="amount">{_e(said)}</span>'
        )
    return f'<div class="bars">{"".join(lines)}</div>'
