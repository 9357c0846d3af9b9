"""Laws of latencies: their order, and what a run without later tokens says about them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings

from simulators.core.errors import Infeasible
from simulators.core.fields import updated
from simulators.serving.answer.statistics import STATISTICS
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate
from tests.laws.serving.points import CLOSED, OPEN, points

ONE_TOKEN = ServingPoint("llama3_1_8b", "h100_sxm", prompt_tokens=100, output_tokens=1, requests=50)


@settings(max_examples=80, deadline=None)
@given(point=points(OPEN) | points(CLOSED))
def test_percentiles_are_in_order(point: ServingPoint) -> None:
    try:
        metrics = simulate(point)
    except Infeasible:
        assume(False)
    for kind in ("ttft", "tpot", "itl", "e2e", "queue"):
        mean, *percentiles = (getattr(metrics, f"{kind}_{name}_s") for name in STATISTICS)
        if kind in ("tpot", "itl") and point.output_tokens == 1:
            assert [mean, *percentiles] == [None] * len(STATISTICS)
            continue
        assert percentiles == sorted(percentiles)
        assert 0.0 <= mean <= percentiles[-1] * (1.0 + 1e-9)


@pytest.mark.parametrize("fidelity", ["event", "analytic"])
def test_one_output_token_has_no_time_per_later_token(fidelity: str) -> None:
    metrics = simulate(updated(ONE_TOKEN, {"fidelity": fidelity}))
    assert metrics.tpot_mean_s is metrics.tpot_p99_s is metrics.itl_mean_s is None
    assert metrics.tokens_per_s_per_user is None


def test_one_output_token_meets_every_tpot_deadline() -> None:
    """Only TTFT counts: the tightest TPOT deadline changes no goodput."""
    strict = simulate(updated(ONE_TOKEN, {"slo_tpot_s": 1e-9, "slo_ttft_s": 10.0}))
    assert strict.goodput_per_s == pytest.approx(strict.requests_per_s)
    assert simulate(updated(ONE_TOKEN, {"slo_ttft_s": 1e-6})).goodput_per_s == 0.0
