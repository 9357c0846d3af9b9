"""Events leave the queue by time, and those of one instant in the order they were scheduled."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulators.collectives.events.event_queue import COUNTERS, LENGTH, SCHEDULED, pop, push


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=60))
def test_event_queue_orders_by_time_then_insertion(what: list[int | None]) -> None:
    """None takes the next event out; a number schedules one at that time."""
    queue, clock = np.full((60, 3), 99, np.int64), np.zeros(COUNTERS, np.int64)
    out, waiting, scheduled = np.zeros(2, np.int64), list[tuple[int, int]](), 0
    for time in [*what, *[None] * len(what)]:
        if time is not None:
            push.py_func(queue, clock, time, scheduled)
            waiting.append((time, scheduled))
            scheduled += 1
        elif waiting:
            first = min(waiting)
            waiting.remove(first)
            pop.py_func(queue, clock, out)
            assert tuple(out) == first
        assert (clock[LENGTH], clock[SCHEDULED]) == (len(waiting), scheduled)
    assert not waiting


def test_heap_sift_down_follows_the_earlier_child() -> None:
    # After the first has left, the last, 11, sinks below 2 and then below 3, which is next to 4.
    queue, clock, out = np.zeros((7, 3), np.int64), np.zeros(COUNTERS, np.int64), np.zeros(2, int)
    times = [1, 2, 9, 3, 4, 10, 11]
    for time in times:
        push.py_func(queue, clock, time, 0)
    pop.py_func(queue, clock, out)
    assert queue[:6, 0].tolist() == [2, 3, 9, 11, 4, 10]
    left = []
    while clock[LENGTH]:
        pop.py_func(queue, clock, out)
        left.append(int(out[0]))
    assert left == sorted(times)[1:]
