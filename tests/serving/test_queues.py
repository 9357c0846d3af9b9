"""Single-server queues with waiting times in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.serving.answer.saturation import backlog_growth, is_saturated
from simulators.serving.demand.requests import stream
from simulators.serving.engine.replica import ARRIVAL, COMPLETED, SCHEDULED
from tests.serving.cases import asked, limits, run

COUNT, SEEDS = 400_000, range(6)
"""The mean wait over one run still differs from theory by a percent, now and then by two."""
ONE_AT_A_TIME = {"max_num_seqs": 1, "blocks": 4000, "max_model_len": 60_000, "watermark": 0.0}


def mean_wait_s(
    load: float, prompt: np.ndarray, prices: tuple[float, float, float], seed: int
) -> float:
    """Return the mean wait of requests of one token each, a request at a time."""
    arrival = np.cumsum(stream(seed, "gaps").standard_exponential(COUNT)) / load
    state = run(
        asked(arrival, prompt, np.ones(COUNT)), allowed=limits(**ONE_AT_A_TIME), prices=prices
    )
    return float((state.times[:, SCHEDULED] - state.times[:, ARRIVAL]).mean())


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_constant_service_matches_m_d_1_waits(load: float) -> None:
    waits_s = [mean_wait_s(load, np.full(COUNT, 10), (1.0, 0.0, 0.0), seed) for seed in SEEDS]
    assert np.mean(waits_s) == pytest.approx(load / (2.0 * (1.0 - load)), rel=0.005)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_exponential_service_matches_m_m_1_waits(load: float) -> None:
    waits_s = []
    for seed in SEEDS:
        service = stream(seed, "service").standard_exponential(COUNT)
        prompt = np.maximum(1, np.rint(service * 4000.0))
        waits_s.append(mean_wait_s(load, prompt, (0.0, 1.0 / 4000.0, 0.0), seed))
    assert np.mean(waits_s) == pytest.approx(load / (1.0 - load), rel=0.01)


@pytest.mark.parametrize(("load", "grows"), [(0.5, False), (0.8, False), (1.2, True), (2.0, True)])
@pytest.mark.parametrize("seed", range(5))
def test_overload_is_reported_as_a_growing_backlog(load: float, grows: bool, seed: int) -> None:
    count = 2000
    arrival = np.cumsum(stream(seed, "gaps").standard_exponential(count)) / load
    requests = asked(arrival, np.full(count, 10), np.ones(count))
    state = run(requests, allowed=limits(**ONE_AT_A_TIME), prices=(1.0, 0.0, 0.0))
    arrived, scheduled, ended = state.times[:, [ARRIVAL, SCHEDULED, COMPLETED]].T
    growth = backlog_growth(arrived, scheduled)
    assert is_saturated(growth, arrived, ended) == grows
    if grows:  # each second brings that many seconds of work more than can be done in it
        assert growth == pytest.approx(count / arrival[-1] - 1.0, abs=0.05)


def test_ramps_and_absorbed_bursts_are_not_a_growing_backlog() -> None:
    arrival = np.linspace(0.0, 10.0, 1000)
    ramp = arrival + 0.25  # a quarter of a second in the queue of a large service, then 20 s
    assert not is_saturated(backlog_growth(arrival, ramp), arrival, ramp + 20.0 + arrival)
    burst = arrival + np.where((arrival > 2.0) & (arrival < 4.0), 3.0, 0.0)
    assert not is_saturated(backlog_growth(arrival, burst), arrival, burst + 0.1)


def test_slow_service_with_a_long_queue_has_a_growing_backlog() -> None:
    arrival = np.linspace(0.0, 100.0, 1000)
    unlucky = arrival * np.where(np.arange(1000) % 250 < 125, 0.6, 1.0)  # some are luckier
    scheduled = arrival + 0.8 * unlucky
    assert np.median(scheduled - arrival) > 30.0
    assert is_saturated(backlog_growth(arrival, scheduled), arrival, scheduled + 5.0)
