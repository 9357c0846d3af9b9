"""A cache of prefix blocks that forgets the least recently used one.

A block is known by the hash of its tokens and of all before them, so equal ids mean equal
beginnings. A request finds its blocks from the first on, until one is missing: what lies behind a
gap is of no use, though it may still be held. All its blocks are then held, and are the most recent
ones in the order of the prompt (vLLM's automatic prefix caching; Zheng et al., SGLang, 2024).

Blocks stand in a ring of two arrays, `newer` and `older`, closed by one more entry, the root: its
newer neighbour is the oldest block and its older neighbour the newest.
"""

from __future__ import annotations

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Ints, arrays, i8, kernel

ABSENT = -1
"""The neighbours of a block that is not held."""


def hit_blocks(blocks: Ints, ends: Ints, capacity: int | None = None) -> Ints:
    """Return how many blocks each request finds, served one after another by one cache.

    Args:
        blocks: ids of all requests' blocks, one request behind the other.
        ends: where each request ends in `blocks`.
        capacity: blocks that are held at most; None: all.

    Raises:
        UserError: the capacity is negative, or requests end where they cannot.

    >>> hit_blocks(np.array([7, 8, 7, 8, 9, 8]), np.array([2, 5, 6])).tolist()
    [0, 2, 1]
    >>> hit_blocks(np.array([7, 8, 7, 8, 9, 7]), np.array([2, 5, 6]), 2).tolist()
    [0, 2, 0]
    """
    if capacity is not None and capacity < 0:
        raise UserError(f"a prefix cache of {capacity} blocks: it holds 0 or more")
    if (np.diff(ends, prepend=0) < 0).any() or (ends[-1] if ends.size else 0) != blocks.size:
        raise UserError(f"requests must end in rising order, the last at {blocks.size:,} blocks")
    known, numbered = np.unique(blocks, return_inverse=True)
    held = known.size if capacity is None else capacity
    hits = np.zeros(ends.size, np.int64)
    replay(numbered.astype(np.int64), np.asarray(ends, np.int64), hits, known.size, held)
    return hits


@kernel(i8(*arrays(i8, 3), i8, i8))
def replay(blocks: Ints, ends: Ints, hits: Ints, known: int, capacity: int) -> int:
    """Count the blocks that each request finds into `hits`; return how many are held at the end.

    Blocks are numbered from 0 to below `known`.
    """
    root, held, begin = known, 0, 0
    newer = np.full(known + 1, ABSENT)
    older = np.full(known + 1, ABSENT)
    newer[root] = older[root] = root
    for request in range(ends.size):
        end = ends[request]
        for block in blocks[begin:end]:
            if newer[block] == ABSENT:
                break
            hits[request] += 1
        for block in blocks[begin:end]:
            if newer[block] == ABSENT:
                held += 1
            else:
                unlink(newer, older, block)
            link_newest(newer, older, root, block)
            if held > capacity:
                held -= 1
                unlink(newer, older, newer[root])
        begin = end
    return held


@kernel(i8(*arrays(i8, 2), i8), no_refcount=True)
def unlink(newer: Ints, older: Ints, block: int) -> int:
    """Take a block out of the ring; return it."""
    newer[older[block]] = newer[block]
    older[newer[block]] = older[block]
    newer[block] = older[block] = ABSENT
    return block


@kernel(i8(*arrays(i8, 2), i8, i8), no_refcount=True)
def link_newest(newer: Ints, older: Ints, root: int, block: int) -> int:
    """Put a block into the ring as the newest one; return it."""
    before = older[root]
    newer[before] = older[root] = block
    older[block], newer[block] = before, root
    return block
