"""The benchmark's protocol: tasks, measured rows, public splits, and the hash of a set of rows.

A subject is one measured configuration; each of its figures is a row. Subjects of a task are drawn
by the hashes of their names, so that anybody who has the tables gets the same rows. Four splits are
public: `all` rows, rows measured `later` than a day, rows on an `unseen GPU` and of an `unseen
model`. GPUs and models are drawn by the hashes of their names.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import polars as pl

from simulators.core.folder import read_toml

ALL, LATER, GPU, MODEL = SPLITS = ("all", "later", "unseen GPU", "unseen model")
SHIPPED = "as shipped"

Answer = tuple[float, float | None, float | None]
"""A prediction and the ends of its 90 % interval, if it has one."""


class BenchmarkTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task of the protocol."""

    subjects: int
    date: str
    about: str
    figures: dict[str, str]  # units by figure
    tables: tuple[str, ...]
    source: tuple[str, ...]
    licence: str
    most_clients: int = (
        0  # deployments with more are left out, for the time of a simulation; 0: none
    )


class BenchmarkProtocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `protocol.toml`."""

    version: int
    cut: str
    unseen: float
    least_rows: int
    exact: float
    exact_share: float
    one_ratio: float
    tasks: dict[str, BenchmarkTask]


PROTOCOL = msgspec.convert(read_toml(Path(__file__).with_suffix(".toml")), BenchmarkProtocol)


@dataclass(frozen=True, kw_only=True)
class BenchmarkSubject:
    """One measured configuration.

    `sizes` are positive numbers that describe the configuration; `kinds` are names beside GPU and
    model. `lower_bound` is the least time or energy by data sheets, by figure; `peers` are
    predictions of other tools, stored with the tables. `answer` returns this project's predictions
    by figure: as shipped, or with constants that no row of a split was fitted to.
    """

    row: str
    gpu: str
    model: str
    measured: Mapping[str, float]
    sizes: tuple[float, ...]
    kinds: tuple[str, ...] = ()
    date: str = ""
    lower_bound: Mapping[str, float] = field(default_factory=dict)
    peers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    answer: Callable[[str], Mapping[str, Answer]] = lambda _: {}


def digest(text: str) -> str:
    """Return the SHA-256 of a text, as hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def drawn(task: str, subjects: Iterable[BenchmarkSubject]) -> list[BenchmarkSubject]:
    """Return the subjects of a task that are scored, in the order of the hashes of their names."""
    named = {one.row: one for one in subjects}
    chosen = sorted(named, key=lambda row: digest(f"{task} {row}"))
    return [named[row] for row in chosen[: PROTOCOL.tasks[task].subjects]]


def unseen(names: Iterable[str]) -> frozenset[str]:
    """Return the names that an unseen split judges: a share by their hashes, none of a single name.

    >>> sorted(unseen(["a100", "b200", "h100", "l40s", "t4"])), unseen(["h100"])
    (['a100', 'h100'], frozenset())
    """
    ordered = sorted(set(names), key=digest)
    if len(ordered) < 2:
        return frozenset()
    return frozenset(ordered[: max(1, math.ceil(PROTOCOL.unseen * len(ordered)))])


def rows_of(task: str, subjects: Sequence[BenchmarkSubject]) -> pl.DataFrame:
    """Return the rows of a task with names, days, measurements and a mask of each split."""
    facts = PROTOCOL.tasks[task]
    new_gpus = unseen(one.gpu for one in subjects)
    new_models = unseen(one.model for one in subjects)
    rows = [
        {
            "task": task,
            "row": one.row,
            "figure": figure,
            "date": one.date or facts.date,
            "gpu": one.gpu,
            "model": one.model,
            "measured": float(value),
            "lower_bound": one.lower_bound.get(figure),
            ALL: True,
            LATER: (one.date or facts.date) >= PROTOCOL.cut,
            GPU: one.gpu in new_gpus,
            MODEL: one.model in new_models,
        }
        for one in subjects
        for figure, value in one.measured.items()
        if math.isfinite(value) and value > 0.0
    ]
    lower_bounds = {"lower_bound": pl.Float64}
    frame = pl.DataFrame(rows, infer_schema_length=None, schema_overrides=lower_bounds)
    dates = frame["date"].n_unique() if frame.height else 0
    return frame.with_columns(pl.lit(False).alias(LATER)) if dates == 1 else frame


def row_set_hash(rows: pl.DataFrame) -> str:
    """Return twelve digits that name a set of rows and their measurements, to six digits.

    Figures of two people can be compared if their hashes are equal.
    """
    lines = sorted(
        f"{task}\t{row}\t{figure}\t{value:.6g}"
        for task, row, figure, value in rows.select("task", "row", "figure", "measured").rows()
    )
    return digest("\n".join(lines))[:12]
