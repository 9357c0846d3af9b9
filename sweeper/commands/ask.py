"""A question by flags, which a simulator declares, answered by the cheapest design that meets it.

The question is written down as a space like any other, swept, and answered; the sweep stays, so
that every other command can go on from it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from simulators.core.contract import default_of, deploys, load_simulator
from simulators.core.errors import UserError
from simulators.core.questions import Asks, Question, askable
from sweeper.commands.flags import at_least, flags
from sweeper.commands.run import asked_by, sweep
from sweeper.query.pareto import qualifying
from sweeper.query.planning import cheapest
from sweeper.query.uncertainty import chance_within
from sweeper.report.answers import Answers, point_of
from sweeper.report.evidence import evidence
from sweeper.report.headlines import sentences
from sweeper.report.shares import by_measurements, in_words, shares_of_row, weakest_in_words
from sweeper.report.tables import write_text
from sweeper.store.keys import SHOWN
from sweeper.units import human

_CANDIDATES = 1000
"""Designs that meet the deadlines among which a sure one is looked for, the cheapest first."""

Row = Mapping[str, Any]


def main(words: list[str]) -> int:
    """Ask, sweep and print the answer; exit code 1 when no design meets the deadlines."""
    named = bool(words) and not words[0].startswith("-")
    simulator = load_simulator(words[0] if named else askable()[0])
    if not isinstance(simulator, Asks):
        able = ", ".join(askable())
        raise UserError(f"'{simulator.name}' cannot be asked by flags; of the shipped, {able} can")
    chosen, question = _parsed(simulator, words[1:] if named else words)
    file = Path(chosen.outputs) / "spaces" / f"{question.name}.yaml"
    said = (f"{key}: {json.dumps(value)}\n" for key, value in question.space.items())
    write_text(file, f"# {question.asks}\n{''.join(said)}")  # JSON is YAML
    asked = asked_by([f"+space={file}", f"outputs={chosen.outputs}", f"engine={chosen.engine_}"])
    if sum(asked.sweep.space.removed().values()) == asked.sweep.space.size:
        raise UserError(question.too_large)
    last = sweep(asked).answers
    cost = question.cost if question.cost in last.objectives else question.without_cost
    try:
        best = cheapest(last.results, cost, str(last.where), count=_CANDIDATES)
    except UserError:
        return _nothing(question, last)
    rows = []
    for row in last.named(best).iter_rows(named=True):
        chance, stated = _chance(question, row, chosen.band)
        rows.append(row | {"chance": chance, "stated": stated})
    if cost != question.cost:  # which many designs share: the surest of them
        rows.sort(key=lambda row: (row[cost], -row["chance"]))
    sure = [row for row in rows if row["chance"] >= chosen.sure]
    first = sure[0] if sure else max(rows, key=lambda row: row["chance"])
    answer = _Answer(question, last, first, rows, cost, chosen)
    if chosen.json:
        print(json.dumps(answer.to_dict(), indent=1, default=str))
    else:
        answer.print()
    return 0


def _parsed(simulator: Asks, words: list[str]) -> tuple[argparse.Namespace, Question]:
    """Return the flags, and the question that the simulator makes of its own."""
    parser = flags("ask", "the cheapest deployment that carries a load within its deadlines")
    fields = dataclasses.fields(simulator.flags)
    hints = typing.get_type_hints(simulator.flags)
    for f in fields:
        kind, default, least = hints[f.name], default_of(f), f.metadata["least"]
        if isinstance(kind, types.UnionType):
            kind = next(k for k in typing.get_args(kind) if k is not type(None))
        required = default is dataclasses.MISSING
        parser.add_argument(
            f"--{f.name}",
            type=kind if least is None else at_least(least),
            help=f.metadata["doc"],
            choices=f.metadata["choices"] or None,
            required=required,
            default=None if required else default,
        )
    parser.add_argument(
        "--sure",
        type=_share,
        default=0.8,
        help="how likely the deadlines are to be met, as in 0.9 or 90 (0.8)",
    )
    parser.add_argument(
        "--band", type=float, default=0.2, help="half the 90 %% interval where none is stated"
    )
    parser.add_argument("--outputs", default="outputs")
    parser.add_argument(
        "--run-with", dest="engine_", metavar="HOW", default="auto", help="inline, ray or auto"
    )
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    asked = simulator.flags(**{f.name: getattr(chosen, f.name) for f in fields})
    return chosen, simulator.question(asked)


def _share(word: str) -> float:
    """Return a chance that is given as a share or in percent.

    >>> _share("0.9"), _share("90"), _share("90%")
    (0.9, 0.9, 0.9)
    """
    try:
        number = float(word.removesuffix("%"))
    except ValueError:
        number = -1.0
    share = number / 100.0 if number > 1.0 or word.endswith("%") else number
    if not 0.0 <= share < 1.0:
        raise argparse.ArgumentTypeError(f"'{word}' is no chance; write 0.9 or 90")
    return share


def _chance(question: Question, row: Row, band: float) -> tuple[float, bool]:
    """Return the chance that a design meets all deadlines, and whether intervals were stated."""
    chance, stated = 1.0, True
    for d in question.deadlines:
        one, known = chance_within(row, d.metric, d.limit, interval=d.interval, band=band)
        chance, stated = chance * one, stated and known
    return chance, stated


@dataclass(frozen=True)
class _Answer:
    """The design that answers a question, among those that meet its deadlines."""

    question: Question
    last: Answers
    row: Row
    rows: Sequence[Row]
    cost: str  # the metric that is kept lowest
    chosen: argparse.Namespace

    def print(self) -> None:
        """Print the design, how sure it is, the next best and the command that deploys it."""
        question, last, row, name = self.question, self.last, self.row, self.last.name
        print(f"\n{_described(question, last, row)}")
        costs = [f"{human(usd, '$')} {words}" for words, usd in question.costs(row).items()]
        shown = [f"{n} {last.human(n, row[n])}" for n in question.shown if row.get(n)]
        limits = [f"{d.metric} <= {last.human(d.metric, d.limit)}" for d in question.deadlines]
        print(f"  {', '.join(costs) or 'no price'}\n  {', '.join(shown)}")
        print(f"Deadlines: {', '.join(limits)}.")
        print(f"How sure: meets both deadlines with {row['chance']:.0%} ({self.rests_on}).")
        for said in sentences(evidence(last.space.simulator)):
            print(f"  {said}")
        if said := in_words(shares_of_row(row)):
            print(f"Of its time {said}{weakest_in_words(last.simulator, row)}.")
        _print_devices(question, last)
        if (second := self.next_best) is not None:
            change = second[self.cost] / row[self.cost] - 1
            word = "Cheaper" if change < 0 else "Next best"
            of = "cost" if self.cost == question.cost else self.cost
            said = f"{word}, {change:+.0%} in {of}, {second['chance']:.0%} sure"
            print(f"{said}: {_described(question, last, second)}")
        for note in last.notes:
            print(note)
        print(f"\n{self.command}")
        where = self.chosen.outputs
        at = "" if where == "outputs" else f" --outputs {where}"
        key = row["key"][:SHOWN]
        print(f"Next   python -m sweeper report {name}{at}")
        print(f"       python -m sweeper export {name} {key} --target {question.target}{at}")

    def to_dict(self) -> dict[str, Any]:
        """Return the same for programs."""
        return {
            "space": self.last.name,
            "design": self.row,
            "chance": self.row["chance"],
            "chance_rests_on": self.rests_on,
            "time_rests_on": {
                row[self.question.device]: shares_of_row(row)
                for row in _best_of_devices(self.question, self.last)
            },
            "next_best": self.next_best,
            "command": self.command,
            "notes": list(self.last.notes),
        }

    @property
    def rests_on(self) -> str:
        """What the chance rests on."""
        if _chance(self.question, self.row, self.chosen.band)[1]:
            return "by the intervals the simulator states"
        return f"if predictions err by up to {self.chosen.band:.0%}, nine times in ten"

    @property
    def next_best(self) -> Row | None:
        """The cheapest design on other hardware, or cut or replicated otherwise."""
        names = self.question.alternatives
        return next((r for r in self.rows if any(r[n] != self.row[n] for n in names)), None)

    @property
    def command(self) -> str:
        """What deploys the design, or why nothing does."""
        simulator, name = self.last.simulator, f"{self.last.name} {self.row['key'][:SHOWN]}"
        writer = deploys(simulator)
        assert writer is not None
        try:
            return writer.deployment(point_of(simulator, self.row), "", name)
        except UserError as refusal:
            return f"No command: {refusal}\n"


def _described(question: Question, last: Answers, row: Row) -> str:
    details = (n for n in question.details if n in last.space.varied)
    return ", ".join([question.described(row), *(f"{n} {human(row[n])}" for n in details)])


def _feasible(question: Question, last: Answers) -> pl.LazyFrame:
    """Return the designs that can exist, with the worst of their times over their deadlines."""
    ratios = [pl.col(d.metric) / d.limit for d in question.deadlines]
    return qualifying(last.results).with_columns(__miss=pl.max_horizontal(ratios))


def _best_of_devices(question: Question, last: Answers) -> list[dict[str, Any]]:
    """Return of each device the cheapest design that meets the deadlines, else the nearest one."""
    late = _feasible(question, last).with_columns(__late=pl.max_horizontal(1.0, "__miss"))
    ranked = late.sort("__late", question.cost, question.without_cost, nulls_last=True)
    return ranked.unique(question.device, keep="first", maintain_order=True).collect().to_dicts()


def _print_devices(question: Question, last: Answers) -> None:
    """Print how much of the time of each device's best design rests on measurements."""
    rows = _best_of_devices(question, last)
    said = ", ".join(f"{row[question.device]} {by_measurements(row):.0%}" for row in rows)
    print(f"Time by measured or fitted figures, best design of each {question.device}: {said}.")


def _nothing(question: Question, last: Answers) -> int:
    """Say that nothing meets the deadlines, and which design comes nearest."""
    print(f"\nNo design {question.among} meets {last.where}.")
    near = _feasible(question, last).bottom_k(1, by="__miss").collect()
    if len(near):
        row = near.row(0, named=True)
        said = ", ".join(
            f"{d.metric} {last.human(d.metric, row[d.metric])}" for d in question.deadlines
        )
        warned = "".join(f"; {words}" for name, words in question.warnings.items() if row[name])
        print(f"Nearest: {_described(question, last, row)}: {said}{warned}.")
        _print_devices(question, last)
        print("\n".join((*question.advice, *last.notes)))
    else:
        print("None of them is feasible:")
        for reason, count in last.reasons.items():
            print(f"  {count:,} {reason}")
    return 1
