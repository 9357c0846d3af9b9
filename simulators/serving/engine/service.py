"""Serves requests: initial state, event loop, delays of the API server, unfinished runs."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints, Kernel
from simulators.serving.demand.prefixes import ChainedPaths, Prefixes
from simulators.serving.demand.prefixes import own as own_paths
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import Frontend
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_transfer import INSTANT_LINK, KVLink
from simulators.serving.engine.limits import ReplicaLimits, Scheduler
from simulators.serving.engine.lookahead import WORD
from simulators.serving.engine.loop import run
from simulators.serving.engine.replica import LOG_COLUMNS, ReplicaState
from simulators.serving.engine.token_gaps import GAP_BINS
from simulators.serving.options import BACK, BELADY, LRU, SELECTIVE

MAP_NORESERVE = 0x4000
"""Linux's flag for pages that need not fit into memory; Python 3.13 names it in `mmap`."""

N = TypeVar("N", np.int64, np.float64)


@dataclass(frozen=True)
class EngineKernels:
    """The compiled scheduler, router and price of a run."""

    scheduler: Scheduler
    route: Kernel[..., int]
    price: Kernel[..., float]


@dataclass(frozen=True, kw_only=True)
class Decoders:
    """The decode replicas of separate pools, and their link to the prefill replicas."""

    limits: ReplicaLimits
    replicas: int
    shape: Ints
    table: Floats
    link: KVLink


def serve(
    engine: EngineKernels,
    limits: ReplicaLimits,
    requests: Requests,
    *,
    replicas: int,
    shape: Ints,
    table: Floats,
    log_rows: int = 0,
    decoders: Decoders | None = None,
) -> ReplicaState:
    """Run all requests and return the final state; every request must fit alone on a replica.

    `shape` and `table` are the price tables, `log_rows` the number of batches to log. A rank with a
    queue of its own is a replica of the state. With `decoders`, the replicas only prefill, and the
    decode replicas follow them in the state.

    Raises:
        UserError: a request never ends: the scheduler forms no batch, or a batch has no price.
    """
    state = initial_state(limits, requests, replicas, log_rows, shape, table, decoders)
    optional = _has_optional_features(state) or requests.graph is not None
    kernels = (run, engine.scheduler.schedule, engine.route, engine.price)
    loop, schedule, route, price = (
        each.where(OPTIONAL_FEATURES=optional).compiled for each in kernels
    )
    unfinished = loop(schedule, route, price, state)
    if unfinished:
        count = state.times.shape[0]
        raise UserError(f"{unfinished} of {count} requests never end: {_why(state, engine)}")
    return state


def after_frontend(asked: Requests, frontend: Frontend, replicas: int) -> Requests:
    """Return the requests with the service time and delay of one API server per replica."""
    service_s = np.asarray(frontend.token_s / replicas * asked.prompt_tokens, np.float64)
    return replace(
        asked, service_s=service_s, delay_s=frontend.request_s, stream_s=frontend.stream_s
    )


def seen_by_clients(state: ReplicaState) -> ReplicaState:
    """Return the state with the arrivals, first tokens and completions that clients see.

    LAST_TOKEN remains the time at which the engine emitted the last token.
    """
    times = state.times.copy()
    times[:, at.ARRIVAL] = times[:, at.SENT]
    times[:, at.FIRST_TOKEN] += times[:, at.LAG_S]
    times[:, at.COMPLETED] += times[:, at.LAG_S]
    return state._replace(times=times)


def _has_optional_features(state: ReplicaState) -> bool:
    """Return whether a run needs kernels with the optional features."""
    few = state.own[
        :, [at.PREFIX_CACHING, at.NUM_DRAFT_TOKENS, at.SWAP_CAPACITY, at.PREFILL_REPLICAS]
    ].any()
    return bool(few or (state.own[:, at.RANKS] > 1).any())


def initial_state(
    allowed: ReplicaLimits,
    asked: Requests,
    replicas: int,
    log_rows: int,
    shape: Ints,
    table: Floats,
    decoders: Decoders | None = None,
) -> ReplicaState:
    """Return the state before the first arrival; the arguments are those of `serve`."""
    pools = [allowed] if decoders is None else [allowed, decoders.limits]
    own, count = np.stack([pool.vector() for pool in pools]), asked.arrival_s.size
    own[:, at.STREAM_NS] = np.round(asked.stream_s * own[:, at.RANKS] * 1e9)
    replicas *= allowed.ranks
    entry_replicas = replicas
    if decoders:
        own[:, at.PREFILL_REPLICAS] = replicas
        own[0, at.RESERVES_OUTPUT], own[0, at.PREFILLS_ONLY] = 0, 1
        replicas += decoders.replicas * decoders.limits.ranks
    stages, capacity = allowed.stages, max(pool.max_num_seqs for pool in pools) + 1
    batches = allowed.max_concurrent_batches
    routable = entry_replicas if asked.routable is None else asked.routable * allowed.ranks
    request, times = _initial_requests(
        asked, routable, is_pooled=decoders is not None, tiers=len(allowed.tiers)
    )
    listed = request[:, at.REPLICA] != at.NOT_RELEASED
    pool = np.zeros((replicas, at.POOL_COLUMNS), np.int64)
    pool[:, at.TOTAL_BLOCKS] = allowed.blocks
    if decoders:
        pool[own[0, at.PREFILL_REPLICAS] :, at.TOTAL_BLOCKS] = decoders.limits.blocks
    pool[:, at.FREE_BLOCKS] = pool[:, at.TOTAL_BLOCKS]
    clock = np.zeros(at.CLOCK_COLUMNS, np.int64)
    clock[at.NEXT_SUCCESSOR] = count if listed.all() else listed.argmin()
    released = count * ((not listed.all()) + (decoders is not None) + allowed.loads_request)
    graph = _graph(asked, count)
    if asked.graph is not None:
        released += asked.graph.gate_kind.size
        clock[at.NEXT_SUCCESSOR] = count
        clock[at.NEXT_SESSION] = asked.graph.first_session
        clock[at.LAST_SESSION] = asked.graph.sessions_end
    heap, heap_req = np.empty(released), np.empty(released, np.int64)
    if asked.graph is not None:  # times in order are a heap
        order = np.lexsort((asked.graph.opened, asked.graph.opened_s))
        clock[at.HEAP_SIZE] = order.size
        heap[: order.size] = asked.graph.opened_s[order]
        heap_req[: order.size] = asked.graph.opened[order]
    tree = _tree(own, allowed, asked, request, pool)
    begins = tree[request[:, at.PATH], at.HOLDERS_ROW] if tree.size else np.zeros(0, np.int64)
    first_nodes = int(begins.max(initial=-1)) + 1
    are_local = not any(tier.is_shared for tier in allowed.tiers)
    is_written_back = bool(allowed.tiers) and allowed.write_policy == BACK
    knows_holders = (
        decoders is None and are_local and not is_written_back and not allowed.view_refresh_s
    )
    postpones = knows_holders and batches == 1 and not log_rows
    postpones &= not allowed.num_draft_tokens and not allowed.loads_request
    ring = 1 << max(count - 1, 1).bit_length()
    slots = replicas * batches
    step = np.zeros((slots, at.STEP_COLUMNS))
    return ReplicaState(
        limits=own[0],
        own=own,
        request=request,
        times=times,
        pool=pool,
        gauge=np.zeros((replicas, at.GAUGE_COLUMNS)),
        load=np.zeros((at.LOAD_ROWS, replicas), np.int64),
        waiting=_sparse_zeros(replicas, ring),
        waiting_kv=np.empty((replicas, ring if decoders else 1), np.int64),
        running=np.empty((replicas, capacity), np.int64),
        batch=np.empty((slots, capacity), np.int64),
        tokens=np.empty((slots, capacity), np.int64),
        sizes=np.zeros(slots, np.int64),
        rounds=np.zeros((slots, at.ROUND_COLUMNS), np.int64),
        timing=np.zeros((slots, at.TIMING_COLUMNS)),
        step=step,
        priced=step if (own[:, at.RANKS] == 1).all() else np.zeros_like(step),
        price=np.zeros((slots, 3 * at.PRICE_COLUMNS)),  # a drafter has one of its own
        crossings=np.zeros((slots, allowed.block_size), np.int64),
        in_flight=np.tile(np.arange(batches), (replicas, 1)),
        ends=np.zeros((replicas, batches)),
        finishes=np.full(replicas if postpones and released else 0, np.inf),
        holders=np.zeros((first_nodes * knows_holders, -(-replicas // WORD)), np.int64),
        stages=np.zeros((replicas, stages)),
        draws=_draws(asked),
        released=heap,
        released_req=heap_req,
        clock=clock,
        gaps=np.zeros(GAP_BINS, np.int64),
        log=np.empty((log_rows, len(LOG_COLUMNS))),
        tree=tree,
        shape=_side_by_side(shape, decoders.shape if decoders else None),
        table=_side_by_side(table, decoders.table if decoders else None),
        link=(decoders.link if decoders else INSTANT_LINK).vector(),
        **graph,
    )


def _draws(asked: Requests) -> Floats:
    """Return uniform random numbers for routers: two of each request, and one of its session."""
    of_session = asked.draws[:, 0]
    if asked.session is not None:
        of_session = of_session[np.unique(asked.session, return_inverse=True)[1]]
    return np.column_stack([asked.draws, of_session])


def _graph(asked: Requests, count: int) -> dict[str, Any]:
    """Return the arrays of the graph of requests; empty without a graph."""
    sending = np.array([0.0, np.inf, np.inf])
    found = asked.graph
    if found is None:
        return {
            "graph": np.zeros((0, at.GRAPH_COLUMNS), np.int64),
            "edges": np.zeros(0, np.int64),
            "edge_delay_s": np.zeros(0),
            "ready_s": np.zeros(0),
            "sending": sending,
        }
    sending[at.DURATION_S] = found.duration_s
    nodes = count + found.gate_kind.size
    order = np.lexsort((~found.on_dispatch, found.before))
    graph = np.zeros((nodes, at.GRAPH_COLUMNS), np.int64)
    every = np.bincount(found.before, minlength=nodes)
    early = np.bincount(found.before[found.on_dispatch], minlength=nodes)
    graph[:, at.PENDING], graph[count:, at.GATE] = found.pending, found.gate_kind
    graph[:, at.EDGES_END] = np.cumsum(every)
    graph[:, at.DISPATCH_EDGES] = graph[:, at.EDGES_END] - every
    graph[:, at.ANSWER_EDGES] = graph[:, at.DISPATCH_EDGES] + early
    return {
        "graph": graph,
        "edges": found.after[order],
        "edge_delay_s": found.delay_s[order],
        "ready_s": np.zeros(nodes),
        "sending": sending,
    }


def _initial_requests(
    asked: Requests, routable: Ints | int, *, is_pooled: bool, tiers: int
) -> tuple[Ints, Floats]:
    """Return the initial columns and times of requests.

    `routable` is the number of replicas that can receive each request. If no request waits for
    another, all times at the API server are known.
    """
    count = asked.arrival_s.size
    follower, is_follow_up = _followers(asked)
    columns = at.NUM_LOADED + tiers if tiers else at.REQUEST_COLUMNS
    request = np.zeros((count, columns), np.int64)
    request[:, at.PROMPT], request[:, at.OUTPUT] = asked.prompt_tokens, asked.output_tokens
    request[:, at.GIVEN_PROMPT] = asked.prompt_tokens
    request[:, at.SUCCESSOR], request[:, at.ROUTABLE] = follower, routable
    request[:, at.REPLICA] = np.where(is_follow_up, at.NOT_RELEASED, at.UNROUTED)
    times = np.full((count, at.POOLED_TIME_COLUMNS if is_pooled else at.TIME_COLUMNS), -1.0)
    times[:, at.ARRIVAL], times[:, at.SENT] = asked.arrival_s, asked.delay_s
    times[:, at.SERVICE] = asked.service_s
    if not is_follow_up.any():
        served_s = fifo_departures(asked.arrival_s, times[:, at.SERVICE])
        times[:, at.SENT], times[:, at.ARRIVAL] = asked.arrival_s, served_s + asked.delay_s
        times[:, at.SERVICE] = -1.0
    times[:, at.STALLED] = times[:, at.LONGEST_GAP] = times[:, at.LAG_S] = 0.0
    return request, times


def _side_by_side(first: NDArray[N], second: NDArray[N] | None) -> NDArray[N]:
    """Return the arrays of one pool, or of two, as rows of a matrix."""
    if second is None:
        return first[None, :]
    rows = np.zeros((2, max(first.size, second.size)), first.dtype)
    rows[0, : first.size], rows[1, : second.size] = first, second
    return rows


def _tree(own: Ints, allowed: ReplicaLimits, asked: Requests, request: Ints, pool: Ints) -> Ints:
    """Return the paths of all requests and an empty prefix tree of each replica.

    Writes the places of paths and trees to `request` and `pool`, and those of optional columns to
    the limits in `own`. Empty without a prefix cache.
    """
    if not allowed.prefix_caching:
        return np.zeros((0, at.TREE_COLUMNS), np.int64)
    shared = asked.prefixes or own_paths(asked.prompt_tokens + asked.output_tokens)
    if isinstance(shared, ChainedPaths) and allowed.eviction == BELADY:
        shared = shared.expanded()  # the next use of a node differs by request
    nodes, ends = shared.nodes, shared.ends
    if isinstance(shared, ChainedPaths):
        request[:, at.PATH], request[:, at.PATH_END] = shared.begins, shared.stops + 1
        request[:, at.LAST_STEP] = nodes.size + np.arange(shared.begins.size)
        nodes = np.concatenate([nodes, shared.own_nodes()])
        ends = np.concatenate([ends, shared.last_ends])
    else:
        request[:, at.PATH_END], request[:, at.LAST_STEP] = shared.stops, shared.stops - 1
        request[1:, at.PATH] = shared.stops[:-1]
    steps, rows = nodes.size, int(nodes.max()) + 2
    pool[:, at.TREE_ROOT] = roots = steps + rows * np.arange(pool.shape[0])
    for tier, one in enumerate(allowed.tiers):
        pool[:, at.TIER_ROOT + tier] = roots[0] if one.is_shared else roots
    columns = at.TREE_COLUMNS + at.TIER_COLUMNS * len(allowed.tiers)
    needed = {
        at.USES_COLUMN: allowed.write_policy == SELECTIVE,
        at.NEXT_USE_COLUMN: allowed.eviction == BELADY,
        at.SEEN_COLUMN: allowed.view_refresh_s > 0.0,
    }
    for name in (name for name, is_needed in needed.items() if is_needed):
        own[:, name], columns = columns, columns + 1
    own[:, at.TREE_ROWS], own[:, at.FIRST_ROOT] = rows, roots[0]
    tree = _sparse_zeros(steps + rows * roots.size, columns)
    tree[:steps, at.NODE], tree[:steps, at.END] = nodes, ends // allowed.block_size
    first = request[:, at.PATH]
    tree[first, at.HOLDERS_ROW] = np.unique(nodes[first], return_inverse=True)[1].reshape(-1)
    if isinstance(shared, Prefixes) and allowed.eviction == BELADY:
        tree[:steps, at.NEXT_USE] = shared.next_uses()
    rings = [at.NEWER]
    if allowed.eviction == LRU:
        rings += [
            at.TREE_COLUMNS + at.TIER_COLUMNS * tier + at.TIER_NEWER
            for tier in range(len(allowed.tiers))
        ]
    for ring in rings:
        tree[roots, ring] = tree[roots, ring + 1] = roots
    return tree


def _sparse_zeros(rows: int, columns: int) -> Ints:
    """Return zeros whose memory is taken page by page, where a replica writes.

    A replica sees few of all prefixes and requests. numpy asks for huge pages, each of which holds
    nodes of many sessions: a trace on many replicas would take the memory of all their trees.
    """
    if rows * columns == 0 or not hasattr(mmap, "MADV_NOHUGEPAGE"):  # not on Linux
        return np.zeros((rows, columns), np.int64)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    try:
        pages = mmap.mmap(-1, 8 * rows * columns, flags=flags)
    except OSError as error:
        raise UserError(
            f"the prefix trees of all replicas need {8e-12 * rows * columns:,.0f} TB of addresses; "
            "ask for fewer requests, or fewer replicas"
        ) from error
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.int64, rows * columns).reshape(rows, columns)


def fifo_departures(arrival_s: Floats, service_s: Floats) -> Floats:
    """Return the departures from a server that serves requests one after another.

    >>> fifo_departures(np.array([0.0, 0.0, 5.0]), np.array([1.0, 2.0, 1.0])).tolist()
    [1.0, 3.0, 6.0]
    """
    worked_s = np.cumsum(service_s)
    start_s: Floats = np.maximum.accumulate(arrival_s - (worked_s - service_s))
    return start_s + worked_s


def _followers(requests: Requests) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the successor of each request, and a mask of the requests with a predecessor."""
    count = requests.arrival_s.size
    if requests.graph is not None:
        return np.full(count, at.BY_GRAPH), np.ones(count, np.bool_)
    if requests.session is not None:
        later = np.diff(requests.session, prepend=-1) == 0
        return np.where(
            np.append(later[1:], False), np.arange(1, count + 1), at.NO_SUCCESSOR
        ), later
    is_follow_up = np.arange(count) >= (requests.clients or count)
    successor = at.NEXT_UNRELEASED if is_follow_up.any() else at.NO_SUCCESSOR
    return np.full(count, successor), is_follow_up


def _why(state: ReplicaState, engine: EngineKernels) -> str:
    """Return the reason why requests of a run are unfinished."""
    unpriced = np.flatnonzero(np.isnan(state.ends).ravel())
    if unpriced.size == 0:
        return f"scheduler '{engine.scheduler.schedule.__module__}' forms no batch while they wait"
    step = state.priced[unpriced[0]]
    mean = step[at.DECODE_KV] / max(step[at.DECODES], 1.0)
    return (
        f"no time is known for a batch of {step[at.TOKENS]:.0f} tokens with "
        f"{step[at.DECODES]:.0f} decodes of {mean:.0f} keys on average and "
        f"{step[at.PREFILLS]:.0f} prefills of {step[at.PREFILL_TOKENS]:.0f} tokens"
    )
