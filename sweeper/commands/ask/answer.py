"""The answer to a question: the best design, its probability, alternatives and deployment."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import polars as pl

from simulators.core.errors import UserError
from sweeper.commands.ask.probability import (
    ALL_BUT,
    EVEN,
    TINY,
    Row,
    SloProbability,
    in_percent,
    is_measured,
    lateness,
)
from sweeper.commands.ask.verdicts import Verdict, kept_with
from sweeper.questions import DEPLOYMENTS, Benchmarks, Deploys, Question, plugin_of
from sweeper.report import evidence, relaxed
from sweeper.report.answers import Answers, point_of
from sweeper.report.summary import elsewhere
from sweeper.report.tables import print_table, print_words, write_text
from sweeper.samplers._min_replicas import Screened
from sweeper.store.keys import SHOWN
from sweeper.text import counted, human

_SURER = 0.05
"""Least gain in probability of a dearer alternative."""
_CHECKS = 2
"""Accuracy checks printed."""
NO_COMMAND = "No command"


@dataclass(frozen=True)
class Answer:
    """The answer to a question: verdicts on all devices under each load."""

    question: Question
    last: Answers
    verdicts: Sequence[Verdict]
    chosen: argparse.Namespace
    again: Callable[[Question], Answer]  # answers another question with the same options
    screened: Sequence[Screened] = ()  # of each device under each load

    @property
    def is_found(self) -> bool:
        """Whether some design meets the deadlines under every load."""
        return all(best is not None for *_, best in self._loads)

    def __repr__(self) -> str:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            self.print()
        return said.getvalue().strip()

    @property
    def miss(self) -> float:
        """The factor by which the nearest designs miss the SLO, of the worst load."""
        slo = SloProbability(self.question, self.chosen.confidence, self.chosen.band)
        worst = 0.0
        for _, found, _ in self._loads:
            rows = [verdict.row for verdict in found if verdict.row is not None]
            worst = max(worst, min((slo.miss(row) for row in rows), default=math.inf))
        return worst

    def is_likely(self, row: Row, question: Question) -> bool:
        """Return whether a row meets the deadlines of a question with the requested probability."""
        slo = SloProbability(question, self.chosen.confidence, self.chosen.band)
        return slo.probability(row)[0] >= slo.least

    @functools.cached_property
    def relaxations(self) -> list[str]:
        """The least relaxation of each limit that changes the answer, in words."""
        if len(self._loads) > 1:
            raise UserError("--relax needs one load; leave out --traffic")

        found = relaxed.relaxations(self, self.again)
        return [relaxed.in_words(self, one) for one in found]

    @property
    def design(self) -> Row | None:
        """The best design under the first load with one; None without such a load."""
        return next((best.row for *_, best in self._loads if best), None)

    @property
    def results(self) -> pl.LazyFrame:
        """All simulated designs."""
        return self.last.results

    def print(self) -> None:
        """Print the devices, the best design and the deployment command for each load."""
        bests: list[Row] = []
        for given, found, best in self._loads:
            print()
            self._print_devices(given, found, best)
            if best is None:
                self._print_nearest(found)
            else:
                bests.append(best.design)
                self._print_best(best, found)
        for line in dict.fromkeys(map(self._accuracy, bests)):
            print_words(line)
        limits = [
            f"{self.last.word(d.metric)} <= {self.last.human(d.metric, d.limit)}"
            for d in self.question.deadlines
        ]
        if self.question.budget is not None:
            limits.append(f"at most {human(self.question.budget, '$')} an hour")
        notes = (self._searched_in_words(), *self.question.notes, *self.last.notes)
        for line in (f"SLO: {', '.join(limits)}.", *notes):
            print_words(line)
        if bests:
            self._print_next(bests)
        else:
            print_words(self._advice())
        if self.chosen.relax:
            print("\nLeast relaxation of one limit alone:")
            for line in self.relaxations or ["no limit of this question can be relaxed"]:
                print_words(f"  {line}", "    ")

    def to_dict(self) -> dict[str, Any]:
        """Return the answer for programs."""
        best = next((best for *_, best in self._loads if best), None)
        row = best.row if best else None
        return {
            "space": self.last.name,
            "design": row,
            "probability": row["probability"] if row else None,
            "probability_basis": self._basis(row) if row else None,
            "time_by_evidence": {
                v.device: evidence.shares_of_row(v.row) for v in self.verdicts if v.row is not None
            },
            "next_best": next(iter(self._alternatives(best)), None) if best else None,
            "alternatives": self._alternatives(best) if best else [],
            "command": self._command(row) if row else None,
            "devices": [
                {**v.given, "device": v.device, "does": v.meets_slo, "why": v.why, "design": v.row}
                for v in self.verdicts
            ],
            "searched": {
                **dict(zip(("designs", "simulated"), self._searched, strict=True)),
                "screened_out": sum(one.designs for one in self.screened),
                "screened_out_better": self._screened_better,
            },
            "relaxations": self.relaxations if self.chosen.relax else [],
            "notes": [*self.question.notes, *self.last.notes],
        }

    @functools.cached_property
    def _searched(self) -> tuple[int, int]:
        """The number of designs that the constraints allow, and of those simulated."""
        space = self.last.space
        allowed = space.size - sum(space.removed().values())
        return allowed, self.last.results.select(pl.len()).collect().item()

    def _searched_in_words(self) -> str:
        designs, simulated = self._searched
        varied = [n.rpartition(".")[2] for n in self.last.space.varied if n != self.question.device]
        names = f" of {', '.join(varied)}" if varied else ""
        said = f"Searched: {counted(designs, 'design')}{names}; {simulated:,} of them simulated."
        if not (screened := sum(one.designs for one in self.screened)):
            return said
        said += f" Excluded by their steady state: {counted(screened, 'smaller design')}"
        if (better := self._screened_better) is None:
            return f"{said}."
        return f"{said}; P(one of them meets the SLO) {_at_most(better)}."

    @property
    def _screened_better(self) -> float | None:
        """The probability that a design excluded by its steady state is better; None: unknown."""
        known = [one.probability for one in self.screened if one.designs]
        return None if None in known else min(1.0, sum(p for p in known if p is not None))

    @functools.cached_property
    def _loads(self) -> list[tuple[Mapping[str, Any], list[Verdict], Verdict | None]]:
        """Each load with the verdicts on all devices and the best of the verdicts."""
        groups = groupby(self.verdicts, key=lambda verdict: tuple(verdict.given.items()))
        loads = [list(found) for _, found in groups]
        return [(found[0].given, found, self._best(found)) for found in loads]

    def _best(self, found: Sequence[Verdict]) -> Verdict | None:
        """Return the cheapest design that is likely enough; if none is, the most likely design."""

        def rank(verdict: Verdict) -> tuple[bool, bool, float, float]:
            is_unpriced, cost, doubt = self.price_key(verdict.design)
            return (
                bool(verdict.why),
                is_unpriced,
                *((doubt, cost) if verdict.why else (cost, doubt)),
            )

        candidates = sorted((v for v in found if v.meets_slo and v.row is not None), key=rank)
        if not candidates or is_measured(candidates[0].design):
            return next(iter(candidates), None)
        first = candidates[0]
        measured = (v for v in candidates if is_measured(v.design) and not v.why)
        second = next(measured, None)
        if second is None or first.why or self.is_clearly_cheaper(first.design, second.design):
            return first
        return second

    def is_clearly_cheaper(self, row: Row, other: Row) -> bool:
        """Return whether a design stays cheaper at the upper ends of its prediction intervals."""
        by = self._compared_by(row, other)
        ends = ((row.get(f"{d.interval}_hi"), row[d.interval]) for d in self.question.deadlines)
        factor = max((high / mean for high, mean in ends if high and mean), default=math.inf)
        return bool(row[by] * factor < other[by])

    def _compared_by(self, row: Row, other: Row) -> str:
        return "cost" if row["cost"] and other["cost"] else self.question.without_price

    def _alternatives(self, best: Verdict) -> list[Row]:
        """Return a few designs with other hardware, parallelism or replicas.

        They are on the front of cost against probability: cheaper designs that more likely than
        not meet the SLO, and the cheapest more likely design. Without these, the cheapest one.
        """
        names, row = self.question.alternatives, best.design
        others = [r for v in self.verdicts if v.given == best.given for r in v.others]
        differing = sorted(
            (r for r in others if any(r[n] != row[n] for n in names)), key=self.price_key
        )
        front: list[Row] = []
        for other in differing:
            if not front or other["probability"] > front[-1]["probability"]:
                front.append(other)
        cheaper = [
            r
            for r in front
            if self.price_key(r)[:2] < self.price_key(row)[:2] and r["probability"] > EVEN
        ]
        surer = [
            r
            for r in front
            if self.price_key(r)[:2] >= self.price_key(row)[:2]
            and r["probability"] >= row["probability"] + _SURER
        ]
        places = dict.fromkeys((len(cheaper) - 1, len(cheaper) // 2, 0)) if cheaper else ()
        return [*(cheaper[place] for place in places), *surer[:1]] or differing[:1]

    def price_key(self, row: Row) -> tuple[bool, float, float]:
        """Return a sort key: designs with a price first, cheapest first, most likely first."""
        cost = row["cost"]
        known = row[self.question.without_price] if cost is None else cost
        return cost is None, known, -row["probability"]

    def _print_devices(
        self, given: Mapping[str, Any], found: Sequence[Verdict], best: Verdict | None
    ) -> None:
        device, amounts = self.question.device, self._amount_columns(found)
        metrics = [d.metric for d in self.question.deadlines]
        header = ["", device, *amounts, *metrics, "P(meets SLO)", "measured or fitted", "design"]
        lines = []
        for verdict in found:
            row = verdict.row
            times = ["-" if row is None else self.last.human(n, row[n]) for n in metrics]
            if row is None or not verdict.meets_slo:
                costs, rest = ["-"] * len(amounts), ["-", "-", f"none: {verdict.why}"]
            else:
                costs = [
                    human(usd, "$")
                    if (usd := row["amounts"][prices].get(words)) is not None
                    else f"no {prices} price"
                    for prices, words in amounts.values()
                ]
                is_known = bool(evidence.shares_of_row(row))
                measured = f"{100 * evidence.by_measurements(row):.0f} %" if is_known else "-"
                design = self._described(row) + (f"; {verdict.why}" if verdict.why else "")
                rest = [in_percent(row["probability"]), measured, design]
            mark = "*" if verdict is best else ""
            lines.append([mark, verdict.device, *costs, *times, *rest])
        load = self._load_in_words(given)
        print_table(f"Best design per {device}: {load}" if load else "", header, lines)

    def _load_in_words(self, given: Mapping[str, Any]) -> str:
        known = {n: v for n, v in given.items() if v is not None}
        return ", ".join(f"{n.rpartition('.')[2]} {self.last.human(n, known[n])}" for n in known)

    def _amount_columns(self, found: Sequence[Verdict]) -> dict[str, tuple[str, str]]:
        rows = [v.row for v in found if v.row is not None and v.meets_slo]
        words = list(dict.fromkeys(w for r in rows for a in r["amounts"].values() for w in a))
        lists = self.question.prices
        if len(lists) == 1:
            return {f"$ {word}": (lists[0], word) for word in words}
        return {f"$ {word}, {prices}": (prices, word) for prices in lists for word in words[:1]}

    def _print_best(self, best: Verdict, found: Sequence[Verdict]) -> None:
        question, last, row = self.question, self.last, best.design
        several = len(question.prices) > 1
        costs = [
            f"{human(usd, '$')} {words}" + (f" ({prices})" if several else "")
            for prices, amounts in row["amounts"].items()
            for words, usd in amounts.items()
        ]
        shown = [f"{last.word(n)} {last.human(n, row[n])}" for n in question.shown if row.get(n)]
        print(f"\n{self._described(row)}")
        for line in (", ".join(costs) or "no price", ", ".join(shown), question.asked(row)):
            if line:
                print_words(f"  {line}", "  ")
        why = f"; {best.why}" if best.why else ""
        print_words(f"{_probability(row)} ({self._basis(row)}){why}.")
        if intervals := dict(self._intervals(row)):
            is_by_sheet = (row.get("datasheet_share") or 0.0) > 0.5
            widest = f" (widest: a factor of {max(intervals.values()):.2g})" if is_by_sheet else ""
            print_words(f"90 % prediction interval: {', '.join(intervals)}{widest}.")
        if shares := evidence.shares_in_words(evidence.shares_of_row(row)):
            print_words(f"Time by evidence: {shares}{self._weakest(row)}.")
        if basis := evidence.basis_in_words(last.simulator, row):
            print_words(f"{basis}.")
        for second in self._alternatives(best):
            print_words(self._alternative(row, second))
        if question.contrast:
            print_words(self._contrast(best, *question.contrast))
        for prices in question.prices[1:]:
            self._print_other_prices(best, found, prices)

    def _weakest(self, row: Row) -> str:
        """Return the operator with the weakest evidence as text, which is kept with the rows."""
        kept = kept_with(self.last.store)
        file = kept / f"{row['key']}.txt" if kept else None
        if file and file.is_file():
            return file.read_text(encoding="utf-8")
        said = evidence.weakest_in_words(self.last.simulator, row)
        if file:
            write_text(file, said)
        return said

    def _basis(self, row: Row) -> str:
        if row["stated"]:
            return "from the 90 % prediction intervals"
        return f"assuming a 90 % prediction interval of ±{100 * self.chosen.band:.0f} %"

    def _intervals(self, row: Row) -> Iterator[tuple[str, float]]:
        """Yield each interval as text, with the ratio of its ends."""
        for d in self.question.deadlines:
            lo, hi = (row.get(f"{d.interval}_{end}") or 0.0 for end in ("lo", "hi"))
            if lo and hi and row[d.interval]:
                scale = row[d.metric] / row[d.interval]
                low, high = (self.last.human(d.metric, scale * end) for end in (lo, hi))
                yield f"{self.last.word(d.metric)} {low} to {high}", hi / lo

    def _accuracy(self, row: Row) -> str:
        names = evidence.named_facts(self.last.simulator, row)
        known = evidence.evidence(self.last.space.simulator).errors_naming(names, sys.maxsize)
        if not known:
            return evidence.main_errors(self.last.space.simulator)
        known.sort(key=lambda check: -check.rows)
        errors = "; ".join(
            f"{c.name}: {c.value:.3g} {c.unit} ({c.rows:,} row{'s' if c.rows > 1 else ''})"
            for c in known[:_CHECKS]
        )
        flags = [f" --{kind} {row[kind]}" for kind in ("model", "gpu") if row.get(kind) in names]
        return f"Error on measured rows: {errors}. More: sweeper accuracy{''.join(flags)}"

    def _print_other_prices(self, best: Verdict, found: Sequence[Verdict], prices: str) -> None:
        priced = [
            (next(iter(v.row["amounts"][prices].values())), v)
            for v in found
            if v.meets_slo and v.row is not None and v.row["amounts"][prices]
        ]
        if not priced:
            print_words(
                f"The price list {prices} has no price for these GPUs; name another: --prices."
            )
            return
        cost, cheapest = min(priced, key=lambda pair: pair[0])
        same = "the same design" if cheapest is best else self._described(cheapest.design)
        print_words(f"Cheapest design at {prices} prices: {same}, {human(cost, '$')}.")

    def _alternative(self, row: Row, second: Row) -> str:
        by = self._compared_by(row, second)
        change = second[by] / row[by] - 1
        what = f"{by} {100 * change:+.0f} %" if abs(change) >= 0.005 else f"same {by}"
        only = "but only " if change < 0 and second["probability"] < row["probability"] else ""
        sheet = "" if is_measured(second) or not is_measured(row) else ", mostly from data sheets"
        said = f"{what}, {only}{_probability(second)}{sheet}"
        return f"Alternative: {self._described(second)}: {said}."

    def _contrast(self, best: Verdict, axis: str, without: str, with_it: str) -> str:
        """Return what the cheapest design of the other kind costs, likely ones first."""
        row, is_with = best.design, best.design[axis] > 0
        others = [r for v in self.verdicts if v.given == best.given for r in v.others]
        rest = [r for r in others if (r[axis] > 0) != is_with]
        kind = without if is_with else with_it
        if not rest:
            return f"No design with {kind} meets the SLO."
        likely = [r for r in rest if r["probability"] >= row["probability"]] or rest
        second = min(likely, key=self.price_key)
        return self._alternative(row, second).replace("Alternative", f"With {kind}", 1)

    def _print_nearest(self, found: Sequence[Verdict]) -> None:
        question = self.question
        print()
        within = " within the budget" if question.budget is not None else ""
        print_words(f"No design {question.among} meets the SLO{within}.")
        if near := [v for v in found if v.row is not None]:
            nearest = min(near, key=lambda verdict: lateness(question, verdict.design))
            row, metrics = nearest.design, [d.metric for d in question.deadlines]
            times = [f"{self.last.word(n)} {self.last.human(n, row[n])}" for n in metrics]
            print_words(
                f"Nearest design: {self._described(row)}: {', '.join(times)}; {nearest.why}."
            )

    def _advice(self) -> str:
        costs = [v.row.get("cost") for v in self.verdicts if v.row is not None]
        usd = min((usd for usd in costs if usd is not None), default=None)
        if usd is not None and len(self._loads) == 1:
            return f"A budget of ${math.ceil(100 * usd) / 100:.2f} is enough (--budget)."
        if all(verdict.row is None for verdict in self.verdicts):
            return self.question.unfit
        return " ".join(self.question.advice)

    def _print_next(self, bests: Sequence[Row]) -> None:
        name, at = self.last.name, elsewhere(self.chosen.outputs)
        print()
        command = self._command(bests[0])
        (print_words if command.startswith(NO_COMMAND) else print)(command.rstrip("\n"))
        print(f"\nNext   python -m sweeper report {name}{at}")
        for row in bests:
            load = self._load_in_words({n: row[n] for n in self.question.given})
            note = f"   # {load}" if len(bests) > 1 else ""
            design = f"{name} {row['key'][:SHOWN]} --target {self.question.target(row)}"
            print(f"       python -m sweeper export {design}{at}{note}")
        if isinstance(plugin_of(self.last.simulator, DEPLOYMENTS), Benchmarks):
            check = f"{name} {bests[0]['key'][:SHOWN]}"
            print(
                f"       python -m sweeper export {check} --benchmark{at}   # measures the design"
            )

    def _described(self, row: Row) -> str:
        resolved = [n for n in self.question.resolved if row[n] is None]
        details = [n for n in self.question.details if n in (*self.last.space.varied, *resolved)]
        shown = {n: self.question.resolved.get(n, n) if row[n] is None else n for n in details}
        values = (f"{name} {human(row[column])}" for name, column in shown.items())
        return ", ".join([self.question.described(row), *values])

    def _command(self, row: Row) -> str:
        simulator, name = self.last.simulator, f"{self.last.name} {row['key'][:SHOWN]}"
        writer = plugin_of(simulator, DEPLOYMENTS)
        assert isinstance(writer, Deploys)
        try:
            return writer.deployment(point_of(simulator, row), "", name)
        except UserError as refusal:
            return f"{NO_COMMAND}: {refusal}\n"


def _probability(row: Row) -> str:
    probability = row["probability"]
    return f"P(meets SLO) {'' if probability > ALL_BUT else '= '}{in_percent(probability)}"


def _at_most(probability: float) -> str:
    """Return an upper bound in percent, rounded up to tenths.

    >>> _at_most(0.0), _at_most(0.0421)
    ('≤ 0.1 %', '≤ 4.3 %')
    """
    return f"≤ {max(1, math.ceil(1000.0 * probability - TINY)) / 10.0:g} %"
