"""How far watts are from what boards' own meters showed, on shapes that nothing was fitted to.

Three views. What the meter shows of a loop, which is what the tables hold; the settled draw, on
kernels of 0.1 ms and more, whose loops last long enough for the meter; and joules of products from
their shape alone, time and watts both predicted. Where one shape was metered twice, in formats that
take the same time, the two readings say how well the meter repeats itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.methods.power_meter import SETTLED_S, meter_of, reading_w
from lab.tables.kernels.fused_kernels import FOLDER as MEASURED
from lab.tables.kernels.power import TABLES, PowerRows, power_tables, read_power_rows
from lab.tables.kernels.tensor_cores import HOST_BOUND
from simulators.catalog.gpu import load_gpu
from simulators.core.calibration import fitted_digests, sha256_of
from simulators.core.contract import Check
from simulators.kernels.energy import energy_j, power_w
from simulators.kernels.power_draw import power_files
from simulators.kernels.price import price

Floats = NDArray[np.float64]

BAR = 12.0
SAME_TIME = 0.02
"""Twins whose times differ by less run the same work."""


def checks(reference: Path, rows: str) -> list[Check]:
    """Return errors of readings by table and board, of settled draws and of joules.

    Args:
        reference: a folder laid out like the reference data.
        rows: `test` for held-out shapes, `all` for every row of a folder nothing was fitted to.
    """
    tables = power_tables(reference)
    if not tables:
        return [Check("kernels: watts", None, note=f"{MEASURED}/*_power.parquet are absent")]
    fitted = fitted_digests(power_files())
    whole = rows == "all" and not fitted & {sha256_of(table) for table in tables}
    parts = [p if whole else p.where(p.held_out) for p in read_power_rows(reference)]
    found: list[Check] = []
    for gpu in dict.fromkeys(part.gpu for part in parts):
        for kernel, table in TABLES.items():
            mine = [part for part in parts if part.gpu == gpu and part.kernel == kernel]
            timed = [p for p in mine if (p.framework, p.kind) not in HOST_BOUND]
            found += _table_checks(f"{gpu} {table}", timed)
            apart = [part for part in mine if part not in timed]
            found += [_readings(f"{gpu} {table} {p.kind}, host timed", [p], None) for p in apart]
    return [*found, *_mean(found)]


def _mean(found: Sequence[Check]) -> list[Check]:
    """Check the mean over boards and tables, of what has a bar of its own."""
    errors = [line.value for line in found if line.limit == BAR and line.value is not None]
    if not errors:
        return []
    value = float(np.mean(errors))
    note = f"mean of {len(errors)} tables by board"
    return [Check("watts MAPE, mean", value, "%", BAR, bool(value <= BAR), note=note)]


def _table_checks(title: str, parts: Sequence[PowerRows]) -> list[Check]:
    """Check one table of one board."""
    if not parts:
        return []
    found = [_readings(f"{title} watts MAPE", parts, BAR), _settled(f"{title} settled", parts)]
    found += [_readings(f"{title} {part.kind} watts MAPE", [part], None) for part in parts]
    if len(twins := _twins(parts)):
        note = "same work metered twice, over sqrt(2): no answer can be nearer than about this"
        value = 100.0 * float(np.mean(twins)) / np.sqrt(2.0)
        found.append(Check(f"{title} repeats within", value, "%", rows=len(twins), note=note))
    if parts[0].kernel == "gemm":
        found.append(_joules(f"{title} joules from the shape alone", parts))
    return found


def _readings(name: str, parts: Sequence[PowerRows], bar: float | None) -> Check:
    """Check what the meter shows, times as measured."""
    misses = []
    for part in parts:
        gpu = load_gpu(part.gpu)
        bend = meter_of(gpu, part.meter)
        watts = power_w(part.operator, gpu, part.seconds)
        shown = watts if bend is None else reading_w(bend, part.operator, part.seconds, watts)
        misses.append(shown / part.watts - 1.0)
    return _line(name, misses, bar)


def _settled(name: str, parts: Sequence[PowerRows]) -> Check:
    """Check the draw itself where the meter had time to settle."""
    misses = []
    for part in parts:
        long = part.where(part.seconds >= SETTLED_S)
        misses.append(power_w(long.operator, load_gpu(part.gpu), long.seconds) / long.watts - 1.0)
    return _line(f"{name} draw MAPE", misses, None)


def _joules(name: str, parts: Sequence[PowerRows]) -> Check:
    """Check time and watts together, where the meter had time to settle."""
    misses = []
    for part in parts:
        long = part.where(part.seconds >= SETTLED_S)
        gpu = load_gpu(part.gpu)
        priced = price(long.operator, gpu, framework=part.framework)
        joules = energy_j(long.operator, gpu, priced.latency_s)
        misses.append(joules / (long.watts * long.seconds) - 1.0)
    return _line(f"{name} MAPE", misses, None)


def _twins(parts: Sequence[PowerRows]) -> Floats:
    """Return how far readings of the same shape and time in two formats are apart, as logs."""
    apart = [np.zeros(0)]
    for a, b in combinations(parts, 2):
        if a.kernel == "gemm":
            continue
        _, i, j = np.intersect1d(a.group, b.group, return_indices=True)
        same = np.abs(a.seconds[i] / b.seconds[j] - 1.0) < SAME_TIME
        apart.append(np.abs(np.log(a.watts[i] / b.watts[j]))[same])
    return np.concatenate(apart)


def _line(name: str, misses: Sequence[Floats], bar: float | None) -> Check:
    error = 100.0 * np.concatenate(misses)
    if not error.size:
        return Check(name, None, "%", note="no rows")
    value = float(np.mean(np.abs(error)))
    note = f"median {np.median(np.abs(error)):.1f}, bias {np.mean(error):+.1f}"
    ok = None if bar is None else bool(value <= bar)
    return Check(name, value, "%", bar, ok, error.size, note)
