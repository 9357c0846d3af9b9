"""`ask --prove`: a certificate that no cheaper design meets the SLO, and its check.

Cheaper designs are counted exactly: the cost of a design follows from its devices. Most of them are
excluded by the steady state of the prefilter and by simulated designs of the same kind with as many
replicas or more; these predict a ratio of latency to deadline. The errors of this prediction, at
simulated designs, bound the probability that an excluded design meets the SLO. Designs with the
largest probabilities, and some at random, are simulated until the sum is small (successive halving:
Jamieson and Talwalkar, "Non-stochastic best arm identification", 2016) or time is up.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from sweeper.commands.ask.answer import Answer
from sweeper.commands.ask.probability import SloProbability
from sweeper.query.screening import tail_probabilities
from sweeper.query.uncertainty import correlation, half_width, probability_first_fails
from sweeper.questions import Question
from sweeper.report import certificate as certificates
from sweeper.report.certificate import SCREENED, Certificate, Choice
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, Span

TARGET = 0.05
"""Probability of a missed design at which simulation ends."""
MOST, MOST_S = 512, 60.0
"""Largest number of additional simulations, and of CPU-seconds for them."""
_AT_ONCE, _AT_RANDOM = 16, 4
_LARGEST = 20_000_000
"""Largest number of designs of a question whose costs are compared."""
_CHEAPER = 1.0 - 1e-9
_MOST_RATIO = 1e6


@dataclass(frozen=True)
class Screening:
    """All designs of a question with their costs, and the predicted ratios of some."""

    question: Question
    space: DesignSpace
    index: Index  # of the allowed designs
    cost: Floats
    kind: Ints  # equal for designs that differ in replicas and options alone
    copies: Ints

    def predicted(
        self, rows: Index, cheap: Floats, known: Mapping[int, tuple[float, float]]
    ) -> Floats:
        """Return the predicted ratio of designs to the SLO.

        Args:
            rows: places in `index`.
            cheap: ratios of the prefilter.
            known: ratio and prefilter's ratio of simulated designs, by place.
        """
        places = np.array(sorted(known), np.int64)
        by_kind: dict[int, list[int]] = {}
        for place in places.tolist():
            by_kind.setdefault(int(self.kind[place]), []).append(place)
        found = cheap.copy()
        for i, row in enumerate(rows.tolist()):
            alike = [p for p in by_kind.get(int(self.kind[row]), ()) if p != row]
            larger = [p for p in alike if self.copies[p] >= self.copies[row]]
            if not larger:
                continue
            nearest = min(int(self.copies[p]) for p in larger)
            ratios = []
            for place in larger:
                ratio, before = known[place]
                if int(self.copies[place]) == nearest and math.isfinite(ratio):
                    scale = cheap[i] / before if 0.0 < before < math.inf else 1.0
                    ratios.append(ratio * max(1.0, min(scale, _MOST_RATIO)))
            if ratios:
                found[i] = max(found[i], min(ratios))
        return found


def screening_of(question: Question, space: DesignSpace) -> Screening:
    """Return the designs of a question with their costs.

    Raises:
        UserError: the question has no replicas, or too many designs.
    """
    if not question.copies or question.prefilter is None:
        raise UserError(
            "--prove needs a question with replicas and a steady state; for all designs of a "
            "space:  python -m sweeper prove FILE +space=NAME"
        )
    if space.size > _LARGEST:
        raise UserError(f"--prove: {space.size:,} designs are more than {_LARGEST:,}")
    index = Span(0, space.size).index()
    kept = space.kept(index)
    index = index if kept is None else index[kept]
    count = space.derive(index)[question.devices].to_numpy(zero_copy_only=False).astype(np.float64)
    points = space.points(index)
    rates = {str(name): _rate(question, name) for name in set(space.axes[question.device])}
    is_priced = all(rate is not None for rate in rates.values())
    each = points[question.device].cast(pl.String).replace_strict(rates, return_dtype=pl.Float64)
    cost = count * each.to_numpy() if is_priced else count
    rest = [n for n in space.varied if n not in (question.copies, *question.options)]
    kind = points.select(pl.struct(rest).rank("dense").alias("kind") if rest else pl.lit(0))
    copies = points[question.copies].to_numpy().astype(np.int64)
    return Screening(
        question, space, index, cost, kind.to_series().to_numpy().astype(np.int64), copies
    )


def _rate(question: Question, device: object) -> float | None:
    """Return the cost of one device; None without a price."""
    row = {question.device: device, question.without_price: 1, "tokens_per_s": None}
    return next(iter(question.amounts(row, question.prices[0]).values()), None)


@dataclass
class _State:
    """Simulated ratios, and the probabilities of the designs that are left."""

    screening: Screening
    best: float  # cost
    ratios: dict[int, float]  # of simulated designs, by place
    cheap: Floats  # ratios of the prefilter; NaN if not computed yet

    def __post_init__(self) -> None:
        self.update()

    def update(self) -> None:
        """Compute the designs that are left, and their probabilities to meet the SLO."""
        one = self.screening
        cheaper = np.flatnonzero(one.cost < self.best * _CHEAPER)
        done = np.array(sorted(self.ratios), np.int64)
        needed = np.union1d(cheaper, done)
        needed = needed[np.isnan(self.cheap[needed])]
        if needed.size:
            assert one.question.prefilter is not None
            ratios = one.question.prefilter(one.space.batch(one.index[needed]))
            self.cheap[needed] = np.where(np.isfinite(ratios), ratios, np.inf)
        self.cheaper = cheaper
        left = np.setdiff1d(cheaper, done)
        self.impossible = int(np.isinf(self.cheap[left]).sum())
        self.left = left[np.isfinite(self.cheap[left])]
        known = {p: (r, float(self.cheap[p])) for p, r in self.ratios.items()}
        ours = np.array([p for p in done.tolist() if math.isfinite(self.ratios[p])], np.int64)
        ours = ours[np.isfinite(self.cheap[ours]) & (self.cheap[ours] > 0.0)]
        predicted = one.predicted(ours, self.cheap[ours], known)
        true = np.array([self.ratios[p] for p in ours.tolist()], np.float64)
        self.errors = np.log(true / np.maximum(predicted, 1e-9))
        expected = np.maximum(one.predicted(self.left, self.cheap[self.left], known), 1e-9)
        self.chances = tail_probabilities(self.errors, -np.log(expected))

    @property
    def failure(self) -> float:
        """Upper bound of the probability that a cheaper design meets the SLO."""
        return min(float(self.chances.sum()), 1.0)


def certificate_of(answer: Answer, words: Sequence[str]) -> Certificate:
    """Return the certificate of an answer.

    Raises:
        UserError: there is no answer, or more than one load.
    """
    question, best = answer.question, answer.design
    if best is None:
        raise UserError("--prove: there is no answer to prove")
    if len({tuple(v.given.items()) for v in answer.verdicts}) > 1:
        raise UserError("--prove needs one load; leave out --traffic")
    space, slo = answer.last.space, _slo(answer)
    screening = screening_of(question, space)
    rows = answer.last.results.collect()
    places = np.searchsorted(screening.index, space.index_of(rows))
    ratios = dict(zip(places.tolist(), _ratios(slo, rows).tolist(), strict=True))
    number = int(
        space.index_of(rows.filter(pl.Series(answer.last.named(rows)["key"]) == best["key"]))[0]
    )
    place = int(np.searchsorted(screening.index, number))
    state = _State(
        screening, float(screening.cost[place]), ratios, np.full(len(screening.index), np.nan)
    )
    better = _halved(state, lambda index: _ratios(slo, certificates.rows_at(space, index)))
    fields, rates = certificates.prices_of(space)
    done = sorted(state.ratios)
    return Certificate(
        definition=certificates.definition_of(space),
        prices=fields,
        rates=rates,
        minimise=question.without_price,
        where=str(question.space.get("where", "")),
        given=question.given,
        method=SCREENED,
        within=0.0,
        designs=len(screening.index),
        evaluated=len(done),
        choices=[_choice(answer, number)],
        sample=_sample(screening, [p for p in done if math.isfinite(state.ratios[p])], question),
        words=list(_without(words, "--prove")),
        screening={
            "devices": question.most_devices,
            "cost": state.best,
            "cheaper": len(state.cheaper),
            "impossible": state.impossible,
            "excluded": len(state.left),
            "failure_probability": round(state.failure, 6),
            "cheaper_that_meet": [int(screening.index[p]) for p in better],
            "ratios": [[int(screening.index[p]), _finite(state.ratios[p])] for p in done],
        },
    )


def _slo(answer: Answer) -> SloProbability:
    return SloProbability(answer.question, answer.chosen.confidence, answer.chosen.band)


def _ratios(slo: SloProbability, rows: pl.DataFrame) -> Floats:
    ok = (rows["status"].cast(pl.String) == "ok").to_numpy()
    return np.where(ok, slo.misses(rows), np.inf)


def _finite(ratio: float) -> float | None:
    return ratio if math.isfinite(ratio) else None


def _halved(state: _State, simulate: Callable[[Index], Floats]) -> list[int]:
    """Simulate the likeliest designs that are left; return the cheaper ones that meet the SLO."""
    random, began_s, more = np.random.default_rng(0), time.process_time(), 0
    while state.failure > TARGET and len(state.left) and more < MOST:
        if time.process_time() - began_s > MOST_S:
            break
        likely = np.argsort(-state.chances, kind="stable")[:_AT_ONCE]
        drawn = random.choice(len(state.left), min(_AT_RANDOM, len(state.left)), replace=False)
        picked = np.sort(state.left[np.union1d(likely, drawn)])
        found = simulate(state.screening.index[picked])
        state.ratios |= dict(zip(picked.tolist(), found.tolist(), strict=True))
        more += len(picked)
        state.update()
    cheaper = set(state.cheaper.tolist())
    return [p for p, ratio in sorted(state.ratios.items()) if ratio <= 1.0 and p in cheaper]


def _choice(answer: Answer, number: int) -> Choice:
    """Return the answer, with the probabilities that its alternatives are truly better.

    A cheaper alternative is better if it meets the SLO, a dearer one if it does and the answer does
    not.
    """
    best = answer.design
    assert best is not None
    question, space = answer.question, answer.last.space
    shares = certificates.shares_of(space)
    listed = []
    for other in answer.to_dict()["alternatives"]:
        is_cheaper = other["cost"] < best["cost"] if other["cost"] and best["cost"] else False
        late = max(question.deadlines, key=lambda d: float(other[d.metric]) / d.limit)
        widths = (
            half_width(best, late.interval, answer.chosen.band),
            half_width(other, late.interval, answer.chosen.band),
        )
        alike = correlation(widths, shares.get(late.interval, 1.0))
        chance = other["probability"]
        if not is_cheaper:
            chance = probability_first_fails(best["probability"], chance, alike)
        differs = {n: other[n] for n in space.varied if other[n] != best[n]}
        listed.append({"key": other["key"], "differs": differs, "p_better": round(chance, 4)})
    return Choice(
        scenario={name: best[name] for name in question.given},
        index=number,
        value=float(best[question.without_price]),
        point={name: best[name] for name in space.varied},
        alternatives=listed,
    )


def _sample(
    screening: Screening, places: Sequence[int], question: Question
) -> list[Mapping[str, Any]]:
    """Return simulated designs, with the value that a check computes again."""
    picked = sorted(np.random.default_rng(0).permutation(np.array(places))[:24].tolist())
    index = screening.index[picked]
    where = str(question.space.get("where", ""))
    values = certificates.values_at(screening.space, index, question.without_price, where)
    return [{"index": i, "value": v} for i, v in zip(index.tolist(), values, strict=True)]


def _without(words: Sequence[str], flag: str) -> Iterator[str]:
    """Yield words without a flag and its value."""
    is_value = False
    for word in words:
        if word == flag:
            is_value = True
        elif is_value:
            is_value = False
        elif not word.startswith(f"{flag}="):
            yield word


def check_screening(certificate: Certificate, question: Question) -> Iterator[str]:
    """Count the cheaper designs and compute the probability of a missed one again.

    Raises:
        UserError: the question has other designs, or a number differs.
    """
    stated, space = certificate.screening, certificate.space
    (choice,) = certificate.choices
    screening = screening_of(question, space)
    ratios = {
        int(np.searchsorted(screening.index, number)): math.inf if ratio is None else float(ratio)
        for number, ratio in stated["ratios"]
    }
    assert choice.index is not None
    place = int(np.searchsorted(screening.index, choice.index))
    cost = float(screening.cost[place])
    if not math.isclose(cost, stated["cost"], rel_tol=certificates.CLOSE):
        raise UserError(f"the answer costs {cost:.6g}, and the certificate states {stated['cost']}")
    state = _State(screening, cost, ratios, np.full(len(screening.index), np.nan))
    found = {
        "cheaper": len(state.cheaper),
        "excluded": len(state.left),
        "impossible": state.impossible,
    }
    for name, count in found.items():
        if count != stated[name]:
            raise UserError(
                f"{count:,} designs are {name}, and the certificate states {stated[name]:,}"
            )
    if state.failure > stated["failure_probability"] * (1.0 + 1e-6) + 1e-6:
        raise UserError(
            f"P(a missed design meets the SLO) is {state.failure:.3g}, and the certificate states "
            f"{stated['failure_probability']:.3g}"
        )
    yield (
        f"{found['cheaper']:,} designs are cheaper: {found['impossible']:,} cannot exist, "
        f"{found['excluded']:,} excluded, the others simulated"
    )
    yield f"P(an excluded design meets the SLO) <= {state.failure:.3g}"


def in_words(certificate: Certificate) -> list[str]:
    """Return what the certificate of an answer states."""
    stated = certificate.screening
    (choice,) = certificate.choices
    lines = [
        f"Of {certificate.designs:,} designs {stated['cheaper']:,} are cheaper: "
        f"{certificate.evaluated:,} designs were simulated, and P(another cheaper design meets the "
        f"SLO) <= {stated['failure_probability']:.3g}."
    ]
    if meets := stated["cheaper_that_meet"]:
        lines.append(
            f"{len(meets)} cheaper designs meet the SLO, though the answer is another one."
        )
    for one in choice.alternatives:
        differs = ", ".join(f"{name} {value}" for name, value in one["differs"].items())
        lines.append(f"P(truly better) = {one['p_better']:.2f}: {differs}")
    return lines


def question_again(certificate: Certificate, ask: Callable[[list[str]], Question]) -> Question:
    """Return the question of a certificate; `ask` parses its words."""
    question = ask(list(certificate.words))
    devices = certificate.screening["devices"]
    if question.sized is not None and devices != question.most_devices:
        question = dataclasses.replace(question.sized(devices), is_grown=True)
    load_simulator(certificate.defined.simulator)
    return question
