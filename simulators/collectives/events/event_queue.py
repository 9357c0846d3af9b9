"""Priority queue of events: by time, and of one instant in the order they were scheduled."""

from __future__ import annotations

from typing import Final

from simulators.core.jit import Ints, array, i8, kernel, matrix, void

TIME, SEQUENCE, WHAT = range(3)
"""Columns of the queue."""
LENGTH, SCHEDULED = range(2)
"""Counters of a clock: waiting events, and all events scheduled so far."""
COUNTERS: Final = 2


@kernel(void(matrix(i8), array(i8), i8, i8))
def push(queue: Ints, clock: Ints, time: int, what: int) -> None:
    """Schedule an event."""
    hole = clock[LENGTH]
    sequence = clock[SCHEDULED]
    clock[LENGTH] = hole + 1
    clock[SCHEDULED] = sequence + 1
    while hole > 0:
        above = (hole - 1) >> 1
        if queue[above, TIME] <= time:  # of one instant, the earlier scheduled stays above
            break
        queue[hole, TIME] = queue[above, TIME]
        queue[hole, SEQUENCE] = queue[above, SEQUENCE]
        queue[hole, WHAT] = queue[above, WHAT]
        hole = above
    queue[hole, TIME] = time
    queue[hole, SEQUENCE] = sequence
    queue[hole, WHAT] = what


@kernel(void(matrix(i8), array(i8), array(i8)))
def pop(queue: Ints, clock: Ints, out: Ints) -> None:
    """Take the next event off the queue; write time and event into `out`."""
    out[0], out[1] = queue[0, TIME], queue[0, WHAT]
    length = clock[LENGTH] - 1
    clock[LENGTH] = length
    if length == 0:
        return
    time, sequence, what = queue[length, TIME], queue[length, SEQUENCE], queue[length, WHAT]
    hole = 0
    while True:
        below = 2 * hole + 1
        if below >= length:
            break
        right = below + 1
        if right < length and (
            queue[right, TIME] < queue[below, TIME]
            or (
                queue[right, TIME] == queue[below, TIME]
                and queue[right, SEQUENCE] < queue[below, SEQUENCE]
            )
        ):
            below = right
        if time < queue[below, TIME] or (
            time == queue[below, TIME] and sequence < queue[below, SEQUENCE]
        ):
            break
        queue[hole, TIME] = queue[below, TIME]
        queue[hole, SEQUENCE] = queue[below, SEQUENCE]
        queue[hole, WHAT] = queue[below, WHAT]
        hole = below
    queue[hole, TIME] = time
    queue[hole, SEQUENCE] = sequence
    queue[hole, WHAT] = what
