"""Law of shares: no part of a resource is used more than whole, or less than not at all."""

from __future__ import annotations

from hypothesis import assume, given, settings

from simulators.core.errors import Infeasible
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate
from tests.laws.serving.points import CLOSED, OPEN, points

SHARES = ("kv_use_mean", "kv_use_max", "kv_block_fill", "utilization", "mfu", "measured_share")


@settings(max_examples=80, deadline=None)
@given(point=points(OPEN) | points(CLOSED))
def test_shares_of_memory_and_time_are_between_0_and_1(point: ServingPoint) -> None:
    try:
        metrics = simulate(point)
    except Infeasible:
        assume(False)
    shares = {name: getattr(metrics, name) for name in SHARES}
    outside = {n: s for n, s in shares.items() if s is not None and not 0.0 <= s <= 1.0 + 1e-9}
    assert outside == {}
