"""This project's own entries: predictions as shipped, and by constants that have not seen the rows.

`sweeper-lab benchmark predict` writes both tables. They are stored, because a simulation of all
rows takes minutes; a test repeats some of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from lab.benchmark.entries import COLUMNS
from lab.benchmark.protocol import (
    ALL,
    GPU,
    LATER,
    MODEL,
    SHIPPED,
    BenchmarkSubject,
    rows_of,
)
from lab.predictions.score import ENTRIES
from simulators.core.errors import Infeasible, UserError

DIGITS = 5
"""Significant digits of stored predictions."""

OF_SPLIT = {
    "closed_loop": (LATER, GPU, MODEL),
    "training": (LATER, GPU, MODEL),
    "kernels": (GPU,),
    "models": (GPU,),
}
"""Splits for which other constants are stored than for all rows, by task."""

FILES = {SHIPPED: "sweeper.csv", "held out": "sweeper_held_out.csv"}


def write(subjects: Mapping[str, Sequence[BenchmarkSubject]]) -> None:
    """Write the entries; tasks that are not among the subjects keep their stored predictions."""
    for kind, name in FILES.items():
        file = Path(ENTRIES.shipped) / name
        found = [
            pl.DataFrame(list(_of_task(task, kind, subjects[task])), COLUMNS) for task in subjects
        ]
        if file.is_file():
            kept = pl.read_csv(file, schema=COLUMNS).filter(~pl.col("task").is_in(list(subjects)))
            found.append(kept)
        table = pl.concat(found).sort("task", "split", "row", "figure")
        numbers = pl.col("prediction", "low", "high").round_sig_figs(DIGITS)
        table.with_columns(numbers).write_csv(file)
        print(f"Written: {file}, {table.height:,} predictions", flush=True)


def _of_task(
    task: str, kind: str, subjects: Sequence[BenchmarkSubject]
) -> Iterator[dict[str, object]]:
    rows = rows_of(task, subjects)
    for split in (ALL, *(() if kind == SHIPPED else OF_SPLIT.get(task, ()))):
        judged = set(rows.filter(pl.col(split))["row"])
        for one in subjects:
            if one.row in judged:
                yield from predictions_of(task, one, split, SHIPPED if kind == SHIPPED else split)


def predictions_of(
    task: str, one: BenchmarkSubject, split: str, asked: str
) -> Iterator[dict[str, object]]:
    """Yield the predictions of one configuration; none if it cannot be simulated."""
    try:
        answers = one.answer(asked)
    except (Infeasible, UserError):
        return
    for figure, (value, low, high) in answers.items():
        if figure in one.measured and value:
            ends = {"low": low, "high": high} if low and high else {"low": None, "high": None}
            row = {"task": task, "row": one.row, "figure": figure, "split": split}
            yield {**row, "prediction": value, **ends}
