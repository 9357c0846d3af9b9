"""Models sharing a GPU: resources, bounds and cost shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from simulators.core.columns import schema_of
from simulators.core.errors import Infeasible
from simulators.core.fields import values_of
from simulators.kernels.energy import idle_w_of
from simulators.serving.deployment import deployment_of
from simulators.serving.gpu_shares import price_share
from simulators.serving.point import ServingPoint
from simulators.serving.sharing import (
    ALWAYS_BUSY,
    IDLE,
    NeighbourLoad,
    sm_share_partition,
    time_slice_partition,
)
from simulators.serving.simulator import SIMULATOR, simulate, validated_partition

SMALL, LARGE = "llama2_7b", "llama2_13b"
ALONE = ServingPoint(
    model=SMALL, gpu="a100_sxm", prompt_tokens=256, output_tokens=32, requests=20, qps=1.0
)
TURNS = replace(ALONE, colocation=replace(ALONE.colocation, models=LARGE))
SHARES = replace(TURNS, colocation=replace(TURNS.colocation, sharing="mps", sm_share=0.5))
SLICE = replace(ALONE, colocation=replace(ALONE.colocation, sharing="mig", mig_slice="3g"))
EXPERTS = replace(
    ALONE,
    model="mixtral_8x7b",
    tp=4,
    ep=4,
    colocation=replace(ALONE.colocation, models=SMALL, interference="lower"),
    requests=5,
)
KINDS = [
    TURNS,
    SHARES,
    replace(SHARES, colocation=replace(SHARES.colocation, sm_share=1.0, other_sm_share=1.0)),
]


def tpot_s(point: ServingPoint) -> float:
    found = simulate(point).tpot_mean_s
    assert found is not None
    return found


def test_design_without_colocation_is_unchanged() -> None:
    assert validated_partition(ALONE) is ALONE
    assert (
        time_slice_partition([IDLE])
        == sm_share_partition(1.0, [1.0], [IDLE])
        == sm_share_partition(1.0, [], [])
    )


@pytest.mark.parametrize("point", KINDS)
def test_expected_interference_lies_between_bounds(point: ServingPoint) -> None:
    lower, expected, upper = (
        tpot_s(replace(point, colocation=replace(point.colocation, interference=how)))
        for how in ("lower", "expected", "upper")
    )
    assert tpot_s(ALONE) <= lower <= expected <= upper


def test_time_slicing_with_a_busy_neighbour_doubles_kernel_time() -> None:
    own = validated_partition(
        replace(TURNS, colocation=replace(TURNS.colocation, interference="upper"))
    )
    assert own.colocation.time_share == 0.5
    twice = tpot_s(own) / tpot_s(replace(own, colocation=replace(own.colocation, time_share=1.0)))
    assert 1.9 < twice < 2.2  # host time is not doubled, but batches grow


@pytest.mark.parametrize("traffic", [(0.2, 0.9), (0.9, 0.9), (0.1, 0.1)])
def test_colocated_models_share_bandwidth(traffic: tuple[float, float]) -> None:
    parts = [
        sm_share_partition(0.5, [0.5], [NeighbourLoad(1.0, other)]) for other in reversed(traffic)
    ]
    used = [min(part.bandwidth, asked) for part, asked in zip(parts, traffic, strict=True)]
    assert sum(used) <= 1.0 + 1.0 / 256.0
    assert sum(part.sms for part in parts) <= 1.0


def test_each_model_gets_at_least_an_even_share() -> None:
    oversubscription = sm_share_partition(1.0, [1.0, 1.0], [ALWAYS_BUSY, ALWAYS_BUSY])
    assert oversubscription.sms == pytest.approx(1 / 3)
    assert oversubscription.bandwidth == pytest.approx(1 / 3, abs=1 / 256)
    assert time_slice_partition([ALWAYS_BUSY, ALWAYS_BUSY]).time == pytest.approx(1 / 3)


def test_divided_memory_is_at_most_a_shared_pool() -> None:
    other = replace(TURNS, model=LARGE, colocation=replace(TURNS.colocation, models=SMALL))
    whole, mine, theirs = (simulate(point) for point in (ALONE, TURNS, other))
    pooled = simulate(replace(TURNS, colocation=replace(TURNS.colocation, kv_pool="shared")))
    least = simulate(
        replace(TURNS, colocation=replace(TURNS.colocation, kv_pool="shared", interference="upper"))
    )
    assert mine.kv_blocks + theirs.kv_blocks < whole.kv_blocks
    assert mine.kv_blocks < pooled.kv_blocks < whole.kv_blocks
    assert least.kv_blocks == mine.kv_blocks


@pytest.mark.parametrize("point", KINDS)
def test_price_shares_sum_to_the_gpu_price(point: ServingPoint) -> None:
    theirs = replace(point, model=LARGE, colocation=replace(point.colocation, models=SMALL))
    assert price_share(point) + price_share(theirs) == pytest.approx(1.0)


def test_costs_from_rows_equal_run_costs() -> None:
    points = [
        ALONE,
        *KINDS,
        replace(ALONE, colocation=replace(ALONE.colocation, sharing="mig", mig_slice="3g")),
    ]
    batch = pa.RecordBatch.from_pylist([values_of(p) for p in points], schema_of(ServingPoint))
    found = SIMULATOR.evaluate(batch)
    rows = pa.Table.from_batches([batch]).to_pydict() | pa.Table.from_batches([found]).to_pydict()
    needed = pa.RecordBatch.from_pydict({name: rows[name] for name in SIMULATOR.cost_needs})
    prices = {name: batch.to_pylist()[0][name] for name in SIMULATOR.priced}
    again = SIMULATOR.costs(needed, prices)["cost_usd_per_mtok"]
    np.testing.assert_allclose(again, rows["cost_usd_per_mtok"], rtol=1e-12)


def test_row_without_tokens_has_no_cost_per_token() -> None:
    batch = pa.RecordBatch.from_pylist([values_of(ALONE)], schema_of(ServingPoint))
    found = SIMULATOR.evaluate(batch)
    row = batch.to_pylist()[0] | found.to_pylist()[0]
    row |= {name: 0.0 for name in SIMULATOR.cost_needs if name.startswith("tokens_per_s")}
    needed = pa.RecordBatch.from_pylist([{name: row[name] for name in SIMULATOR.cost_needs}])
    costs = SIMULATOR.costs(needed, {name: batch.to_pylist()[0][name] for name in SIMULATOR.priced})
    assert np.isnan(costs["cost_usd_per_mtok"]).all()
    assert (costs["cost_usd_per_hour"] > 0.0).all()


def test_mig_slice_is_a_smaller_gpu_with_separate_memory() -> None:
    own = validated_partition(
        replace(ALONE, colocation=replace(ALONE.colocation, sharing="mig", mig_slice="4g"))
    )
    assert (own.sm_scale, own.bandwidth_scale) == (56 / 108, 0.5)
    assert own.gpu_memory_utilization == ALONE.gpu_memory_utilization / 2
    rest = replace(
        ALONE,
        colocation=replace(ALONE.colocation, sharing="mig", mig_slice="4g"),
        scheduler="trtllm",
    )
    assert simulate(rest).kv_blocks < simulate(replace(ALONE, scheduler="trtllm")).kv_blocks / 2


def test_mig_slice_draws_its_share_of_idle_power() -> None:
    whole = gpu_power_w(ALONE)
    assert gpu_power_w(SLICE) == pytest.approx((whole[0] * 3 / 7, whole[1] / 2))
    turns, shares = (
        gpu_power_w(replace(point, colocation=replace(point.colocation, interference="lower")))
        for point in (TURNS, SHARES)
    )
    assert turns == shares == pytest.approx((whole[0] / 2, whole[1]))
    quiet = replace(ALONE, qps=0.05)
    assert joules(
        replace(quiet, colocation=replace(quiet.colocation, models=LARGE, interference="lower"))
    ) < 0.7 * joules(quiet)
    assert joules(replace(SLICE, qps=0.05)) < 0.6 * joules(quiet)


def gpu_power_w(point: ServingPoint) -> tuple[float, float]:
    """Return the watts at rest and at most of what a design has of its GPU."""
    gpu = deployment_of(validated_partition(point)).hardware.replica.gpu
    return idle_w_of(gpu), gpu.tdp_w


def joules(point: ServingPoint) -> float:
    found = simulate(point).energy_j_per_token
    assert found is not None
    return found


def test_dense_neighbour_uses_only_tp() -> None:
    assert simulate(EXPERTS).completed_requests == EXPERTS.requests


def test_analytic_fidelity_supports_colocation() -> None:
    assert tpot_s(replace(SHARES, fidelity="analytic")) > tpot_s(
        replace(ALONE, fidelity="analytic")
    )


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (
            replace(TURNS, colocation=replace(TURNS.colocation, models="llama2_70b")),
            "colocated_weights_exceed_hbm",
        ),
        (
            replace(TURNS, colocation=replace(TURNS.colocation, sm_share=0.5)),
            "sm_share_needs_sharing_mps",
        ),
        (
            replace(SHARES, colocation=replace(SHARES.colocation, sm_share=1.0)),
            "no_sms_for_colocated",
        ),
        (
            replace(ALONE, colocation=replace(ALONE.colocation, sharing="mig")),
            "mig_needs_mig_slice",
        ),
        (
            replace(
                ALONE, colocation=replace(ALONE.colocation, sharing="mig", mig_slice="3g"), tp=2
            ),
            "mig_needs_one_gpu",
        ),
        (
            replace(
                ALONE, colocation=replace(ALONE.colocation, sharing="mig", mig_slice="3g"), gpu="l4"
            ),
            "no_mig_profiles",
        ),
        (
            replace(TURNS, colocation=replace(TURNS.colocation, sharing="mig", mig_slice="3g")),
            "mig_slices_are_apart",
        ),
        (
            replace(SHARES, colocation=replace(SHARES.colocation, mig_slice="3g")),
            "mig_slice_needs_sharing_mig",
        ),
        (
            replace(ALONE, colocation=replace(ALONE.colocation, mig_slice="3g")),
            "mig_slice_needs_sharing_mig",
        ),
        (
            replace(ALONE, colocation=replace(ALONE.colocation, sm_share=0.25)),
            "sm_share_needs_sharing_mps",
        ),
        (
            replace(TURNS, colocation=replace(TURNS.colocation, other_sm_share=0.5)),
            "other_sm_share_needs_sharing_mps",
        ),
        (
            replace(SLICE, colocation=replace(SLICE.colocation, sm_share=0.5)),
            "mig_has_no_colocation_sm_share",
        ),
        (
            replace(SLICE, colocation=replace(SLICE.colocation, kv_pool="shared")),
            "mig_has_no_colocation_kv_pool",
        ),
        (
            replace(SLICE, colocation=replace(SLICE.colocation, interference="upper")),
            "mig_has_no_colocation_interference",
        ),
        (
            replace(SLICE, colocation=replace(SLICE.colocation, qps=2.0)),
            "mig_has_no_colocation_qps",
        ),
        (
            replace(EXPERTS, colocation=replace(EXPERTS.colocation, interference="expected")),
            "expected_interference_needs_ep_1",
        ),
    ],
)
def test_unsupported_colocation_raises_a_reason(point: ServingPoint, reason: str) -> None:
    with pytest.raises(Infeasible) as verdict:
        simulate(point)
    assert verdict.value.reason == reason
