"""Arrays of one's own sizes that serve a model."""

from __future__ import annotations

from typing import Any

import pytest

from simulators.codesign.simulator import SIMULATOR, CodesignPoint, array_of, served
from simulators.core.columns import batch_of
from simulators.core.errors import UserError
from simulators.core.fields import point_from, values_of
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import SIMULATOR as SERVING

POINT: dict[str, Any] = {
    "model": "llama3_1_8b",
    "gpu": "h100_sxm",
    "dtype": "int8",
    "kv_dtype": "int8",
    "qps": 0.1,
    "fidelity": "analytic",
    "requests": 200,
}


def answer(**choices: Any) -> dict[str, Any]:
    batch = batch_of(CodesignPoint, POINT | choices)
    [row] = SIMULATOR.evaluate(batch).to_pylist()
    return dict(row)


def test_metrics_equal_those_of_the_serving_simulator() -> None:
    design = POINT | {"pe_rows": 256, "node_nm": 16.0}
    [same] = SERVING.evaluate(batch_of(ServingPoint, served(design))).to_pylist()
    ours = answer(pe_rows=256, node_nm=16.0)
    del same["goodput_per_s"]  # of a steady state, which only this simulator states
    assert {name: ours[name] for name in same} == same
    assert ours["area_mm2"] > 0.0


def test_larger_array_is_faster_and_smaller_node_saves_area_and_energy() -> None:
    small, large = answer(pe_rows=64, pe_cols=64), answer(pe_rows=256, pe_cols=256)
    assert large["ttft_mean_s"] < small["ttft_mean_s"]
    assert large["area_mm2"] > small["area_mm2"]
    finer = answer(pe_rows=64, pe_cols=64, node_nm=16.0)
    assert finer["area_mm2"] < small["area_mm2"]
    assert finer["energy_j_per_token"] < small["energy_j_per_token"]
    assert finer["tpot_mean_s"] == small["tpot_mean_s"]


def test_event_and_analytic_fidelity_agree() -> None:
    steady, events = (
        answer(fidelity=f, scheduler="vllm", pe_rows=256, pe_cols=256)
        for f in ("analytic", "event")
    )
    assert events["tpot_mean_s"] == pytest.approx(steady["tpot_mean_s"], rel=0.1)
    assert events["energy_j_per_token"] == pytest.approx(steady["energy_j_per_token"], rel=0.1)
    assert events["goodput_per_s"] is not None
    assert events["datasheet_share"] > 0.5


def test_analytic_goodput_is_near_event_goodput() -> None:
    for qps in (0.05, 0.2):
        steady, events = (
            answer(fidelity=f, pe_rows=256, pe_cols=256, qps=qps) for f in ("analytic", "event")
        )
        share = [row["goodput_per_s"] / row["requests_per_s"] for row in (steady, events)]
        assert share[0] == pytest.approx(share[1], abs=0.1)
    late = answer(pe_rows=256, pe_cols=256, slo_tpot_s=1e-6)
    assert late["goodput_per_s"] == 0.0
    assert answer(qps=1e6)["goodput_per_s"] == 0.0  # more than is served


def test_accelerator_uses_the_memory_bandwidth_of_the_gpu() -> None:
    array = array_of(values_of(point_from(CodesignPoint, POINT)))
    assert "memory_bytes_per_s=3.35e+12" in array
    assert "dataflow" not in array  # any leaves what the sheet allows
    assert answer(bandwidth_scale=2.0)["tpot_mean_s"] < answer()["tpot_mean_s"]


def test_accelerator_file_is_a_dependency_and_explanations_name_the_array() -> None:
    assert any(path.stem == "tpu_like" for path in SIMULATOR.reads("accelerator", "tpu_like"))
    assert SIMULATOR.reads("pe_rows", 256) == ()
    rows = SIMULATOR.explain(POINT | {"fidelity": "event", "requests": 20, "pe_rows": 256})
    assert any(row.on.startswith("tpu_like") for row in rows)
    with pytest.raises(UserError, match="axes of their own, pe_rows"):
        answer(accelerator="tpu_like?pe_rows=256")


def test_mapping_search_is_refused_in_analytic_fidelity() -> None:
    verdict = answer(mapping="searched")
    assert verdict["status"] == "infeasible"
    assert verdict["reason"].startswith("mapping_searched_needs_fidelity_event")
    assert verdict["area_mm2"] is None
