"""The state of a run, a few named arrays, and what the loop keeps in it: integrals, gaps, arrivals.

Rows are replicas, requests, or slots: the places for a batch in the pipeline of each replica.
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
    handed: IntMatrix  # ring of requests that wait for their KV transfer to this replica
    idle: IntMatrix
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
    released_who: Ints  # requests of that heap
    clock: Ints
    gaps: Ints  # histogram of the gaps between tokens
    log: FloatMatrix  # one row per batch while there is room
    tree: IntMatrix  # prefix tree: the steps of all requests' paths, then each replica's nodes
    shape: IntMatrix  # shape of the price tables of each pool
    table: FloatMatrix
    link: Floats  # between pools


STATE: Any = struct(ReplicaState)


@kernel(i8(f8))
def gap_bin(gap_s: float) -> int:
    """Return the bin of the histogram that a gap between two tokens is counted in."""
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
def tick(pool: Ints, gauge: Floats, now: float) -> float:
    """Bring a replica's time integrals up to now; return that of its blocks in use."""
    passed_s = now - gauge[at.CLOCK_S]
    gauge[at.BLOCK_SECONDS] += (pool[at.TOTAL] - pool[at.FREE]) * passed_s
    inside = pool[at.WAITING] + pool[at.HANDED] + pool[at.HOLDERS] + pool[at.SWAPPED]
    gauge[at.INSIDE_SECONDS] += inside * passed_s
    gauge[at.CLOCK_S] = now
    return gauge[at.BLOCK_SECONDS]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), i8, i8, i8))
def count(pool: Ints, leads: int, size: int, tokens: int) -> int:
    """Count a batch, and the iteration if it leads it; return how many there were."""
    pool[at.ITERATIONS] += leads
    pool[at.BATCHED] += size
    pool[at.TOKENS_SEEN] += tokens
    return pool[at.ITERATIONS]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8))
def pool_of(state: ReplicaState, replica: int) -> int:
    """Return the row of `own`, `shape` and `table` that is a replica's."""
    return 1 if 0 < state.limits[at.READERS] <= replica else 0


@kernel(f8(STATE, i8, i8, i8))
def keep_sums(state: ReplicaState, replica: int, who: int, first: int) -> float:
    """Keep what a replica's sums are with a request it is done with, from a column on."""
    pool, gauge, times = state.pool[replica], state.gauge[replica], state.times
    times[who, first] = gauge[at.BLOCK_SECONDS]
    times[who, first + 1], times[who, first + 2] = gauge[at.BUSY_S], gauge[at.JOULES]
    times[who, first + 3], times[who, first + 4] = pool[at.ITERATIONS], pool[at.BATCHED]
    return gauge[at.BLOCK_SECONDS]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, i8, f8, f8))
def log_batch(state: ReplicaState, replica: int, slot: int, formed: float, end: float) -> int:
    """Write a row for a batch and return the number of rows."""
    clock, step, pool = state.clock, state.step[slot], state.pool[replica]
    row = state.log[clock[at.LOGGED]]
    row[0], row[1], row[2] = replica, formed, end
    row[3], row[4] = step[at.PREFILLS] + step[at.DECODES], step[at.PREFILL_TOKENS]
    row[5], row[6] = step[at.TOKENS], pool[at.WAITING] + pool[at.SWAPPED]
    row[7], row[8] = pool[at.TOTAL] - pool[at.FREE], pool[at.DRAFTS]
    clock[at.LOGGED] += 1
    return clock[at.LOGGED]  # type: ignore[no-any-return]


@kernel(i8(STATE, f8, i8))
def push_release(state: ReplicaState, time: float, who: int) -> int:
    """Put an arrival on the heap, ordered by time and then by request; return its size."""
    times, whos = state.released, state.released_who
    place = state.clock[at.RELEASED]
    state.clock[at.RELEASED] = place + 1
    while place > 0:
        parent = (place - 1) // 2
        if (times[parent], whos[parent]) <= (time, who):
            break
        times[place], whos[place] = times[parent], whos[parent]
        place = parent
    times[place], whos[place] = time, who
    return state.clock[at.RELEASED]  # type: ignore[no-any-return]


@kernel(i8(STATE))
def pop_release(state: ReplicaState) -> int:
    """Take the earliest arrival off the heap."""
    times, whos = state.released, state.released_who
    first, size = whos[0], state.clock[at.RELEASED] - 1
    state.clock[at.RELEASED] = size
    time, who = times[size], whos[size]
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and (times[child + 1], whos[child + 1]) < (times[child], whos[child]):
            child += 1
        if (time, who) <= (times[child], whos[child]):
            break
        times[place], whos[place] = times[child], whos[child]
        place = child
    times[place], whos[place] = time, who
    return first  # type: ignore[no-any-return]


@kernel(f8(*arrays(f8, 1), *arrays(f8, 1), f8))
def pass_server(times: Floats, gauge: Floats, now: float) -> float:
    """Write when a released request is asked, and when it has passed the server; return that.

    The server works on one request after another; what else it takes to the engine does not queue.
    """
    delay_s = times[at.ASKED]
    times[at.ASKED] = times[at.ARRIVAL] + now
    gauge[at.SERVED_S] = max(gauge[at.SERVED_S], times[at.ASKED]) + times[at.SERVICE]
    times[at.ARRIVAL] = gauge[at.SERVED_S] + delay_s
    return times[at.ARRIVAL]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def release_successor(state: ReplicaState, who: int, now: float) -> int:
    """Let the request that waits for this one's end arrive after its think time; return it."""
    follower = state.request[who, at.SUCCESSOR]
    if follower == at.NEXT:
        if state.clock[at.UNRELEASED] == state.request.shape[0]:
            return at.NOBODY
        follower = state.clock[at.UNRELEASED]
        state.clock[at.UNRELEASED] += 1
    if follower >= 0:
        pass_server(state.times[follower], state.gauge[0], now)
        push_release(state, state.times[follower, at.ARRIVAL], follower)
    return follower  # type: ignore[no-any-return]
