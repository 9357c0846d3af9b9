"""Select the best design of each device that meets the SLO, or the reason why none does."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from sweeper.query.uncertainty import Z90, probability_within
from sweeper.questions import Question
from sweeper.report.answers import Answers
from sweeper.text import in_words, reason_in_words

_CANDIDATES = 400
"""Number of cheapest designs per device whose probabilities are computed."""

_MANY = 5
"""Multiple of a deadline from which the excess is printed as a factor."""

ALL_BUT, TINY = 0.99, 1e-9
"""Largest printed probability, and the tolerance of rounding down to percent."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class SloProbability:
    """Compute P(meets SLO) of designs and compare the result with the requested minimum."""

    question: Question
    least: float  # required probability
    band: float  # half-width of the 90 % interval where none is stated

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a row that the probability needs."""
        times = [d.metric for d in self.question.deadlines]
        means = [d.interval for d in self.question.deadlines]
        ends = [f"{name}_{end}" for name in means for end in ("lo", "hi")]
        return tuple(dict.fromkeys((*times, *means, *ends, *self.question.excluded)))

    def misses(self, rows: pl.DataFrame) -> NDArray[np.float64]:
        """Return the factor by which rows miss the SLO or the probability; 1 or less passes."""
        return np.array([self._miss(row) for row in rows.iter_rows(named=True)], np.float64)

    def prefilter(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return a lower bound of the ratio of each point's latency to the deadline."""
        if self.question.prefilter is None:
            return np.ones(batch.num_rows)
        return self.question.prefilter(batch)

    def _miss(self, row: Row) -> float:
        deadlines = self.question.deadlines
        if any(row.get(d.metric) is None for d in deadlines):
            return math.inf
        worst = max(row[d.metric] / d.limit * self._margin(row, d) for d in deadlines)
        if any(row[name] for name in self.question.excluded):
            return float(max(worst, 2.0))
        does = lateness(self.question, row) <= 1.0 and self.probability(row)[0] >= self.least
        return float(min(worst, 1.0) if does else max(worst, math.nextafter(1.0, 2.0)))

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


def lateness(question: Question, row: Row) -> float:
    """Return the largest ratio of a latency to its deadline."""
    return max(float(row[d.metric]) / d.limit for d in question.deadlines)


@dataclass(frozen=True)
class Verdict:
    """The verdict on one device under one load."""

    given: Mapping[str, Any]  # the model and load
    device: str
    row: Row | None  # the best design, or the nearest
    does: bool  # whether the design meets the deadlines
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
    """Return the verdict on the rows of one device under one load."""
    deadlines = [pl.col(d.metric) / d.limit for d in question.deadlines]
    flaws = [pl.col(name).cast(pl.Boolean) for name in question.excluded]
    judged = (
        rows.filter(pl.col("status").cast(pl.String) == "ok")
        .with_columns(__late=pl.max_horizontal(*deadlines))
        .filter(pl.col("__late").is_not_null())
        .with_columns(__flawed=pl.any_horizontal(pl.lit(False), *flaws))
    )
    meets = (pl.col("__late") <= 1.0) & ~pl.col("__flawed")
    found = judged.filter(meets).bottom_k(_CANDIDATES, by=question.without_price).collect()
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
    """Return a row with its probability, and its cost in each price list."""
    probability, stated = slo.probability(row)
    amounts = {prices: dict(question.amounts(row, prices)) for prices in question.prices}
    first = next(iter(amounts[question.prices[0]].values()), None)
    return {**row, "probability": probability, "stated": stated, "amounts": amounts, "cost": first}


def _usual_reason(rows: pl.LazyFrame) -> str:
    """Return the most common reason of infeasible rows as a sentence."""
    reasons = rows.select("reason").collect()["reason"].drop_nulls().cast(pl.String)
    if reasons.is_empty():
        return "the model does not fit"
    common = reasons.str.split(":").list.first().mode().sort()[0]
    return reason_in_words(next(text for text in reasons if text.startswith(common)))


def _flaws(question: Question, row: Row) -> Iterator[str]:
    """Yield the reasons against a design."""
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
