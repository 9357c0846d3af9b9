"""A table of designs as a simulator: a design is answered by its row, others are infeasible.

So measurements, or the results of another simulator, are searched like any space.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from simulators.core.columns import outcome
from simulators.core.contract import Direction, choice, metric
from simulators.core.errors import UserError
from simulators.core.levels import EXTRAPOLATED, MEASURED, shares_of


@dataclass(frozen=True)
class Table:
    """The simulator of a file."""

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
            f.name: table[f.name].to_numpy().astype(np.float64)[np.maximum(place, 0)]
            for f in dataclasses.fields(self.metrics)
        }
        reasons = ["" if k else "not_in_the_table" for k in known]
        levels = shares_of(np.where(known, MEASURED, EXTRAPOLATED))
        return outcome(self.metrics, columns, infeasible=reasons, shares=levels)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the arguments it was made of: its dataclasses belong to this process."""
        outputs = {f.name: f.metadata["better"] for f in dataclasses.fields(self.metrics)}
        return table_simulator, (self.name, self.file, self._inputs, outputs)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:  # noqa: ARG002 - one file for all
        """Return the file, on which every point depends."""
        return (Path(self.file),)

    @property
    def _inputs(self) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(self.point))

    @functools.cached_property
    def _rows(self) -> dict[tuple[Any, ...], int]:
        """The row of each design."""
        table = _read(self.file)
        designs = zip(*(table[n].to_pylist() for n in self._inputs), strict=True)
        return {design: i for i, design in enumerate(designs)}


def table_simulator(
    name: str, file: str | Path, inputs: Sequence[str], outputs: Mapping[str, Direction]
) -> Table:
    """Return the simulator of a table.

    Args:
        name: of the simulator, in spaces.
        file: Parquet or CSV; a hyphen in the name of a column counts as an underscore.
        inputs: columns that describe a design.
        outputs: columns of metrics, and whether `min` or `max` is better.

    Raises:
        UserError: the file cannot be read, lacks a column, or has two rows for one design.
    """
    columns = _read(str(file))
    for column in (*inputs, *outputs):
        if column not in columns.column_names:
            known = ", ".join(columns.column_names)
            raise UserError(f"{file} has no column '{column}', but {known}")
    ends = [(name, how) for name in outputs for how in ("min", "max")]
    designs = columns.group_by(list(inputs)).aggregate(ends)
    for output in outputs:
        twice = pc.not_equal(designs[f"{output}_min"], designs[f"{output}_max"])
        if pc.any(twice).as_py():
            (row,) = designs.filter(twice).slice(0, 1).select(list(inputs)).to_pylist()
            design = ", ".join(f"{n}={v}" for n, v in row.items())
            raise UserError(f"{file} has two answers to one design, {design}: {output} differs")
    kinds = {pa.string(): str, pa.int64(): int, pa.float64(): float, pa.bool_(): bool}
    point = dataclasses.make_dataclass(
        "Point",
        [(n, kinds[columns.schema.field(n).type], choice(n.replace("_", " "))) for n in inputs],
        frozen=True,
    )
    metrics = dataclasses.make_dataclass(
        "Metrics",
        [(n, float, metric(n.replace("_", " "), better=better)) for n, better in outputs.items()],
        frozen=True,
    )
    return Table(name, point, metrics, str(file))


@functools.lru_cache(maxsize=8)
def _read(file: str) -> pa.Table:
    """Return a file's columns with plain types, named as Python identifiers."""
    try:
        table = csv.read_csv(file) if file.endswith(".csv") else parquet.read_table(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"the table {file} cannot be read: {error}") from error
    table = table.rename_columns([n.replace("-", "_") for n in table.column_names])
    plain = []
    for field in table.schema:
        kind = field.type
        if pa.types.is_integer(kind):
            kind = pa.int64()
        elif pa.types.is_floating(kind):
            kind = pa.float64()
        elif pa.types.is_dictionary(kind) or pa.types.is_large_string(kind):
            kind = pa.string()
        plain.append(pa.field(field.name, kind))
    return table.cast(pa.schema(plain))
