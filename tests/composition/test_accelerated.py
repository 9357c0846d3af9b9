"""Composition on a custom accelerator: compute times come from the dataflow simulator."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from simulators.composition.operator_prices import compute_rows
from simulators.composition.simulator import SIMULATOR
from simulators.core.errors import UnknownNameError
from simulators.dataflow.price import price
from simulators.workload.operators import Gemm
from tests.composition.test_iteration import replica
from tests.composition.test_simulator import evaluate

POINT = {"model": "gpt2", "gpu": "t4", "accelerator": "tpu_like", "batch": 4, "context": 64}


def test_column_of_products_is_mapped_one_size_at_a_time() -> None:
    product = Gemm(name="x", m=np.array([4.0, 64.0, 4.0]), n=96.0, k=64.0, repeat=3)
    design = dataclasses.replace(replica("gpt2", "t4"), accelerator="tpu_like")
    [row] = compute_rows((product,), design, "tokens")
    seconds, joules = np.asarray(row.seconds) / 3, np.asarray(row.joules) / 3
    [alone] = price((Gemm(name="x", m=64.0, n=96.0, k=64.0),), "tpu_like")
    assert seconds[1] == pytest.approx(alone.latency_s)
    assert joules[1] == pytest.approx(alone.energy_j)
    assert seconds[0] == seconds[2] < seconds[1]


def test_accelerator_replaces_only_compute_times() -> None:
    ours, gpus = evaluate(POINT, POINT | {"accelerator": "nothing"}).iter_rows(named=True)
    assert ours["status"] == gpus["status"] == "ok"
    assert ours["linear_s"] != gpus["linear_s"]
    for same in ("weight_bytes", "kv_bytes", "launch_s"):
        assert ours[same] == gpus[same]
    assert ours["datasheet_share"] > gpus["datasheet_share"]


def test_explanation_on_an_accelerator_sums_to_the_latency() -> None:
    [row] = evaluate(POINT).iter_rows(named=True)
    found = SIMULATOR.explain(POINT)
    assert sum(one.time_s for one in found) == pytest.approx(row["latency_s"], rel=1e-12)
    [up] = [one for one in found if one.name == "ffn_up"]
    assert (up.level, up.bound) == ("datasheet", "mapping")


def test_accelerator_file_is_a_dependency_and_unknown_names_are_refused() -> None:
    assert any(path.stem == "tpu_like" for path in SIMULATOR.reads("accelerator", "tpu_like"))
    assert SIMULATOR.reads("accelerator", "nothing") == ()
    with pytest.raises(UnknownNameError, match="did you mean 'tpu_like'"):
        evaluate(POINT | {"accelerator": "tpu_lik"})
