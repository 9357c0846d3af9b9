"""The prefix cache of a replica: free KV blocks whose content may be found again, oldest forgotten.

Prompts that begin alike share their first blocks, so that requests are paths in a radix tree
(Zheng et al., "SGLang: efficient execution of structured language model programs", 2024): a node
stands for blocks that are always read together. A node that requests hold is counted once, however
many they are. One that nobody holds is free, yet found until its blocks are taken: those of the
node that was let go of first, of a path its end before its beginning, and of a node its last block
first. That is both the order of vLLM's queue of free blocks and the least recently used leaf of
SGLang's tree, which coincide because who holds a node holds all before it.

Nodes that nobody holds stand in a ring, closed by the root, whose newer neighbour is the oldest: in
`tree` the row ROOT of a replica, before those of its nodes. Blocks are taken without looking at
the ring: what has been overwritten since is forgotten at the next look, before any block becomes
free. Memory of the host may keep a copy of what is let go, in a ring of its own; what is found
there alone is moved back, for which the batch waits.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, i8, matrix
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import VIEW, View, kernel

ACCOUNT = (*arrays(i8, 2), matrix(i8), matrix(i8))
"""limits, pool, request, tree."""


@kernel(i8(matrix(i8), i8, i8))
def unlink(tree: Ints, ring: int, node: int) -> int:
    """Take a node out of a ring, which is named by its column of newer neighbours; return it."""
    newer, older = tree[node, ring], tree[node, ring + 1]
    tree[older, ring], tree[newer, ring + 1] = newer, older
    tree[node, ring] = tree[node, ring + 1] = 0
    return node


@kernel(i8(matrix(i8), i8, i8, i8))
def link_newest(tree: Ints, ring: int, root: int, node: int) -> int:
    """Put a node into a ring as the newest one; return it."""
    before = tree[root, ring + 1]
    tree[before, ring] = tree[root, ring + 1] = node
    tree[node, ring + 1], tree[node, ring] = before, root
    return node


@kernel(i8(matrix(i8), i8, i8, i8, i8))
def forget_oldest(tree: Ints, ring: int, root: int, held: int, surplus: int) -> int:
    """Forget blocks of a ring, the oldest first, that the column `held` counts; return how many."""
    left = max(0, surplus)
    while left > 0:
        oldest = tree[root, ring]
        lost = min(tree[oldest, held], left)
        tree[oldest, held] -= lost
        left -= lost
        if tree[oldest, held] == 0:
            unlink(tree, ring, oldest)
    return max(0, surplus)


@kernel(i8(*arrays(i8, 1), matrix(i8)))
def forget_taken(pool: Ints, tree: Ints) -> int:
    """Forget what has been taken by others since; return the free blocks that are still found."""
    taken = pool[at.KEPT] - pool[at.FREE]
    pool[at.KEPT] -= forget_oldest(tree, at.NEWER, pool[at.ROOT], at.HELD, taken)
    return pool[at.KEPT]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8))
def row_of(pool: Ints, tree: Ints, step: int) -> int:
    """Return the row of the node that a step of a path leads to."""
    return pool[at.ROOT] + 1 + tree[step, at.NODE]  # type: ignore[no-any-return]


@kernel(i8(*ACCOUNT, i8))
def cached_tokens(limits: Ints, pool: Ints, request: Ints, tree: Ints, who: int) -> int:
    """Return how many tokens of a prompt are found: whole blocks, and one is left to compute."""
    if limits[at.CACHES] == 0:
        return 0
    forget_taken(pool, tree)
    found = 0
    for k in range(request[who, at.PATH], request[who, at.PATH_END]):
        node, size = row_of(pool, tree, k), tree[k, at.END] - found
        held = max(tree[node, at.HELD], tree[node, at.ON_HOST])
        found += min(held, size)
        if held < size:
            break
    most = (request[who, at.PROMPT] - 1) // limits[at.BLOCK]
    return min(found, most) * limits[at.BLOCK]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), matrix(i8), i8))
def blocks_held(pool: Ints, request: Ints, tree: Ints, who: int) -> int:
    """Return the blocks of a path, from its beginning on, that others hold."""
    held = 0
    for k in range(request[who, at.PATH], request[who, at.PATH_END]):
        if tree[k, at.END] > held:
            if tree[row_of(pool, tree, k), at.HOLD] == 0:
                break
            held = tree[k, at.END]
    return held


@kernel(i8(*ACCOUNT, i8, i8))
def join(limits: Ints, pool: Ints, request: Ints, tree: Ints, who: int, cached: int) -> int:
    """Let a request hold what is found of its path; return the blocks that were not free.

    So many tokens need not be computed; those found on the host alone are moved into blocks of the
    request's own. So becomes what is left of a node that has lost its end.
    """
    request[who, at.DONE] = cached
    if request[who, at.RESTARTS] == 0:
        request[who, at.CACHED] = cached
    begin, stop, before, shared = request[who, at.PATH], request[who, at.PATH_END], 0, 0
    request[who, at.JOINED] = 0
    if cached == 0:
        return 0
    here = 0
    for k in range(begin, stop):
        node, size = row_of(pool, tree, k), tree[k, at.END] - before
        held = tree[node, at.HELD]
        here += held
        if held < size:
            if held > 0:
                unlink(tree, at.NEWER, node)
                pool[at.KEPT] -= held
                tree[node, at.HELD] = 0
            break
        before += size
        request[who, at.JOINED] += 1
        if size > 0:
            shared += size if tree[node, at.HOLD] > 0 else 0
            hold(pool, tree, node)
    fetched = max(0, cached // limits[at.BLOCK] - here)
    pool[at.MOVED] += fetched
    pool[at.FETCHED] += fetched
    return shared


@kernel(i8(*arrays(i8, 1), matrix(i8), i8))
def hold(pool: Ints, tree: Ints, node: int) -> int:
    """Count one more request that holds a whole node; return how many do."""
    if tree[node, at.HOLD] == 0 and tree[node, at.NEWER] > 0:
        unlink(tree, at.NEWER, node)
        pool[at.KEPT] -= tree[node, at.HELD]
    tree[node, at.HOLD] += 1
    return tree[node, at.HOLD]  # type: ignore[no-any-return]


@kernel(i8(*ACCOUNT, i8, i8))
def publish(limits: Ints, pool: Ints, request: Ints, tree: Ints, who: int, tokens: int) -> int:
    """Let others find the nodes that so many tokens of a request fill; return how many it holds.

    A node that another has filled meanwhile is held in place of the request's own copy of it.
    """
    if limits[at.CACHES] == 0:
        return 0
    begin, stop = request[who, at.PATH], request[who, at.PATH_END]
    filled = tokens // limits[at.BLOCK]
    while begin + request[who, at.JOINED] < stop:
        k = begin + request[who, at.JOINED]
        if tree[k, at.END] > filled:
            break
        node = row_of(pool, tree, k)
        size = tree[k, at.END] - (tree[k - 1, at.END] if k > begin else 0)
        request[who, at.JOINED] += 1
        if size == 0:
            continue
        forget_taken(pool, tree)
        if tree[node, at.HELD] == size:
            pool[at.FREE] += size  # of the copy
            if tree[node, at.HOLD] == 0:
                pool[at.FREE] -= size
            hold(pool, tree, node)
        else:
            hold(pool, tree, node)
            tree[node, at.HELD] = size
    return request[who, at.JOINED]  # type: ignore[no-any-return]


@kernel(i8(VIEW))
def publish_batch(view: View) -> int:
    """Let others find what the batch being formed computes of prompts; return its size."""
    request = view.request
    for i in range(view.pool[at.BATCH]):
        who = view.batch[i]
        if request[who, at.DONE] <= request[who, at.PROMPT]:
            tokens = request[who, at.DONE] + view.tokens[i]
            publish(view.limits, view.pool, request, view.tree, who, tokens)
    return view.pool[at.BATCH]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), matrix(i8), i8, i8))
def keep_on_host(limits: Ints, pool: Ints, tree: Ints, node: int, blocks: int) -> int:
    """Copy a node to the host, which forgets the oldest copies; return the blocks it has."""
    if limits[at.HOST_KEEPS] == 0:
        return 0
    if tree[node, at.HOST_NEWER] > 0:
        unlink(tree, at.HOST_NEWER, node)
    pool[at.ON_HOSTS] += max(0, blocks - tree[node, at.ON_HOST])
    tree[node, at.ON_HOST] = max(blocks, tree[node, at.ON_HOST])
    link_newest(tree, at.HOST_NEWER, pool[at.ROOT], node)
    surplus = pool[at.ON_HOSTS] - limits[at.HOST_KEEPS]
    pool[at.ON_HOSTS] -= forget_oldest(tree, at.HOST_NEWER, pool[at.ROOT], at.ON_HOST, surplus)
    return pool[at.ON_HOSTS]  # type: ignore[no-any-return]


@kernel(i8(*ACCOUNT, i8))
def leave(limits: Ints, pool: Ints, request: Ints, tree: Ints, who: int) -> int:
    """Let go of a path, whose blocks are found until others take them; return those now free.

    The last token of a request that decodes has not been stored yet.
    """
    if limits[at.CACHES] == 0:
        return request[who, at.BLOCKS]  # type: ignore[no-any-return]
    tokens = request[who, at.DONE] - (request[who, at.DONE] > request[who, at.PROMPT])
    publish(limits, pool, request, tree, who, tokens)
    forget_taken(pool, tree)
    begin = request[who, at.PATH]
    last = begin + request[who, at.JOINED]
    before = tree[last - 1, at.END] if last > begin else 0
    freed = request[who, at.BLOCKS] - before
    part = tokens // limits[at.BLOCK] - before
    if (
        last < request[who, at.PATH_END]
        and part > 0
        and tree[row_of(pool, tree, last), at.HELD] == 0
    ):
        tree[row_of(pool, tree, last), at.HELD] = part
        link_newest(tree, at.NEWER, pool[at.ROOT], row_of(pool, tree, last))
        pool[at.KEPT] += part
        keep_on_host(limits, pool, tree, row_of(pool, tree, last), part)
    for k in range(last - 1, begin - 1, -1):
        node = row_of(pool, tree, k)
        size = tree[k, at.END] - (tree[k - 1, at.END] if k > begin else 0)
        if size > 0:
            tree[node, at.HOLD] -= 1
            keep_on_host(limits, pool, tree, node, size)
            if tree[node, at.HOLD] == 0:
                link_newest(tree, at.NEWER, pool[at.ROOT], node)
                pool[at.KEPT] += size
                freed += size
    request[who, at.JOINED] = 0
    return freed  # type: ignore[no-any-return]
