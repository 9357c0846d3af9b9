"""Autoscaling: number of replicas over time, and cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.core.errors import Infeasible
from simulators.serving.deployment import plan_of
from simulators.serving.options import ArrivalsConfig, AutoscaleConfig, MeasurementConfig
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate

POINT = ServingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    replicas=3,
    autoscaling=AutoscaleConfig(
        min_replicas=1, replica_qps=1.0, startup_s=20.0, interval_s=10.0, scale_down_s=20.0
    ),
    prompt_tokens=256,
    output_tokens=32,
    requests=200,
    arrivals=ArrivalsConfig(process="mmpp"),
    qps=1.5,
    router="least_outstanding",
    measurement=MeasurementConfig(window="whole"),
)
BURST = np.concatenate([np.arange(0.0, 100.0, 0.4), np.arange(100.0, 200.0, 2.5)])
"""2.5 requests a second, then 0.4."""


def test_autoscaler_follows_arrivals_after_the_startup_time() -> None:
    plan = plan_of(POINT, BURST)
    assert plan.wanted[:2].tolist() == [1, 3]
    assert plan.wanted[-1] == 1
    early, late = BURST < 30.0, (BURST >= 30.0) & (BURST < 100.0)
    assert set(plan.routable[early].tolist()) == {1}
    assert set(plan.routable[late].tolist()) == {3}
    assert plan.routable[-1] == 1


def test_replica_cost_runs_from_start_to_the_last_response() -> None:
    plan = plan_of(POINT, BURST)
    stop = float(plan.decisions_s[np.flatnonzero(plan.wanted == 1)[1]])
    nobody, no_s = np.array([0]), np.array([0.0])
    paid_s = plan.paid_s(nobody, no_s, no_s, (0.0, 200.0))
    assert paid_s == pytest.approx(200.0 + 2 * (stop - 10.0))
    last = plan.paid_s(np.array([2]), np.array([50.0]), np.array([stop + 5.0]), (0.0, 200.0))
    assert last == pytest.approx(paid_s + 5.0)
    assert plan.paid_s(nobody, no_s, no_s, (0.0, 10.0)) == pytest.approx(10.0)


def test_replica_restarted_while_draining_is_billed_once() -> None:
    point = replace(
        POINT,
        replicas=4,
        autoscaling=replace(
            POINT.autoscaling, replica_qps=0.25, interval_s=1.0, scale_down_s=0.0, startup_s=0.0
        ),
        qps=1.0,
        arrivals=replace(POINT.arrivals, process="poisson"),
        prompt_tokens=100,
        output_tokens=2000,
        requests=100,
    )
    found = simulate(point)
    assert 3.0 < found.replicas_mean <= 4.0
    always = simulate(replace(point, autoscaling=replace(point.autoscaling, min_replicas=4)))
    assert found.cost_usd_per_hour is not None
    assert always.cost_usd_per_hour is not None
    assert found.cost_usd_per_hour <= always.cost_usd_per_hour


def test_max_replicas_below_min_replicas_is_refused() -> None:
    with pytest.raises(Infeasible) as verdict:
        simulate(replace(POINT, autoscaling=replace(POINT.autoscaling, min_replicas=4)))
    assert verdict.value.reason == "min_replicas_above_replicas"


def test_autoscaling_options_have_no_effect_at_constant_replicas() -> None:
    always = replace(POINT, autoscaling=replace(POINT.autoscaling, min_replicas=0))
    assert simulate(
        replace(always, autoscaling=replace(always.autoscaling, replica_qps=9.0, startup_s=5.0))
    ) == simulate(always)
    assert simulate(
        replace(always, autoscaling=replace(always.autoscaling, min_replicas=3))
    ) == simulate(always)
    assert simulate(always).replicas_mean == 3.0


def test_fewer_replicas_cost_less_and_are_slower() -> None:
    always, scaled = (
        simulate(replace(POINT, autoscaling=replace(POINT.autoscaling, min_replicas=0))),
        simulate(POINT),
    )
    assert scaled.completed_requests == always.completed_requests == POINT.requests
    assert 1.0 < scaled.replicas_mean < 3.0
    assert scaled.cost_usd_per_hour is not None
    assert always.cost_usd_per_hour is not None
    ratio = scaled.cost_usd_per_hour / always.cost_usd_per_hour
    assert ratio == pytest.approx(scaled.replicas_mean / 3.0)
    late, later = (
        simulate(replace(POINT, autoscaling=replace(POINT.autoscaling, startup_s=s))).e2e_mean_s
        for s in (0.0, 120.0)
    )
    assert late is not None
    assert later is not None
    assert late < later


def test_autoscaling_refuses_closed_loop_arrivals() -> None:
    with pytest.raises(Infeasible) as verdict:
        simulate(replace(POINT, arrivals=replace(POINT.arrivals, process="closed")))
    assert verdict.value.reason == "min_replicas_needs_open_arrivals"
