"""Calibrated engines in the designs of a question: by a file of rows, or as kept from earlier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planning.calibrate.deployment import (
    calibrate_deployment,
    family_name,
    kept_calibrations,
)
from planning.calibrate.measurements import read_table
from planning.flags.serving import NO
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.core.calibration import read_choice
from simulators.core.errors import UserError
from simulators.core.folder import RUNTIMES
from simulators.serving.measured.deployments import NEEDED, Deployed, measured_deployment
from simulators.serving.options import AUTO


def with_measured(
    grids: Sequence[Mapping[str, Any]], file: str
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Use calibrated engines in the grids of their model, GPU, engine and precision.

    Args:
        grids: the designs.
        file: rows to calibrate to; empty: calibrations that were kept; `no`: none.

    Returns:
        The grids, and a note on each calibration.

    Raises:
        UserError: the file cannot be read, or no grid has its model, GPU, engine and precision.
    """
    found, notes = [{**grid} for grid in grids], []
    if not file:
        for name, rows in kept_calibrations().items():
            used = _calibrated(found, rows[0], name)
            if used is not None:
                found = used
                notes.append(_kept_note(name, rows))
        return found, tuple(notes)
    if file == NO:
        return found, ()
    table = read_table(Path(file), NEEDED).to_pylist()
    if not table:
        raise UserError(f"{file} has no rows")
    row, name = measured_deployment(table[0]), family_name(table[0])
    used = _calibrated(found, row, name)
    if used is None:
        raise UserError(f"{file} measures {_family(row)}, which is not among the designs")
    gains, written = calibrate_deployment(name, Path(file))
    return used, (
        f"Corrected by {gains[0].rows} measured rows of {file} for {_family(row)}: the error of "
        f"their TPOT was {100 * gains[0].before:.0f} %, and is {100 * gains[0].after:.0f} % for "
        f"each row after calibration to the others. Kept as {written}: later answers use it.",
    )


def _family(row: Deployed) -> str:
    return f"{row.model} in {row.dtype} on {row.gpu} with {row.framework}"


def _kept_note(name: str, rows: Sequence[Deployed]) -> str:
    file = RUNTIMES.find(name)
    about = read_choice(file)["provenance"]
    errors = ""
    if "mape_before" in about:
        errors = (
            f"; the error of TPOT was {100 * about['mape_before']:.0f} %, and is "
            f"{100 * about['held_out_mape']:.0f} % for each row after calibration to the others"
        )
    return (
        f"Corrected by {len(rows)} measured rows for {_family(rows[0])}, kept as {file}{errors}. "
        "Without: --measured no."
    )


def _calibrated(
    grids: Sequence[Mapping[str, Any]], row: Deployed, name: str
) -> list[dict[str, Any]] | None:
    """Return the grids with a runtime for the family of a measured row; None without the family."""
    own = {"dtype": row.dtype, "scheduler": load_engine(row.framework).schedulers[0]}
    model, gpu = load_model(row.model).name, load_gpu(row.gpu).name
    found, is_used = [], False
    for grid in grids:
        rest = {"runtime": AUTO, **grid}
        is_model = load_model(grid["model"]).name == model and grid["gpu"] == [gpu]
        is_open = is_model and rest["runtime"] == AUTO
        if is_open and all(value in grid[axis] for axis, value in own.items()):
            is_used = True
            chosen: dict[str, Any] = {axis: [value] for axis, value in own.items()}
            found.append({**rest, **chosen, "runtime": name})
            for axis, value in own.items():  # all other precisions, then other engines
                if others := [one for one in grid[axis] if one != value]:
                    found.append({**rest, axis: others})
                rest[axis] = [value]
        else:
            found.append(rest)
    return found if is_used else None
