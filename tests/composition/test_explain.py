"""Explanations sum to the latency and name the bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.composition.simulator import SIMULATOR
from simulators.core.contract import LEVELS, Contribution, Explains
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from tests.composition.test_simulator import evaluate

designs = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama2_7b", "mixtral_8x7b", "gpt2", "deepseek_v3"]),
        "gpu": st.sampled_from(["h100_sxm", "b200_sxm", "a100_sxm"]),
        "tp": st.sampled_from([1, 4]),
        "pp": st.sampled_from([1, 2, 3]),
        "phase": st.sampled_from(["prefill", "decode"]),
        "batch": st.integers(1, 64),
        "context": st.integers(1, 4096),
        "runtime": st.sampled_from(["graphs", "eager", "eager_tp"]),
        "overlap": st.sampled_from([0.0, 0.5]),
        "without": st.sampled_from(["nothing", "launch", "fusion+clocks", "synchronisation"]),
    }
)


def total(rows: Sequence[Contribution], field: str) -> float:
    return sum(float(getattr(row, field)) for row in rows)


def test_composition_explains() -> None:
    assert isinstance(SIMULATOR, Explains)


@settings(deadline=None, max_examples=60)
@given(point=designs)
def test_contributions_sum_to_the_latency(point: dict[str, Any]) -> None:
    [answer] = evaluate(point).iter_rows(named=True)
    if answer["status"] != "ok":
        return
    rows = SIMULATOR.explain(point)
    assert total(rows, "time_s") == pytest.approx(answer["latency_s"], rel=1e-12)
    assert total(rows, "energy_j") == pytest.approx(answer["energy_j"], rel=1e-9)
    assert all(row.level in LEVELS for row in rows)
    assert min(row.time_s for row in rows) >= 0.0
    needed = answer["weight_bytes"] + answer["kv_bytes"] + answer["activation_bytes"]
    stages = {row.phase for row in rows if row.memory_bytes}
    fullest = max(total([r for r in rows if r.phase == one], "memory_bytes") for one in stages)
    # A pipeline's largest weights and largest cache may lie on different stages.
    assert fullest <= needed * (1 + 1e-12)
    if point["pp"] == 1:
        assert fullest == pytest.approx(needed, rel=1e-12)


def test_decode_is_memory_bound_and_prefill_is_compute_bound() -> None:
    base = {"model": "llama2_70b", "gpu": "h100_sxm", "tp": 8}
    for phase, context, bound in (("decode", 1024, "memory"), ("prefill", 4096, "compute")):
        rows = SIMULATOR.explain(base | {"phase": phase, "context": context, "batch": 4})
        by_time = sorted(rows, key=lambda row: row.time_s)
        assert by_time[-1].name == "ffn_up"
        assert by_time[-1].bound == bound


def test_unmeasured_and_what_if_gpus_have_different_evidence_levels() -> None:
    base = {"model": "llama2_7b", "batch": 8}
    known = SIMULATOR.explain(base | {"gpu": "h100_sxm", "dtype": "bf16"})
    unknown = SIMULATOR.explain(base | {"gpu": "l40s", "dtype": "bf16"})
    levels = {row.name: row.level for row in known}
    assert levels["ffn_up"] == "fitted"
    assert {row.name: row.level for row in unknown}["ffn_up"] == "datasheet"
    what_if = SIMULATOR.explain(base | {"gpu": "h100_sxm", "dtype": "bf16", "sm_scale": 2.0})
    assert {row.name: row.level for row in what_if}["ffn_up"] == "extrapolated"


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_state_space_layers_use_measured_times(phase: str) -> None:
    point = {"model": "qwen3_5_397b", "gpu": "h200_sxm", "dtype": "bf16", "tp": 8, "phase": phase}
    rows = {row.name: row for row in SIMULATOR.explain(point | {"framework": "vllm"})}
    for name in (f"{phase}_state_convolution", f"{phase}_state"):
        assert rows[name].level == "fitted"
        assert rows[name].time_s > 45 * 1e-6  # a kernel that is launched in each of 45 layers


def test_attention_output_is_quantized_separately_unless_the_library_fuses_it() -> None:
    point = {"model": "llama3_1_8b", "gpu": "h100_sxm", "dtype": "fp8", "batch": 64}
    for library, own in (("vllm", True), ("sglang", True), ("trtllm", False)):
        rows = {row.name: row for row in SIMULATOR.explain(point | {"framework": library})}
        assert ("attention_quantise" in rows) == own
        if own:
            assert rows["attention_quantise"].level == "fitted"


def test_invalid_explain_requests_name_the_field() -> None:
    with pytest.raises(UserError, match="gpu missing"):
        SIMULATOR.explain({"model": "gpt2"})
    with pytest.raises(UnknownNameError, match="did you mean 'tp'"):
        SIMULATOR.explain({"model": "gpt2", "gpu": "t4", "tq": 2})
    with pytest.raises(Infeasible, match=r"weights_exceed_hbm: needs 138.0 GB, has 85.9 GB"):
        SIMULATOR.explain({"model": "llama2_70b", "gpu": "h100_sxm"})


def test_explanation_lists_the_time_of_each_effect() -> None:
    point = {"model": "llama2_7b", "gpu": "h100_sxm", "dtype": "fp8", "batch": 64}
    rows = SIMULATOR.explain(point)
    worth = {row.name: row.note for row in rows if row.phase == "effects"}
    assert set(worth) == {"launch", "fusion", "synchronisation", "clocks"}
    [whole] = evaluate(point).iter_rows(named=True)
    [left_out] = evaluate(point | {"without": "launch"}).iter_rows(named=True)
    saved_ms = 1e3 * (whole["latency_s"] - left_out["latency_s"])
    assert worth["launch"] == f"without it the pass would be {saved_ms:.3f} ms shorter"
