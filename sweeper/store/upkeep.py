"""Compaction of many small parts into few, and merging of folders of results.

A part is written before the parts it replaces are deleted, and the wider of two overlapping parts
counts: a process killed at any moment loses and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.fs as pafs

from simulators.core.errors import UserError
from sweeper.space.points import Index, Span, covered
from sweeper.store.keys import definition_in, is_part
from sweeper.store.parquet import DamagedPart, check, filesystem, metadata, read_frames, remove
from sweeper.store.store import Store, grouped, merged, repeated

ROWS = 200_000  # largest number of points of a part: a good size of a Parquet row group


@dataclass(frozen=True)
class Kept:
    """The outcome of an upkeep."""

    parts: int = 0  # before
    left: int = 0  # after
    damaged: tuple[str, ...] = ()  # deleted: their points are evaluated again

    def __add__(self, other: Kept) -> Kept:
        return Kept(self.parts + other.parts, self.left + other.left, self.damaged + other.damaged)


def definitions(store: Store) -> list[Store]:
    """Return the stores of all definitions that have whole parts in a folder of results."""
    held: dict[str, Store] = {}
    for name in store.parts():
        if definition_in(name) not in held:
            try:
                check(store.results, name)
                held[definition_in(name)] = replace(store, definition=store.definition_of(name))
            except DamagedPart:
                continue
    return list(held.values())


def compact(store: Store) -> Kept:
    """Merge the parts of one definition, and delete damaged parts."""
    names = [n for n in store.parts() if definition_in(n) == store.definition.id]
    damaged = tuple(n for n in names if _is_damaged(store, n))
    for name in damaged:
        remove(store.results, name)
    whole = [n for n in names if n not in damaged]
    if not whole:
        return Kept(len(names), 0, damaged)
    written = metadata(store.results, whole[0])
    kept: dict[str, str] = {n: written[n] for n in ("space", "objectives") if n in written}
    store = replace(store, metadata=kept)
    own = store.ranges()
    for run in _runs(own):
        merge = [name for name, _ in run]
        rows = read_frames(store.results, merge)
        store.write(rows.to_arrow(), merged(span for _, span in run)[0])
        for name in merge:
            remove(store.results, name)
    _gather(store, [n for n in whole if n not in own])
    left = [n for n in store.parts() if definition_in(n) == store.definition.id]
    return Kept(len(names), len(left), damaged)


def quarantine_corrupt(store: Store) -> Kept:
    """Delete the parts of definitions of which every part is damaged."""
    readable = {known.definition.id for known in definitions(store)}
    names = tuple(name for name in store.parts() if definition_in(name) not in readable)
    for name in names:
        remove(store.results, name)
    return Kept(len(names), 0, names)


def copy(source: str, target: str, name: str) -> tuple[int, int]:
    """Copy the parts of a space from one folder or URL to another, unless they exist there.

    Returns the numbers of copied and of existing parts. Parts of the same name hold equal rows.

    Raises:
        UserError: the folders are the same, or a part in the source is damaged.
    """
    fs, path = filesystem(f"{source}/{name}/results")
    there_fs, there = filesystem(f"{target}/{name}/results")
    if fs == there_fs and path.rstrip("/") == there.rstrip("/"):
        raise UserError(f"{source} cannot be merged into itself")
    copied = known = 0
    selector = pafs.FileSelector(path, recursive=True, allow_not_found=True)
    for info in fs.get_file_info(selector):
        if not info.is_file or not is_part(info.base_name):
            continue
        kind = info.path.removeprefix(path).strip("/").rpartition("/")[0]
        check(f"{source}/{name}/results/{kind}", info.base_name, info)
        if there_fs.get_file_info(f"{there}/{kind}/{info.base_name}").is_file:
            known += 1
            continue
        _copy(fs, info.path, there_fs, f"{there}/{kind}", info.base_name)
        copied += 1
    return copied, known


def _copy(fs: pafs.FileSystem, path: str, there: pafs.FileSystem, folder: str, name: str) -> None:
    """Copy a file; on a disk to a temporary name first."""
    local = isinstance(there, pafs.LocalFileSystem)
    if local:
        there.create_dir(folder, recursive=True)
    written = f"{folder}/.{name}.0.tmp" if local else f"{folder}/{name}"
    pafs.copy_files(path, written, fs, there)
    if local:
        there.move(written, f"{folder}/{name}")


def _is_damaged(store: Store, name: str) -> bool:
    try:
        check(store.results, name)
    except DamagedPart:
        return True
    return False


def _runs(own: dict[str, Span]) -> Iterator[list[tuple[str, Span]]]:
    """Yield groups of two or more adjacent parts, of at most `ROWS` points together."""
    run: list[tuple[str, Span]] = []
    for name, span in own.items():
        if run and (span.lo != run[-1][1].hi or span.hi - run[0][1].lo > ROWS):
            if len(run) > 1:
                yield run
            run = []
        run.append((name, span))
    if len(run) > 1:
        yield run


def _gather(store: Store, names: Sequence[str]) -> None:
    """Merge parts of single rows, and drop repeated rows."""
    if not names:
        return
    space, done = store.definition.as_defined_now, store.finished()
    seen = np.empty(0, np.int64)
    written: set[str] = set()
    rows_of = {n: read_frames(store.results, [n], ["status"]).height for n in names}
    for some in grouped(names, rows_of, ROWS):
        rows = read_frames(store.results, some)
        index: Index = space.index_of(rows)
        fresh = (index >= 0) & ~covered(index, done) & ~np.isin(index, seen) & ~repeated(index)
        if fresh.any():
            seen = np.concatenate([seen, index[fresh]])
            written.add(store.write(rows.filter(fresh).to_arrow(), index[fresh]))
        for name in some:
            if name not in written:
                remove(store.results, name)
