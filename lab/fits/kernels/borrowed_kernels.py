"""Fit what kinds of borrowing cost: `python -m lab.fits borrowed_kernels`.

Every kernel of every board, framework and precision is priced by everybody who could lend to it
(`borrowing_trials.py`). For each family and kind of borrowing: the geometric mean of the errors of
pairs of architectures and frameworks (one odd kernel does not decide), the interval that holds nine
of ten rows, and whether trees and grids of another board are worth taking. Pairs count alike,
however many boards and rows they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes, inline, strings
from lab.fits.methods.borrowing_trials import Trial, trials
from lab.fits.methods.coverage import weighted_quantiles
from lab.tables.kernels import auxiliary_kernels, fused_kernels, tensor_cores
from lab.tables.rows import Floats
from simulators.catalog.gpu import load_gpu
from simulators.evidence.borrowing import (
    ALL,
    ARCHITECTURE,
    COSTS,
    GENERATION,
    INSTRUCTIONS,
    OTHER,
    OWN,
    RELATIONS,
    SHEET,
    VENDOR,
    Cost,
    Costs,
    Loan,
)
from simulators.evidence.intervals import COVERED

FOLDER = COSTS.parent
SPLIT = (
    "every kernel priced by other boards', frameworks' and precisions' alone, on its held-out rows"
)

SIGMAS = 0.5
"""The next pair errs more than `n` seen ones: intervals are stretched by `1 + SIGMAS / n`. With
boards, architectures or frameworks left out the interval score of 0.5 is less than that of 1."""

MUCH_LESS = 0.9
"""Trees of a lender are taken unless they mislead: what differs less is chance."""


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield what each kind of borrowing costs, and which frameworks stand in for which."""
    found = trials(reference)
    tables = [f"{fused_kernels.FOLDER}/{name}.parquet" for name in fused_kernels.TABLES.values()]
    tables += [*auxiliary_kernels.TABLES, tensor_cores.TABLE, tensor_cores.LATENT_TABLE]
    lines = []
    for family, order in stand_ins(found).items():
        lines += ["", f'[stands_in."{family}"]']
        lines += [f"{whose} = {strings(others)}" for whose, others in order.items()]
    for family, loans in costs_of(found).items():
        lines += ["", f'[family."{family}"]']
        lines += [f"{loan} = {_written(cost)}" for loan, cost in loans.items()]
    error = np.concatenate([np.abs(np.expm1(trial.log_ratio)) for trial in found])
    yield calibration(
        COSTS.stem,
        hashes(reference, tables),
        rows=error.size,
        split=SPLIT,
        held_out=error,
        lines=lines,
    )


def _written(cost: Cost) -> str:
    numbers = inline({"error": cost.error, "lo": cost.lo, "hi": cost.hi}, ".3g")
    return numbers if cost.whole else numbers.replace(" }", ", whole = false }")


def costs_of(found: Sequence[Trial]) -> Costs:
    """Return what each kind of borrowing costs in each family, and in all together.

    A kind that was never seen in a family costs what it does in the kernel's other formats, else in
    all kernels; but that boards take the same instructions says something of no other family.
    """
    common = [t for t in found if t.loan.relation != INSTRUCTIONS]
    every = _costs_by_loan(trial for trial in common if trial.loan.name != SHEET)
    kernels = dict.fromkeys(trial.kernel for trial in found)
    of_kernel = {k: _costs_by_loan(t for t in common if t.kernel == k) for k in kernels}
    costs = {ALL: _rising(every)}
    costs |= {kernel: _rising(every | some) for kernel, some in of_kernel.items()}
    for family, kernel in dict.fromkeys((trial.family, trial.kernel) for trial in found):
        known = _costs_by_loan(trial for trial in found if trial.family == family)
        costs[family] = _rising(every | of_kernel[kernel] | known)
    return costs


def _costs_by_loan(found: Iterable[Trial]) -> dict[str, Cost]:
    by_loan: dict[str, list[Trial]] = {}
    for trial in found:
        by_loan.setdefault(trial.loan.name, []).append(trial)
    return {loan: _cost(some) for loan, some in by_loan.items()}


def _rising(loans: Mapping[str, Cost]) -> dict[str, Cost]:
    """Return costs whose errors never fall with distance.

    Each becomes the mean of the highest that was seen nearer and the lowest that was seen farther.
    """
    kinds = {
        loan.name: loan
        for relation in RELATIONS
        for loan in (Loan(relation, f, p) for f in (True, False) for p in (True, False))
        if loan.name in loans
    }
    risen = dict(loans)
    for name, loan in kinds.items():
        nearer = [loans[other].error for other, kind in kinds.items() if is_within(kind, loan)]
        farther = [loans[other].error for other, kind in kinds.items() if is_within(loan, kind)]
        risen[name] = replace(loans[name], error=(max(nearer) + min(farther)) / 2.0)
    return risen


def _cost(some: Sequence[Trial]) -> Cost:
    """Return what one kind of borrowing costs: whole, unless numbers alone err much less.

    Within an architecture all is borrowed: what trees and grids know of its tiles and units holds.
    """
    whole = _cost_of_pairs([trial for trial in some if trial.whole], whole=True)
    if all(t.whole or t.loan.relation in (OWN, ARCHITECTURE) for t in some):
        return whole
    plain = _cost_of_pairs([trial for trial in some if not trial.whole], whole=False)
    return plain if plain.error < MUCH_LESS * whole.error else whole


def _cost_of_pairs(some: Iterable[Trial], *, whole: bool) -> Cost:
    pairs: dict[tuple[str, ...], list[Floats]] = {}
    for trial in some:
        pairs.setdefault(_pair(trial), []).append(trial.log_ratio)
    ratios = [np.concatenate(parts) for parts in pairs.values()]
    weights = np.concatenate([np.full(ratio.size, 1.0 / ratio.size) for ratio in ratios])
    lo, hi = weighted_quantiles(np.concatenate(ratios), weights, COVERED)
    power = 1.0 + SIGMAS / len(ratios)
    error = float(np.exp(np.mean([np.log(np.mean(np.abs(ratio))) for ratio in ratios])))
    return Cost(
        error, float(np.exp(min(lo, 0.0) * power)), float(np.exp(max(hi, 0.0) * power)), whole
    )


def _pair(trial: Trial) -> tuple[str, ...]:
    """Return what counts once: boards of one architecture are near copies of each other."""
    lender = trial.lender if trial.lender == SHEET else load_gpu(trial.lender).architecture
    return trial.family, load_gpu(trial.gpu).architecture, lender, trial.framework


def stand_ins(found: Sequence[Trial]) -> dict[str, dict[str, list[str]]]:
    """Return by family and framework the others whose kernels on the same board err least.

    Geometric mean over boards.
    """
    errors: dict[tuple[str, str], dict[str, list[float]]] = {}
    for trial in found:
        if trial.loan == Loan(OWN, same_framework=False) and trial.whole:
            of_pair = errors.setdefault((trial.family, trial.framework), {})
            of_pair.setdefault(trial.lender_framework, []).append(np.log(trial.error))
    order: dict[str, dict[str, list[str]]] = {}
    for (family, whose), others in errors.items():
        means = {other: np.mean(some) for other, some in others.items()}
        order.setdefault(family, {})[whose] = sorted(means, key=means.__getitem__)
    return order


def is_within(one: Loan, other: Loan) -> bool:
    """Say whether another kind of borrowing goes at least as far in every way.

    Beyond one generation a framework runs other kernels, whatever it is called.
    """
    same_framework = other.same_framework and other.relation not in (VENDOR, OTHER)
    ways = {one.relation, other.relation}
    if INSTRUCTIONS in ways and ways & {GENERATION, VENDOR}:
        return False
    return (
        RELATIONS.index(one.relation) <= RELATIONS.index(other.relation)
        and one.same_precision >= other.same_precision
        and one.same_framework >= same_framework
    )
