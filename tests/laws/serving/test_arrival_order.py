"""Law of arrivals: prompts reach the engine in the order in which their clients send them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, lists

from simulators.serving.demand.prefixes import of_sessions
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from tests.serving.cases import asked, run

TURNS = 3


def sessions(think_s: list[float]) -> Requests:
    """Return sessions of three turns that begin together, with a think time for each turn."""
    count = len(think_s) // TURNS * TURNS
    session, turn = np.divmod(np.arange(count), TURNS)
    given_s = np.where(turn == 0, 0.0, np.array(think_s[:count]))
    plain = asked(given_s, 20 + 30 * turn, np.full(count, 5))
    return replace(plain, session=session, prefixes=of_sessions(turn, 25 + 30 * turn))


@settings(max_examples=40, deadline=None)
@given(
    think_s=lists(floats(0.0, 5.0), min_size=6, max_size=30),
    service_s=floats(0.0, 0.5),
    delay_s=floats(0.0, 0.5),
)
def test_turns_reach_the_engine_in_the_order_of_sending(
    think_s: list[float], service_s: float, delay_s: float
) -> None:
    requests = replace(sessions(think_s), service_s=service_s, delay_s=delay_s)
    times = run(requests, "vllm_v1").times
    order = np.lexsort((times[:, at.ARRIVAL], times[:, at.SENT]))
    sent_s, arrival_s = times[order, at.SENT], times[order, at.ARRIVAL]
    assert (np.diff(arrival_s) >= -1e-9).all()
    idle = np.append(True, sent_s[1:] >= arrival_s[:-1] - delay_s)
    expected_s = np.where(idle, sent_s, np.append(0.0, arrival_s[:-1] - delay_s)) + service_s
    assert arrival_s - delay_s == pytest.approx(expected_s, abs=1e-9)


def test_a_short_think_time_is_not_held_up_by_a_long_one() -> None:
    """The first session thinks for 9 s, the second for 1 s: neither waits for the other."""
    times = run(sessions([0.0, 9.0, 0.0, 0.0, 1.0, 0.0]), "vllm_v1").times
    waited_s = times[[1, 4], at.ARRIVAL] - times[[0, 3], at.COMPLETED]
    assert waited_s == pytest.approx([9.0, 1.0])
