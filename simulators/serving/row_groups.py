"""Evaluation of a batch in groups of rows, with results in the original order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.columns import members
from simulators.core.jit import Ints

C = TypeVar("C")
Evaluate = Callable[[pa.RecordBatch], pa.RecordBatch]


def evaluate_together(
    evaluate: Evaluate, batch: pa.RecordBatch, alike: Sequence[str]
) -> pa.RecordBatch:
    """Evaluate all rows, sorted by the values of the columns `alike`; return results in order."""
    kinds = kinds_of(batch, alike)
    if (np.diff(kinds) >= 0).all():
        return evaluate(batch)
    order = np.argsort(kinds, kind="stable")
    return evaluate(batch.take(pa.array(order))).take(pa.array(np.argsort(order)))


def evaluate_apart(
    chosen: NDArray[np.bool_], one: Evaluate, other: Evaluate, batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Evaluate the chosen rows by `one` and the other rows by `other`; return results in order."""
    if chosen.all():
        return one(batch)
    if not chosen.any():
        return other(batch)
    parts = [one(batch.filter(pa.array(chosen))), other(batch.filter(pa.array(~chosen)))]
    place = np.argsort(np.concatenate([np.flatnonzero(chosen), np.flatnonzero(~chosen)]))
    table = pa.Table.from_batches(parts).combine_chunks().take(pa.array(place))
    return table.combine_chunks().to_batches()[0]


def kinds_of(batch: pa.RecordBatch, alike: Sequence[str]) -> Ints:
    """Return a group number per row: equal for rows with equal values, by first appearance.

    >>> kinds_of(pa.record_batch({"tp": [4, 4, 2, 4], "pp": [1, 2, 1, 1]}), ["tp", "pp"]).tolist()
    [0, 1, 2, 0]
    """
    _, first, kind = np.unique(members(batch, alike), return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    numbered: Ints = rank[kind]
    return numbered


def rows_of(columns: C, rows: Ints) -> C:
    """Return some rows of a dataclass of columns, including nested dataclasses."""
    parts: dict[str, Any] = {
        name: column[rows] if isinstance(column, np.ndarray) else rows_of(column, rows)
        for name, column in vars(columns).items()
    }
    return type(columns)(**parts)
