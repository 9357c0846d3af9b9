"""The state of a run, a few named arrays, and what the loop keeps in it: integrals, gaps, arrivals.

Rows are replicas, requests, or slots: the places for a batch in the pipeline of each replica.
"""

from __future__ import annotations

import functools
from math import frexp, ldexp
from typing import Any, NamedTuple

import numpy as np

from simulators.core.jit import Floats, Ints, array, arrays, f8, i8, matrix, named_tuple
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


class State(NamedTuple):
    """All that changes in a run."""

    limits: Ints  # those that all replicas have in common
    own: Ints  # of each pool of replicas: one, or those that read prompts and those that decode
    request: Ints
    times: Floats
    pool: Ints
    gauge: Floats
    load: Ints
    waiting: Ints  # per replica a ring, its length a power of two
    handed: Ints  # the same of requests whose prompts others have read
    idle: Ints
    batch: Ints  # per place in a pipeline: the requests in flight,
    tokens: Ints  # what each was granted,
    sizes: Ints  # their number,
    rounds: Ints
    timing: Floats
    step: Floats  # its sums,
    priced: Floats  # the sums it is priced by: its own, or those of all ranks that step with it,
    price: Floats  # what they cost,
    crossings: Ints  # and requests that need a block, by iteration modulo the block size
    in_flight: Ints  # per replica a ring of its slots: from OLDEST on those in flight, as they end,
    ends: Floats  # and when they end, by place
    stages: Floats  # per replica, when each stage is free
    draws: Floats  # per request, for routers
    released: Floats  # a heap of arrival times, and
    released_who: Ints  # the requests that arrive then
    clock: Ints
    gaps: Ints  # histogram of the gaps between tokens
    log: Floats  # one row per batch while there is room
    tree: Ints  # of prefixes: the steps of all requests' paths, then of each replica its nodes
    shape: Ints  # of the price tables, a row for each pool
    table: Floats
    link: Floats  # between pools


_I, _F = array(i8), array(f8)
_II, _FF = matrix(i8), matrix(f8)
STATE: Any = named_tuple(
    (
        _I,
        _II,
        _II,
        _FF,
        _II,
        _FF,
        _II,
        _II,
        _II,
        _II,
        _II,
        _II,
        _I,
        _II,
        _FF,
        _FF,
        _FF,
        _FF,
        _II,
        _II,
        _FF,
        _FF,
        _FF,
        _F,
        _I,
        _I,
        _I,
        _FF,
        _II,
        _II,
        _FF,
        _F,
    ),
    State,
)


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
def pool_of(state: State, replica: int) -> int:
    """Return the row of `own`, `shape` and `table` that is a replica's."""
    return 1 if 0 < state.limits[at.READERS] <= replica else 0


@kernel(f8(STATE, i8, i8, i8))
def keep_sums(state: State, replica: int, who: int, first: int) -> float:
    """Keep what a replica's sums are with a request it is done with, from a column on."""
    pool, gauge, times = state.pool[replica], state.gauge[replica], state.times
    times[who, first] = gauge[at.BLOCK_SECONDS]
    times[who, first + 1], times[who, first + 2] = gauge[at.BUSY_S], gauge[at.JOULES]
    times[who, first + 3], times[who, first + 4] = pool[at.ITERATIONS], pool[at.BATCHED]
    return gauge[at.BLOCK_SECONDS]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, i8, f8, f8))
def log_batch(state: State, replica: int, slot: int, formed: float, end: float) -> int:
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
def push_release(state: State, time: float, who: int) -> int:
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
def pop_release(state: State) -> int:
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


@kernel(i8(STATE, i8, f8))
def let_go(state: State, who: int, now: float) -> int:
    """Note that a request has left; return 1."""
    state.times[who, at.LEFT] = now
    release_successor(state, who, now)
    return 1


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
def release_successor(state: State, who: int, now: float) -> int:
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
