"""Fit how often drafted tokens are accepted, by method and position: means over measured ones.

A method's rate at a position is the mean over models, or over sets of prompts where one model was
measured, each weighing alike. The error is that of the tokens of an iteration, each model or set
predicted from the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, hashes
from lab.tables.modern.speculation import (
    ACCEPTED_LENGTHS,
    BY_GUESS,
    METHODS,
    PER_STEP,
    Drafts,
    measured_drafts,
    rates_by_guess,
)
from simulators.serving.speculation.acceptance import CALIBRATION

FOLDER = CALIBRATION.parent
TABLES = (PER_STEP, ACCEPTED_LENGTHS, BY_GUESS)
SPLIT = "each model, or set of prompts, predicted from the others of its method"
ENDS = (0.05, 0.95)
"""Of the interval in which nine of ten times of a token lie, by tokens of an iteration alone."""

MOST_DRAFTS = 5
"""Positions told apart: later ones were reached too seldom, or counted for some drafts alone."""


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the rates of all methods."""
    rows = list(measured_drafts(reference))
    lines, ratios = ["[rates]"], []
    for method in METHODS:
        mine = [row for row in rows if row.method == method]
        written = ", ".join(f"{rate:.3g}" for rate in mean_rates(mine))
        lines.append(f"{method} = [{written}]")
        for row in mine:
            if others := [one for one in mine if one.group != row.group]:
                ours, theirs = (_tokens(rates) for rates in (mean_rates(others), row.rates))
                count = min(ours.size, theirs.size)
                ratios += (ours[:count] / theirs[:count]).tolist()
    growth = round(float(np.mean(growths(reference))), 3)
    first = head_rates(reference, growth)
    lines.append(f"medusa = [{', '.join(f'{rate:.3g}' for rate in first)}]")
    low, high = np.quantile(ratios, ENDS)
    lines += ["", "[times]", f"ends = [{low:.3g}, {high:.3g}]"]
    lines += ["", "[ranks]", f"growth = {growth:.3g}"]
    errors = np.abs(np.array(ratios) - 1.0)
    yield Calibration(
        name=CALIBRATION.stem,
        about=".",
        tables=hashes(reference, TABLES),
        rows=sum(len(row.rates) for row in rows),
        split=SPLIT,
        held_out_rows=errors.size,
        error=float(np.mean(errors)),
        lines=["", *lines],
    )


def mean_rates(rows: Sequence[Drafts]) -> tuple[float, ...]:
    """Return the mean rate at each position, over groups and within each."""
    groups: dict[str, list[tuple[float, ...]]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row.rates[:MOST_DRAFTS])
    most = max(len(rates) for group in groups.values() for rates in group)
    means = []
    for position in range(most):
        at = [
            np.mean([rates[position] for rates in group if len(rates) > position])
            for group in groups.values()
            if any(len(rates) > position for rates in group)
        ]
        means.append(float(np.mean(at)))
    return tuple(means)


def head_rates(reference: Path, growth: float) -> list[float]:
    """Return how often each Medusa head's first guess is right, as a mean over models."""
    heads: dict[int, list[float]] = {}
    for (_, head), guesses in rates_by_guess(reference).items():
        heads.setdefault(head, []).append(first_guess(guesses, growth))
    return [float(np.mean(heads[head])) for head in sorted(heads)]


def first_guess(guesses: Mapping[int, float], growth: float) -> float:
    """Return how often the first guess is right, from that of the fewest that was measured.

    >>> round(first_guess({2: 0.5}, 1.0), 3)
    0.333
    """
    rank, among = min(guesses.items())
    odds = among / (1.0 - among) / rank**growth
    return float(odds / (1.0 + odds))


def growths(reference: Path) -> list[float]:
    """Return by which power of their number guesses gain odds: of each head, and number above 1.

    A head whose first guess alone was not measured says nothing.
    """
    found = []
    for among in rates_by_guess(reference).values():
        odds = {rank: share / (1.0 - share) for rank, share in among.items()}
        if 1 in odds:
            found += [np.log(odds[r] / odds[1]) / np.log(r) for r in odds if r > 1]
    return found


def _tokens(rates: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the tokens of an iteration with 1, 2 ... drafts."""
    return np.asarray(1.0 + np.cumsum(np.cumprod(rates[:MOST_DRAFTS])))
