"""How far tensor-core products are from measured loops: matrices no fit saw, boards no fit saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lab.claims.judged import is_fitted_to, judged, quantiles
from lab.claims.lines import SHAPES_COVERAGE_BAR, absent, at_most, percent_off, within
from lab.fits.kernels.tensor_cores import seconds_of
from lab.tables.kernels.tensor_cores import PRODUCERS, TABLE, read_tensor_rows
from lab.tables.rows import Bools, Rows, mape
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check
from simulators.evidence.calibration_files import calibrations
from simulators.evidence.lookup import DEFAULT_FRAMEWORK
from simulators.kernels.families.tensor_cores import measured_rates
from simulators.kernels.price import roofline_s
from simulators.kernels.profile import TensorRates

Rates = Mapping[str, Mapping[tuple[str, str], TensorRates]]
"""By board, then by framework and kind."""

DATA_CENTRE = ("h100_sxm", "h200_sxm", "b200_sxm", "gb200")
"""Boards whose mean error has a bar."""

BARS = {"bf16": 7.0, "fp8": 11.0}

TRANSFERS = {
    ("h100_sxm", "h200_sxm"): 9.0,
    ("h100_sxm", "b200_sxm"): 15.0,
    ("h200_sxm", "b200_sxm"): None,
    ("b200_sxm", "gb200"): None,
    ("a100_sxm", "h100_sxm"): None,
    ("a100_sxm", "rtx_pro_6000"): None,
}
"""From one board's numbers to another by its data sheet, with the bar if there is one."""

COVERED = ("bf16", "fp8", "fp8_block", "fp4")
"""Kinds with enough held-out rows for a bar on their intervals."""


def checks(reference: Path, rows: str) -> list[Check]:
    """Return errors by board, framework and kind, their means, transfers and coverage."""
    whole = rows == "all" and not is_fitted_to("tensor", reference, [TABLE])
    found = read_tensor_rows(reference, PRODUCERS)
    parts = [part if whole else part.where(part.held_out) for part in found]
    parts = [part for part in parts if len(part)]
    if not parts:
        return [absent("kernels: tensor-core products", f"{TABLE} is absent")]
    known = {board: measured_rates(board) for board in calibrations("tensor")}
    return _own(parts, known) + _transfers(parts, known)


def _own(parts: Sequence[Rows], known: Rates) -> list[Check]:
    """Check boards with numbers of their own."""
    lines = []
    inside: dict[str, list[Bools]] = {}
    errors: dict[str, list[float]] = {}
    counted = Counter[str]()
    fitted = {(board, *whose) for board, rates in known.items() for whose in rates}
    for part in parts:
        if (load_gpu(part.gpu).name, part.framework, part.dtype) not in fitted:
            continue
        one = judged([part])
        name = f"{part.gpu} {part.framework} {part.dtype} product MAPE"
        lines.append(at_most(name, one.mape, None, len(part), quantiles(one.errors)))
        if part.framework == DEFAULT_FRAMEWORK and part.gpu in DATA_CENTRE:
            errors.setdefault(part.dtype, []).append(one.mape)
            counted[part.dtype] += len(part)
        inside.setdefault(part.dtype, []).append(one.inside)
    for kind, found in errors.items():
        if kind not in BARS or len(found) == len(DATA_CENTRE):
            name = f"{', '.join(DATA_CENTRE)} mean {kind} product MAPE"
            note = f"{DEFAULT_FRAMEWORK}; {len(found)} GPUs"
            mean = float(np.mean(found))
            lines.append(at_most(name, mean, BARS.get(kind), counted[kind], note))
    return lines + _coverage(inside)


def _coverage(inside: Mapping[str, Sequence[Bools]]) -> list[Check]:
    """Check how often intervals hold what was measured, by kind and over all.

    Bands come from a fifth of the fitted matrices; another quarter judges.
    """
    groups = {kind: inside.get(kind, []) for kind in COVERED}
    groups["tensor"] = [held for some in inside.values() for held in some]
    return [
        line
        for kind, some in groups.items()
        for line in within(f"{kind} product coverage", some, allowed=SHAPES_COVERAGE_BAR)
    ]


def _transfers(parts: Sequence[Rows], known: Rates) -> list[Check]:
    """Check boards as if only their data sheet and one other board were known."""
    lines = []
    for (source, target), bar in TRANSFERS.items():
        for part in parts:
            if part.gpu != target or part.framework != DEFAULT_FRAMEWORK or source not in known:
                continue
            rates = known[source].get((part.framework, part.dtype))
            if rates is None:
                continue
            gpu = load_gpu(target)
            least_s = roofline_s(part.operator, gpu)
            predicted_s = np.maximum(seconds_of(part, rates, gpu), least_s)
            name = f"{source} to {target} {part.dtype} product MAPE"
            note = f"data sheet alone; {quantiles(percent_off(predicted_s, part.seconds))}"
            value = 100.0 * mape(predicted_s, part.seconds)
            limit = bar if part.dtype == "bf16" else None
            lines.append(at_most(name, value, limit, len(part), note))
    return lines
