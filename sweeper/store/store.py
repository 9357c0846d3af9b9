"""The store of a space's rows: which points are finished, which are missing, and all rows.

Workers write Parquet parts themselves and return their names and counts. A point is finished if and
only if its file exists, so resuming is running again. Parts of an earlier definition are kept:
their rows count where the point is still in the space and the files it reads have the same
contents. Rows that sweeps of other spaces have written are copied once.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import json
import os
import platform
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
from numpy.typing import NDArray

from simulators.core.columns import OUTCOME, schema_of
from simulators.core.contract import Simulator, load_simulator
from simulators.core.errors import UserError
from sweeper.space.design_space import DesignSpace, columns_of
from sweeper.space.points import Batch, Index, Mask, Span, covered, split, subtract, width
from sweeper.store.keys import (
    Definition,
    definition_in,
    is_part,
    name_of,
    packed,
    range_in,
    unpacked,
)
from sweeper.store.parquet import (
    DamagedPart,
    check,
    check_writable,
    explained,
    filesystem,
    metadata,
    put,
    read_frame,
    read_frames,
    remove,
    warn,
)
from sweeper.typed import typed

FAILURES = ("error", "timeout", "crash")  # statuses of points that can be tried again
_MANY = 256  # number of parts from which rows are read into memory ...
_CELLS = 32_000_000  # ... if they hold at most this number of values
_COUNTED = 1 << 20  # points per evaluation of constraints
_TOGETHER = 2 << 20  # bytes of small parts that are read at once


@dataclass(frozen=True)
class Part:
    """The summary of a part that a worker returns; the rows stay in the file."""

    name: str
    points: int  # including points that constraints remove
    rows: Mapping[str, int]  # by status
    reasons: Mapping[str, int]  # rows that are not `ok`, by the code of their reason
    front: NDArray[np.float64]  # the distinct objective vectors of the part's own front
    seconds: float  # evaluation time
    written_s: float = 0.0  # write time


class Manifest(TypedDict):
    """Points that have rows: ranges with the numbers left out, and single numbers, as `packed`."""

    spans: list[tuple[int, int, str]]
    numbers: str


@dataclass(frozen=True)
class Store:
    """The rows of one space in a folder or object store."""

    folder: str  # `outputs/<space>`, a path or a `pyarrow.fs` URL; shared storage on a cluster
    definition: Definition  # of the space now
    metadata: Mapping[str, str] = field(default_factory=dict)  # written into each part

    @property
    def results(self) -> str:
        """The folder of the parts, one per version of the simulator."""
        return f"{self.folder}/results/{self.definition.kind}"

    def write(self, table: pa.Table, where: Batch, *, seconds: float = 0.0) -> str:
        """Write one part atomically, and return its file name."""
        name = name_of(self.definition.id, where)
        meta = {
            **self.metadata,
            "definition": json.loads(self.definition.to_json()),
            "evaluated_in_s": round(seconds, 6),
            "written": int(time.time()),
            "by": f"{platform.node()} (pid {os.getpid()})",
            "without": packed(where.without) if isinstance(where, Span) else "",
        }
        put(self.results, name, table, json.dumps(meta))
        return name

    def parts(self, *, since_ns: int = 0) -> list[str]:
        """Return the sorted file names of all parts written since `since_ns`, of any definition."""
        return [info.base_name for info in self._listed() if (info.mtime_ns or 0) >= since_ns]

    def _listed(self) -> list[pafs.FileInfo]:
        fs, path = filesystem(self.results)
        try:
            infos = fs.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        except OSError as error:
            raise explained(error, self.results) from error
        found = (info for info in infos if info.is_file and is_part(info.base_name))
        return sorted(found, key=lambda info: info.base_name)

    def whole(
        self, definition: Definition, *, only: bool = False, but: Container[str] = ()
    ) -> Iterator[str]:
        """Yield the parts that may hold points of a definition.

        Args:
            definition: the definition.
            only: whether parts of other definitions are left out.
            but: names of parts to leave out.

        A damaged part is left out with a warning.
        """
        holds = {definition.id: True}
        for info in self._listed():
            name, digits = info.base_name, definition_in(info.base_name)
            try:
                if name in but or (only and digits != definition.id):
                    continue
                if digits not in holds:
                    holds[digits] = definition.may_overlap(self.definition_of(name))
                if holds[digits]:
                    check(self.results, name, info)
                    yield name
            except DamagedPart as error:
                warn(error)

    def finished(self) -> list[Span]:
        """Return the ranges that parts of this definition settle, merged and in order."""
        return merged(self.ranges().values())

    def answered(self, space: DesignSpace) -> Index:
        """Return the numbers of points answered by parts outside the finished ranges, sorted."""
        return self._answered(space, self.ranges())

    def _answered(self, space: DesignSpace, own: Mapping[str, Span]) -> Index:
        found = [index for _, index in self._elsewhere(space, own, list(space.axes))]
        return np.sort(np.concatenate([np.empty(0, np.int64), *found]))

    def missing(self, space: DesignSpace, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the points of each batch that are not answered yet."""
        own = self.ranges()
        done, answered = merged(own.values()), self._answered(space, own)
        holes = np.concatenate([np.empty(0, np.int64), *(span.without for span in done)])
        if len(holes):  # rows of parts that were deleted
            holes = holes[~np.isin(holes, answered)]
        for batch in batches:
            if isinstance(batch, Span):
                gone = np.union1d(answered, batch.without) if len(batch.without) else answered
                yield from subtract(batch, done, gone)
                lost = holes[np.searchsorted(holes, batch.lo) : np.searchsorted(holes, batch.hi)]
                if len(lost := lost[~np.isin(lost, batch.without)]):
                    yield lost
            else:
                settled = covered(batch, done) | np.isin(batch, answered)
                if not settled.all():
                    yield batch[~settled]

    def scan(self) -> pl.LazyFrame:
        """Return all rows of the space as it is defined now, one row per point."""
        space = self.definition.as_defined_now
        own = self.ranges()
        frames = []
        cells = sum(map(len, own.values())) * len(columns_of(space))
        if len(own) > _MANY and cells <= _CELLS:  # else each query would open all files
            frames.append(read_frames(self.results, list(own)).lazy())
        elif own:
            frames.append(pl.scan_parquet([f"{self.results}/{n}" for n in own], glob=False))
        for rows, index in self._elsewhere(space, own):
            frames.append(shaped(space, rows, index).lazy())
        if not frames:
            return _no_rows(space).lazy()
        return pl.concat(frames, how="diagonal_relaxed")

    def forget_failures(self) -> int:
        """Remove rows with status error, timeout or crash; return the number of removed rows.

        A part with such rows is written again without them before it is deleted, so that a run
        killed half-way neither loses nor repeats a row.
        """
        dropped = 0
        for name in list(self.whole(self.definition)):
            status = read_frame(self.results, name, ["status"])["status"].cast(pl.String)
            if not status.is_in(FAILURES).any():
                continue
            rows = read_frame(self.results, name)
            good = rows.filter(~pl.col("status").cast(pl.String).is_in(FAILURES))
            dropped += len(rows) - len(good)
            if len(good):
                theirs = self.definition_of(name)  # may be an earlier one
                index = theirs.space().index_of(good)
                Store(self.folder, theirs, self.metadata).write(good.to_arrow(), index)
            remove(self.results, name)
        return dropped

    def ranges(self) -> dict[str, Span]:
        """Return the ranges of the parts of this definition by name, in order and disjoint.

        A worker that outlives its driver may finish a range that overlaps a later part. The rows of
        such a part count one by one, as those of parts of other definitions.
        """
        own: dict[str, Span] = {}
        ranges = [
            (settled, name)
            for name in self.whole(self.definition, only=True)
            if (settled := range_in(name)) and settled[0] <= settled[1]
        ]
        end = 0
        for (lo, hi, cut), name in sorted(ranges, key=lambda r: (r[0][0], -r[0][1])):
            if lo >= end:
                own[name] = Span(lo, hi, _without(self.results, name)) if cut else Span(lo, hi)
                end = hi
        return own

    def manifest(self) -> Manifest:
        """Return the points that have rows now."""
        own, space = self.ranges(), self.definition.space()
        spans = [(span.lo, span.hi, packed(span.without)) for span in merged(own.values())]
        return {"spans": spans, "numbers": packed(self._answered(space, own))}

    def differences(self, manifest: Manifest) -> tuple[int, int]:
        """Return the number of lost rows and of rows that should not be there.

        Lost rows are those of points in the manifest or in the range of a part. A row should not be
        there if its part holds another row of its point, or does not name its point.
        """
        space = self.definition.space()
        wanted = [Span(lo, hi, unpacked(holes)) for lo, hi, holes in manifest["spans"]]
        missing = self.missing(space, [*wanted, unpacked(manifest["numbers"])])
        lost, strange = sum(count_allowed(space, batch) for batch in missing), 0
        for name, span in self.ranges().items():
            rows = read_frame(self.results, name, list(space.axes))
            kept, numbers = space.kept(span), span.index()
            numbers = numbers if kept is None else numbers[kept]
            if rows.equals(space.points(span if kept is None else numbers, rows.columns)):
                continue  # as written, which takes a tenth of the time to find out
            index = self.index_in(space, name, rows)
            is_strange = repeated(index) | ~np.isin(index, numbers)
            strange += int(is_strange.sum())
            lost += len(numbers) - int((~is_strange).sum())
        return lost, strange

    def _elsewhere(
        self, space: DesignSpace, own: Mapping[str, Span], columns: list[str] | None = None
    ) -> Iterator[tuple[pl.DataFrame, Index]]:
        """Yield rows of points outside the finished ranges, with their point numbers."""
        done, seen = merged(own.values()), np.empty(0, np.int64)
        for rows, index in self._read(space, list(self.whole(self.definition, but=own)), columns):
            kept = (index >= 0) & ~covered(index, done) & ~np.isin(index, seen) & ~repeated(index)
            if kept.any():
                yield rows.filter(kept), index[kept]
                seen = np.concatenate([seen, index[kept]])

    def _read(
        self, space: DesignSpace, names: list[str], columns: list[str] | None
    ) -> Iterator[tuple[pl.DataFrame, Index]]:
        """Yield the rows of small parts, with their point numbers; -1 for a row of no point.

        A search reads its results every round: rows are kept in memory, up to a limit.
        """
        known = _rows_read(self.results, self.definition.id, columns is None)
        if not {name for some, *_ in known for name in some} <= set(names):
            known.clear()
        yield from [(rows, index) for _, rows, index in known]
        read = {name for some, *_ in known for name in some}
        cells = sum(rows.height * rows.width for _, rows, _ in known)
        for some in self.together(name for name in names if name not in read):
            rows = read_frames(self.results, some, columns)
            index = self.index_in(space, some[0], rows)
            cells += rows.height * rows.width
            if cells <= _CELLS:
                known.append((some, rows, index))
            yield rows, index

    def together(self, names: Iterable[str]) -> Iterator[list[str]]:
        """Yield groups of parts of one definition, in order, that are read at once."""
        names = list(names)
        bytes_of = {i.base_name: i.size or 0 for i in self._listed()} if len(names) > 1 else {}
        for _, same in itertools.groupby(names, definition_in):
            yield from grouped(same, bytes_of, _TOGETHER)

    def definition_of(self, name: str) -> Definition:
        """Return the definition of a part. Raises `DamagedPart` for a damaged part."""
        if definition_in(name) == self.definition.id:
            return self.definition
        check(self.results, name)
        return _stored_definition(self.results, name)

    def index_in(self, space: DesignSpace, name: str, rows: pl.DataFrame) -> Index:
        """Return the point number in `space` of each row of a part; -1 for a row of no point."""
        theirs, ours = self.definition_of(name), self.definition
        if missing := [n for n in space.axes if n not in rows.columns]:
            raise UserError(f"{self.results}/{name} lacks the columns {', '.join(missing)}")
        if theirs.id == ours.id:
            return space.index_among(rows)
        trusted = []
        for factor, table in zip(space.factors, space.factor_tables, strict=True):
            same = np.ones(len(factor), bool)
            for column, values in factor.columns.items():
                alike = {v: theirs.digest(column, v) == ours.digest(column, v) for v in set(values)}
                same &= np.array([alike[v] for v in values], bool)
            trusted.append(table if same.all() else table.filter(pl.Series(same)))
        index = space.index_of(rows, trusted)
        if (index >= 0).any() and space.constraints:
            kept = space.kept(np.maximum(index, 0))
            if kept is not None:
                index[~kept] = -1
        return index


def grouped(names: Iterable[str], sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    """Yield names in order, in groups with a total size of at most `limit`."""
    held: list[str] = []
    total = 0
    for name in names:
        if held and total + sizes.get(name, 0) > limit:
            yield held
            held, total = [], 0
        held.append(name)
        total += sizes.get(name, 0)
    if held:
        yield held


def merged(own: Iterable[Span]) -> list[Span]:
    """Return spans, which are in order, with adjacent spans joined."""
    spans = list(own)
    starts = [i for i, s in enumerate(spans) if i == 0 or s.lo != spans[i - 1].hi]
    runs = [spans[a:b] for a, b in itertools.pairwise([*starts, len(spans)])]
    return [Span(r[0].lo, r[-1].hi, np.concatenate([s.without for s in r])) for r in runs]


def count_allowed(space: DesignSpace, batch: Batch) -> int:
    """Return the number of points in a batch that meet the constraints, computed in pieces."""
    pieces = split(batch, -(-width(batch) // _COUNTED)) if space.constraints and len(batch) else ()
    return sum(map(space.count, pieces)) if space.constraints else len(batch)


def repeated(index: Index) -> Mask:
    """Return a mask of the numbers that have occurred before.

    >>> repeated(np.array([3, 1, 3])).tolist()
    [False, False, True]
    """
    again = np.ones(len(index), bool)
    again[np.unique(index, return_index=True)[1]] = False
    return again


@functools.lru_cache(maxsize=4)
def _rows_read(
    _results: str, _definition: str, _is_whole: bool
) -> list[tuple[list[str], pl.DataFrame, Index]]:
    """Return what is kept in memory of a folder: parts, their rows and their point numbers."""
    return []


@functools.lru_cache(maxsize=4096)
def _stored_definition(results: str, name: str) -> Definition:
    try:
        return typed(metadata(results, name)["definition"], Definition)
    except (ValueError, KeyError) as error:
        raise DamagedPart(f"{results}/{name} names no definition ({error}); delete it") from error


@functools.lru_cache(maxsize=65536)
def _without(results: str, name: str) -> Index:
    return unpacked(metadata(results, name)["without"])


def shaped(space: DesignSpace, rows: pl.DataFrame, index: Index) -> pl.DataFrame:
    """Return rows of another definition with the columns of this space."""
    ours = set(columns_of(space))
    known = [c for c in rows.columns if c in ours]
    derived = {n: pl.Series(n, v) for n, v in space.derive(index).items()}
    return rows.select(known).with_columns(**derived)


def answer_schema(simulator: Simulator) -> pa.Schema:
    """Return the columns that a simulator adds to a point: its metrics, then the outcome."""
    metrics = (f for f in schema_of(simulator.metrics) if f.name not in OUTCOME.names)
    return pa.schema([*metrics, *OUTCOME])


def _no_rows(space: DesignSpace) -> pl.DataFrame:
    nothing = np.empty(0, np.int64)
    schema = answer_schema(load_simulator(space.simulator))
    frame = pl.DataFrame(pl.from_arrow(schema.empty_table()))
    return space.points(nothing).with_columns(
        *(pl.Series(n, v) for n, v in space.derive(nothing).items()),
        *frame.with_columns(pl.col("status").cast(pl.String)).get_columns(),
    )


def adopt(store: Store, space: DesignSpace) -> Iterator[tuple[int, str]]:
    """Copy rows of this space from stores of other spaces; yield the number of rows by folder.

    Failed points are not copied.
    """
    taken: dict[str, int] = {}
    for other, names, index in _found(store, space):
        rows, known = read_frames(other.results, names).filter(index >= 0), index[index >= 0]
        store.write(shaped(space, rows, known).to_arrow(), known)
        taken[other.folder] = taken.get(other.folder, 0) + len(known)
    yield from ((count, folder) for folder, count in taken.items())


def answered_elsewhere(store: Store, space: DesignSpace) -> int:
    """Return the number of points that `adopt` would copy."""
    return sum(int((index >= 0).sum()) for *_, index in _found(store, space))


def stores_beside(store: Store) -> list[Store]:
    """Return the stores of other spaces in the same root with rows of the same simulator."""
    fs, path = filesystem(store.folder)
    root = path.rsplit("/", 1)[0] if "/" in path else "."
    base = store.folder.rsplit("/", 1)[0] if "/" in store.folder else "."
    infos = fs.get_file_info(pafs.FileSelector(root, allow_not_found=True))
    own = path.rsplit("/", 1)[-1]
    names = sorted(i.base_name for i in infos if i.type == pafs.FileType.Directory)
    names = [name for name in names if name != own]
    there = fs.get_file_info([f"{root}/{name}/results/{store.definition.kind}" for name in names])
    return [
        Store(f"{base}/{name}", store.definition)
        for name, folder in zip(names, there, strict=True)
        if folder.type
    ]


def _found(store: Store, space: DesignSpace) -> Iterator[tuple[Store, list[str], Index]]:
    """Yield parts of other stores with rows of this space, and the point number of each row."""
    done = answered = None
    columns = [*space.axes, "status"]
    for other in stores_beside(store):
        for names in other.together(other.whole(store.definition)):
            if done is None or answered is None:
                done, answered = store.finished(), store.answered(space)
            rows = read_frames(other.results, names, columns)
            index = other.index_in(space, names[0], rows)
            failed = rows["status"].cast(pl.String).is_in(FAILURES).to_numpy()
            index[failed | covered(index, done) | np.isin(index, answered)] = -1
            index[repeated(index)] = -1
            if (index >= 0).any():
                answered = np.concatenate([answered, index])
                yield other, names, index


@contextlib.contextmanager
def alone(store: Store) -> Iterator[None]:
    """Hold the lock of a definition of a space.

    Processes of several machines, or with an object store, are not excluded: at worst they evaluate
    points twice, and equal rows count once.

    Raises:
        UserError: another process holds the lock, or the folder may not be written.
    """
    check_writable(store.folder)
    if "://" in store.folder:
        yield
        return
    file = _file(store)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW  # a link might lead to anything
        lock = os.fdopen(os.open(file, flags, 0o666), "w")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; delete it if it is no lock of yours") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"this sweep is already running into {store.folder}; wait for it, or stop it"
            ) from error
        yield


def is_held(store: Store) -> bool:
    """Return whether a process of this machine holds the lock; always true for a URL."""
    if "://" in store.folder:
        return True
    try:
        lock = os.fdopen(os.open(_file(store), os.O_RDONLY | os.O_NOFOLLOW))
    except OSError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def _file(store: Store) -> Path:
    return Path(store.folder) / f".{store.definition.id}.lock"
