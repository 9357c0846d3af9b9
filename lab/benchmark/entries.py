"""Entries of the benchmark: files of predictions, other tools' stored ones, and baselines.

An outsider writes two files. A table, CSV or Parquet, has the columns `task`, `row`, `figure`,
`prediction`, and where known `low` and `high` (a 90 % interval) and `split` (of predictions that
hold for one split alone). A declaration in TOML names the tool and the measurements it was fitted
to:

    tool = "my predictor 1.2"
    predictions = "mine.csv"

    [trained.closed_loop]
    until = "2025-10-01"
    gpus = ["h100_sxm", "b200_sxm"]
    models = ["all"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl

from lab.benchmark import baselines
from lab.benchmark.protocol import ALL, GPU, LATER, MODEL, PROTOCOL, SPLITS, BenchmarkSubject
from lab.predictions.score import ENTRIES
from lab.tables.rows import read_frame
from simulators.core.errors import UserError
from simulators.core.folder import read_toml

EVERY = "all"
"""Every GPU, or every model, in a declaration."""

COLUMNS = {
    "task": pl.String,
    "row": pl.String,
    "figure": pl.String,
    "split": pl.String,
    "prediction": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
}
NEEDED = ("task", "row", "figure", "prediction")


class TrainedOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of one task that an entry was fitted to."""

    until: str  # the newest measurement's day
    gpus: tuple[str, ...] = (EVERY,)
    models: tuple[str, ...] = (EVERY,)
    rows: bool = True  # whether scored rows were among them; else others of the same tables


class EntryDeclaration(msgspec.Struct, frozen=True):
    """What an entry says of itself."""

    tool: str
    about: str = ""
    predictions: str = ""  # a file beside the declaration; empty: stored with the measured tables
    trained: dict[str, TrainedOn] = {}


@dataclass(frozen=True)
class BenchmarkEntry:
    """An entry's declaration and its predictions, with the columns of `COLUMNS`."""

    name: str
    declaration: EntryDeclaration
    table: pl.DataFrame

    def of(self, task: str, split: str) -> pl.DataFrame:
        """Return the predictions for one split alone, or else for all splits."""
        mine = self.table.filter(pl.col("task") == task)
        own = mine.filter(pl.col("split") == split)
        return own if own.height else mine.filter(pl.col("split") == ALL)

    def has_seen(self, task: str, split: str, gpus: Sequence[str], models: Sequence[str]) -> bool:
        """Return whether the entry was fitted to rows that a split judges.

        `gpus`, `models`: those of the judged rows. Predictions for one split alone are declared to
        be fitted without its rows.
        """
        known = self.declaration.trained.get(task)
        mine = self.table.filter((pl.col("task") == task) & (pl.col("split") == split))
        if known is None or (split != ALL and mine.height):
            return False
        if split == LATER:
            return known.until >= PROTOCOL.cut
        if split == GPU:
            return EVERY in known.gpus or bool(set(gpus) & set(known.gpus))
        if split == MODEL:
            return EVERY in known.models or bool(set(models) & set(known.models))
        return known.rows


def shipped_entries() -> list[str]:
    """Return the names of the entries that come with the laboratory."""
    return [*baselines.BASELINES, *ENTRIES.names()]


def read_entry(
    named: str, subjects: Mapping[str, Sequence[BenchmarkSubject]], rows: pl.DataFrame
) -> BenchmarkEntry:
    """Return an entry by its name or the path of its declaration.

    Raises UserError if the declaration or the table is malformed.
    """
    if named in baselines.BASELINES:
        found = [
            one
            for task, mine in subjects.items()
            for one in baselines.predictions(task, rows.filter(pl.col("task") == task), mine, named)
        ]
        about = EntryDeclaration(tool=named, about=baselines.ABOUT[named])
        return BenchmarkEntry(named, about, pl.DataFrame(found, COLUMNS))
    file = ENTRIES.find(named)
    try:
        declared = msgspec.convert(read_toml(file), EntryDeclaration)
    except msgspec.ValidationError as error:
        raise UserError(
            f'{file}: {error}; write tool = "NAME VERSION", predictions = "FILE", and a table '
            "[trained.TASK] with `until`, `gpus` and `models` for each task it was fitted to"
        ) from error
    if unknown := set(declared.trained) - set(PROTOCOL.tasks):
        raise UserError(f"{file}: no task is called {', '.join(sorted(unknown))}")
    if declared.predictions:
        table = checked(read_frame(file.parent / declared.predictions, NEEDED), file)
    else:
        table = pl.DataFrame(list(_of_peer(file.stem, subjects)), COLUMNS)
    return BenchmarkEntry(file.stem, declared, table)


def _of_peer(
    name: str, subjects: Mapping[str, Sequence[BenchmarkSubject]]
) -> list[dict[str, object]]:
    return [
        {"task": task, "row": one.row, "figure": figure, "split": ALL, "prediction": value}
        for task, mine in subjects.items()
        for one in mine
        for figure, value in one.peers.get(name, {}).items()
    ]


def checked(table: pl.DataFrame, file: Path) -> pl.DataFrame:
    """Return a table of predictions with all columns.

    Raises UserError if a number is not above zero, an interval does not hold its prediction, a
    split is unknown, or a row is predicted twice.
    """
    absent = [name for name in COLUMNS if name not in table.columns]
    table = table.with_columns(pl.lit(None).alias(name) for name in absent)
    table = table.select(pl.col(name).cast(kind, strict=False) for name, kind in COLUMNS.items())
    table = table.with_columns(pl.col("split").fill_null(ALL))
    ends = (pl.col("low") <= pl.col("prediction")) & (pl.col("high") >= pl.col("prediction"))
    is_number = pl.col("prediction").is_finite() & (pl.col("prediction") > 0.0)
    rules = {
        "a prediction is a number above zero": ~is_number.fill_null(value=False),
        "low <= prediction <= high": ~ends.fill_null(value=True),
        f"a split is one of {', '.join(SPLITS)}": ~pl.col("split").is_in(SPLITS),
        "a row is predicted once": pl.struct("task", "row", "figure", "split").is_duplicated(),
    }
    for rule, is_broken in rules.items():
        for one in table.filter(is_broken).iter_rows(named=True):
            raise UserError(f"{file}: row '{one['row']}' of {one['task']}: {rule}")
    return table
