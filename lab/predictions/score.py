"""Scores a tool's predictions: the regret of its choices, then the errors of its figures.

A task is a set of measured rows, the columns that identify them in a table of predictions, and the
choices among them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from lab.claims.claim import STATISTICS, described, measured_tables
from lab.claims.deployments import TPOT, TTFT, Decisions, choices, regrets
from lab.tables.deployments import QWEN3_32B, QWEN3_32B_PEER, SILICON, silicon
from lab.tables.fp32 import MODEL_TIMES
from lab.tables.rows import Bools, read_frame, read_records
from lab.tables.training import FLAGGED, MEASURED, SOURCES, contradicts, flagged
from simulators.core.checks import Check, print_checks
from simulators.core.errors import UserError
from simulators.core.folder import Folder, read_toml
from simulators.core.jit import Floats

ENTRIES = Folder("entry", "predictions/entries", package="lab")
OPERATOR_TIMES = "gpu_models/op_latency.parquet"
OPERATORS = {"Linear": "linear", "BMM": "bmm", "VECsoftmax": "softmax", "VECln": "layer norm"}
"""Classes of operators that each launch one kernel, by their names in the table."""
SHOWN = ("mean", "within_2x")
Figures = Mapping[str, Floats]
"""Columns with an entry for each row; NaN where there is none."""


class PredictedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the reference folder with a tool's predictions."""

    file: str
    columns: dict[str, str] = {}  # the tool's names of predicted columns, by ours


class PredictionEntry(msgspec.Struct, frozen=True):
    """A file of `entries/`: the tables of one tool."""

    files: list[PredictedTable]


@dataclass(frozen=True)
class ScoredTask:
    """Measured rows of one kind."""

    keys: pl.DataFrame  # the columns that identify a row
    measured: Figures  # by the column in which a figure is predicted
    kinds: Mapping[str, Bools]  # groups of rows that are scored; `all` are those without a fault
    choices: Mapping[str, Sequence[Decisions]] = field(default_factory=dict)
    decided_by: Callable[[Figures], Mapping[str, Floats]] = lambda figures: figures


def main(words: list[str]) -> int:
    """Print the errors of one table of predictions."""
    parser = argparse.ArgumentParser("sweeper-lab predictions", description=__doc__)
    parser.add_argument("predictions", help=f"a CSV or Parquet file, or {ENTRIES.names()}")
    parser.add_argument("--reference", type=Path, help="folder of measured tables")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    found = scores(asked.predictions, measured_tables(asked.reference))
    print_checks(found, as_json=asked.json)
    return 0


def scores(named: str, reference: Path) -> list[Check]:
    """Return the scores of an entry, given by name or TOML, or of a user's CSV or Parquet file.

    Raises UserError if the predictions name no row of any task.
    """
    tables = predictions(named, reference)
    lines, seen = [], []
    for name, (read, needs) in TASKS.items():
        if all((reference / table).is_file() for table in needs):
            task = read(reference)
            seen.append(f"{name}: {', '.join(task.keys.columns)}; {', '.join(task.measured)}")
            figures, unmatched = aligned(task, tables)
            if any((~np.isnan(values)).any() for values in figures.values()):
                lines += list(_lines(name, task, figures, unmatched))
    if not lines:
        raise UserError(
            f"{named} predicts no measured row; a file has the columns that identify a row and at "
            "least one that is predicted\n" + "\n".join(seen)
        )
    return lines


def predictions(named: str, reference: Path) -> list[pl.DataFrame]:
    """Return tables of predictions, with the column names of tasks.

    Raises UserError if an entry is malformed, or none of its tables is in the reference folder.
    """
    if named.endswith((".csv", ".parquet")):
        return [read_frame(Path(named))]
    file = ENTRIES.find(named)
    try:
        entry = msgspec.convert(read_toml(file), PredictionEntry)
    except msgspec.ValidationError as error:
        raise UserError(
            f"{file}: {error}; write [[files]], and in each `file`, a table of the reference "
            "folder, and `columns`, its names of the predicted columns"
        ) from error
    found = [
        read_frame(reference / one.file, tuple(one.columns.values())).with_columns(
            pl.col(theirs).alias(ours) for ours, theirs in one.columns.items()
        )
        for one in entry.files
        if (reference / one.file).is_file()
    ]
    if not found:
        raise UserError(f"{named}: {', '.join(one.file for one in entry.files)} are not there")
    return found


def _words(keys: Sequence[str]) -> list[pl.Expr]:
    """Return key columns as words; whole numbers are written as such, however they are stored."""
    return [pl.col(name).cast(pl.String).str.strip_suffix(".0") for name in keys]


def aligned(task: ScoredTask, tables: Sequence[pl.DataFrame]) -> tuple[dict[str, Floats], int]:
    """Return the predictions of a task's rows, NaN where there is none, and unmatched rows.

    Raises UserError if a row is predicted twice, or by no number above zero.
    """
    keys = task.keys.columns
    places = task.keys.select(_words(keys)).with_row_index("place")
    found = {name: np.full(places.height, np.nan) for name in task.measured}
    unmatched = 0
    for table in tables:
        if not set(keys) <= set(table.columns):
            continue
        rows = table.with_columns(_words(keys)).join(places, on=keys, how="left")
        unmatched += rows["place"].null_count()
        for name in found.keys() & set(table.columns):
            given = rows.drop_nulls(["place", name])
            place = given["place"].to_numpy()
            values = given[name].cast(pl.Float64, strict=False)
            is_wrong = values.is_null() | (values <= 0.0) | values.is_infinite()
            is_repeated = (
                given["place"].is_duplicated() | pl.Series(found[name][place]).is_not_nan()
            )
            for row in given.filter(is_wrong | is_repeated).iter_rows(named=True):
                raise UserError(
                    f"row {' '.join(row[key] for key in keys)}: `{name}` needs one number above "
                    f"zero, not {row[name]!r} or several"
                )
            found[name][place] = values.to_numpy()
    return found, unmatched


def _lines(name: str, task: ScoredTask, predicted: Figures, unmatched: int) -> Iterator[Check]:
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
            pairs = pl.DataFrame({"predicted": predicted[figure], "measured": measured})
            rows = pairs.filter(which & ~np.isnan(predicted[figure]))
            if rows.height:
                value, near = (rows.select(STATISTICS[n]("predicted")).item() for n in SHOWN)
                note = f"{described(rows)}, {near:.0f} % within 2x"
                note += f"; answers {rows.height:,} of {which.sum():,}{unknown}"
                yield Check(f"{name}, {figure}, {kind}", value, "%", rows=rows.height, note=note)


def deployments(reference: Path) -> ScoredTask:
    """Return deployments: mean TTFT and TPOT, and choices on one GPU and across GPUs."""
    rows = silicon(reference)
    own = silicon(reference, QWEN3_32B, QWEN3_32B_PEER) if (reference / QWEN3_32B).is_file() else []
    every = [*rows, *own]
    kept = np.array([not row.excluded for row in every], bool)
    first = np.arange(len(every)) < len(rows)
    kinds = {"all": kept & first, "with excluded rows": first}
    for gpu in sorted({row.gpu for row in rows}):
        kinds[gpu] = kept & first & np.array([row.gpu == gpu for row in every])
    if own:
        kinds["Qwen3-32B on H100"] = kept & ~first
    return ScoredTask(
        keys=pl.DataFrame({"id": [row.name for row in every]}),
        measured={
            "ttft_ms": np.array([1e3 * row.ttft_s for row in every]),
            "tpot_ms": np.array([1e3 * row.tpot_s for row in every]),
        },
        kinds=kinds,
        choices=choices(every),
        decided_by=lambda f: {TTFT: f["ttft_ms"] * 1e-3, TPOT: f["tpot_ms"] * 1e-3},
    )


def fp32_models(reference: Path) -> ScoredTask:
    """Return whole transformers in fp32 under PyTorch, by how many GPUs ran them."""
    rows = read_frame(reference / MODEL_TIMES)
    alone = np.asarray(rows["n_gpus"] == 1)
    kinds = {"all": np.ones(rows.height, bool), "one GPU": alone, "four GPUs": ~alone}
    for gpu in rows["gpu"].unique().sort():
        kinds[gpu] = alone & np.asarray(rows["gpu"] == gpu)
    return ScoredTask(
        keys=rows.select("gpu", "model", "mode", "batch", "seq_len", "fused", "parallelism"),
        measured={"total_ms": rows["measured_ms"].to_numpy()},
        kinds=kinds,
    )


def fp32_operators(reference: Path) -> ScoredTask:
    """Return forward passes of single operators inside those transformers, by class of operator."""
    rows = read_frame(reference / OPERATOR_TIMES).filter(pl.col("op_class").is_in(OPERATORS))
    kinds = {"all": np.ones(rows.height, bool)}
    kinds |= {OPERATORS[name]: np.asarray(rows["op_class"] == name) for name in OPERATORS}
    return ScoredTask(
        keys=rows.select("gpu", "graph", "op_index"),
        measured={"forward_us": rows["forward_us"].cast(pl.Float64).to_numpy()},
        kinds=kinds,
    )


def training_steps(reference: Path) -> ScoredTask:
    """Return training steps whose time is known, by source."""
    rows = [row for row in read_records(reference / MEASURED) if row.step_time_s]
    reasons = flagged(reference)
    kept = np.array([not contradicts(reasons.get(row.row_id, "")) for row in rows], bool)
    sources = [next((n for w, n in SOURCES.items() if w in row.source), "") for row in rows]
    kinds = {"all": kept, "with flagged rows": np.ones(len(rows), bool)}
    for source in dict.fromkeys(filter(None, sources)):
        kinds[source] = kept & np.array([name == source for name in sources])
    return ScoredTask(
        keys=pl.DataFrame({"row_id": [row.row_id for row in rows]}),
        measured={"step_time_s": np.array([row.step_time_s for row in rows], np.float64)},
        kinds=kinds,
    )


TASKS: Mapping[str, tuple[Callable[[Path], ScoredTask], Sequence[str]]] = {
    "deployments": (deployments, (SILICON,)),
    "fp32_models": (fp32_models, (MODEL_TIMES,)),
    "fp32_operators": (fp32_operators, (OPERATOR_TIMES,)),
    "training_steps": (training_steps, (MEASURED, FLAGGED)),
}
"""Tasks by name, with the tables that each needs."""
