"""Measured kernels priced with numbers fitted to other GPUs, frameworks and precisions.

A trial is one kernel of one framework on one GPU in one precision, priced on that GPU's data sheet
with numbers fitted to another kernel, once for each kind of transfer that this is. Rows are held
out of all fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lab.fits.kernels import fused_kernels, tensor_cores
from lab.tables.fused_kernels import TABLES, read_measured
from lab.tables.rows import Floats, Rows
from lab.tables.tensor_kernels import PRODUCERS, read_auxiliary_rows, read_tensor_rows
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.calibration_files import stamp
from simulators.evidence.default_rates import identity_of
from simulators.evidence.intervals import WIDEST, Band
from simulators.evidence.lookup import FRAMEWORKS, sources
from simulators.evidence.transfer import (
    OWN,
    SHEET,
    TransferKind,
    can_substitute,
    transfer_kinds,
)
from simulators.kernels.families import attention, auxiliary_kernels, experts
from simulators.kernels.families.family import EIGHT_BITS, entry_from, multiplies_narrow, tables_of
from simulators.kernels.levels import measured_rates, stand_in_kinds, zero_shot_profile
from simulators.kernels.price import price, roofline_s

GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "rtx_pro_6000")
"""GPUs whose kernels are priced with others' numbers."""

TRIAL_ROWS, FEWEST_ROWS = 300, 20
"""Most rows of a trial, evenly spaced, and least held-out rows of a kernel."""

N = TypeVar("N")
Look = Callable[[str, str, str], N | None]


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
        """What is priced: GPU, framework and family."""
        return self.rows.gpu, self.rows.framework, self.family


def trials(reference: Path, gpus: Sequence[str] = GPUS) -> list[Trial]:
    """Return all trials of some GPUs, in the order of a lookup."""
    fused = (
        part
        for gpu in gpus
        for part in chain(
            *(read_measured(reference, gpu, kernel) for kernel in TABLES),
            read_auxiliary_rows(reference, gpu),
        )
        if not part.variant
    )
    fused = (fused_kernels.by_library(part) for part in fused)
    products = read_tensor_rows(reference, PRODUCERS)
    return [
        *chain.from_iterable(map(_fused_trials, _thinned(fused))),
        *chain.from_iterable(
            map(_product_trials, _thinned(part for part in products if part.gpu in gpus))
        ),
    ]


def _thinned(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Yield some held-out rows of each kernel that has enough of them."""
    for part in parts:
        if np.count_nonzero(part.held_out) >= FEWEST_ROWS:
            yield part.where(part.held_out).thinned(TRIAL_ROWS)


def _fused_trials(rows: Rows) -> Iterator[Trial]:
    """Yield attention, experts and the like by each source, whole and by numbers alone."""
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
            if rows.kernel in TABLES:
                predicted_s = fused_kernels.predicted_s(rows, gpu, entry)
            else:
                predicted_s = auxiliary_kernels.fitted_seconds(rows.operator, gpu, entry)
            yield Trial(rows, source, framework, kind, whole, entry.band, predicted_s)


def _product_trials(rows: Rows) -> Iterator[Trial]:
    """Yield tensor-core products by each source, and by the data sheet alone."""
    gpu = load_gpu(rows.gpu)
    least_s = roofline_s(rows.operator, gpu)
    sheet_s = price(rows.operator, gpu, zero_shot_profile(identity_of(gpu))).latency_s
    yield Trial(rows, SHEET, SHEET, TransferKind(SHEET), True, WIDEST, sheet_s)

    def look(source: str, framework: str, kind: str) -> Any:
        return measured_rates(source).get((framework, kind))

    kinds = stand_in_kinds(rows.dtype)
    for source, framework, kind, rates in _sources("tensor", rows, gpu, kinds, look):
        predicted_s = np.maximum(tensor_cores.seconds_of(rows, rates, gpu), least_s)
        yield Trial(rows, source, framework, kind, True, rates.band or WIDEST, predicted_s)


def _sources(
    kind: str, rows: Rows, gpu: Gpu, formats: Sequence[str], look: Look[N]
) -> Iterator[tuple[str, str, TransferKind, N]]:
    """Yield the numbers that each GPU, framework and format has for some rows, except their own."""
    wanted = rows.framework, gpu.architecture
    for source in sources(kind, gpu.name, gpu.architecture):
        for dtype, framework in product(formats, FRAMEWORKS):
            if not can_substitute(framework, rows.framework, rows.kernel, gpu.architecture):
                continue
            found = framework, source.architecture
            is_same = dtype == formats[0]
            kinds = transfer_kinds(source.relation, rows.kernel, wanted, found, is_same)
            if kinds[0].name == OWN:
                continue
            if (numbers := look(source.gpu, framework, dtype)) is not None:
                for one in kinds:
                    yield source.gpu, framework, one, numbers


def formats_of(rows: Rows) -> tuple[str, ...]:
    """Return the formats of rows and those that substitute for them."""
    if rows.kernel == "experts":
        return experts.stand_in_formats(rows.dtype)
    if rows.kernel in TABLES:
        dtype, kv_dtype = rows.dtype.split("_")
        return attention.stand_in_formats(dtype, kv_dtype)
    return (rows.dtype,)
