"""Copies rows that sweeps of other spaces have written.

Points are matched by their values and by the contents of the files that these name. Rows are copied
once, so that the folder of a space holds all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow.fs as pafs

from simulators.core.errors import UserError
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, covered
from sweeper.store.checksums import filesystem
from sweeper.store.parquet import read_frames
from sweeper.store.part_names import definition_in
from sweeper.store.store import FAILURES, Store, repeated, shaped


def adopt(store: Store, space: DesignSpace) -> Iterator[tuple[int, str]]:
    """Copy rows of this space from the stores beside it, and yield counts by folder.

    Failed points are not copied.
    """
    taken: dict[str, int] = {}
    for other, names, index in _found(store, space):
        rows, known = read_frames(other.results, names).filter(index >= 0), index[index >= 0]
        store.write(shaped(space, rows, known).to_arrow(), known)
        taken[other.folder] = taken.get(other.folder, 0) + len(known)
    yield from ((count, folder) for folder, count in taken.items())


def answered_elsewhere(store: Store, space: DesignSpace) -> int:
    """Return how many points `adopt` would copy."""
    return sum(int((index >= 0).sum()) for *_, index in _found(store, space))


def stores_beside(store: Store) -> list[Store]:
    """Return the stores of the other spaces in the same root that the same simulator answered."""
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
        if folder.type and _may_help(store, f"{base}/{name}")
    ]


def _may_help(store: Store, folder: str) -> bool:
    """Return whether a part of another store may answer a point of this one's space."""
    other = Store(folder, store.definition)
    held = {definition_in(name): name for name in other.parts()}
    try:
        theirs = [other.definition_of(name) for name in held.values()]
    except UserError:  # a damaged part, which `whole` reports
        return True
    return any(store.definition.may_overlap(definition) for definition in theirs)


def _found(store: Store, space: DesignSpace) -> Iterator[tuple[Store, list[str], Index]]:
    """Yield parts of stores beside that answer points, with each row's number here or -1."""
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
