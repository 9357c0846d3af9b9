"""Fit acceptance rates of draft tokens by method and position: means over measured models.

A rate is the mean over models, or over prompt sets where one model was measured, with equal
weights. The error is that of tokens per iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration
from lab.fits.methods.held_out import leave_one_out, quantile
from lab.tables import speculation
from simulators.core.jit import Floats
from simulators.evidence.intervals import COVERED
from simulators.serving.speculation import CALIBRATION

FOLDER = CALIBRATION.parent
MOST_DRAFTS = 5
"""Later positions were reached too rarely to have rates of their own."""


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the rates of all methods."""
    rows = list(speculation.measured_drafts(reference))
    rates: dict[str, Sequence[float]] = {}
    ratios: list[float] = []
    for method in speculation.METHODS:
        mine = [row for row in rows if row.method == method]
        rates[method] = mean_rates(mine)
        for out, others in leave_one_out(mine, lambda row: row.group, mean_rates):
            for row in out if others else ():
                ours, theirs = _tokens(others), _tokens(row.rates)
                count = min(ours.size, theirs.size)
                ratios += (ours[:count] / theirs[:count]).tolist()
    growth = round(float(np.mean(growths(reference))), 3)
    heads: dict[int, list[float]] = {}
    for (_, head), guesses in speculation.rates_by_guess(reference).items():
        heads.setdefault(head, []).append(first_guess(guesses, growth))
    rates["medusa"] = [float(np.mean(heads[head])) for head in sorted(heads)]
    yield Calibration(
        name=CALIBRATION.stem,
        content={
            "rates": rates,
            "times": {"ends": quantile(ratios, COVERED)},
            "ranks": {"growth": growth},
        },
        style=".3g",
        tables=[speculation.PER_STEP, speculation.ACCEPTED_LENGTHS, speculation.BY_GUESS],
        rows=sum(len(row.rates) for row in rows),
        split="each model, or set of prompts, predicted from the others of its method",
        errors=np.array(ratios) - 1.0,
    )


def mean_rates(rows: Sequence[speculation.Drafts]) -> tuple[float, ...]:
    """Return the mean rate at each position: the mean over groups of the means within each."""
    groups: dict[str, list[tuple[float, ...]]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row.rates[:MOST_DRAFTS])
    most = max((len(rates) for group in groups.values() for rates in group), default=0)
    means = []
    for position in range(most):
        at = [
            [rates[position] for rates in group if len(rates) > position]
            for group in groups.values()
        ]
        means.append(float(np.mean([np.mean(some) for some in at if some])))
    return tuple(means)


def first_guess(guesses: Mapping[int, float], growth: float) -> float:
    """Return the acceptance rate of one guess, from that of the fewest guesses measured.

    >>> round(first_guess({2: 0.5}, 1.0), 3)
    0.333
    """
    rank, among = min(guesses.items())
    odds = among / (1.0 - among) / rank**growth
    return float(odds / (1.0 + odds))


def growths(reference: Path) -> list[float]:
    """Return the exponent with which odds of acceptance grow with guesses, of heads with one."""
    found = []
    for among in speculation.rates_by_guess(reference).values():
        odds = {rank: share / (1.0 - share) for rank, share in among.items()}
        if 1 in odds:
            found += [np.log(odds[r] / odds[1]) / np.log(r) for r in odds if r > 1]
    return found


def _tokens(rates: Sequence[float]) -> Floats:
    """Return the tokens of an iteration with 1, 2, ... drafts."""
    return np.asarray(1.0 + np.cumsum(np.cumprod(rates[:MOST_DRAFTS])))
