"""Reusing what sweeps of other spaces have answered already.

Their rows are recognised by their values and by the content of the files these make a point read,
and are copied once, so that each space's folder holds all of its own answers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow.fs as pafs

from sweeper.space.design_space import DesignSpace
from sweeper.space.spans import Index, covered
from sweeper.store.parquet import read_frame
from sweeper.store.seals import filesystem
from sweeper.store.store import FAILURES, Store, shaped


def adopt(store: Store, space: DesignSpace) -> Iterator[tuple[int, str]]:
    """Copy what the stores beside this one hold of its space, and yield how much came from where.

    What failed there is not copied: it is asked again here.
    """
    for other in stores_beside(store):
        taken = 0
        for name, index in _found(store, space, other):
            rows, known = read_frame(other.results, name).filter(index >= 0), index[index >= 0]
            store.write(shaped(space, rows, known).to_arrow(), known)
            taken += len(known)
        if taken:
            yield taken, other.folder


def answered_elsewhere(store: Store, space: DesignSpace) -> int:
    """Return how many points `adopt` would copy."""
    found = [np.empty(0, np.int64)]
    for other in stores_beside(store):
        found += [index[index >= 0] for _, index in _found(store, space, other)]
    return len(np.unique(np.concatenate(found)))


def stores_beside(store: Store) -> list[Store]:
    """Return the stores of the other spaces in the same root that the same simulator answered."""
    fs, path = filesystem(store.folder)
    root = path.rsplit("/", 1)[0] if "/" in path else "."
    base = store.folder.rsplit("/", 1)[0] if "/" in store.folder else "."
    infos = fs.get_file_info(pafs.FileSelector(root, allow_not_found=True))
    names = sorted(i.base_name for i in infos if i.type == pafs.FileType.Directory)
    return [
        Store(f"{base}/{name}", store.definition)
        for name in names
        if name != path.rsplit("/", 1)[-1]
        and fs.get_file_info(f"{root}/{name}/results/{store.definition.kind}").type
    ]


def _found(store: Store, space: DesignSpace, other: Store) -> Iterator[tuple[str, Index]]:
    """Yield the parts of another store that answer points, with each row's number here or -1."""
    done, answered = store.finished(), store.answered(space)
    columns = [*space.axes, "status"]
    for name in other.whole(store.definition):
        rows = read_frame(other.results, name, columns)
        index = other.index_in(space, name, rows)
        failed = rows["status"].cast(pl.String).is_in(FAILURES).to_numpy()
        index[failed | covered(index, done) | np.isin(index, answered)] = -1
        if (index >= 0).any():
            answered = np.concatenate([answered, index])
            yield name, index
