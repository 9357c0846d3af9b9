"""Tensor-core products against measured loops: matrices no fit saw, boards no fit saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.tensor_cores import IN_LAYERS
from lab.tables.kernels.engine_products import GPUS as LAYER_GPUS
from lab.tables.kernels.engine_products import read_layer_products
from lab.tables.kernels.tensor_cores import TABLE, TensorRows, read_tensor_rows
from simulators.catalog.gpu import load_gpu
from simulators.core.calibration import fitted_digests, sha256_of
from simulators.core.contract import Check
from simulators.kernels.families.gemm import gemm_roofline_s
from simulators.kernels.families.tensor_cores import MEASURED, TensorRates, tensor_seconds
from simulators.kernels.frameworks import DEFAULT_FRAMEWORK
from simulators.kernels.levels import places
from simulators.kernels.price import price
from simulators.kernels.tensor_levels import (
    FRAMEWORKS,
    Measured,
    tensor_boards,
    tensor_files,
)
from simulators.workload.operators import Gemm

Floats = NDArray[np.float64]

DATA_CENTRE = ("h100_sxm", "h200_sxm", "b200_sxm", "gb200")
"""Boards whose mean error has a bar."""

BARS = {"bf16": 7.0, "fp8": 11.0}

TRANSFERS = {
    ("h100_sxm", "h200_sxm"): 9.0, ("h100_sxm", "b200_sxm"): 15.0, ("h200_sxm", "b200_sxm"): None,
    ("b200_sxm", "gb200"): None, ("a100_sxm", "h100_sxm"): None, ("a100_sxm", "rtx_pro_6000"): None,
}  # fmt: skip
"""From one board's numbers to another by its data sheet, with the bar if there is one."""

COVERAGE_BAR = (87.0, 94.0)
"""As for fp32 operators. Bands come from a fifth of the fitted matrices; another quarter judges."""

COVERED = ("bf16", "fp8", "fp8_block", "fp4")
"""Kinds with enough held-out rows for a bar on their intervals."""


def tensor_checks(reference: Path, rows: str) -> list[Check]:
    """Return errors by board, framework and kind, their means, transfers and coverage.

    Args:
        reference: a folder laid out like the reference data.
        rows: `test` for weight matrices the split rule holds out, `all` for every row of a folder
            that nothing was fitted to.
    """
    known = tensor_boards(places())
    everything = rows == "all" and not _fitted_to(reference)
    parts = [
        part if everything else part.where(part.held_out)
        for part in read_tensor_rows(reference, FRAMEWORKS)
    ]
    parts = [part for part in parts if len(part)]
    layers = [line for gpu in LAYER_GPUS for line in _layers(reference, gpu)]
    if not parts:
        return [Check("kernels: tensor-core products", None, note=f"{TABLE} is absent"), *layers]
    return _own(parts, known) + _transfers(parts, known) + layers


def _fitted_to(reference: Path) -> bool:
    """Say whether the shipped calibrations were fitted to the table of this folder."""
    table = reference / TABLE
    return table.is_file() and sha256_of(table) in fitted_digests(tensor_files(places()))


def _own(parts: Sequence[TensorRows], known: Sequence[Measured]) -> list[Check]:
    """Check boards with numbers of their own."""
    lines = []
    inside: dict[str, list[NDArray[np.bool_]]] = {}
    errors: dict[str, list[float]] = {}
    fitted = {(board.name, *whose) for board in known for whose in board.rates}
    for part in parts:
        gpu = load_gpu(part.gpu)
        if (gpu.name, part.framework, part.kind) not in fitted:
            continue
        priced = price(product_of(part), gpu, framework=part.framework)
        predicted_s = priced.latency_s
        error = _mape(predicted_s, part.seconds)
        name = f"{part.gpu} {part.framework} {part.kind} product MAPE"
        note = _details(predicted_s, part.seconds)
        lines.append(Check(name, error, "%", rows=len(part), note=note))
        if part.framework == DEFAULT_FRAMEWORK and part.gpu in DATA_CENTRE:
            errors.setdefault(part.kind, []).append(error)
        held = (priced.lo_s <= part.seconds) & (part.seconds <= priced.hi_s)
        inside.setdefault(part.kind, []).append(held)
    for kind, found in errors.items():
        if kind in BARS and len(found) < len(DATA_CENTRE):
            continue
        value, bar = float(np.mean(found)), BARS.get(kind)
        name = f"{', '.join(DATA_CENTRE)} mean {kind} product MAPE"
        ok = None if bar is None else bool(value <= bar)
        lines.append(Check(name, value, "%", bar, ok, note=f"{DEFAULT_FRAMEWORK}; {len(found)}"))
    return lines + _coverage(inside)


def _layers(reference: Path, gpu: str) -> list[Check]:
    """Check products timed in an engine: of a board fitted to some of them, those held out."""
    lines = []
    for part in read_layer_products(reference, gpu):
        judged = part.where(part.held_out) if gpu in IN_LAYERS else part
        priced = price(product_of(judged), load_gpu(gpu), framework=part.framework)
        inside = (priced.lo_s <= judged.seconds) & (judged.seconds <= priced.hi_s)
        note = _details(priced.latency_s, judged.seconds)
        note += f"; {100.0 * np.mean(inside):.0f} % within intervals"
        error = _mape(priced.latency_s, judged.seconds)
        name = f"{gpu} {part.framework} {part.kind} product in layers MAPE"
        lines.append(Check(name, error, "%", rows=len(judged), note=note))
    return lines


def _coverage(inside: Mapping[str, Sequence[NDArray[np.bool_]]]) -> list[Check]:
    """Check how often intervals hold what was measured, by kind and over all."""
    low, high = COVERAGE_BAR
    note = f"asked for {low:g} to {high:g} %"
    groups = {f"{kind} product coverage": inside[kind] for kind in COVERED if kind in inside}
    if inside:
        groups["tensor product coverage"] = [held for some in inside.values() for held in some]
    lines = []
    for name, some in groups.items():
        held = np.concatenate(some)
        value = 100.0 * float(np.mean(held))
        lines.append(Check(name, value, "%", low, low <= value <= high, held.size, note))
    return lines


def _transfers(parts: Sequence[TensorRows], known: Sequence[Measured]) -> list[Check]:
    """Check boards as if only their data sheet and one other board were known."""
    lines = []
    for (source, target), bar in TRANSFERS.items():
        lender = [board for board in known if board.name == source]
        for part in parts:
            if part.gpu != target or part.framework != DEFAULT_FRAMEWORK or not lender:
                continue
            rates = lender[0].rates.get((part.framework, part.kind))
            if rates is None:
                continue
            predicted_s = _predicted_s(part, rates)
            value = _mape(predicted_s, part.seconds)
            limit = bar if part.kind == "bf16" else None
            ok = None if limit is None else bool(value <= limit)
            name = f"{source} to {target} {part.kind} product MAPE"
            note = f"data sheet alone; {_details(predicted_s, part.seconds)}"
            lines.append(Check(name, value, "%", limit, ok, len(part), note))
    return lines


def _predicted_s(part: TensorRows, rates: TensorRates) -> Floats:
    """Return what given rates say of measured rows."""
    gpu = load_gpu(part.gpu)
    seconds = tensor_seconds(rates, part.sizes, gpu, *MEASURED[part.kind])
    return np.maximum(seconds, gemm_roofline_s(product_of(part), gpu))


def product_of(part: TensorRows) -> Gemm:
    """Return measured rows as one product whose sizes are columns."""
    m, n, k, batch = part.sizes
    dtype, weight_dtype = MEASURED[part.kind]
    return Gemm(name="product", m=m, n=n, k=k, batch=batch, dtype=dtype, weight_dtype=weight_dtype)


def _mape(predicted_s: Floats, measured_s: Floats) -> float:
    return 100.0 * float(np.mean(np.abs(predicted_s / measured_s - 1.0)))


def _details(predicted_s: Floats, measured_s: Floats) -> str:
    """Return median, ninth decile and bias, in percent."""
    error = 100.0 * (predicted_s / measured_s - 1.0)
    size = np.abs(error)
    median, high = np.quantile(size, (0.5, 0.9))
    return f"median {median:.1f}, p90 {high:.1f}, bias {np.mean(error):+.1f}"
