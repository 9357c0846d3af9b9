"""Points of one deployment are answered one after the other, so that its tables are built once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from simulators.core.columns import categories
from simulators.core.jit import Ints

Evaluate = Callable[[pa.RecordBatch], pa.RecordBatch]


def evaluate_together(
    evaluate: Evaluate, batch: pa.RecordBatch, alike: Sequence[str]
) -> pa.RecordBatch:
    """Return all rows as they stand, those that agree in the columns `alike` evaluated together."""
    kinds = kinds_of(batch, alike)
    if (np.diff(kinds) >= 0).all():
        return evaluate(batch)
    order = np.argsort(kinds, kind="stable")
    return evaluate(batch.take(pa.array(order))).take(pa.array(np.argsort(order)))


def kinds_of(batch: pa.RecordBatch, alike: Sequence[str]) -> Ints:
    """Return a number per row, equal where rows agree in all columns, by first appearance.

    >>> kinds_of(pa.record_batch({"tp": [4, 4, 2, 4], "pp": [1, 2, 1, 1]}), ["tp", "pp"]).tolist()
    [0, 1, 2, 0]
    """
    kind = np.zeros(batch.num_rows, np.int64)
    for name in alike:
        codes, values = categories(batch, name)
        _, kind = np.unique(kind * len(values) + codes, return_inverse=True)
    _, first, kind = np.unique(kind, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    numbered: Ints = rank[kind]
    return numbered
