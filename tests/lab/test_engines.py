"""Runtimes of whole engines: how their constants are fitted, and rows that a user measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, lists

from lab.fits.driver import Calibration, main
from lab.fits.engine_columns import bare, numbers_of, scaled, step_columns
from lab.fits.engines import fit_measured, predicted_s
from lab.fits.left_out import runtime_without, shelf_without
from lab.fits.methods.positive_least_squares import Constant, Problem, fit, non_negative
from lab.tables.catalog_names import replica_of
from lab.tables.rows import read_table
from simulators.composition.price import iteration
from simulators.composition.replica import Replica, load_runtime
from simulators.core.errors import UnknownNameError, UserError
from simulators.serving.measured_deployments import Deployed, measured_deployment, point_of
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import decode_step

HEAD = "model,gpu,framework,tp,clients,prompt_tokens,output_tokens,tpot_s,ttft_s\n"


def a_replica(model: str, cut: Parallelism, runtime: str = "vllm", dtype: str = "fp8") -> Replica:
    return replica_of(
        model, "h100_sxm", cut=cut, dtype=dtype, kv_dtype="fp8", runtime=load_runtime(runtime)
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
        assert replace(older, name="sglang", state_layer_s=today.state_layer_s) == today


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
    shelf, other = (shelf_without(point.runtime, g) for g in ("llama3_1_8b.h100_sxm", "no.group"))
    without, whole = (one.deployment(point).hardware.replica.runtime for one in (shelf, other))
    assert whole.paces == load_runtime("trtllm_session").paces != without.paces


def test_an_older_release_is_left_out_with_its_model_and_todays_with_its_group() -> None:
    point = ServingPoint(model="gpt_oss_120b", gpu="h100_sxm", tp=2, runtime="vllm_0_13")
    shelf, other = (shelf_without("vllm_0_13", g) for g in ("gpt_oss_120b.h100_sxm", "no.group"))
    without, whole = (one.deployment(point).hardware.replica.runtime for one in (shelf, other))
    assert without.paces == runtime_without("vllm", "gpt_oss_120b.h100_sxm").paces
    assert whole.paces == load_runtime("vllm").paces
    assert whole.batch_times == load_runtime("vllm_0_13").batch_times
    assert without.batch_times["experts"] > 1.0


def test_a_run_is_told_the_runtime_its_point_names() -> None:
    row = Deployed(
        framework="vllm",
        model="llama3_1_70b",
        gpu="h100_sxm",
        cut=Parallelism(tp=4),
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
        simulate(point_of(row), shelf_without("vllm", name)).tpot_mean_s
        for name in ("nothing.of_that_name", group, "no_such.group")
    )
    assert usual == unknown == simulate(point_of(row)).tpot_mean_s
    assert without != usual


def test_a_scaled_runtime_takes_its_factor_longer() -> None:
    replica = a_replica("llama3_1_8b", Parallelism(tp=2), dtype="bf16")
    slower = replace(replica, runtime=scaled(replica.runtime, 2.0, replica))
    step = decode_step(32.0, 900.0)
    once, twice = iteration(replica, step), iteration(slower, step)
    assert float(twice.launch_s) == pytest.approx(2.0 * float(once.launch_s))
    assert float(twice.decode_attention_s) == pytest.approx(
        2.0 * float(once.decode_attention_s), rel=0.05
    )


@given(lists(floats(-5.0, 5.0), min_size=3, max_size=3))
def test_least_squares_without_negative_entries_clips_an_orthogonal_system(b: list[float]) -> None:
    found = non_negative(np.eye(3), np.array(b))
    assert found == pytest.approx(np.maximum(b, 0.0), abs=1e-9)


def test_a_fit_finds_the_constants_that_made_the_times() -> None:
    draw = np.random.default_rng(7)
    columns = draw.uniform(1.0, 3.0, (60, 2))
    true = np.array([1.02, 4e-4])
    problem = Problem(
        measured_s=columns[:, 0] * true[0] + 1e4 * columns[:, 1] * true[1],
        groups=["one"] * 30 + ["other"] * 30,
        fixed_s=np.zeros(60),
        constants=(
            Constant("pace", columns[:, 0], 1.0, 0.5),
            Constant("host_s", 1e4 * columns[:, 1], 3e-4, 5e-4),
        ),
    )
    found = fit(problem)
    assert found.values == pytest.approx(true, rel=0.02)
    assert found.held_out_s == pytest.approx(problem.measured_s, rel=0.02)


def test_three_rows_make_a_runtime_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    head = "model,gpu,framework,tp,dtype,kv_dtype,clients,prompt_tokens,output_tokens,tpot_s\n"
    rows = [f"llama3_1_8b,h100_sxm,vllm,1,bf16,bf16,{n},1024,1024," for n in (4, 16, 64)]
    file = tmp_path / "mine.csv"
    file.write_text(head + "".join(f"{row}1.0\n" for row in rows))
    ours = predicted_s([measured_deployment(row) for row in read_table(file).to_pylist()])
    slow = [f"{row}{1.2 * seconds}\n" for row, seconds in zip(rows, ours, strict=True)]
    file.write_text(head + "".join(slow))
    main(["engines", "--measured", str(file)])
    mine, theirs = load_runtime("mine"), load_runtime("vllm")
    assert mine.sequence_s == pytest.approx(1.2 * theirs.sequence_s, rel=0.03)
    assert mine.pace("hopper", "gemm") == pytest.approx(
        1.2 * theirs.pace("hopper", "gemm"), rel=0.03
    )
    assert mine.kernels == theirs.kernels


def test_rows_of_two_families_are_no_family(tmp_path: Path) -> None:
    file = tmp_path / "both.csv"
    file.write_text(
        "model,gpu,framework,clients,prompt_tokens,output_tokens,tpot_s\n"
        "llama3_1_8b,h100_sxm,vllm,4,1024,1024,0.01\nllama3_1_8b,b200_sxm,vllm,4,1024,1024,0.01\n"
    )
    with pytest.raises(UserError, match="2 families"):
        fitted(file)


def rows(
    file: Path, framework: str = "vllm", tp: str = "1", more: str = "4,1024,128,0.01,"
) -> Path:
    """Return the file, written with one row."""
    file.write_text(f"{HEAD}llama3_1_8b,h100_sxm,{framework},{tp},{more}\n")
    return file


def fitted(file: Path) -> Calibration:
    [found] = fit_measured(file, "")
    return found


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("4,1024,128,0,", "tpot_s of a measured row is 0; it must be a number of seconds above"),
        ("4,1024,128,-0.01,", "tpot_s of a measured row is -0.01"),
        ("4,1024,128,,0.1", "tpot_s of a measured row is None"),
        ("4,1024,128,fast,", "tpot_s of a measured row is fast"),
        ("4,1024,128,0.01,-1", "ttft_s of a measured row is -1"),
        ("0,1024,128,0.01,", "clients of a measured row is 0; it must be at least 1"),
    ],
)
def test_a_number_that_is_no_measurement_is_told(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fitted(rows(tmp_path / "mine.csv", more=more))


@pytest.mark.parametrize("framework", ["trtllm_cutlass", "trtllm_session", "sglagn"])
def test_rows_are_of_a_framework_and_not_of_a_runtime(tmp_path: Path, framework: str) -> None:
    with pytest.raises(UserError, match="Known: sglang, trtllm, vllm"):
        fitted(rows(tmp_path / "mine.csv", framework))


@pytest.mark.parametrize("name", ["vllm", "graphs"])
def test_a_runtime_of_ones_own_hides_no_shipped_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="give the file another name"):
        fitted(rows(tmp_path / f"{name}.csv"))


def test_a_file_that_is_no_table_is_told(tmp_path: Path) -> None:
    (tmp_path / "void.csv").write_text("")
    with pytest.raises(UserError, match="void"):
        fitted(tmp_path / "void.csv")


def test_an_empty_cell_is_what_is_usual(tmp_path: Path) -> None:
    named, empty = (
        fitted(rows(tmp_path / f"{name}.csv", tp=tp)).more
        for name, tp in (("named", "1"), ("empty", ""))
    )
    assert named == empty
