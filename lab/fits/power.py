"""Tables of watts become calibrations: `python -m lab.fits.power`.

First the settled draw, from kernels long enough for the meter to settle; then trees for what the
meter shows of all kernels, short ones too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.methods.least_squares import fit_log
from lab.fits.methods.monotone_trees import bend_lines, fit_bend
from lab.fits.methods.power_meter import SETTLED_S, meter_features, reading_w
from lab.tables.kernels.fused_kernels import FOLDER as MEASURED
from lab.tables.kernels.power import (
    SPLIT,
    TABLES,
    PowerRows,
    power_tables,
    read_power_rows,
)
from lab.tables.kernels.tensor_cores import HOST_BOUND
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import reference_folder, sha256_of, write_calibration
from simulators.core.contract import Check
from simulators.core.errors import UserError
from simulators.core.report import print_checks
from simulators.kernels.energy import drawn_w, format_of
from simulators.kernels.monotone_correction import Correction
from simulators.kernels.power_draw import Draw, power_file

Floats = NDArray[np.float64]

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the boards of the tables, or those asked for, and report."""
    parser = argparse.ArgumentParser(prog="python -m lab.fits.power", description=__doc__)
    parser.add_argument("--gpu", action="append", help="only this one; may be given again")
    asked = parser.parse_args(arguments)
    reference = reference_folder()
    if reference is None or not power_tables(reference):
        raise UserError("no measured watts: set SWEEPER_REFERENCE to a reference folder")
    rows = read_power_rows(reference)
    for name in asked.gpu or dict.fromkeys(part.gpu for part in rows):
        _fit_board(reference, load_gpu(name), [part for part in rows if part.gpu == name])


def fit_draw(parts: Sequence[PowerRows], gpu: Gpu) -> Draw:
    """Return the settled draw of a board, fitted to kernels long enough to settle."""
    chosen = [
        _thinned(part.where(part.seconds >= SETTLED_S))
        for part in parts
        if (part.framework, part.kind) not in HOST_BOUND
    ]
    chosen = [part for part in chosen if len(part)]
    watts = np.concatenate([part.watts for part in chosen])
    formats = [name for name in FORMATS if any(format_of(part.operator) == name for part in chosen)]
    names = ("awake", "memory", "limit", *PHASES, *formats)
    start, low, high = (np.log([START[name][i] for name in names]) for i in range(3))

    def model(p: Floats) -> Floats:
        draw = _draw(names, p)
        return np.concatenate([drawn_w(draw, part.operator, gpu, part.seconds) for part in chosen])

    fitted = fit_log(
        model,
        start,
        watts,
        weights=np.ones(watts.size),
        ridge=np.full(start.size, RIDGE),
        bounds=(low, high),
    )
    return _draw(names, fitted)


def fit_meter(name: str, parts: Sequence[PowerRows], draw: Draw, gpu: Gpu) -> Metered:
    """Return trees from settled watts to readings, fitted to rows that are not held out."""
    columns = [_columns(part.where(~part.held_out), draw, gpu) for part in parts]
    features, watts, shown = (np.concatenate(c, axis=-1) for c in zip(*columns, strict=True))
    bend = fit_bend(features, watts, shown, alpha=1.0, trees=TREES, depth=DEPTH, lean=LEAN)
    misses = []
    for part in parts:
        unseen = part.where(part.held_out)
        settled = drawn_w(draw, unseen.operator, gpu, unseen.seconds)
        read = reading_w(bend, unseen.operator, unseen.seconds, settled)
        misses.append(np.abs(read / unseen.watts - 1.0))
    return Metered(name, bend, watts.size, float(np.mean(np.concatenate(misses))))


def _columns(rows: PowerRows, draw: Draw, gpu: Gpu) -> tuple[Floats, Floats, Floats]:
    """Return features, settled watts and readings."""
    operator = rows.operator
    watts = drawn_w(draw, operator, gpu, rows.seconds)
    return meter_features(operator, rows.seconds), watts, rows.watts


def _draw(names: Sequence[str], p: Floats) -> Draw:
    numbers = dict(zip(names, np.exp(p).tolist(), strict=True))
    return Draw(
        awake=numbers["awake"],
        memory=numbers["memory"],
        compute={name: numbers[name] for name in FORMATS if name in numbers},
        factor={name: numbers[name] for name in PHASES},
        limit=numbers["limit"],
    )


def _thinned(rows: PowerRows) -> PowerRows:
    if len(rows) <= DRAW_ROWS:
        return rows
    draw = np.random.default_rng(np.random.SeedSequence(0))
    return rows.where(np.sort(draw.choice(len(rows), DRAW_ROWS, replace=False)))


def _fit_board(reference: Path, gpu: Gpu, parts: Sequence[PowerRows]) -> None:
    """Write the calibration of one board and print its held-out errors."""
    draw = fit_draw([part.where(~part.held_out) for part in parts], gpu)
    meters = {part.meter: [p for p in parts if p.meter == part.meter] for part in parts}
    done = [fit_meter(name, some, draw, gpu) for name, some in meters.items()]
    metered = {part.framework: part.version for part in parts}
    versions = ", ".join(f'{framework} = "{version}"' for framework, version in metered.items())
    write_calibration(power_file(gpu.name), _text(reference, gpu, draw, done, versions))
    print_checks([Check(f"{gpu.name} {m.name} MAPE", 100.0 * m.error, "%") for m in done])


def _text(reference: Path, gpu: Gpu, draw: Draw, done: Sequence[Metered], versions: str) -> str:
    """Return the calibration file of one board."""
    tables = [f"{MEASURED}/{name}.parquet" for name in TABLES.values()]
    hashes = ", ".join(f'"{sha256_of(reference / table)}"' for table in tables)
    lines = [
        f"# Written by `python -m lab.fits.power` for {gpu.name}.",
        "# To change a number, change the fit.",
        f'name = "{gpu.name}"',
        "",
        "[provenance]",
        f"measured = [{', '.join(f'{chr(34)}{table}{chr(34)}' for table in tables)}]",
        f"sha256 = [{hashes}]",
        f"rows = {sum(m.rows for m in done)}",
        f'split = "{SPLIT}"',
        f"held_out_mape = {float(np.mean([m.error for m in done])):.4f}",
        f"versions = {{ {versions} }}",
        "",
        "[draw]",
        f"awake = {draw.awake:.4g}",
        f"memory = {draw.memory:.4g}",
        f"limit = {draw.limit:.4g}",
        f"compute = {{ {', '.join(f'{n} = {x:.4g}' for n, x in draw.compute.items())} }}",
        f"factor = {{ {', '.join(f'{n} = {x:.4g}' for n, x in draw.factor.items())} }}",
    ]
    for m in done:
        lines += ["", f"[meter.{m.name}]", f"held_out_mape = {m.error:.4f}", *bend_lines(m.bend)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
