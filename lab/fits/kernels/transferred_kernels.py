"""Fit the error of pricing a kernel with numbers fitted on another GPU, framework or precision.

Every measured kernel is priced with every other's numbers that a lookup may use
(`transfer_trials.py`). For each family and kind of transfer: the geometric mean of the errors of
pairs of architectures and frameworks, the interval that covers 90 % of rows, and whether trees and
grids transfer too. Pairs count alike, however many GPUs and rows they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration
from lab.fits.methods.held_out import interval
from lab.fits.methods.transfer_trials import Trial, trials
from lab.tables import fused_kernels
from lab.tables.tensor_kernels import AUXILIARY_TABLES, LATENT_TABLE, PRODUCTS
from simulators.catalog.gpu import load_gpu
from simulators.evidence.transfer import (
    ALL,
    ARCHITECTURE,
    CALIBRATION,
    GENERATION,
    INSTRUCTIONS,
    OTHER,
    OWN,
    RELATIONS,
    SHEET,
    VENDOR,
    Errors,
    TransferError,
    TransferKind,
)

FOLDER = CALIBRATION.parent
SIGMAS = 0.5
"""Intervals are widened by 1 + SIGMAS / n for n pairs: with GPUs, architectures or frameworks left
out the interval score of 0.5 is less than that of 1."""

MUCH_LESS = 0.9
"""Trees transfer unless the error without them is below this part of the error with them."""


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the error of each kind of transfer, and which frameworks substitute for which."""
    found = trials(reference)
    tables = [f"{fused_kernels.FOLDER}/{name}.parquet" for name in fused_kernels.TABLES.values()]
    costs = costs_of(found)
    errors = np.concatenate([np.expm1(trial.log_ratio) for trial in found])
    yield Calibration(
        name=CALIBRATION.stem,
        content={
            "substitutes": substitutes(found),
            "family": {
                family: {name: _written(cost) for name, cost in of_family.items()}
                for family, of_family in costs.items()
            },
        },
        style=".3g",
        tables=[
            *tables,
            *AUXILIARY_TABLES,
            PRODUCTS,
            LATENT_TABLE,
        ],
        rows=errors.size,
        split="every kernel priced by other GPUs', frameworks' and precisions' numbers, on its "
        "held-out rows",
        errors=errors,
    )


def _written(cost: TransferError) -> dict[str, Any]:
    numbers = {"error": cost.error, "lo": cost.lo, "hi": cost.hi}
    return numbers if cost.whole else {**numbers, "whole": False}


def costs_of(found: Sequence[Trial]) -> Errors:
    """Return the error of each kind of transfer in each family, and in all together.

    A kind without trials in a family has the error of the kernel's other formats, else of all
    kernels; but equal instruction sets say nothing about other families.
    """
    common = [t for t in found if t.transfer.relation != INSTRUCTIONS]
    every = _costs_by_kind(trial for trial in common if trial.transfer.name != SHEET)
    kernels = dict.fromkeys(trial.rows.kernel for trial in found)
    of_kernel = {k: _costs_by_kind(t for t in common if t.rows.kernel == k) for k in kernels}
    costs = {ALL: _rising(every)}
    costs |= {kernel: _rising(every | some) for kernel, some in of_kernel.items()}
    for family, kernel in dict.fromkeys((trial.family, trial.rows.kernel) for trial in found):
        known = _costs_by_kind(trial for trial in found if trial.family == family)
        costs[family] = _rising(every | of_kernel[kernel] | known)
    return costs


def _costs_by_kind(found: Iterable[Trial]) -> dict[str, TransferError]:
    by_kind: dict[str, list[Trial]] = {}
    for trial in found:
        by_kind.setdefault(trial.transfer.name, []).append(trial)
    return {name: _cost(some) for name, some in by_kind.items()}


def _rising(costs: Mapping[str, TransferError]) -> dict[str, TransferError]:
    """Return costs whose errors never fall with distance.

    Each error becomes the mean of the highest of nearer kinds and the lowest of farther ones.
    """
    kinds = {
        transfer.name: transfer
        for relation in RELATIONS
        for transfer in (TransferKind(relation, f, p) for f in (True, False) for p in (True, False))
        if transfer.name in costs
    }
    risen = dict(costs)
    for name, transfer in kinds.items():
        nearer = [costs[other].error for other, kind in kinds.items() if is_within(kind, transfer)]
        farther = [costs[other].error for other, kind in kinds.items() if is_within(transfer, kind)]
        risen[name] = replace(costs[name], error=(max(nearer) + min(farther)) / 2.0)
    return risen


def _cost(some: Sequence[Trial]) -> TransferError:
    """Return the cost of one kind: with trees and grids, unless numbers alone err much less.

    Within an architecture trees and grids always transfer: its tiles and units are the same.
    """
    whole = _cost_of_pairs([trial for trial in some if trial.whole], whole=True)
    if all(t.whole or t.transfer.relation in (OWN, ARCHITECTURE) for t in some):
        return whole
    plain = _cost_of_pairs([trial for trial in some if not trial.whole], whole=False)
    return plain if plain.error < MUCH_LESS * whole.error else whole


def _cost_of_pairs(some: Sequence[Trial], *, whole: bool) -> TransferError:
    groups = [_pair(trial) for trial in some for _ in trial.log_ratio]
    ratio = np.concatenate([trial.log_ratio for trial in some])
    absolute: dict[tuple[str, ...], list[float]] = {}
    for group, one in zip(groups, np.abs(ratio).tolist(), strict=True):
        absolute.setdefault(group, []).append(one)
    lo, hi = interval(np.exp(ratio), groups, widen=1.0 + SIGMAS / len(absolute))
    error = float(np.exp(np.mean([np.log(np.mean(one)) for one in absolute.values()])))
    return TransferError(error, lo, hi, whole)


def _pair(trial: Trial) -> tuple[str, ...]:
    """Return what counts once: GPUs of one architecture are near copies of each other."""
    source = trial.source if trial.source == SHEET else load_gpu(trial.source).architecture
    return trial.family, load_gpu(trial.rows.gpu).architecture, source, trial.rows.framework


def substitutes(found: Sequence[Trial]) -> dict[str, dict[str, list[str]]]:
    """Return, by family and framework, the other frameworks on the same GPU by rising error."""
    errors: dict[tuple[str, str], dict[str, list[float]]] = {}
    for trial in found:
        if trial.transfer == TransferKind(OWN, same_framework=False) and trial.whole:
            of_pair = errors.setdefault((trial.family, trial.rows.framework), {})
            of_pair.setdefault(trial.source_framework, []).append(np.log(trial.error))
    order: dict[str, dict[str, list[str]]] = {}
    for (family, framework), others in errors.items():
        means = {other: np.mean(some) for other, some in others.items()}
        order.setdefault(family, {})[framework] = sorted(means, key=means.__getitem__)
    return order


def is_within(one: TransferKind, other: TransferKind) -> bool:
    """Return whether another kind of transfer goes at least as far in every respect.

    Beyond one generation a framework runs other kernels, so its name does not count.
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
