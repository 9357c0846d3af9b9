"""What a page says of a sweep in words, tables and bars."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from simulators.core.contract import Direction, load_simulator
from simulators.core.errors import UserError
from sweeper import effects
from sweeper.commands.summary import notes_of, units_of
from sweeper.evidence import Evidence
from sweeper.query import knee
from sweeper.space import DesignSpace
from sweeper.uncertainty import probable_front
from sweeper.units import human

_TABLE = 100
"""Designs of the front that stand in the table; all of them are in the picture."""
_DRAWS = 400


@dataclass(frozen=True)
class Content:
    """A sweep that has a front, and what is known of how it came about.

    Args:
        name: of the space.
        question: what the space asks, in words.
        space: the space.
        objectives: column to direction.
        where: the condition designs must meet, if there is one.
        results: all rows.
        front: the front with the designs' keys.
        evidence: accuracy of the simulators behind the results.
        band: half the width of the 90 % interval that every objective is assumed to have, where
            the simulator states none.
        versions: what the results were made with.
        files: where the results are.
    """

    name: str
    question: str
    space: DesignSpace
    objectives: Mapping[str, Direction]
    where: str | None
    results: pl.LazyFrame
    front: pl.DataFrame
    evidence: Evidence
    band: float
    versions: Mapping[str, str]
    files: str

    @functools.cached_property
    def chosen(self) -> int:
        """The row of the front that the page recommends: its knee."""
        return knee(self.front, self.objectives)

    @functools.cached_property
    def columns(self) -> dict[str, tuple[str, str, str]]:
        """The columns a page may draw: name to role, unit and one sentence."""
        simulator = load_simulator(self.space.simulator)
        units = units_of(self.space)
        doc = {
            f.name: str(f.metadata.get("doc", ""))
            for kind in (simulator.point, simulator.metrics)
            for f in dataclasses.fields(kind)
        }
        metrics = [f.name for f in dataclasses.fields(simulator.metrics)]
        named = [(n, "axis") for n in self.space.varied]
        named += [(n, "derived") for n in self.space.derived]
        named += [(n, "metric") for n in metrics]
        return {n: (role, units.get(n, ""), doc.get(n, "")) for n, role in named}

    def answer(self) -> str:
        """Return the answer: which design, how much, how sure."""
        row = self.front.row(self.chosen, named=True)
        design = ", ".join(f"<b>{_e(a)} {self._human(a, row[a])}</b>" for a in self.space.varied)
        tiles = "".join(
            f'<div class="tile"><b>{self._human(n, row[n])}</b><span>{_e(n)}</span></div>'
            for n in self.objectives
        )
        sure, why = self._sure
        tiles += f'<div class="tile"><b>{sure}</b><span>likely to be on the front</span></div>'
        return (
            f'<p class="says">Take {design}.</p><div class="tiles">{tiles}</div>'
            f"<p>{self._why()} {_e(why)} {self.evidence.in_short()}</p>"
            f"<p>{self._best_of_each()}</p>"
            f'<p class="note">{" ".join(map(_e, notes_of(self.space)))}</p>'
            f"<p><code>python -m sweeper show {_e(self.name)} {row['key'][:10]}</code></p>"
        )

    def _why(self) -> str:
        equal = int(self.front["equivalents"][self.chosen])
        others = f" {equal - 1:,} further designs measure exactly the same." if equal > 1 else ""
        met = f" among those with <code>{_e(self.where)}</code>" if self.where else ""
        return (
            f"It is the knee of the Pareto front: of {len(self.front):,} designs that nothing "
            f"beats in {_listed(list(self.objectives))} together{met}, it is nearest to the best "
            f"of each.{others}"
        )

    @functools.cached_property
    def _sure(self) -> tuple[str, str]:
        """The probability that the chosen design is on the front, and what it rests on."""
        stated = [
            n
            for n in self.objectives
            if f"{n}_lo" in self.front.columns and not self.front[f"{n}_lo"].has_nulls()
        ]
        bands = {n: self.band for n in self.objectives if n not in stated}
        try:
            likely = probable_front(
                self.results, self.objectives, bands, where=self.where, draws=_DRAWS, limit=5_000
            )
        except UserError:  # an objective that no logarithm describes
            return "-", ""
        row = self.front.row(self.chosen, named=True)
        names = [*self.space.axes]
        match = likely.filter(pl.all_horizontal(pl.col(n).eq_missing(row[n]) for n in names))
        share = float(match["p_front"][0]) if len(match) else 0.0
        source = (
            "by the intervals the simulator states"
            if not bands
            else f"if each objective of each design errs by up to {self.band:.0%} on its own, "
            "nine times in ten"
        )
        return f"{share:.0%}", f"That share of draws keeps it on the front {source}."

    def _best_of_each(self) -> str:
        said = []
        for name, direction in self.objectives.items():
            value = self.front[name].min() if direction == "min" else self.front[name].max()
            row = self.front.filter(pl.col(name) == value).row(0, named=True)
            differs = [
                f"{_e(a)} {self._human(a, row[a])}"
                for a in self.space.varied
                if row[a] != self.front[a][self.chosen]
            ]
            how = " with " + ", ".join(differs) if differs else ", the same design"
            word = "Lowest" if direction == "min" else "Highest"
            said.append(f"{word} {_e(name)}: {self._human(name, value)}{how}.")
        return " ".join(said)

    def sensitivity(self) -> str:
        """Return, for each objective, the share of its variance that each axis explains alone."""
        blocks = []
        for name in self.objectives:
            try:
                found = effects.sensitivity(
                    self.results, name, list(self.space.varied), where=self.where
                )
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
        bars: list[tuple[str, float, str]] = [("points of the space", self.space.size, "")]
        bars += [(f"− {text}", count, "lost") for text, count in self.space.removed().items()]
        counted = self.results.group_by(pl.col("status").cast(pl.String)).len().collect()
        status = dict(counted.rows())
        word = pl.col("reason").cast(pl.String).str.split(":").list.first().alias("word")
        bad = self.results.filter(pl.col("status").cast(pl.String) != "ok")
        reasons = bad.group_by(word).len().sort("len", descending=True).collect().rows()
        bars += [(f"− {reason or 'no reason given'}", count, "lost") for reason, count in reasons]
        bars.append(("feasible", status.get("ok", 0), ""))
        if self.where:
            met = self.results.filter(pl.col("status").cast(pl.String) == "ok")
            count = int(met.filter(pl.sql_expr(self.where)).select(pl.len()).collect().item())
            bars.append((f"with {self.where}", count, ""))
        bars.append(("on the front", len(self.front), ""))
        asked = sum(status.values())
        left = self.space.size - sum(self.space.removed().values()) - asked
        if left > 0:
            bars.insert(1, ("− not sampled", left, "lost"))
        return _bars(
            [(label, count, f"{int(count):,}") for label, count, _ in bars],
            float(self.space.size),
            lost={label for label, _, kind in bars if kind},
        )

    def table(self) -> str:
        """Return the front, the chosen design marked; rows refer to the picture by number."""
        chosen = [a for a in self.space.varied if self.front[a].n_unique() > 1]
        names = ["key", *chosen, *self.objectives, "equivalents"]
        head = "".join(f"<th>{_e(n)}</th>" for n in names)
        step = max(1, -(-len(self.front) // _TABLE))
        kept = sorted({*range(0, len(self.front), step), self.chosen})
        lines = []
        for i in kept:
            row = self.front.row(i, named=True)
            cells = f"<td><code>{row['key'][:10]}</code></td>" + "".join(
                f"<td>{self._human(n, row[n])}</td>" for n in names[1:]
            )
            mark = ' class="chosen"' if i == self.chosen else ""
            lines.append(f'<tr data-row="{i}" tabindex="0"{mark}>{cells}</tr>')
        more = (
            f'<p class="note">{len(kept)} of {len(self.front)} designs of the front.</p>'
            if step > 1
            else ""
        )
        return _scrolled(head, lines) + more

    def accuracy(self) -> str:
        """Return the checks of the simulators that were used, on rows outside their fits."""
        if not self.evidence.checks:
            return '<p class="note">No accuracy table travels with these simulators.</p>'
        head = '<th>check</th><th>value</th><th>limit</th><th>rows</th><th class="text">note</th>'
        lines = []
        for check in self.evidence.checks:
            value = "-" if check.value is None else f"{check.value:.4g} {_e(check.unit)}"
            verdict = {None: "", True: "ok", False: "missed"}[check.ok]
            limit = "" if check.limit is None else f"{check.limit:g}"
            lines.append(
                f'<tr><td class="wrap">{_e(check.name)}</td><td class="{verdict}">{value}</td>'
                f'<td>{limit}</td><td>{check.rows:,}</td><td class="text wrap">{_e(check.note)}'
                "</td></tr>"
            )
        return f'<p class="note">{self.evidence.in_short()}</p>' + _scrolled(head, lines)

    def provenance(self) -> str:
        """Return what the results were made with and where they are."""
        simulator = load_simulator(self.space.simulator)
        fixed = {n: v[0] for n, v in self.space.axes.items() if n not in self.space.varied and v[0]}
        said = {
            "simulator": f"{self.space.simulator}, version {simulator.version}",
            "results": self.files,
            **self.versions,
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
        unit = self.columns.get(name, ("", "", ""))[1]
        if isinstance(value, int) and not isinstance(value, bool) and name in self.objectives:
            value = float(value)
        return _e(human(value, unit))


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
