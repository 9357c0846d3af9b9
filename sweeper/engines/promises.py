"""What a simulator returns is looked at before it is kept: rows, columns, types and verdicts.

A simulator of one's own is wrong at first. What is wrong is said in a sentence, and nothing of it
is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from simulators.core.contract import Simulator
from simulators.core.errors import UserError
from sweeper.store.store import answer_schema

VERDICTS = ("ok", "infeasible")
"""What a simulator says of a point; all else is the engine's to say."""


def checked(simulator: Simulator, points: int, results: Any) -> pa.RecordBatch:
    """Return what a simulator answered to so many points.

    Raises:
        UserError: it is not what its metrics type promises; says what is wrong.
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
    """Yield what is wrong with an answer, the coarsest first."""
    if not isinstance(results, pa.RecordBatch):
        yield f"returned {type(results).__name__}, where a pyarrow.RecordBatch is wanted"
    if results.num_rows != points:
        yield f"was given {points:,} points and returned {results.num_rows:,} rows"
    promised = answer_schema(simulator)
    names, there = promised.names, results.schema.names
    if missing := [name for name in names if name not in there]:
        yield f"returned no column {', '.join(missing)}; `outcome` of core.columns makes them all"
    if extra := [name for name in there if name not in names]:
        yield f"returned the column {', '.join(extra)}, which its metrics type does not declare"
    for field in promised:
        if (kind := results.schema.field(field.name).type) != field.type:
            yield f"declares '{field.name}' as {field.type}, but returned {kind}"
    status = results.column("status")
    words = status.dictionary.to_pylist()
    said = [words[code] for code in status.indices.unique().drop_null().to_pylist()]
    if strange := [word for word in said if word not in VERDICTS]:
        yield f"gave a point the status {strange[0]!r}; a point is {' or '.join(VERDICTS)}"
