"""Engine runtimes: parallelism, kernel libraries and fitted factors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu, what_if
from simulators.catalog.model import load_model
from simulators.composition.price import busiest_group, iteration, part_rows
from simulators.composition.replica import EVERYTHING, Replica, Runtime, load_runtime
from simulators.core.errors import Infeasible, UserError
from simulators.workload.llm.memory import kv_bytes_per_token, weight_bytes
from simulators.workload.llm.parallelism import Parallelism, check_layout, stage_of
from simulators.workload.llm.step import decode_step, prefill_step
from simulators.workload.operators import Gemm, GroupedGemm


def a_replica(
    model: str, layout: Parallelism, runtime: str = "vllm", dtype: str = "fp8"
) -> Replica:
    gpu = load_gpu("h100_sxm")
    return Replica(
        model=load_model(model),
        gpu=gpu,
        cluster=cluster_for("auto", gpu),
        layout=layout,
        dtype=dtype,
        kv_dtype="fp8",
        runtime=load_runtime(runtime),
    )


def test_expert_parallelism_keeps_the_total_weight_bytes() -> None:
    model = load_model("qwen3_235b")
    by_width = weight_bytes(model, Parallelism(tp=8), "fp8")
    by_expert = weight_bytes(model, Parallelism(tp=8, ep=8), "fp8")
    assert by_expert == by_width


def test_data_parallel_attention_replicates_attention_weights_and_splits_the_cache() -> None:
    model = load_model("minimax_m2_5")
    together, apart = Parallelism(tp=4), Parallelism(tp=1, attention_dp=4, ep=4)
    assert apart.gpus == together.gpus == 4
    assert weight_bytes(model, apart, "fp8") > weight_bytes(model, together, "fp8")
    assert kv_bytes_per_token(model, apart, "fp8") == kv_bytes_per_token(model, together, "fp8")


def test_experts_not_divisible_by_ep_are_infeasible() -> None:
    with pytest.raises(Infeasible, match="ep_does_not_divide_experts"):
        check_layout(load_model("llama3_1_8b"), Parallelism(tp=2, ep=2))
    with pytest.raises(Infeasible, match="ep_does_not_divide_gpus"):
        check_layout(load_model("qwen3_235b"), Parallelism(tp=4, ep=3))


@given(requests=integers(1, 4096), groups=integers(1, 64))
def test_busiest_attention_group_has_at_least_one_request(requests: int, groups: int) -> None:
    share = busiest_group(decode_step(float(requests), 100.0), groups)
    assert share.decodes == pytest.approx(max(1.0, requests / groups))
    assert share.decode_kv_tokens == pytest.approx(100.0 * float(share.decodes))


def test_only_the_first_rank_of_tensorrt_llm_streams_the_tokens_of_all_ranks() -> None:
    apart = Parallelism(tp=1, attention_dp=8, ep=8)

    def hosted(one: Replica) -> list[float]:
        return [float(replace(one, stream_interval=n).hosted(80.0)) for n in (0, 1, 10)]

    assert hosted(a_replica("deepseek_v3", apart, "trtllm")) == [10.0, 80.0, 17.0]
    assert hosted(a_replica("deepseek_v3", apart, "sglang")) == [10.0] * 3
    assert hosted(a_replica("llama3_1_8b", Parallelism(tp=2), "trtllm")) == [80.0] * 3


def test_sliding_window_bounds_decode_reads() -> None:
    short, long = (
        iteration(a_replica("gpt_oss_120b", Parallelism(), dtype="bf16"), decode_step(8.0, context))
        for context in (1000.0, 100_000.0)
    )
    whole = replace(load_model("gpt_oss_120b"), attention_every=1, window=0)
    full = replace(a_replica("gpt_oss_120b", Parallelism(), dtype="bf16"), model=whole)
    grown = float(long.decode_attention_s) - float(short.decode_attention_s)
    seen = [iteration(full, decode_step(8.0, c)).decode_attention_s for c in (1000.0, 100_000.0)]
    assert grown == pytest.approx(0.5 * (float(seen[1]) - float(seen[0])), rel=0.02)


@pytest.mark.parametrize(("model", "more"), [("gpt_oss_120b", 2.0), ("llama3_1_70b", 1.0)])
def test_trtllm_keeps_kv_blocks_beyond_the_window(model: str, more: float) -> None:
    vllm, trtllm = (a_replica(model, Parallelism(), name) for name in ("vllm", "trtllm"))
    assert trtllm.kv_token_bytes == more * vllm.kv_token_bytes


def test_fastest_competing_kernel_is_used() -> None:
    free = a_replica("llama3_1_70b", Parallelism(tp=2), dtype="bf16")
    steps = decode_step(np.array([1.0, 16.0, 200.0, 4000.0]), 500.0)
    best = np.asarray(iteration(free, steps).tokens_s)
    for framework in ("vllm", "trtllm"):
        assert (
            best
            <= np.asarray(iteration(replace(free, framework=framework), steps).tokens_s) + 1e-12
        ).all()


def test_factor_for_transferred_kernels_leaves_measured_kernels_unchanged() -> None:
    runtime = replace(load_runtime("vllm"), paces={}, transferred={"ada": {"gemm": 2.0}})

    def gemms_s(gpu: str, runtime: Runtime) -> float:
        replica = replace(
            a_replica("llama3_1_8b", Parallelism(), dtype="bf16"),
            gpu=load_gpu(gpu),
            runtime=runtime,
            effects=replace(EVERYTHING, clocks=False),
        )
        rows = part_rows(
            replica, decode_step(32.0, 500.0), stage_of(replica.model, replica.layout, 0)
        )
        return float(sum(row.seconds for row in rows if isinstance(row.operator, Gemm)))

    plain = replace(runtime, transferred={})
    assert gemms_s("rtx_4090", runtime) == gemms_s("rtx_4090", plain)
    assert gemms_s("l40s", runtime) == pytest.approx(2.0 * gemms_s("l40s", plain))


@pytest.mark.parametrize(
    ("gpu", "dtype", "factor"),
    [("b200_sxm", "bf16+w4a16", 1.0), ("b200_sxm", "fp8", 2.0), ("b300_sxm", "fp8", 2.0)],
)
def test_factor_does_not_apply_to_unmeasured_expert_formats(
    gpu: str, dtype: str, factor: float
) -> None:
    plain = replace(load_runtime("vllm"), paces={}, transferred={}, many={})

    def experts_s(runtime: Runtime) -> float:
        replica = replace(
            a_replica("qwen3_30b", Parallelism(), dtype=dtype),
            gpu=load_gpu(gpu),
            runtime=runtime,
            effects=replace(EVERYTHING, clocks=False),
        )
        rows = part_rows(
            replica, decode_step(32.0, 500.0), stage_of(replica.model, replica.layout, 0)
        )
        grouped = (row for row in rows if isinstance(row.operator, GroupedGemm))
        return float(sum(row.seconds for row in grouped))

    slow = replace(plain, paces={"blackwell": {"experts": 2.0}})
    assert experts_s(slow) == pytest.approx(factor * experts_s(plain))


def test_older_release_differs_only_in_batched_experts(tmp_path: Path) -> None:
    today, older = load_runtime("vllm"), load_runtime("vllm_0_13")
    assert replace(older, name="vllm", like="", batch_times={}, kernels=today.kernels) == today
    lone = older.pace_of("hopper", "experts", 4096.0, rows=1.0)
    assert lone == today.pace_of("hopper", "experts", 4096.0)
    for tokens in (256.0, 4096.0):
        slower = older.batch_times["experts.hopper"] * today.pace_of("hopper", "experts", tokens)
        assert older.pace_of("hopper", "experts", tokens) == slower
    assert older.pace_of("hopper", "gemm", 4096.0) == today.pace_of("hopper", "gemm", 4096.0)


def test_quantized_experts_have_separate_factors_and_kernels() -> None:
    today, older = load_runtime("vllm"), load_runtime("vllm_0_13")
    for kind in ("experts", "widened_experts"):
        slower = older.batch_times[f"{kind}.ampere"] * today.pace_of("ampere", "experts", 512.0)
        assert older.pace_of("ampere", kind, 512.0) == pytest.approx(slower)
    four_bits = older.pace_of("ampere", "narrow_experts", 512.0)  # Marlin's, then as now
    assert four_bits == today.pace_of("ampere", "experts", 512.0)
    assert older.competing("experts", "ampere") == ["sglang"]
    assert older.competing("narrow_experts", "ampere") == ["vllm"]
    assert older.competing("narrow_experts", "hopper") == older.competing("experts", "hopper")


def test_older_release_refuses_other_keys(tmp_path: Path) -> None:
    (file := tmp_path / "mine.toml").write_text('[runtime]\nlike = "vllm"\nlayer_s = 1.0\n')
    with pytest.raises(UserError, match="may only add"):
        load_runtime(str(file))


def test_competing_libraries_depend_on_the_architecture() -> None:
    sglang = load_runtime("sglang")
    assert sglang.competing("experts", "hopper") == ["sglang"]
    assert "flashinfer" in sglang.competing("experts", "blackwell")
    assert not sglang.competing("vector", "hopper")


def test_what_if_gpu_keeps_the_factors_of_the_real_gpu() -> None:
    replica = replace(
        a_replica("llama3_1_8b", Parallelism(), dtype="bf16"), gpu=load_gpu("rtx_4090")
    )
    almost = replace(replica, gpu=what_if(replica.gpu, bandwidth_scale=1.0 + 1e-9))
    step = decode_step(32.0, 500.0)
    assert float(iteration(almost, step).tokens_s) == pytest.approx(
        float(iteration(replica, step).tokens_s), rel=1e-6
    )


def test_transferred_kernels_use_fitted_factors_where_available() -> None:
    runtime = replace(load_runtime("vllm"), transferred={"ada": {"gemm": 2.0}})
    assert runtime.pace("hopper", "decode", is_own=False) == runtime.pace("hopper", "decode") != 1.0
    assert runtime.pace("ada", "gemm", is_own=False) != runtime.pace("ada", "gemm") == 1.0


def names_of(model: str, layout: Parallelism, runtime: str) -> set[str]:
    """Return what one layer's worth of a decode launches."""
    replica = a_replica(model, layout, runtime)
    rows = part_rows(replica, decode_step(8.0, 1024.0), stage_of(replica.model, layout, 0))
    return {row.operator.name for row in rows}


def test_all_reduce_is_fused_with_norms_where_engine_and_model_allow() -> None:
    norms = {"attention_norm", "ffn_norm"}
    two, apart = Parallelism(tp=2), Parallelism(tp=1, attention_dp=2, ep=2)
    assert not norms & names_of("llama3_1_70b", two, "trtllm")
    assert norms <= names_of("llama3_1_70b", Parallelism(), "trtllm")
    assert norms <= names_of("llama3_1_70b", two, "vllm")
    assert norms <= names_of("llama3_1_70b", two, "trtllm_session")
    assert norms <= names_of("qwen3_235b", apart, "trtllm")


def test_kernels_an_engine_does_not_fuse_are_separate_launches() -> None:
    two, apart = Parallelism(tp=2), {"attention_norm_quantise", "ffn_norm_quantise"}
    launched = names_of("qwen3_32b", two, "trtllm")
    assert apart | {"attention_norm", "ffn_norm"} <= launched
    assert not apart & names_of("qwen3_32b", two, "vllm")
    assert not apart & names_of("llama3_1_70b", two, "trtllm")


def test_the_host_launches_a_short_prompt_under_tensorrt_llm_kernel_by_kernel() -> None:
    replica = a_replica("llama3_1_8b", Parallelism(), runtime="trtllm")
    layers, layer_s = replica.model.layers, replica.runtime.prompt_layer_s["any"]
    short, longer, decodes = (
        float(iteration(replica, step).latency_s)
        for step in (prefill_step(1.0, 16.0), prefill_step(1.0, 128.0), decode_step(16.0, 128.0))
    )
    assert short == pytest.approx(longer)
    assert short > layers * layer_s > decodes
