"""Measurements use the reference columns, and comparing own predictions gives zero error."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from lab.fits import driver
from lab.tables.fp32 import rows_of_table
from lab.tables.kernels import measured_in, own_products
from planning.measure.run import COLUMNS, Bench, families_of
from planning.measure.shapes import (
    DTYPES,
    FAMILIES,
    MAX_FLOPS,
    MAX_NUMBERS,
    Call,
    calls,
    calls_of,
    weight_of,
)
from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UserError
from simulators.kernels.price import price, price_call
from sweeper.__main__ import main

EVERYTHING = families_of(list(FAMILIES), list(DTYPES))


def first_calls(count: int, largest: int = 2**31, ops: str = "") -> list[Call]:
    designs = families_of([ops], list(DTYPES)) if ops else EVERYTHING
    return list(itertools.islice(calls(designs, largest), count))


def foretold(count: int, device: str, name: str = "") -> pa.Table:
    """Return what a device would have measured, were we right."""
    formats = {"bf16": "bfloat16", "fp8": "fp8"}
    rows = [
        {
            **call.sizes,
            "op": call.op,
            "gpu": name or device,
            "framework": "pytorch",
            "version": "2",
            "kernel": "pytorch",
            "dtype": call.dtype,
            "split": "train",
            "gemm_dtype": formats.get(call.dtype),
            "attn_dtype": formats.get(call.dtype),
            "kv_cache_dtype": formats.get(call.dtype),
            "latency_us": 1.0,
        }
        for call in first_calls(count)
    ]
    gpu, table = load_gpu(device), pa.Table.from_pylist(rows, schema=COLUMNS)
    ops = np.array(table["op"].to_pylist())
    seconds = np.zeros(len(rows))
    for op in np.unique(ops):
        mine = table.filter(pa.array(ops == op))
        if op == "gemm":
            kinds = np.array(table["gemm_dtype"].to_pylist())
            for product in own_products(mine, device):
                chosen = (ops == op) & (kinds == formats[product.dtype])
                seconds[chosen] = price(product.operator, gpu).latency_s
        elif op in ("prefill", "decode"):
            (measured,) = measured_in(mine, device, str(op), 1)
            seconds[ops == op] = price(measured.operator, gpu).latency_s
        else:
            (part,) = rows_of_table(mine, device)
            seconds[ops == op] = price_call(part.operator, gpu).latency_s
    return table.set_column(
        table.schema.get_field_index("latency_us"), "latency_us", pa.array(seconds * 1e6)
    )


def test_malformed_call_file_raises_a_user_error() -> None:
    file, product = Path("todo.csv"), {"op": "bmm", "m": 8, "n": 8, "k": 8}
    (call,) = calls_of(pa.Table.from_pylist([product]), file)
    assert call.sizes == {"m": 8, "n": 8, "k": 8, "batch": 1}
    with pytest.raises(UserError, match="lacks one of m, n, k"):
        calls_of(pa.Table.from_pylist([product | {"k": None}]), file)
    with pytest.raises(UserError, match="no fp32 operator"):
        calls_of(pa.Table.from_pylist([product | {"op": "prefill"}]), file)


def test_sampled_calls_are_distinct_and_bounded() -> None:
    many = first_calls(400)
    assert len({(c.op, c.dtype, *c.sizes.items()) for c in many}) > 380
    for call in many:
        numbers, flops = weight_of(call.op, call.sizes)
        assert numbers <= MAX_NUMBERS
        assert flops <= MAX_FLOPS


def test_sampled_sizes_cover_the_range_evenly() -> None:
    places = np.sort([np.log2(c.sizes["cols"]) for c in first_calls(64, ops="vector")])
    assert np.max(np.diff(places)) < 0.1 * (places[-1] - places[0])


def test_sampled_sizes_respect_the_maximum() -> None:
    sizes = [c.sizes for c in first_calls(50, largest=128, ops="linear")]
    assert max(max(s["m"], s["n"], s["k"]) for s in sizes) <= 128


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ops", "gem"], "did you mean 'gemm'"),
        (["--ops", "gemm", "--dtype", "fp32"], "gemm in bf16, fp8"),
        (["--dtype", "int9"], "unknown precision"),
    ],
)
def test_unmeasurable_calls_are_reported(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["measure", "--write", str(tmp_path / "x.parquet"), *words]) == 2
    assert said in capsys.readouterr().err


@dataclasses.dataclass
class FakeGpu:
    """Fake torch on a GPU: records the queue, and takes one second per entry."""

    queue: list[str] = dataclasses.field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *words: Any, **named: Any) -> Any:
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802 - torch's name
        return Mark(self.queue)

    def CUDAGraph(self) -> Any:  # noqa: N802 - torch's name
        return Replayed(self.queue)

    def zero_(self) -> None:
        self.queue.append("evict")


@dataclasses.dataclass
class Mark:
    queue: list[str]
    at: int = 0

    def record(self) -> None:
        self.at = len(self.queue)

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: Mark) -> float:
        return 1000.0 * sum(20 if q == "replay" else 1 for q in self.queue[self.at : other.at])


@dataclasses.dataclass
class Replayed:
    queue: list[str]

    def replay(self) -> None:
        self.queue.append("replay")


def timed(call: Call, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    gpu = FakeGpu()
    monkeypatch.setattr(Bench, "prepared", lambda *_: lambda: gpu.queue.append("call"))
    monkeypatch.setattr("planning.measure.run.MAX_LOOPED", 20)
    monkeypatch.setattr("planning.measure.run.LOOP_S", 1e3)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return Bench(gpu, "cuda", gpu).time(call), gpu.queue


def test_cold_call_follows_an_untimed_cache_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, queue = timed(first_calls(1, ops="linear")[0], monkeypatch)
    assert (result["latency_us"], result["cold_us"], result["timing"]) == (1e6, 1e6, "events")
    assert queue[-2:] == ["evict", "call"]


def test_cuda_graph_loop_time_is_divided_by_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    result, queue = timed(first_calls(1, ops="gemm")[0], monkeypatch)
    assert (result["latency_us"], result["timing"]) == (1e6, "graph")
    assert "replay" in queue


@pytest.mark.slow
def test_local_machine_is_measured(tmp_path: Path) -> None:
    pytest.importorskip(
        "torch", reason="PyTorch is not installed: pip install 'mlsweeper[measure]'"
    )
    file = str(tmp_path / "cpu.parquet")
    main(["measure", "--device", "cpu", "--largest", "64", "--seconds", "8", "--write", file])
    table = pa.parquet.read_table(file)
    assert table.num_rows >= len(EVERYTHING)
    assert min(table["latency_us"].to_pylist()) > 0.0
    assert set(table["timing"].to_pylist()) == {"clock"}


@pytest.mark.slow
def test_gpu_is_fitted_to_measured_gemms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = foretold(1500, "l40s")
    pa.parquet.write_table(table, "mine.parquet")
    driver.main(["tensor_cores", "--device", "l40s", "--measured", "mine.parquet"])
    said = re.search(r"l40s\.toml, held-out error ([\d.]+)%", capsys.readouterr().out)
    assert said is not None
    assert float(said[1]) < 25.0
