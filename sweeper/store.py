"""A result is done if and only if its file exists: parts are written whole or not at all.

Whoever evaluates writes the Parquet part itself (temporary name, fsync, rename); what travels back
is its name and counts. A part's name says which definition of the space its point numbers belong to
and which range it finishes, so the directory is the manifest and resuming is running again.

Parts of an earlier definition of the space stay where they are. Their rows count wherever the point
is still in the space and reads the same file contents.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from numpy.typing import NDArray

from simulators.core.contract import OUTCOME, load_simulator, schema_of
from simulators.core.errors import UserError
from sweeper.keys import Definition
from sweeper.space import DesignSpace, Index, Span

Batch = Span | Index
"""What is dispatched: a range of point numbers, or the numbers themselves."""

_NAME = re.compile(r"^(?P<definition>[0-9a-f]{12})-(?:(?P<lo>\d+)-(?P<hi>\d+)|x[0-9a-f]+)\.parquet$")
_META = b"sweeper"
FAILURES = ("error", "timeout", "crash")
"""What can be tried again; an infeasible point is an answer."""


@dataclass(frozen=True)
class Part:
    """What travels back from whoever evaluated: the rows themselves stay in the file.

    `points` counts what the part settles, with the points that constraints removed; `rows` counts
    its rows by status and `reasons` those that are not `ok` by reason. `front` holds the distinct
    objective vectors of the part's own front, `ties` how many rows reach each. `laps` are the
    CPU-seconds of each step of the work.
    """

    name: str
    points: int
    rows: Mapping[str, int]
    reasons: Mapping[str, int]
    front: NDArray[np.float64]
    ties: NDArray[np.int64]
    seconds: float
    worker: str = "driver"
    laps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Store:
    """Where the answers to one space are kept.

    Args:
        folder: `outputs/<space>`, a path or a `pyarrow.fs` URL; shared storage on a cluster.
        definition: what the space's point numbers mean now.
    """

    folder: str
    definition: Definition
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def results(self) -> str:
        """The folder of the parts; one per version of the simulator."""
        return f"{self.folder}/results/{self.definition.simulator}-v{self.definition.version}"

    def write(self, table: pa.Table, where: Batch, *, seconds: float = 0.0) -> str:
        """Write one part and rename it into place, so that it is whole or absent.

        Returns:
            The part's file name.

        Raises:
            UserError: the disk is full, or the folder may not be written.
        """
        if isinstance(where, Span):
            name = f"{self.definition.id}-{where.lo:012d}-{where.hi:012d}.parquet"
        else:
            digest = hashlib.blake2b(np.ascontiguousarray(where).tobytes(), digest_size=8)
            name = f"{self.definition.id}-x{digest.hexdigest()}.parquet"
        meta = {
            **self.metadata,
            "definition": json.loads(self.definition.to_json()),
            "evaluated_in_s": round(seconds, 6),
            "written": int(time.time()),
        }
        self._put(name, table, json.dumps(meta))
        return name

    def parts(self) -> list[str]:
        """Return the file names of all parts, of every definition, sorted."""
        fs, path = _filesystem(self.results)
        try:
            infos = fs.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        except OSError as error:
            raise _explained(error, self.results) from error
        return sorted(i.base_name for i in infos if i.is_file and _NAME.match(i.base_name))

    def finished(self) -> list[Span]:
        """Return the ranges that are done under this definition, merged and in order."""
        spans: list[Span] = []
        for name in self._own():
            match = _NAME.match(name)
            assert match
            lo, hi = int(match["lo"]), int(match["hi"])
            if spans and lo <= spans[-1].hi:
                spans[-1] = Span(spans[-1].lo, max(hi, spans[-1].hi))
            else:
                spans.append(Span(lo, hi))
        return spans

    def answered(self, space: DesignSpace) -> Index:
        """Return the numbers of the points that parts outside the finished ranges answer, sorted."""
        found = [np.empty(0, np.int64)]
        for name in self._foreign():
            columns = [n for f in space.factors for n in f.columns]
            index = self._index_in(space, name, self._read(name, columns))
            found.append(index[index >= 0])
        return np.unique(np.concatenate(found))

    def missing(self, space: DesignSpace, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield what of each batch is not answered yet."""
        done = self.finished()
        answered = self.answered(space)
        for batch in batches:
            if isinstance(batch, Span):
                yield from _subtract(batch, done, answered)
            else:
                inside = np.isin(batch, answered)
                for span in done:
                    inside |= (batch >= span.lo) & (batch < span.hi)
                if not inside.all():
                    yield batch[~inside]

    def scan(self) -> pl.LazyFrame:
        """Return all answers to the space as it is defined now, one row per point."""
        space = self.definition.space()
        own = self._own()
        frames = [pl.scan_parquet([self._url(n) for n in own])] if own else []
        for name in self._foreign():
            rows = pl.DataFrame(pl.from_arrow(self._read(name)))
            index = self._index_in(space, name, rows)
            if (index >= 0).any():
                rows, index = rows.filter(index >= 0), index[index >= 0]
                known = [c for c in rows.columns if c in _columns_of(space)]
                derived = {n: pl.Series(n, v) for n, v in space.derive(index).items()}
                frames.append(rows.select(known).with_columns(**derived).lazy())
        if not frames:
            return pl.LazyFrame(schema={n: pl.Null for n in _columns_of(space)})
        return pl.concat(frames, how="diagonal_relaxed")

    def adopt(self, space: DesignSpace, other: Store) -> int:
        """Copy from another space's store the rows that answer points of this one.

        Returns:
            How many rows were copied; they become ordinary parts of this store.
        """
        taken = 0
        for name in other.parts():
            theirs = other._definition(name)
            if not _may_overlap(self.definition, theirs):
                continue
            rows = pl.DataFrame(pl.from_arrow(other._read(name)))
            index = other._index_in(space, name, rows, self.definition)
            index[np.isin(index, self.answered(space))] = -1
            for span in self.finished():
                index[(index >= span.lo) & (index < span.hi)] = -1
            if (index >= 0).any():
                known = [c for c in rows.columns if c in _columns_of(space)]
                rows, index = rows.filter(index >= 0).select(known), index[index >= 0]
                derived = {n: pl.Series(n, v) for n, v in space.derive(index).items()}
                self.write(rows.with_columns(**derived).to_arrow(), index)
                taken += len(index)
        return taken

    def forget_failures(self) -> int:
        """Take the rows that ended as error, timeout or crash out of the parts of this definition.

        Each part with such rows is first hidden, then written again without them, so that a run
        killed half-way neither loses nor repeats a row: the next call finishes the hidden ones.

        Returns:
            How many rows were taken out; their points are missing again.
        """
        if "://" in self.folder:
            raise UserError("failures.retry=true needs results in a local folder")
        folder, space, dropped = Path(self.results), self.definition.space(), 0
        for name in self.parts():
            if self._definition(name).id == self.definition.id:
                status = self._read(name, ["status"])["status"].cast(pa.string())
                if pc.any(pc.is_in(status, pa.array(FAILURES))).as_py():
                    (folder / name).rename(folder / f".retry-{name}")
        for hidden in sorted(folder.glob(".retry-*.parquet")):
            rows = pl.DataFrame(pl.from_arrow(pq.read_table(hidden, partitioning=None)))
            good = rows.filter(~pl.col("status").cast(pl.String).is_in(FAILURES))
            dropped += len(rows) - len(good)
            if len(good):
                self.write(good.to_arrow(), space.index_of(good))
            hidden.unlink()
        return dropped

    def _own(self) -> list[str]:
        spans = re.compile(rf"^{self.definition.id}-\d")
        return [name for name in self.parts() if spans.match(name)]

    def _foreign(self) -> list[str]:
        own = set(self._own())
        return [
            name
            for name in self.parts()
            if name not in own and _may_overlap(self.definition, self._definition(name))
        ]

    def _definition(self, name: str) -> Definition:
        match = _NAME.match(name)
        assert match
        key = (self.results, match["definition"])
        if key not in _DEFINITIONS:
            _DEFINITIONS[key] = _stored_definition(self.results, name)
        return _DEFINITIONS[key]

    def _index_in(
        self, space: DesignSpace, name: str, rows: pl.DataFrame | pa.Table, wanted: Definition | None = None
    ) -> Index:
        """Return the number in `space` of each row of a part, -1 where it does not answer."""
        frame = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(pl.from_arrow(rows))
        theirs, ours = self._definition(name), wanted or self.definition
        trusted = []
        for position, factor in enumerate(space.factors):
            table = space.factor_table(position)
            for column in factor.columns:
                same = {
                    v for v in set(factor.columns[column])
                    if theirs.digest(column, v) == ours.digest(column, v)
                }  # fmt: skip
                table = table.filter(
                    pl.Series([v in same for v in factor.columns[column]])[table["code"].to_numpy()]
                )
            trusted.append(table)
        if missing := [n for f in space.factors for n in f.columns if n not in frame.columns]:
            raise UserError(f"{self.results}/{name} lacks the columns {', '.join(missing)}")
        index = space.index_of(frame, trusted)
        if (index >= 0).any() and space.constraints:
            kept = space.kept(np.maximum(index, 0))
            if kept is not None:
                index[~kept] = -1
        return index

    def _read(self, name: str, columns: list[str] | None = None) -> pa.Table:
        fs, path = _filesystem(self.results)
        try:
            return pq.read_table(f"{path}/{name}", columns=columns, filesystem=fs, partitioning=None)
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{self.results}/{name} cannot be read: {error}") from error

    def _url(self, name: str) -> str:
        return f"{self.results}/{name}"

    def _put(self, name: str, table: pa.Table, meta: str) -> None:
        fs, path = _filesystem(self.results)
        try:
            fs.create_dir(path, recursive=True)
            if not isinstance(fs, pafs.LocalFileSystem):
                with fs.open_output_stream(f"{path}/{name}") as sink:  # one PUT: atomic
                    _write_parquet(table, sink, meta)
                return
            temporary = Path(path) / f".{name}.{os.getpid()}.tmp"
            try:
                with temporary.open("wb") as stream:
                    _write_parquet(table, stream, meta)
                    stream.flush()
                    os.fsync(stream.fileno())
                temporary.rename(Path(path) / name)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise _explained(error, self.results) from error


def _write_parquet(table: pa.Table, sink: Any, meta: str) -> None:
    """Write one row group of plain types: dictionaries are an encoding, not a type, to readers."""
    with pq.ParquetWriter(
        sink, table.schema, compression="zstd", compression_level=1, write_statistics=False,
        store_schema=False,
    ) as writer:  # fmt: skip
        writer.write_table(table, row_group_size=max(len(table), 1))
        writer.add_key_value_metadata({_META.decode(): meta})


def check_writable(folder: str) -> None:
    """Find out before the work starts whether results can be kept.

    Raises:
        UserError: the folder cannot be made or written.
    """
    fs, path = _filesystem(folder)
    try:
        fs.create_dir(path, recursive=True)
        if isinstance(fs, pafs.LocalFileSystem):
            probe = Path(path) / f".probe.{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
            for leftover in Path(path).rglob(".*.tmp"):
                if not _alive(leftover):
                    leftover.unlink(missing_ok=True)
    except OSError as error:
        raise _explained(error, folder) from error


def stores_beside(store: Store) -> list[Store]:
    """Return the stores of the other spaces in the same root that the same simulator answered."""
    fs, path = _filesystem(store.folder)
    root = path.rsplit("/", 1)[0] if "/" in path else "."
    base = store.folder.rsplit("/", 1)[0] if "/" in store.folder else "."
    kind = f"{store.definition.simulator}-v{store.definition.version}"
    infos = fs.get_file_info(pafs.FileSelector(root, allow_not_found=True))
    names = sorted(i.base_name for i in infos if i.type == pafs.FileType.Directory)
    beside = [Store(f"{base}/{n}", store.definition) for n in names if n != path.rsplit("/", 1)[-1]]
    return [s for s in beside if fs.get_file_info(f"{root}/{s.folder.rsplit('/', 1)[-1]}/results/{kind}").type]


_DEFINITIONS: dict[tuple[str, str], Definition] = {}
"""Definitions already read from parts: a definition's number is a hash of its content."""


def _stored_definition(results: str, name: str) -> Definition:
    fs, path = _filesystem(results)
    try:
        with fs.open_input_file(f"{path}/{name}") as stream:
            metadata = pq.read_metadata(stream).metadata
        return Definition.from_json(json.dumps(json.loads(metadata[_META])["definition"]))
    except (OSError, pa.ArrowInvalid, KeyError, TypeError) as error:
        raise UserError(
            f"{results}/{name} is not a part of a sweep ({error}); move it out of the folder"
        ) from error


def _columns_of(space: DesignSpace) -> list[str]:
    metrics = schema_of(load_simulator(space.simulator).metrics).names
    return [*space.axes, *space.derived, *dict.fromkeys([*metrics, *OUTCOME.names])]


def _may_overlap(ours: Definition, theirs: Definition) -> bool:
    """Whether some point could be in both definitions and read the same contents in both."""
    if (ours.simulator, ours.version) != (theirs.simulator, theirs.version):
        return False
    if ours.shared() != theirs.shared():
        return False
    their_values = {n: set(v) for f in theirs.factors for n, v in f.items()}
    return all(
        any(v in their_values.get(n, ()) and ours.digest(n, v) == theirs.digest(n, v) for v in values)
        for f in ours.factors
        for n, values in f.items()
    )


def _subtract(batch: Span, done: list[Span], answered: Index) -> Iterator[Span]:
    lo = batch.lo
    for span in [*done, Span(batch.hi, batch.hi)]:
        hi = min(max(span.lo, lo), batch.hi)
        if hi > lo:
            gone = answered[np.searchsorted(answered, lo) : np.searchsorted(answered, hi)]
            if len(gone) < hi - lo:
                yield Span(lo, hi, gone)
        lo = max(lo, min(span.hi, batch.hi))


def _filesystem(folder: str) -> tuple[pafs.FileSystem, str]:
    if "://" in folder:
        fs, path = pafs.FileSystem.from_uri(folder)
        return fs, path
    return pafs.LocalFileSystem(), folder


def _explained(error: OSError, folder: str) -> UserError:
    if error.errno == errno.ENOSPC or "No space left" in str(error):
        return UserError(
            f"the disk under {folder} is full. Everything written so far is kept: make room, or "
            "set outputs=/another/folder, and run the same command again to go on"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(
            f"{folder} may not be written ({os.strerror(error.errno)}); choose another folder with "
            "outputs=/another/folder"
        )
    return UserError(f"{folder}: {error}")


def _alive(temporary: Path) -> bool:
    """Whether the process that writes a temporary file is still there."""
    pid = temporary.name.rsplit(".", 2)[-2]
    return pid.isdigit() and Path(f"/proc/{pid}").exists()
