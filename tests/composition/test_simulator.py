"""The composition simulator: every point becomes a row, and rows are independent."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from simulators.composition.point import CompositionMetrics, CompositionPoint
from simulators.composition.simulator import SIMULATOR
from simulators.core.columns import schema_of
from simulators.core.contract import Describes, Reads, Simulator, WarmsUp
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import CLUSTERS, GPUS, MODELS


def batch_of(*points: dict[str, Any]) -> pa.RecordBatch:
    columns = {}
    for f, kind in zip(fields(CompositionPoint), schema_of(CompositionPoint), strict=True):
        default = None if f.default is MISSING else f.default
        column = pa.array([point.get(f.name, default) for point in points], kind.type)
        is_word = pa.types.is_string(column.type)
        columns[f.name] = column.dictionary_encode() if is_word else column
    return pa.RecordBatch.from_pydict(columns)


def evaluate(*points: dict[str, Any]) -> pl.DataFrame:
    got = pl.from_arrow(SIMULATOR.evaluate(batch_of(*points)))
    assert isinstance(got, pl.DataFrame)
    return got


POINTS = [
    {"model": model, "gpu": gpu, "tp": tp, "pp": pp, "phase": phase, "batch": batch, "context": n}
    for model in ("llama2_7b", "mixtral_8x7b", "gpt2")
    for gpu in ("h100_sxm", "t4")
    for tp, pp in ((1, 1), (4, 2))
    for phase in ("prefill", "decode")
    for batch, n in ((1, 100), (7, 999))
]


def test_simulator_implements_all_protocols() -> None:
    assert isinstance(SIMULATOR, Simulator)
    assert isinstance(SIMULATOR, Reads)
    assert isinstance(SIMULATOR, Describes)
    assert isinstance(SIMULATOR, WarmsUp)


def test_row_is_equal_alone_and_in_any_batch() -> None:
    together = evaluate(*POINTS)
    backwards = evaluate(*POINTS[::-1]).reverse()
    assert together.equals(backwards)
    for i in (0, 5, 17, len(POINTS) - 1):
        assert evaluate(POINTS[i]).equals(together[i : i + 1])


def test_feasible_rows_are_complete_and_infeasible_rows_have_no_metrics() -> None:
    rows = evaluate(*POINTS)
    names = [f.name for f in fields(CompositionMetrics)]
    feasible = rows.filter(pl.col("status").cast(pl.String) == "ok").select(names)
    assert feasible.null_count().sum_horizontal().item() == 0
    assert np.isfinite(feasible.to_numpy()).all()
    others = rows.filter(pl.col("status").cast(pl.String) == "infeasible")
    assert others["latency_s"].null_count() == len(others) > 0
    assert others["reason"].null_count() == 0


def test_time_components_sum_to_the_latency() -> None:
    rows = evaluate(*POINTS).drop_nulls("latency_s")
    parts = [
        "linear_s",
        "prefill_attention_s",
        "decode_attention_s",
        "collective_s",
        "send_recv_s",
        "launch_s",
        "prompt_s",
    ]
    total = rows.select(pl.sum_horizontal(parts)).to_series().to_numpy()
    assert total == pytest.approx(rows["latency_s"].to_numpy(), rel=1e-12)


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (
            {"model": "llama2_70b", "gpu": "h100_sxm"},
            "weights_exceed_hbm: needs 138.0 GB, has 85.9 GB",
        ),
        ({"model": "llama2_7b", "gpu": "l4", "batch": 64, "context": 4096}, "batch_exceeds_hbm"),
        (  # 62 layers of 8,192 bytes per token and layer: 133 GB beside 54 GB of weights
            {"model": "gemma3_27b", "gpu": "h100_sxm", "batch": 256, "context": 1024},
            "batch_exceeds_hbm",
        ),
        (  # states of 1,024 sequences
            {"model": "nemotron3_nano_30b", "gpu": "h100_sxm", "batch": 1024, "context": 512},
            "batch_exceeds_hbm",
        ),
        (
            {"model": "llama3_1_8b", "gpu": "h100_sxm", "context": 200_000},
            "context_exceeds_model: llama3_1_8b has 131,072",
        ),
        ({"model": "gpt2", "gpu": "h100_sxm", "tp": 8}, "tp_does_not_divide_heads"),
        ({"model": "gpt2", "gpu": "t4", "dtype": "bf16"}, "dtype_not_supported"),
        ({"model": "gpt2", "gpu": "h100_sxm", "pp": 99}, "pp_exceeds_layers"),
    ],
)
def test_infeasible_point_has_a_reason(point: dict[str, Any], reason: str) -> None:
    assert evaluate(point)["reason"][0].startswith(reason)


@pytest.mark.parametrize(
    ("point", "error", "said"),
    [
        ({"model": "lama2_7b", "gpu": "h100_sxm"}, UnknownNameError, "did you mean 'llama2_7b'"),
        ({"model": "gpt2", "gpu": "h100_smx"}, UnknownNameError, "did you mean 'h100_sxm'"),
        ({"model": "gpt2", "gpu": "h100_sxm", "phase": "decod"}, UserError, "decode"),
        ({"model": "gpt2", "gpu": "h100_sxm", "dtype": "fp61"}, UnknownNameError, "fp16"),
        ({"model": "gpt2", "gpu": "h100_sxm", "kv_dtype": "fp61"}, UnknownNameError, "fp16"),
        ({"model": "gpt2", "gpu": "h100_sxm", "runtime": "grafs"}, UnknownNameError, "graphs"),
        ({"model": "gpt2", "gpu": "h100_sxm", "batch": 0}, UserError, "at least 1"),
        ({"model": "gpt2", "gpu": "h100_sxm", "framework": "vlm"}, UserError, "'vllm'"),
        ({"model": "gpt2", "gpu": "h100_sxm", "without": "lunch"}, UnknownNameError, "'launch'"),
        ({"model": "gpt2", "gpu": "h100_sxm", "overlap": 1.5}, UserError, "and at most 1"),
    ],
)
def test_invalid_point_raises_a_user_error(
    point: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        evaluate(point)


def test_point_depends_on_the_files_of_the_axis_values() -> None:
    assert MODELS.find("gpt2") in SIMULATOR.reads("model", "gpt2")
    assert GPUS.find("t4") in SIMULATOR.reads("gpu", "t4")
    assert CLUSTERS.find("pcie_server") in SIMULATOR.reads("gpu", "t4")
    assert SIMULATOR.reads("cluster", "auto") == ()
    assert SIMULATOR.reads("cluster", "dgx_h100") == (CLUSTERS.find("dgx_h100"),)
    assert SIMULATOR.reads("tp", 4) == ()
    for path in SIMULATOR.reads("", None):
        assert isinstance(path, Path)
        assert path.is_file()


def test_eager_with_tp_uses_the_measured_multi_process_runtime() -> None:
    def passes(runtime: str, **layout: int) -> pl.DataFrame:
        point = {"model": "llama2_7b", "gpu": "a100_sxm", "runtime": runtime, **layout}
        return evaluate(point).drop("runtime", strict=False)

    assert passes("eager", tp=2).equals(passes("eager_tp", tp=2))
    assert not passes("eager", pp=2).equals(passes("eager_tp", pp=2))  # no layer is shared
    # A prompt of one token waits for the host: .58 ms a layer and .119 of gaps, .25 a sequence,
    # and what makes a token of it, .0103 ms and .00548 more per 1,000 tokens.
    tiny = {"model": "gpt2", "gpu": "t4", "tp": 2, "phase": "prefill", "batch": 1, "context": 1}
    one = evaluate({**tiny, "runtime": "eager"}).row(0, named=True)
    host_s = 12 * (0.58e-3 + 0.119e-3) + 0.25e-3
    prompt_s = 1.03e-5 + 5.48e-6 / 1000.0
    assert one["latency_s"] == pytest.approx(host_s + prompt_s, rel=1e-12)
    files = SIMULATOR.reads("runtime", "eager")
    assert [file.stem for file in files] == ["eager", "eager_tp"]


def test_facts_are_available_without_simulation() -> None:
    facts = SIMULATOR.describe(batch_of({"model": "gpt2", "gpu": "h100_sxm", "tp": 2, "pp": 3}))
    assert facts.to_pylist() == [
        {"gpus": 6, "model_parameters": 124_439_808, "hbm_bytes_per_gpu": 80 * 2**30}
    ]


def test_what_if_gpu_is_flagged_as_extrapolated() -> None:
    base = {"model": "gpt2", "gpu": "h100_sxm", "without": "launch"}
    real, scaled = evaluate(base, base | {"bandwidth_scale": 2.0}).iter_rows(named=True)
    assert scaled["latency_s"] < real["latency_s"]
    assert scaled["extrapolated_share"] > 0.5 > real["extrapolated_share"]
    assert real["fitted_share"] > scaled["fitted_share"]


def test_tensor_parallelism_shortens_decode_of_a_large_model() -> None:
    rows = evaluate(
        *[{"model": "llama2_70b", "gpu": "h100_sxm", "tp": tp, "batch": 8} for tp in (2, 4, 8)]
    )
    assert rows["latency_s"].to_list() == sorted(rows["latency_s"].to_list(), reverse=True)
