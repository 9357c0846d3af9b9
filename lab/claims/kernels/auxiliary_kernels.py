"""How far side kernels are from measured ones whose shapes nothing was fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.auxiliary_kernels import BANDED
from lab.tables.kernels.auxiliary_kernels import GPUS, SideRows, read_side_rows, side_tables
from lab.tables.kernels.engine_chains import read_chain_rows
from lab.tables.kernels.engine_products import GPUS as LAYER_GPUS
from lab.tables.kernels.fused_kernels import FOLDER as MEASURED
from simulators.catalog.gpu import load_gpu
from simulators.core.calibration import fitted_digests, sha256_of
from simulators.core.contract import Check
from simulators.kernels.frameworks import SIDE_FOLDER
from simulators.kernels.price import price

Floats = NDArray[np.float64]

COVERAGE_BAR = (85.0, 95.0)
"""Bands come from half of the held-out shapes; the other half falls inside about as often."""


def checks(reference: Path, rows: str) -> list[Check]:
    """Return errors by board, framework and kernel, and how often intervals hold.

    Args:
        reference: a folder laid out like the reference data.
        rows: `test` for held-out shapes, `all` for every row of a folder nothing was fitted to.
    """
    tables = side_tables(reference)
    if not tables:
        return [Check("kernels: side kernels", None, note=f"their tables in {MEASURED} are absent")]
    fitted = fitted_digests(SIDE_FOLDER.glob("*.toml"))
    whole = rows == "all" and not fitted & {sha256_of(table) for table in tables}
    found: list[Check] = []
    inside: list[NDArray[np.bool_]] = []
    for gpu in GPUS:
        parts = [p if whole else p.where(p.held_out) for p in read_side_rows(reference, gpu)]
        for name in dict.fromkeys(f"{part.framework} {part.kernel}" for part in parts):
            mine = [part for part in parts if f"{part.framework} {part.kernel}" == name]
            found += _kernel_check(f"{gpu} {name}", mine, inside, whole)
    return [*found, *_coverage(inside), *_chains(reference)]


def _chains(reference: Path) -> list[Check]:
    """Check the chains of an engine's layers, on sizes nothing was fitted to."""
    lines = []
    for gpu in LAYER_GPUS:
        for part in read_chain_rows(reference, gpu):
            judged = part.where(part.held_out)
            priced = price(judged.operator, load_gpu(gpu))
            error = 100.0 * (priced.latency_s / judged.seconds - 1.0)
            judging = judged.place >= BANDED
            inside = (priced.lo_s <= judged.seconds) & (judged.seconds <= priced.hi_s)
            note = f"median {np.median(np.abs(error)):.1f}, bias {np.mean(error):+.1f}"
            note += f"; {100.0 * np.mean(inside[judging]):.0f} % within intervals"
            value = float(np.mean(np.abs(error)))
            lines.append(Check(f"{gpu} {part.label} MAPE", value, "%", rows=error.size, note=note))
    return lines


def _kernel_check(
    name: str, parts: Sequence[SideRows], inside: list[NDArray[np.bool_]], whole: bool
) -> list[Check]:
    """Check one kernel that has numbers of its own, and note which rows its interval holds."""
    misses = []
    for part in parts:
        if not len(part):
            continue
        priced = price(part.operator, load_gpu(part.gpu), framework=part.framework)
        if not priced.calibrated:
            return []
        misses.append(priced.latency_s / part.seconds - 1.0)
        holds = (priced.lo_s <= part.seconds) & (part.seconds <= priced.hi_s)
        inside.append(holds if whole else holds[part.place >= BANDED])
    if not misses:
        return []
    error = 100.0 * np.concatenate(misses)
    note = f"median {np.median(np.abs(error)):.1f}, bias {np.mean(error):+.1f}"
    value = float(np.mean(np.abs(error)))
    return [Check(f"{name} MAPE", value, "%", rows=error.size, note=note)]


def _coverage(inside: Sequence[NDArray[np.bool_]]) -> list[Check]:
    if not inside:
        return []
    low, high = COVERAGE_BAR
    held = np.concatenate(inside)
    value = 100.0 * float(np.mean(held))
    note = f"asked for {low:g} to {high:g} %"
    return [Check("side kernel coverage", value, "%", low, low <= value <= high, held.size, note)]
