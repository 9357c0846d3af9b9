"""The explanation of the mean request sums to the totals of the run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.catalog.gpu import load_gpu
from simulators.core.contract import LEVELS
from simulators.core.errors import UserError
from simulators.core.fields import updated, values_of
from simulators.serving.answer.explain import ENGINE, LATER, MOVE, PROMPT, QUEUE
from simulators.serving.engine import replica as at
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of
from simulators.serving.simulator import SIMULATOR, simulate

POINT = ServingPoint(model="llama3_1_8b", gpu="h100_sxm", qps=8.0, requests=120, chunk_size=1024)


POOLS = {"pools.prefill_gpus": 1, "pools.decode_gpus": 2}


@pytest.mark.parametrize("change", [{}, {"scheduler": "sarathi"}, {"tp": 2, "pp": 2}, POOLS])
def test_explanation_totals_equal_run_totals(change: dict[str, object]) -> None:
    point = updated(POINT, change)
    rows, metrics = SIMULATOR.explain(values_of(point)), simulate(point)
    assert metrics.e2e_mean_s is not None
    assert sum(r.time_s for r in rows) == pytest.approx(metrics.e2e_mean_s, rel=1e-12)
    assert metrics.energy_j_per_token is not None
    assert metrics.tokens_per_s is not None
    assert metrics.requests_per_s is not None
    joules = metrics.energy_j_per_token * metrics.tokens_per_s / metrics.requests_per_s
    assert sum(r.energy_j for r in rows) == pytest.approx(joules, rel=1e-9)
    phases = {r.phase.split(",")[0] for r in rows}
    assert phases == {ENGINE, QUEUE, PROMPT, LATER} | ({MOVE} if change == POOLS else set())
    assert all(r.level in LEVELS for r in rows)
    assert all(r.time_s >= 0 for r in rows)


WIDE = {"model": "deepseek_v3", "dtype": "fp8", "qps": 40.0, "ep": 32, "attention_dp": 32}


@pytest.mark.parametrize("pools", [{}, {"pools.prefill_gpus": 32, "pools.decode_gpus": 32}])
def test_decode_passes_are_the_later_output_tokens_with_wide_expert_parallelism(
    pools: dict[str, object],
) -> None:
    point = updated(POINT, {**WIDE, **pools, "scheduler": "sglang", "output_tokens": 64})
    rows = SIMULATOR.explain(values_of(point))
    assert {r.count for r in rows if r.name == "embedding" and r.phase == LATER} == {63.0}


def drawn_pools(draw: np.random.Generator) -> dict[str, object]:
    """Return options of random pools: alike or not, dense or with experts, busy or not."""
    found: dict[str, object] = {
        "scheduler": str(draw.choice(["vllm_v1", "sglang", "trtllm"])),
        "qps": float(draw.choice([2.0, 20.0, 200.0])),
        "prompt_tokens": int(draw.choice([64, 900, 3000])),
        "output_tokens": int(draw.choice([2, 30, 90])),
        "lengths.spread": float(draw.choice([0.0, 0.5])),
        "seed": int(draw.integers(1000)),
    }
    has_experts = bool(draw.integers(2))
    for pool in ("prefill", "decode"):
        tp, dp = (int(draw.choice([1, 2])) for _ in range(2))
        found |= {f"pools.{pool}_tp": tp, f"pools.{pool}_attention_dp": dp}
        found[f"pools.{pool}_gpus"] = tp * dp * int(draw.integers(1, 3))
        if has_experts and draw.integers(2):
            found[f"pools.{pool}_ep"] = tp * dp
    if has_experts:
        found |= {"model": "qwen3_30b_a3b", "gpu": "h200_sxm"}
    return found


@pytest.mark.slow
def test_explanations_of_random_pools_equal_their_runs() -> None:
    """Seconds, passes and tokens of 200 runs agree with what `explain` says of them."""
    draw = np.random.default_rng(20)
    for _ in range(200):
        point = updated(POINT, {"requests": 20, **drawn_pools(draw)})
        rows, run = SIMULATOR.explain(values_of(point)), run_of(point)
        metrics, answers = run.metrics(), run.state.request[:, at.OUTPUT].astype(float)
        assert sum(r.time_s for r in rows) == pytest.approx(metrics.e2e_mean_s, rel=1e-3)
        passes = {r.count for r in rows if r.name == "embedding" and r.phase == LATER}
        assert list(passes) == pytest.approx([float(answers.mean()) - 1.0], rel=1e-3) or (
            run.state.pool[:, at.RECOMPUTE_PREEMPTIONS].any()
        )


@pytest.mark.parametrize("tp", [1, 2])
def test_explained_rates_are_per_batch(tp: int) -> None:
    gpu, point = load_gpu(POINT.gpu), replace(POINT, tp=tp)
    rows = [
        r for r in SIMULATOR.explain(values_of(point)) if r.phase == LATER and r.bound == "memory"
    ]
    assert {r.devices for r in rows} == {tp}
    streamed = max(r.moved_bytes / (tp * r.time_s) for r in rows)
    assert 0.5 * gpu.hbm_bytes_per_s < streamed <= 1.001 * gpu.hbm_bytes_per_s
    assert all(r.flops <= 1.001 * gpu.peak("fp16") * tp * r.time_s for r in rows)


def test_analytic_fidelity_has_no_explanation() -> None:
    with pytest.raises(UserError, match="has no events"):
        SIMULATOR.explain(values_of(POINT) | {"fidelity": "analytic"})
