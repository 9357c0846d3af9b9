"""Intervals of an iteration lie between independent and fully correlated kernel errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.catalog.gpu import load_gpu
from simulators.composition.price import part_rows, pipeline_iterations
from simulators.composition.replica import load_runtime
from simulators.composition.uncertainty import HalfWidth, added, interval_s, unexplained_share
from simulators.workload.llm.parallelism import stage_of
from simulators.workload.llm.step import decode_step
from tests.composition.test_iteration import replica, seconds
from tests.composition.test_simulator import evaluate

halves = st.floats(0.0, 1.0)


@given(first=halves, second=halves, third=halves)
def test_combined_half_width_lies_between_quadrature_and_sum(
    first: float, second: float, third: float
) -> None:
    half_widths = {
        name: HalfWidth(x, x) for name, x in zip("abc", (first, second, third), strict=True)
    }
    _, hi_s = interval_s(10.0, half_widths, 0.05)
    parts = np.array([first, second, third, 0.5])
    assert np.sqrt(np.sum(parts**2)) == pytest.approx(float(hi_s) - 10.0)
    assert float(hi_s) - 10.0 <= np.sum(parts) + 1e-12


@settings(deadline=None, max_examples=20)
@given(batch=st.integers(1, 256), tp=st.sampled_from([1, 4]), pp=st.sampled_from([1, 2]))
def test_latency_lies_inside_the_interval_and_below_fully_correlated_bounds(
    batch: int, tp: int, pp: int
) -> None:
    design, step = replica("llama2_70b", tp=tp, pp=pp), decode_step(float(batch), 999.0)
    stages = pipeline_iterations(design, step)
    latency_s = sum(seconds(stage) for stage in stages)
    share = unexplained_share(design.runtime, design.gpu)
    lo_s, hi_s = interval_s(latency_s, added([stage.half_widths for stage in stages]), share)
    parts = [stage_of(design.model, design.layout, i) for i in range(pp)]
    rows = [row for part in parts for row in part_rows(design, step, part)]
    widest = sum(float(np.asarray(row.hi_s - row.seconds)) for row in rows)
    assert 0.0 <= float(lo_s) < latency_s < float(hi_s)
    assert float(hi_s) - latency_s <= widest + share * latency_s + 1e-12


def test_unmeasured_gpus_have_wider_intervals() -> None:
    point = {"model": "llama2_7b", "batch": 8, "dtype": "bf16"}
    known, unknown = evaluate(point | {"gpu": "h100_sxm"}, point | {"gpu": "rtx_4090"}).iter_rows(
        named=True
    )
    widths = [row["latency_s_hi"] / row["latency_s_lo"] for row in (known, unknown)]
    assert widths[0] < widths[1]
    for row in (known, unknown):
        assert row["latency_s_lo"] < row["latency_s"] < row["latency_s_hi"]
        assert row["energy_j_lo"] < row["energy_j"] < row["energy_j_hi"]


def test_gpu_without_runtime_fits_has_wider_intervals() -> None:
    runtime = load_runtime("graphs")
    known, new = (unexplained_share(runtime, load_gpu(name)) for name in ("h100_sxm", "b200_sxm"))
    assert new > known > 0.0
