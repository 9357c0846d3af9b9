"""How far watts are from what boards' own meters showed, on shapes that nothing was fitted to.

Three views. What the meter shows of a loop, which is what the tables hold; the settled draw, on
kernels of 0.1 ms and more, whose loops last long enough for the meter, by the board's own numbers
and by those of the other metered board; and joules of products from
their shape alone, time and watts both predicted. Where one shape was metered twice, in formats that
take the same time, the two readings say how well the meter repeats itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from lab.claims.judged import is_fitted_to, priced_alike
from lab.claims.lines import absent, at_most, error_line, percent_off
from lab.fits.methods.power_meter import SETTLED_S, meter_of, reading_w
from lab.tables.kernels.fused_kernels import FOLDER as MEASURED
from lab.tables.kernels.power import TABLES, meter_name, power_tables, read_power_rows
from lab.tables.rows import Floats, Rows, is_host_timed
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check
from simulators.evidence.calibration_files import calibrations
from simulators.kernels.energy import (
    energy_j,
    measured_power,
    modelled_w,
    power_model_from,
    power_w,
)

BAR, BOARD_BAR = 12.0, 20.0
LEFT_OUT = ", board left out"

SAME_TIME = 0.02
"""Twins whose times differ by less run the same work."""


def checks(reference: Path, rows: str) -> list[Check]:
    """Return errors of readings by table and board, of settled draws and of joules."""
    tables = power_tables(reference)
    if not tables:
        return [absent("kernels: watts", f"{MEASURED}/*_power.parquet are absent")]
    whole = rows == "all" and not is_fitted_to("power", reference, tables)
    parts = [p if whole else p.where(p.held_out) for p in read_power_rows(reference)]
    found: list[Check] = []
    for gpu in dict.fromkeys(part.gpu for part in parts):
        for kernel, table in TABLES.items():
            mine = [part for part in parts if part.gpu == gpu and part.kernel == kernel]
            apart = [p for p in mine if is_host_timed(p)]
            timed = [p for p in mine if not is_host_timed(p)]
            found += _table_checks(f"{gpu} {table}", timed)
            for part in apart:
                name = f"{gpu} {table} {part.dtype}, host timed"
                found.append(error_line(name, [_reading_errors(part)]))
    return [*found, *_mean(found)]


def _mean(found: Sequence[Check]) -> list[Check]:
    """Check means over boards and tables: of readings, of draws and of joules."""
    lines = []
    left_out = [c.value for c in found if c.name.endswith(LEFT_OUT) and c.value is not None]
    if left_out:
        rows = sum(c.rows for c in found if c.name.endswith(LEFT_OUT))
        note = f"mean of {len(left_out)} tables by board, by the formula of the other board"
        name = f"settled draw MAPE, mean{LEFT_OUT}"
        lines.append(at_most(name, float(np.mean(left_out)), BOARD_BAR, rows, note))
    for what in ("watts", "settled draw", "joules from the shape alone"):
        mine = [c for c in found if c.limit == BAR and c.name.endswith(f" {what} MAPE")]
        errors = [check.value for check in mine if check.value is not None]
        if errors:
            note, rows = f"mean of {len(errors)} tables by board", sum(c.rows for c in mine)
            lines.append(at_most(f"{what} MAPE, mean", float(np.mean(errors)), BAR, rows, note))
    return lines


def _table_checks(title: str, parts: Sequence[Rows]) -> list[Check]:
    """Check one table of one board."""
    if not parts:
        return []
    readings = [_reading_errors(part) for part in parts]
    long = [part.where(part.seconds >= SETTLED_S) for part in parts]
    found = [
        error_line(f"{title} watts MAPE", readings, BAR),
        error_line(f"{title} settled draw MAPE", map(_draw_errors, long), BAR),
        error_line(f"{title} settled draw MAPE{LEFT_OUT}", map(_borrowed_errors, long)),
    ]
    for part, errors in zip(parts, readings, strict=True):
        found.append(error_line(f"{title} {part.dtype} watts MAPE", [errors]))
    if len(twins := _twins(parts)):
        note = "same work metered twice, over sqrt(2): no answer can be nearer than about this"
        value = 100.0 * float(np.mean(twins)) / np.sqrt(2.0)
        found.append(Check(f"{title} repeats within", value, "%", rows=len(twins), note=note))
    if parts[0].kernel == "gemm":
        name = f"{title} joules from the shape alone MAPE"
        found.append(error_line(name, map(_joule_errors, long), BAR))
    return found


def _reading_errors(part: Rows) -> Floats:
    """Return how far off readings of the meter are, times as measured."""
    gpu = load_gpu(part.gpu)
    bend = meter_of(gpu, meter_name(part))
    watts = power_w(part.operator, gpu, part.seconds)
    shown = watts if bend is None else reading_w(bend, part.operator, part.seconds, watts)
    return percent_off(shown, part.watts)


def _draw_errors(part: Rows) -> Floats:
    """Return how far off the draw itself is, where the meter had time to settle."""
    return percent_off(power_w(part.operator, load_gpu(part.gpu), part.seconds), part.watts)


def _borrowed_errors(part: Rows) -> Floats:
    """Return the same by what another metered board lends."""
    [other] = [board for board in calibrations("power") if board != part.gpu]
    content = measured_power(other)
    assert content is not None
    model = power_model_from(content, whole=False)
    return percent_off(
        modelled_w(model, part.operator, load_gpu(part.gpu), part.seconds), part.watts
    )


def _joule_errors(part: Rows) -> Floats:
    """Return how far off time and watts are together, where the meter had time to settle."""
    joules = energy_j(part.operator, load_gpu(part.gpu), priced_alike(part).latency_s)
    return percent_off(joules, part.watts * part.seconds)


def _twins(parts: Sequence[Rows]) -> Floats:
    """Return how far readings of the same shape and time in two formats are apart, as logs."""
    apart = [np.zeros(0)]
    for a, b in combinations(parts, 2):
        if a.kernel == "gemm":
            continue
        _, i, j = np.intersect1d(a.group, b.group, return_indices=True)
        same = np.abs(a.seconds[i] / b.seconds[j] - 1.0) < SAME_TIME
        apart.append(np.abs(np.log(a.watts[i] / b.watts[j]))[same])
    return np.concatenate(apart)
