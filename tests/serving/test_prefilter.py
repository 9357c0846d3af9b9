"""The prefilter of designs outside analytic fidelity: expert parallel and disaggregated pools."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from planning.prefilter import OVERLOADED, Prefilter, Steady
from simulators.core.columns import schema_of
from simulators.core.fields import values_of
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import SIMULATOR, simulate

MIXTURE = ServingPoint(model="mixtral_8x7b", gpu="h100_sxm", tp=4)
DENSE = ServingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    scheduler="vllm_v1",
    prompt_tokens=1000,
    output_tokens=200,
    requests=100,
)


def foreseen(
    *points: ServingPoint, tpot_s: float = 0.01, steady: Steady = SIMULATOR.evaluate
) -> list[float]:
    batch = pa.RecordBatch.from_pylist([values_of(p) for p in points], schema_of(ServingPoint))
    found: list[float] = Prefilter(steady, 1.0, 0.5, tpot_s, is_tail=True)(batch).tolist()
    return found


def faster_with_tp(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a steady state that takes 80 ms a token on one GPU, and knows no whole experts."""
    assert set(batch.column("ep").to_pylist()) == {1}
    tpot_s = [0.08 / tp for tp in batch.column("tp").to_pylist()]
    names = ("tpot_mean_s", "ttft_mean_s", "saturated", "requests_per_s", "tokens_per_s")
    columns = [tpot_s, *([value] * len(tpot_s) for value in (0.0, False, 1.0, 1.0))]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), list(names))


def test_prefilter_treats_ep_like_tp_experts() -> None:
    groups = replace(MIXTURE, tp=1, attention_dp=4, ep=4)
    found = foreseen(MIXTURE, replace(MIXTURE, ep=4), groups, steady=faster_with_tp)
    assert found == pytest.approx([2.0, 2.0, 1.0], rel=1e-3)  # runs of 1,000 seconds


def test_prefilter_rejects_infeasible_designs() -> None:
    assert foreseen(replace(DENSE, model="llama3_1_70b")) == [float("inf")]


@pytest.mark.parametrize(("readers", "decoders"), [(1, 1), (2, 1), (1, 2)])
def test_prefilter_ttft_of_disaggregated_pools_is_a_lower_bound(
    readers: int, decoders: int
) -> None:
    apart = replace(
        DENSE, qps=10.0, pools=replace(DENSE.pools, prefill_gpus=readers, decode_gpus=decoders)
    )
    found = simulate(apart)
    assert found.tpot_p99_s is not None
    assert found.ttft_p99_s is not None
    assert foreseen(apart)[0] <= max(found.tpot_p99_s / 0.01, found.ttft_p99_s / 0.5)


def test_prefilter_rejects_undersized_pools() -> None:
    few = replace(
        DENSE, qps=80.0, requests=20_000, pools=replace(DENSE.pools, prefill_gpus=1, decode_gpus=4)
    )
    many = replace(few, pools=replace(few.pools, prefill_gpus=4))
    assert foreseen(few)[0] == OVERLOADED
    assert foreseen(many, tpot_s=0.1)[0] < OVERLOADED


def test_prefilter_of_a_run_that_ends_before_its_queue_grows_is_a_lower_bound() -> None:
    short = replace(DENSE, qps=60.0, requests=100)
    found = simulate(short)
    assert found.tpot_p99_s is not None
    assert found.ttft_p99_s is not None
    assert foreseen(short)[0] <= max(found.tpot_p99_s / 0.01, found.ttft_p99_s / 0.5)
    assert foreseen(replace(short, requests=20_000))[0] >= OVERLOADED
