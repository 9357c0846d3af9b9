"""Tiers of the KV cache behind GPU memory: host memory, NVMe drives, a remote store.

A tier holds blocks of prefix-tree nodes, a node's first blocks first. A block that the GPU lacks is
loaded from the nearest tier that holds it. A tier is local to a replica, or all replicas share that
of the first one.

Writes: with write-through, a request that releases its blocks writes them to all tiers (with
`write_through_selective`, blocks that were used at least twice: SGLang's HiCache); with write-back,
a node is written to the next tier when it loses its first block here. Either way, a release marks
the copies of its blocks as used.

Eviction: least recently used (a circular list, closed by the row of the root), or lowest key (a
binary heap) for least frequently used nodes and for Belady's bound, which evicts the node whose
next use is farthest ("A study of replacement algorithms for a virtual-storage computer", 1966). The
bound needs the order of all requests in advance, whichever replica serves them. Frequencies count
from the insertion of a node, and equal ones are ordered by recency. Among nodes of equal next use,
the deepest is evicted first.

A replica has a link to each tier, which serves its loads and writes one after another. A shared
tier may also have a rate of its own, at which it serves those of all replicas one after another.
Times on links are integers of nanoseconds.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, boolean, i8, matrix
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import kernel

ACCOUNT = (*arrays(i8, 2), matrix(i8), matrix(i8))
"""limits, pool, request, tree."""

LFU_STEP = 1 << 40
"""Weight of a use in the key of a node, above the count that orders equal frequencies."""

DEPTH_STEP = 1 << 24
"""Weight of the next use in Belady's key, above the blocks up to the end of a node."""


@kernel(i8(matrix(i8), i8, i8))
def unlink(tree: Ints, ring: int, node: int) -> int:
    """Remove a node from the LRU list of a column of newer neighbours; return the node."""
    newer, older = tree[node, ring], tree[node, ring + 1]
    tree[older, ring], tree[newer, ring + 1] = newer, older
    tree[node, ring] = tree[node, ring + 1] = 0
    return node


@kernel(i8(matrix(i8), i8, i8, i8))
def link_newest(tree: Ints, ring: int, root: int, node: int) -> int:
    """Append a node to an LRU list as the newest one; return the node."""
    before = tree[root, ring + 1]
    tree[before, ring] = tree[root, ring + 1] = node
    tree[node, ring + 1], tree[node, ring] = before, root
    return node


@kernel(i8(i8))
def column_of(tier: int) -> int:
    """Return the first column of a tier in `tree`."""
    return at.TREE_COLUMNS + tier * at.TIER_COLUMNS


@kernel(i8(matrix(i8), i8, i8, i8))
def sift(tree: Ints, column: int, root: int, slot: int) -> int:
    """Move the node in a slot of a heap up or down to its place; return its slot.

    Slots count from 1. TIER_OLDER of the row `root + slot` is the node in a slot, TIER_NEWER of a
    node its slot, and TIER_NEWER of the root the size of the heap.
    """
    place, node_in, key_of = column + at.TIER_NEWER, column + at.TIER_OLDER, column + at.TIER_KEY
    node, size = tree[root + slot, node_in], tree[root, place]
    key = tree[node, key_of]
    while slot > 1 and tree[tree[root + slot // 2, node_in], key_of] > key:
        above = tree[root + slot // 2, node_in]
        tree[root + slot, node_in], tree[above, place] = above, slot
        slot //= 2
    while 2 * slot <= size:
        child = 2 * slot
        below = tree[root + child, node_in]
        if child < size:
            other = tree[root + child + 1, node_in]
            if tree[other, key_of] < tree[below, key_of]:
                child, below = child + 1, other
        if tree[below, key_of] >= key:
            break
        tree[root + slot, node_in], tree[below, place] = below, slot
        slot = child
    tree[root + slot, node_in], tree[node, place] = node, slot
    return slot


@kernel(i8(*arrays(i8, 1), matrix(i8), i8, i8, i8, i8))
def mark_used(limits: Ints, tree: Ints, tier: int, root: int, node: int, key: int) -> int:
    """Move a node of a tier to its place in the order of eviction; return the node."""
    column = column_of(tier)
    place, is_new = column + at.TIER_NEWER, tree[node, column + at.TIER_NEWER] == 0
    if limits[at.EVICTION] == at.LRU:
        if not is_new:
            unlink(tree, place, node)
        return link_newest(tree, place, root, node)
    if limits[at.EVICTION] == at.LFU:
        uses = tree[node, column + at.TIER_KEY] // LFU_STEP + 1
        tree[root, at.REF_COUNT] += 1  # counts uses in the row of the root
        key = uses * LFU_STEP + tree[root, at.REF_COUNT]
    tree[node, column + at.TIER_KEY] = key
    if is_new:
        tree[root, place] += 1
        tree[node, place] = tree[root, place]
        tree[root + tree[root, place], column + at.TIER_OLDER] = node
    sift(tree, column, root, tree[node, place])
    return node


@kernel(i8(*arrays(i8, 1), matrix(i8), i8, i8, i8))
def remove(limits: Ints, tree: Ints, tier: int, root: int, node: int) -> int:
    """Remove a node from the order of eviction of a tier; return the node."""
    column = column_of(tier)
    place, node_in = column + at.TIER_NEWER, column + at.TIER_OLDER
    if limits[at.EVICTION] == at.LRU:
        return unlink(tree, place, node)
    slot, size = tree[node, place], tree[root, place]
    last = tree[root + size, node_in]
    tree[root, place] = size - 1
    tree[node, place] = tree[node, column + at.TIER_KEY] = 0
    if last != node:
        tree[root + slot, node_in], tree[last, place] = last, slot
        sift(tree, column, root, slot)
    return node


@kernel(i8(*arrays(i8, 2), matrix(i8), i8, i8, i8))
def transfer(limits: Ints, pool: Ints, tree: Ints, tier: int, link_ps: int, blocks: int) -> int:
    """Queue blocks on the link to a tier, for `link_ps`, and at its own rate; return their end."""
    own, link = pool[at.TREE_ROOT], column_of(tier) + at.TIER_KEY
    tree[own, link] = max(pool[at.NOW_NS], tree[own, link]) + link_ps // 1000
    end_ns = tree[own, link]
    if limits[at.TIER_STORE_PS + tier] > 0:
        root, store_ns = pool[at.TIER_ROOT + tier], blocks * limits[at.TIER_STORE_PS + tier] // 1000
        tree[root, at.CACHED_BLOCKS] = max(pool[at.NOW_NS], tree[root, at.CACHED_BLOCKS]) + store_ns
        end_ns = max(end_ns, tree[root, at.CACHED_BLOCKS])
    return end_ns  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), matrix(i8), i8, i8, i8, i8))
def add_blocks(
    limits: Ints, pool: Ints, tree: Ints, tier: int, node: int, blocks: int, key: int
) -> int:
    """Write the first blocks of a node to a tier, over its link; return the new blocks.

    `node` is the row of the node behind that of the root. The tier may exceed its capacity until
    `evict_surplus`.
    """
    root, column = pool[at.TIER_ROOT + tier], column_of(tier)
    new = max(0, blocks - tree[root + node, column])
    tree[root + node, column] += new
    tree[root, column] += new
    if new > 0 and tier >= limits[at.INLINE_TIERS]:
        transfer(limits, pool, tree, tier, new * limits[at.TIER_WRITE_PS + tier], new)
    mark_used(limits, tree, tier, root, root + node, key)
    return new  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), matrix(i8), i8, i8, i8, i8))
def add_missing(
    limits: Ints, pool: Ints, tree: Ints, tier: int, node: int, blocks: int, key: int
) -> int:
    """Write evicted blocks that a tier lacks; return the new blocks. Eviction is no use of others.

    The last block of a node is evicted first, the other ones often much later.
    """
    if tree[pool[at.TIER_ROOT + tier] + node, column_of(tier)] >= blocks:
        return 0
    return add_blocks(limits, pool, tree, tier, node, blocks, key)


@kernel(i8(*arrays(i8, 2), matrix(i8), i8))
def evict_surplus(limits: Ints, pool: Ints, tree: Ints, tier: int) -> int:
    """Evict blocks beyond the capacity of a tier and those behind it; return the evicted blocks.

    With write-back, a node is written to the next tier when it loses its first block; what the
    next tier holds of the node is not marked as used.
    """
    evicted, tiers = 0, limits[at.NUM_TIERS]
    while tier < tiers:
        root, column = pool[at.TIER_ROOT + tier], column_of(tier)
        surplus = tree[root, column] - limits[at.TIER_CAPACITY + tier]
        while surplus > 0:
            place = column + at.TIER_NEWER
            if limits[at.EVICTION] == at.LRU:
                victim = tree[root, place]
            else:
                victim = tree[root + 1, column + at.TIER_OLDER]
            held = tree[victim, column]
            if limits[at.WRITE_POLICY] == at.WRITE_BACK and tier + 1 < tiers:
                key = tree[victim, column + at.TIER_KEY]
                add_missing(limits, pool, tree, tier + 1, victim - root, held, key)
            lost = min(held, surplus)
            tree[victim, column] -= lost
            tree[root, column] -= lost
            surplus -= lost
            evicted += lost
            if lost == held:
                remove(limits, tree, tier, root, victim)
        tier += 1
    return evicted


@kernel(i8(*arrays(i8, 2), matrix(i8), i8, i8))
def write_back(limits: Ints, pool: Ints, tree: Ints, node: int, blocks: int) -> int:
    """Write the blocks of a node that the GPU evicts to the first tier; return the new blocks."""
    key = 0
    if limits[at.EVICTION] == at.BELADY:
        key = tree[limits[at.FIRST_ROOT] + node, limits[at.NEXT_USE_COLUMN]]
    new = add_missing(limits, pool, tree, 0, node, blocks, key)
    evict_surplus(limits, pool, tree, 0)
    return new


@kernel(i8(*arrays(i8, 2), matrix(i8), i8, i8))
def release_to_tiers(limits: Ints, pool: Ints, tree: Ints, step: int, blocks: int) -> int:
    """Write or mark the blocks of a step of a path that a request releases; return the new ones."""
    key, new, node = 0, 0, tree[step, at.NODE] + 1
    row = pool[at.TREE_ROOT] + node
    if limits[at.EVICTION] == at.BELADY:
        first_row, column = limits[at.FIRST_ROOT] + node, limits[at.NEXT_USE_COLUMN]
        key = -(tree[step, at.NEXT_USE] * DEPTH_STEP + tree[step, at.END])
        key = min(key, tree[first_row, column])  # a later request may have released it before
        tree[first_row, column] = key
    writes = limits[at.WRITE_POLICY] != at.WRITE_BACK
    if limits[at.WRITE_POLICY] == at.WRITE_THROUGH_SELECTIVE:
        tree[row, limits[at.USES_COLUMN]] += 1
        writes = tree[row, limits[at.USES_COLUMN]] > 1
    for tier in range(limits[at.NUM_TIERS]):
        root = pool[at.TIER_ROOT + tier]
        held = tree[root + node, column_of(tier)]
        if writes:
            new += add_blocks(limits, pool, tree, tier, node, blocks, key)
        elif held > 0:
            mark_used(limits, tree, tier, root, root + node, key)
    if writes:
        evict_surplus(limits, pool, tree, 0)
    return new


@kernel(i8(*arrays(i8, 2), matrix(i8), i8))
def blocks_in_tiers(limits: Ints, pool: Ints, tree: Ints, node: int) -> int:
    """Return the largest number of blocks of a node in one tier.

    `node` is the row of the node behind that of the root.
    """
    held = 0
    for tier in range(limits[at.NUM_TIERS]):
        held = max(held, tree[pool[at.TIER_ROOT + tier] + node, column_of(tier)])
    return held


@kernel(i8(matrix(i8), i8, i8))
def step_of(request: Ints, req: int, place: int) -> int:
    """Return the row of `tree` with a step of a request's path; the last step has a row apart."""
    if place == request[req, at.PATH_END] - 1:
        return request[req, at.LAST_STEP]  # type: ignore[no-any-return]
    return place


@kernel(i8(*ACCOUNT, i8, i8, i8))
def load_blocks(
    limits: Ints, pool: Ints, request: Ints, tree: Ints, req: int, first: int, end: int
) -> int:
    """Load the blocks of a path from `first` to `end`; return when they are loaded, in ns.

    Each block comes from the nearest tier that holds it; links of several tiers work at once. 0 if
    nothing is loaded, or only over the link to the host, as blocks to move before the batch.
    """
    before, ready_ns = 0, 0
    for place in range(request[req, at.PATH], request[req, at.PATH_END]):
        k = step_of(request, req, place)
        if first >= end:
            break
        for tier in range(limits[at.NUM_TIERS]):
            row = pool[at.TIER_ROOT + tier] + 1 + tree[k, at.NODE]
            upto = min(before + tree[row, column_of(tier)], end)
            if upto > first:
                pool[at.TIER_LOAD + tier] += upto - first
                first = upto
        before = tree[k, at.END]
    for tier in range(limits[at.NUM_TIERS]):
        blocks = pool[at.TIER_LOAD + tier]
        pool[at.TIER_LOAD + tier] = 0
        pool[at.TIER_FETCHED + tier] += blocks
        if request[req, at.NUM_RECOMPUTES] == 0:
            request[req, at.NUM_LOADED + tier] = blocks * limits[at.BLOCK]
        if blocks > 0 and tier < limits[at.INLINE_TIERS]:
            pool[at.BLOCKS_TO_MOVE] += blocks
        elif blocks > 0:
            link_ps = blocks * limits[at.TIER_READ_PS + tier]
            end_ns = transfer(limits, pool, tree, tier, link_ps, blocks)
            ready_ns = max(ready_ns, end_ns + limits[at.TIER_LATENCY_NS + tier])
    if limits[at.LOADS_REQUEST] == 0:
        pool[at.LOADED_NS] = max(pool[at.LOADED_NS], ready_ns)
    return ready_ns


@kernel(boolean(*arrays(i8, 2), matrix(i8), i8))
def starts_load(limits: Ints, pool: Ints, request: Ints, req: int) -> bool:
    """Return whether an admitted request waits for a load; then add the request to the loads."""
    if limits[at.LOADS_REQUEST] == 0 or request[req, at.REQUEST_LOADED_NS] == 0:
        return False
    request[req, at.SWAPPED_BEFORE] = pool[at.LAST_LOADING]
    pool[at.LAST_LOADING] = req
    pool[at.NUM_LOADING] += 1
    return True
