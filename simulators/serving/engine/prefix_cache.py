"""The prefix cache of a replica: free KV blocks stay cached until they are overwritten (LRU).

Prompts with a common beginning share their first blocks: requests are paths in a radix tree (Zheng
et al., "SGLang: efficient execution of structured language model programs", 2024), and a node is a
run of blocks that always occur together. A referenced node is allocated once, whatever its number
of references. An unreferenced node is free, but cached until its blocks are overwritten: least
recently released nodes first, the end of a path before its beginning, the last block of a node
first. That is the order of vLLM's free block queue and of SGLang's LRU leaves: both coincide, since
a request that references a node references all nodes before it.

Unreferenced nodes form a circular LRU list, closed by the row TREE_ROOT of the replica. Allocation
does not visit the list: overwritten nodes are evicted at the next lookup, before a block is freed.
The host may keep copies of released nodes in an LRU list of its own; blocks found only there are
copied back before the batch starts.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, i8, matrix
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import VIEW, View, kernel

ACCOUNT = (*arrays(i8, 2), matrix(i8), matrix(i8))
"""limits, pool, request, tree."""


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


@kernel(i8(matrix(i8), i8, i8, i8, i8))
def evict_oldest(tree: Ints, ring: int, root: int, held: int, surplus: int) -> int:
    """Evict `surplus` blocks of an LRU list, counted in column `held`; return how many."""
    remaining = max(0, surplus)
    while remaining > 0:
        oldest = tree[root, ring]
        lost = min(tree[oldest, held], remaining)
        tree[oldest, held] -= lost
        remaining -= lost
        if tree[oldest, held] == 0:
            unlink(tree, ring, oldest)
    return max(0, surplus)


@kernel(i8(*arrays(i8, 1), matrix(i8)))
def evict_overwritten(pool: Ints, tree: Ints) -> int:
    """Evict cached blocks that were overwritten; return the cached free blocks."""
    taken = pool[at.CACHED_FREE_BLOCKS] - pool[at.FREE_BLOCKS]
    pool[at.CACHED_FREE_BLOCKS] -= evict_oldest(
        tree, at.NEWER, pool[at.TREE_ROOT], at.CACHED_BLOCKS, taken
    )
    return pool[at.CACHED_FREE_BLOCKS]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8))
def row_of(pool: Ints, tree: Ints, step: int) -> int:
    """Return the row of the node at a step of a path."""
    return pool[at.TREE_ROOT] + 1 + tree[step, at.NODE]  # type: ignore[no-any-return]


@kernel(i8(*ACCOUNT, i8))
def cached_tokens(limits: Ints, pool: Ints, request: Ints, tree: Ints, req: int) -> int:
    """Return the cached tokens of a prompt: whole blocks, and at least one token is computed."""
    if limits[at.PREFIX_CACHING] == 0:
        return 0
    evict_overwritten(pool, tree)
    found = 0
    for k in range(request[req, at.PATH], request[req, at.PATH_END]):
        node, size = row_of(pool, tree, k), tree[k, at.END] - found
        held = max(tree[node, at.CACHED_BLOCKS], tree[node, at.HOST_BLOCKS])
        found += min(held, size)
        if held < size:
            break
    most = (request[req, at.PROMPT] - 1) // limits[at.BLOCK]
    return min(found, most) * limits[at.BLOCK]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), matrix(i8), i8))
def blocks_held(pool: Ints, request: Ints, tree: Ints, req: int) -> int:
    """Return the blocks from the beginning of a path that other requests reference."""
    held = 0
    for k in range(request[req, at.PATH], request[req, at.PATH_END]):
        if tree[k, at.END] > held:
            if tree[row_of(pool, tree, k), at.REF_COUNT] == 0:
                break
            held = tree[k, at.END]
    return held


@kernel(i8(*ACCOUNT, i8, i8))
def acquire_prefix(
    limits: Ints, pool: Ints, request: Ints, tree: Ints, req: int, cached: int
) -> int:
    """Reference the cached nodes of a request's path; return the blocks that were not free.

    `cached` tokens count as computed. Blocks cached on the host alone are copied into blocks of the
    request. A node that has lost its end is not referenced: its blocks become the request's own.
    """
    request[req, at.NUM_COMPUTED] = cached
    if request[req, at.NUM_RECOMPUTES] == 0:
        request[req, at.NUM_CACHED] = cached
    begin, stop, before, shared = request[req, at.PATH], request[req, at.PATH_END], 0, 0
    request[req, at.HELD_NODES] = 0
    if cached == 0:
        return 0
    here = 0
    for k in range(begin, stop):
        node, size = row_of(pool, tree, k), tree[k, at.END] - before
        held = tree[node, at.CACHED_BLOCKS]
        here += held
        if held < size:
            if held > 0:
                unlink(tree, at.NEWER, node)
                pool[at.CACHED_FREE_BLOCKS] -= held
                tree[node, at.CACHED_BLOCKS] = 0
            break
        before += size
        request[req, at.HELD_NODES] += 1
        if size > 0:
            shared += size if tree[node, at.REF_COUNT] > 0 else 0
            acquire_node(pool, tree, node)
    fetched = max(0, cached // limits[at.BLOCK] - here)
    pool[at.BLOCKS_TO_MOVE] += fetched
    pool[at.HOST_FETCHED_BLOCKS] += fetched
    return shared


@kernel(i8(*arrays(i8, 1), matrix(i8), i8))
def acquire_node(pool: Ints, tree: Ints, node: int) -> int:
    """Add a reference to a whole node; return its number of references."""
    if tree[node, at.REF_COUNT] == 0 and tree[node, at.NEWER] > 0:
        unlink(tree, at.NEWER, node)
        pool[at.CACHED_FREE_BLOCKS] -= tree[node, at.CACHED_BLOCKS]
    tree[node, at.REF_COUNT] += 1
    return tree[node, at.REF_COUNT]  # type: ignore[no-any-return]


@kernel(i8(*ACCOUNT, i8, i8))
def cache_blocks(limits: Ints, pool: Ints, request: Ints, tree: Ints, req: int, tokens: int) -> int:
    """Cache the nodes that the first tokens of a request fill; return the nodes it references.

    A node that another request has cached meanwhile replaces the request's own copy.
    """
    if limits[at.PREFIX_CACHING] == 0:
        return 0
    begin, stop = request[req, at.PATH], request[req, at.PATH_END]
    filled = tokens // limits[at.BLOCK]
    while begin + request[req, at.HELD_NODES] < stop:
        k = begin + request[req, at.HELD_NODES]
        if tree[k, at.END] > filled:
            break
        node = row_of(pool, tree, k)
        size = tree[k, at.END] - (tree[k - 1, at.END] if k > begin else 0)
        request[req, at.HELD_NODES] += 1
        if size == 0:
            continue
        evict_overwritten(pool, tree)
        if tree[node, at.CACHED_BLOCKS] == size:
            pool[at.FREE_BLOCKS] += size  # of the copy
            if tree[node, at.REF_COUNT] == 0:
                pool[at.FREE_BLOCKS] -= size
            acquire_node(pool, tree, node)
        else:
            acquire_node(pool, tree, node)
            tree[node, at.CACHED_BLOCKS] = size
    return request[req, at.HELD_NODES]  # type: ignore[no-any-return]


@kernel(i8(VIEW))
def cache_batch_blocks(view: View) -> int:
    """Cache the blocks of prompts that the new batch computes; return the batch size."""
    request = view.request
    for i in range(view.pool[at.BATCH_SIZE]):
        req = view.batch[i]
        if request[req, at.NUM_COMPUTED] <= request[req, at.PROMPT]:
            tokens = request[req, at.NUM_COMPUTED] + view.tokens[i]
            cache_blocks(view.limits, view.pool, request, view.tree, req, tokens)
    return view.pool[at.BATCH_SIZE]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), matrix(i8), i8, i8))
def copy_to_host(limits: Ints, pool: Ints, tree: Ints, node: int, blocks: int) -> int:
    """Copy a node to the host, which evicts its oldest copies; return the blocks on the host."""
    if limits[at.HOST_CACHE_CAPACITY] == 0:
        return 0
    if tree[node, at.HOST_NEWER] > 0:
        unlink(tree, at.HOST_NEWER, node)
    pool[at.HOST_CACHED_BLOCKS] += max(0, blocks - tree[node, at.HOST_BLOCKS])
    tree[node, at.HOST_BLOCKS] = max(blocks, tree[node, at.HOST_BLOCKS])
    link_newest(tree, at.HOST_NEWER, pool[at.TREE_ROOT], node)
    surplus = pool[at.HOST_CACHED_BLOCKS] - limits[at.HOST_CACHE_CAPACITY]
    pool[at.HOST_CACHED_BLOCKS] -= evict_oldest(
        tree, at.HOST_NEWER, pool[at.TREE_ROOT], at.HOST_BLOCKS, surplus
    )
    return pool[at.HOST_CACHED_BLOCKS]  # type: ignore[no-any-return]


@kernel(i8(*ACCOUNT, i8))
def release_path(limits: Ints, pool: Ints, request: Ints, tree: Ints, req: int) -> int:
    """Release the path of a request, whose blocks stay cached; return the blocks that become free.

    The last token of a decode has no keys in the cache yet.
    """
    if limits[at.PREFIX_CACHING] == 0:
        return request[req, at.BLOCKS]  # type: ignore[no-any-return]
    tokens = request[req, at.NUM_COMPUTED] - (
        request[req, at.NUM_COMPUTED] > request[req, at.PROMPT]
    )
    cache_blocks(limits, pool, request, tree, req, tokens)
    evict_overwritten(pool, tree)
    begin = request[req, at.PATH]
    last = begin + request[req, at.HELD_NODES]
    before = tree[last - 1, at.END] if last > begin else 0
    freed = request[req, at.BLOCKS] - before
    part = tokens // limits[at.BLOCK] - before
    if (
        last < request[req, at.PATH_END]
        and part > 0
        and tree[row_of(pool, tree, last), at.CACHED_BLOCKS] == 0
    ):
        tree[row_of(pool, tree, last), at.CACHED_BLOCKS] = part
        link_newest(tree, at.NEWER, pool[at.TREE_ROOT], row_of(pool, tree, last))
        pool[at.CACHED_FREE_BLOCKS] += part
        copy_to_host(limits, pool, tree, row_of(pool, tree, last), part)
    for k in range(last - 1, begin - 1, -1):
        node = row_of(pool, tree, k)
        size = tree[k, at.END] - (tree[k - 1, at.END] if k > begin else 0)
        if size > 0:
            tree[node, at.REF_COUNT] -= 1
            copy_to_host(limits, pool, tree, node, size)
            if tree[node, at.REF_COUNT] == 0:
                link_newest(tree, at.NEWER, pool[at.TREE_ROOT], node)
                pool[at.CACHED_FREE_BLOCKS] += size
                freed += size
    request[req, at.HELD_NODES] = 0
    return freed  # type: ignore[no-any-return]
