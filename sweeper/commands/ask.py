"""The command `ask`: find the cheapest design that meets an SLO.

The flags, which the simulator declares, become a space file. The command sweeps the space and
prints the best design of each device with P(meets SLO) and the deployment; all other commands work
on the stored sweep. If designs have replicas, the search looks for the smallest number of replicas.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import io
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.contract import Simulator, load_simulator
from simulators.core.errors import UserError
from sweeper.commands.flags import question_parser, simulator_asked
from sweeper.commands.run import Asked, asked_by, sweep
from sweeper.engines import load_engine
from sweeper.engines.chunks import hinted
from sweeper.query.uncertainty import Z90, probability_within
from sweeper.questions import (
    DEPLOYMENTS,
    QUESTIONS,
    Asks,
    Benchmarks,
    Deploys,
    Question,
    known_beside,
)
from sweeper.report import evidence, relaxed
from sweeper.report.answers import Answers, point_of
from sweeper.report.summary import elsewhere
from sweeper.report.tables import print_table, print_words, write_text
from sweeper.samplers._min_replicas import MinReplicasSearch
from sweeper.store.keys import SHOWN
from sweeper.store.store import Store
from sweeper.text import counted, human, in_words, reason_in_words

_SHORT_SWEEP_S = 2.0
"""CPU-seconds of work below which starting a worker process takes longer than the sweep."""
_LONG_SWEEP_S = 600.0
"""CPU-seconds of work from which the engine `auto` chooses, which starts Ray."""
_CANDIDATES = 400
"""Number of cheapest designs per device whose probabilities are computed."""
_MANY = 5
"""Multiple of a deadline from which the excess is printed as a factor."""
ALL_BUT, TINY = 0.99, 1e-9
"""Largest printed probability, and the tolerance of rounding down to percent."""
EVEN, _SURER = 0.5, 0.05
"""Least probability of a cheaper alternative, and least gain in probability of a dearer one."""
_CHECKS = 2
"""Accuracy checks printed."""
_NEARER = 0.98
"""Factor of the miss from which twice the devices do not help."""
NO_COMMAND = "No command"

Row = Mapping[str, Any]


def main(words: list[str]) -> int:
    """Sweep and print the answer; the exit code is 1 if no design meets the SLO."""
    answer = answer_to(words)
    if answer.chosen.json:
        print(json.dumps(answer.to_dict(), indent=1, default=str))
    else:
        answer.print()
    return 0 if answer.is_found else 1


def ask(simulator: str = "", **flags: Any) -> Answer:
    """Return the answer to a question, for a notebook, which shows it as the command prints it.

    Args:
        simulator: empty, or `training`.
        flags: the flags of the command, as in `model="llama3_1_8b", gpu=["h100", "l40s"], qps=2`.

    Raises:
        UserError: a flag is missing, unknown or invalid.
    """
    words = [simulator] if simulator else list[str]()
    for name, value in flags.items():
        values = value if isinstance(value, list | tuple) else [value]
        words += [f"--{name.replace('_', '-')}", ",".join(map(str, values))]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return answer_to(words)


def answer_to(words: list[str]) -> Answer:
    """Sweep and return the answer to a question by flags."""
    name, words = simulator_asked(words, QUESTIONS.names())
    chosen, question = parsed(asks_of(load_simulator(name)), words)
    return _grown(question, chosen)


def _grown(question: Question, chosen: argparse.Namespace) -> Answer:
    """Return the answer with the devices of the question, or twice as many until there is one.

    A question stops growing when twice the devices bring the nearest design no nearer.
    """
    before = math.inf
    while True:
        is_last = question.larger is None or not question.is_grown
        answer = answered(question, chosen, is_last=is_last)
        if answer is not None:
            miss = answer.miss
            if answer.is_found or is_last or miss <= 1.0 or miss > _NEARER * before:
                return answer
            before = miss
        assert question.larger is not None
        question = dataclasses.replace(question.larger(), is_grown=True)


def answered(
    question: Question, chosen: argparse.Namespace, *, is_last: bool = True
) -> Answer | None:
    """Return the answer to a question; None without any point, or an error if it is the last."""
    file = Path(chosen.outputs) / "spaces" / f"{question.name}.yaml"
    said = (f"{key}: {json.dumps(value)}\n" for key, value in question.space.items())
    write_text(file, f"# {question.asks}\n{''.join(said)}")  # JSON is YAML
    asked = asked_by([f"+space={file}", f"outputs={chosen.outputs}", f"engine={chosen.engine_}"])
    if sum(asked.sweep.space.removed().values()) == asked.sweep.space.size:
        if is_last:
            raise UserError(question.too_large)
        return None
    slo = SloProbability(question, chosen.confidence, chosen.band, _kept(asked.sweep.store))
    last = sweep(_fewest(asked, question, slo, is_free=chosen.engine_ == "auto")).answers
    return Answer(question, last, verdicts(question, last, slo), chosen)


def _kept(store: Store) -> Path | None:
    """Return the folder of what an answer needs beside the rows; None for a remote store."""
    return None if "://" in store.folder else Path(store.folder, "prefilter", store.definition.id)


def _fewest(asked: Asked, question: Question, slo: SloProbability, *, is_free: bool) -> Asked:
    """Return a sweep that searches for the fewest replicas, if the question has a replica axis.

    The prefilter already loads the simulator in this process, so small sweeps also run here, and
    larger ones on all cores, unless the user named an engine.
    """
    if not question.copies:
        return asked
    given = (*question.given, question.device)
    sampler = MinReplicasSearch(
        question.copies,
        question.devices,
        given,
        slo,
        question.options,
        question.contrast[0] if question.contrast else "",
    )
    space, engine = asked.sweep.space, asked.sweep.engine
    guess = hinted(space) if is_free else None
    if guess is not None:
        work_s = guess.point_s / space.share * sampler.size(space)
        if work_s < _LONG_SWEEP_S:
            engine = load_engine("process", workers=0)
        if work_s < _SHORT_SWEEP_S:
            engine = load_engine("inline")
    searched = dataclasses.replace(asked.sweep, sampler=sampler, engine=engine)
    return asked._replace(sweep=searched, faster=question.faster)


def asks_of(simulator: Simulator) -> Asks:
    """Return what `ask` can ask of a simulator."""
    asks = known_beside(simulator, QUESTIONS)
    if not isinstance(asks, Asks):
        able = ", ".join(QUESTIONS.names())
        raise UserError(
            f"`ask` does not support the simulator '{simulator.name}'; it supports {able}"
        )
    return asks


def parsed(asks: Asks, words: list[str]) -> tuple[argparse.Namespace, Question]:
    """Return the parsed flags and the question built from them."""
    chosen = question_parser(asks.flags).parse_args(words)
    asked = asks.flags(**{f.name: getattr(chosen, f.name) for f in dataclasses.fields(asks.flags)})
    return chosen, asks.question(asked)


@dataclass(frozen=True)
class SloProbability:
    """Compute P(meets SLO) of designs and compare the result with the requested minimum."""

    question: Question
    least: float  # required probability
    band: float  # half-width of the 90 % interval where none is stated
    kept: Path | None = None  # folder of the prefilter's results, which later runs read

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a row that the probability needs."""
        times = [d.metric for d in self.question.deadlines]
        means = [d.interval for d in self.question.deadlines]
        ends = [f"{name}_{end}" for name in means for end in ("lo", "hi")]
        return tuple(dict.fromkeys((*times, *means, *ends, *self.question.excluded)))

    def misses(self, rows: pl.DataFrame) -> NDArray[np.float64]:
        """Return the factor by which rows miss the SLO or the probability; 1 or less passes."""
        return np.array([self.miss(row) for row in rows.iter_rows(named=True)], np.float64)

    def prefilter(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return a lower bound of the ratio of each point's latency to the deadline."""
        if self.question.prefilter is None:
            return np.ones(batch.num_rows)
        if self.kept is None:
            return self.question.prefilter(batch)
        source = Path(inspect.getfile(type(self.question.prefilter))).read_bytes()
        name = hashlib.blake2b(source + batch.serialize().to_pybytes(), digest_size=16).hexdigest()
        file = self.kept / f"{name}.npy"
        if file.is_file():
            ratios: NDArray[np.float64] = np.load(file, allow_pickle=False)
            return ratios
        ratios = self.question.prefilter(batch)
        self.kept.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.kept, delete=False) as stream:
            np.save(stream, ratios)
        Path(stream.name).replace(file)  # whole, or not there
        return ratios

    def miss(self, row: Row) -> float:
        """Return the factor by which a row misses the SLO or the probability."""
        deadlines = self.question.deadlines
        if any(row.get(d.metric) is None for d in deadlines):
            return math.inf
        worst = max(row[d.metric] / d.limit * self._margin(row, d) for d in deadlines)
        if any(row[name] for name in self.question.excluded):
            return float(max(worst, 2.0))
        is_met = lateness(self.question, row) <= 1.0 and self.probability(row)[0] >= self.least
        return float(min(worst, 1.0) if is_met else max(worst, math.nextafter(1.0, 2.0)))

    def _margin(self, row: Row, deadline: Any) -> float:
        """Return the factor by which a latency must stay below its deadline."""
        low, high = row.get(f"{deadline.interval}_lo"), row.get(f"{deadline.interval}_hi")
        sigma, middle = math.log1p(self.band) / Z90, 0.0
        if low and high:
            sigma = math.log(high / low) / (2 * Z90)
            middle = math.log(low * high) / 2 - math.log(row[deadline.interval])
        z = statistics.NormalDist().inv_cdf(max(self.least, 0.5))
        return max(1.0, math.exp(z * sigma + middle))

    def probability(self, row: Row) -> tuple[float, bool]:
        """Return the probability to meet all deadlines, and whether it uses stated intervals."""
        probability, stated = 1.0, True
        for d in self.question.deadlines:
            one, known = probability_within(
                row, d.metric, d.limit, interval=d.interval, band=self.band
            )
            probability, stated = probability * one, stated and known
        return probability, stated


def in_percent(probability: float) -> str:
    """Return a probability in percent, rounded down.

    >>> in_percent(0.796), in_percent(0.8), in_percent(0.9999)
    ('79 %', '80 %', '> 99 %')
    """
    return "> 99 %" if probability > ALL_BUT else f"{math.floor(100.0 * probability + TINY):.0f} %"


def is_measured(row: Row) -> bool:
    """Return whether at least half of a design's time rests on measured or fitted kernels.

    Designs that state no evidence count as measured.
    """
    return not evidence.shares_of_row(row) or evidence.by_measurements(row) >= EVEN


def lateness(question: Question, row: Row) -> float:
    """Return the largest ratio of a latency to its deadline."""
    return max(float(row[d.metric]) / d.limit for d in question.deadlines)


@dataclass(frozen=True)
class Verdict:
    """The verdict on one device under one load."""

    given: Mapping[str, Any]  # the model and load
    device: str
    row: Row | None  # the best design, or the nearest
    meets_slo: bool  # whether the design meets the deadlines
    why: str  # reason or remark
    others: Sequence[Row]  # other designs that meet the deadlines, cheapest first

    @property
    def design(self) -> Row:
        """The row, which a verdict on a device with candidates has."""
        assert self.row is not None
        return self.row


def verdicts(question: Question, last: Answers, slo: SloProbability) -> list[Verdict]:
    """Return a verdict on each device for each combination of given values."""
    rows = last.named(last.results.collect()).lazy()
    devices = dict.fromkeys((*map(str, last.space.axes[question.device]), *question.refused))
    values = [dict.fromkeys(last.space.axes[name]) for name in question.given]
    found = []
    for combination in product(*values):
        given = dict(zip(question.given, combination, strict=True))
        alike = rows.filter(pl.all_horizontal(pl.col(n).eq_missing(v) for n, v in given.items()))
        for device in devices:
            verdict = functools.partial(Verdict, given, device)
            if device in question.refused:
                found.append(verdict(None, False, question.refused[device], ()))
            else:
                own = alike.filter(pl.col(question.device) == device)
                found.append(_verdict(question, slo, own, verdict))
    return found


def _verdict(
    question: Question, slo: SloProbability, rows: pl.LazyFrame, verdict: Callable[..., Verdict]
) -> Verdict:
    deadlines = [pl.col(d.metric) / d.limit for d in question.deadlines]
    flaws = [pl.col(name).cast(pl.Boolean) for name in question.excluded]
    judged = (
        rows.filter(pl.col("status").cast(pl.String) == "ok")
        .with_columns(__late=pl.max_horizontal(*deadlines))
        .filter(pl.col("__late").is_not_null())
        .with_columns(__flawed=pl.any_horizontal(pl.lit(False), *flaws))
    )
    meets = (pl.col("__late") <= 1.0) & ~pl.col("__flawed")
    kinds = [pl.lit(True)]
    if question.contrast:
        kinds = [pl.col(question.contrast[0]) == 0, pl.col(question.contrast[0]) > 0]
    found = pl.concat(
        judged.filter(meets & kind).bottom_k(_CANDIDATES, by=question.without_price)
        for kind in kinds
    ).collect()
    if found.is_empty():
        near = judged.bottom_k(1, by="__late").collect().to_dicts()
        why = "; ".join(_flaws(question, near[0])) if near else _usual_reason(rows)
        return verdict(near[0] if near else None, False, why, ())
    priced = [_priced(question, slo, row) for row in found.iter_rows(named=True)]
    if question.budget is not None:
        within = [row for row in priced if row["cost"] is None or row["cost"] <= question.budget]
        if not within:
            least = min(priced, key=lambda row: float(row["cost"]))
            words = next(iter(least["amounts"][question.prices[0]]))
            cost = f"costs ${least['cost']:.2f} {words}"
            return verdict(least, False, f"{cost}, above the budget of ${question.budget:g}", ())
        priced = within
    priced.sort(
        key=lambda row: (row["cost"] or 0.0, row[question.without_price], -row["probability"])
    )
    if enough := [row for row in priced if row["probability"] >= slo.least]:
        by = question.without_price if enough[0]["cost"] is None else "cost"
        cheapest = [row for row in enough if row[by] == enough[0][by]]
        return verdict(max(cheapest, key=lambda row: row["probability"]), True, "", priced)
    best = max(priced, key=lambda row: row["probability"])
    why = f"no design reaches P(meets SLO) = {100.0 * slo.least:g} %"
    return verdict(best, True, why, priced)


def _priced(question: Question, slo: SloProbability, row: Row) -> dict[str, Any]:
    probability, stated = slo.probability(row)
    amounts = {prices: dict(question.amounts(row, prices)) for prices in question.prices}
    first = next(iter(amounts[question.prices[0]].values()), None)
    return {**row, "probability": probability, "stated": stated, "amounts": amounts, "cost": first}


def _usual_reason(rows: pl.LazyFrame) -> str:
    reasons = rows.select("reason").collect()["reason"].drop_nulls().cast(pl.String)
    if reasons.is_empty():
        return "the model does not fit"
    common = reasons.str.split(":").list.first().mode().sort()[0]
    return reason_in_words(next(text for text in reasons if text.startswith(common)))


def _flaws(question: Question, row: Row) -> Iterator[str]:
    for d in question.deadlines:
        if row[d.metric] > d.limit:
            times = row[d.metric] / d.limit
            name = in_words(d.metric, "s")
            if times < _MANY:
                yield f"{name} is {100 * (times - 1):.0f} % over the deadline"
            else:
                yield f"{name} is {times:.0f} times the deadline"
    for name, said in question.excluded.items():
        if row[name]:
            yield said


@dataclass(frozen=True)
class Answer:
    """The answer to a question: verdicts on all devices under each load."""

    question: Question
    last: Answers
    verdicts: Sequence[Verdict]
    chosen: argparse.Namespace

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

        found = relaxed.relaxations(self, lambda question: _grown(question, self.chosen))
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
            "searched": dict(zip(("designs", "simulated"), self._searched, strict=True)),
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
        return f"Searched: {counted(designs, 'design')}{names}; {simulated:,} of them simulated."

    @functools.cached_property
    def _loads(self) -> list[tuple[Mapping[str, Any], list[Verdict], Verdict | None]]:
        """Each load with the verdicts on all devices and the best of the verdicts."""
        groups = groupby(self.verdicts, key=lambda verdict: tuple(verdict.given.items()))
        loads = [list(found) for _, found in groups]
        return [(found[0].given, found, self._best(found)) for found in loads]

    def _best(self, found: Sequence[Verdict]) -> Verdict | None:
        """Return the cheapest design that is likely enough; if none is, the most likely design."""

        def rank(verdict: Verdict) -> tuple[bool, bool, float, float]:
            is_unpriced, cost, doubt = self._price(verdict.design)
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
        if second is None or first.why or self._is_clearly_cheaper(first.design, second.design):
            return first
        return second

    def _is_clearly_cheaper(self, row: Row, other: Row) -> bool:
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
            (r for r in others if any(r[n] != row[n] for n in names)), key=self._price
        )
        front: list[Row] = []
        for other in differing:
            if not front or other["probability"] > front[-1]["probability"]:
                front.append(other)
        cheaper = [
            r
            for r in front
            if self._price(r)[:2] < self._price(row)[:2] and r["probability"] > EVEN
        ]
        surer = [
            r
            for r in front
            if self._price(r)[:2] >= self._price(row)[:2]
            and r["probability"] >= row["probability"] + _SURER
        ]
        places = dict.fromkeys((len(cheaper) - 1, len(cheaper) // 2, 0)) if cheaper else ()
        return [*(cheaper[place] for place in places), *surer[:1]] or differing[:1]

    def _price(self, row: Row) -> tuple[bool, float, float]:
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
        for second in self._alternatives(best):
            print_words(self._alternative(row, second))
        if question.contrast:
            print_words(self._contrast(best, *question.contrast))
        for prices in question.prices[1:]:
            self._print_other_prices(best, found, prices)

    def _weakest(self, row: Row) -> str:
        """Return the operator with the weakest evidence as text, which is kept with the rows."""
        kept = _kept(self.last.store)
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
            return f"Accuracy: no measured rows name {' or '.join(names)}."
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
        second = min(likely, key=self._price)
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
        if isinstance(known_beside(self.last.simulator, DEPLOYMENTS), Benchmarks):
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
        writer = known_beside(simulator, DEPLOYMENTS)
        assert isinstance(writer, Deploys)
        try:
            return writer.deployment(point_of(simulator, row), "", name)
        except UserError as refusal:
            return f"{NO_COMMAND}: {refusal}\n"


def _probability(row: Row) -> str:
    probability = row["probability"]
    return f"P(meets SLO) {'' if probability > ALL_BUT else '= '}{in_percent(probability)}"
