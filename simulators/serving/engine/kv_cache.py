"""KV cache of a replica: prefix cache, allocation of blocks, preemption and admission.

Paged memory follows Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (2023). Admission leaves a watermark of free blocks; running requests do not.
Without a free block, the request that arrived last is preempted. A preempted request frees its
blocks and recomputes its context later; or, with swap space on the host, its blocks move there, and
back before any other admission. No request overtakes the head of the queue or a swapped request.

Prefix cache: free KV blocks stay cached until they are overwritten (LRU). Prompts with a common
beginning share their first blocks: requests are paths in a radix tree (Zheng et al., "SGLang:
efficient execution of structured language model programs", 2024), and a node is a run of blocks
that always occur together. A referenced node is allocated once, whatever its number of references.
An unreferenced node is free, but cached until its blocks are overwritten: least recently released
nodes first, the end of a path before its beginning, the last block of a node first. vLLM's free
block queue and SGLang's LRU leaves have the same order, since a request that references a node
references all nodes before it.

Unreferenced nodes form a circular LRU list, closed by the row TREE_ROOT of the replica. Allocation
does not visit the list: overwritten nodes are evicted at the next lookup, before a block is freed.
Tiers behind GPU memory may hold copies of nodes (`kv_tiers`).
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, boolean, i8, matrix
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_tiers import (
    ACCOUNT,
    blocks_in_tiers,
    link_newest,
    load_blocks,
    release_to_tiers,
    starts_load,
    step_of,
    unlink,
    write_back,
)
from simulators.serving.engine.replica import (
    OPTIONAL_FEATURES,
    VIEW,
    View,
    keep_running,
    kernel,
    pop_waiting,
    return_waiting,
    schedule_request,
)


@kernel(i8(*arrays(i8, 2), matrix(i8)))
def evict_overwritten(limits: Ints, pool: Ints, tree: Ints) -> int:
    """Evict cached blocks that were overwritten; return the cached free blocks.

    With write-back, a node is written to the first tier when it loses its first block.
    """
    root = pool[at.TREE_ROOT]
    remaining = max(0, pool[at.CACHED_FREE_BLOCKS] - pool[at.FREE_BLOCKS])
    writes = limits[at.NUM_TIERS] > 0 and limits[at.WRITE_POLICY] == at.WRITE_BACK
    pool[at.CACHED_FREE_BLOCKS] -= remaining
    while remaining > 0:
        oldest = tree[root, at.NEWER]
        if writes:
            write_back(limits, pool, tree, oldest - root, tree[oldest, at.CACHED_BLOCKS])
        lost = min(tree[oldest, at.CACHED_BLOCKS], remaining)
        tree[oldest, at.CACHED_BLOCKS] -= lost
        remaining -= lost
        if tree[oldest, at.CACHED_BLOCKS] == 0:
            unlink(tree, at.NEWER, oldest)
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
    evict_overwritten(limits, pool, tree)
    found, on_gpu, tiers, page = 0, 0, limits[at.NUM_TIERS] > 0, limits[at.PAGE_BLOCKS]
    for place in range(request[req, at.PATH], request[req, at.PATH_END]):
        k = step_of(request, req, place)
        node, size = row_of(pool, tree, k), tree[k, at.END] - found
        held = tree[node, at.CACHED_BLOCKS]
        if on_gpu == found:
            on_gpu += min(held, size)
        if tiers:
            held = max(held, blocks_in_tiers(limits, pool, tree, node - pool[at.TREE_ROOT]))
        found += min(held, size)
        if held < size:
            break
    most = (request[req, at.PROMPT] - 1) // limits[at.BLOCK]
    found = min(found, most)
    if page > 1 and found > on_gpu:
        found = max(on_gpu, found // page * page)
    return max(0, found - limits[at.DROPS_CACHED_BLOCK]) * limits[at.BLOCK]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), matrix(i8)))
def renew_view(limits: Ints, pool: Ints, tree: Ints) -> int:
    """Copy the cached blocks of a replica's nodes to the router's view; return their number."""
    seen, column = 0, limits[at.SEEN_COLUMN]
    evict_overwritten(limits, pool, tree)
    for node in range(1, limits[at.TREE_ROWS]):
        row = pool[at.TREE_ROOT] + node
        held = max(tree[row, at.CACHED_BLOCKS], blocks_in_tiers(limits, pool, tree, node))
        tree[row, column] = held
        seen += held
    return seen


@kernel(i8(*ACCOUNT, i8))
def seen_tokens(limits: Ints, pool: Ints, request: Ints, tree: Ints, req: int) -> int:
    """Return the tokens of a prompt that are cached in the router's view."""
    found, column = 0, limits[at.SEEN_COLUMN]
    for place in range(request[req, at.PATH], request[req, at.PATH_END]):
        k = step_of(request, req, place)
        size = tree[k, at.END] - found
        held = tree[row_of(pool, tree, k), column]
        found += min(held, size)
        if held < size:
            break
    most = (request[req, at.PROMPT] - 1) // limits[at.BLOCK]
    return min(found, most) * limits[at.BLOCK]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), matrix(i8), i8, i8))
def blocks_held(pool: Ints, request: Ints, tree: Ints, req: int, most: int) -> int:
    """Return the blocks from the beginning of a path that other requests reference.

    Nodes after the first `most` blocks do not count.
    """
    held = 0
    for place in range(request[req, at.PATH], request[req, at.PATH_END]):
        k = step_of(request, req, place)
        if tree[k, at.END] > held:
            if held >= most or tree[row_of(pool, tree, k), at.REF_COUNT] == 0:
                break
            held = tree[k, at.END]
    return held


@kernel(i8(*ACCOUNT, i8, i8))
def acquire_prefix(
    limits: Ints, pool: Ints, request: Ints, tree: Ints, req: int, cached: int
) -> int:
    """Reference the cached nodes of a request's path; return the blocks that were not free.

    `cached` tokens count as computed. Blocks cached only in tiers are loaded into blocks of the
    request. A node that has lost its end is not referenced: its blocks become the request's own.
    """
    request[req, at.NUM_COMPUTED] = cached
    if request[req, at.NUM_RECOMPUTES] == 0:
        request[req, at.NUM_CACHED] = cached
    begin, stop, before, shared = request[req, at.PATH], request[req, at.PATH_END], 0, 0
    request[req, at.HELD_NODES] = 0
    if limits[at.NUM_TIERS] > 0:
        request[req, at.REQUEST_LOADED_NS] = 0
    if cached == 0:
        return 0
    here = 0
    for place in range(begin, stop):
        k = step_of(request, req, place)
        node, size = row_of(pool, tree, k), tree[k, at.END] - before
        held = tree[node, at.CACHED_BLOCKS]
        if size > 0 and before * limits[at.BLOCK] >= cached:
            break
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
    end = cached // limits[at.BLOCK]
    if limits[at.NUM_TIERS] > 0 and end > here:
        ready_ns = load_blocks(limits, pool, request, tree, req, here, end)
        request[req, at.REQUEST_LOADED_NS] = ready_ns
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
        place = begin + request[req, at.HELD_NODES]
        k = step_of(request, req, place)
        if tree[k, at.END] > filled:
            break
        node = row_of(pool, tree, k)
        size = tree[k, at.END] - (tree[place - 1, at.END] if place > begin else 0)
        request[req, at.HELD_NODES] += 1
        if size == 0:
            continue
        evict_overwritten(limits, pool, tree)
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


@kernel(i8(*ACCOUNT, i8))
def release_path(limits: Ints, pool: Ints, request: Ints, tree: Ints, req: int) -> int:
    """Release the path of a request, whose blocks stay cached; return the blocks that become free.

    The last token of a decode has no keys in the cache yet.
    """
    if limits[at.PREFIX_CACHING] == 0:
        return request[req, at.BLOCKS]  # type: ignore[no-any-return]
    tokens = request[req, at.NUM_COMPUTED]
    if tokens > request[req, at.PROMPT]:
        tokens -= 1 + request[req, at.NUM_OUTPUT_PLACEHOLDERS]
        tokens = max(tokens, request[req, at.PROMPT])
    cache_blocks(limits, pool, request, tree, req, tokens)
    evict_overwritten(limits, pool, tree)
    begin = request[req, at.PATH]
    place = begin + request[req, at.HELD_NODES]
    last = step_of(request, req, place)
    before = tree[step_of(request, req, place - 1), at.END] if place > begin else 0
    freed = request[req, at.BLOCKS] - before
    part = tokens // limits[at.BLOCK] - before
    if (
        place < request[req, at.PATH_END]
        and part > 0
        and tree[row_of(pool, tree, last), at.CACHED_BLOCKS] == 0
    ):
        tree[row_of(pool, tree, last), at.CACHED_BLOCKS] = part
        link_newest(tree, at.NEWER, pool[at.TREE_ROOT], row_of(pool, tree, last))
        pool[at.CACHED_FREE_BLOCKS] += part
        if limits[at.NUM_TIERS] > 0:
            release_to_tiers(limits, pool, tree, last, part)
    for earlier in range(place - 1, begin - 1, -1):
        k = step_of(request, req, earlier)
        node = row_of(pool, tree, k)
        size = tree[k, at.END] - (tree[earlier - 1, at.END] if earlier > begin else 0)
        if size > 0:
            tree[node, at.REF_COUNT] -= 1
            if limits[at.NUM_TIERS] > 0:
                release_to_tiers(limits, pool, tree, k, size)
            if tree[node, at.REF_COUNT] == 0:
                link_newest(tree, at.NEWER, pool[at.TREE_ROOT], node)
                pool[at.CACHED_FREE_BLOCKS] += size
                freed += size
    request[req, at.HELD_NODES] = 0
    return freed  # type: ignore[no-any-return]


@kernel(i8(i8, i8))
def blocks_for(tokens: int, block: int) -> int:
    """Return the number of blocks for some tokens."""
    return (tokens + block - 1) // block


@kernel(i8(*arrays(i8, 1), matrix(i8), i8))
def blocks_missing(limits: Ints, request: Ints, req: int) -> int:
    """Return the number of blocks to allocate for a decode's next token and draft tokens."""
    end = request[req, at.PROMPT] + request[req, at.OUTPUT] + limits[at.SLOTS_BEYOND_END]
    slots = limits[at.NUM_DRAFT_TOKENS] + limits[at.NUM_LOOKAHEAD_TOKENS]
    tokens = max(request[req, at.NUM_COMPUTED], min(request[req, at.NUM_COMPUTED] + slots, end))
    if tokens <= request[req, at.BLOCKS] * limits[at.BLOCK]:  # mostly, and products cost less
        return 0
    return blocks_for(tokens, limits[at.BLOCK]) - request[req, at.BLOCKS]  # type: ignore[no-any-return]


@kernel(boolean(*arrays(i8, 2), i8))
def has_free_blocks(limits: Ints, pool: Ints, blocks: int) -> bool:
    """Return whether admission can allocate some blocks and leave the watermark, if any runs."""
    return pool[at.FREE_BLOCKS] - blocks >= (pool[at.NUM_RUNNING] > 0) * limits[at.WATERMARK]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8, i8, i8))
def allocate(pool: Ints, request: Ints, req: int, blocks: int, shared: int) -> int:
    """Allocate the first blocks of a request, `shared` ones excepted; return the free blocks."""
    request[req, at.BLOCKS] = blocks
    pool[at.FREE_BLOCKS] -= blocks - shared
    pool[at.NUM_RUNNING] += 1
    pool[at.MOST_RUNNING] = max(pool[at.MOST_RUNNING], pool[at.NUM_RUNNING])
    return pool[at.FREE_BLOCKS]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8, i8))
def append_blocks(pool: Ints, request: Ints, req: int, blocks: int) -> int:
    """Allocate further blocks for a request and return the number of free blocks."""
    request[req, at.BLOCKS] += max(blocks, 0)
    pool[at.FREE_BLOCKS] -= max(blocks, 0)
    return pool[at.FREE_BLOCKS]  # type: ignore[no-any-return]


@kernel(i8(*ACCOUNT, i8))
def release(limits: Ints, pool: Ints, request: Ints, tree: Ints, req: int) -> int:
    """Free the blocks of a request that no other request references; return the free blocks."""
    freed = request[req, at.BLOCKS]
    if OPTIONAL_FEATURES:
        freed = release_path(limits, pool, request, tree, req)  # which may free a copy besides
    pool[at.FREE_BLOCKS] += freed
    pool[at.NUM_RUNNING] -= 1
    request[req, at.BLOCKS] = 0
    return pool[at.FREE_BLOCKS]  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8))
def preempt_recompute(view: View, req: int) -> int:
    """Return a request to the front of the queue; generated tokens become part of its prompt."""
    pool, request = view.pool, view.request
    release(view.limits, pool, request, view.tree, req)
    num_computed = request[req, at.NUM_COMPUTED] - request[req, at.NUM_OUTPUT_PLACEHOLDERS]
    if num_computed > request[req, at.PROMPT]:
        request[req, at.OUTPUT] += request[req, at.PROMPT] - num_computed
        request[req, at.PROMPT] = num_computed
    request[req, at.NUM_COMPUTED] = request[req, at.NUM_OUTPUT_PLACEHOLDERS] = 0
    request[req, at.NUM_RECOMPUTES] += 1
    pool[at.RECOMPUTE_PREEMPTIONS] += 1
    return return_waiting(pool, view.waiting, req)


@kernel(i8(VIEW, i8))
def preempt(view: View, req: int) -> int:
    """Preempt a running request: by swapping while the host has space, else by recomputation.

    Returns the number of preemptions of the replica.
    """
    pool, request = view.pool, view.request
    blocks = request[req, at.BLOCKS]
    if view.limits[at.SWAP_CAPACITY] - pool[at.SWAPPED_BLOCKS] < blocks:
        preempt_recompute(view, req)
        return preemptions(pool)
    pool[at.FREE_BLOCKS] += blocks
    pool[at.NUM_RUNNING] -= 1
    request[req, at.SWAPPED_BEFORE] = pool[at.SWAPPED_LAST]
    pool[at.SWAPPED_LAST] = req
    pool[at.NUM_SWAPPED] += 1
    pool[at.SWAP_PREEMPTIONS] += 1
    pool[at.SWAPPED_BLOCKS] += blocks
    pool[at.BLOCKS_TO_MOVE] += blocks
    return preemptions(pool)


@kernel(i8(*arrays(i8, 1)))
def preemptions(pool: Ints) -> int:
    """Return the number of preemptions of a replica, of both kinds."""
    return pool[at.RECOMPUTE_PREEMPTIONS] + pool[at.SWAP_PREEMPTIONS]  # type: ignore[no-any-return]


@kernel(boolean(*arrays(i8, 2), matrix(i8)))
def can_swap_in(limits: Ints, pool: Ints, request: Ints) -> bool:
    """Return whether the swapped request at the top of the stack has a slot and blocks."""
    return (
        pool[at.NUM_SWAPPED] > 0
        and pool[at.NUM_RUNNING] < limits[at.MAX_NUM_SEQS]
        and has_free_blocks(limits, pool, request[pool[at.SWAPPED_LAST], at.BLOCKS])
    )


@kernel(i8(VIEW))
def swap_in(view: View) -> int:
    """Swap requests in while they fit; return the number of requests still swapped."""
    pool, request = view.pool, view.request
    while can_swap_in(view.limits, pool, request):
        req = pool[at.SWAPPED_LAST]
        blocks = request[req, at.BLOCKS]
        pool[at.SWAPPED_LAST] = request[req, at.SWAPPED_BEFORE]
        pool[at.NUM_SWAPPED] -= 1
        pool[at.SWAPPED_BLOCKS] -= blocks
        pool[at.BLOCKS_TO_MOVE] += blocks
        allocate(pool, request, req, blocks, 0)
        view.running[pool[at.RUNNING]] = req
        pool[at.RUNNING] += 1
    return pool[at.NUM_SWAPPED]  # type: ignore[no-any-return]


@kernel(i8(VIEW))
def schedule_decodes(view: View) -> int:
    """Schedule one token for each decode, in the order of `running`.

    Without a free block the last entry of `running` is preempted, which may be the request itself.
    Returns the number of partial prefills at the head of `running`; decodes without a slot follow.
    """
    limits, pool, request, running = view.limits, view.pool, view.request, view.running
    head, count, partial = 0, pool[at.RUNNING], 0
    while head < count and pool[at.BATCH_SIZE] < limits[at.MAX_BATCH_SEQS]:
        req = running[head]
        head += 1
        if request[req, at.NUM_COMPUTED] <= request[req, at.PROMPT]:
            running[partial] = req
            partial += 1
            continue
        needed = blocks_missing(limits, request, req)
        while pool[at.FREE_BLOCKS] < max(1, needed) and head < count:
            count -= 1
            preempt(view, running[count])
        if pool[at.FREE_BLOCKS] < max(1, needed):
            preempt(view, req)
            continue
        if needed > 0:
            append_blocks(pool, request, req, needed)
        schedule_request(view, req, 1)
    keep_running(view, partial, head, count)
    return partial


@kernel(boolean(*arrays(i8, 2)))
def has_waiting_slot(limits: Ints, pool: Ints) -> bool:
    """Return whether a request waits and the running batch has a slot for it."""
    free = (
        pool[at.NUM_RUNNING] < limits[at.MAX_NUM_SEQS]
        and pool[at.BATCH_SIZE] < limits[at.MAX_BATCH_SEQS]
    )
    return pool[at.WAITING] > 0 and free  # type: ignore[no-any-return]


@kernel(boolean(*arrays(i8, 2)))
def can_admit(limits: Ints, pool: Ints) -> bool:
    """Return whether a request waits, has a slot, and overtakes no swapped request."""
    return has_waiting_slot(limits, pool) and pool[at.NUM_SWAPPED] == 0


@kernel(i8(VIEW, i8, i8, i8))
def admit(view: View, blocks: int, num_scheduled: int, cached: int) -> int:
    """Admit the head of the queue with KV blocks and scheduled tokens; return these tokens.

    The `cached` tokens of its prompt count as computed. A request that waits for its blocks to be
    loaded is not scheduled yet: 0 tokens.
    """
    limits, pool, request = view.limits, view.pool, view.request
    req = pop_waiting(pool, view.waiting)
    shared = 0
    if OPTIONAL_FEATURES:
        shared = acquire_prefix(limits, pool, request, view.tree, req, cached)
    allocate(pool, request, req, blocks, shared)
    if OPTIONAL_FEATURES and starts_load(limits, pool, request, req):
        return 0
    if OPTIONAL_FEATURES and limits[at.CACHES_AT_END] == 0:
        cache_blocks(limits, pool, request, view.tree, req, cached + num_scheduled)
    schedule_request(view, req, num_scheduled)
    return num_scheduled


@kernel(i8(VIEW, i8))
def cached_tokens_of(view: View, req: int) -> int:
    """Return the prompt tokens of a waiting request that the prefix cache holds."""
    if OPTIONAL_FEATURES:
        return cached_tokens(view.limits, view.pool, view.request, view.tree, req)
    return 0


@kernel(i8(VIEW, i8, i8))
def shared_blocks(view: View, req: int, cached: int) -> int:
    """Return the cached blocks of a waiting request that running requests hold."""
    if OPTIONAL_FEATURES and cached > 0:
        most = cached // view.limits[at.BLOCK]
        return blocks_held(view.pool, view.request, view.tree, req, most)
    return 0


@kernel(i8(*arrays(i8, 2), i8))
def prefill_tokens(limits: Ints, pool: Ints, missing: int) -> int:
    """Return the tokens of a prompt in one batch; the threshold spares a request on its own."""
    threshold = limits[at.LONG_PREFILL_TOKEN_THRESHOLD]
    if threshold > 0 and pool[at.WAITING] + pool[at.NUM_RUNNING] > 1:
        return min(missing, threshold)  # type: ignore[no-any-return]
    return missing


@kernel(i8(VIEW, i8, boolean))
def admit_chunks(view: View, token_budget: int, whole: bool) -> int:
    """Schedule prompts from the head of the queue within a token budget; return the rest of it.

    A prompt allocates blocks for its scheduled tokens or, if `whole`, for the whole prompt. Cached
    tokens are not computed.
    """
    limits, pool, request = view.limits, view.pool, view.request
    while token_budget > 0 and can_admit(limits, pool):
        first = view.waiting[pool[at.WAITING_HEAD]]
        prompt, cached = request[first, at.PROMPT], cached_tokens_of(view, first)
        num_scheduled = min(prefill_tokens(limits, pool, prompt - cached), token_budget)
        end = cached + num_scheduled + limits[at.NUM_LOOKAHEAD_TOKENS]
        blocks = blocks_for(prompt if whole else end, limits[at.BLOCK])
        needed = max(blocks, limits[at.RESERVE_FULL_ISL] * blocks_for(prompt, limits[at.BLOCK]))
        if not has_free_blocks(limits, pool, needed - shared_blocks(view, first, cached)):
            break
        token_budget -= admit(view, blocks, num_scheduled, cached)
    return token_budget


@kernel(boolean(matrix(i8), i8))
def is_last_token_in_flight(request: Ints, req: int) -> bool:
    """Return whether the batches in flight bring the last token even if no draft is accepted."""
    total = request[req, at.PROMPT] + request[req, at.OUTPUT]
    placeholders = request[req, at.NUM_OUTPUT_PLACEHOLDERS]
    return placeholders > 0 and request[req, at.NUM_COMPUTED] + 1 - placeholders >= total  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8, boolean))
def schedule_running(view: View, token_budget: int, prompts: bool) -> int:
    """Schedule running decodes or, if `prompts`, partial prefills; return the remaining budget."""
    pool, request, running = view.pool, view.request, view.running
    kept = 0
    for i in range(pool[at.RUNNING]):
        req = running[i]
        missing = request[req, at.PROMPT] - request[req, at.NUM_COMPUTED]
        is_next = token_budget > 0 and (missing > 0) == prompts
        if is_next and not is_last_token_in_flight(request, req):
            num_scheduled = min(missing, token_budget) if prompts else 1
            schedule_request(view, req, num_scheduled)
            token_budget -= num_scheduled if prompts else 1 + pool[at.NUM_DRAFTS]
        else:
            running[kept] = req
            kept += 1
    pool[at.RUNNING] = kept
    return token_budget


@kernel(i8(VIEW))
def admit_with_reservation(view: View) -> int:
    """Admit whole prompts, each with blocks for the longest sequence; return the batch size."""
    limits, pool = view.limits, view.pool
    while can_admit(limits, pool) and pool[at.FREE_BLOCKS] >= limits[at.RESERVED]:
        admit(
            view,
            limits[at.RESERVED],
            view.request[view.waiting[pool[at.WAITING_HEAD]], at.PROMPT],
            0,
        )
    return pool[at.BATCH_SIZE]  # type: ignore[no-any-return]
