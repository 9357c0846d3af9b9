"""A result is done if and only if its file exists: parts are written whole or not at all.

Whoever evaluates writes the Parquet part itself (temporary name, fsync, rename); what travels back
is its name and counts. A part's name says which definition of the space its point numbers belong to
and which range it finishes, so the directory is the manifest and resuming is running again.

Parts of an earlier definition of the space stay where they are. Their rows count wherever the point
is still in the space and reads the same file contents.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from numpy.typing import NDArray

from simulators.core.columns import OUTCOME, schema_of
from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from sweeper.files import check_whole, explained, filesystem, metadata, put, read
from sweeper.keys import Definition
from sweeper.space import DesignSpace, Index, Span

Batch = Span | Index
"""What is dispatched: a range of point numbers, or the numbers themselves."""

_NAME = re.compile(
    r"^(?P<definition>[0-9a-f]{12})-"
    r"(?:(?P<lo>\d+)-(?P<hi>\d+)(?P<without>-w[0-9a-f]+)?|x[0-9a-f]+)\.parquet$"
)
_WRITING_S = 60.0
"""Age from which a temporary file is not being written by another machine."""
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
            mark = f"-w{_digest(where.without)}" if len(where.without) else ""
            name = f"{self.definition.id}-{where.lo:012d}-{where.hi:012d}{mark}.parquet"
        else:
            name = f"{self.definition.id}-x{_digest(where)}.parquet"
        meta = {
            **self.metadata,
            "definition": json.loads(self.definition.to_json()),
            "evaluated_in_s": round(seconds, 6),
            "written": int(time.time()),
            "without": _packed(where.without) if isinstance(where, Span) else "",
        }
        put(self.results, name, table, json.dumps(meta))
        return name

    def parts(self) -> list[str]:
        """Return the file names of all parts, of every definition, sorted."""
        fs, path = filesystem(self.results)
        try:
            infos = fs.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        except OSError as error:
            raise explained(error, self.results) from error
        return sorted(i.base_name for i in infos if i.is_file and _NAME.match(i.base_name))

    def finished(self) -> list[Span]:
        """Return what parts of this definition settle by range, merged and in order."""
        spans: list[Span] = []
        for span in self._own().values():
            if spans and span.lo == spans[-1].hi:
                last = spans.pop()
                without = np.concatenate([last.without, span.without])
                spans.append(Span(last.lo, span.hi, without))
            else:
                spans.append(span)
        return spans

    def answered(self, space: DesignSpace) -> Index:
        """Return the numbers of points answered by parts outside the finished ranges, sorted."""
        columns = [n for f in space.factors for n in f.columns]
        found = [index for _, index in self._elsewhere(space, columns)]
        return np.sort(np.concatenate([np.empty(0, np.int64), *found]))

    def missing(self, space: DesignSpace, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield what of each batch is not answered yet."""
        done = self.finished()
        answered = self.answered(space)
        holes = np.concatenate([np.empty(0, np.int64), *(span.without for span in done)])
        if len(holes):  # what a range left to a part that is gone
            holes = holes[~np.isin(holes, answered)]
        for batch in batches:
            if isinstance(batch, Span):
                gone = np.union1d(answered, batch.without) if len(batch.without) else answered
                yield from _subtract(batch, done, gone)
                lost = holes[np.searchsorted(holes, batch.lo) : np.searchsorted(holes, batch.hi)]
                if len(lost := lost[~np.isin(lost, batch.without)]):
                    yield lost
            else:
                settled = covered(batch, done) | np.isin(batch, answered)
                if not settled.all():
                    yield batch[~settled]

    def scan(self) -> pl.LazyFrame:
        """Return all answers to the space as it is defined now, one row per point.

        Raises:
            UserError: a part is not whole; says which.
        """
        space = self.definition.space()
        own = list(self._own())
        for name in own:
            check_whole(self.results, name)
        frames = [pl.scan_parquet([self._url(n) for n in own], glob=False)] if own else []
        for rows, index in self._elsewhere(space):
            frames.append(shaped(space, rows, index).lazy())
        if not frames:
            return _no_rows(space).lazy()
        return pl.concat(frames, how="diagonal_relaxed")

    def forget_failures(self) -> int:
        """Take the rows that ended as error, timeout or crash out of the parts of this definition.

        Each part with such rows is first hidden, then written again without them, so that a run
        killed half-way neither loses nor repeats a row: the next call finishes the hidden ones.

        Returns:
            How many rows were taken out; their points are missing again.
        """
        if "://" in self.folder:
            raise UserError("failures.retry=true needs results in a local folder")
        folder, dropped = Path(self.results), 0
        for name in self.parts():
            if may_overlap(self.definition, self.definition_of(name)):
                status = read(self.results, name, ["status"])["status"].cast(pa.string())
                if pc.any(pc.is_in(status, pa.array(FAILURES))).as_py():
                    (folder / name).rename(folder / f".retry-{name}")
        for hidden in sorted(folder.glob(".retry-*.parquet")):
            rows = pl.DataFrame(pl.from_arrow(read(self.results, hidden.name)))
            good = rows.filter(~pl.col("status").cast(pl.String).is_in(FAILURES))
            dropped += len(rows) - len(good)
            if len(good):
                theirs = _stored_definition(self.results, hidden.name)  # may be an earlier one
                index = theirs.space().index_of(good)
                Store(self.folder, theirs, self.metadata).write(good.to_arrow(), index)
            hidden.unlink()
        return dropped

    def _own(self) -> dict[str, Span]:
        """Return the parts that settle ranges of this definition, in order, none overlapping.

        A worker that outlives its driver may finish a range that the next run cuts otherwise. Such
        a part is not counted here, but row by row like parts of other definitions.
        """
        ranges = []
        for name in self.parts():
            match = _NAME.match(name)
            assert match
            if match["definition"] == self.definition.id and match["lo"]:
                ranges.append((int(match["lo"]), int(match["hi"]), name, match["without"]))
        own: dict[str, Span] = {}
        end = 0
        for lo, hi, name, marked in sorted(ranges, key=lambda r: (r[0], -r[1])):
            if lo >= end:
                own[name] = Span(lo, hi, _without(self.results, name)) if marked else Span(lo, hi)
                end = hi
        return own

    def _elsewhere(
        self, space: DesignSpace, columns: list[str] | None = None
    ) -> Iterator[tuple[pl.DataFrame, Index]]:
        """Yield the rows, with their numbers, that answer points outside the finished ranges."""
        own, done = self._own(), self.finished()
        seen = np.empty(0, np.int64)
        for name in self.parts():
            if name in own or not may_overlap(self.definition, self.definition_of(name)):
                continue
            rows = pl.DataFrame(pl.from_arrow(read(self.results, name, columns)))
            index = self.index_in(space, name, rows)
            index[covered(index, done) | np.isin(index, seen)] = -1
            if (index >= 0).any():
                yield rows.filter(index >= 0), index[index >= 0]
                seen = np.concatenate([seen, index[index >= 0]])

    def definition_of(self, name: str) -> Definition:
        """Return the definition a part was written under."""
        match = _NAME.match(name)
        assert match
        key = (self.results, match["definition"])
        if key not in _DEFINITIONS:
            _DEFINITIONS[key] = _stored_definition(self.results, name)
        return _DEFINITIONS[key]

    def index_in(
        self,
        space: DesignSpace,
        name: str,
        rows: pl.DataFrame | pa.Table,
        wanted: Definition | None = None,
    ) -> Index:
        """Return the number in `space` of each row of a part, -1 where it does not answer."""
        frame = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(pl.from_arrow(rows))
        theirs, ours = self.definition_of(name), wanted or self.definition
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

    def _url(self, name: str) -> str:
        return f"{self.results}/{name}"


def check_writable(folder: str) -> None:
    """Find out before the work starts whether results can be kept.

    Raises:
        UserError: the folder cannot be made or written.
    """
    fs, path = filesystem(folder)
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
        raise explained(error, folder) from error


_DEFINITIONS: dict[tuple[str, str], Definition] = {}
"""Definitions already read from parts: a definition's number is a hash of its content."""


def _stored_definition(results: str, name: str) -> Definition:
    return Definition.from_json(json.dumps(metadata(results, name)["definition"]))


@functools.lru_cache(maxsize=65536)
def _without(results: str, name: str) -> Index:
    """Return the numbers that a part leaves out of its range; its name holds their digest."""
    packed = zlib.decompress(base64.b64decode(metadata(results, name)["without"]))
    return np.cumsum(np.frombuffer(packed, np.int64))


def _packed(numbers: Index) -> str:
    """Return sorted numbers as text; steps rather than numbers, since many are alike."""
    steps = np.diff(numbers, prepend=0).astype(np.int64)
    return base64.b64encode(zlib.compress(steps.tobytes())).decode() if len(numbers) else ""


def _digest(numbers: Index) -> str:
    return hashlib.blake2b(np.ascontiguousarray(numbers).tobytes(), digest_size=8).hexdigest()


def shaped(space: DesignSpace, rows: pl.DataFrame, index: Index) -> pl.DataFrame:
    """Return rows of another definition with the columns of this space."""
    ours = set(_columns_of(space))
    known = [c for c in rows.columns if c in ours]
    derived = {n: pl.Series(n, v) for n, v in space.derive(index).items()}
    return rows.select(known).with_columns(**derived)


def _no_rows(space: DesignSpace) -> pl.DataFrame:
    """Return the columns of answers to a space that has none yet."""
    nothing = np.empty(0, np.int64)
    metrics = schema_of(load_simulator(space.simulator).metrics)
    outcome = [*(f for f in metrics if f.name not in OUTCOME.names), *OUTCOME]
    frame = pl.DataFrame(pl.from_arrow(pa.schema(outcome).empty_table()))
    return space.points(nothing).with_columns(
        *(pl.Series(n, v) for n, v in space.derive(nothing).items()),
        *frame.with_columns(pl.col("status").cast(pl.String)).get_columns(),
    )


def covered(index: Index, done: list[Span]) -> NDArray[np.bool_]:
    """Return which numbers one of the spans settles (they are in order and apart)."""
    if not done:
        return np.zeros(len(index), bool)
    starts = np.array([span.lo for span in done])
    home = np.searchsorted(starts, index, side="right") - 1
    inside = (home >= 0) & (index < np.array([span.hi for span in done])[home])
    holes = np.concatenate([span.without for span in done])
    return inside & ~np.isin(index, holes) if len(holes) else inside


def _columns_of(space: DesignSpace) -> list[str]:
    metrics = schema_of(load_simulator(space.simulator).metrics).names
    return [*space.axes, *space.derived, *dict.fromkeys([*metrics, *OUTCOME.names])]


def may_overlap(ours: Definition, theirs: Definition) -> bool:
    """Whether some point could be in both definitions and read the same contents in both."""
    if ours is theirs or ours.id == theirs.id:
        return True
    if (ours.simulator, ours.version) != (theirs.simulator, theirs.version):
        return False
    if ours.shared() != theirs.shared():
        return False
    their_values = {n: set(v) for f in theirs.factors for n, v in f.items()}
    return all(
        any(
            v in their_values.get(n, ()) and ours.digest(n, v) == theirs.digest(n, v)
            for v in values
        )
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


def _alive(temporary: Path) -> bool:
    """Whether the process that writes a temporary file is still there."""
    pid = temporary.name.rsplit(".", 2)[-2]
    try:
        if time.time() - temporary.stat().st_mtime < _WRITING_S:
            return True  # perhaps on another machine
        os.kill(int(pid), 0)
    except PermissionError:
        return True  # somebody else's
    except (OSError, ValueError):
        return False
    return True
