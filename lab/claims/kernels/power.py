"""Watts beside the readings of GPUs' own meters, on shapes that nothing was fitted to.

Three figures. "watts": what the meter shows of a loop, which is what the tables hold. "settled
draw": kernels of 0.1 ms and more, whose loops last long enough for the meter, by the GPU's own
numbers and by those of the other metered GPU. "joules": products from their shape alone, time and
watts both predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from lab.claims.kernels.frames import shipped_price
from lab.claims.predictions import columns, together
from lab.fits.methods.power_meter import SETTLED_S, meter_of, reading_w
from lab.tables.kernels.power import TABLES, meter_name, read_power_rows
from lab.tables.rows import Floats, Rows, is_host_timed
from simulators.catalog.gpu import load_gpu
from simulators.evidence.calibration_files import calibrations
from simulators.kernels.energy import (
    energy_j,
    measured_power,
    modelled_w,
    power_model_from,
    power_w,
)


def readings(reference: Path) -> pl.DataFrame:
    """Return predicted and metered watts or joules, by figure, GPU and table."""
    return together(_readings(reference))


def _readings(reference: Path) -> Iterator[pl.DataFrame]:
    for part in read_power_rows(reference):
        rows = part.where(part.held_out)
        if is_host_timed(rows) or not len(rows):
            continue
        labels = {"gpu": part.gpu, "table": TABLES[part.kernel]}
        yield columns(predicted=_shown_w(rows), measured=rows.watts, figure="watts", **labels)
        long = rows.where(rows.seconds >= SETTLED_S)
        if not len(long):
            continue
        gpu = load_gpu(long.gpu)
        draw_w = power_w(long.operator, gpu, long.seconds)
        yield columns(predicted=draw_w, measured=long.watts, figure="settled draw", **labels)
        [other] = [metered for metered in calibrations("power") if metered != part.gpu]
        model = power_model_from(measured_power(other) or {}, whole=False)
        other_w = modelled_w(model, long.operator, gpu, long.seconds)
        figure = "settled draw, GPU left out"
        yield columns(predicted=other_w, measured=long.watts, figure=figure, **labels)
        if part.kernel == "gemm":
            ours_j = energy_j(long.operator, gpu, shipped_price(long).latency_s)
            theirs_j, figure = long.watts * long.seconds, "joules from the shape alone"
            yield columns(predicted=ours_j, measured=theirs_j, figure=figure, **labels)


def _shown_w(part: Rows) -> Floats:
    """Return what the meter shows of loops, times as measured."""
    gpu = load_gpu(part.gpu)
    correction = meter_of(gpu, meter_name(part))
    watts = power_w(part.operator, gpu, part.seconds)
    return (
        watts if correction is None else reading_w(correction, part.operator, part.seconds, watts)
    )
