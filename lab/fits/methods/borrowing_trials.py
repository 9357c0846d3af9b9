"""Measured kernels priced by the numbers of everybody who could lend to them.

A trial is one kernel of one framework on one board in one precision, priced on that board's data
sheet by what was fitted to another kernel, once for each kind of borrowing that this is. Rows are
of the side of the split that no fit has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lab.fits.kernels import fused_kernels, tensor_cores
from lab.tables.kernels.auxiliary_kernels import read_auxiliary_rows
from lab.tables.kernels.fused_kernels import TABLES, read_measured
from lab.tables.kernels.tensor_cores import PRODUCERS, read_tensor_rows
from lab.tables.rows import Floats, Rows
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.boards import identity_of
from simulators.evidence.calibration_files import stamp
from simulators.evidence.intervals import WIDEST, Band
from simulators.evidence.lookup import FRAMEWORKS, sources
from simulators.evidence.transfer import (
    OWN,
    SHEET,
    TransferKind,
    can_substitute,
    transfer_kinds,
)
from simulators.kernels.entries import EIGHT_BITS, entry_from, multiplies_narrow, tables_of
from simulators.kernels.families import attention, auxiliary_kernels, experts
from simulators.kernels.families.tensor_cores import measured_rates, stand_in_kinds
from simulators.kernels.levels import zero_shot_profile
from simulators.kernels.price import price, roofline_s

GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "rtx_pro_6000")
"""Boards whose kernels are priced by others."""

TRIAL_ROWS = 300
"""Rows of a trial, evenly spaced; more of them say nothing new."""

FEWEST_ROWS = 20

N = TypeVar("N")
Look = Callable[[str, str, str], N | None]


@dataclass(frozen=True)
class Trial:
    """A measured kernel priced by one lender's numbers."""

    gpu: str
    framework: str
    kernel: str
    dtype: str
    lender: str
    lender_framework: str
    loan: TransferKind
    whole: bool  # with trees and grids
    band: Band  # of the lender's own fit
    predicted_s: Floats
    measured_s: Floats

    @property
    def log_ratio(self) -> Floats:
        """log(measured / predicted) of each row."""
        return np.asarray(np.log(self.measured_s / self.predicted_s), np.float64)

    @property
    def error(self) -> float:
        """Mean absolute log ratio."""
        return float(np.mean(np.abs(self.log_ratio)))

    @property
    def family(self) -> str:
        """What costs are told apart by: kernel and format, of products the format alone."""
        return self.dtype if self.kernel == "gemm" else f"{self.kernel}.{self.dtype}"

    @property
    def case(self) -> tuple[str, str, str]:
        """What is priced: board, framework and family."""
        return self.gpu, self.framework, self.family


def trials(reference: Path, gpus: Sequence[str] = GPUS) -> list[Trial]:
    """Return all trials of some boards, in the order in which a lookup would ask."""
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
    """Yield some of the rows that no fit has seen, of kernels that have enough of them."""
    for part in parts:
        if np.count_nonzero(part.held_out) >= FEWEST_ROWS:
            yield part.where(part.held_out).thinned(TRIAL_ROWS)


def _lends_format(board: str, dtype: str, gpu: Gpu) -> bool:
    """Say whether a board lends a GPU its attention in a format: over 8-bit keys not always.

    Kernels multiply such keys in 8 bits where tensor cores can; elsewhere they widen what they read
    and run as those of 16 bits do, of whatever board.
    """
    return EIGHT_BITS in gpu.peak_flops or board == gpu.name or not multiplies_narrow(board, dtype)


def _fused_trials(rows: Rows) -> Iterator[Trial]:
    """Yield attention, experts and the like by each lender, whole and by numbers alone."""
    gpu = load_gpu(rows.gpu)

    def look(board: str, framework: str, dtype: str) -> Mapping[str, Any] | None:
        if not _lends_format(board, dtype, gpu):
            return None
        return tables_of(board, stamp()).get(f"{framework}.{rows.kernel}.{dtype}")

    for board, framework, loan, table in _loans("fused", rows, gpu, formats_of(rows), look):
        for whole in (True, False) if {"bend", "knots"} & set(table) else (True,):
            entry = entry_from(table, board, framework, whole=whole)
            if rows.kernel in TABLES:
                said = fused_kernels.predicted_s(rows, gpu, entry)
            else:
                said = auxiliary_kernels.fitted_seconds(rows.operator, gpu, entry)
            yield _trial(rows, board, framework, loan, whole, entry.band, said)


def _product_trials(rows: Rows) -> Iterator[Trial]:
    """Yield products on tensor cores by each lender, and by the data sheet alone."""
    gpu = load_gpu(rows.gpu)
    least_s = roofline_s(rows.operator, gpu)
    sheet_s = price(rows.operator, gpu, zero_shot_profile(identity_of(gpu))).latency_s
    yield _trial(rows, SHEET, SHEET, TransferKind(SHEET), True, WIDEST, sheet_s)

    def look(board: str, framework: str, kind: str) -> Any:
        return measured_rates(board).get((framework, kind))

    for board, framework, loan, rates in _loans(
        "tensor", rows, gpu, stand_in_kinds(rows.dtype), look
    ):
        said = np.maximum(tensor_cores.seconds_of(rows, rates, gpu), least_s)
        yield _trial(rows, board, framework, loan, True, rates.band or WIDEST, said)


def _loans(
    kind: str, rows: Rows, gpu: Gpu, formats: Sequence[str], look: Look[N]
) -> Iterator[tuple[str, str, TransferKind, N]]:
    """Yield what each board, framework and format has for some rows, but for their very own."""
    wanted = rows.framework, gpu.architecture
    for lender in sources(kind, gpu.name, gpu.architecture):
        for dtype in formats:
            for framework in FRAMEWORKS:
                if not can_substitute(framework, rows.framework, rows.kernel, gpu.architecture):
                    continue
                lent = framework, lender.architecture
                loans = transfer_kinds(
                    lender.relation, rows.kernel, wanted, lent, dtype == formats[0]
                )
                if loans[0].name == OWN:
                    continue
                if (numbers := look(lender.gpu, framework, dtype)) is not None:
                    for loan in loans:
                        yield lender.gpu, framework, loan, numbers


def formats_of(rows: Rows) -> tuple[str, ...]:
    """Return the formats of rows and those that stand in for them."""
    if rows.kernel == "experts":
        return experts.stand_in_formats(rows.dtype)
    if rows.kernel in TABLES:
        dtype, kv_dtype = rows.dtype.split("_")
        return attention.stand_in_formats(dtype, kv_dtype)
    return (rows.dtype,)


def _trial(
    rows: Rows,
    board: str,
    framework: str,
    loan: TransferKind,
    whole: bool,
    band: Band,
    said: Floats,
) -> Trial:
    return Trial(
        gpu=rows.gpu,
        framework=rows.framework,
        kernel=rows.kernel,
        dtype=rows.dtype,
        lender=board,
        lender_framework=framework,
        loan=loan,
        whole=whole,
        band=band,
        predicted_s=np.asarray(said, np.float64),
        measured_s=rows.seconds,
    )
