"""Rates, costs and utilization use one measurement window."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.serving.answer.window import MeasurementWindow, sums_within
from simulators.serving.engine.replica import COMPLETED, REPLICA
from tests.serving.cases import asked, run


def test_window_sums_equal_the_sums_of_its_batches() -> None:
    draw = np.random.default_rng(3)
    requests = asked(
        np.cumsum(draw.exponential(0.1, 60)), draw.integers(1, 99, 60), draw.integers(1, 99, 60)
    )
    state = run(requests, log_rows=100_000)
    ends = np.sort(state.times[:, COMPLETED])
    whole = MeasurementWindow(float(requests.arrival_s[0]), float(ends[-1]))
    window = MeasurementWindow(float(ends[10]), float(ends[40]))
    rows = state.log[: int(sums_within(state, whole, whole).iterations)]
    inside = rows[window.holds(rows[:, 2])]
    did = sums_within(state, window, whole)
    assert did.iterations == pytest.approx(len(inside))
    assert did.batched == pytest.approx(inside[:, 3].sum())
    assert did.busy_s == pytest.approx((inside[:, 2] - inside[:, 1]).sum())


def test_consecutive_windows_sum_to_the_whole_run() -> None:
    requests = asked(np.arange(40) * 0.3, np.full(40, 50), np.full(40, 20))
    state = run(requests, replicas=3, router="random")
    assert set(state.request[:, REPLICA]) == {0, 1, 2}
    whole = MeasurementWindow(0.0, float(state.times[:, COMPLETED].max()))
    edges = [0.0, 1.7, 6.0, whole.end_s]
    parts = [sums_within(state, MeasurementWindow(*edges[i : i + 2]), whole) for i in range(3)]
    assert np.sum(parts, axis=0) == pytest.approx(sums_within(state, whole, whole))
