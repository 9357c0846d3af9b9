"""Runtimes of whole engines: how their constants are fitted, and rows that a user measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.fits.deployments import run_cache_without, runtime_without
from lab.fits.engines import bare, numbers_of, step_columns
from lab.fits.methods import Constant, LeastSquares, fit_by_group
from lab.tables.records import replica_of
from simulators.composition.price import iteration
from simulators.composition.replica import Replica, load_runtime
from simulators.core.errors import UnknownNameError
from simulators.serving.measured.deployments import Deployed, point_of
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import decode_step


def a_replica(
    model: str, layout: Parallelism, runtime: str = "vllm", dtype: str = "fp8"
) -> Replica:
    return replica_of(
        model, "h100_sxm", layout=layout, dtype=dtype, kv_dtype="fp8", runtime=load_runtime(runtime)
    )


def test_a_step_is_the_sum_of_its_columns() -> None:
    replica = a_replica("qwen3_235b", Parallelism(tp=4, ep=4))
    columns = step_columns(
        replace(replica, runtime=bare("vllm")), decode_step(np.array([32.0]), 900.0)
    )[0]
    total = float(columns @ numbers_of(replica.runtime, replica))
    whole = iteration(replica, decode_step(np.array([32.0]), 900.0))
    assert total == pytest.approx(float(np.asarray(whole.latency_s)[0]), rel=1e-9)


def test_numbers_without_a_group_differ_and_unknown_groups_are_named() -> None:
    left_out, whole = runtime_without("vllm", "llama3_1_70b.h100_sxm"), load_runtime("vllm")
    assert left_out.paces != whole.paces
    assert left_out.kernels == whole.kernels
    with pytest.raises(UnknownNameError, match=r"llama3_1_70b\.h100_sxm"):
        runtime_without("vllm", "llama3_1_70b.h100_sxn")


def test_a_runtime_alike_another_is_left_out_with_it() -> None:
    one, alike = (runtime_without(n, "llama3_1_8b.h100_sxm") for n in ("trtllm", "trtllm_cutlass"))
    assert one.paces == alike.paces
    assert one.kernels != alike.kernels


def test_an_older_release_has_a_gap_of_its_own_whatever_is_left_out() -> None:
    for of in (load_runtime, lambda name: runtime_without(name, "deepseek_v3.b200_sxm")):
        today, older = of("sglang"), of("sglang_0_5_9")
        assert older.state_layer_s > today.state_layer_s
        later = replace(older, name="sglang", state_layer_s=today.state_layer_s)
        assert replace(later, message_s=today.message_s) == today


def test_experts_of_an_older_release_are_slower_on_the_architecture_that_was_new() -> None:
    today, older = load_runtime("trtllm"), load_runtime("trtllm_1_1")
    few, many = np.array([1.0]), np.array([256.0])
    for chip, factor in (
        ("blackwell", load_runtime("vllm_0_13").batch_times["experts.blackwell"]),
        ("hopper", 1.0),
    ):
        paces = [one.pace_of(chip, "experts", many)[0] for one in (older, today)]
        assert paces[0] == pytest.approx(factor * paces[1])
        lone = [one.pace_of(chip, "experts", few, rows=1.0) for one in (older, today)]
        assert lone[0] == lone[1]
        assert older.pace_of(chip, "gemm", many) == today.pace_of(chip, "gemm", many)


def test_engines_built_ahead_have_the_host_of_the_session_and_todays_kernels() -> None:
    session = runtime_without("trtllm_session", "llama2_70b.h100_sxm")
    today, ahead = (
        runtime_without(name, "llama2_70b.h100_sxm") for name in ("trtllm", "trtllm_executor")
    )
    assert (ahead.host_s, ahead.sequence_s) == (session.host_s, session.sequence_s)
    assert (ahead.layer_s, ahead.paces, ahead.kernels) == (
        today.layer_s,
        today.paces,
        today.kernels,
    )


def test_the_runtime_of_static_batches_leaves_out_what_its_engine_was_deployed_with() -> None:
    point = ServingPoint(model="llama3_1_8b", gpu="h100_sxm", runtime="trtllm_session")
    shelf, other = (
        run_cache_without(point.runtime, g) for g in ("llama3_1_8b.h100_sxm", "no.group")
    )
    without, whole = (one.deployment(point).hardware.replica.runtime for one in (shelf, other))
    assert whole.paces == load_runtime("trtllm_session").paces != without.paces


def test_an_older_release_is_left_out_with_its_model_and_todays_with_its_group() -> None:
    point = ServingPoint(model="gpt_oss_120b", gpu="h100_sxm", tp=2, runtime="vllm_0_13")
    shelf, other = (
        run_cache_without("vllm_0_13", g) for g in ("gpt_oss_120b.h100_sxm", "no.group")
    )
    without, whole = (one.deployment(point).hardware.replica.runtime for one in (shelf, other))
    assert without.paces == runtime_without("vllm", "gpt_oss_120b.h100_sxm").paces
    assert whole.paces == load_runtime("vllm").paces
    assert whole.batch_times == load_runtime("vllm_0_13").batch_times
    assert without.batch_times["experts"] > 1.0


def test_a_run_uses_the_runtime_of_the_point() -> None:
    row = Deployed(
        framework="vllm",
        model="llama3_1_70b",
        gpu="h100_sxm",
        layout=Parallelism(tp=4),
        dtype="fp8",
        kv_dtype="fp8",
        clients=4,
        prompt=512,
        output=64,
        ttft_s=0.1,
        tpot_s=0.01,
    )
    group = "llama3_1_70b.h100_sxm"
    usual, without, unknown = (
        simulate(point_of(row), run_cache_without("vllm", name)).tpot_mean_s
        for name in ("nothing.of_that_name", group, "no_such.group")
    )
    assert usual == unknown == simulate(point_of(row)).tpot_mean_s
    assert without != usual


def test_a_fit_finds_the_constants_that_made_the_times() -> None:
    draw = np.random.default_rng(7)
    columns = draw.uniform(1.0, 3.0, (60, 2))
    true = np.array([1.02, 4e-4])
    problem = LeastSquares(
        measured_s=columns[:, 0] * true[0] + 1e4 * columns[:, 1] * true[1],
        groups=["one"] * 30 + ["other"] * 30,
        fixed_s=np.zeros(60),
        constants=(
            Constant("pace", columns[:, 0], 1.0, 0.5),
            Constant("host_s", 1e4 * columns[:, 1], 3e-4, 5e-4),
        ),
    )
    found = fit_by_group(problem)
    assert found.values == pytest.approx(true, rel=0.02)
    assert found.held_out_s == pytest.approx(problem.measured_s, rel=0.02)


def test_products_in_blocks_run_one_library_without_a_contest() -> None:
    vllm, sglang, trtllm = map(bare, ("vllm", "sglang", "trtllm"))
    assert vllm.competing("block_experts", "hopper") == ["vllm"]
    assert vllm.competing("block_experts", "ampere") == vllm.competing("experts", "ampere")
    for today in (vllm, sglang, trtllm):
        assert today.competing("block_experts", "blackwell") == ["flashinfer"]
        assert len(today.competing("block_gemm", "hopper")) == 1
    assert bare("trtllm_1_1").competing("block_experts", "blackwell") == ["trtllm"]
    assert bare("trtllm_1_1").competing("gemm", "") == trtllm.competing("gemm", "")
    assert bare("vllm_marlin").competing("narrow_experts", "hopper") == ["marlin"]
    assert bare("vllm_triton").competing("block_experts", "blackwell") == ["sglang"]
