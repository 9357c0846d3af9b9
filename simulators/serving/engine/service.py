"""Serves requests: sets the state of all replicas up, runs the loop and says what stopped it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints, Kernel
from simulators.serving.demand.prefixes import own
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import ReplicaLimits
from simulators.serving.engine.loop import run
from simulators.serving.engine.policies import Scheduler
from simulators.serving.engine.state import GAP_BINS, LOG_COLUMNS, ReplicaState
from simulators.serving.pools.link import NO_WAY, KVLink

N = TypeVar("N", np.int64, np.float64)


@dataclass(frozen=True)
class EngineKernels:
    """The compiled policies and prices a run goes by."""

    scheduler: Scheduler
    route: Kernel[..., int]
    price: Kernel[..., float]


@dataclass(frozen=True, kw_only=True)
class Decoders:
    """Replicas that decode what others have read, and the link by which they get its cache."""

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
    """Return the state after the last request has left; each could run alone on a replica.

    `shape` and `table` are what the price kernel reads, `log_rows` the batches to log. Where ranks
    have queues of their own, each is a replica of the state. Where others decode, the replicas read
    prompts only, and those others follow them in the state.

    Raises:
        UserError: a request never ends, for want of a batch or of a batch's price.
    """
    state = initial_state(limits, requests, replicas, log_rows, shape, table, decoders)
    rare, kernels = _is_rare(state), (run, engine.scheduler.schedule, engine.route, engine.price)
    loop, schedule, route, price = (each.where(RARE=rare).compiled for each in kernels)
    left = loop(schedule, route, price, state)
    if left:
        count = state.times.shape[0]
        raise UserError(f"{left} of {count} requests never end: {_why(state, engine)}")
    return state


def _is_rare(state: ReplicaState) -> bool:
    """Return whether a run may have what few have, which loops are compiled without too."""
    few = state.own[:, [at.CACHES, at.DRAFTED, at.HOST, at.READERS]].any()
    return bool(few or state.limits[at.RANKS] > 1)


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
    replicas *= allowed.ranks
    doors = replicas
    if decoders:
        own[:, at.READERS] = replicas
        own[0, at.LIFELONG] = 0
        replicas += decoders.replicas * allowed.ranks
    stages, seats = allowed.stages, max(pool.seats for pool in pools) + 1
    there = doors if asked.routable is None else asked.routable * allowed.ranks
    request, times, served_s = _asked_for(asked, there, is_pooled=decoders is not None)
    listed = request[:, at.REPLICA] != at.UNBORN
    gauge = np.zeros((replicas, at.GAUGE_COLUMNS))
    if asked.clients:
        gauge[0, at.SERVED_S] = served_s[-1]
    pool = np.zeros((replicas, at.POOL_COLUMNS), np.int64)
    pool[:, at.TOTAL] = allowed.blocks
    if decoders:
        pool[own[0, at.READERS] :, at.TOTAL] = decoders.limits.blocks
    pool[:, at.FREE] = pool[:, at.TOTAL]
    clock = np.zeros(at.CLOCK_COLUMNS, np.int64)
    clock[at.UNRELEASED] = count if listed.all() else listed.argmin()
    released = int(np.count_nonzero(~listed)) + (count if decoders else 0)
    ring = 1 << max(count - 1, 1).bit_length()
    slots = replicas * stages
    step = np.zeros((slots, at.STEP_COLUMNS))
    return ReplicaState(
        limits=own[0],
        own=own,
        request=request,
        times=times,
        pool=pool,
        gauge=gauge,
        load=np.zeros((at.LOAD_ROWS, replicas), np.int64),
        waiting=np.empty((replicas, ring), np.int64),
        handed=np.empty((replicas, ring if decoders else 1), np.int64),
        idle=np.empty((replicas, seats), np.int64),
        batch=np.empty((slots, seats), np.int64),
        tokens=np.empty((slots, seats), np.int64),
        sizes=np.zeros(slots, np.int64),
        rounds=np.zeros((slots, at.ROUND_COLUMNS), np.int64),
        timing=np.zeros((slots, at.TIMING_COLUMNS)),
        step=step,
        priced=step if allowed.ranks == 1 else np.zeros_like(step),
        price=np.zeros((slots, 3 * at.PRICE_COLUMNS)),  # a drafter has one of its own
        crossings=np.zeros((slots, allowed.block_size), np.int64),
        in_flight=np.tile(np.arange(stages), (replicas, 1)),
        ends=np.zeros((replicas, stages)),
        stages=np.zeros((replicas, stages)),
        draws=asked.draws.copy(),  # kernels take writable arrays
        released=np.empty(released),
        released_who=np.empty(released, np.int64),
        clock=clock,
        gaps=np.zeros(GAP_BINS, np.int64),
        log=np.empty((log_rows, len(LOG_COLUMNS))),
        tree=_tree(allowed, asked, request, pool),
        shape=_side_by_side(shape, decoders.shape if decoders else None),
        table=_side_by_side(table, decoders.table if decoders else None),
        link=(decoders.link if decoders else NO_WAY).vector(),
    )


def _asked_for(
    asked: Requests, routable: Ints | int, *, is_pooled: bool
) -> tuple[Ints, Floats, Floats]:
    """Return the columns of requests, their times, and when the server takes in those listed.

    Args:
        asked: the requests.
        routable: replicas that each may be sent to.
        is_pooled: some replicas read prompts and others decode.
    """
    count = asked.arrival_s.size
    follower, unborn = _followers(asked)
    request = np.zeros((count, at.REQUEST_COLUMNS), np.int64)
    request[:, at.PROMPT], request[:, at.OUTPUT] = asked.prompt_tokens, asked.output_tokens
    request[:, at.SUCCESSOR], request[:, at.ROUTABLE] = follower, routable
    request[:, at.REPLICA] = np.where(unborn, at.UNBORN, at.UNROUTED)
    times = np.full((count, at.POOLED_TIME_COLUMNS if is_pooled else at.TIME_COLUMNS), -1.0)
    times[:, at.ARRIVAL] = asked.arrival_s
    times[:, at.SERVICE] = asked.service_s
    times[:, at.ASKED] = np.where(unborn, asked.delay_s, asked.arrival_s)
    listed = ~unborn
    served_s = fifo_departures(asked.arrival_s[listed], times[listed, at.SERVICE])
    times[listed, at.ARRIVAL] = served_s + asked.delay_s
    times[:, at.STALLED] = times[:, at.LONGEST_GAP] = 0.0
    return request, times, served_s


def _side_by_side(first: NDArray[N], second: NDArray[N] | None) -> NDArray[N]:
    """Return what a kernel reads of one pool of replicas, or of two, in a row each."""
    if second is None:
        return first[None, :]
    rows = np.zeros((2, max(first.size, second.size)), first.dtype)
    rows[0, : first.size], rows[1, : second.size] = first, second
    return rows


def _tree(allowed: ReplicaLimits, asked: Requests, request: Ints, pool: Ints) -> Ints:
    """Return the paths of requests, and each replica's tree, of which it has nothing yet.

    Requests and replicas learn where theirs are. Without a prefix cache there is nothing.
    """
    if not allowed.caches:
        return np.zeros((0, at.TREE_COLUMNS), np.int64)
    shared = asked.prefixes or own(asked.prompt_tokens + asked.output_tokens)
    request[:, at.PATH_END] = shared.stops
    request[1:, at.PATH] = shared.stops[:-1]
    steps, rows = shared.nodes.size, int(shared.nodes.max()) + 2
    pool[:, at.ROOT] = roots = steps + rows * np.arange(pool.shape[0])
    tree = np.zeros((steps + rows * roots.size, at.TREE_COLUMNS), np.int64)
    tree[:steps, at.NODE], tree[:steps, at.END] = shared.nodes, shared.ends // allowed.block_size
    for ring in (at.NEWER, at.HOST_NEWER):
        tree[roots, ring] = tree[roots, ring + 1] = roots
    return tree


def fifo_departures(arrival_s: Floats, service_s: Floats) -> Floats:
    """Return when each of some requests has passed a server that takes one after another.

    >>> fifo_departures(np.array([0.0, 0.0, 5.0]), np.array([1.0, 2.0, 1.0])).tolist()
    [1.0, 3.0, 6.0]
    """
    worked_s = np.cumsum(service_s)
    begun: Floats = np.maximum.accumulate(arrival_s - (worked_s - service_s))
    return begun + worked_s


def _followers(requests: Requests) -> tuple[Ints, NDArray[np.bool_]]:
    """Return whom each request's end releases, and who waits to be released."""
    count = requests.arrival_s.size
    if requests.session is not None:
        later = np.diff(requests.session, prepend=-1) == 0
        return np.where(np.append(later[1:], False), np.arange(1, count + 1), at.NOBODY), later
    unborn = np.arange(count) >= (requests.clients or count)
    return np.full(count, at.NEXT if requests.clients else at.NOBODY), unborn


def _why(state: ReplicaState, engine: EngineKernels) -> str:
    """Say what stopped a run before its end."""
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
