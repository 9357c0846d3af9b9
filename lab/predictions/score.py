"""Scores a tool's predictions: the regret of its choices, then the errors of its figures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from lab.claims.deployments import regrets
from lab.predictions.tasks import TASKS, Figures, Key, ScoredTask, key_of
from lab.tables.rows import Bools, read_table
from lab.validate import measured_tables
from simulators.core.checks import Check, print_checks
from simulators.core.errors import UserError
from simulators.core.folder import Folder, read_toml
from simulators.core.jit import Floats

ENTRIES = Folder("entry", "predictions/entries", package="lab")


def main(words: list[str]) -> int:
    """Print the errors of one table of predictions."""
    parser = argparse.ArgumentParser("sweeper-lab predictions", description=__doc__)
    parser.add_argument(
        "predictions",
        help=f"a CSV or Parquet file (docs/explanation/predictions.md), or {ENTRIES.names()}",
    )
    parser.add_argument("--reference", type=Path, help="folder of measured tables")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    found = scores(asked.predictions, measured_tables(asked.reference))
    print_checks(found, as_json=asked.json)
    return 0


def scores(named: str, reference: Path) -> list[Check]:
    """Return the scores of an entry, or of a user's file.

    Args:
        named: an entry's name, its TOML, or a CSV or Parquet file of predictions.
        reference: the folder of measured tables.

    Raises:
        UserError: the predictions name no row of any task.
    """
    tables = _predictions(named, reference)
    lines, seen = [], []
    for name, (read, needs) in TASKS.items():
        if all((reference / table).is_file() for table in needs):
            task = read(reference)
            seen.append(f"{name}: {', '.join(task.key)}; {', '.join(task.measured)}")
            figures, unmatched = _aligned(task, tables)
            if any((~np.isnan(values)).any() for values in figures.values()):
                lines += list(_lines(name, task, figures, unmatched))
    if not lines:
        raise UserError(
            f"{named} predicts no measured row; a file has the columns that identify a row and at "
            "least one that is predicted\n" + "\n".join(seen)
        )
    return lines


def _predictions(named: str, reference: Path) -> list[pa.Table]:
    """Return tables of predictions, with the column names of tasks.

    Raises:
        UserError: an entry names no table, or none of them is in the reference folder.
    """
    if named.endswith((".csv", ".parquet")):
        return [read_table(Path(named))]
    entry = ENTRIES.find(named)
    files = read_toml(entry).get("files")
    listed = files if isinstance(files, list) else []
    tables = [one for one in listed if isinstance(one, dict) and isinstance(one.get("file"), str)]
    if not tables or len(tables) < len(listed):
        raise UserError(
            f"{entry}: write [[files]], and in each `file`, a table of the reference folder, and "
            "`columns`, its names of the predicted columns"
        )
    found = []
    for one in tables:
        if (file := reference / one["file"]).is_file():
            theirs = {column: ours for ours, column in one.get("columns", {}).items()}
            table = read_table(file)
            kept = [c for c in table.column_names if c in theirs or c not in theirs.values()]
            names = [theirs.get(column, column) for column in kept]
            found.append(table.select(kept).rename_columns(names))
    if not found:
        raise UserError(f"{named}: {', '.join(one['file'] for one in tables)} are not there")
    return found


def _aligned(task: ScoredTask, tables: Sequence[pa.Table]) -> tuple[dict[str, Floats], int]:
    """Return the predictions of a task's rows, NaN where there is none, and unmatched rows.

    Raises:
        UserError: a row is predicted twice, or by no number above zero.
    """
    places: dict[Key, int] = {name: place for place, name in enumerate(task.names)}
    found = {name: np.full(len(task.names), np.nan) for name in task.measured}
    unmatched = 0
    for table in tables:
        if not set(task.key) <= set(table.column_names):
            continue
        keys = zip(*(table[name].to_pylist() for name in task.key), strict=True)
        at = [places.get(key_of(values)) for values in keys]
        unmatched += at.count(None)
        for name in found.keys() & set(table.column_names):
            for place, value in zip(at, table[name].to_pylist(), strict=True):
                if place is not None and value is not None:
                    row = " ".join(task.names[place])
                    if not np.isnan(found[name][place]):
                        raise UserError(f"row {row} is there twice: `{name}` has one value")
                    found[name][place] = _positive(value, name, row)
    return found, unmatched


def _positive(value: object, column: str, row: str) -> float:
    """Return a predicted figure."""
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    if number <= 0.0 or np.isinf(number):
        raise UserError(f"row {row}: `{column}` is a number above zero, not {value!r}")
    return number


def _lines(name: str, task: ScoredTask, predicted: Figures, unmatched: int) -> Iterator[Check]:
    """Yield regrets of choices, then errors by figure and kind."""
    answered = np.all([~np.isnan(column) for column in predicted.values()], axis=0)
    true, believed = task.decided_by(task.measured), task.decided_by(predicted)
    for about, among in task.choices.items() if answered.any() else ():
        given_up = regrets(among, true, believed, task.kinds["all"] & answered)
        if given_up.size:
            note = f"median {np.median(given_up):.1f}, worst {given_up.max():.0f}; decisions"
            mean = float(given_up.mean())
            yield Check(f"{name}, regret {about}", mean, "%", rows=given_up.size, note=note)
    unknown = f"; {unmatched:,} rows of the file name none" if unmatched else ""
    for figure, measured in task.measured.items():
        for kind, which in task.kinds.items():
            if (which & ~np.isnan(predicted[figure])).any():
                yield _error(
                    f"{name}, {figure}, {kind}", predicted[figure], measured, which, unknown
                )


def _error(title: str, predicted: Floats, measured: Floats, which: Bools, unknown: str) -> Check:
    """Return the mean error on the predicted rows of a kind, with its distribution as a note."""
    rows = which & ~np.isnan(predicted)
    ratio = predicted[rows] / measured[rows]
    off = 100.0 * np.abs(ratio - 1.0)
    near = 100.0 * np.mean(np.abs(np.log2(ratio)) <= 1.0)
    bias = 100.0 * float(np.mean(ratio - 1.0))
    note = (
        f"median {np.median(off):.1f}, p90 {np.percentile(off, 90.0):.0f}, {near:.0f} % within 2x, "
        f"bias {bias:+.1f}; answers {rows.sum():,} of {which.sum():,}{unknown}"
    )
    return Check(title, float(off.mean()), "%", rows=int(rows.sum()), note=note)
