"""Kernels priced from other GPUs: GPUs, architectures and frameworks left out in turn.

What is left out is hidden from the errors of transfers and from their sources; the lookup then
chooses, and its answer is compared with the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from lab.claims.predictions import columns, together
from lab.fits.kernels.transferred_kernels import costs_of
from lab.fits.methods.transfer_trials import Trial, trials
from simulators.catalog.gpu import load_gpu
from simulators.core.jit import Floats
from simulators.evidence.intervals import interval_s
from simulators.evidence.transfer import SHEET, VENDOR, Errors, TransferError, error_of, rank

Ends = tuple[Floats, Floats]
"""The ends of intervals."""


@dataclass(frozen=True)
class LeftOut:
    """One way of leaving out: what is hidden with a kernel, and from where."""

    name: str
    key: Callable[[Trial], Hashable]  # of what is priced
    source_key: Callable[[Trial], Hashable]  # of the source of the numbers


WAYS = (
    LeftOut("GPU", lambda trial: trial.rows.gpu, lambda trial: trial.source),
    LeftOut(
        "architecture",
        lambda trial: load_gpu(trial.rows.gpu).architecture,
        lambda trial: (
            trial.source if trial.source == SHEET else load_gpu(trial.source).architecture
        ),
    ),
    LeftOut(
        "framework on a GPU",
        lambda trial: (trial.rows.gpu, trial.rows.framework),
        lambda trial: (trial.source, trial.source_framework),
    ),
)


def transferred(reference: Path) -> pl.DataFrame:
    """Return measured kernels beside the answer of the lookup, by what is left out."""
    found = trials(reference)
    return together(
        columns(
            predicted=trial.predicted_s,
            measured=trial.rows.seconds,
            lo=lo_s,
            hi=hi_s,
            case=" ".join(trial.case),
            kernel=trial.family if trial.rows.kernel == "gemm" else trial.rows.kernel,
            left_out=way.name,
        )
        for way in WAYS
        for trial, (lo_s, hi_s) in _chosen(found, way)
    )


def _chosen(found: Sequence[Trial], way: LeftOut) -> Iterator[tuple[Trial, Ends]]:
    """Yield the trial that the lookup takes for each kernel, and its interval."""
    cases: dict[tuple[str, ...], list[Trial]] = {}
    for trial in found:
        cases.setdefault(trial.case, []).append(trial)
    known: dict[Hashable, Errors] = {}
    for some in cases.values():
        key = way.key(some[0])
        if key not in known:
            known[key] = costs_of([t for t in found if key not in (way.key(t), way.source_key(t))])
        left = [trial for trial in some if way.source_key(trial) != key]
        if left:
            yield _choice(left, known[key])


def _choice(some: Sequence[Trial], costs: Errors) -> tuple[Trial, Ends]:
    """Return the first trial of the kind with the least error, and its interval."""

    def cost(trial: Trial) -> TransferError:
        return error_of(trial.family, trial.transfer.name, costs)

    def place(trial: Trial) -> Hashable:
        return trial.source, trial.source_framework, trial.transfer.same_precision

    nearer = {place(t) for t in some if t.transfer.relation != VENDOR and cost(t).error < math.inf}
    some = [t for t in some if t.transfer.relation != VENDOR or place(t) not in nearer]
    least = min(some, key=lambda trial: rank(cost(trial), trial.transfer))
    alike = [
        t
        for t in some
        if (t.source, t.source_framework, t.transfer)
        == (least.source, least.source_framework, least.transfer)
    ]
    best = next((trial for trial in alike if trial.whole == cost(trial).whole), least)
    return best, interval_s(cost(best).widened(best.band), best.predicted_s)
