"""Fit what kinds of borrowing cost: `python -m lab.fits borrowed_kernels`.

Every kernel of every board, framework and precision is priced by everybody who could lend to it
(`borrowing_trials.py`). For each family and kind of borrowing: the mean error over pairs of
architectures and frameworks, the interval that holds nine of ten rows, and whether trees and grids
of another board are worth taking. Pairs count alike, however many boards and rows they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes, inline
from lab.fits.methods.borrowing_trials import Trial, trials
from lab.tables.kernels import auxiliary_kernels, fused_kernels, tensor_cores
from lab.tables.rows import Floats
from simulators.catalog.gpu import load_gpu
from simulators.evidence.borrowing import ALL, FILE, OWN, SHEET, Cost, Costs
from simulators.evidence.intervals import COVERED
from simulators.evidence.lookup import FRAMEWORKS

FOLDER = FILE.parent
SPLIT = "every kernel priced by other boards', frameworks' and precisions' alone, on its held-out rows"

SIGMAS = 1.0
"""The next pair errs more than `n` seen ones: intervals are stretched by `1 + SIGMAS / n`."""


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield what each kind of borrowing costs, and which frameworks stand in for which."""
    found = trials(reference)
    tables = [f"{fused_kernels.FOLDER}/{name}.parquet" for name in fused_kernels.TABLES.values()]
    tables += [*auxiliary_kernels.TABLES, tensor_cores.TABLE, tensor_cores.LATENT_TABLE]
    lines = ["", "[stands_in]"]
    lines += [f"{whose} = {list(others)!r}" for whose, others in stand_ins(found).items()]
    for family, loans in costs_of(found).items():
        lines += ["", f"[family.{family}]"]
        lines += [f"{loan} = {_written(cost)}" for loan, cost in loans.items()]
    error = np.concatenate([np.abs(np.expm1(trial.log_ratio)) for trial in found])
    yield calibration(
        FILE.stem, hashes(reference, tables), rows=error.size, split=SPLIT, held_out=error,
        lines=[line.replace("'", '"') for line in lines],
    )  # fmt: skip


def _written(cost: Cost) -> str:
    numbers = inline({"error": cost.error, "lo": cost.lo, "hi": cost.hi}, ".3g")
    return numbers if cost.whole else numbers.replace(" }", ", whole = false }")


def costs_of(found: Sequence[Trial]) -> Costs:
    """Return what each kind of borrowing costs in each family, and in all together."""
    named = sorted(found, key=lambda trial: (trial.family, trial.loan.name))
    costs: dict[str, dict[str, Cost]] = {ALL: {}}
    for (family, loan), some in groupby(named, key=lambda trial: (trial.family, trial.loan.name)):
        costs.setdefault(family, {})[loan] = _cost(list(some))
    by_loan = sorted(found, key=lambda trial: trial.loan.name)
    for loan, some in groupby(by_loan, key=lambda trial: trial.loan.name):
        if loan != SHEET:
            costs[ALL][loan] = _cost(list(some))
    return costs


def _cost(some: Sequence[Trial]) -> Cost:
    """Return what one kind of borrowing costs: whole, or by numbers alone where that errs less."""
    whole = _cost_of_pairs([trial for trial in some if trial.whole], whole=True)
    if all(trial.whole for trial in some):
        return whole
    plain = _cost_of_pairs([trial for trial in some if not trial.whole], whole=False)
    return min(whole, plain, key=lambda cost: cost.error)


def _cost_of_pairs(some: Iterable[Trial], *, whole: bool) -> Cost:
    pairs: dict[tuple[str, ...], list[Floats]] = {}
    for trial in some:
        pairs.setdefault(_pair(trial), []).append(trial.log_ratio)
    ratios = [np.concatenate(parts) for parts in pairs.values()]
    weights = np.concatenate([np.full(ratio.size, 1.0 / ratio.size) for ratio in ratios])
    lo, hi = _weighted_quantiles(np.concatenate(ratios), weights)
    power = 1.0 + SIGMAS / len(ratios)
    error = float(np.mean([np.mean(np.abs(ratio)) for ratio in ratios]))
    return Cost(
        error, float(np.exp(min(lo, 0.0) * power)), float(np.exp(max(hi, 0.0) * power)), whole
    )


def _pair(trial: Trial) -> tuple[str, ...]:
    """Return what counts once: boards of one architecture are near copies of each other."""
    lender = trial.lender if trial.lender == SHEET else load_gpu(trial.lender).architecture
    return trial.family, load_gpu(trial.gpu).architecture, lender, trial.framework


def _weighted_quantiles(values: Floats, weights: Floats) -> Floats:
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return values[order][np.searchsorted(reached, COVERED)]


def stand_ins(found: Sequence[Trial]) -> dict[str, list[str]]:
    """Return by framework the others whose kernels on the same board are nearest to its own.

    Median over boards and families; one that was never compared comes after those that were.
    """
    errors: dict[tuple[str, str], list[float]] = {}
    for trial in found:
        loan = trial.loan
        if loan.relation == OWN and loan.same_precision and not loan.same_framework and trial.whole:
            errors.setdefault((trial.framework, trial.lender_framework), []).append(trial.error)
    return {
        whose: sorted(
            (other for other in FRAMEWORKS if (whose, other) in errors),
            key=lambda other: float(np.median(errors[whose, other])),
        )
        for whose in FRAMEWORKS
        if any(asked == whose for asked, _ in errors)
    }
