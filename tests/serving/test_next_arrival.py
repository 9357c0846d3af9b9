"""The next arrival: listed requests and requests released by a response."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulators.serving.engine import replica as at
from simulators.serving.engine.loop import next_arrival


@pytest.mark.parametrize(
    ("routed", "released_s", "listed", "wanted"),
    [
        ([0, 0, at.UNROUTED], [], 2, 3.0),  # two are passed over
        ([0, 0, 0], [], 3, np.inf),
        ([0, at.UNROUTED, 0], [5.0], 1, 2.0),
        ([0, at.UNROUTED, 0], [1.5, 9.0], 1, 1.5),  # one released comes before one listed
        ([0, 0, 0], [7.0], 3, 7.0),
    ],
)
def test_next_arrival_is_the_earliest_of_listed_and_released(
    routed: list[int], released_s: list[float], listed: int, wanted: float
) -> None:
    clock = np.zeros(16, np.int64)
    clock[at.HEAP_SIZE] = len(released_s)
    request = np.zeros((3, 32), np.int64)
    request[:, at.REPLICA] = routed
    times = np.zeros((3, 32))
    times[:, at.ARRIVAL] = [1.0, 2.0, 3.0]
    released = np.array([*released_s, 0.0, 0.0])
    state: Any = SimpleNamespace(clock=clock, request=request, times=times, released=released)
    assert next_arrival.py_func(state) == wanted
    assert clock[at.NEXT_LISTED] == listed
