"""What another space's sweep has answered need not be asked again.

Its rows are recognised by their values and by the content of the files these make a point read, and
are copied once, so that each space's folder holds all of its own answers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow.fs as pafs

from sweeper.files import filesystem, read
from sweeper.space import DesignSpace, Index
from sweeper.store import FAILURES, Store, covered, may_overlap, shaped


def adopt(store: Store, space: DesignSpace) -> Iterator[tuple[int, str]]:
    """Copy what the stores beside this one hold of its space, and yield how much came from where.

    What failed there is not copied: it is asked again here.
    """
    for other in stores_beside(store):
        taken = 0
        for name, index in _found(store, space, other):
            rows = pl.DataFrame(pl.from_arrow(read(other.results, name))).filter(index >= 0)
            store.write(shaped(space, rows, index[index >= 0]).to_arrow(), index[index >= 0])
            taken += int((index >= 0).sum())
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
    kind = f"{store.definition.simulator}-v{store.definition.version}"
    infos = fs.get_file_info(pafs.FileSelector(root, allow_not_found=True))
    names = sorted(i.base_name for i in infos if i.type == pafs.FileType.Directory)
    beside = [Store(f"{base}/{n}", store.definition) for n in names if n != path.rsplit("/", 1)[-1]]
    return [
        s
        for s in beside
        if fs.get_file_info(f"{root}/{s.folder.rsplit('/', 1)[-1]}/results/{kind}").type
    ]


def _found(store: Store, space: DesignSpace, other: Store) -> Iterator[tuple[str, Index]]:
    """Yield the parts of another store that answer points, with each row's number here or -1."""
    done, answered = store.finished(), store.answered(space)
    columns = [*(n for f in space.factors for n in f.columns), "status"]
    for name in other.parts():
        if not may_overlap(store.definition, other.definition_of(name)):
            continue
        rows = pl.DataFrame(pl.from_arrow(read(other.results, name, columns)))
        index = other.index_in(space, name, rows, store.definition)
        failed = rows["status"].cast(pl.String).is_in(FAILURES).to_numpy()
        index[failed | covered(index, done) | np.isin(index, answered)] = -1
        if (index >= 0).any():
            answered = np.concatenate([answered, index])
            yield name, index
