"""The state of a replica as schedulers and routers see it: the columns of its arrays, its queue.

A replica is a queue, the requests that run and a pool of KV blocks; where ranks of data-parallel
attention have queues of their own, each rank is one, and those of a replica step together. The
names of the columns are the language between the event loop and the policies: a scheduler or a
router is a kernel of the signature given here, in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from simulators.core import jit
from simulators.core.jit import (
    FloatMatrix,
    IntMatrix,
    Ints,
    Kernel,
    Signature,
    arrays,
    f8,
    i8,
    matrix,
    struct,
)

A = ParamSpec("A")
R = TypeVar("R")

# One row of `request`: what a request still asks for and what it holds.
(
    PROMPT,
    OUTPUT,
    DONE,
    BLOCKS,
    RANK,
    RESTARTS,
    SUCCESSOR,
    REPLICA,
    BELOW,
    PATH,
    PATH_END,
    JOINED,
    CACHED,
    ROUTABLE,
    READER,
    KEPT_BLOCKS,
) = range(16)
REQUEST_COLUMNS = 16
"""PROMPT and OUTPUT change at a restart; DONE counts processed tokens; RANK is the order of
arrival, shared by requests that arrive together; SUCCESSOR is released by this one's end; BELOW is
the request under this one on the stack of those moved to the host.
Its path through the tree of prefixes are the rows of `tree` from PATH up to PATH_END, of which it
holds the nodes of the first JOINED; CACHED are the tokens of its prompt that were found when it was
first let in. A router may send it to the first ROUTABLE replicas. READER is the replica that has
read its prompt for another and keeps its blocks there until they are sent; KEPT_BLOCKS are those
that the other one keeps for them meanwhile."""

NODE, END = range(2)
"""One row of `tree` that is a step of a path: a node, and the blocks up to the node's end."""

HELD, HOLD, NEWER, OLDER, ON_HOST, HOST_NEWER, HOST_OLDER = range(7)
"""One row of `tree` that is a node of a replica: blocks that are found, requests that hold them,
and of a node that nobody holds the rows of its neighbours in the ring; 0: it is in none. Then the
blocks that the host has a copy of, and the neighbours in the host's ring."""
TREE_COLUMNS = 7

NOBODY, NEXT = -1, -2
"""SUCCESSOR of a request that releases none, or the next request that nobody has released yet."""

UNROUTED, UNBORN = -1, -2
"""REPLICA of a request that has not arrived, or that will only when another one ends."""

# One row of `times`, in seconds; negative until it happens. ARRIVAL of a released request holds the
# think time until its predecessor ends, ASKED what it takes to the engine besides.
(
    ARRIVAL,
    SCHEDULED,
    FIRST_TOKEN,
    LAST_TOKEN,
    LAST_END,
    COMPLETED,
    STALLED,
    LONGEST_GAP,
    ASKED,
    SERVICE,
    SUMS,
) = range(11)
SUM_COLUMNS = 5
TIME_COLUMNS = SUMS + SUM_COLUMNS
READ, SENDING = TIME_COLUMNS, TIME_COLUMNS + 1
READER_SUMS = TIME_COLUMNS + 2
POOLED_TIME_COLUMNS = READER_SUMS + SUM_COLUMNS
"""ASKED is when the client sent the request, SERVICE how long the server before the engine works on
it, and ARRIVAL when the engine has it. With separate pools, READ is the end of the prefill and
SENDING the start of the KV transfer."""

# `limits`: what the operator of the service has set, equal for all replicas.
(
    BLOCK,  # tokens per KV block
    WATERMARK,  # blocks kept free when a new request is admitted
    SEATS,  # requests that may hold memory
    BATCH_SEATS,  # requests in one batch
    BATCH_TOKENS,  # prompt tokens in one batch of whole prompts
    CHUNK,  # tokens in one batch of chunked prompts
    RESERVED,  # blocks a request may grow to, for policies that reserve
    STAGES,  # pipeline stages, each a server with a queue
    PATIENCE,  # decode iterations between looks at the queue, for policies that wait
    HOST,  # blocks the host holds for preempted requests; 0: these are restarted
    MOVE_NS,  # nanoseconds to move a block to or from the host
    CACHES,  # 1: blocks that nobody holds are found again until others take them
    RANKS,  # queues whose batches begin and end together, of one replica
    DRAFTED,  # tokens drafted for each decode at most, which its pass checks; 0: none
    SEED,  # of what is accepted of them
    DEPTH,  # of them that follow each other: fewer than DRAFTED where they branch
    HOST_KEEPS,  # blocks of prefixes that the host has room for; 0: it keeps none
    READERS,  # the first replicas, which read prompts for the others; 0: all do both
    LIFELONG,  # 1: who is let in takes blocks for its whole life, and keeps them
    OVERLAPS,  # 1: tokens are handed on while the next batch of prompts runs, so at its end
    DRAFT_LOAD,  # 1: those that wait count as if they ran, where drafts depend on how many do
    DRAFT_UP_TO,  # the first of the running requests up to which at least 1, 2 ... are drafted
) = range(22)
MOST_DRAFTED = 16
SURVIVE = DRAFT_UP_TO + MOST_DRAFTED
"""The first of the shares of iterations, times CERTAIN, that accept at least 1, 2 ... tokens."""
LIMITS = SURVIVE + MOST_DRAFTED
CERTAIN = 1 << 31
ALL_DECODES = 1 << 40

# One row of `pool`: a replica's counters.
(
    TOTAL,  # KV blocks
    FREE,  # of them
    HEAD,  # where the ring of waiting requests begins
    WAITING,  # requests in it
    IDLE,  # requests that hold memory and are in no batch
    HOLDERS,  # requests that hold memory
    BATCH,  # requests in the batch being formed
    ELAPSED,  # iterations the last decision was used for
    MEMO,  # a policy's own number
    OLDEST,  # slot of the batch that ends first
    FLIGHT,  # batches in flight
    ITERATIONS,
    BATCHED,  # requests summed over iterations
    TOKENS_SEEN,  # tokens summed over iterations
    RESTARTED,  # restarts
    MOST_USED,  # blocks, at most
    SWAPPED,  # requests whose blocks are on the host
    TOP,  # the last of them to go there, and the first to return
    HOSTED,  # their blocks
    MOVED,  # blocks moved since the last batch was formed
    SWAPS,  # times a request was moved to the host
    KEPT,  # free blocks whose content is found
    ROOT,  # row of `tree` before those of its nodes
    DRAFTS,  # tokens drafted for each decode of the batch that is formed or in flight
    ON_HOSTS,  # blocks of prefixes that the host has
    FETCHED,  # blocks moved back from there
    HANDED,  # requests whose prompts others have read, and for whose cache there is no room yet
    HANDED_HEAD,  # where their ring begins
) = range(28)
POOL_COLUMNS = 28

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
    EVERYWHERE,  # new tokens of all ranks, which experts and messages see
    UNEVEN,  # by what share messages take longer than of as many tokens that are dealt out evenly
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
    STAGE_FLOOR_S,
    FLOOR_S,
    STAGE_ADDED_S,
    ADDED_S,
    WAITING_W,
    UNTIL_KV,
    DRAFTS_SLOPE_S,
) = range(16)
PRICE_COLUMNS = 16
"""While the decodes' keys grow and stay below UNTIL_KV, the last stage works for
`busy = BASE_S + SLOPE_S * keys` and takes `max(FLOOR_S, busy) + ADDED_S`, and DRAFTS_SLOPE_S for
each key; so do the others with numbers of their own, but no drafts. All draw
`BASE_J + SLOPE_J * keys`, and WAITING_W each while not busy."""

# One row of `gauge`: a replica's sums over time.
(
    BLOCK_SECONDS,  # blocks in use, integrated
    CLOCK_S,  # until when
    BUSY_S,  # seconds of work, summed over stages
    JOULES,
    GAPS_S,  # gaps between tokens, summed over requests
    INSIDE_SECONDS,  # requests that wait or run, integrated
    SERVED_S,  # of the first replica: when the server before all of them is free again
    LINK_FREE_S,  # when what it sends or receives has passed its link
) = range(8)
GAUGE_COLUMNS = 8

SETUP_S, TOKEN_S, LAYERS = range(3)
"""`link`: seconds before a cache moves, seconds per token, and in how many parts each is sent while
the prompt is still read; 1: all of it afterwards."""

REPEATS, MADE, GROWTH, LEADS = range(4)
"""One row of `rounds`: how often a batch in flight may still be repeated, and how often it was; by
how many keys what it is priced by grows each time; and 1 if the iteration counts as this one's: of
batches that begin and end together one leads."""
ROUND_COLUMNS = 4

FIRST_END, LONGEST_S, STALL_S, BIN_LOW_S, BIN_HIGH_S, BIN = range(6)
"""One row of `timing`: when a batch's first round ended; of its later rounds the longest, the waits
in them, and the bin of the last one's gap."""
TIMING_COLUMNS = 6

# `clock`: what the whole service counts.
LISTED, ARRIVED, UNRELEASED, RELEASED, PASSED_ON, LOGGED = range(6)
CLOCK_COLUMNS = 6
"""Requests looked at in the list; arrived; the next one to release; on the heap; passed on from
replicas that read prompts; batches logged."""

QUEUED, RUNNING, FOUND, TOUCHED = range(4)
"""Rows of `load`: what routers see of each replica, and whether it was given a request just now."""
LOAD_ROWS = 4

RARE = True
"""Whether the kernels support the optional features: prefix caches, speculation, data-parallel
ranks, separate pools and swapping. Kernels are also compiled without them (`service.py`): they
compile in half the time and run faster."""

FOREVER = 1 << 40
"""Iterations of a decision that stands until a request arrives, ends or needs memory."""


class View(NamedTuple):
    """What a scheduler sees of its replica, and where it writes the batch it forms."""

    limits: Ints
    pool: Ints
    request: IntMatrix
    times: FloatMatrix
    waiting: Ints  # a ring, read by `pop_waiting`
    idle: Ints
    batch: Ints  # requests, and
    tokens: Ints  # what each is granted
    tree: IntMatrix  # of prefixes


VIEW: Any = struct(View)

SCHEDULE = i8(f8, VIEW)
"""now, view -> iterations the decision holds.

The kernel moves requests from `waiting` and `idle` to `batch`, writes how many tokens each gets and
counts them in `pool[BATCH]`. Returning more than 1 says that it would decide the same again while
nothing but context lengths changes; the loop may then repeat the batch without asking.
"""

ROUTE = i8(i8, *arrays(i8, 3), *arrays(f8, 1))
"""arrivals so far; of each replica waiting and running requests and how many thousandths of the
prompt its prefix cache has; two uniform draws -> replica."""

PRICE = f8(*arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 2))
"""step, shape, table, price -> seconds of the last stage; all of `price` is written."""


def kernel(signature: Signature) -> Callable[[Callable[A, R]], Kernel[A, R]]:
    """Compile the decorated function for `signature` when it is first called.

    A loop over events passes some twenty arrays from function to function. Counting who holds them,
    and handing them over at each call, costs ten times the simulation itself (0.28 against 0.026 us
    per iteration, measured on a 7B model with 10,000 requests). It protects nothing: the arrays
    belong to the caller for the whole run. So kernels borrow them, and dissolve in their callers.
    """
    return jit.kernel(signature, borrows=True)


@kernel(i8(*arrays(i8, 2)))
def pop_waiting(pool: Ints, waiting: Ints) -> int:
    """Take the request at the head of the queue."""
    head = pool[HEAD]
    request = waiting[head]
    pool[HEAD] = (head + 1) & (waiting.size - 1)
    pool[WAITING] -= 1
    return request  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), i8))
def push_waiting(pool: Ints, waiting: Ints, request: int) -> int:
    """Put a request at the end of the queue and return its length."""
    waiting[(pool[HEAD] + pool[WAITING]) & (waiting.size - 1)] = request
    pool[WAITING] += 1
    return pool[WAITING]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), i8))
def return_waiting(pool: Ints, waiting: Ints, request: int) -> int:
    """Put a request back at the front of the queue and return the queue's length."""
    head = (pool[HEAD] - 1) & (waiting.size - 1)
    waiting[head] = request
    pool[HEAD] = head
    pool[WAITING] += 1
    return pool[WAITING]  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8, i8))
def schedule_request(view: View, who: int, granted: int) -> int:
    """Add a request to the batch being formed and return the batch's size."""
    size = view.pool[BATCH]
    view.batch[size] = who
    view.tokens[size] = granted
    view.pool[BATCH] = size + 1
    return size + 1  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8, i8, i8))
def keep_idle(view: View, count: int, start: int, end: int) -> int:
    """Keep the first `count` idle requests and those from `start` to `end`; return how many."""
    for i in range(start, end):
        view.idle[count + i - start] = view.idle[i]
    view.pool[IDLE] = count + end - start
    return count + end - start


@kernel(i8(matrix(i8), *arrays(i8, 1), i8))
def sort_by_arrival(request: Ints, members: Ints, count: int) -> int:
    """Order `members[:count]` by arrival, equals as they stand, and return how many moved.

    Insertion: between two calls only restarted requests are out of place.
    """
    moved = 0
    for i in range(1, count):
        member = members[i]
        rank = request[member, RANK]
        j = i - 1
        while j >= 0 and request[members[j], RANK] > rank:
            members[j + 1] = members[j]
            j -= 1
        if j + 1 < i:
            members[j + 1] = member
            moved += 1
    return moved
