"""Multi-turn sessions: each turn follows the response of the previous turn."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import updated
from simulators.serving.demand.requests import in_sessions
from simulators.serving.engine.replica import ARRIVAL, COMPLETED, FREE_BLOCKS, TOTAL_BLOCKS
from simulators.serving.options import ClientConfig, SessionsConfig
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of
from simulators.serving.simulator import simulate
from tests.serving.cases import SCHEDULERS, asked, run

BASE = ServingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    requests=60,
    qps=4.0,
    sessions=SessionsConfig(turns=3),
    client=ClientConfig(think_s=2.0),
)


def test_session_prompt_contains_the_history() -> None:
    single = asked(np.arange(5.0), np.array([10, 20, 30, 7, 8]), np.array([1, 2, 3, 4, 5]))
    three = in_sessions(single, 3, 0.5)
    assert three.prompt_tokens.tolist() == [10, 31, 63, 7, 19]
    assert three.arrival_s.tolist() == [0.0, 0.5, 0.5, 1.0, 0.5]


def test_tool_output_is_added_to_the_history() -> None:
    single = asked(np.arange(4.0), np.array([10, 20, 30, 7]), np.array([1, 2, 3, 4]))
    called = in_sessions(single, 4, 0.5, added=5)
    assert called.prompt_tokens.tolist() == [10, 16, 23, 31]


def test_chain_time_is_responses_plus_think_times() -> None:
    point = dataclasses.replace(
        BASE,
        requests=60,
        qps=0.3,
        prompt_tokens=500,
        output_tokens=50,
        sessions=dataclasses.replace(BASE.sessions, turn_tokens=40),
        scheduler="vllm_v1",
        cache=dataclasses.replace(BASE.cache, prefix_caching=True),
        arrivals=dataclasses.replace(BASE.arrivals, process="even"),
        client=dataclasses.replace(BASE.client, frontend="none"),
    )
    found, cold = (
        simulate(point),
        simulate(
            dataclasses.replace(point, cache=dataclasses.replace(point.cache, prefix_caching=False))
        ),
    )
    assert found.e2e_mean_s is not None
    assert cold.session_mean_s is not None
    assert found.session_mean_s == pytest.approx(3 * found.e2e_mean_s + 2 * BASE.client.think_s)
    assert found.prefix_hit_ratio is not None
    assert found.prefix_hit_ratio > 0.5
    assert found.session_mean_s < cold.session_mean_s
    assert (
        simulate(
            dataclasses.replace(
                point, sessions=dataclasses.replace(point.sessions, turns=1, turn_tokens=0)
            )
        ).session_mean_s
        is None
    )
    with pytest.raises(Infeasible, match="turn_tokens_needs_turns"):
        simulate(dataclasses.replace(point, sessions=dataclasses.replace(point.sessions, turns=1)))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.sampled_from(SCHEDULERS), st.floats(0.0, 3.0), st.integers(1, 2))
def test_turn_arrives_one_think_time_after_the_previous_response(
    turns: int, scheduler: str, think_s: float, replicas: int
) -> None:
    draw = np.random.default_rng(turns)
    single = asked(
        np.cumsum(draw.exponential(0.1, 23)), draw.integers(1, 60, 23), draw.integers(1, 20, 23)
    )
    sessions = in_sessions(single, turns, think_s)
    state = run(sessions, scheduler, replicas=replicas)
    assert (state.pool[:, FREE_BLOCKS] == state.pool[:, TOTAL_BLOCKS]).all()
    later = np.flatnonzero(np.arange(23) % turns)
    ends = state.times[later - 1, COMPLETED]
    assert np.array_equal(state.times[later, ARRIVAL], think_s + ends)


def test_longer_think_time_delays_arrivals_and_all_turns_complete() -> None:
    quick, slow = (
        run_of(
            dataclasses.replace(BASE, client=dataclasses.replace(BASE.client, think_s=t))
        ).metrics()
        for t in (0.0, 20.0)
    )
    assert quick.completed_requests == slow.completed_requests == 60
    assert slow.makespan_s > quick.makespan_s + 30.0


def test_session_ends_at_the_first_oversized_turn() -> None:
    point = dataclasses.replace(
        BASE, prompt_tokens=300, output_tokens=100, max_context=1000, requests=9
    )
    metrics = simulate(point)
    assert (metrics.completed_requests, metrics.rejected_requests) == (6, 3)


def test_sessions_refuse_closed_loop_traces_and_analytic_fidelity() -> None:
    with pytest.raises(UserError, match="turns is 3; closed-loop arrivals and traces"):
        simulate(
            dataclasses.replace(BASE, arrivals=dataclasses.replace(BASE.arrivals, process="closed"))
        )
    with pytest.raises(UserError, match="turns is 0"):
        simulate(dataclasses.replace(BASE, sessions=dataclasses.replace(BASE.sessions, turns=0)))
    for changes in ({}, {"sessions.turns": 1, "arrivals.process": "mmpp"}):
        with pytest.raises(Infeasible, match="needs_fidelity_event"):
            simulate(updated(BASE, {"fidelity": "analytic", **changes}))
