"""Profiles of PyTorch and Nsight Systems, read as timed calls."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from formats.profiler_traces import timed_calls
from planning.calibrate.measurements import read_timings
from simulators.core.errors import UserError


def operator(link: int, name: str, shapes: list[Any], kind: str = "float") -> dict[str, Any]:
    about = {"External id": link, "Input Dims": shapes, "Input type": [kind] * len(shapes)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 1.0, "dur": 90.0, "args": about}


def kernel(link: int, dur: float, name: str = "sgemm") -> dict[str, Any]:
    about = {"External id": link, "correlation": link}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 5.0, "dur": dur, "args": about}


EVENTS = [
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    operator(1, "aten::addmm", [[256], [64, 128], [128, 256], [], []]),
    kernel(1, 10.0),
    kernel(1, 2.0, "splitK_reduce"),
    operator(2, "aten::addmm", [[256], [64, 128], [128, 256], [], []]),
    kernel(2, 14.0),
    operator(3, "aten::bmm", [[8, 32, 64], [8, 64, 16]]),
    kernel(3, 7.0),
    operator(4, "aten::mm", [[512, 256], [256, 1024]], "c10::BFloat16"),
    kernel(4, 9.0),
    operator(5, "aten::_softmax", [[4, 16, 128], [], []]),
    kernel(5, 3.0),
    operator(6, "aten::linear", [[64, 128], [256, 128], [256]]),  # its addmm has the kernels
    operator(7, "aten::nonzero", [[64]]),
    kernel(7, 1.0),
]
ROWS = [
    {"op": "linear", "dtype": "fp32", "batch": 1, "m": 64, "n": 256, "k": 128, "latency_us": 13.0},
    {"op": "bmm", "dtype": "fp32", "batch": 8, "m": 32, "n": 16, "k": 64, "latency_us": 7.0},
    {"op": "gemm", "dtype": "bf16", "batch": 1, "m": 512, "n": 1024, "k": 256, "latency_us": 9.0},
    {"op": "softmax", "dtype": "fp32", "rows": 64, "cols": 128, "latency_us": 3.0},
]


def rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "latency_us": round(row["latency_us"], 6)} for row in rows]


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_kernels_of_an_operator_add_up_and_equal_calls_have_a_median(
    tmp_path: Path, suffix: str
) -> None:
    file, text = tmp_path / f"trace{suffix}", json.dumps({"traceEvents": EVENTS})
    file.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    assert rounded(timed_calls(file)) == ROWS


def nsight(file: Path, kernels: list[tuple[str, int, str]]) -> Path:
    """Write kernels with a duration in ns, each launched inside an NVTX range with a text."""
    with sqlite3.connect(file) as base:
        base.execute("create table StringIds (id integer, value text)")
        base.execute(
            "create table CUPTI_ACTIVITY_KIND_KERNEL "
            "(start integer, end integer, correlationId integer, demangledName integer)"
        )
        base.execute(
            "create table CUPTI_ACTIVITY_KIND_RUNTIME "
            "(start integer, end integer, correlationId integer, globalTid integer)"
        )
        base.execute(
            "create table NVTX_EVENTS "
            "(start integer, end integer, text text, textId integer, globalTid integer)"
        )
        base.execute("insert into NVTX_EVENTS values (0, 1000000, 'step', null, 1)")
        for i, (name, duration, text) in enumerate(kernels):
            at = 1000 * (i + 1)
            base.execute("insert into StringIds values (?, ?)", (i, name))
            base.execute("insert into NVTX_EVENTS values (?, ?, ?, null, 1)", (at, at + 900, text))
            row = (at + 100, at + 200, i, 1)
            base.execute("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?)", row)
            row = (at + 500_000, at + 500_000 + duration, i, i)
            base.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?)", row)
    return file


SOFTMAX = "void softmax_warp_forward<float, float, float, 7>(float*, float const*, int)"


def test_kernels_of_nsight_belong_to_the_innermost_range(tmp_path: Path) -> None:
    sizes = "seq = 0, op_id = 7, sizes = [[256], [64, 128], [128, 256], [], []]"
    file = nsight(
        tmp_path / "report.sqlite",
        [
            ("ampere_sgemm_64x32_sliced1x4_tn", 13_000, f"aten::addmm, {sizes}"),
            (
                "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
                9_000,
                "aten::mm, op_id = 8, sizes = [[512, 256], [256, 1024]], input_op_ids = [(7,0)]",
            ),
            (SOFTMAX, 3_000, "aten::_softmax, op_id = 9, sizes = [[4, 16, 128], [], []]"),
            ("memset", 5_000, "no operator"),
        ],
    )
    assert rounded(timed_calls(file)) == [ROWS[0], ROWS[2], ROWS[3]]


def test_truncated_archive_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.json.gz"
    file.write_bytes(gzip.compress(json.dumps(EVENTS).encode())[:-12])
    with pytest.raises(UserError, match="is not a trace of PyTorch's profiler"):
        timed_calls(file)


def test_profiles_are_measured_rows_of_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(EVENTS))
    found = {one.kernel: one for one in read_timings(file)}
    assert {*found} == {"linear", "bmm", "softmax"}
    assert found["linear"].seconds.tolist() == pytest.approx([13e-6])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", "{", "is not a trace of PyTorch's profiler"),
        ("a.json", '{"events": []}', "is not a trace of PyTorch's profiler"),
        ("a.json", '{"traceEvents": 3}', "traceEvents is not a list"),
        ("a.json", '{"traceEvents": []}', "record it with record_shapes=True"),
        ("a.json", json.dumps(EVENTS).replace('"Input Dims": [', '"Input Dims": ["a",'), "record"),
        ("a.json", json.dumps(EVENTS).replace('"dur": ', '"dur": "1", "was": '), "takes '1'"),
        ("a.sqlite", "text", "is not an SQLite export of Nsight Systems"),
    ],
)
def test_malformed_profile_is_refused(tmp_path: Path, name: str, content: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(UserError, match=said):
        timed_calls(file)
