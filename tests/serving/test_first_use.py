"""First prompts of a fresh server wait for kernels that are compiled; nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulators.core.errors import Infeasible
from simulators.core.fields import point_from
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.engine import replica as at
from simulators.serving.first_use import CONTINUED, PASS, fitted_stalls
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of
from simulators.serving.simulator import simulate

CLOSED = {
    "model": "deepseek_v3",
    "gpu": "b200_sxm",
    "tp": 8,
    "dtype": "fp8_block",
    "kv_dtype": "fp8",
    "scheduler": "sglang",
    "runtime": "sglang",
    "arrivals.process": "closed",
    "arrivals.clients": 4,
    "requests": 40,
    "prompt_tokens": 1024,
    "output_tokens": 64,
    "lengths.spread": 0.2,
}
STALLS = fitted_stalls()["sglang"]["blackwell"]


def served(**options: Any) -> ServingMetrics:
    return simulate(point_from(ServingPoint, {**CLOSED, **options}))


def test_first_prompts_wait_for_the_stall_and_later_ones_do_not() -> None:
    clients, stall_s = int(CLOSED["arrivals.clients"]), STALLS[PASS]
    warm, fresh = (
        run_of(point_from(ServingPoint, CLOSED | {"measurement.server": server}))
        for server in ("warm", "fresh")
    )
    later_s = [
        run.state.times[:, at.FIRST_TOKEN] - run.state.times[:, at.ARRIVAL] for run in (warm, fresh)
    ]
    expected_s = later_s[0] + stall_s * (np.arange(later_s[0].size) < clients)
    assert later_s[1] == pytest.approx(expected_s)
    before, after = warm.metrics(), fresh.metrics()
    assert after.tpot_p99_s == pytest.approx(before.tpot_p99_s)
    assert after.makespan_s == pytest.approx(before.makespan_s + stall_s)


def test_releases_before_0_5_10_compile_a_kernel_if_a_first_prompt_is_cut() -> None:
    older = {"runtime": "sglang_0_5_9", "measurement.server": "fresh"}
    whole, cut = (served(**older, chunk_size=size) for size in (16_384, 2_048))
    assert whole.ttft_max_s < STALLS[CONTINUED] < cut.ttft_max_s
    assert served(**{**older, "runtime": "sglang"}, chunk_size=2_048).ttft_max_s < STALLS[CONTINUED]


def test_tensorrt_llm_has_no_stall_because_it_runs_prompts_before_it_serves() -> None:
    engine = {"scheduler": "trtllm", "runtime": "trtllm"}
    assert served(**engine, **{"measurement.server": "fresh"}) == served(**engine)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"scheduler": "vllm_v1", "runtime": "vllm"}, "no_start_was_measured"),
        ({"arrivals.process": "poisson"}, "fresh_server_needs_clients"),
        ({"pools.prefill_gpus": 8, "pools.decode_gpus": 8}, "fresh_server_needs_clients"),
    ],
)
def test_starts_that_were_not_measured_are_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(Infeasible, match=code):
        served(**options, **{"measurement.server": "fresh"})
