"""What a worker does with a range of points: decode, drop, evaluate, write, summarise.

The rows stay in the file that is written here; the part that travels back holds counts and the local
Pareto front. One bad point costs one row: what a simulator raises is split down to the point that
raises it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from simulators.core.contract import (
    OUTCOME,
    STATUSES,
    Direction,
    Simulator,
    WarmsUp,
    load_simulator,
    schema_of,
)
from simulators.core.errors import UserError
from sweeper.query import local_front
from sweeper.space import DesignSpace
from sweeper.store import Batch, Part, Store


@dataclass(frozen=True)
class Task:
    """Everything a worker must know to turn point numbers into rows of a store."""

    space: DesignSpace
    store: Store
    objectives: Mapping[str, Direction]

    def warm_up(self) -> None:
        """Compile what will be called, so that the cache serves every worker."""
        simulator = load_simulator(self.space.simulator)
        if isinstance(simulator, WarmsUp):
            simulator.warm_up()

    def answer(self, where: Batch, worker: str = "driver") -> Part:
        """Evaluate a range of points and write their rows."""
        started = time.perf_counter()
        kept = self.space.kept(where)
        batch = self.space.batch(where, kept)
        results = evaluate(load_simulator(self.space.simulator), batch)
        return self._write(where, kept, batch, results, time.perf_counter() - started, worker)

    def give_up(self, where: Batch, status: str, reason: str) -> Part:
        """Write rows that say why there is no answer: `timeout` or `crash`."""
        kept = self.space.kept(where)
        batch = self.space.batch(where, kept)
        simulator = load_simulator(self.space.simulator)
        results = _verdict(simulator, batch.num_rows, status, reason)
        return self._write(where, kept, batch, results, 0.0, "driver")

    def _write(
        self,
        where: Batch,
        kept: Any,
        batch: pa.RecordBatch,
        results: pa.RecordBatch,
        seconds: float,
        worker: str,
    ) -> Part:
        derived = {
            name: pa.array(values if kept is None else values[kept])
            for name, values in self.space.derive(where).items()
        }
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= derived
        columns |= dict(zip(results.schema.names, results.columns, strict=True))
        name = self.store.write(pa.table(columns), where, seconds=seconds)
        # Codes rather than strings: counting a million statuses is then counting small integers.
        status = columns["status"]
        codes = np.bincount(status.indices.to_numpy(zero_copy_only=False), minlength=len(STATUSES))
        words = status.dictionary.to_pylist()
        rows = {w: int(n) for w, n in zip(words, codes, strict=False) if n}
        reasons: Counter[str] = Counter()
        if rows.get("ok", 0) < batch.num_rows:
            for text in columns["reason"].drop_null().to_pylist():
                reasons[text.split(":")[0]] += 1
        front = pa.table({o: columns[o] for o in self.objectives})
        alive = front.filter(pa.array(status.indices.to_numpy(zero_copy_only=False) == words.index("ok")))
        return Part(
            name=name,
            points=len(where),
            rows=rows,
            reasons=dict(reasons),
            front=local_front(pl.DataFrame(pl.from_arrow(alive)), self.objectives),
            seconds=seconds,
            worker=worker,
        )


def evaluate(simulator: Simulator, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Evaluate a batch; a point the simulator raises on becomes a row with status `error`.

    Raises:
        UserError: what the user wrote cannot be run by the simulator at all.
    """
    if batch.num_rows == 0:
        return _verdict(simulator, 0, "error", "")
    try:
        return simulator.evaluate(batch)
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 - one bad point costs one row, never the sweep
        if batch.num_rows == 1:
            return _verdict(simulator, 1, "error", f"{type(error).__name__}: {error}")
    middle = batch.num_rows // 2
    halves = [evaluate(simulator, h) for h in (batch.slice(0, middle), batch.slice(middle))]
    joined = pa.Table.from_batches(halves).combine_chunks().unify_dictionaries().to_batches()
    return joined[0]


def _verdict(simulator: Simulator, rows: int, status: str, reason: str) -> pa.RecordBatch:
    """Return rows without metrics."""
    metrics = schema_of(simulator.metrics)
    schema = pa.schema([*(f for f in metrics if f.name not in OUTCOME.names), *OUTCOME])
    code = pa.array(np.full(rows, STATUSES.index(status), np.int8))
    columns: dict[str, pa.Array] = {f.name: pa.nulls(rows, f.type) for f in schema}
    columns["status"] = pa.DictionaryArray.from_arrays(code, pa.array(STATUSES))
    columns["reason"] = pa.array([reason] * rows, pa.string())
    for flag in ("calibrated", "extrapolated"):
        columns[flag] = pa.array(np.zeros(rows, bool))
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
