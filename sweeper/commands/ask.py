"""The command `ask`: find the cheapest design that meets an SLO.

The flags, which the simulator declares, become a space file. The command sweeps the space and
prints the best design of each device with P(meets SLO) and the deployment; all other commands work
on the stored sweep. If designs have replicas, the search looks for the smallest number of replicas.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from simulators.core.fields import columns_of
from sweeper.commands.flags import at_least, parser_of
from sweeper.commands.run import Asked, asked_by, sweep
from sweeper.commands.verdicts import (
    ALL_BUT,
    Row,
    SloProbability,
    Verdict,
    in_percent,
    lateness,
    verdicts,
)
from sweeper.engines import load_engine
from sweeper.engines.chunks import hinted
from sweeper.questions import DEPLOYMENTS, QUESTIONS, Asks, Deploys, Question, known_beside
from sweeper.report.answers import Answers, point_of
from sweeper.report.evidence import (
    by_measurements,
    evidence,
    named_facts,
    shares_in_words,
    shares_of_row,
    weakest_in_words,
)
from sweeper.report.summary import elsewhere
from sweeper.report.tables import print_table, print_words, write_text
from sweeper.samplers._axis_searches import MinReplicasSearch
from sweeper.store.keys import SHOWN
from sweeper.text import human, number_in

_SHORT_SWEEP_S = 2.0
"""CPU-seconds of work below which starting a worker process takes longer than the sweep."""


def main(words: list[str]) -> int:
    """Sweep and print the answer; the exit code is 1 if no design meets the SLO."""
    words = _named(words)
    named = bool(words) and not words[0].startswith("-")
    simulator = load_simulator(words[0] if named else QUESTIONS.names()[0])
    asks = known_beside(simulator, QUESTIONS)
    if not isinstance(asks, Asks):
        able = ", ".join(QUESTIONS.names())
        raise UserError(
            f"`ask` does not support the simulator '{simulator.name}'; it supports {able}"
        )
    chosen, question = parsed(asks, words[1:] if named else words)
    file = Path(chosen.outputs) / "spaces" / f"{question.name}.yaml"
    said = (f"{key}: {json.dumps(value)}\n" for key, value in question.space.items())
    write_text(file, f"# {question.asks}\n{''.join(said)}")  # JSON is YAML
    engine = [f"engine={chosen.engine_}", *(["engine.worth_s=120"] * (chosen.engine_ == "auto"))]
    asked = asked_by([f"+space={file}", f"outputs={chosen.outputs}", *engine])
    if sum(asked.sweep.space.removed().values()) == asked.sweep.space.size:
        raise UserError(question.too_large)
    slo = SloProbability(question, chosen.confidence, chosen.band)
    last = sweep(_fewest(asked, question, slo, is_free=chosen.engine_ == "auto")).answers
    answer = Answer(question, last, verdicts(question, last, slo), chosen)
    if chosen.json:
        print(json.dumps(answer.to_dict(), indent=1, default=str))
    else:
        answer.print()
    return 0 if answer.is_found else 1


def _named(words: list[str]) -> list[str]:
    """Expand `--train MODEL` to `training --model MODEL`."""
    verbs = {f"--{name.removesuffix('ing')}": name for name in QUESTIONS.names()}
    if words and words[0] in verbs:
        return [verbs[words[0]], "--model", *words[1:]]
    return words


def _fewest(asked: Asked, question: Question, slo: SloProbability, *, is_free: bool) -> Asked:
    """Return a sweep that searches for the fewest replicas, if the question has a replica axis.

    The prefilter already loads the simulator in this process, so small sweeps also run here unless
    the user named an engine.
    """
    if not question.copies:
        return asked
    given = (*question.given, question.device)
    sampler = MinReplicasSearch(question.copies, question.devices, given, slo)
    space, engine = asked.sweep.space, asked.sweep.engine
    guess = hinted(space) if is_free else None
    if guess is not None and guess.point_s * sampler.size(space) < _SHORT_SWEEP_S:
        engine = load_engine("inline")
    return asked._replace(sweep=dataclasses.replace(asked.sweep, sampler=sampler, engine=engine))


def parsed(asks: Asks, words: list[str]) -> tuple[argparse.Namespace, Question]:
    """Return the parsed flags and the question built from them."""
    parser = parser_of("ask")
    fields = columns_of(asks.flags)
    for f in fields:
        required = f.default is dataclasses.MISSING
        spelt = dict.fromkeys((f"--{f.name}", f"--{f.name.replace('_', '-')}"))
        parser.add_argument(
            *spelt,
            type=_reader(f.hint, f.metadata),
            help=f.metadata["doc"],
            choices=f.metadata["choices"] or None,
            required=required,
            default=None if required else f.default,
        )
    chosen = parser.parse_args(words)
    asked = asks.flags(**{f.name: getattr(chosen, f.name) for f in fields})
    return chosen, asks.question(asked)


def _reader(kind: Any, metadata: typing.Mapping[str, Any]) -> Callable[[str], Any]:
    """Return the parser of a flag's value for the type of its field."""
    if isinstance(kind, types.UnionType):
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if kind is int:
        return at_least(metadata["least"]) if metadata["least"] is not None else whole
    return numbers_in(metadata["unit"]) if kind is float else str


def numbers_in(unit: str) -> Callable[[str], float]:
    """Return a parser of numbers with an optional unit."""

    def read(text: str) -> float:
        number = number_in(text, unit)
        if number is None:
            example = {"s": "800ms or 1.5s", "1/s": "20 or 1.5k", "$": "40"}.get(unit, "64 or 10k")
            raise argparse.ArgumentTypeError(f"'{text}' is not a number; write {example}")
        return number

    return read


def whole(text: str) -> int:
    """Return a whole number, which may be written as 10k."""
    number = number_in(text)
    if number is None or number != int(number):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number; write 64 or 10k")
    return int(number)


NO_COMMAND = "No command"

_NAMED = 2
"""Accuracy checks printed."""


@dataclass(frozen=True)
class Answer:
    """The answer to a question."""

    question: Question
    last: Answers
    verdicts: Sequence[Verdict]
    chosen: argparse.Namespace

    @property
    def is_found(self) -> bool:
        """Whether some design meets the deadlines under every load."""
        return all(self._best(found) is not None for _, found in self._by_load())

    def print(self) -> None:
        """Print the devices, the best design and the deployment command for each load."""
        bests: list[Verdict] = []
        for given, found in self._by_load():
            best = self._best(found)
            bests += [best] if best else []
            print()
            self._print_devices(given, found, best)
            if best is None:
                self._print_nearest(found)
            else:
                self._print_best(best, found)
        limits = [
            f"{self.last.word(d.metric)} <= {self.last.human(d.metric, d.limit)}"
            for d in self.question.deadlines
        ]
        if self.question.budget is not None:
            limits.append(f"at most {human(self.question.budget, '$')} an hour")
        print_words(f"SLO: {', '.join(limits)}.")
        for note in self.last.notes:
            print_words(note)
        if not bests:
            print_words(self._advice())
        else:
            self._print_next(bests)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer for programs."""
        best = next((v for _, f in self._by_load() if (v := self._best(f))), None)
        row = best.row if best else None
        return {
            "space": self.last.name,
            "design": row,
            "probability": row["probability"] if row else None,
            "probability_basis": self._rests_on(row) if row else None,
            "time_by_evidence": {
                v.device: shares_of_row(v.row) for v in self.verdicts if v.row is not None
            },
            "next_best": self._next_best(best) if best else None,
            "command": self._command(row) if row else None,
            "devices": [
                {**v.given, "device": v.device, "does": v.does, "why": v.why, "design": v.row}
                for v in self.verdicts
            ],
            "notes": list(self.last.notes),
        }

    def _by_load(self) -> Iterator[tuple[Mapping[str, Any], list[Verdict]]]:
        """Yield each load with the verdicts on all devices."""
        for _, found in groupby(self.verdicts, key=lambda verdict: tuple(verdict.given.items())):
            group = list(found)
            yield group[0].given, group

    def _best(self, found: Sequence[Verdict]) -> Verdict | None:
        """Return the cheapest design that is likely enough; if none is, the most likely one."""
        does = [v for v in found if v.does and v.row is not None]
        return min(does, key=self._rank, default=None)

    def _rank(self, verdict: Verdict) -> tuple[bool, bool, float, float]:
        row = verdict.row
        assert row is not None
        unpriced, is_unlikely = row["cost"] is None, bool(verdict.why)
        cost, doubt = (
            row[self.question.without_price] if unpriced else row["cost"],
            -row["probability"],
        )
        return is_unlikely, unpriced, *((doubt, cost) if is_unlikely else (cost, doubt))

    def _print_devices(
        self, given: Mapping[str, Any], found: Sequence[Verdict], best: Verdict | None
    ) -> None:
        """Print a line per device: its best design, or the reason why it has none."""
        device, amounts = self.question.device, self._headings(found)
        metrics = [d.metric for d in self.question.deadlines]
        header = ["", device, *amounts, *metrics, "P(meets SLO)", "measured or fitted", "design"]
        lines = []
        for verdict in found:
            row = verdict.row
            times = ["-" if row is None else self.last.human(n, row[n]) for n in metrics]
            if row is None or not verdict.does:
                costs, rest = ["-"] * len(amounts), ["-", "-", f"none: {verdict.why}"]
            else:
                costs = [self._amount(row, prices, words) for prices, words in amounts.values()]
                measured = f"{100 * by_measurements(row):.0f} %" if shares_of_row(row) else "-"
                design = self._described(row) + (f"; {verdict.why}" if verdict.why else "")
                rest = [in_percent(row["probability"]), measured, design]
            mark = "*" if verdict is best else ""
            lines.append([mark, verdict.device, *costs, *times, *rest])
        load = self._said(given)
        print_table(f"Best design per {device}: {load}" if load else "", header, lines)

    def _said(self, given: Mapping[str, Any]) -> str:
        """Return a load as text."""
        return ", ".join(f"{n} {self.last.human(n, v)}" for n, v in given.items() if v is not None)

    def _headings(self, found: Sequence[Verdict]) -> dict[str, tuple[str, str]]:
        """Return the headings of costs, each with its price list and unit."""
        question = self.question
        rows = [v.row for v in found if v.row is not None and v.does]
        words = list(dict.fromkeys(w for r in rows for a in r["amounts"].values() for w in a))
        several = len(question.prices) > 1
        return {
            f"$ {w}, {prices}" if several else f"$ {w}": (prices, w)
            for prices in question.prices
            for w in words[: 1 if several else None]
        }

    @staticmethod
    def _amount(row: Row, prices: str, words: str) -> str:
        amount = row["amounts"][prices].get(words)
        return f"no {prices} price" if amount is None else human(amount, "$")

    def _print_best(self, best: Verdict, found: Sequence[Verdict]) -> None:
        """Print the best design, its probability, its evidence and the next best."""
        question, row = self.question, best.row
        assert row is not None
        print(f"\n{self._described(row)}")
        costs = [
            f"{human(usd, '$')} {words}" + (f" ({prices})" if len(question.prices) > 1 else "")
            for prices, amounts in row["amounts"].items()
            for words, usd in amounts.items()
        ]
        shown = [
            f"{self.last.word(n)} {self.last.human(n, row[n])}"
            for n in question.shown
            if row.get(n)
        ]
        print_words(f"  {', '.join(costs) or 'no price'}", "  ")
        print_words(f"  {', '.join(shown)}", "  ")
        if said := question.asked(row):
            print_words(f"  {said}", "  ")
        print_words(
            f"{_probability(row)} ({self._rests_on(row)})" + (f"; {best.why}." if best.why else ".")
        )
        if spans := list(self._spans(row)):
            print_words(f"90 % prediction interval: {', '.join(spans)}.")
        if shares := shares_in_words(shares_of_row(row)):
            print_words(f"Time by evidence: {shares}{weakest_in_words(self.last.simulator, row)}.")
        print_words(self._accuracy(row))
        if (second := self._next_best(best)) is not None:
            print_words(self._beside(row, second))
        for prices in question.prices[1:]:
            self._print_other_prices(best, found, prices)

    def _accuracy(self, row: Row) -> str:
        """Return the errors on the most measured rows of the design's model or device."""
        names = named_facts(self.last.simulator, row)
        known = evidence(self.last.space.simulator).errors_naming(names, sys.maxsize)
        if not known:
            return f"Accuracy: no measured rows name {' or '.join(names)}."
        known.sort(key=lambda check: -check.rows)
        errors = "; ".join(
            f"{c.name}: {c.value:.3g} {c.unit} ({c.rows:,} row{'s' if c.rows > 1 else ''})"
            for c in known[:_NAMED]
        )
        flags = [f" --{kind} {row[kind]}" for kind in ("model", "gpu") if row.get(kind) in names]
        return f"Error on measured rows: {errors}. More: sweeper accuracy{''.join(flags)}"

    def _print_other_prices(self, best: Verdict, found: Sequence[Verdict], prices: str) -> None:
        """Print the cheapest design by another price list."""
        priced = {
            v.device: (next(iter(v.row["amounts"][prices].values())), v)
            for v in found
            if v.does and v.row is not None and v.row["amounts"][prices]
        }
        if not priced:
            print_words(
                f"The price list {prices} has no price for these GPUs; name another: --prices."
            )
            return
        cost, cheapest = min(priced.values(), key=lambda pair: pair[0])
        assert cheapest.row is not None
        same = "the same design" if cheapest is best else self._described(cheapest.row)
        print_words(f"Cheapest design at {prices} prices: {same}, {human(cost, '$')}.")

    def _beside(self, row: Row, second: Row) -> str:
        """Return the next best design compared with the best."""
        by = "cost" if row["cost"] and second["cost"] else self.question.without_price
        change = second[by] / row[by] - 1
        what = f"{by} {100 * change:+.0f} %" if abs(change) >= 0.005 else f"same {by}"
        only = "but only " if change < 0 and second["probability"] < row["probability"] else ""
        return f"Alternative: {self._described(second)}: {what}, {only}{_probability(second)}."

    def _print_nearest(self, found: Sequence[Verdict]) -> None:
        """Print that no design meets the deadlines, and the nearest one."""
        question = self.question
        print()
        within = " within the budget" if question.budget is not None else ""
        print_words(f"No design {question.among} meets the SLO{within}.")
        near = [(v.row, v.why) for v in found if v.row is not None]
        if near:
            row, why = min(near, key=lambda one: lateness(question, one[0]))
            times = (
                f"{self.last.word(d.metric)} {self.last.human(d.metric, row[d.metric])}"
                for d in question.deadlines
            )
            print_words(f"Nearest design: {self._described(row)}: {', '.join(times)}; {why}.")

    def _advice(self) -> str:
        """Return a hint: the budget that suffices, or the question's advice."""
        costs = [v.row.get("cost") for v in self.verdicts if v.row is not None]
        usd = min((usd for usd in costs if usd is not None), default=None)
        if usd is not None and len(list(self._by_load())) == 1:
            return f"A budget of ${math.ceil(100 * usd) / 100:.2f} is enough (--budget)."
        return " ".join(self.question.advice)

    def _print_next(self, bests: Sequence[Verdict]) -> None:
        """Print the command of the first answer, and the next commands to type."""
        row, name, at = bests[0].row, self.last.name, elsewhere(self.chosen.outputs)
        assert row is not None
        print()
        said = self._command(row)
        (print_words if said.startswith(NO_COMMAND) else print)(said.rstrip("\n"))
        print(f"\nNext   python -m sweeper report {name}{at}")
        for best in bests:
            assert best.row is not None
            key, said = best.row["key"][:SHOWN], self._said(best.given)
            behind = f"   # {said}" if len(bests) > 1 else ""
            target = self.question.target(best.row)
            print(f"       python -m sweeper export {name} {key} --target {target}{at}{behind}")

    def _described(self, row: Row) -> str:
        varied = self.last.space.varied
        details = (n for n in self.question.details if n in varied)
        return ", ".join([self.question.described(row), *(f"{n} {human(row[n])}" for n in details)])

    def _rests_on(self, row: Row) -> str:
        """Return the basis of the probability."""
        if row["stated"]:
            return "from the 90 % prediction intervals"
        return f"assuming a 90 % prediction interval of ±{100 * self.chosen.band:.0f} %"

    def _spans(self, row: Row) -> Iterator[str]:
        """Yield the 90 % interval of each latency with a deadline, where stated."""
        for d in self.question.deadlines:
            ends = [row.get(f"{d.interval}_{end}") for end in ("lo", "hi")]
            if all(ends) and row[d.interval]:
                low, high = (
                    self.last.human(d.metric, row[d.metric] * end / row[d.interval]) for end in ends
                )
                yield f"{self.last.word(d.metric)} {low} to {high}"

    def _next_best(self, best: Verdict) -> Row | None:
        """Return the cheapest design with other hardware, parallelism or replicas."""
        names, row = self.question.alternatives, best.row
        assert row is not None
        others = [r for v in self.verdicts if v.given == best.given for r in v.others]
        differing = [r for r in others if any(r[n] != row[n] for n in names)]
        return min(differing, key=self._price, default=None)

    def _price(self, row: Row) -> tuple[bool, float, float]:
        cost = row["cost"]
        return cost is None, cost or row[self.question.without_price], -row["probability"]

    def _command(self, row: Row) -> str:
        """Return the command that deploys the design, or the reason why there is none."""
        simulator, name = self.last.simulator, f"{self.last.name} {row['key'][:SHOWN]}"
        writer = known_beside(simulator, DEPLOYMENTS)
        assert isinstance(writer, Deploys)
        try:
            return writer.deployment(point_of(simulator, row), "", name)
        except UserError as refusal:
            return f"{NO_COMMAND}: {refusal}\n"


def _probability(row: Row) -> str:
    probability = row["probability"]
    return f"P(meets SLO) {'' if probability > ALL_BUT else '= '}{in_percent(probability)}"
