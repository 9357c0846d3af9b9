"""A table of designs as a simulator: its rows are answered as they were measured.

Designs beside its rows are answered by a Gaussian process of the logarithms of its figures, if that
is asked for, and else cannot be. So a table of another simulator, or of measurements, is searched
like a space of our own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, parquet

from simulators.core.columns import outcome
from simulators.core.contract import Direction, choice, metric
from simulators.core.errors import UserError
from simulators.core.grouping import columns_of
from simulators.core.jit import Floats
from simulators.core.levels import EXTRAPOLATED, MEASURED, shares_of
from sweeper.tables.gaussian_process import Surrogate, relevance


@dataclass(frozen=True)
class Table:
    """The simulator of a file."""

    name: str
    point: type
    metrics: type
    file: str
    between: bool = False
    version: int = 1

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the figures of each row."""
        rows, learned = self._learned
        names = [f.name for f in columns_of(self.point)]
        wanted = list(zip(*(batch[n].to_pylist() for n in names), strict=True))
        place = np.array([rows.get(design, -1) for design in wanted], np.int64)
        known, columns = place >= 0, {}
        features = None
        for field in dataclasses.fields(self.metrics):
            values, model, weights = learned[field.name]
            found = values[np.maximum(place, 0)]
            if self.between and not known.all():
                features = self._features(wanted) if features is None else features
                # One design at a time: sums must not depend on the others of a batch.
                foretold = [model.predict(row[np.newaxis] * weights)[0][0] for row in features]
                found = np.where(known, found, np.exp(foretold))
            columns[field.name] = found
        possible = self._can_be_foretold(wanted) if self.between else known
        reasons = ["" if k else "not_in_the_table" for k in known | possible]
        levels = shares_of(np.where(known, MEASURED, EXTRAPOLATED))
        return outcome(self.metrics, columns, infeasible=reasons, shares=levels)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as what it was made of: its dataclasses are of this process alone."""
        inputs = tuple(f.name for f in columns_of(self.point))
        outputs = {f.name: f.metadata["better"] for f in dataclasses.fields(self.metrics)}
        return _again, (self.name, self.file, inputs, outputs, self.between)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:  # noqa: ARG002 - one file for all
        """Every point depends on the file."""
        return (Path(self.file),)

    @functools.cached_property
    def _designs(self) -> list[tuple[Any, ...]]:
        table = _read(self.file)
        names = [f.name for f in columns_of(self.point)]
        return list(zip(*(table[n].to_pylist() for n in names), strict=True))

    @functools.cached_property
    def _learned(self) -> tuple[dict[tuple[Any, ...], int], dict[str, tuple[Floats, Any, Any]]]:
        """Return the row of each design, and of each figure its values and what foretells it."""
        table = _read(self.file)
        found: dict[str, tuple[Floats, Any, Any]] = {}
        for field in dataclasses.fields(self.metrics):
            values = table[field.name].to_numpy().astype(np.float64)
            model = weights = None
            if self.between:
                features = self._features(self._designs)
                weights = relevance(features, np.log(values))
                model = Surrogate.of(features * weights, np.log(values))
            found[field.name] = values, model, weights
        return {design: i for i, design in enumerate(self._designs)}, found

    def _can_be_foretold(self, wanted: Sequence[tuple[Any, ...]]) -> NDArray[np.bool_]:
        """Return of designs whether each of their words stands in the table."""
        known = np.ones(len(wanted), bool)
        columns = zip(*self._designs, strict=True), zip(*wanted, strict=True)
        for mine, asked in zip(*columns, strict=True):
            if isinstance(mine[0], str | bool):
                words = set(mine)
                known &= np.array([value in words for value in asked])
        return known

    def _features(self, designs: Sequence[tuple[Any, ...]]) -> Floats:
        """Return designs as numbers of about the same spread, as `features_of` has them."""
        return features_of(self._designs, designs)


def table_simulator(
    name: str,
    file: str | Path,
    inputs: Sequence[str],
    outputs: Mapping[str, Direction],
    *,
    between: bool = False,
) -> Table:
    """Return the simulator of a table.

    Args:
        name: by which spaces know it, once it is lent.
        file: Parquet or CSV; a hyphen in the name of a column counts as an underscore.
        inputs: columns that describe a design.
        outputs: columns with what it does, all above zero, and what is better.
        between: whether designs beside the rows are foretold by a Gaussian process.

    Raises:
        UserError: the file cannot be read, has no such column, two answers to one design, or, to
            foretell from, a figure that is not above zero.
    """
    columns = _read(str(file))
    for column in (*inputs, *outputs):
        if column not in columns.column_names:
            known = ", ".join(columns.column_names)
            raise UserError(f"{file} has no column '{column}', but {known}")
    _check_figures(columns, str(file), inputs, outputs, between=between)
    kinds = {pa.string(): str, pa.int64(): int, pa.float64(): float, pa.bool_(): bool}
    point = dataclasses.make_dataclass(
        "Point",
        [(n, kinds[columns.schema.field(n).type], choice(n.replace("_", " "))) for n in inputs],
        frozen=True,
    )
    figures = dataclasses.make_dataclass(
        "Metrics",
        [(n, float, metric(n.replace("_", " "), better=better)) for n, better in outputs.items()],
        frozen=True,
    )
    return Table(name, point, figures, str(file), between)


def _check_figures(
    table: pa.Table, file: str, inputs: Sequence[str], outputs: Iterable[str], *, between: bool
) -> None:
    """Raise `UserError` for a design with two answers, or figures without a logarithm."""
    ends = [(name, how) for name in outputs for how in ("min", "max")]
    designs = table.group_by(list(inputs)).aggregate(ends)
    for name in outputs:
        low, high = designs[f"{name}_min"], designs[f"{name}_max"]
        twice = pc.not_equal(low, high)
        if pc.any(twice).as_py():
            (row,) = designs.filter(twice).slice(0, 1).select(list(inputs)).to_pylist()
            said = ", ".join(f"{n}={v}" for n, v in row.items())
            raise UserError(f"{file} has two answers to one design, {said}: {name} differs")
        if between and not pc.all(pc.greater(low, 0), skip_nulls=False).as_py():
            raise UserError(
                f"{file}: '{name}' is not above zero in each row, as what is foretold from must be"
            )


def _again(
    name: str, file: str, inputs: Sequence[str], outputs: Mapping[str, Direction], between: bool
) -> Table:
    return table_simulator(name, file, inputs, outputs, between=between)


def features_of(known: Sequence[tuple[Any, ...]], designs: Sequence[tuple[Any, ...]]) -> Floats:
    """Return a column for each number of designs and each word of `known`, standardised there.

    Numbers of few values count as words too.
    """
    columns: list[Floats] = []
    for mine, asked in zip(zip(*known, strict=True), zip(*designs, strict=True), strict=True):
        words = sorted(set(mine))
        both = (*mine, *asked)
        if not isinstance(words[0], str):
            columns.append(np.array(both, np.float64))
        if isinstance(words[0], str) or len(words) <= _FEW:
            columns += [np.array([value == word for value in both], np.float64) for word in words]
    shown = [_like(column, len(known)) for column in columns]
    return np.stack([c for c in shown if c is not None], axis=1)


_FEW = 3
"""Values of a number up to which each may matter on its own."""


def _like(column: Floats, known: int) -> Floats | None:
    """Return the values after the first `known`, standardised as those are; none without spread."""
    logs = np.log(column) if (column > 0.0).all() else column
    spread = float(logs[:known].std())
    result: Floats | None = (logs[known:] - logs[:known].mean()) / spread if spread > 0.0 else None
    return result


@functools.lru_cache(maxsize=8)
def _read(file: str) -> pa.Table:
    """Return a file's columns, with plain types and names that Python can say."""
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
