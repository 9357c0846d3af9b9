"""Scores a tool's predictions: what its choices give up, then how far its figures are off."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from lab.claims.decisions import regrets
from lab.claims.lines import at_most
from lab.claims.predicted_deployments import errors_of
from lab.predictions.task import Figures, Key, Task, key_of
from lab.tables.rows import Bools, read_table
from lab.validate import measured_tables
from simulators.core.contract import Check
from simulators.core.errors import UserError
from simulators.core.folder import Folder, read_toml
from simulators.core.jit import Floats
from simulators.core.modules import load_module
from simulators.core.report import print_checks

ENTRIES = Folder("entry", "predictions/entries", package="lab")
TASKS = Folder("task", "predictions/tasks", ".py", package="lab")
TABLES = (".csv", ".parquet")


@dataclass(frozen=True)
class Told:
    """A table of predictions: its columns by what tasks call them."""

    table: pa.Table
    columns: Mapping[str, str]

    def column(self, name: str) -> list[object] | None:
        """Return a column, or None where it is not here."""
        found = self.columns.get(name, name)
        return self.table[found].to_pylist() if found in self.table.column_names else None


def main(words: list[str]) -> int:
    """Print the errors of one table of predictions."""
    parser = argparse.ArgumentParser("sweeper-lab predictions", description=__doc__)
    parser.add_argument(
        "predictions", help=f"a CSV or Parquet file (docs/predictions.md), or {ENTRIES.names()}"
    )
    parser.add_argument("--reference", type=Path, help="folder of measured tables")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    found = scores(asked.predictions, measured_tables(asked.reference))
    print_checks(found, as_json=asked.json)
    return 0


def scores(named: str, reference: Path) -> list[Check]:
    """Return the figures of an entry, or of a file of one's own.

    Args:
        named: an entry's name, its TOML, or a CSV or Parquet file of predictions.
        reference: the folder of measured tables.

    Raises:
        UserError: it names no row of any task, or predicts nothing of one.
    """
    tables = _told(named, reference)
    lines, seen = [], []
    for name in TASKS.names():
        module = load_module(TASKS, name)
        if not all((reference / table).is_file() for table in module.NEEDS):
            continue
        task: Task = module.task(reference)
        seen.append(f"{name}: {', '.join(task.key)}; {', '.join(task.measured)}")
        found, strangers = _aligned(task, tables)
        if found:
            lines += list(_lines(name, task, found, strangers))
    if not lines:
        raise UserError(
            f"{named} predicts no measured row; a file has the columns that name a row and at "
            "least one that is predicted\n" + "\n".join(seen)
        )
    return lines


def _told(named: str, reference: Path) -> list[Told]:
    """Return the tables of an entry; one of the reference folder may not be here."""
    if named.endswith(TABLES):
        return [Told(read_table(Path(named)), {})]
    files = [(reference / file, columns) for file, columns in _files(ENTRIES.find(named))]
    found = [Told(read_table(file), columns) for file, columns in files if file.is_file()]
    if not found:
        raise UserError(f"{named}: {', '.join(str(file) for file, _ in files)} are not here")
    return found


def _files(entry: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the tables that an entry names, and what their columns are called.

    Raises:
        UserError: it names none, or something that is no name.
    """
    files = read_toml(entry).get("files")
    tables = [one for one in files if isinstance(one, dict)] if isinstance(files, list) else []
    for one in tables or [{}]:
        file, columns = one.get("file"), one.get("columns", {})
        if not isinstance(file, str) or not isinstance(columns, dict):
            raise UserError(
                f"{entry}: write [[files]], and in each `file`, a table of the reference folder, "
                "and `columns`, what it calls those that are predicted"
            )
        yield file, columns


def _aligned(task: Task, tables: Sequence[Told]) -> tuple[dict[str, Floats], int]:
    """Return what is predicted of a task's rows, NaN where nothing is; empty without any row.

    And how many rows of the tables name none of the task's.

    Raises:
        UserError: a row is predicted twice, or by no number above zero.
    """
    places: dict[Key, int] = {name: place for place, name in enumerate(task.names)}
    found = {name: np.full(len(task.names), np.nan) for name in task.measured}
    strangers = 0
    for told in tables:
        keys = [told.column(name) for name in task.key]
        if any(column is None for column in keys):
            continue
        at = [places.get(key_of(values)) for values in zip(*filter(None, keys), strict=True)]
        strangers += at.count(None)
        for name, values in found.items():
            for place, value in zip(at, told.column(name) or (), strict=False):
                if place is None or value is None:
                    continue
                if not np.isnan(values[place]):
                    row = " ".join(task.names[place])
                    raise UserError(f"row {row} is there twice: `{name}` can have one value alone")
                values[place] = _positive(value, name, task.names[place])
    answered = any((~np.isnan(values)).any() for values in found.values())
    return (found if answered else {}), strangers


def _positive(value: object, column: str, row: Key) -> float:
    """Return a predicted figure, NaN for an empty one."""
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    if number <= 0.0 or np.isinf(number):
        raise UserError(f"row {' '.join(row)}: `{column}` is a number above zero, not {value!r}")
    return number


def _lines(name: str, task: Task, told: Figures, strangers: int) -> Iterator[Check]:
    """Yield regrets of choices, then errors by figure and kind."""
    answered = np.all([~np.isnan(column) for column in told.values()], axis=0)
    everywhere = task.kinds["all"]
    for choices in task.choices if answered.any() else ():
        which = everywhere & answered
        true, believed = task.decided_by(task.measured), task.decided_by(told)
        given_up = regrets(choices.among, true, believed, which)
        if given_up.size:
            note = f"median {np.median(given_up):.1f}, worst {given_up.max():.0f}; decisions"
            title = f"{name}, regret {choices.about}"
            yield at_most(title, float(given_up.mean()), None, given_up.size, note)
    for figure, measured in task.measured.items():
        for kind, which in task.kinds.items():
            title = f"{name}, {figure}, {kind}"
            unknown = f"; {strangers:,} rows of the file name none" if strangers else ""
            yield from _errors(title, told[figure], measured, which, unknown)


def _errors(
    title: str, told: Floats, measured: Floats, which: Bools, unknown: str
) -> Iterator[Check]:
    """Yield the mean error on the rows of a kind that are answered, with the rest in the note."""
    rows = which & ~np.isnan(told)
    if not rows.any():
        return
    off = errors_of(told[rows], measured[rows])
    bias = 100.0 * float(np.mean(told[rows] / measured[rows] - 1.0))
    note = (
        f"median {off.median:.1f}, p90 {off.p90:.0f}, {off.within_2x:.0f} % within 2x, bias "
        f"{bias:+.1f}; answers {rows.sum():,} of {which.sum():,}{unknown}"
    )
    yield at_most(title, off.mean, None, int(rows.sum()), note)
