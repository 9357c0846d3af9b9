"""The arrays of a run, and operations on them: time integrals, histogram of gaps, heap of arrivals.

Rows are replicas, requests, or slots (a batch in flight in the pipeline of a replica).
"""

from __future__ import annotations

import functools
from math import frexp, ldexp
from typing import Any, NamedTuple

import numpy as np

from simulators.core.jit import FloatMatrix, Floats, IntMatrix, Ints, arrays, f8, i8, struct
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import kernel

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

BINS_PER_OCTAVE = 256
"""Gaps between tokens are counted in bins 0.27 to 0.39 % wide."""
LOWEST_OCTAVE, HIGHEST_OCTAVE = -20, 14
"""From 1 us to 4.5 h; what lies outside is counted at the edge."""
GAP_BINS = BINS_PER_OCTAVE * (HIGHEST_OCTAVE - LOWEST_OCTAVE)


class ReplicaState(NamedTuple):
    """All arrays of a run. Rows are replicas, requests, or slots (a batch in flight)."""

    limits: Ints  # those that all replicas share
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
    stages: FloatMatrix  # when each pipeline stage is free
    draws: FloatMatrix  # uniform random numbers of each request, for routers
    released: Floats  # heap of arrival times
    released_req: Ints  # requests of that heap
    clock: Ints
    gaps: Ints  # histogram of the gaps between tokens
    log: FloatMatrix  # one row per batch, up to its size
    tree: IntMatrix  # prefix tree: the steps of all requests' paths, then each replica's nodes
    shape: IntMatrix  # shape of the price tables of each pool
    table: FloatMatrix
    link: Floats  # between pools


STATE: Any = struct(ReplicaState)


@kernel(i8(f8))
def gap_bin(gap_s: float) -> int:
    """Return the histogram bin of a gap between two tokens."""
    fraction, exponent = frexp(gap_s)  # the fraction lies in [1/2, 1)
    place = int((2.0 * fraction - 1.0) * BINS_PER_OCTAVE)
    return min(max((exponent - 1 - LOWEST_OCTAVE) * BINS_PER_OCTAVE + place, 0), GAP_BINS - 1)


@kernel(f8(i8))
def gap_edge(place: int) -> float:
    """Return the lower edge of a bin, in seconds.

    >>> gap_edge(gap_bin(0.25))
    0.25
    """
    octave, step = place // BINS_PER_OCTAVE, place % BINS_PER_OCTAVE
    return ldexp(1.0 + step / BINS_PER_OCTAVE, octave + LOWEST_OCTAVE)


@functools.cache
def gap_edges_s() -> Floats:
    """Return the lower edges of the histogram's bins, and the upper edge of the last."""
    return np.array([gap_edge.py_func(place) for place in range(GAP_BINS + 1)])


@kernel(f8(*arrays(i8, 1), *arrays(f8, 1), f8))
def update_integrals(pool: Ints, gauge: Floats, now: float) -> float:
    """Advance the time integrals of a replica to now; return the block-seconds."""
    passed_s = now - gauge[at.CLOCK_S]
    gauge[at.BLOCK_SECONDS] += (pool[at.TOTAL_BLOCKS] - pool[at.FREE_BLOCKS]) * passed_s
    inside = pool[at.WAITING] + pool[at.WAITING_KV] + pool[at.NUM_RUNNING] + pool[at.NUM_SWAPPED]
    gauge[at.REQUEST_SECONDS] += inside * passed_s
    gauge[at.CLOCK_S] = now
    return gauge[at.BLOCK_SECONDS]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), i8, i8, i8))
def count_batch(pool: Ints, counts_iteration: int, size: int, tokens: int) -> int:
    """Count a batch, and an iteration if `counts_iteration` is 1; return the iterations so far."""
    pool[at.ITERATIONS] += counts_iteration
    pool[at.BATCHED_REQUESTS] += size
    pool[at.BATCHED_TOKENS] += tokens
    return pool[at.ITERATIONS]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8))
def pool_of(state: ReplicaState, replica: int) -> int:
    """Return the pool of a replica: the row of `own`, `shape` and `table`."""
    return 1 if 0 < state.limits[at.PREFILL_REPLICAS] <= replica else 0


@kernel(f8(STATE, i8, i8, i8))
def snapshot_sums(state: ReplicaState, replica: int, req: int, first: int) -> float:
    """Copy the sums of a replica to columns of a request that has left it."""
    pool, gauge, times = state.pool[replica], state.gauge[replica], state.times
    times[req, first] = gauge[at.BLOCK_SECONDS]
    times[req, first + 1], times[req, first + 2] = gauge[at.BUSY_S], gauge[at.JOULES]
    times[req, first + 3], times[req, first + 4] = pool[at.ITERATIONS], pool[at.BATCHED_REQUESTS]
    return gauge[at.BLOCK_SECONDS]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, i8, f8, f8))
def log_batch(state: ReplicaState, replica: int, slot: int, formed: float, end: float) -> int:
    """Write a row for a batch and return the number of rows."""
    clock, step, pool = state.clock, state.step[slot], state.pool[replica]
    row = state.log[clock[at.LOG_ROWS]]
    row[0], row[1], row[2] = replica, formed, end
    row[3], row[4] = step[at.PREFILLS] + step[at.DECODES], step[at.PREFILL_TOKENS]
    row[5], row[6] = step[at.TOKENS], pool[at.WAITING] + pool[at.NUM_SWAPPED]
    row[7], row[8] = pool[at.TOTAL_BLOCKS] - pool[at.FREE_BLOCKS], pool[at.NUM_DRAFTS]
    clock[at.LOG_ROWS] += 1
    return clock[at.LOG_ROWS]  # type: ignore[no-any-return]


@kernel(i8(STATE, f8, i8))
def push_release(state: ReplicaState, time: float, req: int) -> int:
    """Push an arrival on the heap, ordered by time and request; return the size of the heap."""
    times, requests = state.released, state.released_req
    place = state.clock[at.HEAP_SIZE]
    state.clock[at.HEAP_SIZE] = place + 1
    while place > 0:
        parent = (place - 1) // 2
        if (times[parent], requests[parent]) <= (time, req):
            break
        times[place], requests[place] = times[parent], requests[parent]
        place = parent
    times[place], requests[place] = time, req
    return state.clock[at.HEAP_SIZE]  # type: ignore[no-any-return]


@kernel(i8(STATE))
def pop_release(state: ReplicaState) -> int:
    """Pop the earliest arrival from the heap."""
    times, requests = state.released, state.released_req
    first, size = requests[0], state.clock[at.HEAP_SIZE] - 1
    state.clock[at.HEAP_SIZE] = size
    time, req = times[size], requests[size]
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and (times[child + 1], requests[child + 1]) < (
            times[child],
            requests[child],
        ):
            child += 1
        if (time, req) <= (times[child], requests[child]):
            break
        times[place], requests[place] = times[child], requests[child]
        place = child
    times[place], requests[place] = time, req
    return first  # type: ignore[no-any-return]


@kernel(f8(*arrays(f8, 1), *arrays(f8, 1), f8))
def pass_frontend(times: Floats, gauge: Floats, now: float) -> float:
    """Write when a released request is sent and when it leaves the frontend; return the latter.

    The frontend serves requests one after another; the delay to the engine does not queue.
    """
    delay_s = times[at.SENT]
    times[at.SENT] = times[at.ARRIVAL] + now
    gauge[at.FRONTEND_FREE_S] = max(gauge[at.FRONTEND_FREE_S], times[at.SENT]) + times[at.SERVICE]
    times[at.ARRIVAL] = gauge[at.FRONTEND_FREE_S] + delay_s
    return times[at.ARRIVAL]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def release_successor(state: ReplicaState, req: int, now: float) -> int:
    """Release the successor of a finished request, after its think time; return the successor."""
    follower = state.request[req, at.SUCCESSOR]
    if follower == at.NEXT_UNRELEASED:
        if state.clock[at.NEXT_SUCCESSOR] == state.request.shape[0]:
            return at.NO_SUCCESSOR
        follower = state.clock[at.NEXT_SUCCESSOR]
        state.clock[at.NEXT_SUCCESSOR] += 1
    if follower >= 0:
        pass_frontend(state.times[follower], state.gauge[0], now)
        push_release(state, state.times[follower, at.ARRIVAL], follower)
    return follower  # type: ignore[no-any-return]
