"""A few measured rows calibrate a GPU or edge device, or transfer kernels between GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose

from planning.calibrate.deployment import calibrate_deployment
from planning.calibrate.edge import calibrate_device
from planning.calibrate.kernels import calibrate_gpu as calibrate
from planning.calibrate.measurements import Timings, read_table, read_timings
from planning.calibrate.transfer import (
    common_shapes,
    library_corrections,
    most_informative,
    transfer,
    transferred_s,
    write_transferred,
)
from planning.flags.serving import ServingFlags
from planning.measure.shapes import calls_of
from planning.questions.serving import question_of
from simulators.catalog.gpu import load_gpu
from simulators.composition.replica import load_runtime
from simulators.core.errors import UserError
from simulators.edge.simulator import CELL_OPERATIONS, cell_text, device, features
from simulators.kernels.levels import profile_of
from simulators.kernels.price import call_seconds
from simulators.serving.measured.deployments import measured_deployment, point_of
from simulators.serving.simulator import simulate
from sweeper.__main__ import main
from sweeper.commands.hardware import calibrate as calibrate_command

SOURCE, TARGET = load_gpu("a100_pcie_40gb"), load_gpu("h100_sxm")
SIDES = [256, 512, 1024, 2048, 4096, 8192]


def timed(factor: float) -> pa.Table:
    """Products that take so many times as long as 10 TFLOP/s would, after a dispatch of 20 us."""
    sizes = [(m, n, 1024) for m in SIDES for n in SIDES]
    rows = [
        {
            "op": "linear",
            "dtype": "fp32",
            "gpu": "mine",
            "batch": 1,
            "m": m,
            "n": n,
            "k": k,
            "latency_us": 20.0 + factor * 2e-7 * m * n * k,
        }
        for m, n, k in sizes
    ]
    return pa.Table.from_pylist(rows)


def sheet_of_own() -> None:
    """Write the data sheet of `my_gpu`, a slower H100."""
    Path("catalog/gpus").mkdir(parents=True)
    sheet = 'source = "mine"\nlike = "h100_sxm"\nclock_hz = 1.2e9\n'
    Path("catalog/gpus/my_gpu.toml").write_text(sheet)


@pytest.fixture
def rows_of(tmp_path: Path) -> Callable[[float], Timings]:
    def read(factor: float) -> Timings:
        pq.write_table(timed(factor), tmp_path / "timed.parquet")
        [found] = read_timings(tmp_path / "timed.parquet")
        return found

    return read


def test_constant_factor_between_gpus_is_recovered(
    rows_of: Callable[[float], Timings],
) -> None:
    here, there = rows_of(1.0), rows_of(0.5)
    known = most_informative(here, 12)
    said = transferred_s(here, SOURCE, TARGET, there.where(known))
    assert_allclose(said, there.seconds, rtol=0.25)


def test_selected_rows_are_spread_and_keep_the_requested_number(
    rows_of: Callable[[float], Timings],
) -> None:
    here = rows_of(1.0)
    chosen = most_informative(here, 4)
    assert np.ptp(np.log2(here.seconds[chosen])) > np.ptp(np.log2(here.seconds)) / 2.0
    assert len({*zip(*(here.sizes[name][chosen].tolist() for name in "mn"), strict=True)}) == 4
    assert not most_informative(here, 0).any()
    assert common_shapes(here.sizes, here.where(chosen).sizes)[0].size == 4


def test_library_slowdown_is_learned_from_gpus_with_the_library(
    rows_of: Callable[[float], Timings],
) -> None:
    """rocBLAS is slow at a very long k; the calibration of another AMD GPU shows the slowdown."""
    here = rows_of(1.0)
    long = replace(here, sizes=here.sizes | {"k": np.full(len(here), 65536)})
    mi210, h100 = load_gpu("mi210"), load_gpu("h100_sxm")
    assert np.median(library_corrections(long, mi210) - library_corrections(here, mi210)) > 0.1
    assert np.median(library_corrections(long, mi210)) > np.median(library_corrections(long, h100))


def test_transferred_rows_use_the_profiler_format(workplace: Path) -> None:
    pq.write_table(timed(1.0), "a.parquet")
    found = transfer(SOURCE.name, TARGET.name, Path("a.parquet"), None)
    write_transferred(found, TARGET.name, Path("b.parquet"))
    [again] = read_timings(Path("b.parquet"))
    assert_allclose(np.sort(again.seconds), np.sort(found[0].seconds), rtol=1e-9)
    assert found[0].ratio < 1.0


def test_merged_kernel_classes_use_a_known_name(
    workplace: Path,
) -> None:
    rows = [
        {"op": op, "rows": 2**i, "cols": 1024, "latency_us": 5.0 + 2.0**i}
        for op in ("ln", "mul", "relu")
        for i in range(6)
    ]
    pq.write_table(pa.Table.from_pylist(rows), "a.parquet")
    found = transfer(SOURCE.name, TARGET.name, Path("a.parquet"), None)
    write_transferred(found, TARGET.name, Path("b.parquet"))
    again = transfer(TARGET.name, SOURCE.name, Path("b.parquet"), None)
    assert [one.rows.kernel for one in again] == ["binary", "layer_norm", "unary"]


def test_rows_to_measure_are_readable_by_the_profiler(
    workplace: Path, rows_of: Callable[[float], Timings], capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(timed(1.0), "a.parquet")
    words = [TARGET.name, "--measured", "a.parquet", "--from", SOURCE.name]
    assert main(["calibrate", *words, "--ask", "5", "--write", "todo.parquet"]) == 0
    assert "--rows todo.parquet --write own.parquet --gpu h100_sxm" in capsys.readouterr().out
    some = list(calls_of(pq.read_table("todo.parquet"), Path("todo.parquet")))
    here = rows_of(1.0)
    assert {call.sizes["m"] for call in some} <= {*here.sizes["m"]}
    assert [(call.op, call.dtype, call.looped) for call in some] == [("linear", "fp32", False)] * 5
    assert main(["calibrate", *words, "--ask", "5"]) != 0
    assert "needs --write FILE" in capsys.readouterr().err


def test_calibrated_gpu_is_written_and_loaded(workplace: Path) -> None:
    sheet_of_own()
    pq.write_table(timed(0.5), "rows.parquet")
    [gain], file = calibrate("my_gpu", Path("rows.parquet"))
    assert file.is_file()
    assert gain.rows == len(SIDES) ** 2
    assert gain.after < gain.before


def test_calibrated_edge_device_is_written_as_json(workplace: Path) -> None:
    draw = np.random.default_rng(1)
    cells = [cell_text(draw.choice(CELL_OPERATIONS, 6).tolist()) for _ in range(12)]
    seconds, _, _ = device("nb201", "raspi4").seconds(features("nb201", cells))
    lines = [f"{cell},{s}" for cell, s in zip(cells, 2.0 * seconds, strict=True)]
    Path("mine.csv").write_text("network,latency_s\n" + "\n".join(lines))
    [gain], file = calibrate_device("my_phone", Path("mine.csv"), "nb201")
    assert json.loads(file.read_text())["about"] == {"measured": "mine.csv", "rows": 12}
    assert gain.after < gain.before
    again, _, _ = device("nb201", str(file)).seconds(features("nb201", cells))
    assert_allclose(again, 2.0 * seconds, rtol=0.2)


def test_too_few_rows_are_refused(workplace: Path) -> None:
    pq.write_table(timed(1.0).slice(0, 2), "two.parquet")
    with pytest.raises(UserError, match="the minimum for a held-out test"):
        calibrate("h100_sxm", Path("two.parquet"))


def test_calibration_commands_print_errors_before_and_after(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(timed(1.0), "a.parquet")
    pq.write_table(timed(0.5).slice(0, 12), "b.parquet")
    words = [TARGET.name, "--measured", "a.parquet", "--from", SOURCE.name]
    assert main(["calibrate", *words, "--own", "b.parquet", "--write", "c.parquet"]) == 0
    assert "error of a ratio" in capsys.readouterr().out
    assert main(["calibrate", "l40s", "--measured", "c.parquet"]) == 0
    assert "more rows to halve the error" in capsys.readouterr().out


def test_second_calibration_ignores_the_first_calibration(
    workplace: Path,
) -> None:
    sheet_of_own()
    pq.write_table(timed(0.5), "rows.parquet")
    first, _ = calibrate("my_gpu", Path("rows.parquet"))
    again, file = calibrate("my_gpu", Path("rows.parquet"))
    assert again == first
    assert file.is_file()


def test_kernel_class_without_improvement_is_unchanged(workplace: Path) -> None:
    sheet_of_own()
    like, products = profile_of(load_gpu("h100_sxm")), timed(0.5).to_pylist()
    batched = [row | {"op": "bmm", "batch": 4} for row in products]
    pq.write_table(pa.Table.from_pylist(batched), "batched.parquet")
    [part] = read_timings(Path("batched.parquet"))
    known_s = call_seconds(part.operator, load_gpu("my_gpu"), like).tolist()
    as_known = [row | {"latency_us": 1e6 * s} for row, s in zip(batched, known_s, strict=True)]
    pq.write_table(pa.Table.from_pylist(products + as_known), "rows.parquet")
    gains, _ = calibrate("my_gpu", Path("rows.parquet"))
    assert {gain.name: gain.is_better for gain in gains} == {"linear": True, "bmm": False}
    gpu = load_gpu("my_gpu")
    assert call_seconds(part.operator, gpu, profile_of(gpu)).tolist() == known_s
    assert profile_of(gpu).gemm["linear"].compute != like.gemm["linear"].compute


@pytest.mark.parametrize(
    ("name", "latency", "said"),
    [("my_phone", "fast", "column latency_s contains"), ("no/phone", "0.01", "no/phone")],
)
def test_unwritable_edge_device_raises_a_user_error(
    workplace: Path, name: str, latency: str, said: str
) -> None:
    cells = [cell_text([one] * 6) for one in CELL_OPERATIONS] * 2
    lines = [f"{cell},{latency}" for cell in cells]
    Path("mine.csv").write_text("network,latency_s\n" + "\n".join(lines))
    with pytest.raises(UserError, match=said):
        calibrate_device(name, Path("mine.csv"), "nb201")


@pytest.mark.parametrize(
    ("latency", "said"),
    [("fast", "latency_us contains values that are not numbers"), ("-1", "must be above zero")],
)
def test_invalid_gpu_latencies_raise_a_user_error(workplace: Path, latency: str, said: str) -> None:
    sizes = "\n".join(f"linear,64,64,{2**i},10" for i in range(5))
    Path("mine.csv").write_text(f"op,m,n,k,latency_us\nlinear,64,64,64,{latency}\n{sizes}\n")
    with pytest.raises(UserError, match=said):
        calibrate("h100_sxm", Path("mine.csv"))
    with pytest.raises(UserError, match=said):
        transfer(SOURCE.name, TARGET.name, Path("mine.csv"), None)


HEAD = "model,gpu,framework,tp,dtype,kv_dtype,clients,prompt_tokens,output_tokens,tpot_s,ttft_s\n"


def deployments(file: Path, framework: str = "vllm", more: str = "4,99,9,0.01,") -> Path:
    file.write_text(f"{HEAD}llama3_1_8b,h100_sxm,{framework},1,bf16,bf16,{more}\n")
    return file


def test_three_deployments_fit_a_runtime(workplace: Path) -> None:
    lines = [f"llama3_1_8b,h100_sxm,vllm,1,bf16,bf16,{n},200,20,1.0," for n in (2, 4, 8)]
    Path("mine.csv").write_text(HEAD + "\n".join(lines))
    rows = [measured_deployment(row) for row in read_table(Path("mine.csv")).to_pylist()]
    slow = [
        line.replace(",1.0,", f",{1.2 * (simulate(point_of(row)).tpot_mean_s or 0.0)},")
        for line, row in zip(lines, rows, strict=True)
    ]
    Path("mine.csv").write_text(HEAD + "\n".join(slow))
    assert main(["calibrate", "mine", "--measured", "mine.csv"]) == 0
    mine, theirs = load_runtime("mine"), load_runtime("vllm")
    assert mine.sequence_s == pytest.approx(1.2 * theirs.sequence_s, rel=0.03)
    ratio = mine.pace("hopper", "gemm") / theirs.pace("hopper", "gemm")
    assert ratio == pytest.approx(1.2, rel=0.03)
    assert mine.kernels == theirs.kernels


def test_deployments_of_two_engines_are_refused(workplace: Path) -> None:
    line = "llama3_1_8b,h100_sxm,vllm,1,bf16,bf16,4,99,9,0.01,\n"
    Path("both.csv").write_text(HEAD + line + line.replace("h100_sxm", "b200_sxm"))
    with pytest.raises(UserError, match="2 families"):
        calibrate_deployment("mine", Path("both.csv"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("4,99,9,0,", "tpot_s of a measured row is 0; it must be a number of seconds above"),
        ("4,99,9,-0.01,", "tpot_s of a measured row is -0.01"),
        ("4,99,9,,0.1", "tpot_s of a measured row is None"),
        ("4,99,9,fast,", "tpot_s of a measured row is fast"),
        ("4,99,9,0.01,-1", "ttft_s of a measured row is -1"),
        ("0,99,9,0.01,", "clients of a measured row is 0; it must be at least 1"),
    ],
)
def test_non_positive_measurement_is_refused(workplace: Path, more: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        calibrate_deployment("mine", deployments(Path("mine.csv"), more=more))


@pytest.mark.parametrize("framework", ["trtllm_cutlass", "trtllm_session", "sglagn"])
def test_deployments_require_a_framework_name(workplace: Path, framework: str) -> None:
    with pytest.raises(UserError, match="Known: sglang, trtllm, vllm"):
        calibrate_deployment("mine", deployments(Path("mine.csv"), framework))


@pytest.mark.parametrize("name", ["vllm", "graphs"])
def test_user_runtime_cannot_shadow_a_shipped_runtime(workplace: Path, name: str) -> None:
    with pytest.raises(UserError, match="built-in runtime"):
        calibrate_deployment(name, deployments(Path("mine.csv")))


def test_file_without_a_table_is_refused(workplace: Path) -> None:
    Path("void.csv").write_text("")
    with pytest.raises(UserError, match="void"):
        calibrate_deployment("mine", Path("void.csv"))


def test_later_answers_use_a_calibration_to_logs(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEPER_HOME", str(workplace / "home"))
    run = {"backend": "vllm", "model_id": "llama3_1_8b", "completed": 40}
    run |= {"total_input_tokens": 36_000, "total_output_tokens": 7_200, "mean_ttft_ms": 400.0}
    tests = [{"max_concurrency": n, "mean_tpot_ms": 75.0 + n} for n in (4, 8, 16)]
    Path("bench.json").write_text("\n".join(json.dumps({**run, **test}) for test in tests))
    assert main(["calibrate", "--log", "bench.json", "--gpu", "l4"]) == 0
    name = "measured_vllm_llama3_1_8b_l4_bf16"
    assert (workplace / "home" / "runtimes" / f"{name}.toml").is_file()
    asked = ServingFlags(model="llama3_1_8b", gpu="l4,h100", concurrency=8, isl=1000, osl=200)
    question = question_of(asked)
    assert any("Corrected by 3 measured rows" in note and name in note for note in question.notes)
    runtimes = [(g["gpu"], g["scheduler"], g["runtime"]) for g in question.space["union"]]
    assert {r for gpu, engine, r in runtimes if (gpu, engine) == (["l4"], ["vllm_v1"])} == {name}
    assert {r for gpu, engine, r in runtimes if (gpu, engine) != (["l4"], ["vllm_v1"])} == {"auto"}
    without = question_of(replace(asked, measured="no"))
    assert not without.notes
    assert not any("runtime" in grid for grid in without.space["union"])


def test_calibrate_needs_rows_or_logs(workplace: Path) -> None:
    with pytest.raises(UserError, match="--log FILE with the load tests of one server"):
        calibrate_command(["mine"])
