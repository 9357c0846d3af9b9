"""The state of a run is a few named arrays; rows are replicas, places in a pipeline or requests."""

from __future__ import annotations

import functools
from math import frexp, inf, ldexp
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats, Ints, array, arrays, f8, i8, matrix, named_tuple
from simulators.serving.engine.batch import (
    DECODES,
    PREFILL_TOKENS,
    PREFILLS,
    PRICE_COLUMNS,
    STEP_COLUMNS,
    TOKENS,
)
from simulators.serving.engine.replica import (
    ARRIVAL,
    BATCHED,
    BLOCK,
    FREE,
    HOLDERS,
    ITERATIONS,
    LEAVES,
    LONGEST_GAP,
    OUTPUT,
    POOL_COLUMNS,
    PROMPT,
    REPLICA,
    REQUEST_COLUMNS,
    SEATS,
    STAGES,
    STALLED,
    SUCCESSOR,
    SWAPPED,
    TIME_COLUMNS,
    TOKENS_SEEN,
    TOTAL,
    UNBORN,
    UNROUTED,
    WAITING,
    kernel,
)

# One row of `gauge`: a replica's sums over time.
(
    BLOCK_SECONDS,  # blocks in use, integrated
    CLOCK_S,  # until when
    BUSY_S,  # seconds of work, summed over stages
    JOULES,
    GAPS_S,  # gaps between tokens, summed over requests
    INSIDE_SECONDS,  # requests that wait or run, integrated
    NEXT_LEAVE,  # no client gives up before
) = range(7)
GAUGE_COLUMNS = 7

REPEATS, MADE = range(2)
"""One row of `rounds`: how often a batch in flight may still be repeated, and how often it was."""

FIRST_END, LONGEST_S, STALL_S, BIN_LOW_S, BIN_HIGH_S, BIN = range(6)
"""One row of `paces`: when a batch's first round ended; of its later rounds the longest, the waits
in them, and the bin of the last one's gap."""
PACE_COLUMNS = 6

# `clock`: what the whole service counts.
LISTED, ARRIVED, UNRELEASED, RELEASED, LOGGED = range(5)
CLOCK_COLUMNS = 5
"""Requests looked at in the list; arrived; the next one to release; on the heap; batches logged."""

QUEUED, RUNNING, TOUCHED = range(3)
"""Rows of `load`: what routers see of each replica, and whether it was given a request just now."""

LOG_COLUMNS = (
    "replica", "formed_s", "end_s", "requests", "prompt_tokens", "tokens", "waiting", "kv_blocks",
)  # fmt: skip

BINS_PER_OCTAVE = 256
"""Gaps between tokens are counted in bins 0.27 to 0.39 % wide."""
LOWEST_OCTAVE, HIGHEST_OCTAVE = -20, 14
"""From 1 us to 4.5 h; what lies outside is counted at the edge."""
GAP_BINS = BINS_PER_OCTAVE * (HIGHEST_OCTAVE - LOWEST_OCTAVE)


class World(NamedTuple):
    """All that changes in a run."""

    limits: Ints
    request: Ints
    times: Floats
    pool: Ints
    gauge: Floats
    load: Ints
    waiting: Ints  # per replica a ring, its length a power of two
    idle: Ints
    batch: Ints  # per place in a pipeline: the requests in flight,
    tokens: Ints  # what each was granted,
    sizes: Ints  # their number,
    rounds: Ints
    paces: Floats
    step: Floats  # its sums,
    price: Floats  # what they cost,
    crossings: Ints  # and requests that need a block, by iteration modulo the block size
    places: Ints  # per replica a ring of places: from OLDEST on those in flight, as they end,
    ends: Floats  # and when they end, by place
    stages: Floats  # per replica, when each stage is free
    draws: Floats  # per request, for routers
    released: Floats  # a heap of arrival times, and
    released_who: Ints  # the requests that arrive then
    clock: Ints
    gaps: Ints  # histogram of the gaps between tokens
    log: Floats  # one row per batch while there is room
    shape: Ints  # of the price table
    table: Floats


_I, _F = array(i8), array(f8)
_II, _FF = matrix(i8), matrix(f8)
WORLD: Any = named_tuple(
    (
        _I, _II, _FF, _II, _FF, _II, _II, _II, _II, _II, _I, _II, _FF, _FF, _FF, _II, _II, _FF,
        _FF, _FF, _F, _I, _I, _I, _FF, _I, _F,
    ),
    World,
)  # fmt: skip


def new_world(
    *,
    limits: Ints,
    blocks: int,
    replicas: int,
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    successor: Ints,
    unborn: NDArray[np.bool_],
    draws: Floats,
    shape: Ints,
    table: Floats,
    patience_s: Floats | float = inf,
    log_rows: int = 0,
) -> World:
    """Return the state before the first arrival.

    Args:
        limits: as named in `replica`.
        blocks: KV blocks of each replica.
        replicas: how many there are.
        arrival_s: in order; for a request that another one's end releases, its think time.
        prompt_tokens: per request.
        output_tokens: per request.
        successor: per request, the request that its end releases, `NOBODY` or `NEXT`.
        unborn: per request, whether it arrives only when another one's end releases it.
        draws: two uniform numbers per request.
        shape: of the price table.
        table: what the price kernel reads.
        patience_s: per request, how long after its arrival the client gives up.
        log_rows: batches to log.
    """
    count, stages, seats = arrival_s.size, int(limits[STAGES]), int(limits[SEATS]) + 1
    request = np.zeros((count, REQUEST_COLUMNS), np.int64)
    request[:, PROMPT], request[:, OUTPUT] = prompt_tokens, output_tokens
    request[:, SUCCESSOR], request[:, REPLICA] = successor, np.where(unborn, UNBORN, UNROUTED)
    times = np.full((count, TIME_COLUMNS), -1.0)
    times[:, ARRIVAL], times[:, STALLED], times[:, LONGEST_GAP] = arrival_s, 0.0, 0.0
    times[:, LEAVES] = patience_s
    gauge = np.zeros((replicas, GAUGE_COLUMNS))
    gauge[:, NEXT_LEAVE] = inf
    pool = np.zeros((replicas, POOL_COLUMNS), np.int64)
    pool[:, TOTAL] = pool[:, FREE] = blocks
    clock = np.zeros(CLOCK_COLUMNS, np.int64)
    clock[UNRELEASED] = unborn.argmax() if unborn.any() else count
    released = int(np.count_nonzero(unborn))
    places = replicas * stages
    return World(
        limits=limits,
        request=request,
        times=times,
        pool=pool,
        gauge=gauge,
        load=np.zeros((3, replicas), np.int64),
        waiting=np.empty((replicas, 1 << max(count - 1, 1).bit_length()), np.int64),
        idle=np.empty((replicas, seats), np.int64),
        batch=np.empty((places, seats), np.int64),
        tokens=np.empty((places, seats), np.int64),
        sizes=np.zeros(places, np.int64),
        rounds=np.zeros((places, 2), np.int64),
        paces=np.zeros((places, PACE_COLUMNS)),
        step=np.zeros((places, STEP_COLUMNS)),
        price=np.zeros((places, PRICE_COLUMNS)),
        crossings=np.zeros((places, int(limits[BLOCK])), np.int64),
        places=np.tile(np.arange(stages), (replicas, 1)),
        ends=np.zeros((replicas, stages)),
        stages=np.zeros((replicas, stages)),
        draws=draws.copy(),  # kernels take writable arrays
        released=np.empty(released),
        released_who=np.empty(released, np.int64),
        clock=clock,
        gaps=np.zeros(GAP_BINS, np.int64),
        log=np.empty((log_rows, len(LOG_COLUMNS))),
        shape=shape,
        table=table,
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
    octave, step = np.divmod(np.arange(GAP_BINS + 1), BINS_PER_OCTAVE)
    edges: Floats = np.ldexp(1.0 + step / BINS_PER_OCTAVE, octave + LOWEST_OCTAVE)
    edges.flags.writeable = False
    return edges


@kernel(f8(*arrays(i8, 1), *arrays(f8, 1), f8))
def tick(pool: Ints, gauge: Floats, now: float) -> float:
    """Bring a replica's time integrals up to now; return that of its blocks in use."""
    passed_s = now - gauge[CLOCK_S]
    gauge[BLOCK_SECONDS] += (pool[TOTAL] - pool[FREE]) * passed_s
    gauge[INSIDE_SECONDS] += (pool[WAITING] + pool[HOLDERS] + pool[SWAPPED]) * passed_s
    gauge[CLOCK_S] = now
    return gauge[BLOCK_SECONDS]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), i8, i8))
def count(pool: Ints, size: int, tokens: int) -> int:
    """Count an iteration of a replica and return how many there were."""
    pool[ITERATIONS] += 1
    pool[BATCHED] += size
    pool[TOKENS_SEEN] += tokens
    return pool[ITERATIONS]  # type: ignore[no-any-return]


@kernel(i8(WORLD, i8, i8, f8, f8))
def log_batch(world: World, replica: int, slot: int, formed: float, end: float) -> int:
    """Write a row for a batch and return the number of rows."""
    clock, step, pool = world.clock, world.step[slot], world.pool[replica]
    row = world.log[clock[LOGGED]]
    row[0] = replica
    row[1] = formed
    row[2] = end
    row[3] = step[PREFILLS] + step[DECODES]
    row[4] = step[PREFILL_TOKENS]
    row[5] = step[TOKENS]
    row[6] = pool[WAITING] + pool[SWAPPED]
    row[7] = pool[TOTAL] - pool[FREE]
    clock[LOGGED] += 1
    return clock[LOGGED]  # type: ignore[no-any-return]


@kernel(i8(WORLD, f8, i8))
def push_release(world: World, time: float, who: int) -> int:
    """Put an arrival on the heap, ordered by time and then by request; return its size."""
    times, whos = world.released, world.released_who
    place = world.clock[RELEASED]
    world.clock[RELEASED] = place + 1
    while place > 0:
        parent = (place - 1) // 2
        if (times[parent], whos[parent]) <= (time, who):
            break
        times[place], whos[place] = times[parent], whos[parent]
        place = parent
    times[place], whos[place] = time, who
    return world.clock[RELEASED]  # type: ignore[no-any-return]


@kernel(i8(WORLD))
def pop_release(world: World) -> int:
    """Take the earliest arrival off the heap."""
    times, whos = world.released, world.released_who
    first, size = whos[0], world.clock[RELEASED] - 1
    world.clock[RELEASED] = size
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
