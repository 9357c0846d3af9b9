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

from simulators.core.contract import Check
from simulators.core.errors import UserError
from simulators.core.folder import FOLDERS
from sweeper.query.pareto import alike, qualifying
from sweeper.query.sensitivity import sensitivity
from sweeper.query.uncertainty import probable_front
from sweeper.report.answers import Answers
from sweeper.report.evidence import Evidence
from sweeper.report.headlines import HEAD, headlines_of
from sweeper.report.shares import in_words as shares_in_words
from sweeper.report.shares import shares_of_row, weakest_in_words
from sweeper.report.words import in_words
from sweeper.store.keys import SHOWN

_TABLE = 2_000
"""Designs of the front that stand in the table; all of them are in the picture."""
_DRAWS = 400


@dataclass(frozen=True)
class Content:
    """A sweep that has a front, and what is known of how it came about."""

    answers: Answers
    question: str  # what the space asks, in words
    evidence: Evidence  # accuracy of the simulators behind the results
    band: float  # half the 90 % interval of objectives for which the simulator states none

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
        design = ", ".join(
            f"{_e(self.word(a))} <b>{self._human(a, row[a])}</b>" for a in found.space.varied
        )
        sure, why = self._sure()
        tiles = "".join(map(self._tile, found.objectives))
        tiles += f'<div class="tile"><b>{sure}</b><span>likely to be on the front</span></div>'
        notes = "".join(f"<li>{_e(note)}</li>" for note in found.notes)
        return (
            f'<p class="says">Take {design}.</p><div class="tiles">{tiles}</div>'
            f'<h2>How sure</h2><ul class="sure">{self._accuracy_here()}{self._time_rests_on()}'
            f"<li>{why}</li>{notes}</ul>"
            f"<p>{self._why()}</p><p>{self._best_of_each()}</p>"
            f"<p><code>python -m sweeper show {_e(found.name)} {row['key'][:SHOWN]}</code></p>"
        )

    def word(self, name: str) -> str:
        """Return what a column is called in a sentence."""
        return in_words(name, self.answers.units.get(name, ""))

    def _tile(self, name: str) -> str:
        """Return one objective of the chosen design with its 90 % interval."""
        row = self.answers.best
        low, high = row.get(f"{name}_lo"), row.get(f"{name}_hi")
        said = "no interval is stated"
        if low is not None and high is not None:
            said = f"{self._human(name, low)} to {self._human(name, high)}, 9 times in 10"
        elif name in self.answers.space.axes:
            said = "chosen"
        doc = self.columns.get(name, ("", "", ""))[2]
        return (
            f'<div class="tile" title="{_e(doc)}"><b>{self._human(name, row[name])}</b>'
            f"<span>{_e(self.word(name))}</span><span>{said}</span></div>"
        )

    def _accuracy_here(self) -> str:
        """Return how far the simulator was off for this model on this device, line by line."""
        names = self._named
        if not names or not self.evidence.checks:
            return f"<li>{self.evidence.in_short()}</li>"
        lines = self.evidence.naming(names)
        said = " and ".join(f"<b>{_e(name)}</b>" for name in names)
        if not lines:
            return (
                f"<li>No prediction for {said} was compared with a measurement. "
                f"{self.evidence.in_short()}</li>"
            )
        errors = "".join(f"<li>{_error(check)}</li>" for check in lines)
        return f"<li>Errors that were found for {said}:<ul>{errors}</ul></li>"

    @property
    def _named(self) -> list[str]:
        """The facts that the chosen design names, such as a model and a GPU."""
        kinds = {n for n, folder in FOLDERS.items() if folder.path.startswith("catalog/")} - {
            "price", "cluster",
        }  # fmt: skip
        best = self.answers.best
        fields = dataclasses.fields(self.answers.simulator.point)
        asked = [best.get(f.name) for f in fields if f.metadata.get("names") in kinds]
        return [name for name in asked if name]

    def _time_rests_on(self) -> str:
        found = self.answers
        said = shares_in_words(shares_of_row(found.best))
        if not said:
            return ""
        weakest = weakest_in_words(found.simulator, found.best)
        return f"<li>Of its time {_e(said)}{_e(weakest)}.</li>"

    def _why(self) -> str:
        found = self.answers
        equal = found.best["equivalents"]
        others = f" {equal - 1:,} further designs measure exactly the same." if equal > 1 else ""
        met = f" among those with <code>{_e(found.where)}</code>" if found.where else ""
        return (
            f"It is the knee of the Pareto front: of {len(found.front):,} designs that nothing "
            f"beats in {_listed([self.word(n) for n in found.objectives])} together{met}, it is "
            "nearest to the best "
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
            return "-", "How likely it is to be on the front cannot be said of such objectives."
        match = likely.filter(alike(found.best, found.space.axes))
        share = float(match["p_front"][0]) if len(match) else 0.0
        assumed = _listed([self.word(n) for n in bands]) if bands else ""
        sources = ["by the intervals the simulator states"] * bool(stated)
        sources += [
            f"if {assumed} err{'s' * (len(bands) == 1)} by up to {self.band:.0%}, nine times in ten"
        ] * bool(bands)
        return (
            f"{share:.0%}",
            f"It stays on the front in {share:.0%} of draws {', and '.join(sources)}.",
        )

    def _best_of_each(self) -> str:
        said, front, best = [], self.answers.front, self.answers.best
        for name, direction in self.answers.objectives.items():
            value = front[name].min() if direction == "min" else front[name].max()
            row = front.filter(pl.col(name) == value).row(0, named=True)
            differs = [
                f"{_e(self.word(a))} {self._human(a, row[a])}"
                for a in self.answers.space.varied
                if row[a] != best[a]
            ]
            how = " with " + ", ".join(differs) if differs else ", the same design"
            word = "Lowest" if direction == "min" else "Highest"
            said.append(f"{word} {_e(self.word(name))}: {self._human(name, value)}{how}.")
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
                (self.word(axis), share, f"{share:.0%}")
                for axis, share in found.indices.select("axis", "first_order").rows()
                if share >= 0.005
            ]
            bars.append(("axes together", found.interaction, f"{found.interaction:.0%}"))
            blocks.append(f"<h3>{_e(self.word(name))}</h3>{_bars(bars, 1.0)}")
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
        names = list(dict.fromkeys([*chosen, *found.objectives, "equivalents"]))
        same = [
            f"{_e(self.word(a))} {self._human(a, front[a][0])}"
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
                f'<td data-value="{_e(row[n])}">{self._human(n, row[n])}</td>' for n in names
            )
            mark = ' class="chosen"' if i == found.knee else ""
            lines.append(f'<tr data-row="{i}" tabindex="0"{mark}>{cells}</tr>')
        said = [f"{len(kept):,} of {len(front):,} designs of the front."] * (len(kept) < len(front))
        said += [f"All: {', '.join(same)}."] * bool(same)
        return (f'<p class="note">{" ".join(said)}</p>' if said else "") + _scrolled(head, lines)

    def _sorts(self, name: str) -> str:
        """Return the head of a column by which the reader may sort."""
        doc = self.columns.get(name, ("", "", ""))[2] or name
        return (
            f'<th scope="col" aria-sort="none"><button type="button" data-sort="{_e(name)}" '
            f'title="{_e(doc)}">{_e(self.word(name))}</button></th>'
        )

    def glossary(self) -> str:
        """Return what the words mean: each column's name, unit and sentence."""
        lines = "".join(
            f"<dt>{_e(self.word(name))} <code>{_e(name)}</code></dt>"
            f"<dd>{_e(doc)}{f' [{_e(unit)}]' if unit else ''}</dd>"
            for name, (_role, unit, doc) in self.columns.items()
            if doc
        )
        return f"<dl>{lines}</dl>"

    def accuracy(self) -> str:
        """Return the checks of the simulators that were used, on rows outside their fits."""
        if not self.evidence.checks:
            return '<p class="note">No accuracy table travels with these simulators.</p>'
        head = '<th>check</th><th>value</th><th>limit</th><th>rows</th><th class="text">note</th>'
        lines, known = [], self.evidence.by_room
        here = self.evidence.naming(self._named, len(self.evidence.checks))
        for check in dict.fromkeys([*here, *self.evidence.checks]):
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


def _error(check: Check) -> str:
    """Return an error with the rows it was read on."""
    value = f"{check.value:.3g} {check.unit}".strip()
    rows = f"{check.rows:,} row{'s' if check.rows != 1 else ''}"
    limit = "" if check.ok is not False else f", beyond its limit of {check.limit:g}"
    return f"{_e(check.name)}: <b>{_e(value)}</b> ({rows}{limit})"


def _e(text: object) -> str:
    return html.escape(str(text))


def _listed(names: Sequence[str]) -> str:
    words = [_e(n) for n in names]
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
