"""The verdict on each device under each load: its best design, or the reason for none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from sweeper.commands.ask.probability import Row, SloProbability
from sweeper.questions import Question
from sweeper.report.answers import Answers
from sweeper.store.store import Store
from sweeper.text import in_words, reason_in_words

_CANDIDATES = 400
"""Number of cheapest designs per device whose probabilities are computed."""
_MANY = 5
"""Multiple of a deadline from which the excess is printed as a factor."""


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
                over = 100.0 * (times - 1.0)
                said = f"{over:.0f}" if over >= 1.0 else "less than 1"
                yield f"{name} is {said} % over the deadline"
            else:
                yield f"{name} is {times:.0f} times the deadline"
    for name, said in question.excluded.items():
        if row[name]:
            yield said


def kept_with(store: Store) -> Path | None:
    """Return the folder of what an answer needs beside the rows; None for a remote store."""
    return None if "://" in store.folder else Path(store.folder, "prefilter", store.definition.id)
