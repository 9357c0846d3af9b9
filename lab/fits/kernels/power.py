"""Fit watts to what boards' meters showed of kernels in loops: `python -m lab.fits power`.

First the settled draw, from kernels long enough for the meter to settle; then trees for what the
meter shows of all kernels, short ones too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen, hashes, inline
from lab.fits.methods.least_squares import fit_named
from lab.fits.methods.monotone_trees import bend_lines, fit_bend
from lab.fits.methods.power_meter import SETTLED_S, meter_features, reading_w
from lab.tables.kernels.power import SPLIT, meter_name, power_tables, read_power_rows
from lab.tables.rows import Floats, Rows, is_host_timed
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.contract import Check
from simulators.evidence.lookup import CALIBRATIONS
from simulators.kernels.energy import PowerModel, format_of, modelled_w
from simulators.kernels.monotone_correction import Correction

FOLDER = CALIBRATIONS / "power"

START = {
    "awake": (0.2, 0.02, 0.6), "memory": (0.5, 0.05, 2.0), "limit": (0.985, 0.9, 1.01),
    "bf16": (1.0, 0.1, 4.0), "fp8": (1.0, 0.1, 4.0), "fp8_block": (1.0, 0.1, 4.0),
    "fp4": (1.0, 0.1, 4.0),
    "prefill": (1.0, 0.2, 5.0), "decode": (1.0, 0.05, 20.0),
}  # fmt: skip
"""Where a fit begins, and between what it stays."""

FORMATS = ("bf16", "fp8", "fp8_block", "fp4")
PHASES = ("prefill", "decode")

DRAW_ROWS = 1200
"""Rows of each kernel and pair of formats that the draw is fitted to, so that none outweighs."""

RIDGE = 3.0
TREES, DEPTH = 120, 4
LEAN = 1.0
"""One shape was read high and low, by how its loop began; relative errors count alike."""


@dataclass(frozen=True)
class Metered:
    """Trees of a product's kind, or of attention in all formats, and their held-out error."""

    name: str
    bend: Correction
    rows: int
    error: float


def fit_reference(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the boards of the tables."""
    tables = hashes(reference, power_tables(reference))
    rows = read_power_rows(reference)
    for name in chosen(only, (part.gpu for part in rows)):
        yield _fit_board(load_gpu(name), [part for part in rows if part.gpu == name], tables)


def fit_draw(parts: Sequence[Rows], gpu: Gpu) -> PowerModel:
    """Return the settled draw of a board, fitted to kernels long enough to settle."""
    settled = [
        part.where(part.seconds >= SETTLED_S).drawn(DRAW_ROWS)
        for part in parts
        if not is_host_timed(part)
    ]
    settled = [part for part in settled if len(part)]
    formats = {format_of(part.operator) for part in settled}
    names = ("awake", "memory", "limit", *PHASES, *(name for name in FORMATS if name in formats))
    start, low, high = (np.log([START[name][i] for name in names]) for i in range(3))

    def model(numbers: Mapping[str, float]) -> Floats:
        draw = _draw(numbers)
        watts = [modelled_w(draw, part.operator, gpu, part.seconds) for part in settled]
        return np.concatenate(watts)

    watts = np.concatenate([part.watts for part in settled])
    return _draw(fit_named(model, names, start, watts, low=low, high=high, ridge=RIDGE))


def fit_meter(name: str, parts: Sequence[Rows], draw: PowerModel, gpu: Gpu) -> Metered:
    """Return trees from settled watts to readings, fitted to rows that are not held out."""
    columns = [_columns(part.where(~part.held_out), draw, gpu) for part in parts]
    features, watts, shown = (np.concatenate(c, axis=-1) for c in zip(*columns, strict=True))
    bend = fit_bend(features, watts, shown, alpha=1.0, trees=TREES, depth=DEPTH, lean=LEAN)
    misses = []
    for part in parts:
        unseen = part.where(part.held_out)
        settled = modelled_w(draw, unseen.operator, gpu, unseen.seconds)
        read = reading_w(bend, unseen.operator, unseen.seconds, settled)
        misses.append(np.abs(read / unseen.watts - 1.0))
    return Metered(name, bend, watts.size, float(np.mean(np.concatenate(misses))))


def _columns(rows: Rows, draw: PowerModel, gpu: Gpu) -> tuple[Floats, Floats, Floats]:
    """Return features, settled watts and readings."""
    operator = rows.operator
    watts = modelled_w(draw, operator, gpu, rows.seconds)
    return meter_features(operator, rows.seconds), watts, rows.watts


def _draw(numbers: Mapping[str, float]) -> PowerModel:
    return PowerModel(
        awake=numbers["awake"],
        memory=numbers["memory"],
        compute={name: numbers[name] for name in FORMATS if name in numbers},
        factor={name: numbers[name] for name in PHASES},
        limit=numbers["limit"],
    )


def _fit_board(gpu: Gpu, parts: Sequence[Rows], tables: Mapping[str, str]) -> Calibration:
    """Return the calibration of one board."""
    draw = fit_draw([part.where(~part.held_out) for part in parts], gpu)
    meters: dict[str, list[Rows]] = {}
    for part in parts:
        meters.setdefault(meter_name(part), []).append(part)
    done = [fit_meter(name, some, draw, gpu) for name, some in meters.items()]
    metered = {part.framework: part.version for part in parts}
    versions = ", ".join(f'{framework} = "{version}"' for framework, version in metered.items())
    lines = [
        "",
        "[draw]",
        f"awake = {draw.awake:.4g}",
        f"memory = {draw.memory:.4g}",
        f"limit = {draw.limit:.4g}",
        f"compute = {inline(draw.compute, '.4g')}",
        f"factor = {inline(draw.factor, '.4g')}",
    ]
    for m in done:
        lines += ["", f"[meter.{m.name}]", f"held_out_mape = {m.error:.4f}", *bend_lines(m.bend)]
    return Calibration(
        name=gpu.name,
        tables=tables,
        rows=sum(m.rows for m in done),
        split=SPLIT,
        error=float(np.mean([m.error for m in done])),
        lines=lines,
        checks=[Check(f"{gpu.name} {m.name} MAPE", 100.0 * m.error, "%") for m in done],
        head=[f'name = "{gpu.name}"', ""],
        more=[f"versions = {{ {versions} }}"],
    )
