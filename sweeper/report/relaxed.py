"""`ask --relax`: the least relaxation of each limit alone that changes the answer.

Candidates are the simulated designs that cost less than the answer; without an answer, all. A
relaxed limit is asked again, so that its answer is that of the question with this limit. Smaller
limits follow, those that simulated designs need first, until one that is 2 % less changes nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from sweeper.query.relaxation import least_limit, rounded_up
from sweeper.questions import Deadline, Question
from sweeper.report.answers import Answers
from sweeper.text import human

_MOST_TURNS = 12
"""Questions asked for one limit."""
_STEP = 1.02
"""Factor within which a relaxed limit is the least."""

Row = Mapping[str, Any]


class Answered(Protocol):
    """An answer as relaxations need it."""

    @property
    def question(self) -> Question:
        """The question."""

    @property
    def last(self) -> Answers:
        """The rows of the sweep."""

    @property
    def design(self) -> Row | None:
        """The best design; None without one."""

    @property
    def is_found(self) -> bool:
        """Whether some design meets the deadlines under every load."""

    def is_likely(self, row: Row, question: Question) -> bool:
        """Return whether a row meets the deadlines of a question with the requested probability."""


@dataclass(frozen=True)
class Relaxation:
    """The least relaxation of one limit, and the answer with it; none if no relaxation helps."""

    name: str  # metric of a deadline, or the device limit
    limit: float
    relaxed: float | None = None
    answer: Answered | None = None


def relaxations(answer: Answered, ask: Callable[[Question], Answered]) -> Iterator[Relaxation]:
    """Yield the least relaxation of each limit; `ask` answers a question.

    With an answer, relaxations make it cheaper; without one, they give one.
    """
    question = answer.question
    if question.relaxed is None:
        return
    for deadline in question.deadlines:
        yield _relaxation(answer, deadline, question.relaxed, ask)
    if not answer.is_found and question.larger is not None:
        yield _more_devices(question, ask)


def _more_devices(question: Question, ask: Callable[[Question], Answered]) -> Relaxation:
    """Return the fewest devices with an answer: doubled until there is one, then bisected."""
    assert question.larger is not None
    assert question.sized is not None
    found = Relaxation(question.without_price, float(question.most_devices))
    other, fails = ask(dataclasses.replace(question.larger(), is_grown=True)), question.most_devices
    size = other.question.most_devices
    while True:
        if other.design is None:
            fails = size
        else:
            size = int(other.design[question.without_price])
            found = dataclasses.replace(found, relaxed=float(size), answer=other)
        if found.relaxed is None or found.relaxed - fails <= 1:
            return found
        size = (fails + int(found.relaxed)) // 2
        other = ask(question.sized(size))


def _relaxation(
    answer: Answered,
    deadline: Deadline,
    relaxed: Callable[[Mapping[str, float]], Question],
    ask: Callable[[Question], Answered],
) -> Relaxation:
    found = Relaxation(deadline.metric, deadline.limit)
    most = math.inf if answer.design is None else _price(answer.question, answer.design)
    fails, wider = deadline.limit, _printable(_least(answer, deadline, most))
    is_probed = False
    for _ in range(_MOST_TURNS):
        if not fails < wider < math.inf:
            break
        other = ask(relaxed({deadline.metric: wider}))
        if other.design is None or not _price(other.question, other.design) < most:
            fails = wider
        else:
            found = dataclasses.replace(found, relaxed=wider, answer=other)
        if found.relaxed is None:  # the search did not find the design again
            wider = _printable(wider * _STEP)
            continue
        if found.relaxed <= fails * _STEP:
            break
        wider = _printable(_least(other, deadline, most))
        if not fails * _STEP < wider < found.relaxed:
            wider = found.relaxed / _STEP if not is_probed else _middle(fails, found.relaxed)
            wider, is_probed = _printable(wider), True
        if wider >= found.relaxed:
            break
    return found


def _middle(low: float, high: float) -> float:
    return math.sqrt(low * high)


def _printable(limit: float) -> float:
    return rounded_up(limit) if math.isfinite(limit) else limit


def _least(answer: Answered, deadline: Deadline, most: float) -> float:
    """Return the least limit of a deadline with which a cheaper simulated design is an answer."""
    question = answer.question
    others = [d for d in question.deadlines if d.metric != deadline.metric]
    rows = answer.last.named(answer.last.results.collect())
    rows = rows.filter(pl.col("status").cast(pl.String) == "ok")
    known = [row for row in rows.iter_rows(named=True) if row.get(deadline.metric) is not None]

    def first(row: Row) -> float:
        is_slow = any(row[d.metric] is None or row[d.metric] > d.limit for d in others)
        is_flawed = any(row[name] for name in question.excluded)
        return math.inf if is_slow or is_flawed else max(float(row[deadline.metric]), 1e-9)

    def meets(row: Row, limit: float) -> bool:
        own = dataclasses.replace(deadline, limit=limit)
        return answer.is_likely(row, dataclasses.replace(question, deadlines=(*others, own)))

    budget = math.inf if question.budget is None else question.budget
    cheaper = (row for row in known if _price(question, row) < most * (1.0 - 1e-9))
    return least_limit((row for row in cheaper if _price(question, row) <= budget), first, meets)


def _price(question: Question, row: Row) -> float:
    amounts = question.amounts(row, question.prices[0])
    return float(next(iter(amounts.values()), row[question.without_price]))


def in_words(answer: Answered, one: Relaxation) -> str:
    """Return a relaxation as a sentence."""
    question, last = answer.question, answer.last
    is_size = one.name == question.without_price
    name = one.name if is_size else last.word(one.name)
    what = "gives an answer" if answer.design is None else "saves anything"
    if one.relaxed is None or one.answer is None or one.answer.design is None:
        return f"{name}: no larger limit alone {what}."
    ends = [f"{x:.0f}" if is_size else last.human(one.name, x) for x in (one.limit, one.relaxed)]
    design = one.answer.design
    said = f"{name} {ends[0]} to {ends[1]}: {question.described(design)}"
    price = _price(question, design)
    cost = f", {human(price, '$')} an hour" if question.amounts(design, question.prices[0]) else ""
    if answer.design is None:
        return f"{said}{cost}."
    fewer = answer.design[question.without_price] - design[question.without_price]
    devices = f", {fewer:,} {question.without_price} fewer" if fewer > 0 else ""
    before = _price(question, answer.design)
    return f"{said}{cost} ({100 * (price / before - 1):+.0f} %{devices})."
