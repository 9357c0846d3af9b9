"""A training step of a small model: the effect of every parallelism and memory option."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.core.columns import batch_of
from simulators.core.errors import Infeasible, UserError
from simulators.training.job import load_constants, recompute_of
from simulators.training.metrics import JOB_FIELDS, job_of
from simulators.training.operator_prices import pieces
from simulators.training.operators import pass_kernels
from simulators.training.point import TrainingPoint
from simulators.training.simulator import SIMULATOR
from simulators.training.stages import even_sizes
from simulators.training.step import DISPATCH_SMS

BASE = TrainingPoint(model="llama3_1_8b", gpu="h100_sxm", batch=64, sequence=4096, zero=3, dp=8)


def evaluate(*points):
    return SIMULATOR.evaluate(batch_of(TrainingPoint, *map(vars, points))).to_pylist()


def one(**changes):
    [row] = evaluate(replace(BASE, **changes))
    assert row["status"] == "ok", row["reason"]
    return row


def test_training_row_is_equal_alone_and_in_a_batch():
    points = [replace(BASE, micro_batch=mb, tp=tp, dp=8 // tp) for mb in (1, 2) for tp in (1, 2)]
    together = evaluate(*points)
    assert together == [evaluate(point)[0] for point in points]


def test_components_sum_to_the_step_without_a_pipeline():
    row = one()
    parts = (
        "compute_s",
        "bubble_s",
        "tp_comm_s",
        "cp_comm_s",
        "ep_comm_s",
        "dp_comm_s",
        "straggler_s",
        "optimizer_s",
        "loading_s",
    )
    assert sum(row[name] for name in parts) == pytest.approx(row["step_s"], rel=1e-9)
    assert row["bubble_s"] == row["bubble_share"] == 0.0


def test_recomputation_takes_time_and_saves_memory():
    none, full = (one(recompute=r, micro_batch=1) for r in ("none", "full"))
    assert 1.2 < full["step_s"] / none["step_s"] < 4 / 3  # head and exchange run once
    assert full["activation_bytes"] < none["activation_bytes"] / 4
    assert full["flops_per_s_per_gpu"] < none["flops_per_s_per_gpu"]


def test_elementwise_recomputation_drops_norm_and_activation_results():
    none, some, full = (one(recompute=r, micro_batch=1) for r in ("none", "elementwise", "full"))
    assert none["step_s"] < some["step_s"] < 1.05 * none["step_s"] < full["step_s"]
    model = load_model(BASE.model)
    tokens, left = BASE.sequence, 4 * model.hidden + 2 * model.ffn
    gone = none["activation_bytes"] - some["activation_bytes"]
    assert gone == tokens * left * model.layers
    assert some["workspace_bytes"] - none["workspace_bytes"] == tokens * left  # one layer's


def test_fp8_attention_is_faster_and_stores_half_the_bytes():
    model = load_model(BASE.model)
    kernels = ("flash", "flash_fp8")
    wide, narrow = (one(attention=kernel, sequence=8192, dtype="fp8") for kernel in kernels)
    assert narrow["compute_s"] < wide["compute_s"]
    heads = (3 * model.heads + 2 * model.kv_heads) * model.head_dim  # results once, not twice
    assert wide["activation_bytes"] - narrow["activation_bytes"] == 8192 * heads * model.layers
    [row] = evaluate(replace(BASE, gpu="a100_sxm", attention="flash_fp8"))
    assert row["reason"].startswith("dtype_not_supported")


def test_eager_attention_stores_dropout_masks_of_residuals():
    job = job_of({name: getattr(BASE, name) for name in JOB_FIELDS})
    for attention, kernels in (("flash", 0), ("unfused", 4)):  # two a layer, both ways
        found = pass_kernels(replace(job, attention=attention), "dense", np.ones(1))
        dropped = [task.kernel for task in found if task.kernel.name == "dropout"]
        residuals = [k for k in dropped if float(k.elements[0]) == BASE.sequence * 4096]
        assert len(residuals) == kernels


def test_useful_flops_are_six_per_weight_and_token_plus_attention():
    row = one()
    per_token = row["flops_per_s_per_gpu"] / row["tokens_per_s_per_gpu"]
    weights = 8.03e9 - 128_256 * 4096
    attention = 32 * 6 * 4096 * 4096
    assert per_token == pytest.approx(6 * weights + attention, rel=0.01)


def test_zero_stages_divide_weights_gradients_and_optimizer_states():
    rows = [one(zero=zero, gpu="b200_sxm") for zero in range(4)]
    states, gradients, weights = (
        [row[f"{name}_bytes"] for row in rows] for name in ("optimizer_state", "gradient", "weight")
    )
    assert [s / states[0] for s in states] == pytest.approx([1, 1 / 8, 1 / 8, 1 / 8])
    assert [g / gradients[0] for g in gradients] == pytest.approx([1, 1, 1 / 8, 1 / 8])
    assert [w / weights[0] for w in weights] == pytest.approx([1, 1, 1, 1 / 8])
    assert weights[0] == pytest.approx(2 * 8.03e9, rel=0.001)


def test_impossible_point_has_a_reason():
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
        "batch_not_divisible",
        "pp_exceeds_layers",
        "chunks_need_interleaving",
        "micro_batches_not_multiple_of_pp",
        "memory_exceeds_hbm",
        "tp_does_not_divide_heads",
        "dtype_not_supported",
        "ep_does_not_divide_experts",
    ]


def test_more_failures_lengthen_the_run():
    rows = [one(gpu_mtbf_h=hours) for hours in (1e2, 1e4, 1e6)]
    assert rows[0]["run_s"] > rows[1]["run_s"] > rows[2]["run_s"]
    assert all(0.0 < row["goodput_share"] < 1.0 for row in rows)


def test_interval_is_wider_on_architectures_without_measured_steps():
    rows = [one(gpu=gpu, zero=3, dtype="bf16", recompute="full") for gpu in ("h100_sxm", "tpu_v5p")]
    widths = [row["step_s_hi"] / row["step_s_lo"] for row in rows]
    assert widths[1] > 1.5 * widths[0]
    assert all(row["mfu"] * row["step_s"] / row["step_s_lo"] <= 1.0 + 1e-9 for row in rows)


def test_facts_count_gpus():
    batch = batch_of(TrainingPoint, vars(replace(BASE, tp=4, pp=2, cp=2)))
    [facts] = SIMULATOR.describe(batch).to_pylist()
    assert facts["gpus"] == 4 * 2 * 2 * 8
    assert facts["batch_tokens"] == 64 * 4096
    assert TrainingPoint.__dataclass_fields__["zero"].default == 1
    assert np.isfinite(facts["micro_batches"])


def test_lora_skips_weight_gradients_and_most_optimizer_states():
    wide = {"zero": 1, "gpu": "b200_sxm", "micro_batch": 4, "recompute": "selective"}
    full, lora = one(**wide), one(**wide, lora_rank=16)
    assert 0.6 < lora["step_s"] / full["step_s"] < 0.8
    assert lora["optimizer_state_bytes"] < full["optimizer_state_bytes"] / 500
    assert lora["weight_bytes"] == full["weight_bytes"]


@pytest.mark.parametrize("recompute", ["none", "selective", "elementwise", "full"])
def test_contributions_sum_to_the_step_time(recompute):
    changes = {"pp": 2, "tp": 2, "dp": 4, "recompute": recompute, "zero": 1, "gpu": "b200_sxm"}
    row, parts = one(**changes), SIMULATOR.explain(vars(replace(BASE, **changes)))
    assert sum(part.time_s for part in parts) == pytest.approx(row["step_s"], rel=1e-9)
    assert sum(part.energy_j for part in parts) == pytest.approx(row["energy_j"], rel=1e-9)
    held = sum(part.memory_bytes for part in parts)
    assert held == pytest.approx(row["memory_bytes"], rel=1e-9)


def test_gradient_accumulation_is_a_separate_kernel_without_fusion_and_sharding():
    fused, eager = (one(dp=1, tp=8, zero=0, fusion=f)["compute_s"] for f in ("fused", "eager"))
    shared = [one(zero=3, fusion=f)["compute_s"] for f in ("fused", "eager")]
    assert eager - fused > shared[1] - shared[0] > 0.0


def test_inter_node_all_to_all_overlaps_another_micro_batch():
    mixture = replace(
        BASE,
        model="mixtral_8x7b",
        sequence=4096,
        batch=256,
        pp=4,
        dp=16,
        ep=8,
        expert_tp=2,
        schedule="interleaved",
        zero=1,
    )
    hidden, shown, once = evaluate(
        replace(mixture, chunks=2), replace(mixture, chunks=2, overlap=False), mixture
    )
    assert hidden["ep_comm_s"] < 0.5 * shown["ep_comm_s"]
    assert once["ep_comm_s"] == shown["ep_comm_s"]


def test_partial_recomputation_lies_between_none_and_full():
    piped = {"pp": 2, "dp": 4, "zero": 1, "gpu": "b200_sxm"}  # 16 layers a rank
    none, some, every = (
        one(recompute=how, recompute_layers=layers, **piped)
        for how, layers in (("none", 0), ("full", 4), ("full", 0))
    )
    for name in ("step_s", "activation_bytes"):
        assert some[name] == pytest.approx(0.75 * none[name] + 0.25 * every[name], rel=2e-2)
    assert one(recompute="full", recompute_layers=16, **piped) == every


def test_optimizer_offload_saves_gpu_memory_and_waits_for_the_cpu():
    names = {"zero": 2, "gpu": "b200_sxm", "cuda_graphs": True}  # which do not wait for hosts
    kept, moved = one(**names), one(offload=True, **names)
    assert moved["optimizer_state_bytes"] == moved["gradient_bytes"] == 0.0 == kept["host_bytes"]
    assert moved["host_bytes"] == pytest.approx(16 * 8.03e9, rel=1e-3)  # all eight ranks share one
    waits_s = moved["optimizer_s"]
    assert waits_s == pytest.approx(8.03e9 / 3.9e9, rel=1e-3)  # gradients leave behind the backward
    steps = [row["step_s"] - row["straggler_s"] for row in (kept, moved)]
    assert steps[1] - steps[0] == pytest.approx(waits_s - kept["optimizer_s"])
    assert one(offload=True, host_adam_per_s=7.8e9, **names)["optimizer_s"] == waits_s / 2


def test_compressed_gradients_send_fewer_bytes_and_add_kernels():
    far = {"dp": 64, "zero": 1, "gpu": "b200_sxm", "overlap": False}
    sent = [one(gradient_dtype=d, **far)["dp_comm_s"] for d in ("fp32", "bf16", "fp8", "int4")]
    assert sent == sorted(sent, reverse=True)
    assert sent[1] - sent[3] < 0.75 * (sent[0] - sent[1])  # a quarter saved, less its kernels


def test_sharded_weights_without_overlap_are_gathered_before_every_pass():
    sharded = {"dp": 8, "tp": 1, "zero": 3, "batch": 64, "micro_batch": 1}
    hidden, shown = (one(overlap=overlap, **sharded) for overlap in (True, False))
    # 8 micro-batches gather 16 GB of weights for two passes, over at most 450 GB/s of NVLink.
    least_s = 8 * 2 * 2 * (7 / 8) * 8.03e9 / 450e9
    assert shown["dp_comm_s"] > least_s
    assert shown["dp_comm_s"] > 2.0 * hidden["dp_comm_s"]
    assert shown["compute_s"] == hidden["compute_s"]


def test_slow_storage_delays_the_step():
    fast, slow = one(), one(token_bytes=4e3, storage_bytes_per_s=1e8)
    read_s = 64 * 4096 * 4e3 / 1e8
    assert fast["loading_s"] == 0.0
    assert slow["step_s"] == pytest.approx(read_s)
    assert slow["loading_s"] == pytest.approx(read_s - fast["step_s"])


def test_checkpoint_time_follows_bytes_and_lost_work_follows_failures():
    row = one(storage_bytes_per_s=2e9)
    assert row["checkpoint_pause_s"] == pytest.approx(14 * 8.03e9 / 2e9, rel=1e-3)
    assert one(checkpoint_s=5.0)["checkpoint_pause_s"] == 5.0
    until = one(target_loss=row["loss"])
    assert until["run_tokens"] == pytest.approx(1e12)
    assert until["run_s"] == pytest.approx(one()["run_s"])
    [never] = evaluate(replace(BASE, target_loss=1.9))
    assert never["reason"].startswith("loss_out_of_reach: 1.9; a scaling law expects llama3_1_8b")


def test_fp8_gemms_gather_half_the_bytes_and_quantize_gradients():
    layout = {"tp": 8, "dp": 1, "zero": 1, "gpu": "b200_sxm", "batch": 16, "micro_batch": 4}
    wide, narrow = one(**layout), one(dtype="fp8", **layout)
    assert 0.7 < narrow["tp_comm_s"] / wide["tp_comm_s"] < 0.9  # sums keep 16 bits
    assert 0.5 < one(dtype="fp8")["compute_s"] / one()["compute_s"] < 0.9


def test_fp8_operands_never_slow_a_gemm():
    wide = job_of(vars(replace(BASE, model="gpt2_medium")))
    sizes = np.array([1.0, 48.0])
    found = {dtype: pieces(replace(wide, dtype=dtype), sizes)["dense"] for dtype in ("fp8", "bf16")}
    for phase in ("forward", "inputs", "weights"):
        narrow = found["fp8"].seconds[phase, "fp8"]
        assert (narrow <= found["bf16"].seconds[phase, "bf16"]).all()


def test_training_writes_no_kv_cache_and_eager_kernels_copy_keys():
    job = job_of(vars(replace(BASE, model="gpt3_175b")))
    names = {
        how: {task.kernel.name for task in pass_kernels(replace(job, fusion=how), "dense", 1.0)}
        for how in ("fused", "eager")
    }
    assert names["eager"] - names["fused"] == {"cache_write", "gradient_sum"}


def test_heads_are_quantized_once_per_sequence_and_packed_for_all_to_all():
    job = job_of(vars(replace(BASE, attention="flash_fp8", cp=2, dp=4)))

    def moved(job, micro_batch, name):
        found = [task.kernel for task in pass_kernels(job, "dense", micro_batch) if task.is_core]
        return sum(one.elements * one.repeat for one in found if one.name == name)

    assert moved(job, 4.0, "narrowing") == 4.0 * moved(job, 1.0, "narrowing") > 0.0
    assert (
        moved(job, 1.0, "packing")
        == 0.0
        < moved(replace(job, context_exchange="ulysses"), 1.0, "packing")
    )


def test_dualpipe_holds_two_copies_and_has_a_smaller_bubble():
    piped = replace(BASE, gpu="b200_sxm", pp=4, dp=4, zero=1, batch=64)
    names = ("zero_bubble", "dualpipe", "dualpipe_v")
    zero, dual, folded = evaluate(*(replace(piped, schedule=name) for name in names))
    assert dual["weight_bytes"] > 1.7 * zero["weight_bytes"] > 1.7 * folded["weight_bytes"] / 1.3
    assert dual["optimizer_state_bytes"] < 1.1 * zero["optimizer_state_bytes"]
    assert dual["bubble_s"] < zero["bubble_s"]
    [few] = evaluate(replace(piped, schedule="dualpipe", batch=16))
    assert few["reason"].startswith("micro_batches_too_few_to_pair: 4 micro-batches, pp 4")


def test_straggler_wait_grows_with_gpus_and_is_zero_without_spread():
    few, many = one(dp=8), one(dp=64)
    for row in (few, many):
        assert row["step_s"] - row["straggler_s"] < row["step_p50_s"] < row["step_p95_s"]
    behind = [row["step_p95_s"] / (row["step_s"] - row["straggler_s"]) for row in (few, many)]
    assert behind[0] < behind[1] < 1.0 + 4 * 0.02
    even = one(gpu_spread=0.0)
    assert even["step_p50_s"] == even["step_p95_s"] == even["step_s"] - even["straggler_s"]


def test_cuda_graph_steps_hide_launches_except_for_moe_layers():
    mixture = {"model": "mixtral_8x7b", "gpu": "b300_sxm", "ep": 8, "recompute": "full"}
    for gain, changes in (((0.0, 0.04), {}), ((0.02, 0.5), mixture)):
        plain, graphs = one(**changes), one(cuda_graphs=True, **changes)
        assert gain[0] < 1.0 - graphs["compute_s"] / plain["compute_s"] < gain[1]
        waits_s = plain["optimizer_s"] - graphs["optimizer_s"]
        assert waits_s == pytest.approx(load_constants().step_s)  # of the step, for its host


def test_thin_layers_are_launch_bound_without_cuda_graphs():
    thin = {"tp": 8, "dp": 1, "batch": 8, "zero": 1}
    short, longer = (one(**thin, sequence=sequence)["compute_s"] for sequence in (256, 512))
    assert short == pytest.approx(longer, rel=0.03)  # but for the head and the embedding
    assert one(**thin, sequence=512, cuda_graphs=True)["compute_s"] < 0.5 * short
    again = one(**thin, sequence=512, recompute="full")["compute_s"]
    assert 1.3 * longer < again < 1.5 * longer  # forwards are launched twice
    rings = one(**thin | {"tp": 4}, cp=2, sequence=512, context_exchange="zigzag")["compute_s"]
    assert rings > 1.05 * longer  # keys of two ranks, one after the other


def test_cuda_graph_step_is_at_least_the_host_time():
    row = one(model="gpt2", sequence=128, batch=8, zero=1, cuda_graphs=True)
    assert row["step_s"] - row["straggler_s"] == pytest.approx(load_constants().step_s)


def test_straggler_wait_grows_equally_per_doubling_of_dp():
    rows = [one(zero=1, dp=dp, batch=16 * dp, gpu="b200_sxm") for dp in (1, 2, 4, 16)]
    late = [row["straggler_s"] / (row["step_s"] - row["straggler_s"]) for row in rows]
    assert late == pytest.approx([0.0, late[1], 2 * late[1], 4 * late[1]])
    assert 0.0 < late[1] < 0.02


def test_lora_on_all_layers_costs_more_than_lora_on_attention():
    attention, everywhere = (one(lora_rank=16, lora_targets=t) for t in ("attention", "all"))
    trained = one(lora_rank=0)
    steps = [row["step_s"] for row in (attention, everywhere, trained)]
    assert steps == sorted(steps)
    kept = [row["activation_bytes"] for row in (attention, everywhere, trained)]
    assert kept[0] < kept[1] == kept[2]
    assert (
        attention["optimizer_state_bytes"]
        < everywhere["optimizer_state_bytes"]
        < trained["optimizer_state_bytes"] / 100
    )


def test_expert_skew_slows_the_step_until_tokens_are_dropped():
    mixture = replace(
        BASE, model="mixtral_8x7b", sequence=4096, batch=256, dp=64, ep=8, zero=1, recompute="full"
    )
    even, skewed, capped = evaluate(
        mixture,
        replace(mixture, routing_skew=1.0),
        replace(mixture, routing_skew=1.0, capacity_factor=1.25),
    )
    busiest = skewed["ep_comm_s"] / even["ep_comm_s"]
    assert 2.0 < busiest < 2.43
    assert 1.0 < capped["ep_comm_s"] / even["ep_comm_s"] < busiest
    assert even["compute_s"] < capped["compute_s"] < skewed["compute_s"]


DEEPSEEK = TrainingPoint(
    model="deepseek_v3",
    gpu="gb300",
    pp=2,
    chunks=8,
    schedule="interleaved",
    dp=128,
    ep=32,
    batch=4096,
    sequence=4096,
    dtype="fp8",
    gradient_dtype="bf16",
    recompute="none",
)


def deepseek(**changes):
    [row] = evaluate(replace(DEEPSEEK, **changes))
    assert row["status"] == "ok", row["reason"]
    return row


def test_published_recipe_of_deepseek_on_gb300_fits_its_memory():
    row = deepseek(micro_batch=2, recompute="mla_up_proj")  # Megatron-Bridge 26.04
    assert 0.7 < row["memory_bytes"] / 299.6e9 < 0.95
    assert row["oom_probability"] < 0.05


@pytest.mark.parametrize("module", ["layernorm", "moe_act", "mla_up_proj", "moe"])
def test_recomputed_module_saves_memory_and_takes_time(module):
    none, some, full = deepseek(), deepseek(recompute=module), deepseek(recompute="full")
    assert none["activation_bytes"] > some["activation_bytes"] > full["activation_bytes"]
    assert none["step_s"] < some["step_s"] < full["step_s"]
    messages = [row["ep_comm_s"] for row in (none, some)]
    assert (messages[1] == pytest.approx(1.5 * messages[0])) == (module == "moe")


def test_words_for_sets_of_modules_are_not_combined():
    with pytest.raises(UserError, match="unknown recompute 'full'") as error:
        recompute_of("full+mlp")
    assert "Known: core_attn" in str(error.value)
    assert "selective" not in str(error.value)


def test_modules_add_up_and_words_name_their_sets():
    one, other, both = (
        deepseek(recompute=word)["activation_bytes"]
        for word in ("mla_up_proj", "moe_act", "mla_up_proj+moe_act")
    )
    assert deepseek()["activation_bytes"] - both == pytest.approx(
        2 * deepseek()["activation_bytes"] - one - other
    )
    steps_s = {
        deepseek(recompute=word)["step_s"]
        for word in ("elementwise", "layernorm+moe_act", "moe_act+layernorm")
    }
    assert len(steps_s) == 1
    with pytest.raises(UserError, match="unknown recompute 'mla'"):
        evaluate(replace(DEEPSEEK, recompute="mla"))


def test_narrow_activations_moments_and_messages_are_smaller():
    wide = deepseek()
    kept = deepseek(activation_dtype="fp8")
    assert kept["activation_bytes"] < wide["activation_bytes"]
    narrow = deepseek(optimizer_dtype="bf16")["optimizer_state_bytes"]
    assert narrow == pytest.approx(12 / 16 * wide["optimizer_state_bytes"])
    assert deepseek(dispatch_dtype="fp8")["ep_comm_s"] < wide["ep_comm_s"]
    hidden = deepseek(expert_overlap="on")["ep_comm_s"]
    sms = load_gpu(DEEPSEEK.gpu).sm_count
    assert hidden == pytest.approx(DISPATCH_SMS / sms * deepseek(expert_overlap="off")["ep_comm_s"])


def test_tensor_messages_without_overlap_are_exposed():
    hidden, shown = (one(tp=4, dp=2, tp_overlap=overlap) for overlap in (True, False))
    assert shown["tp_comm_s"] > hidden["tp_comm_s"] > 0.0
    assert shown["step_s"] > hidden["step_s"]
    alone = one(tp=4, dp=2, overlap=False)
    assert alone["tp_comm_s"] == pytest.approx(shown["tp_comm_s"])


def test_prediction_layer_is_on_the_last_stage():
    once, twice = deepseek(mtp_layers=1), deepseek(mtp_layers=2)
    assert deepseek()["compute_s"] < once["compute_s"] < twice["compute_s"]
    assert deepseek()["bubble_s"] < once["bubble_s"]


def test_embedding_and_head_may_be_chunks_of_their_own():
    llama = {"model": "llama3_1_405b", "gpu": "h100_sxm", "tp": 8, "pp": 16, "chunks": 8}
    llama |= {"ep": 1, "dp": 128, "batch": 2048, "sequence": 8192, "dtype": "bf16", "zero": 2}
    row = deepseek(**llama, gradient_dtype="fp32")  # 126 layers over 128 chunks
    assert row["memory_bytes"] < 80e9
    [more] = evaluate(replace(DEEPSEEK, **llama | {"chunks": 9}))
    assert more["reason"].startswith("pp_exceeds_layers")


def test_accepted_risk_of_running_out_bounds_memory():
    plan = replace(BASE, gpu="h100_sxm", micro_batch=4, recompute="elementwise")
    [row] = evaluate(plan)
    assert 0.0 < row["oom_probability"] < 0.5
    [bounded] = evaluate(replace(plan, oom_limit=row["oom_probability"] / 2))
    assert bounded["reason"].startswith("memory_exceeds_hbm")
    assert "of running out" in bounded["reason"]


def test_offloaded_layers_leave_the_gpu_and_may_wait_for_the_host():
    none, some = (one(offload_layers=n, gpu="h100_sxm", micro_batch=2) for n in (0, 16))
    assert some["activation_bytes"] == pytest.approx(none["activation_bytes"] / 2)
    assert some["step_s"] > none["step_s"]  # over PCIe


def test_pytorch_loss_keeps_more_copies_of_the_logits():
    fused, eager = (one(cross_entropy=kind, micro_batch=2) for kind in ("fused", "eager"))
    assert eager["workspace_bytes"] == pytest.approx(14 / 6 * fused["workspace_bytes"])
    assert fused["step_s"] < eager["step_s"]


def test_every_other_product_is_recomputed_by_torchtitans_policy():
    none, some, full = (one(recompute=r) for r in ("none", "selective_op", "full"))
    assert none["step_s"] < some["step_s"] < full["step_s"]
    assert 0.4 < some["activation_bytes"] / none["activation_bytes"] < 0.6


STAGES = replace(
    BASE, model="llama3_1_405b", tp=8, pp=8, batch=512, zero=1, recompute="full", oom_limit=1.0
)


def test_uneven_stages_equal_the_layout_that_writes_them_out():
    uneven = replace(STAGES, first_stage_layers=9, last_stage_layers=15)
    written = replace(STAGES, pipeline_layout="Et*9|(t*17|)*6t*15L")
    rows = evaluate(uneven, written)
    assert rows[0]["status"] == "ok"
    assert rows[0] == rows[1]


def test_memory_of_dense_layers_before_experts_is_that_of_the_fullest_rank():
    base = replace(BASE, model="deepseek_v3", gpu="h100_sxm", pp=16, dp=64, ep=64, batch=2048)
    base = replace(base, zero=1, oom_limit=1.0, recompute="mla_up_proj")
    [row] = evaluate(base)
    sizes = even_sizes(61, 16)
    written = "E" + "|".join(f"t*{n}" for n in sizes) + "L"
    assert row == evaluate(replace(base, pipeline_layout=written))[0]


def test_step_waits_for_the_largest_stage():
    even, *rows = evaluate(STAGES, *(replace(STAGES, first_stage_layers=n) for n in (28, 35, 42)))
    step_s = [row["step_s"] for row in rows]
    assert step_s[0] > 1.5 * even["step_s"]
    assert step_s[2] - step_s[1] == pytest.approx(step_s[1] - step_s[0], rel=0.02)
    held = [row["weight_bytes"] for row in rows]
    assert held[2] - held[1] == pytest.approx(held[1] - held[0])
    assert rows[2]["bubble_s"] > rows[0]["bubble_s"] > even["bubble_s"]


def test_layout_moves_multi_token_prediction_to_its_own_chunk():
    base = replace(
        BASE, model="deepseek_v3", gpu="gb300", pp=16, dp=64, ep=64, batch=4096, chunks=2
    )
    base = replace(base, schedule="interleaved", zero=1, mtp_layers=1, oom_limit=1.0)
    apart = replace(base, pipeline_layout="Et*3|(tt|)*29m|L")
    together = replace(base, pipeline_layout="Et*3|(tt|)*29|mL")
    rows = evaluate(base, apart, together)
    assert [row["status"] for row in rows] == ["ok"] * 3, [row["reason"] for row in rows]
    assert rows[1]["step_s"] < rows[2]["step_s"] <= rows[0]["step_s"]
    assert rows[1]["compute_s"] == rows[2]["compute_s"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"first_stage_layers": 10}, "uneven_stages_do_not_divide"),
        ({"first_stage_layers": 14, "schedule": "dualpipe"}, "uneven_stages:"),
        ({"first_stage_layers": 14, "pp": 1}, "uneven_stages:"),
        ({"first_stage_layers": 14, "zero": 3}, "uneven_stages_under_zero_3"),
        ({"pipeline_layout": "Et*126L"}, "pipeline_layout_chunks: 1 chunks"),
        ({"pipeline_layout": "Et*15|(t*16|)*6t*16L"}, "pipeline_layout_layers: 127 t"),
        ({"pipeline_layout": "Et*15|(t*16|)*6mt*15L", "mtp_layers": 1}, "pipeline_layout_layers"),
        ({"pipeline_layout": "E|(t*21|)*5t*21m|L", "mtp_layers": 1}, None),
    ],
)
def test_uneven_stages_that_cannot_exist_have_a_reason(changes, reason):
    [row] = evaluate(replace(STAGES, **changes))
    assert (row["reason"] or "").startswith(reason or "")
    assert (row["status"] == "ok") is (reason is None)


@pytest.mark.parametrize("layout", ["Ettx|L", "E(t*3|L", "Et*999999L"])
def test_text_that_is_no_layout_raises_an_error(layout):
    with pytest.raises(UserError, match="pipeline_layout"):
        evaluate(replace(STAGES, pipeline_layout=layout))


def test_scaling_law_does_not_predict_the_loss_of_adapters():
    assert one(lora_rank=16)["loss"] is None
    [row] = evaluate(replace(BASE, lora_rank=16, target_loss=2.5))
    assert row["reason"].startswith("loss_of_adapters")


@pytest.mark.parametrize("gpu", ["h20", "h20_3e", "gb300"])
def test_a_gpu_with_much_power_per_flop_stays_below_its_peak(gpu):
    assert one(gpu=gpu, sequence=8192)["mfu"] < 1.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pp": 4, "pipeline_layout": "Ett|tL"}, "pipeline_layout_chunks"),
        ({"first_stage_layers": 3}, "uneven_stages"),
    ],
)
def test_an_explanation_refuses_stages_that_do_not_fit(changes, reason):
    with pytest.raises(Infeasible, match=reason):
        SIMULATOR.explain(vars(replace(BASE, zero=1, **changes)))
