"""State of a run: columns of requests, replicas and batches; waiting queues; time integrals.

A replica has a waiting queue, running requests and a pool of KV blocks. A data-parallel rank with a
queue of its own counts as a replica here; the ranks of a replica iterate synchronously. Schedulers
and routers are kernels with the signatures `SCHEDULE` and `ROUTE`, one per file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from simulators.core import jit
from simulators.core.jit import (
    FloatMatrix,
    Floats,
    IntMatrix,
    Ints,
    Kernel,
    Signature,
    arrays,
    boolean,
    f8,
    i8,
    matrix,
    several,
    struct,
)

A = ParamSpec("A")
R = TypeVar("R")

# A row of `request`.
(
    PROMPT,
    OUTPUT,
    NUM_COMPUTED,
    BLOCKS,
    ARRIVAL_ORDER,
    NUM_RECOMPUTES,
    SUCCESSOR,
    REPLICA,
    SWAPPED_BEFORE,
    PATH,
    PATH_END,
    LAST_STEP,
    HELD_NODES,
    NUM_CACHED,
    ROUTABLE,
    PREFILL_REPLICA,
    DECODE_BLOCKS,
    NUM_OUTPUT_PLACEHOLDERS,
    NUM_VERIFIED,
    GIVEN_PROMPT,
) = range(20)
REQUEST_COLUMNS = 20
"""A preemption by recomputation moves generated tokens from OUTPUT to PROMPT, but GIVEN_PROMPT
stays. NUM_COMPUTED counts
computed tokens, of prompt and output. Requests that arrive together have the same ARRIVAL_ORDER.
The end of a request releases SUCCESSOR. Swapped requests form a stack, linked by SWAPPED_BEFORE.
PATH to PATH_END are the rows of `tree` with the request's path in the prefix tree, except for the
last step, which is in row LAST_STEP: paths can share the rows of their beginnings. The request
holds references to the first HELD_NODES nodes. NUM_CACHED are the prompt tokens found in the prefix
cache at the first admission. Routers choose among the first ROUTABLE replicas. With separate pools,
PREFILL_REPLICA keeps the blocks until the KV transfer ends, and DECODE_BLOCKS are allocated on the
decode replica meanwhile. With asynchronous scheduling NUM_COMPUTED includes batches in flight, and
NUM_OUTPUT_PLACEHOLDERS are the output tokens that these can bring, drafts included. NUM_VERIFIED
counts iterations that verified draft tokens."""

REQUEST_LOADED_NS, NUM_LOADED = REQUEST_COLUMNS, REQUEST_COLUMNS + 1
"""Columns behind the others, if the KV cache has tiers: when the blocks of an admitted request are
loaded (0: nothing to wait for), and the tokens of its first admission from each tier."""

NODE, END, NEXT_USE, HOLDERS_ROW = range(4)
"""A row of `tree` that is a step of a path: the node, and the blocks of the path up to its end; for
Belady's bound also the next request that uses the node; and, of a first step, the row of `holders`
of its node."""

CACHED_BLOCKS, REF_COUNT, NEWER, OLDER = range(4)
"""A row of `tree` that is a node of a replica: its cached blocks, the number of requests that
reference it, and its neighbours in the LRU list of unreferenced nodes (0: not in the list)."""
TREE_COLUMNS = 4

TIER_BLOCKS, TIER_NEWER, TIER_OLDER, TIER_KEY = range(4)
TIER_COLUMNS = 4
"""Columns of each tier in the row of a prefix tree's node: blocks of the node in the tier, both
neighbours in the LRU list (0: not listed) or the slot in the heap, and the eviction key. The row of
the root holds totals: blocks, both ends of the list, and when the replica's link to the
tier is free, in ns. Its columns of GPU memory hold when a shared tier is free, and its uses."""

MOST_TIERS = 3
WRITE_THROUGH, WRITE_THROUGH_SELECTIVE, WRITE_BACK = range(3)
LRU, LFU, BELADY = range(3)

NO_SUCCESSOR, NEXT_UNRELEASED, BY_GRAPH = -1, -2, -3
"""SUCCESSOR of a request that releases no other, that releases the next unreleased one, or whose
edges in `graph` release others."""

PENDING, DISPATCH_EDGES, ANSWER_EDGES, EDGES_END, GATE = range(5)
GRAPH_COLUMNS = 5
"""A row of `graph`, a request or a gate: unresolved edges to it; its edges in `edges`, first those
resolved when it is sent, then those resolved when it is answered; and the kind of a gate."""

PLAIN_GATE, NEXT_SESSION_GATE, WINDOW_GATE = range(3)
"""Kinds of gates: all resolve their edges when they open; the second also starts the next session
that waits for a lane, the third the measurement."""

WINDOW_S, SENDING_END_S, DURATION_S = range(3)
"""`sending`: when the gate of the measurement opens, when the last request may be sent, and the
time between both."""

UNROUTED, NOT_RELEASED = -1, -2
"""REPLICA of a request that has not arrived, or that waits for the end of another request."""

# One row of `times`, in seconds; negative until the event. Until its predecessor ends, ARRIVAL of a
# successor holds the think time, then the time at which the client sends it. Until a request passes
# the frontend in the loop, SENT holds the delay between frontend and engine.
(
    ARRIVAL,
    SCHEDULED,
    FIRST_TOKEN,
    LAST_TOKEN,
    LAST_END,
    COMPLETED,
    STALLED,
    LONGEST_GAP,
    SENT,
    SERVICE,
    LAG_S,
    SUMS,
) = range(12)
SUM_COLUMNS = 5
TIME_COLUMNS = SUMS + SUM_COLUMNS
PREFILL_END, TRANSFER_START = TIME_COLUMNS, TIME_COLUMNS + 1
PREFILL_SUMS = TIME_COLUMNS + 2
POOLED_TIME_COLUMNS = PREFILL_SUMS + SUM_COLUMNS
"""SENT is the time at which the client sends the request, SERVICE the time that the frontend works
on it (negative afterwards), and ARRIVAL the time at which it reaches the engine. The client
receives every token LAG_S later than the engine emits it. Columns from SUMS on hold the sums of the
replica at the end of the request."""

# `limits`: the configuration, equal for all replicas of a pool.
(
    BLOCK,  # tokens per KV block
    WATERMARK,  # blocks kept free when a new request is admitted
    MAX_NUM_SEQS,  # running requests, at most
    MAX_BATCH_SEQS,  # requests in one batch
    MAX_PREFILL_TOKENS,  # prompt tokens in one batch of whole prompts
    TOKEN_BUDGET,  # tokens in one batch of chunked prompts
    RESERVED,  # blocks a request may grow to, for policies that reserve
    STAGES,  # pipeline stages
    POLL_INTERVAL,  # decode iterations between polls of the queue
    SWAP_CAPACITY,  # host blocks for preempted requests; 0: preemption by recomputation
    MOVE_NS,  # nanoseconds to move a block to or from the host
    PREFIX_CACHING,  # 1: free blocks stay cached until they are overwritten
    RANKS,  # data-parallel ranks with queues of their own, whose iterations are synchronous
    NUM_DRAFT_TOKENS,  # per decode, at most; 0: no speculation
    SEED,  # of the acceptance of draft tokens
    DRAFT_DEPTH,  # levels of the draft tree
    NUM_TIERS,  # of the KV cache behind GPU memory
    PREFILL_REPLICAS,  # the first replicas, which only prefill; 0: no separate pools
    RESERVES_OUTPUT,  # 1: admission allocates the blocks of prompt and output
    OVERLAP_SCHEDULE,  # 1: tokens are sent while the next prefill runs, that is at its end
    DRAFT_COUNTS_WAITING,  # 1: waiting requests count as running in DRAFT_MAX_RUNNING
    MAX_CONCURRENT_BATCHES,  # batches in flight: one per stage, or 2 with asynchronous scheduling
    ASYNC_SCHEDULING,  # 1: the next batch is formed when one is launched
    RESERVE_FULL_ISL,  # 1: a prompt is admitted only if all of it fits
    LONG_PREFILL_TOKEN_THRESHOLD,  # prompt tokens of a request in one batch; 0: no limit
    NUM_LOOKAHEAD_TOKENS,  # slots that a drafter needs after the scheduled tokens
    SLOTS_BEYOND_END,  # that drafts may allocate after the last token of an answer
    DROPS_CACHED_BLOCK,  # 1: a drafter computes the last block of a cached prefix again
    CACHES_AT_END,  # 1: other requests find a prompt's blocks when its batch has ended
    IGNORE_EOS,  # 1: answers have their longest length, which admission knows
    CONSERVATIVENESS,  # factor of the output tokens expected at admission, in millionths
    PREFILLS_ONLY,  # 1: requests leave after their prefill
    STREAM_NS,  # nanoseconds from engine to client per running request
    ACCEPT_CYCLE,  # length of a cycle of numbers of accepted tokens; 0: they are drawn
    DRAFT_MAX_RUNNING,  # first of the running requests up to which 1, 2 ... levels are drafted
) = range(35)
MOST_DRAFTED = 16
ACCEPTANCE = DRAFT_MAX_RUNNING + MOST_DRAFTED
"""First of the shares of iterations that accept at least 1, 2 ... draft tokens, times CERTAIN; or
of a cycle of numbers of accepted tokens."""
TIER_CAPACITY = ACCEPTANCE + MOST_DRAFTED  # blocks of each tier
TIER_READ_PS = TIER_CAPACITY + MOST_TIERS  # picoseconds to load a block
TIER_WRITE_PS = TIER_READ_PS + MOST_TIERS
TIER_STORE_PS = TIER_WRITE_PS + MOST_TIERS  # of the tier itself, for all replicas; 0: no limit
TIER_LATENCY_NS = TIER_STORE_PS + MOST_TIERS
TIER_KIND = TIER_LATENCY_NS + MOST_TIERS  # host memory, NVMe or remote store
(
    INLINE_TIERS,  # first tiers whose loads are blocks to move before the batch, without a queue
    LOADS_REQUEST,  # 1: a load delays its request, 0: the batch
    WRITE_POLICY,
    EVICTION,  # of tiers
    PAGE_BLOCKS,  # tiers are looked up in whole pages of so many blocks
    VIEW_REFRESH_NS,  # age at which the router's view of prefix caches is renewed; 0: current
    USES_COLUMN,  # columns of `tree` with the uses of a node, its key for Belady's bound, and the
    NEXT_USE_COLUMN,  # blocks that the router sees; 0: none
    SEEN_COLUMN,
    TREE_ROWS,  # rows of `tree` of each replica
    FIRST_ROOT,  # row of `tree` before the nodes of the first replica
) = range(TIER_KIND + MOST_TIERS, TIER_KIND + MOST_TIERS + 11)
LIMITS = FIRST_ROOT + 1
CERTAIN = 1 << 31
ALL_DECODES = 1 << 40

# One row of `pool`: a replica's counters.
(
    TOTAL_BLOCKS,  # of the KV cache
    FREE_BLOCKS,
    WAITING_HEAD,  # where the ring of waiting requests begins
    WAITING,  # requests in it
    RUNNING,  # entries of `running`: running requests without a batch in flight
    NUM_RUNNING,  # all running requests, those of batches in flight included
    BATCH_SIZE,  # requests in the batch being formed
    ELAPSED,  # iterations of the last decision
    REPEATED_ITERATIONS,  # repeats of batches since the scheduler was called last
    MEMO,  # free for the scheduler
    BATCH_IS_FULL_AT,  # number of running requests at which admission was refused; 0: none
    OLDEST,  # slot of the batch that ends first
    IN_FLIGHT,  # batches in flight
    ITERATIONS,
    BATCHED_REQUESTS,  # requests summed over iterations
    BATCHED_TOKENS,  # tokens summed over iterations
    RECOMPUTE_PREEMPTIONS,
    MAX_USED_BLOCKS,
    NUM_SWAPPED,  # requests swapped to the host
    SWAPPED_LAST,  # request swapped out last, which is swapped in first
    SWAPPED_BLOCKS,
    BLOCKS_TO_MOVE,  # over the host link, before the next batch
    SWAP_PREEMPTIONS,
    CACHED_FREE_BLOCKS,  # free blocks with cached content
    TREE_ROOT,  # row of `tree` before the nodes of this replica
    NUM_DRAFTS,  # draft tokens per decode of the current batch
    WAITING_KV,  # prefilled requests that wait for blocks of this decode replica
    WAITING_KV_HEAD,  # first entry of their ring
    NOW_NS,  # time of the last event, rounded up
    LOADED_NS,  # when the loads before the next batch end; 0: none
    NUM_LOADING,  # requests admitted in this decision that wait for a load
    LAST_LOADING,  # last of them, a stack linked by SWAPPED_BEFORE
    MOST_RUNNING,  # running requests, at most so far
    TIER_ROOT,  # first of the rows of `tree` before the nodes of each tier
) = range(34)
TIER_FETCHED = TIER_ROOT + MOST_TIERS  # blocks loaded from each tier
TIER_LOAD = TIER_FETCHED + MOST_TIERS  # those of a load
POOL_COLUMNS = TIER_LOAD + MOST_TIERS

# One `step`: the sums of a batch.
(
    TOKENS,  # new tokens
    LOGITS_ROWS,  # requests that get an output token
    PREFILLS,  # requests with prompt tokens
    PREFILL_TOKENS,  # their new tokens c
    PREFILL_PAIRS,  # their query-key pairs, c * past + c * (c + 1) / 2
    PREFILL_KV,  # their keys read, past + c
    DECODES,  # requests with one token
    DECODE_KV,  # their keys read
    PREFILL_SQUARES,  # sum of c * c
    PREFILL_PAST,  # sum of past, each rounded up to PAST_STEP
    ALL_RANK_TOKENS,  # new tokens of all ranks: the load of experts and collectives
    RANK_IMBALANCE,  # share by which collectives take longer than with balanced ranks
) = range(12)
STEP_COLUMNS = 12

PAST_STEP = 64
"""The granularity of attention in operator tables, in tokens of KV cache."""

# What a price writes.
(
    STAGE_S,  # seconds on a stage that sends on
    LAST_STAGE_S,  # seconds on the last stage
    ENERGY_J,  # joules of the replica
    STAGE_SLOPE_S,
    SLOPE_S,
    SLOPE_J,
    STAGE_BASE_S,
    BASE_S,
    BASE_J,
    STAGE_MIN_S,
    MIN_S,
    STAGE_ADDED_S,
    ADDED_S,
    WAITING_W,
    UNTIL_KV,
    DRAFTS_SLOPE_S,
) = range(16)
PRICE_COLUMNS = 16
"""Below UNTIL_KV keys of the decodes, the last stage works for `busy = BASE_S + SLOPE_S * keys` and
takes `max(MIN_S, busy) + ADDED_S + DRAFTS_SLOPE_S * keys`. Other stages have the columns STAGE_*,
without drafts. The replica draws `BASE_J + SLOPE_J * keys`, and each stage WAITING_W while idle."""

# One row of `gauge`: a replica's sums over time.
(
    BLOCK_SECONDS,  # integral of the blocks in use
    CLOCK_S,  # time up to which the integrals are complete
    BUSY_S,  # seconds of work, summed over stages
    JOULES,
    GAPS_S,  # gaps between tokens, summed over requests
    REQUEST_SECONDS,  # integral of the waiting and running requests
    FRONTEND_FREE_S,  # of the first replica: when the frontend is free
    LINK_FREE_S,  # when the link of its KV transfers is free
    FILLED_S,  # times at which slots of KV blocks got their tokens, summed over slots
    NEW_TOKEN_RATIO,  # share of their longest answers that requests are expected to write
) = range(10)
GAUGE_COLUMNS = 10

SETUP_S, TOKEN_S, LAYERS = range(3)
"""`link`: latency of a KV transfer, seconds per token, and the number of parts that are sent during
the prefill (1: the whole cache is sent afterwards)."""

REPEATS, REPEATED, KEYS_PER_REPEAT, COUNTS_ITERATION = range(4)
"""A row of `rounds`: remaining and completed repeats of a batch in flight, the keys that a repeat
adds to its price, and whether the batch counts the iteration: one of the synchronous ranks does."""
ROUND_COLUMNS = 4

FIRST_END, LONGEST_S, STALL_S, BIN_LOW_S, BIN_HIGH_S, BIN = range(6)
"""A row of `timing`: end of a batch's first iteration; longest repeat, sum of the waits between
stages, and histogram bin of the last repeat."""
TIMING_COLUMNS = 6

# `clock`: counters of the whole service.
(
    NEXT_LISTED,
    ARRIVED,
    NEXT_SUCCESSOR,
    HEAP_SIZE,
    FORWARDED,
    LOG_ROWS,
    NEXT_SESSION,
    LAST_SESSION,
    VIEWED_NS,
) = range(9)
CLOCK_COLUMNS = 9
"""Next entry of the list of arrivals; arrived requests; next successor to release; requests on the
heap of arrivals; requests forwarded to decode replicas; logged batches; gate of the next session
that waits for a lane, and the gate after the last one; time of the router's view of prefix caches,
plus 1."""

LOAD_WAITING, LOAD_RUNNING, LOAD_CACHED, LOAD_CHANGED = range(4)
"""Rows of `load`: the load of each replica for routers, and whether it has a new request."""
LOAD_ROWS = 4

OPTIONAL_FEATURES = True
"""Whether the kernels support the optional features: prefix caches, speculation, data-parallel
ranks, separate pools and swapping. Kernels are also compiled without them (`service.py`): they
compile in half the time and run faster."""

UNTIL_CHANGED = 1 << 40
"""Iterations of a decision that holds until a request arrives, ends or needs memory."""


class View(NamedTuple):
    """The state of one replica that a scheduler reads, and the batch to fill in."""

    limits: Ints
    pool: Ints
    request: IntMatrix
    times: FloatMatrix
    waiting: Ints  # a ring, read by `pop_waiting`
    running: Ints
    batch: Ints  # scheduled requests
    tokens: Ints  # scheduled tokens of each
    tree: IntMatrix  # of prefixes
    gauge: Floats


VIEW: Any = struct(View)

SCHEDULE = i8(f8, VIEW)
"""now, view -> iterations the decision holds.

The kernel moves requests from `waiting` and `running` to `batch`, writes their scheduled tokens and
sets `pool[BATCH_SIZE]`. A result above 1 means that the scheduler would form the same batch while
only context lengths change: the loop may repeat the batch that often without a call.
"""

ROUTE = i8(i8, *arrays(i8, 3), *arrays(f8, 1))
"""arrivals so far; waiting requests, running requests and cached thousandths of the prompt of each
replica; two uniform random numbers of the request and one of its session -> replica."""

PRICE = f8(*arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 2))
"""step, shape, table, price -> seconds of the last stage; all of `price` is written."""


def kernel(signature: Signature) -> Callable[[Callable[A, R]], Kernel[A, R]]:
    """Compile the decorated function for `signature` when it is first called.

    The event loop passes some twenty arrays between functions. Reference counting them costs ten
    times the simulation itself (0.28 against 0.026 us per iteration of a 7B model with 10,000
    requests), and the caller owns the arrays for the whole run. So kernels take them without
    reference counting and are inlined.
    """
    return jit.kernel(signature, no_refcount=True)


@kernel(i8(*arrays(i8, 2)))
def pop_waiting(pool: Ints, waiting: Ints) -> int:
    """Take the request at the head of the queue."""
    head = pool[WAITING_HEAD]
    request = waiting[head]
    pool[WAITING_HEAD] = (head + 1) & (waiting.size - 1)
    pool[WAITING] -= 1
    return request  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), i8))
def push_waiting(pool: Ints, waiting: Ints, request: int) -> int:
    """Put a request at the end of the queue and return its length."""
    waiting[(pool[WAITING_HEAD] + pool[WAITING]) & (waiting.size - 1)] = request
    pool[WAITING] += 1
    return pool[WAITING]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), i8))
def return_waiting(pool: Ints, waiting: Ints, request: int) -> int:
    """Put a request back at the front of the queue and return the queue's length."""
    head = (pool[WAITING_HEAD] - 1) & (waiting.size - 1)
    waiting[head] = request
    pool[WAITING_HEAD] = head
    pool[WAITING] += 1
    return pool[WAITING]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), i8))
def remove_waiting(pool: Ints, waiting: Ints, request: int) -> int:
    """Remove a request from the queue and return the queue's length."""
    last, place = waiting.size - 1, pool[WAITING_HEAD]
    while waiting[place] != request:
        place = (place + 1) & last
    while place != pool[WAITING_HEAD]:
        waiting[place] = waiting[(place - 1) & last]
        place = (place - 1) & last
    pop_waiting(pool, waiting)
    return pool[WAITING]  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8, i8))
def schedule_request(view: View, req: int, num_scheduled: int) -> int:
    """Add a request to the batch being formed and return the batch's size."""
    size = view.pool[BATCH_SIZE]
    view.batch[size] = req
    view.tokens[size] = num_scheduled
    view.pool[BATCH_SIZE] = size + 1
    return size + 1  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8, i8, i8))
def keep_running(view: View, count: int, start: int, end: int) -> int:
    """Keep running requests before `count` and from `start` to `end`; return their number."""
    for i in range(start, end):
        view.running[count + i - start] = view.running[i]
    view.pool[RUNNING] = count + end - start
    return count + end - start


@kernel(i8(matrix(i8), *arrays(i8, 1), i8))
def sort_by_arrival(request: Ints, members: Ints, count: int) -> int:
    """Sort `members[:count]` by arrival, stably, and return how many moved.

    Insertion sort: between two calls only preempted requests are out of place.
    """
    moved = 0
    for i in range(1, count):
        member = members[i]
        rank = request[member, ARRIVAL_ORDER]
        j = i - 1
        while j >= 0 and request[members[j], ARRIVAL_ORDER] > rank:
            members[j + 1] = members[j]
            j -= 1
        if j + 1 < i:
            members[j + 1] = member
            moved += 1
    return moved


LOG_COLUMNS = (
    "replica",
    "formed_s",
    "end_s",
    "requests",
    "prompt_tokens",
    "tokens",
    "waiting",
    "kv_blocks",
    "drafted",
)


class ReplicaState(NamedTuple):
    """All arrays of a run. Rows are replicas, requests, or slots (a batch in flight)."""

    limits: Ints  # limits of the first pool
    own: IntMatrix  # limits of each pool: all replicas, or prefill replicas and decode replicas
    request: IntMatrix
    times: FloatMatrix
    pool: IntMatrix
    gauge: FloatMatrix
    load: IntMatrix
    waiting: IntMatrix  # ring of waiting requests of each replica; its length is a power of two
    waiting_kv: IntMatrix  # ring of requests that wait for their KV transfer to this replica
    running: IntMatrix
    batch: IntMatrix  # requests of each slot
    tokens: IntMatrix  # scheduled tokens of each of them
    sizes: Ints  # number of requests of each slot
    rounds: IntMatrix
    timing: FloatMatrix
    step: FloatMatrix  # sums of each slot's batch
    priced: FloatMatrix  # sums that the batch is priced by: its own, or those of all ranks
    price: FloatMatrix
    crossings: IntMatrix  # requests that need a block, by iteration modulo the block size
    in_flight: IntMatrix  # ring of each replica's slots, in the order in which batches end
    ends: FloatMatrix  # when the batch of each slot ends
    finishes: Floats  # before which no batch of a replica finishes; empty: repeats never wait
    holders: IntMatrix  # replicas that may cache each node that begins a path; empty: all
    stages: FloatMatrix  # when each pipeline stage is free
    draws: FloatMatrix  # uniform random numbers of each request and its session, for routers
    released: Floats  # heap of arrival times
    released_req: Ints  # requests of that heap
    clock: Ints
    gaps: Ints  # histogram of the gaps between tokens
    log: FloatMatrix  # one row per batch, up to its size
    tree: IntMatrix  # prefix tree: the steps of all requests' paths, then each replica's nodes
    shape: IntMatrix  # shape of the price tables of each pool
    table: FloatMatrix
    link: Floats  # between pools
    graph: IntMatrix  # requests, then gates; empty unless requests depend on several others
    edges: Ints  # the node that each edge releases
    edge_delay_s: Floats
    ready_s: Floats  # of each node: the latest of its resolved edges
    sending: Floats


STATE: Any = struct(ReplicaState)


@kernel(f8(*arrays(i8, 1), *arrays(f8, 1), f8))
def update_integrals(pool: Ints, gauge: Floats, now: float) -> float:
    """Advance the time integrals of a replica to now; return the block-seconds."""
    passed_s = now - gauge[CLOCK_S]
    gauge[BLOCK_SECONDS] += (pool[TOTAL_BLOCKS] - pool[FREE_BLOCKS]) * passed_s
    inside = pool[WAITING] + pool[WAITING_KV] + pool[NUM_RUNNING] + pool[NUM_SWAPPED]
    gauge[REQUEST_SECONDS] += inside * passed_s
    gauge[CLOCK_S] = now
    pool[NOW_NS] = int(now * 1e9) + 1
    return gauge[BLOCK_SECONDS]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), i8, i8, i8))
def count_batch(pool: Ints, counts_iteration: int, size: int, tokens: int) -> int:
    """Count a batch, and an iteration if `counts_iteration` is 1; return the iterations so far."""
    pool[ITERATIONS] += counts_iteration
    pool[BATCHED_REQUESTS] += size
    pool[BATCHED_TOKENS] += tokens
    return pool[ITERATIONS]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8))
def pool_of(state: ReplicaState, replica: int) -> int:
    """Return the pool of a replica: the row of `own`, `shape` and `table`."""
    return 1 if 0 < state.limits[PREFILL_REPLICAS] <= replica else 0


@kernel(several(i8, 2)(STATE, i8))
def ranks_with(state: ReplicaState, replica: int) -> tuple[int, int]:
    """Return the first of the synchronous ranks that a rank belongs to, and their number."""
    pool = pool_of(state, replica)
    begin, ranks = pool * state.limits[PREFILL_REPLICAS], state.own[pool, RANKS]
    return replica - (replica - begin) % ranks, ranks


@kernel(boolean(STATE))
def has_ranks(state: ReplicaState) -> bool:
    """Return whether a replica of any pool has several ranks."""
    return max(state.own[0, RANKS], state.own[-1, RANKS]) > 1  # type: ignore[no-any-return]


@kernel(f8(STATE, i8, i8, i8, f8))
def snapshot_sums(state: ReplicaState, replica: int, req: int, first: int, ahead_s: float) -> float:
    """Copy the sums of a replica to the columns of a completed request; return block-seconds.

    `ahead_s`: seconds of counted work that are still to come.
    """
    pool, gauge, times = state.pool[replica], state.gauge[replica], state.times
    times[req, first] = gauge[BLOCK_SECONDS]
    times[req, first + 1], times[req, first + 2] = gauge[BUSY_S] - ahead_s, gauge[JOULES]
    times[req, first + 3], times[req, first + 4] = pool[ITERATIONS], pool[BATCHED_REQUESTS]
    return gauge[BLOCK_SECONDS]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, i8, f8, f8))
def log_batch(state: ReplicaState, replica: int, slot: int, formed: float, end: float) -> int:
    """Write a row for a batch and return the number of rows."""
    clock, step, pool = state.clock, state.step[slot], state.pool[replica]
    row = state.log[clock[LOG_ROWS]]
    row[0], row[1], row[2] = replica, formed, end
    row[3], row[4] = step[PREFILLS] + step[DECODES], step[PREFILL_TOKENS]
    row[5], row[6] = step[TOKENS], pool[WAITING] + pool[NUM_SWAPPED]
    row[7], row[8] = pool[TOTAL_BLOCKS] - pool[FREE_BLOCKS], pool[NUM_DRAFTS]
    clock[LOG_ROWS] += 1
    return clock[LOG_ROWS]  # type: ignore[no-any-return]
