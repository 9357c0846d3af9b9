"""The simulator of one operator: rows in, rows out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from simulators.core.errors import UnknownNameError, UserError
from simulators.kernels.simulator import AUXILIARY, OPS, SIMULATOR, KernelPoint

DEFAULTS = {
    f.name: f.default
    for f in dataclasses.fields(KernelPoint)
    if f.default is not dataclasses.MISSING
}


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    full = [{"gpu": "h100_sxm", "op": "gemm", **DEFAULTS, **row} for row in rows]
    return pa.RecordBatch.from_pylist(full)


def answers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return SIMULATOR.evaluate(batch(rows)).to_pylist()


EVERY_OP = [
    {
        "op": op,
        "batch": 4,
        "m": 512,
        "n": 512,
        "k": 512,
        "rows": 4096,
        "cols": 1024,
        "heads": 8,
        "kv_heads": 2,
        "new_tokens": 128,
        "past_tokens": 256,
        "experts": 8,
        "top_k": 2,
        "in_channels": 64,
        "out_channels": 64,
        "kernel_size": 3,
        "input_size": 56,
        "padding": 1,
    }
    for op in OPS
]


def test_every_operator_latency_lies_inside_the_interval() -> None:
    for row in answers(EVERY_OP):
        assert row["status"] == "ok"
        assert 0 < row["latency_s_lo"] <= row["latency_s"] <= row["latency_s_hi"]
        assert row["energy_j"] > 0
        assert 0 <= row["mfu"] <= 1


def test_row_is_bit_equal_alone_in_a_batch_and_in_any_order() -> None:
    rows = [{**row, "gpu": gpu} for row in EVERY_OP for gpu in ("v100_pcie", "mi210", "h100_sxm")]
    together = answers(rows)
    assert answers(rows[::-1])[::-1] == together
    assert [answers([row])[0] for row in rows] == together


def test_unsupported_dtype_is_an_infeasible_row() -> None:
    old, new = answers([{"gpu": "v100_pcie", "dtype": "fp8"}, {"dtype": "fp8"}])
    assert old["status"] == "infeasible"
    assert old["reason"].startswith("dtype_not_supported")
    assert old["latency_s"] is None
    assert new["status"] == "ok"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"m": 0}, "size_not_positive"),
        ({"m": 10**6, "n": 10**6, "k": 10**6, "gpu": "l4"}, "operands_exceed_memory"),
        ({"op": "attention_decode", "heads": 8, "kv_heads": 16}, "kv_heads_do_not_divide_heads"),
        ({"op": "grouped_gemm", "experts": 4, "top_k": 8}, "top_k_exceeds_experts"),
        ({"op": "conv", "kernel_size": 9, "input_size": 8}, "filter_exceeds_image"),
    ],
)
def test_impossible_operator_is_infeasible(row: dict[str, Any], reason: str) -> None:
    assert answers([row])[0]["reason"].partition(":")[0] == reason


@pytest.mark.parametrize("name", ["m", "past_tokens", "padding", "tile_m", "heads"])
def test_negative_size_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} is -5000; it must be at least 0"):
        answers([{name: -5000}])


def test_misspelt_names_get_suggestions() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'h100_sxm'"):
        answers([{"gpu": "h100_smx"}])
    with pytest.raises(UserError, match="did you mean 'softmax'"):
        answers([{"op": "softmx"}])
    with pytest.raises(UserError, match="did you mean 'bf16'"):
        answers([{"dtype": "bf61"}])
    with pytest.raises(UserError, match="information"):
        answers([{"information": "everything"}])


def test_isolated_call_includes_host_time() -> None:
    stream, alone = answers([{"m": 8}, {"m": 8, "isolated": True}])
    assert alone["latency_s"] > stream["latency_s"]


def test_point_depends_on_data_sheet_and_calibration() -> None:
    files = [path.name for path in SIMULATOR.reads("gpu", "v100_pcie")]
    assert files.count("v100_pcie.toml") == 2
    assert "measured_gpus.toml" in files
    assert SIMULATOR.reads("m", 3) == ()


def test_point_depends_on_the_source_gpus_of_transferred_numbers() -> None:
    files = [f"{path.parent.name}/{path.name}" for path in SIMULATOR.reads("gpu", "h200_sxm")]
    assert files.count("evidence/relatives.toml") == 1
    assert {"fused/h200_sxm.toml", "fused/h100_sxm.toml", "power/h200_sxm.toml"} <= set(files)
    assert not {"fused/rtx_4090.toml", "tensor/rtx_4090.toml"} & set(files)


def test_gather_supports_dtypes_without_arithmetic() -> None:
    (old,) = answers([{"gpu": "p4", "op": "embedding", "rows": 64, "cols": 64, "dtype": "bf16"}])
    assert old["status"] == "ok"


def test_expert_weight_dtype_may_differ_from_compute_dtype() -> None:
    row = {"gpu": "h100_sxm", "op": "grouped_gemm", "m": 8, "n": 5760, "k": 2880, "experts": 32}
    wide, narrow = answers([{**row, "dtype": "fp16"}, {**row, "dtype": "w4a16"}])
    assert narrow["bytes"] < wide["bytes"]
    assert narrow["latency_s"] < wide["latency_s"]


def test_what_if_scales_change_the_latency() -> None:
    sizes = {"m": 4096, "n": 4096, "k": 4096}
    base, fast = answers([{**sizes, "dtype": "bf16"}, {**sizes, "dtype": "bf16", "sm_scale": 2.0}])
    assert fast["latency_s"] < base["latency_s"]
    assert base["fitted_share"] == fast["extrapolated_share"] == 1.0


def test_empty_batch_gives_no_rows() -> None:
    empty = batch([{}]).slice(0, 0)
    assert SIMULATOR.evaluate(empty).num_rows == 0


def test_columns_of_any_integer_type_are_accepted() -> None:
    rows = batch([{"m": 128, "n": 128, "k": 128}])
    narrow = rows.set_column(
        rows.schema.get_field_index("m"), "m", pa.array(np.array([128], np.int32))
    )
    assert SIMULATOR.evaluate(narrow).to_pylist() == SIMULATOR.evaluate(rows).to_pylist()


def test_quantization_scheme_sets_weight_and_compute_dtype() -> None:
    sizes = {"op": "linear", "m": 64, "n": 4096, "k": 4096}
    pairs = {
        "fp8_block": ("fp8", "fp8_block"),
        "w8a8": ("int8", ""),
        "w4a16": ("fp16", "int4"),
        "w8a16": ("fp16", "int8"),
    }
    for scheme, (dtype, weights) in pairs.items():
        short, long = answers(
            [
                {**sizes, "gpu": "h200_sxm", "dtype": scheme},
                {**sizes, "gpu": "h200_sxm", "dtype": dtype, "weight_dtype": weights},
            ]
        )
        assert short == long
        assert short["datasheet_share"] == 0.0


def test_lm_head_is_a_gemm_and_sampling_reads_the_logits() -> None:
    sizes = {"gpu": "h100_sxm", "m": 64, "n": 128_256, "k": 4096, "dtype": "bf16"}
    head, linear = answers([{**sizes, "op": "lm_head"}, {**sizes, "op": "linear"}])
    assert head == linear
    logits = {"gpu": "h100_sxm", "rows": 64, "cols": 128_256, "dtype": "fp32"}
    drawn, softmax = answers([{**logits, "op": "sampling"}, {**logits, "op": "softmax"}])
    assert drawn == softmax


def test_points_accept_a_framework() -> None:
    row = {"gpu": "h100_sxm", "op": "linear", "m": 8, "n": 4096, "k": 4096, "dtype": "fp8"}
    ours, theirs = answers([row, {**row, "framework": "vllm"}])
    assert ours["latency_s"] != theirs["latency_s"]
    with pytest.raises(UserError, match="framework"):
        answers([{**row, "framework": "vlm"}])


def test_auxiliary_kernels_accept_requests_and_tokens() -> None:
    base = {"gpu": "h100_sxm", "dtype": "bf16", "framework": "vllm", "batch": 4, "heads": 32}
    base |= {"kv_heads": 16, "head_dim": 128, "cols": 8192, "new_tokens": 512}
    ops = [op for op in AUXILIARY if "quantise" not in op]
    short, long = (
        answers([{**base, "op": op, "new_tokens": each} for op in ops]) for each in (512, 1024)
    )
    for op, less, more in zip(ops, short, long, strict=True):
        assert less["datasheet_share"] == 0.0, op
        assert (less["latency_s"] == more["latency_s"]) == op.endswith("decode"), op
