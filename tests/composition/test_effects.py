"""Each effect between kernels can be left out, and leaving out one changes no other."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.adjustments import (
    AROUND_EXPERTS,
    flops_per_j,
    slowdown,
    transferred_slowdown,
    unfused,
)
from simulators.composition.operator_prices import compute_rows
from simulators.composition.price import iteration
from simulators.composition.replica import (
    ANY,
    EVERYTHING,
    Replica,
    Runtime,
    effects_without,
    load_runtime,
)
from simulators.core.errors import UnknownNameError
from simulators.kernels.price import moved_bytes, price
from simulators.workload.llm.parallelism import Parallelism, stage_of
from simulators.workload.llm.step import Shard, decode_step, prefill_step
from simulators.workload.llm.transformer import token_operators
from simulators.workload.operators import Gemm
from tests.composition.test_iteration import replica, seconds


def without(design: Replica, effect: str) -> Replica:
    return dataclasses.replace(design, effects=effects_without(effect))


def test_unknown_effect_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'fusion'"):
        effects_without("fussion")


@pytest.mark.parametrize("effect", ["launch", "synchronisation", "clocks"])
@pytest.mark.parametrize("runtime", ["graphs", "eager", "eager_tp"])
def test_leaving_out_an_effect_never_increases_time(effect: str, runtime: str) -> None:
    design = dataclasses.replace(replica(tp=2), runtime=load_runtime(runtime))
    for step in (decode_step(1.0, 64.0), prefill_step(4.0, 2000.0)):
        freed, whole = (seconds(iteration(one, step)) for one in (without(design, effect), design))
        assert freed <= whole * (1.0 + 1e-12)  # a host that never waits adds up to the same


HOSTS = ("graphs", "vllm", "sglang", "trtllm", "trtllm_session", "eager", "eager_tp")


@pytest.mark.parametrize("model", ["gpt2", "llama3_2_1b"])
@pytest.mark.parametrize("name", HOSTS)
def test_tiny_models_are_bound_by_host_launches(name: str, model: str) -> None:
    runtime = load_runtime(name)
    design = dataclasses.replace(replica(model), runtime=runtime)
    for n in (1.0, 64.0):
        one = iteration(design, decode_step(n, 64.0))
        by_host = runtime.launch_layer_s
        launching_s = design.model.layers * by_host.get("dgx_h100", by_host.get(ANY, 0.0))
        working_s = max(float(one.busy_s), launching_s, runtime.prepare_s - runtime.host_s)
        waits_s = runtime.host_s + runtime.sequence_s * n + design.model.layers * runtime.layer_s
        assert float(one.latency_s) == pytest.approx(working_s + waits_s, rel=1e-12)
        assert float(one.latency_s) >= runtime.prepare_s == 0.732e-3


def test_asynchronous_scheduling_hides_host_time_behind_gpu_work() -> None:
    runtime = Runtime(name="mine", layer_s=0.0, host_s=2e-4, sequence_s=0.0, prepare_s=7e-4)
    cluster = replica("gpt2").cluster
    waits = [float(runtime.launch_s(12, 1.0, busy_s, cluster)) for busy_s in (1e-4, 5e-4, 9e-4)]
    assert waits == pytest.approx([2e-4 + 4e-4, 2e-4, 2e-4])  # 5e-4 of the 7e-4 may hide
    free = runtime.launch_s(12, 1.0, 1e-4, cluster, effects=effects_without("launch"))
    assert float(free) == 2e-4


def test_fusion_saves_memory_traffic_and_quantization_kernels() -> None:
    for dtype in ("bf16", "fp8"):
        design = dataclasses.replace(replica("llama2_7b"), dtype=dtype)
        step = decode_step(64.0, 512.0)
        fused, apart = (iteration(one, step) for one in (design, without(design, "fusion")))
        assert seconds(fused) < seconds(apart)
        assert seconds(fused, "decode_attention_s") == seconds(apart, "decode_attention_s")


def test_unfused_kernels_write_and_read_intermediate_results() -> None:
    model, layout = load_model("llama2_70b"), Parallelism(tp=4)
    fused = token_operators(Shard(model, layout, stage_of(model, layout, 0), "bf16"), 100.0)
    apart = unfused(fused, model)
    assert len(apart) > len(fused)
    moved = [sum(float(moved_bytes(o)) * o.repeat for o in one) for one in (fused, apart)]
    assert moved[1] > moved[0]
    products = [[o for o in one if isinstance(o, Gemm)] for one in (fused, apart)]
    assert products[0] == products[1]


def test_quantization_inside_a_gemm_call_is_counted_once() -> None:
    # TensorRT-LLM's fp8 call starts 12 us after an empty one, its 16-bit call 3 us (kernels' page).
    gpu = load_gpu("h100_sxm")
    narrow = Gemm(name="x", m=8.0, n=8192.0, k=8192.0, dtype="fp8")
    wide = dataclasses.replace(narrow, dtype="bf16")
    assert 5e-6 < price(narrow, gpu, framework="trtllm").quantising_s < 15e-6
    assert price(wide, gpu, framework="trtllm").quantising_s == 0.0


@given(
    busy=st.lists(st.floats(0.0, 1e-3), min_size=1, max_size=12),
    launch_s=st.floats(1e-7, 1e-4),
    layers=st.integers(1, 40),
)
@settings(deadline=None, max_examples=100)
def test_iteration_time_is_the_maximum_of_host_and_gpu_time(
    busy: list[float], launch_s: float, layers: int
) -> None:
    # A host launches kernels one after another; each runs when it is launched and the GPU is free.
    host_s = gpu_s = 0.0
    for kernel_s in busy * layers:
        host_s += launch_s
        gpu_s = max(host_s, gpu_s) + kernel_s
    runtime = Runtime(
        name="x",
        layer_s=0.0,
        host_s=0.0,
        sequence_s=0.0,
        launch_layer_s={"any": launch_s * len(busy)},
    )
    busy_s = sum(busy) * layers
    cluster = replica().cluster
    ours_s = busy_s + float(np.asarray(runtime.launch_s(layers, 1.0, busy_s, cluster)))
    # No later than one layer, which the host launches before the first or the GPU runs after the
    # last one.
    one_layer_s = sum(busy) + launch_s * len(busy)
    assert ours_s <= gpu_s * (1 + 1e-9)
    assert gpu_s <= ours_s + one_layer_s * (1 + 1e-9)


def test_overlapped_all_reduce_adds_no_time() -> None:
    step = decode_step(64.0, 1024.0)
    shown = replica("llama2_70b", tp=8)
    half = dataclasses.replace(shown, overlap=0.5)
    one, other = (iteration(design, step) for design in (shown, half))
    assert seconds(other, "collective_s") == pytest.approx(0.5 * seconds(one, "collective_s"))
    assert seconds(other, "tokens_s") == seconds(one, "tokens_s")


def test_all_effects_are_on_by_default() -> None:
    assert all(dataclasses.astuple(EVERYTHING))
    assert effects_without("nothing") == EVERYTHING


def test_kernels_included_in_moe_measurements_are_not_counted_again() -> None:
    design = replica("mixtral_8x7b", tp=2)
    part = stage_of(design.model, design.layout, 0)
    operators = token_operators(Shard(design.model, design.layout, part, "bf16"), 64.0)
    timed = {row.operator.name for row in compute_rows(operators, design, "tokens")}
    listed = {operator.name for operator in operators}
    assert listed - timed == set(AROUND_EXPERTS)
    # Nobody timed experts in 32 bits: their products are tiles, and the small ones stand alone.
    wide = token_operators(Shard(design.model, design.layout, part, "fp32"), 64.0)
    assert {row.operator.name for row in compute_rows(wide, design, "tokens")} == listed


def test_clock_slowdown_falls_with_flops_per_joule_and_is_bounded_by_the_mean() -> None:
    geforce, sister, mean = (slowdown(load_gpu(n)) for n in ("rtx_4090", "rtx_pro_6000", "l40s"))
    assert 0.0 == geforce < sister < mean
    assert slowdown(load_gpu("l4")) == slowdown(load_gpu("p4")) == mean


def test_clock_follows_the_cube_root_of_power_per_flop() -> None:
    source, target = load_gpu("a100_sxm"), load_gpu("rtx_a5000")
    held = flops_per_j(target) / flops_per_j(source)
    kept = (1.0 - slowdown(source)) / (1.0 - transferred_slowdown(target))
    assert kept**3 == pytest.approx(held)


def test_transferred_slowdown_matches_the_measured_slowdown_of_a40() -> None:
    target = load_gpu("a40")
    assert transferred_slowdown(target) == pytest.approx(slowdown(target), abs=0.03)
