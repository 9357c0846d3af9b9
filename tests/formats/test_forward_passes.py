"""Tables of forward passes: read, written, and calibrated to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.forward_times import write_forward_times
from formats.forward_passes import DECODE, PREFILL, passes_of
from planning.calibrate.passes import calibrate_passes
from simulators.composition.replica import load_runtime
from simulators.core.errors import UserError
from simulators.serving.point import ServingPoint

ROW: dict[str, Any] = {
    "cell_id": "cell",
    "model_path": "meta-llama/Llama-3.1-8B",
    "system": "h100_sxm",
    "backend": "vllm",
    "backend_version": "0.25.1",
    "weight_quantization": "bfloat16",
    "gemm_quant_mode": "bfloat16",
    "moe_quant_mode": None,
    "fmha_quant_mode": None,
    "comm_quant_mode": "half",
    "kv_cache_dtype": "bfloat16",
    **dict.fromkeys(("tp", "pp", "dp", "moe_tp", "moe_ep", "cp"), 1),
    "moe_backend": "auto",
    "attention_backend": "auto",
    "enable_wideep": False,
    "enable_eplb": False,
    "workload_kind": "decode",
    "batch_size": 4,
    "total_prefill_tokens": 0,
    "total_kv_read_tokens": 400,
    "partition_policy": "balanced_v1",
    "latency_ms": 6.5,
}
PROMPT = {"workload_kind": "prefill", "batch_size": 2, "total_prefill_tokens": 600}
"""Two chunks of 300 tokens after 100 tokens each."""
DESIGN = ServingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    scheduler="vllm_v1",
    runtime="vllm",
    dtype="bf16",
    kv_dtype="bf16",
    max_batch=8,
    chunk_size=1024,
    qps=1.0,
)


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    file = folder / "fpm_forward_perf.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), file)
    return file


def test_totals_of_a_pass_become_the_work_of_its_requests(tmp_path: Path) -> None:
    prompt = {**ROW, **PROMPT, "total_kv_read_tokens": 200, "latency_ms": 20.0}
    engine, (decodes, prompts) = passes_of(written(tmp_path, ROW, prompt))
    assert (engine.model, engine.gpu, engine.dtype) == ("llama3_1_8b", "h100_sxm", "bf16")
    assert (decodes.kind, decodes.seconds[0]) == (DECODE, pytest.approx(0.0065))
    assert (decodes.step.decodes[0], decodes.step.decode_kv_tokens[0]) == (4, 404)
    assert (prompts.kind, prompts.step.prefill_tokens[0]) == (PREFILL, 600)
    assert prompts.step.prefill_kv_tokens[0] == 800
    assert prompts.step.prefill_pairs[0] == 2 * (300 * 100 + 300 * 301 / 2)


def test_experts_in_another_precision_are_read(tmp_path: Path) -> None:
    row = {**ROW, "model_path": "openai/gpt-oss-120b", "moe_quant_mode": "w4a8_mxfp4_mxfp8"}
    engine, _ = passes_of(written(tmp_path, {**row, "moe_ep": 2, "tp": 2}))
    assert engine.dtype == "bf16+w4a8"
    assert (engine.layout.tp, engine.layout.ep) == (2, 2)


def test_predicted_passes_are_read_back_and_need_no_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path))
    file = tmp_path / "fpm_forward_perf.parquet"
    rows = write_forward_times(DESIGN, file)
    about = json.loads(file.with_suffix(".metadata.json").read_text())
    assert about["row_count"] == rows == pq.read_table(file).num_rows
    assert about["measurement_policy"] == "sweeper_prediction_v1"  # never taken for measured
    _, passes = passes_of(file)
    assert sum(one.seconds.size for one in passes) == rows
    gains, _ = calibrate_passes("same", file)
    assert all(gain.before == pytest.approx(0.0, abs=1e-9) for gain in gains)


def test_slower_passes_slow_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path))
    file = tmp_path / "fpm_forward_perf.parquet"
    write_forward_times(DESIGN, file)
    slower = [{**r, "latency_ms": 1.25 * r["latency_ms"]} for r in pq.read_table(file).to_pylist()]
    file.with_suffix(".metadata.json").unlink()
    gains, kept = calibrate_passes("slower", written(tmp_path, *slower))
    assert [gain.after for gain in gains] == pytest.approx([0.0, 0.0], abs=0.01)
    mine, theirs = load_runtime("slower"), load_runtime("vllm")
    assert mine.sequence_s == pytest.approx(1.25 * theirs.sequence_s, rel=0.01)
    assert kept == tmp_path / "runtimes" / "slower.toml"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_path": "me/unknown"}, "the model 'me/unknown' is not in the catalog"),
        ({"dp": 4}, "passes with dp above 1 are not modelled"),
        ({"gemm_quant_mode": "int3"}, "the precision 'int3' is not modelled"),
        ({"workload_kind": "mixed"}, "'mixed' is neither prefill nor decode"),
        ({"latency_ms": 0.0}, "latency_ms must be above zero"),
        ({"latency_ms": float("inf")}, "latency_ms must be above zero"),
        ({"latency_ms": "fast"}, "a size or time is not a number"),
        ({"tp": None}, "tp is None, not a whole number above zero"),
        ({"model_path": "deepseek_v3", "tp": 8}, "moe_tp 1 x moe_ep 1 is not tp 8 x dp 1"),
        ({"workload_kind": "prefill"}, "a prefill pass has no tokens"),
    ],
)
def test_wrong_pass_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        passes_of(written(tmp_path, {**ROW, **change}))


def test_malformed_table_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fpm_forward_perf.parquet"
    file.write_text("text")
    with pytest.raises(UserError, match="fpm_forward_perf"):
        passes_of(file)
    written(tmp_path, {"latency_ms": 1.0, "workload_kind": "decode"})
    with pytest.raises(UserError, match="it lacks model_path, system"):
        passes_of(file)
    written(tmp_path, ROW)
    about = {"schema_name": "aic_fpm_forward_perf", "row_count": 2, "parquet_sha256": ""}
    file.with_suffix(".metadata.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="is not the table that"):
        passes_of(file)
    written(tmp_path, ROW, {**ROW, "tp": 2})
    file.with_suffix(".metadata.json").unlink()
    with pytest.raises(UserError, match="passes of 2 engines"):
        passes_of(file)


def test_ranks_of_attention_have_no_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one pool without attention_dp"):
        write_forward_times(replace(DESIGN, attention_dp=2), tmp_path / "fpm.parquet")
