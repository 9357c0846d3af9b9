"""How far borrowed kernels are off: boards, architectures and frameworks left out in turn.

What is left out is hidden from the costs of borrowing and from those who lend; the lookup then
chooses, and its answer is held against what was measured. Lines stand for all kernels together, for
each family and for each kind of borrowing; errors are |log(measured / predicted)|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, at_most, within
from lab.fits.kernels.borrowed_kernels import costs_of
from lab.fits.methods.borrowing_trials import Trial, trials
from lab.tables.kernels.fused_kernels import FOLDER, TABLES
from lab.tables.kernels.tensor_cores import TABLE
from lab.tables.rows import Bools
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import COVERAGE, Check
from simulators.evidence.intervals import interval_s
from simulators.evidence.transfer import SHEET, VENDOR, Errors, TransferError, error_of, rank

BARS = {"board": 0.28, "architecture": 0.45, "framework on a board": 0.28}
"""Mean errors allowed, as natural logarithms, with each of these left out."""

ATTENTION = ("decode", "mla_decode", "mla_prefill")
"""Kernels whose intervals are judged by themselves where a board is left out."""


@dataclass(frozen=True)
class Chosen:
    """The trial that the lookup takes for a kernel, and how far its interval reaches."""

    trial: Trial
    inside: Bools
    least_error: float  # of all who could have lent


@dataclass(frozen=True)
class LeftOut:
    """One way of leaving out: what is hidden with a kernel, and from where."""

    name: str
    key: Callable[[Trial], Hashable]  # of what is priced
    lender: Callable[[Trial], Hashable]  # the same of who lends


WAYS = (
    LeftOut("board", lambda trial: trial.gpu, lambda trial: trial.lender),
    LeftOut(
        "architecture",
        lambda trial: load_gpu(trial.gpu).architecture,
        lambda trial: (
            trial.lender if trial.lender == SHEET else load_gpu(trial.lender).architecture
        ),
    ),
    LeftOut(
        "framework on a board",
        lambda trial: (trial.gpu, trial.framework),
        lambda trial: (trial.lender, trial.lender_framework),
    ),
)


def checks(reference: Path, _rows: str) -> list[Check]:
    """Return errors and coverage with boards, architectures and frameworks left out."""
    tables = [reference / FOLDER / f"{name}.parquet" for name in TABLES.values()]
    if not any(file.is_file() for file in (*tables, reference / TABLE)):
        return [absent("kernels: borrowed kernels", "no table of kernels")]
    found = trials(reference)
    return [line for way in WAYS for line in _lines(way, list(chosen(found, way)))]


def chosen(found: Sequence[Trial], way: LeftOut) -> Iterator[Chosen]:
    """Yield what the lookup takes for each kernel when something of it is left out."""
    cases: dict[tuple[str, ...], list[Trial]] = {}
    for trial in found:
        cases.setdefault(trial.case, []).append(trial)
    known: dict[Hashable, Errors] = {}
    for some in cases.values():
        key = way.key(some[0])
        if key not in known:
            known[key] = costs_of([t for t in found if key not in (way.key(t), way.lender(t))])
        left = [trial for trial in some if way.lender(trial) != key]
        if left:
            yield _choice(left, known[key])


def _choice(some: Sequence[Trial], costs: Errors) -> Chosen:
    """Return the first trial of the kind that costs least."""

    def cost(trial: Trial) -> TransferError:
        return error_of(trial.family, trial.loan.name, costs)

    def place(trial: Trial) -> Hashable:
        return trial.lender, trial.lender_framework, trial.loan.same_precision

    nearer = {place(t) for t in some if t.loan.relation != VENDOR and cost(t).error < math.inf}
    some = [t for t in some if t.loan.relation != VENDOR or place(t) not in nearer]
    least = min(some, key=lambda trial: rank(cost(trial), trial.loan))
    alike = [
        t
        for t in some
        if (t.lender, t.lender_framework, t.loan)
        == (least.lender, least.lender_framework, least.loan)
    ]
    best = next((trial for trial in alike if trial.whole == cost(trial).whole), least)
    lo_s, hi_s = interval_s(cost(best).widened(best.band), best.predicted_s)
    inside = np.asarray((lo_s <= best.measured_s) & (best.measured_s <= hi_s))
    return Chosen(best, inside, min(trial.error for trial in some))


def _lines(way: LeftOut, found: Sequence[Chosen]) -> Iterator[Check]:
    """Yield one way's errors and coverage: over all, by family and by kind of borrowing."""
    yield from _pair(f"borrowed kernels, {way.name} left out", found, BARS[way.name])
    for kernel, some in _groups(found, _kernel).items():
        is_judged = way.name == "board" and kernel in ATTENTION
        yield from _pair(f"borrowed {kernel}, {way.name} left out", some, judged=is_judged)
    for some in _groups(found, lambda trial: trial.loan.name).values():
        name = f"borrowed by {some[0].trial.loan.name}, {way.name} left out"
        yield from _pair(name, some)


def _kernel(trial: Trial) -> str:
    return trial.family if trial.kernel == "gemm" else trial.kernel


def _groups(found: Sequence[Chosen], name_of: Callable[[Trial], str]) -> dict[str, list[Chosen]]:
    groups: dict[str, list[Chosen]] = {}
    for one in found:
        groups.setdefault(name_of(one.trial), []).append(one)
    return dict(sorted(groups.items()))


def _pair(
    name: str, found: Sequence[Chosen], limit: float | None = None, *, judged: bool = False
) -> Iterator[Check]:
    """Yield the mean error of kernels, each counted once, and how many rows intervals hold."""
    if not found:
        yield absent(name)
        return
    errors = np.array([one.trial.error for one in found])
    best = float(np.mean([one.least_error for one in found]))
    note = f"mean |log|, median {np.median(errors):.2f}; the best of all lenders {best:.2f}"
    yield at_most(f"{name}: error", float(errors.mean()), limit, len(found), note, unit="")
    inside = [one.inside for one in found]
    if judged or limit is not None:
        yield from within(f"{name}: coverage", inside)
    else:
        held = np.concatenate(inside)
        share = 100.0 * float(held.mean())
        yield Check(f"{name}: coverage", share, "%", rows=held.size, kind=COVERAGE)
