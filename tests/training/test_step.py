"""A step of a small model: what each way of cutting and running it changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.core.contract import default_of
from simulators.training.point import TrainingPoint
from simulators.training.simulator import SIMULATOR, batch_of

BASE = TrainingPoint(model="llama3_1_8b", gpu="h100_sxm", batch=64, sequence=4096, zero=3, dp=8)


def evaluate(*points):
    return SIMULATOR.evaluate(batch_of(points)).to_pylist()


def one(**changes):
    [row] = evaluate(replace(BASE, **changes))
    assert row["status"] == "ok", row["reason"]
    return row


def test_a_row_is_the_same_alone_and_among_others():
    points = [replace(BASE, micro_batch=mb, tp=tp, dp=8 // tp) for mb in (1, 2) for tp in (1, 2)]
    together = evaluate(*points)
    assert together == [evaluate(point)[0] for point in points]


def test_parts_add_up_without_a_pipeline():
    row = one()
    parts = ("compute_s", "bubble_s", "tensor_s", "context_s", "experts_s", "data_s", "optimizer_s")
    assert sum(row[name] for name in parts) == pytest.approx(row["step_s"], rel=1e-9)
    assert row["bubble_s"] == pytest.approx(0.0, abs=1e-9)


def test_recomputation_takes_time_and_gives_memory():
    none, full = (one(recompute=r, micro_batch=1) for r in ("none", "full"))
    assert 1.2 < full["step_s"] / none["step_s"] < 4 / 3  # head and exchange run once
    assert full["activation_bytes"] < none["activation_bytes"] / 4
    assert full["flops_per_s_per_gpu"] < none["flops_per_s_per_gpu"]


def test_useful_flops_are_six_a_weight_and_token_and_attention():
    row = one()
    per_token = row["flops_per_s_per_gpu"] / row["tokens_per_s_per_gpu"]
    weights = 8.03e9 - 128_256 * 4096
    attention = 32 * 6 * 4096 * 4096
    assert per_token == pytest.approx(6 * weights + attention, rel=0.01)


def test_sharing_out_divides_weights_gradients_and_states():
    rows = [one(zero=zero, gpu="b200_sxm") for zero in range(4)]
    states, gradients, weights = (
        [row[f"{name}_bytes"] for row in rows] for name in ("state", "gradient", "weight")
    )
    assert [s / states[0] for s in states] == pytest.approx([1, 1 / 8, 1 / 8, 1 / 8])
    assert [g / gradients[0] for g in gradients] == pytest.approx([1, 1, 1 / 8, 1 / 8])
    assert [w / weights[0] for w in weights] == pytest.approx([1, 1, 1, 1 / 8])
    assert weights[0] == pytest.approx(2 * 8.03e9, rel=0.001)


def test_what_cannot_be_says_why():
    reasons = [
        row["reason"].partition(":")[0]
        for row in evaluate(
            replace(BASE, batch=63),
            replace(BASE, pp=64),
            replace(BASE, chunks=2),
            replace(BASE, pp=4, chunks=2, schedule="interleaved", dp=32, batch=32),
            replace(BASE, zero=0, recompute="none", micro_batch=8),
            replace(BASE, tp=64),
            replace(BASE, dtype="fp4"),
            replace(BASE, ep=2),
        )
    ]
    assert reasons == [
        "batch_not_divisible", "pp_exceeds_layers", "chunks_need_interleaving",
        "micro_batches_not_multiple_of_pp", "memory_exceeds_hbm", "tp_does_not_divide_heads",
        "dtype_unsupported", "ep_does_not_divide_experts",
    ]  # fmt: skip


def test_more_failures_make_a_run_longer():
    rows = [one(gpu_mtbf_h=hours) for hours in (1e2, 1e4, 1e6)]
    assert rows[0]["run_s"] > rows[1]["run_s"] > rows[2]["run_s"]
    assert all(0.0 < row["goodput_share"] < 1.0 for row in rows)


def test_facts_count_gpus():
    batch = batch_of([replace(BASE, tp=4, pp=2, cp=2)])
    [facts] = SIMULATOR.describe(batch).to_pylist()
    assert facts["gpus"] == 4 * 2 * 2 * 8
    assert facts["batch_tokens"] == 64 * 4096
    assert default_of(TrainingPoint.__dataclass_fields__["zero"]) == 1
    assert np.isfinite(facts["micro_batches"])


def test_adapters_skip_a_third_of_the_work_and_nearly_all_states():
    full, lora = one(zero=1, gpu="b200_sxm"), one(zero=1, gpu="b200_sxm", lora_rank=16)
    assert 0.6 < lora["step_s"] / full["step_s"] < 0.8
    assert lora["state_bytes"] < full["state_bytes"] / 500
    assert lora["weight_bytes"] == full["weight_bytes"]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_contributions_add_up_to_the_step(recompute):
    changes = {"pp": 2, "tp": 2, "dp": 4, "recompute": recompute, "zero": 1, "gpu": "b200_sxm"}
    row, told = one(**changes), SIMULATOR.explain(vars(replace(BASE, **changes)))
    assert sum(part.time_s for part in told) == pytest.approx(row["step_s"], rel=1e-9)
    assert sum(part.energy_j for part in told) == pytest.approx(row["energy_j"], rel=1e-9)
    held = sum(part.memory_bytes for part in told)
    assert held == pytest.approx(row["memory_bytes"] - 2e9, rel=1e-9)


def test_gradients_are_summed_apart_where_products_do_not_and_nobody_shares_them_out():
    fused, eager = (one(dp=1, tp=8, zero=0, fusion=f)["compute_s"] for f in ("fused", "eager"))
    shared = [one(zero=3, fusion=f)["compute_s"] for f in ("fused", "eager")]
    assert eager - fused > shared[1] - shared[0] > 0.0


def test_messages_to_experts_of_other_nodes_hide_behind_another_micro_batch():
    mixture = replace(
        BASE, model="mixtral_8x7b", sequence=4096, batch=256, pp=4, dp=16, ep=8, expert_tp=2,
        schedule="interleaved", zero=1,
    )  # fmt: skip
    hidden, shown, once = evaluate(
        replace(mixture, chunks=2), replace(mixture, chunks=2, overlap=False), mixture
    )
    assert hidden["experts_s"] < 0.5 * shown["experts_s"]
    assert once["experts_s"] == shown["experts_s"]


def test_a_dualpipe_holds_two_models_shared_out_twice_as_far_and_waits_less():
    piped = replace(BASE, gpu="b200_sxm", pp=4, dp=4, zero=1, batch=64)
    names = ("zero_bubble", "dualpipe", "dualpipe_v")
    zero, dual, folded = evaluate(*(replace(piped, schedule=name) for name in names))
    assert dual["weight_bytes"] > 1.7 * zero["weight_bytes"] > 1.7 * folded["weight_bytes"] / 1.3
    assert dual["state_bytes"] < 1.1 * zero["state_bytes"]
    assert dual["bubble_s"] < zero["bubble_s"]
    [few] = evaluate(replace(piped, schedule="dualpipe", batch=16))
    assert few["reason"].startswith("micro_batches_too_few_to_pair: 4 micro-batches, pp 4")


def test_the_slowest_of_more_gpus_is_further_behind_and_none_is_without_a_spread():
    few, many = one(dp=8), one(dp=64)
    for row in (few, many):
        assert row["step_s"] < row["step_p50_s"] < row["step_p95_s"]
    behind = [row["step_p95_s"] / row["step_s"] for row in (few, many)]
    assert behind[0] < behind[1] < 1.0 + 4 * 0.02
    even = one(gpu_spread=0.0)
    assert even["step_s"] == even["step_p50_s"] == even["step_p95_s"]


def test_adapters_everywhere_keep_and_compute_more_than_those_of_attention():
    attention, everywhere = (one(lora_rank=16, lora_targets=t) for t in ("attention", "all"))
    trained = one(lora_rank=0)
    steps = [row["step_s"] for row in (attention, everywhere, trained)]
    assert steps == sorted(steps)
    kept = [row["activation_bytes"] for row in (attention, everywhere, trained)]
    assert kept[0] < kept[1] == kept[2]
    assert attention["state_bytes"] < everywhere["state_bytes"] < trained["state_bytes"] / 100
