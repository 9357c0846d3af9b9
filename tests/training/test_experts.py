"""Experts in training: products, quantization, biases, messages, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.catalog.cluster import load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.core.columns import batch_of
from simulators.training.communication import copies
from simulators.training.job import ALLTOALL, Job
from simulators.training.memory import activations
from simulators.training.operator_prices import pieces
from simulators.training.operators import FORWARD, INPUTS, OF_EXPERTS, WEIGHTS, pass_kernels
from simulators.training.point import TrainingPoint
from simulators.training.simulator import SIMULATOR
from simulators.workload.precision import BYTES

ONE = np.ones(1)


def job(model="gpt_oss_120b", gpu="gb200", **fields):
    cluster = load_cluster("gb200_nvl72")
    return Job(model=load_model(model), gpu=load_gpu(gpu), cluster=cluster, sequence=4096, **fields)


def experts(found):
    return {
        task.phase: task.kernel
        for task in pass_kernels(found, "experts", ONE)
        if task.kernel.name == OF_EXPERTS[0]
    }


def test_products_of_experts_have_all_rows_and_each_weight_gradient_those_of_one_expert():
    products, rows, width = experts(job(ep=8)), 4096 * 4, 2 * 2880
    forward, inputs, weights = (products[phase] for phase in (FORWARD, INPUTS, WEIGHTS))
    assert forward.m == pytest.approx(rows, rel=0.03)  # the busiest rank has a little more
    assert (forward.n, forward.k) == (width, 2880)
    assert (inputs.n, inputs.k) == (2880, width)
    assert (weights.m, weights.n) == (128 / 8 * width, 2880)
    assert weights.k == pytest.approx(forward.m / 16)


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_more_expert_ranks_leave_the_kernels_of_a_rank_alone(dtype):
    few, many = (
        sum(map(np.sum, pieces(job(ep=ep, dtype=dtype), ONE)["experts"].seconds.values()))
        for ep in (8, 64)
    )
    assert many == pytest.approx(few, rel=0.03)


def test_fused_experts_take_neither_quantization_nor_biases_nor_activation():
    plain = {t.kernel.name for t in pass_kernels(job(dtype="fp8"), "experts", ONE)}
    fused = {
        t.kernel.name for t in pass_kernels(job(dtype="fp8", cuda_graphs=True), "experts", ONE)
    }
    assert plain - fused == {
        "experts_narrowing",
        "experts_clamp_activation",
        "experts_bias",
        "experts_activation",
    }
    assert fused < plain
    assert not job(cuda_graphs=True).fuses_experts  # in 16 bits
    assert not job(gpu="h100_sxm", dtype="fp8", cuda_graphs=True).fuses_experts


def test_deepep_sends_a_token_once_to_a_rank_and_nccl_once_to_an_expert():
    model = "qwen3_30b"  # of 8 experts per token
    assert copies(job(model, ep=8, dispatcher=ALLTOALL), 8) == 8
    assert copies(job(model, ep=8), 8) == pytest.approx(8 * (1 - (7 / 8) ** 8))


def test_prediction_layers_join_hidden_states_and_embeddings_in_one_product_each():
    model = load_model("deepseek_v3")
    plain, once = (pieces(job("deepseek_v3", mtp_layers=n), ONE)["head"].flops[0] for n in (0, 1))
    assert 2.0 * (once - plain) == pytest.approx(2.0 * 4096 * model.hidden * 2 * model.hidden)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "mixtral_8x7b", "lora_rank": 16, "lora_targets": "all"}, "adapters_not"),
        ({"model": "deepseek_v3", "lora_rank": 16}, "adapters_not"),
        ({"model": "llama3_1_8b", "pp": 4, "offload_layers": 9}, "offload_exceeds_stage"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(changes, reason):
    point = TrainingPoint(**{"gpu": "h100_sxm", "batch": 64, "oom_limit": 1.0, **changes})
    [row] = SIMULATOR.evaluate(batch_of(TrainingPoint, vars(point))).to_pylist()
    assert row["status"] == "infeasible"
    assert reason in row["reason"]


def test_frozen_experts_save_no_inputs():
    base = {"model": "mixtral_8x7b", "gpu": "h100_sxm", "batch": 64, "oom_limit": 1.0, "tp": 8}
    points = [TrainingPoint(**base), TrainingPoint(**base, lora_rank=16)]
    full, lora = SIMULATOR.evaluate(batch_of(TrainingPoint, *map(vars, points))).to_pylist()
    assert lora["activation_bytes"] < full["activation_bytes"]


def test_ranks_that_share_experts_receive_a_token_once_and_gather_their_inputs():
    whole, split = (job(ep=8 // n, expert_tp=n) for n in (1, 2))
    assert copies(split, 8) == pytest.approx(4 * (1 - 0.75**split.model.top_k))
    saved = [sum(size for size, _ in activations(one, has_experts=True)) for one in (whole, split)]
    inputs = whole.model.top_k / whole.tp * whole.busiest * whole.model.hidden * BYTES["bf16"]
    assert saved[1] - saved[0] == pytest.approx(inputs)
