"""Laws of a closed loop, seen from its clients."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings

from simulators.core.errors import Infeasible
from simulators.core.fields import updated
from simulators.serving.engine import replica as at
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of
from simulators.serving.simulator import simulate
from tests.laws.serving.points import CLOSED, points
from tests.serving.cases import SCHEDULERS

ROUNDING = 1e-9

SHORT_ANSWERS = updated(
    ServingPoint("llama3_1_8b", "h100_sxm", prompt_tokens=100, output_tokens=8, requests=400),
    {"arrivals.process": "closed", "arrivals.clients": 1, "measurement.window": "whole"},
)


@settings(max_examples=60, deadline=None)
@given(point=points(CLOSED))
def test_littles_law_holds_for_clients(point: ServingPoint) -> None:
    """A client waits for one answer at a time: latencies of a client never overlap."""
    try:
        run = run_of(point)
    except Infeasible:
        assume(False)
    metrics = run.metrics()
    assert metrics.e2e_mean_s is not None
    present = metrics.requests_per_s * metrics.e2e_mean_s
    clients = min(point.arrivals.clients, run.asked.arrival_s.size)
    assert present <= clients * (1.0 + ROUNDING)
    if clients == 1 and point.client.think_s == 0.0:
        assert present == pytest.approx(1.0, rel=ROUNDING)


@settings(max_examples=40, deadline=None)
@given(point=points(CLOSED))
def test_a_client_asks_a_think_time_after_the_last_token(point: ServingPoint) -> None:
    """The n-th later request is sent when the n-th answer has arrived and was thought about."""
    try:
        run = run_of(point)
    except Infeasible:
        assume(False)
    clients, times = point.arrivals.clients, run.state.times
    sent = sorted(times[clients:, at.ARRIVAL].tolist())
    due = sorted((times[:, at.COMPLETED] + point.client.think_s).tolist())
    assert sent == pytest.approx(due[: len(sent)], rel=ROUNDING)


@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "lightllm"])
@pytest.mark.parametrize("output_tokens", [1, 8, 32])
def test_one_client_is_always_waiting_for_its_answer(scheduler: str, output_tokens: int) -> None:
    changes = {"scheduler": scheduler, "output_tokens": output_tokens}
    metrics = simulate(updated(SHORT_ANSWERS, changes))
    assert metrics.e2e_mean_s is not None
    assert metrics.requests_per_s * metrics.e2e_mean_s == pytest.approx(1.0, rel=ROUNDING)


@pytest.mark.parametrize("scheduler", ["vllm", "vllm_v1", "sarathi", "sglang", "trtllm"])
@pytest.mark.parametrize("clients", [1, 5, 40])
def test_steady_closed_loop_holds_its_clients(scheduler: str, clients: int) -> None:
    """Throughput between two priced batch sizes is interpolated, which costs up to 2 %."""
    changes = {"scheduler": scheduler, "arrivals.clients": clients, "fidelity": "analytic"}
    metrics = simulate(updated(SHORT_ANSWERS, changes))
    assert metrics.e2e_mean_s is not None
    assert metrics.requests_per_s * metrics.e2e_mean_s == pytest.approx(clients, rel=0.02)
