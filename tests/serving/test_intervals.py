"""Prediction intervals of deployments: wider with fewer measurements of engine and GPU."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lab.fits.deployment_bands import PredictedDeployment, widths_of
from simulators.core.fields import updated
from simulators.serving.answer.metrics import WITH_INTERVAL
from simulators.serving.measured.intervals import (
    PASS_EXPONENT,
    Width,
    combined_interval,
    latency_intervals,
)
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import SIMULATOR, simulate
from sweeper.query.uncertainty import probability_within

POINT = ServingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    scheduler="vllm_v1",
    runtime="vllm",
    requests=40,
    dtype="bf16",
)


def test_measured_framework_has_intervals() -> None:
    metrics = simulate(POINT)
    for name in WITH_INTERVAL:
        value = getattr(metrics, name)
        low, high = getattr(metrics, f"{name}_lo"), getattr(metrics, f"{name}_hi")
        assert 0.25 * value < low < value < high < 4.0 * value


def test_cost_interval_follows_the_throughput_interval() -> None:
    """Of a load that is carried both are known; clients who wait for answers ask the less often."""
    carried, waited_for, thinking = (
        simulate(updated(POINT, more))
        for more in (
            {"qps": 1.0},
            {"arrivals.process": "closed", "arrivals.clients": 8},
            {"arrivals.process": "closed", "arrivals.clients": 8, "client.think_s": 100.0},
        )
    )
    assert carried.tokens_per_s_lo == carried.tokens_per_s == carried.tokens_per_s_hi
    assert carried.cost_usd_per_mtok_lo == carried.cost_usd_per_mtok_hi
    tokens, cost = waited_for.tokens_per_s, waited_for.cost_usd_per_mtok
    low, high = waited_for.tokens_per_s_lo, waited_for.tokens_per_s_hi
    assert low < tokens < high
    later = waited_for.tpot_mean_s_hi / waited_for.tpot_mean_s
    first = waited_for.ttft_mean_s_hi / waited_for.ttft_mean_s
    assert min(later, first) < tokens / low < max(later, first)
    ends = [waited_for.cost_usd_per_mtok_lo, waited_for.cost_usd_per_mtok_hi]
    assert ends == pytest.approx([cost * tokens / high, cost * tokens / low])
    assert thinking.tokens_per_s_hi / thinking.tokens_per_s_lo < 1.05


def width(point: ServingPoint) -> float:
    """Return how far the interval of the mean TPOT reaches, as a ratio of its ends."""
    metrics = simulate(point)
    assert metrics.tpot_mean_s_lo is not None
    assert metrics.tpot_mean_s_hi is not None
    return metrics.tpot_mean_s_hi / metrics.tpot_mean_s_lo


def test_unmeasured_engine_has_the_widest_interval() -> None:
    for ends in ((0.95, 1.05), (0.7, 1.5)):
        reach = {"tpot": ends, "ttft": ends}
        unknown = latency_intervals("graphs", reach)
        for name in ("vllm", "sglang", "trtllm"):
            for metric, (low, high) in latency_intervals(name, reach).items():
                assert unknown[metric][0] <= low < high <= unknown[metric][1]
    assert width(replace(POINT, runtime="graphs")) > width(POINT)


def test_release_before_the_measured_ones_has_no_narrower_interval() -> None:
    reach = {"tpot": (0.95, 1.05), "ttft": (0.95, 1.05)}
    for older, current in (("vllm_0_13", "vllm"), ("sglang_0_5_8", "sglang_0_5_9")):
        for metric, (low, high) in latency_intervals(current, reach).items():
            wide = latency_intervals(older, reach)[metric]
            agents = latency_intervals(older, reach, is_measured_load=False)[metric]
            today = latency_intervals(current, reach, is_measured_load=False)[metric]
            assert agents[0] <= min(wide[0], today[0])
            assert max(wide[1], today[1]) <= agents[1]
            assert wide[0] <= low < high <= wide[1]


def chance(point: ServingPoint, name: str, margin: float) -> float:
    """Return P(meets SLO) of a limit that is `margin` times the predicted value."""
    metrics = vars(simulate(point))
    return probability_within(metrics, name, margin * metrics[name], interval=name, band=0.0)[0]


def test_unmeasured_gpu_has_a_wider_interval() -> None:
    measured = replace(POINT, model="llama3_1_70b", tp=8)
    unmeasured = replace(measured, gpu="mi355x")
    assert width(unmeasured) > 1.4 * width(measured)
    for margin in (1.1, 1.2):
        known, unknown = (chance(one, "tpot_mean_s", margin) for one in (measured, unmeasured))
        assert 1.0 - unknown > 2.0 * (1.0 - known)
    for margin in (1.5, 2.0):
        known, unknown = (chance(one, "tpot_p99_s", margin) for one in (measured, unmeasured))
        assert 1.0 - unknown > 1.15 * (1.0 - known)


def test_interval_components_add_in_quadrature() -> None:
    some = Width(engine=0.3, below=2.0, above=0.5)
    for ends in ((-0.8, 0.2), (-0.2, 0.8)):
        low, high = some.interval((math.exp(ends[0]), math.exp(ends[1])))
        far = math.hypot(0.3, 0.4**PASS_EXPONENT)
        assert (math.log(low), math.log(high)) == pytest.approx((-2.0 * far, 0.5 * far))
    assert some.interval((0.0, 1.0))[0] > 0.0
    low, high = combined_interval((math.exp(-0.3), math.exp(0.6)), (math.exp(-0.4), math.exp(0.8)))
    assert (math.log(low), math.log(high)) == pytest.approx((-0.5, 1.0))


def seen(
    gpu: str, framework: str, ratio: float, reach: tuple[float, float], model: int = 0
) -> PredictedDeployment:
    row: Any = SimpleNamespace(gpu=gpu, framework=framework, group=f"{model}.{gpu}")
    return PredictedDeployment(row, "best", {"tpot": ratio}, {"tpot": reach})


@pytest.mark.slow
def test_held_out_interval_covers_ninety_percent() -> None:
    draw = np.random.default_rng(0)
    reach = np.repeat([0.1, 0.7], 4000)
    ratio = np.exp(np.hypot(0.2, reach**PASS_EXPONENT) * draw.laplace(0.0, 0.3, 8000))
    some = [
        seen("h100_sxm", "vllm", one, (math.exp(-far), math.exp(far)), model % 100)
        for model, (one, far) in enumerate(zip(ratio.tolist(), reach.tolist(), strict=True))
    ]
    found = widths_of("tpot", some)["vllm"]
    assert found.engine == pytest.approx(0.2, rel=0.3)
    assert [found.below, found.above] == pytest.approx([0.3 * math.log(10.0)] * 2, rel=0.1)
    inside = [
        low <= one.ratio["tpot"] <= high
        for one in some
        for low, high in [found.interval(one.pass_interval["tpot"])]
    ]
    assert np.mean(inside) == pytest.approx(0.9, abs=0.01)


def test_engine_interval_components_share_a_scale() -> None:
    draw = np.random.default_rng(1)
    some = [
        seen("h100_sxm", name, math.exp(part * error), (1.0, 1.0))
        for name, part in {"vllm": 0.1, "sglang": 0.4}.items()
        for error in draw.laplace(0.0, 0.3, 2000).tolist()
    ]
    found = widths_of("tpot", some)
    assert found["sglang"].engine / found["vllm"].engine == pytest.approx(4.0, rel=0.2)
    assert found["sglang"].above == found["vllm"].above


def test_engine_measured_on_fewer_models_has_a_wider_interval() -> None:
    error = np.random.default_rng(3).laplace(0.0, 0.1, 2000)
    models = {"vllm": 20, "sglang": 2}
    some = [
        seen("h100_sxm", name, math.exp(one), (0.99, 1.01), number % many)
        for name, many in models.items()
        for number, one in enumerate(error.tolist())
    ]
    found = widths_of("tpot", some)
    assert found["sglang"].engine / found["vllm"].engine == pytest.approx(1.5 / 1.05, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_one_sided_bias_on_all_gpus_widens_that_side(shared: bool) -> None:
    draw = np.random.default_rng(2)
    error = np.abs(draw.laplace(0.0, 0.2, 1000))
    longer = {"a": 3.0, "b": 3.0, "c": 3.0} if shared else {"a": 3.0, "b": 1.0 / 3.0, "c": 1.0}
    some = [
        seen(gpu, "vllm", math.exp(one), (0.9, 1.1))
        for gpu, times in longer.items()
        for ends in zip(-error / times**0.5, error * times**0.5, strict=True)
        for one in ends
    ]
    found = widths_of("tpot", some)["vllm"]
    assert found.above / found.below == pytest.approx(3.0 if shared else 1.0, rel=0.2)


def test_percentile_interval_is_wider_than_the_mean_interval() -> None:
    metrics = simulate(POINT)
    for kind in ("ttft", "tpot"):
        for end, sign in (("lo", -1.0), ("hi", 1.0)):
            tail, mean = (
                getattr(metrics, f"{kind}_{of}_s_{end}") / getattr(metrics, f"{kind}_{of}_s")
                for of in ("p99", "mean")
            )
            assert sign * math.log(tail) > sign * math.log(mean)


def test_basis_of_intervals_names_the_newest_deployment_and_the_results_of_tails() -> None:
    said = SIMULATOR.rests_on({"model": "llama3_1_8b", "gpu": "h100_sxm", "runtime": "vllm"})
    assert re.search(r"measured up to 2026-\d\d-\d\d\. .* tails of \d+ results", said)
    unfitted = {"model": "llama3_1_8b", "gpu": "h100_sxm", "runtime": "graphs"}
    assert "deployments" not in SIMULATOR.rests_on(unfitted)


def test_a_99th_percentile_has_a_wider_interval_than_its_mean() -> None:
    metrics = simulate(POINT)
    for metric in ("ttft", "tpot"):
        ends = {
            statistic: [
                getattr(metrics, f"{metric}_{statistic}_s_{end}")
                / getattr(metrics, f"{metric}_{statistic}_s")
                for end in ("lo", "hi")
            ]
            for statistic in ("mean", "p99")
        }
        assert ends["p99"][0] < ends["mean"][0] < 1.0 < ends["mean"][1] < ends["p99"][1]
