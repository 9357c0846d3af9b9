"""Data-parallel attention ranks with separate queues and synchronized iterations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from simulators.serving.engine.replica import ARRIVAL, BUSY_S, COMPLETED, FIRST_TOKEN, ITERATIONS
from simulators.serving.options import ArrivalsConfig
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate
from tests.serving.cases import asked, limits, run

MIXTURE = ServingPoint(
    model="deepseek_v3",
    gpu="h200_sxm",
    tp=1,
    ep=8,
    attention_dp=8,
    dtype="fp8",
    kv_dtype="fp8",
    scheduler="vllm_v1",
    arrivals=ArrivalsConfig(process="closed", clients=64),
    requests=256,
    prompt_tokens=512,
    output_tokens=64,
)


def test_equal_ranks_match_the_single_rank_time() -> None:
    """Two ranks with a request each: a batch of both, so tokens and keys count twice."""
    one = run(asked(np.zeros(1), [40], [5]), prices=(0.01, 2e-5, 2e-7))
    two = run(asked(np.zeros(2), [40, 40], [5, 5]), allowed=limits(ranks=2))
    assert two.times[:, COMPLETED].tolist() == pytest.approx([one.times[0, COMPLETED]] * 2)
    assert two.pool[:, ITERATIONS].sum() == one.pool[0, ITERATIONS]
    assert two.gauge[:, BUSY_S].sum() == pytest.approx(one.gauge[0, BUSY_S])


def test_every_rank_waits_for_the_busiest_rank() -> None:
    """A decode beside the prompt of another rank takes as long as that prompt."""
    together = run(
        asked(np.array([0.0, 0.001]), [10, 1000], [9, 1]),
        allowed=limits(ranks=2, token_budget=2048),
    )
    first, second = together.times[:, FIRST_TOKEN]
    assert second - first == pytest.approx(0.01 + 2 * 1000 * 1e-5)  # the busiest rank's, twice
    assert together.times[0, COMPLETED] > second


def test_request_waits_for_the_iteration_of_the_other_rank() -> None:
    state = run(asked(np.array([0.0, 0.001]), [500, 10], [1, 1]), allowed=limits(ranks=2))
    assert state.times[1, FIRST_TOKEN] > state.times[0, FIRST_TOKEN] > state.times[1, ARRIVAL]


@pytest.mark.parametrize(("scheduler", "is_slower"), [("trtllm", True), ("sglang", False)])
def test_streaming_for_all_ranks_delays_tokens_of_tensorrt_llm(
    scheduler: str, is_slower: bool
) -> None:
    mixture = dataclasses.replace(MIXTURE, scheduler=scheduler, runtime=scheduler)

    def tpot_s(interval: int) -> float:
        client = dataclasses.replace(mixture.client, stream_interval=interval)
        return simulate(dataclasses.replace(mixture, client=client)).tpot_mean_s or 0.0

    assert (tpot_s(1) > tpot_s(10) > tpot_s(0)) == is_slower


def test_pipeline_parallel_ranks_share_a_queue() -> None:
    assert simulate(dataclasses.replace(MIXTURE, pp=2, requests=8)).completed_requests == 8
