"""The timing loop on a numpy backend with a simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from planning.measure import torch_bench as timing
from planning.measure.torch_bench import alone_s, cold_s, looped_s, ramped_s, timed

SETTLED, RISING = 20, 2.0
"""Calls after which the clock has risen, and how much longer one takes before."""


@dataclass
class Moment:
    backend: NumpyBackend
    at_s: float = 0.0

    def record(self) -> None:
        self.at_s = self.backend.now_s

    def seconds_to(self, later: Moment) -> float:
        return later.at_s - self.at_s


@dataclass
class NumpyBackend:
    """Multiplies with numpy; a call takes a millisecond, more on a cold cache or after a pause."""

    name: str = "simulated"
    now_s: float = 0.0
    in_a_row: int = 0
    is_cold: bool = False
    done: list[str] = field(default_factory=list)

    def synchronise(self) -> None:
        self.in_a_row = 0

    def event(self) -> Moment:
        return Moment(self)

    def run(self, work: Callable[[], object]) -> None:
        work()
        slow = (RISING if self.in_a_row < SETTLED else 1.0) + 5.0 * self.is_cold
        self.now_s += 1e-3 * slow
        self.in_a_row, self.is_cold = self.in_a_row + 1, False

    def evict(self) -> None:
        self.is_cold = True
        self.now_s += 1.0

    def repeated(self, work: Callable[[], object], times: int) -> Callable[[], object]:
        def together() -> None:
            for _ in range(times):
                work()
            self.now_s += 1e-3 * (times - 1)

        return together


def product(backend: NumpyBackend) -> Callable[[], object]:
    a = np.ones((4, 4))
    return lambda: backend.done.append(str((a @ a).shape))


def test_warm_ramped_and_cold_timings_differ() -> None:
    backend = NumpyBackend()
    work = product(backend)
    assert alone_s(backend, work, 3) == pytest.approx([2e-3] * 3)
    assert ramped_s(backend, work, 2e-3) == pytest.approx([1e-3] * 12)
    assert cold_s(backend, work, 2) == pytest.approx([7e-3] * 2)


def test_loop_time_is_divided_by_the_number_of_calls() -> None:
    backend = NumpyBackend(in_a_row=SETTLED)
    assert looped_s(backend, product(backend), 10, 2) == pytest.approx([1e-3] * 2)
    assert len(backend.done) == 30


def test_row_holds_median_time_power_and_clock() -> None:
    backend = NumpyBackend()
    row = timed(backend, product(backend), looped=False, meters=lambda: (70.0, 1980.0, 55.0))
    assert (row.warm_s, row.ramped_s, row.cold_s) == pytest.approx((2e-3, 1e-3, 7e-3))
    assert (row.timing, row.power_w, row.clock_mhz) == ("simulated", 70.0, 1980.0)
    assert row.temperature_c == 55.0


def test_repeated_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MOST_RAMPED", 8)
    backend = NumpyBackend()
    assert len(ramped_s(backend, product(backend), 1e-9)) == 2
    assert len(backend.done) == 8
