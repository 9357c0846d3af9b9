"""The work on a batch of points: decode, apply constraints, evaluate, write, summarise.

The rows stay in the part written here; the summary that is returned holds counts and the local
Pareto front. A batch on which a simulator raises is split down to the point that raises. Workers
that can be killed enforce `Limits` of time and memory per point.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.columns import STATUSES
from simulators.core.contract import Shares, Simulator, WarmsUp, load_simulator
from simulators.core.errors import UserError
from simulators.core.folder import single_scan
from sweeper.query.pareto import local_front
from sweeper.space.design_space import DesignSpace, Objectives
from sweeper.space.points import Batch, Mask, split, width
from sweeper.space.sql import computed, names_in, parsed
from sweeper.store.keys import name_of
from sweeper.store.parquet import remove
from sweeper.store.store import Part, Store, answer_schema

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
PART = 200_000  # most points of a part, which is one Parquet row group
_RETURNED = ("ok", "infeasible")  # statuses that a simulator may return; engines set the others


def keep_freed_memory() -> None:
    """Set the C library to keep freed arrays for later ones, where it is glibc.

    Otherwise the system clears the pages of each array again, a fifth of the time of a fast
    simulator. The sizes are those that glibc itself would reach after freeing one block of 32 MiB.
    """
    with contextlib.suppress(AttributeError, OSError):  # only glibc has this function
        set_option = ctypes.CDLL(None).mallopt
        set_option(_MMAP_THRESHOLD, 32 << 20)
        set_option(_TRIM_THRESHOLD, 64 << 20)


@dataclass(frozen=True)
class Limits:
    """Limits of a single point.

    Args:
        timeout_s: a point that takes longer becomes a row with status `timeout`.
        memory_gb: memory that a worker may allocate beyond what it holds at its start; None is no
            limit. A point that needs more becomes a row with status `error` or `crash`.
    """

    timeout_s: float = 600.0
    memory_gb: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("timeout_s", self.timeout_s), ("memory_gb", self.memory_gb)):
            if value is not None and not 0.0 < value < 1e9:
                raise UserError(f"failures.{name}={value:g}: write a number above 0")

    def hold_memory(self) -> None:
        """Set or remove the limit on the memory that this process may allocate from now on."""
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most, pages = hard, 0
        if self.memory_gb is not None:
            with contextlib.suppress(OSError, ValueError):  # a system without /proc
                pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + int(self.memory_gb * 1e9)
        with contextlib.suppress(ValueError, OSError):  # a lower limit was set from outside
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))


UNSTATED = Limits()  # default limits


@dataclass(frozen=True)
class Task:
    """The space, store and objectives by which a worker turns point numbers into rows."""

    space: DesignSpace
    store: Store
    objectives: Objectives
    where: str | None = None
    limits: Limits = UNSTATED

    @property
    def simulator(self) -> Simulator:
        """The simulator of the space."""
        return load_simulator(self.space.simulator)

    def warm_up(self) -> None:
        """Compile the simulator's kernels, so that the cache serves every worker."""
        if isinstance(simulator := self.simulator, WarmsUp):
            simulator.warm_up()

    @property
    def warms_up(self) -> bool:
        """Whether the simulator compiles kernels."""
        return isinstance(self.simulator, WarmsUp)

    @property
    def together(self) -> int:
        """The number of consecutive points that the simulator evaluates more cheaply together."""
        simulator = self.simulator
        return self.space.stretch(simulator.shares) if isinstance(simulator, Shares) else 1

    def answer(self, where: Batch) -> Part:
        """Evaluate a batch of points and write their rows into one part."""
        started = time.perf_counter()
        kept = self.space.kept(where)
        batch = self.space.batch(where, kept)
        return self._write(where, kept, batch, evaluate(self.simulator, batch), started)

    def answer_in_parts(self, where: Batch) -> Iterator[Part]:
        """Evaluate a batch of points and write their rows into parts of at most `PART` points."""
        for piece in split(where, -(-width(where) // PART)):
            yield self.answer(piece)

    def discard(self, where: Batch) -> None:
        """Delete the parts of a batch whose worker wrote them and died before it reported them."""
        for piece in split(where, -(-width(where) // PART)):
            remove(self.store.results, name_of(self.store.definition.id, piece))

    def give_up(self, where: Batch, status: str, reason: str) -> Part:
        """Write rows without metrics, with status `timeout` or `crash`."""
        started = time.perf_counter()
        kept = self.space.kept(where)
        batch = self.space.batch(where, kept)
        results = _without_metrics(self.simulator, batch.num_rows, status, reason)
        return self._write(where, kept, batch, results, started)

    def _write(
        self,
        where: Batch,
        kept: Mask | None,
        batch: pa.RecordBatch,
        results: pa.RecordBatch,
        started: float,
    ) -> Part:
        """Write points and results into one part, and return its summary."""
        derived = {
            name: values if kept is None else values.filter(pa.array(kept))
            for name, values in self.space.derive(where).items()
        }
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= derived
        columns |= dict(zip(results.schema.names, results.columns, strict=True))
        evaluated = time.perf_counter()
        name = self.store.write(pa.table(columns), where, seconds=evaluated - started)
        written_s = time.perf_counter() - evaluated
        status, words = _codes(columns["status"])
        reasons = columns["reason"].drop_null().to_pylist()
        is_good = np.array([word == "ok" for word in words])[status]
        return Part(
            name=name,
            points=len(where),
            rows=_counted(status, words),
            reasons=Counter(text.split(":")[0] for text in reasons),
            front=local_front(self._candidates(columns, is_good), self.objectives),
            seconds=time.perf_counter() - started - written_s,
            written_s=written_s,
        )

    def _candidates(self, columns: Mapping[str, pa.Array], is_good: Mask) -> dict[str, Any]:
        """Return the objectives of the rows that may be on the front."""
        if self.where is not None:
            what = f"where '{self.where}'"
            rows = pl.DataFrame({n: columns[n] for n in names_in(self.where, what)})
            with computed(what):
                met = rows.select(parsed(self.where, what).fill_null(value=False)).to_series()
            is_good = is_good & met.to_numpy()
        found = {name: _decoded(columns[name]) for name in self.objectives}
        return found if is_good.all() else {n: values[is_good] for n, values in found.items()}


def _codes(column: pa.DictionaryArray) -> tuple[NDArray[np.int8], list[str]]:
    """Return the code of each row and the words of the codes; null has an empty word."""
    words: list[str] = [*column.dictionary.to_pylist(), ""]
    codes = column.indices.fill_null(len(words) - 1)
    return codes.to_numpy(zero_copy_only=False), words


def _counted(codes: NDArray[np.int8], words: Sequence[str]) -> dict[str, int]:
    """Return the number of rows by word; the empty word is not counted.

    >>> _counted(np.array([0, 0, 1, 2], np.int8), ["ok", "infeasible", ""])
    {'ok': 2, 'infeasible': 1}
    """
    found: Counter[str] = Counter()
    for code, word in enumerate(words):  # `bincount` would copy the codes as 64-bit numbers
        found[word] += int(np.count_nonzero(codes == code))
    return {word: count for word, count in found.items() if word and count}


def _decoded(column: pa.Array) -> Any:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.to_numpy(zero_copy_only=False)


def evaluate(simulator: Simulator, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Evaluate a batch of points. A point that raises becomes a row with status `error`."""
    if batch.num_rows == 0:
        return _without_metrics(simulator, 0, "error", "")
    try:
        with single_scan():
            return validated(simulator, batch.num_rows, simulator.evaluate(batch))
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 - one bad point costs one row, never the sweep
        if batch.num_rows == 1:
            return _without_metrics(simulator, 1, "error", f"{type(error).__name__}: {error}")
    middle = batch.num_rows // 2
    halves = [evaluate(simulator, h) for h in (batch.slice(0, middle), batch.slice(middle))]
    joined = pa.Table.from_batches(halves).combine_chunks().unify_dictionaries().to_batches()
    return joined[0]


def _without_metrics(simulator: Simulator, rows: int, status: str, reason: str) -> pa.RecordBatch:
    schema = answer_schema(simulator)
    code = pa.array(np.full(rows, STATUSES.index(status), np.int8))
    columns: dict[str, pa.Array] = {f.name: pa.nulls(rows, f.type) for f in schema}
    columns["status"] = pa.DictionaryArray.from_arrays(code, pa.array(STATUSES))
    columns["reason"] = pa.array([reason] * rows, pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def validated(simulator: Simulator, points: int, results: Any) -> pa.RecordBatch:
    """Return the results of a simulator for a number of points.

    Raises:
        UserError: rows, columns, types or statuses are not those that its metrics type declares.
    """
    wrong = next(_mistakes(simulator, points, results), None)
    if wrong is not None:
        raise UserError(
            f"the simulator '{simulator.name}' {wrong}\nNothing of this batch was stored"
        )
    batch: pa.RecordBatch = results
    return batch


def _mistakes(simulator: Simulator, points: int, results: Any) -> Iterator[str]:
    """Yield the mistakes in the results of a simulator, the coarsest first."""
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
    statuses = _counted(*_codes(results.column("status")))
    if strange := [status for status in statuses if status not in _RETURNED]:
        yield f"gave a point the status {strange[0]!r}; a point is {' or '.join(_RETURNED)}"
