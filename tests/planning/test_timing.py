"""The timing loop on a numpy backend with a simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from planning.measure import run
from planning.measure.run import alone_s, cold_s, looped_s, ramped_s, timed

SETTLED, RISING = 20, 2.0
"""Calls after which the clock has risen, and how much longer one takes before."""


@dataclass
class Moment:
    backend: NumpyBackend
    at_s: float = 0.0

    def record(self) -> None:
        self.at_s = self.backend.now_s

    def elapsed_time(self, later: Moment) -> float:
        return 1e3 * (later.at_s - self.at_s)


@dataclass
class NumpyBackend:
    """Multiplies with numpy; a call takes a millisecond, more on a cold cache or after a pause."""

    now_s: float = 0.0
    in_a_row: int = 0
    is_cold: bool = False
    done: list[str] = field(default_factory=list)

    def synchronise(self) -> None:
        self.in_a_row = 0

    def event(self) -> Moment:
        return Moment(self)

    def call(self) -> None:
        self.done.append(str((np.ones((4, 4)) @ np.ones((4, 4))).shape))
        slow = (RISING if self.in_a_row < SETTLED else 1.0) + 5.0 * self.is_cold
        self.now_s += 1e-3 * slow
        self.in_a_row, self.is_cold = self.in_a_row + 1, False

    def evict(self) -> None:
        self.is_cold = True
        self.now_s += 1.0

    def repeated(self, work: Callable[[], object], times: int) -> Callable[[], object]:
        return lambda: [work() for _ in range(times)]

    def meters(self) -> dict[str, float]:
        return {"power_w": 70.0, "clock_mhz": 1980.0, "temperature_c": 55.0}

    def timing(self, *, looped: bool) -> str:
        return "simulated"


def test_warm_ramped_and_cold_timings_differ() -> None:
    backend = NumpyBackend()
    work = backend.call
    assert alone_s(backend, work, 3) == pytest.approx([2e-3] * 3)
    assert ramped_s(backend, work, 2e-3) == pytest.approx([1e-3] * 12)
    assert cold_s(backend, work, 2) == pytest.approx([7e-3] * 2)


def test_loop_time_is_divided_by_the_number_of_calls() -> None:
    backend = NumpyBackend(in_a_row=SETTLED)
    assert looped_s(backend, backend.call, 10, 2) == pytest.approx([1e-3] * 2)
    assert len(backend.done) == 30


def test_row_holds_median_time_power_and_clock() -> None:
    backend = NumpyBackend()
    row = timed(backend, backend.call, looped=False)
    assert (row["latency_us"], row["ramped_us"], row["cold_us"]) == pytest.approx((2e3, 1e3, 7e3))
    assert (row["timing"], row["power_w"], row["clock_mhz"]) == ("simulated", 70.0, 1980.0)
    assert row["temperature_c"] == 55.0


def test_repeated_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_RAMPED", 8)
    backend = NumpyBackend()
    assert len(ramped_s(backend, backend.call, 1e-9)) == 2
    assert len(backend.done) == 8
