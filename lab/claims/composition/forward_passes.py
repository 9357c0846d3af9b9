"""How far whole passes are from measured ones, table by table.

Each line is a mean error in percent over single measurements; the note has the rest of the error
table. Rows fitted to are left out unless all are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.claims.composition import fp32_models as checks_graphs
from lab.fits.pass_intervals import coverage_checks
from lab.tables.layers import BOARDS, LINEAR, LayerRows, layer_rows
from lab.tables.forward_passes import TABLES, Table
from simulators.composition.clocks import slowdown
from simulators.composition.overhead import load_runtime
from simulators.core.contract import Check

Floats = NDArray[np.float64]


LAYERS = (
    ("decode", 1, 128, 10.0),
    ("small prompts", 129, 512, None),
    ("prompts", 513, 1 << 20, 10.0),
)
"""Sums of one layer's operators: what they are called, their tokens, and what is asked."""


def checks(reference: Path, rows: str) -> list[Check]:
    """Return one line for each measured table.

    Args:
        reference: the folder of measured tables.
        rows: `test` for rows outside the fits, `all` for every row.
    """
    return [
        *(_check(table, reference, rows) for table in TABLES),
        *_layer_checks(reference, rows),
        *coverage_checks(reference),
        *checks_graphs.checks(reference),
    ]


def _check(table: Table, reference: Path, rows: str) -> Check:
    name = f"composition/{table.name}"
    if not (reference / table.path).is_file():
        return Check(name, None, unit="%", note=f"absent: {table.path}")
    cases = [c for c in table.cases(reference) if c.is_test or rows == "all"]
    if not cases:
        return Check(name, None, unit="%", note=f"no rows of a known model and gpu: {table.path}")
    runtime = load_runtime(table.runtime)
    predicted = np.array([case.predicted_s(runtime) for case in cases])
    measured = np.array([case.measured_s for case in cases])
    return _compared(name, predicted, measured, [case.group for case in cases], table.limit)


def _layer_checks(reference: Path, rows: str) -> list[Check]:
    """Return one line for each board and range of tokens of measured layers."""
    if not (reference / LINEAR).is_file():
        return [Check("composition/layers", None, unit="%", note=f"absent: {LINEAR}")]
    layers = [one for one in layer_rows(reference) if one.is_test or rows == "all"]
    return [
        _layer_check(name, [one for one in layers if one.replica.gpu.name == board], *bounds)
        for name, *bounds in LAYERS
        for board in BOARDS.values()
    ]


def _layer_check(
    name: str, layers: Sequence[LayerRows], least: int, most: int, limit: float | None
) -> Check:
    if not layers:
        return Check(f"composition/layers, {name}", None, unit="%", note="no rows")
    board = layers[0].replica.gpu
    inside = [(one.tokens >= least) & (one.tokens <= most) for one in layers]
    pairs = [
        (one.predicted_s(slowdown(board))[here], one.measured_s[here])
        for one, here in zip(layers, inside, strict=True)
    ]
    predicted, measured = (np.concatenate(column) for column in zip(*pairs, strict=True))
    groups = [
        f"{one.model} tp{one.replica.cut.tp}"
        for one, here in zip(layers, inside, strict=True)
        for _ in range(int(here.sum()))
    ]
    return _compared(
        f"composition/layers, {name}, {board.name}", predicted, measured, groups, limit
    )


def _compared(
    name: str, predicted: Floats, measured: Floats, groups: Sequence[str], limit: float | None
) -> Check:
    """Return the line of a table of predictions and measurements."""
    if not groups:
        return Check(name, None, unit="%", note="no rows")
    value = round(100.0 * float(np.mean(np.abs(predicted / measured - 1.0))), 2)
    return Check(
        name,
        value,
        unit="%",
        limit=limit,
        ok=None if limit is None else value <= limit,
        rows=len(groups),
        note=_error_table(predicted, measured, groups),
    )


def _error_table(predicted: Floats, measured: Floats, groups: Sequence[str]) -> str:
    """Return the rest of the error table: median, RMSE, bias, rank correlation, worst case."""
    ratio = predicted / measured - 1.0
    worst = int(np.argmax(np.abs(ratio)))
    rmse_ms = 1e3 * float(np.sqrt(np.mean((predicted - measured) ** 2)))
    return (
        f"median {100 * np.median(np.abs(ratio)):.1f} %, bias {100 * np.mean(ratio):+.1f} %, "
        f"RMSE {rmse_ms:.3g} ms, tau {_kendall_tau(predicted, measured):.2f}, "
        f"worst {100 * ratio[worst]:+.0f} % ({groups[worst]})"
    )


def _kendall_tau(a: Floats, b: Floats) -> float:
    """Return Kendall's tau-b, which counts ties in neither direction.

    >>> _kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])).__round__(3)
    0.333
    """
    signs_a = np.sign(np.subtract.outer(a, a))
    signs_b = np.sign(np.subtract.outer(b, b))
    untied = float(np.sqrt(np.sum(signs_a**2) * np.sum(signs_b**2)))
    return float(np.sum(signs_a * signs_b)) / untied if untied else 1.0
