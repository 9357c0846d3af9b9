"""A table as a simulator: returns the row of each listed design; other designs are infeasible.

A sweep can thus search measurements or the results of another simulator.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa

from simulators.core.columns import EXTRAPOLATED, MEASURED, outcome, shares_of
from simulators.core.contract import Direction, choice, metric
from simulators.core.errors import UserError


@dataclass(frozen=True)
class Table:
    """The simulator of a table in a file."""

    name: str
    point: type
    metrics: type
    file: str
    version: int = 1

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the metrics of each design."""
        designs = zip(*(batch[n].to_pylist() for n in self._inputs), strict=True)
        place = np.array([self._rows.get(design, -1) for design in designs], np.int64)
        known, table = place >= 0, _read(self.file)
        columns = {
            f.name: table[f.name].cast(pl.Float64).to_numpy()[np.maximum(place, 0)]
            for f in dataclasses.fields(self.metrics)
        }
        reasons = ["" if k else "not_in_the_table" for k in known]
        levels = shares_of(np.where(known, MEASURED, EXTRAPOLATED))
        return outcome(self.metrics, columns, infeasible=reasons, shares=levels)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments of `table_simulator`: the dataclasses exist only in this process."""
        outputs = {f.name: f.metadata["better"] for f in dataclasses.fields(self.metrics)}
        return table_simulator, (self.name, self.file, self._inputs, outputs)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:  # noqa: ARG002 - one file for all
        """Return the file of the table, which every point depends on."""
        return (Path(self.file),)

    @property
    def _inputs(self) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(self.point))

    @functools.cached_property
    def _rows(self) -> dict[tuple[Any, ...], int]:
        table = _read(self.file)
        return {design: i for i, design in enumerate(table.select(self._inputs).rows())}


def table_simulator(
    name: str, file: str | Path, inputs: Sequence[str], outputs: Mapping[str, Direction]
) -> Table:
    """Return the simulator of a table.

    Args:
        name: name of the simulator in spaces.
        file: Parquet or CSV file; hyphens in column names become underscores.
        inputs: columns that describe a design.
        outputs: columns of metrics, each with the better direction, `min` or `max`.

    Raises:
        UserError: the file cannot be read, lacks a column, or has two rows for one design.
    """
    columns = _read(str(file))
    for column in (*inputs, *outputs):
        if column not in columns.columns:
            raise UserError(f"{file} has no column '{column}', but {', '.join(columns.columns)}")
    answers = columns.group_by(list(inputs)).agg(pl.col(list(outputs)).n_unique())
    for output in outputs:
        if len(twice := answers.filter(pl.col(output) > 1)):
            row = twice.select(inputs).row(0, named=True)
            design = ", ".join(f"{n}={v}" for n, v in row.items())
            raise UserError(f"{file} has two rows for one design, {design}: {output} differs")
    kinds: dict[Any, type] = {pl.String: str, pl.Int64: int, pl.Float64: float, pl.Boolean: bool}
    point = dataclasses.make_dataclass(
        "Point",
        [(n, kinds[columns.schema[n]], choice(n.replace("_", " "))) for n in inputs],
        frozen=True,
    )
    metrics = dataclasses.make_dataclass(
        "Metrics",
        [(n, float, metric(n.replace("_", " "), better=better)) for n, better in outputs.items()],
        frozen=True,
    )
    return Table(name, point, metrics, str(file))


@functools.lru_cache(maxsize=8)
def _read(file: str) -> pl.DataFrame:
    """Return a file's columns with plain types and identifiers as names."""
    try:
        is_csv = file.endswith(".csv")
        table = pl.read_csv(file, infer_schema_length=None) if is_csv else pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"the table {file} cannot be read: {error}") from error
    return table.rename(lambda name: name.replace("-", "_")).with_columns(
        cs.integer().cast(pl.Int64),
        cs.float().cast(pl.Float64),
        cs.categorical().cast(pl.String),
    )
