"""Fit watts to what boards' meters showed of kernels in loops: `python -m lab.fits power`.

First the settled draw, from kernels long enough for the meter to settle: a formula that others may
borrow, then trees of shapes for the board itself. Then trees for what the meter shows of all
kernels, short ones too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen, hashes, inline
from lab.fits.methods.monotone_trees import bend_lines, fit_bend
from lab.fits.methods.power_meter import SETTLED_S, meter_features, reading_w
from lab.tables.kernels.power import SPLIT, meter_name, power_tables, read_power_rows
from lab.tables.rows import Floats, Rows, is_host_timed
from planning.calibrate.least_squares import fit_named
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.contract import Check
from simulators.evidence.calibration_files import CALIBRATIONS
from simulators.kernels.energy import PowerModel, format_of, modelled_w, shape_features
from simulators.kernels.monotone_correction import Correction

FOLDER = CALIBRATIONS / "power"

START = {
    "awake": (0.35, 0.2, 0.5),
    "memory": (0.4, 0.25, 0.8),
    "limit": (0.985, 0.9, 1.0),
    "bf16": (1.5, 0.5, 2.0),
    "fp8": (1.5, 0.5, 2.0),
    "fp8_block": (1.5, 0.5, 2.0),
    "fp4": (1.5, 0.5, 2.0),
    "prefill": (0.7, 0.4, 1.0),
    "decode": (0.5, 0.2, 1.0),
}
"""Where a fit begins, and between what it stays. A board at its limit does not tell how much more
it would draw: without ends one board's shares say nothing of another's."""

FORMATS = ("bf16", "fp8", "fp8_block", "fp4")
PHASES = ("prefill", "decode")

DRAW_ROWS = 1200
"""Rows of each kernel and pair of formats that the draw is fitted to, so that none outweighs."""

RIDGE = 100.0
"""Weight of where a fit begins, in rows; more, or less, foretells the other board worse."""

TREES, SHAPE_TREES, DEPTH = 120, 80, 4
WRITTEN = (1e-3, 3)
"""How finely files hold trees of shapes: leaves in tenths of a percent, three digits otherwise."""

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
    settled = [part.drawn(DRAW_ROWS) for part in settled_parts(parts)]
    formats = {format_of(part.operator) for part in settled}
    names = ("awake", "memory", "limit", *PHASES, *(name for name in FORMATS if name in formats))
    start, low, high = (np.log([START[name][i] for name in names]) for i in range(3))

    def model(numbers: Mapping[str, float]) -> Floats:
        draw = _draw(numbers)
        watts = [modelled_w(draw, part.operator, gpu, part.seconds) for part in settled]
        return np.concatenate(watts)

    watts = np.concatenate([part.watts for part in settled])
    return _draw(fit_named(model, names, start, watts, low=low, high=high, ridge=RIDGE))


def settled_parts(parts: Sequence[Rows]) -> list[Rows]:
    """Return rows of kernels long enough for the meter to settle, of parts that have some."""
    some = [part.where(part.seconds >= SETTLED_S) for part in parts if not is_host_timed(part)]
    return [part for part in some if len(part)]


def fit_shapes(parts: Sequence[Rows], draw: PowerModel, gpu: Gpu) -> dict[str, Correction]:
    """Return trees from the formula's watts to settled ones, by kernel."""
    found: dict[str, list[Rows]] = {}
    for part in settled_parts(parts):
        found.setdefault(meter_name(part), []).append(part)
    return {name: _fit_shape(some, draw, gpu) for name, some in found.items()}


def _fit_shape(parts: Sequence[Rows], draw: PowerModel, gpu: Gpu) -> Correction:
    watts = [modelled_w(draw, part.operator, gpu, part.seconds) for part in parts]
    features = [shape_features(p.operator, w.shape) for p, w in zip(parts, watts, strict=True)]
    settled = np.concatenate([part.watts for part in parts])
    return fit_bend(
        np.concatenate(features, axis=-1),
        np.concatenate(watts),
        settled,
        alpha=1.0,
        trees=SHAPE_TREES,
        depth=DEPTH,
        lean=LEAN,
    )


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
    seen = [part.where(~part.held_out) for part in parts]
    formula = fit_draw(seen, gpu)
    draw = replace(formula, shapes=fit_shapes(seen, formula, gpu))
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
    for name, bend in draw.shapes.items():
        lines += ["", f"[shapes.{name}]", *bend_lines(bend, *WRITTEN)]
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
