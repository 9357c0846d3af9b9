"""Few rows make a board or a device, and carry kernels from one GPU to another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose

from lab.new_hardware.calibrate import calibrate
from lab.new_hardware.carried import carried_s, habits, in_common, telling
from lab.new_hardware.transfer import transfer, write
from lab.profiler.shapes import calls_of
from lab.tables.kernels.fp32_kernels import rows_of_table
from lab.tables.rows import Rows
from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UserError
from simulators.edge.architectures import CELL_OPERATIONS, cell_text, features
from simulators.edge.device import device
from simulators.kernels.levels import profile_of
from simulators.kernels.price import call_seconds
from sweeper.__main__ import main

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


def rows_of(factor: float, gpu: str) -> Rows:
    [(found, _)] = rows_of_table(timed(factor), gpu)
    return found[0]


def test_times_that_are_a_plain_multiple_are_carried_as_one() -> None:
    here, there = rows_of(1.0, SOURCE.name), rows_of(0.5, TARGET.name)
    known = telling(here, 12)
    said = carried_s(here, SOURCE, TARGET, there.where(known))
    assert_allclose(said, there.seconds, rtol=0.25)


def test_rows_to_measure_lie_apart_and_their_number_is_kept() -> None:
    here = rows_of(1.0, SOURCE.name)
    chosen = telling(here, 4)
    assert np.ptp(np.log2(here.seconds[chosen])) > np.ptp(np.log2(here.seconds)) / 2.0
    assert len({*zip(*(here.sizes[name][chosen].tolist() for name in "mn"), strict=True)}) == 4
    assert not telling(here, 0).any()
    assert in_common(here, here.where(chosen))[0].seconds.size == 4


def test_what_a_library_is_slow_at_is_read_off_boards_that_run_it() -> None:
    """rocBLAS is slow at a very long k: the other AMD board's calibration says so of this one."""
    here = rows_of(1.0, SOURCE.name)
    long = replace(here, sizes=here.sizes | {"k": np.full(len(here), 65536)})
    mi210, h100 = load_gpu("mi210"), load_gpu("h100_sxm")
    assert np.median(habits(long, mi210) - habits(here, mi210)) > 0.1
    assert np.median(habits(long, mi210)) > np.median(habits(long, h100))


def test_carried_rows_are_written_as_the_profiler_writes(workplace: Path) -> None:
    pq.write_table(timed(1.0), "a.parquet")
    found = transfer(SOURCE.name, TARGET.name, Path("a.parquet"), None)
    write(found, TARGET.name, Path("b.parquet"))
    [(again, _)] = rows_of_table(pq.read_table("b.parquet"), TARGET.name)
    assert_allclose(np.sort(again[0].seconds), np.sort(found[0].seconds), rtol=1e-9)
    assert found[0].ratio < 1.0


def test_classes_of_several_operators_are_written_under_one_that_readers_know(
    workplace: Path,
) -> None:
    rows = [
        {"op": op, "rows": 2**i, "cols": 1024, "latency_us": 5.0 + 2.0**i}
        for op in ("ln", "mul", "relu")
        for i in range(6)
    ]
    pq.write_table(pa.Table.from_pylist(rows), "a.parquet")
    found = transfer(SOURCE.name, TARGET.name, Path("a.parquet"), None)
    write(found, TARGET.name, Path("b.parquet"))
    again = transfer(TARGET.name, SOURCE.name, Path("b.parquet"), None)
    assert [one.name for one in again] == ["binary", "layer_norm", "unary"]


def test_the_rows_to_time_are_written_and_the_profiler_reads_them(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(timed(1.0), "a.parquet")
    words = ["--measured", "a.parquet", "--source", SOURCE.name, "--target", TARGET.name]
    assert main(["transfer", *words, "--ask", "5", "--write", "todo.parquet"]) == 0
    assert "--rows todo.parquet --write own.parquet --gpu h100_sxm" in capsys.readouterr().out
    some = list(calls_of(pq.read_table("todo.parquet"), Path("todo.parquet")))
    here = rows_of(1.0, SOURCE.name)
    assert {call.sizes["m"] for call in some} <= {*here.sizes["m"]}
    assert [(call.op, call.dtype, call.looped) for call in some] == [("linear", "fp32", False)] * 5
    assert main(["transfer", *words, "--ask", "5"]) != 0
    assert "--write the file" in capsys.readouterr().err


def test_a_board_of_own_rows_is_written_and_found_again(workplace: Path) -> None:
    sheet_of_own()
    pq.write_table(timed(0.5), "rows.parquet")
    [gain], file = calibrate("my_gpu", Path("rows.parquet"), "nb201")
    assert file.is_file()
    assert gain.rows == len(SIDES) ** 2
    assert gain.after < gain.before


def test_a_phone_of_own_rows_is_written_as_json(workplace: Path) -> None:
    draw = np.random.default_rng(1)
    cells = [cell_text(draw.choice(CELL_OPERATIONS, 6).tolist()) for _ in range(12)]
    seconds, _, _ = device("nb201", "raspi4").seconds(features("nb201", cells))
    lines = [f"{cell},{s}" for cell, s in zip(cells, 2.0 * seconds, strict=True)]
    Path("mine.csv").write_text("network,latency_s\n" + "\n".join(lines))
    [gain], file = calibrate("my_phone", Path("mine.csv"), "nb201")
    assert json.loads(file.read_text())["about"] == {"measured": "mine.csv", "rows": 12}
    assert gain.after < gain.before
    again, _, _ = device("nb201", str(file)).seconds(features("nb201", cells))
    assert_allclose(again, 2.0 * seconds, rtol=0.2)


def test_too_few_rows_are_refused(workplace: Path) -> None:
    pq.write_table(timed(1.0).slice(0, 2), "two.parquet")
    with pytest.raises(UserError, match="some must be left out"):
        calibrate("h100_sxm", Path("two.parquet"), "nb201")


def test_the_commands_print_errors_before_and_after(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(timed(1.0), "a.parquet")
    pq.write_table(timed(0.5).slice(0, 12), "b.parquet")
    words = ["--measured", "a.parquet", "--source", SOURCE.name, "--target", TARGET.name]
    assert main(["transfer", *words, "--own", "b.parquet", "--write", "c.parquet"]) == 0
    assert "by a ratio" in capsys.readouterr().out
    assert main(["calibrate", "l40s", "--measured", "c.parquet"]) == 0
    assert "more rows that would halve it" in capsys.readouterr().out


def test_a_second_calibration_does_not_judge_by_what_the_first_has_written(
    workplace: Path,
) -> None:
    sheet_of_own()
    pq.write_table(timed(0.5), "rows.parquet")
    first, _ = calibrate("my_gpu", Path("rows.parquet"), "nb201")
    again, file = calibrate("my_gpu", Path("rows.parquet"), "nb201")
    assert again == first
    assert file.is_file()


def test_a_class_that_rows_do_not_improve_stays_as_it_was(workplace: Path) -> None:
    sheet_of_own()
    like, products = profile_of(load_gpu("h100_sxm")), timed(0.5).to_pylist()
    batched = [row | {"op": "bmm", "batch": 4} for row in products]
    [([part], _)] = rows_of_table(pa.Table.from_pylist(batched), "my_gpu")
    known_s = call_seconds(part.operator, load_gpu("my_gpu"), like).tolist()
    as_known = [row | {"latency_us": 1e6 * s} for row, s in zip(batched, known_s, strict=True)]
    pq.write_table(pa.Table.from_pylist(products + as_known), "rows.parquet")
    gains, _ = calibrate("my_gpu", Path("rows.parquet"), "nb201")
    assert {gain.name: gain.is_better for gain in gains} == {"linear": True, "bmm": False}
    gpu = load_gpu("my_gpu")
    assert call_seconds(part.operator, gpu, profile_of(gpu)).tolist() == known_s
    assert profile_of(gpu).gemm["linear"].compute != like.gemm["linear"].compute


@pytest.mark.parametrize(
    ("name", "latency", "said"),
    [("my_phone", "fast", "column 'latency_s' holds 'fast'"), ("no/phone", "0.01", "no/phone")],
)
def test_a_phone_that_cannot_be_written_is_told(
    workplace: Path, name: str, latency: str, said: str
) -> None:
    cells = [cell_text([one] * 6) for one in CELL_OPERATIONS] * 2
    lines = [f"{cell},{latency}" for cell in cells]
    Path("mine.csv").write_text("network,latency_s\n" + "\n".join(lines))
    with pytest.raises(UserError, match=said):
        calibrate(name, Path("mine.csv"), "nb201")


@pytest.mark.parametrize(
    ("latency", "said"), [("fast", "latency_us holds no numbers"), ("-1", "holds what is no time")]
)
def test_times_of_a_gpu_that_are_none_are_told(workplace: Path, latency: str, said: str) -> None:
    sizes = "\n".join(f"linear,64,64,{2**i},10" for i in range(5))
    Path("mine.csv").write_text(f"op,m,n,k,latency_us\nlinear,64,64,64,{latency}\n{sizes}\n")
    with pytest.raises(UserError, match=said):
        calibrate("h100_sxm", Path("mine.csv"), "nb201")
    with pytest.raises(UserError, match=said):
        transfer(SOURCE.name, TARGET.name, Path("mine.csv"), None)
