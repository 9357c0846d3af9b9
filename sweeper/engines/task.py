"""The work on a batch of points: decode, apply constraints, evaluate, write, summarise.

The rows stay in the part written here; the summary that is returned holds counts and the local
Pareto front. A batch on which a simulator raises is split down to the point that raises.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from simulators.core.columns import STATUSES
from simulators.core.contract import Shares, Simulator, WarmsUp, load_simulator
from simulators.core.errors import UserError
from sweeper.engines.chunks import PART
from sweeper.engines.limits import UNSTATED, Limits
from sweeper.engines.validate_output import validated
from sweeper.query.pareto import local_front
from sweeper.space.design_space import DesignSpace, Objectives
from sweeper.space.points import Batch, Mask, split, width
from sweeper.space.sql import computed, names_in, parsed
from sweeper.store.keys import name_of
from sweeper.store.parquet import appears, read
from sweeper.store.store import Part, Store, answer_schema


@dataclass(frozen=True)
class Task:
    """What a worker needs to turn point numbers into rows of a store."""

    space: DesignSpace
    store: Store
    objectives: Objectives
    where: str | None = None
    limits: Limits = UNSTATED

    def warm_up(self) -> None:
        """Compile the simulator's kernels, so that the cache serves every worker."""
        simulator = load_simulator(self.space.simulator)
        if isinstance(simulator, WarmsUp):
            simulator.warm_up()

    @property
    def together(self) -> int:
        """How many consecutive points the simulator evaluates more cheaply in one batch."""
        simulator = load_simulator(self.space.simulator)
        return self.space.stretch(simulator.shares) if isinstance(simulator, Shares) else 1

    def answer(self, where: Batch) -> Part:
        """Evaluate a batch of points and write their rows."""
        laps = Laps()
        kept, batch = self._decoded(where, laps)
        results = evaluate(load_simulator(self.space.simulator), batch)
        laps.end("model")
        return self._write(where, kept, batch, results, laps)

    def answer_in_parts(self, where: Batch) -> Iterator[Part]:
        """Evaluate a batch of points and write their rows in parts of limited size."""
        for piece in split(where, -(-width(where) // PART)):
            yield self.answer(piece)

    def give_up(self, where: Batch, status: str, reason: str) -> Part:
        """Write rows with status `timeout` or `crash`."""
        laps = Laps()
        kept, batch = self._decoded(where, laps)
        results = _verdict(load_simulator(self.space.simulator), batch.num_rows, status, reason)
        return self._write(where, kept, batch, results, laps)

    def _decoded(self, where: Batch, laps: Laps) -> tuple[Mask | None, pa.RecordBatch]:
        """Return which points the constraints allow, and those points."""
        kept = self.space.kept(where)
        batch = self.space.batch(where, kept)
        laps.end("decode")
        return kept, batch

    def _write(
        self,
        where: Batch,
        kept: Mask | None,
        batch: pa.RecordBatch,
        results: pa.RecordBatch,
        laps: Laps,
    ) -> Part:
        derived = {
            name: values if kept is None else values.filter(pa.array(kept))
            for name, values in self.space.derive(where).items()
        }
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= derived
        columns |= dict(zip(results.schema.names, results.columns, strict=True))
        table = pa.table(columns)
        laps.end("arrow")
        seconds = laps.seconds()
        name = self.store.write(table, where, seconds=seconds)
        written_s = laps.seconds() - seconds
        laps.end("parquet")
        return self._summary(name, where, columns, laps, written_s)

    def written(self, where: Batch) -> Iterator[Part]:
        """Yield the summaries of parts of a range that a lost worker has written."""
        for piece in split(where, -(-width(where) // PART)):
            name = name_of(self.store.definition.id, piece)
            if appears(self.store.results, name, within_s=0.0):
                laps, table = Laps(), read(self.store.results, name)
                columns = {n: table.column(n).combine_chunks() for n in table.column_names}
                yield self._summary(name, piece, columns, laps)

    def _summary(
        self,
        name: str,
        where: Batch,
        columns: Mapping[str, pa.Array],
        laps: Laps,
        written_s: float = 0.0,
    ) -> Part:
        """Return the summary of a part."""
        status = columns["status"].dictionary_encode()
        codes, words = status.indices.to_numpy(zero_copy_only=False), status.dictionary.to_pylist()
        counted = [int(np.count_nonzero(codes == c)) for c in range(len(words))]
        good = codes == (words.index("ok") if "ok" in words else -1)
        reasons: Counter[str] = Counter()
        if np.count_nonzero(good) < len(codes):
            for text in columns["reason"].drop_null().to_pylist():
                reasons[text.split(":")[0]] += 1
        front, ties = local_front(self._candidates(columns, good), self.objectives)
        laps.end("front")
        return Part(
            name=name,
            points=len(where),
            rows={word: n for word, n in zip(words, counted, strict=True) if n},
            reasons=dict(reasons),
            front=front,
            ties=ties,
            seconds=laps.seconds() - written_s,
            written_s=written_s,
            laps=laps.cpu_s,
        )

    def _candidates(self, columns: Mapping[str, pa.Array], good: Any) -> dict[str, Any]:
        """Return the objectives of the rows that may be on the front."""
        if self.where is not None:
            what = f"where '{self.where}'"
            names = names_in(self.where, what)
            rows = pl.DataFrame(pl.from_arrow(pa.table({n: columns[n] for n in names})))
            with computed(what):
                met = parsed(self.where, what).fill_null(value=False)
                meets = rows.select(met).to_series().to_numpy()
            good = good & meets
        objectives = {o: _values(columns[o]) for o in self.objectives}
        return objectives if good.all() else {o: v[good] for o, v in objectives.items()}


class Laps:
    """Stopwatch: total wall time, and CPU time by step."""

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = {}
        self._started, self._mark = time.perf_counter(), time.process_time()

    def end(self, step: str) -> None:
        """Record the end of a step."""
        now = time.process_time()
        self.cpu_s[step] = self.cpu_s.get(step, 0.0) + now - self._mark
        self._mark = now

    def seconds(self) -> float:
        """Return the wall time since the work began."""
        return time.perf_counter() - self._started


def _values(column: pa.Array) -> Any:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.to_numpy(zero_copy_only=False)


def evaluate(simulator: Simulator, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Evaluate a batch; a point the simulator raises on becomes a row with status `error`."""
    if batch.num_rows == 0:
        return _verdict(simulator, 0, "error", "")
    try:
        return validated(simulator, batch.num_rows, simulator.evaluate(batch))
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
    schema = answer_schema(simulator)
    code = pa.array(np.full(rows, STATUSES.index(status), np.int8))
    columns: dict[str, pa.Array] = {f.name: pa.nulls(rows, f.type) for f in schema}
    columns["status"] = pa.DictionaryArray.from_arrays(code, pa.array(STATUSES))
    columns["reason"] = pa.array([reason] * rows, pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
