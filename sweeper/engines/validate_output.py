"""Validates the output of a simulator before it is stored: rows, columns, types and statuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from simulators.core.contract import Simulator
from simulators.core.errors import UserError
from sweeper.store.store import answer_schema

STATUSES = ("ok", "infeasible")
"""Statuses that a simulator may return; the others are set by engines."""


def validated(simulator: Simulator, points: int, results: Any) -> pa.RecordBatch:
    """Return the results of a simulator for so many points.

    Raises:
        UserError: they are not what its metrics type declares.
    """
    wrong = next(_mistakes(simulator, points, results), None)
    if wrong is not None:
        raise UserError(
            f"the simulator '{simulator.name}' {wrong}\n"
            "Nothing of this batch was stored; sweeper.testing.check_simulator says more"
        )
    batch: pa.RecordBatch = results
    return batch


def _mistakes(simulator: Simulator, points: int, results: Any) -> Iterator[str]:
    """Yield what is wrong with the results, the coarsest first."""
    if not isinstance(results, pa.RecordBatch):
        yield f"returned {type(results).__name__}, where a pyarrow.RecordBatch is wanted"
    if results.num_rows != points:
        yield f"was given {points:,} points and returned {results.num_rows:,} rows"
    declared = answer_schema(simulator)
    names, returned = declared.names, results.schema.names
    if missing := [name for name in names if name not in returned]:
        yield f"returned no column {', '.join(missing)}; `outcome` of core.columns makes them all"
    if extra := [name for name in returned if name not in names]:
        yield f"returned the column {', '.join(extra)}, which its metrics type does not declare"
    for field in declared:
        if (kind := results.schema.field(field.name).type) != field.type:
            yield f"declares '{field.name}' as {field.type}, but returned {kind}"
    status = results.column("status")
    words = status.dictionary.to_pylist()
    found = [words[code] for code in status.indices.unique().drop_null().to_pylist()]
    if strange := [word for word in found if word not in STATUSES]:
        yield f"gave a point the status {strange[0]!r}; a point is {' or '.join(STATUSES)}"
