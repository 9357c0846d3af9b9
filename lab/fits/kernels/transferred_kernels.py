"""Fit the error of pricing a kernel with numbers fitted on another GPU, framework or precision.

A trial is one kernel of one framework on one GPU in one precision, priced on that GPU's data sheet
with numbers fitted to another kernel that a lookup may use, once for each kind of transfer that
this is. Rows are held out of all fits. docs/explanation/kernels.md says what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, declared, settings
from lab.fits.kernels import fused_kernels, tensor_cores
from lab.fits.methods import grouped, interval
from lab.tables import kernels as tables
from lab.tables.rows import Floats, Rows
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence import transfer as transfers
from simulators.evidence.default_rates import identity_of
from simulators.evidence.intervals import WIDEST, Band
from simulators.evidence.lookup import FRAMEWORKS, sources, stamp
from simulators.evidence.transfer import OWN, SHEET, Errors, TransferError, TransferKind
from simulators.kernels.families import attention, auxiliary_kernels, experts
from simulators.kernels.families.family import EIGHT_BITS, entry_from, multiplies_narrow, tables_of
from simulators.kernels.levels import measured_rates, substitute_kinds, zero_shot_profile
from simulators.kernels.price import price, roofline_s

CONFIG = settings(__file__)


@dataclass(frozen=True)
class Trial:
    """A measured kernel priced with the numbers of one source."""

    rows: Rows
    source: str  # GPU that the numbers were fitted on
    source_framework: str
    transfer: TransferKind
    whole: bool  # with trees and grids
    band: Band  # of the source's own fit
    predicted_s: Floats

    @property
    def log_ratio(self) -> Floats:
        """log(measured / predicted) of each row."""
        return np.asarray(np.log(self.rows.seconds / self.predicted_s), np.float64)

    @property
    def error(self) -> float:
        """Mean absolute log ratio."""
        return float(np.mean(np.abs(self.log_ratio)))

    @property
    def family(self) -> str:
        """Kernel and format; of products the format alone."""
        rows = self.rows
        return rows.dtype if rows.kernel == "gemm" else f"{rows.kernel}.{rows.dtype}"

    @property
    def case(self) -> tuple[str, str, str]:
        """GPU, framework and family of the kernel."""
        return self.rows.gpu, self.rows.framework, self.family


def trials(reference: Path, gpus: Sequence[str] = CONFIG.gpus) -> list[Trial]:
    """Return all trials of some GPUs, in the order of a lookup."""
    fused = [
        fused_kernels.by_library(part)
        for gpu in gpus
        for part in chain(
            *(tables.read_measured(reference, gpu, kernel) for kernel in tables.TABLES),
            tables.read_auxiliary_rows(reference, gpu),
        )
        if not part.variant
    ]
    products = tables.read_tensor_rows(reference, tables.PRODUCERS)
    found = [*map(_fused_trials, _thinned(fused))]
    found += map(_product_trials, _thinned(part for part in products if part.gpu in gpus))
    return [*chain.from_iterable(found)]


def _thinned(parts: Iterable[Rows]) -> Iterator[Rows]:
    for part in parts:
        if np.count_nonzero(part.held_out) >= CONFIG.fewest_rows:
            yield part.where(part.held_out).thinned(CONFIG.trial_rows)


def _fused_trials(rows: Rows) -> Iterator[Trial]:
    gpu = load_gpu(rows.gpu)

    def look(source: str, framework: str, dtype: str) -> Mapping[str, Any] | None:
        # Without 8-bit tensor cores kernels widen 8-bit keys and run as those of 16 bits do.
        is_narrow = source != gpu.name and multiplies_narrow(source, dtype)
        if is_narrow and EIGHT_BITS not in gpu.peak_flops:
            return None
        return tables_of(source, stamp()).get(f"{framework}.{rows.kernel}.{dtype}")

    for source, framework, kind, table in _sources("fused", rows, gpu, formats_of(rows), look):
        for whole in (True, False) if {"correction", "grid"} & set(table) else (True,):
            entry = entry_from(table, source, framework, whole=whole)
            if rows.kernel in tables.TABLES:
                predicted_s = fused_kernels.predicted_s(rows, gpu, entry)
            else:
                predicted_s = auxiliary_kernels.fitted_seconds(rows.operator, gpu, entry)
            yield Trial(rows, source, framework, kind, whole, entry.band, predicted_s)


def _product_trials(rows: Rows) -> Iterator[Trial]:
    gpu = load_gpu(rows.gpu)
    least_s = roofline_s(rows.operator, gpu)
    sheet_s = price(rows.operator, gpu, zero_shot_profile(identity_of(gpu))).latency_s
    yield Trial(rows, SHEET, SHEET, TransferKind(SHEET), True, WIDEST, sheet_s)

    def look(source: str, framework: str, kind: str) -> Any:
        return measured_rates(source).get((framework, kind))

    kinds = substitute_kinds(rows.dtype)
    for source, framework, kind, rates in _sources("tensor", rows, gpu, kinds, look):
        predicted_s = np.maximum(tensor_cores.seconds_of(rows, rates, gpu), least_s)
        yield Trial(rows, source, framework, kind, True, rates.band or WIDEST, predicted_s)


def _sources(
    kind: str, rows: Rows, gpu: Gpu, formats: Sequence[str], look: Callable[[str, str, str], Any]
) -> Iterator[tuple[str, str, TransferKind, Any]]:
    """Yield GPU, framework, kind of transfer and numbers of every source except the rows' own."""
    wanted = rows.framework, gpu.architecture
    for source in sources(kind, gpu.name, gpu.architecture):
        for dtype, framework in product(formats, FRAMEWORKS):
            if not transfers.can_substitute(
                framework, rows.framework, rows.kernel, gpu.architecture
            ):
                continue
            found = framework, source.architecture
            is_same = dtype == formats[0]
            kinds = transfers.transfer_kinds(source.relation, rows.kernel, wanted, found, is_same)
            if kinds[0].name == OWN:
                continue
            if (numbers := look(source.gpu, framework, dtype)) is not None:
                for one in kinds:
                    yield source.gpu, framework, one, numbers


def formats_of(rows: Rows) -> tuple[str, ...]:
    """Return the formats of rows and those that substitute for them."""
    if rows.kernel == "experts":
        return experts.stand_in_formats(rows.dtype)
    if rows.kernel in tables.TABLES:
        dtype, kv_dtype = rows.dtype.split("_")
        return attention.stand_in_formats(dtype, kv_dtype)
    return (rows.dtype,)


def fit_transferred_kernels(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the error of each kind of transfer, and which frameworks substitute for which."""
    found = trials(reference)
    errors = np.concatenate([np.expm1(trial.log_ratio) for trial in found])
    yield declared(
        "transferred_kernels",
        content={
            "substitutes": substitutes(found),
            "family": {
                family: {
                    kind: {n: v for n, v in vars(cost).items() if n != "whole" or not v}
                    for kind, cost in of_family.items()
                }
                for family, of_family in costs_of(found).items()
            },
        },
        rows=errors.size,
        errors=errors,
    )


def costs_of(found: Sequence[Trial]) -> Errors:
    """Return the error of each kind of transfer in each family, and in all together.

    A kind without trials in a family has the error of the kernel's other formats, else of all
    kernels; but equal instruction sets say nothing about other families.
    """
    common = [t for t in found if t.transfer.relation != transfers.INSTRUCTIONS]
    every = _costs_by_kind(trial for trial in common if trial.transfer.name != SHEET)
    kernels = dict.fromkeys(trial.rows.kernel for trial in found)
    of_kernel = {k: _costs_by_kind(t for t in common if t.rows.kernel == k) for k in kernels}
    costs = {transfers.ALL: _rising(every)}
    costs |= {kernel: _rising(every | some) for kernel, some in of_kernel.items()}
    for family, kernel in dict.fromkeys((trial.family, trial.rows.kernel) for trial in found):
        known = _costs_by_kind(trial for trial in found if trial.family == family)
        costs[family] = _rising(every | of_kernel[kernel] | known)
    return costs


def _costs_by_kind(found: Iterable[Trial]) -> dict[str, TransferError]:
    by_kind = grouped(found, lambda trial: trial.transfer.name)
    return {name: _cost(some) for name, some in by_kind.items()}


def _rising(costs: Mapping[str, TransferError]) -> dict[str, TransferError]:
    """Return costs whose errors do not decrease with distance.

    Each error becomes the mean of the highest error of nearer kinds and the lowest of farther ones.
    """
    every = product(transfers.RELATIONS, (True, False), (True, False))
    kinds = {kind.name: kind for kind in (TransferKind(*one) for one in every)}
    kinds = {name: kind for name, kind in kinds.items() if name in costs}
    risen = dict(costs)
    for name, transfer in kinds.items():
        nearer = [costs[other].error for other, kind in kinds.items() if is_within(kind, transfer)]
        farther = [costs[other].error for other, kind in kinds.items() if is_within(transfer, kind)]
        risen[name] = replace(costs[name], error=(max(nearer) + min(farther)) / 2.0)
    return risen


def _cost(some: Sequence[Trial]) -> TransferError:
    """Return the cost of one kind: with trees and grids, unless numbers alone have much less error.

    Within an architecture trees and grids always transfer: its tiles and units are the same.
    """
    whole = _cost_of_pairs([trial for trial in some if trial.whole], whole=True)
    if all(t.whole or t.transfer.relation in (OWN, transfers.ARCHITECTURE) for t in some):
        return whole
    plain = _cost_of_pairs([trial for trial in some if not trial.whole], whole=False)
    return plain if plain.error < CONFIG.much_less * whole.error else whole


def _cost_of_pairs(some: Sequence[Trial], *, whole: bool) -> TransferError:
    groups = [_pair(trial) for trial in some for _ in trial.log_ratio]
    ratio = np.concatenate([trial.log_ratio for trial in some])
    pairs = [np.concatenate([t.log_ratio for t in of]) for of in grouped(some, _pair).values()]
    lo, hi = interval(np.exp(ratio), groups, widen=1.0 + CONFIG.sigmas / len(pairs))
    error = float(np.exp(np.mean([np.log(np.mean(np.abs(of_pair))) for of_pair in pairs])))
    return TransferError(error, lo, hi, whole)


def _pair(trial: Trial) -> tuple[str, ...]:
    """Return the pair of a trial: GPUs of one architecture are one, as they are near copies."""
    source = trial.source if trial.source == SHEET else load_gpu(trial.source).architecture
    return trial.family, load_gpu(trial.rows.gpu).architecture, source, trial.rows.framework


def substitutes(found: Sequence[Trial]) -> dict[str, dict[str, list[str]]]:
    """Return, by family and framework, the other frameworks on the same GPU by rising error."""
    other_framework = TransferKind(OWN, same_framework=False)
    kept = [trial for trial in found if trial.transfer == other_framework and trial.whole]
    order: dict[str, dict[str, list[str]]] = {}
    for (family, framework), some in grouped(kept, lambda t: (t.family, t.rows.framework)).items():
        means = {
            source: np.mean([np.log(trial.error) for trial in of_source])
            for source, of_source in grouped(some, lambda t: t.source_framework).items()
        }
        order.setdefault(family, {})[framework] = sorted(means, key=means.__getitem__)
    return order


def is_within(one: TransferKind, other: TransferKind) -> bool:
    """Return whether one kind of transfer is at most as distant as another in every respect.

    Beyond one generation a framework runs other kernels, so its name does not count.
    """
    is_far = other.relation in (transfers.VENDOR, transfers.OTHER)
    ways = {one.relation, other.relation}
    if transfers.INSTRUCTIONS in ways and ways & {transfers.GENERATION, transfers.VENDOR}:
        return False
    return (
        transfers.RELATIONS.index(one.relation) <= transfers.RELATIONS.index(other.relation)
        and one.same_precision >= other.same_precision
        and one.same_framework >= (other.same_framework and not is_far)
    )
