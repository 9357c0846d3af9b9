"""Constants of engines on AMD's GPUs: they change AMD's times alone, and only those they name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.tables.deployments import database
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.price import iteration
from simulators.composition.replica import Replica, Runtime, load_runtime
from simulators.core.calibration import reference_folder
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import Step, decode_step

CDNA = load_gpu("mi300x").architecture
DECODE = decode_step(16.0, 4096.0)


def latency_s(
    runtime: Runtime, model: str, gpu: str, tp: int, step: Step = DECODE, dtype: str = "bf16"
) -> float:
    device = load_gpu(gpu)
    layout = Parallelism(tp=tp)
    one = Replica(
        load_model(model), device, cluster_for("auto", device), layout, dtype, runtime=runtime
    )
    return float(np.asarray(iteration(one, step).latency_s))


def test_each_tensor_parallel_sum_on_amd_starts_later() -> None:
    runtime = load_runtime("sglang")
    sooner = replace(runtime, message_s={CDNA: 0.0})
    later = replace(runtime, message_s={CDNA: 1e-4})
    alone, together = (
        latency_s(later, "llama2_7b", "mi300x", tp) - latency_s(sooner, "llama2_7b", "mi300x", tp)
        for tp in (1, 8)
    )
    layers = load_model("llama2_7b").layers
    assert alone == pytest.approx(0.0, abs=1e-12)
    assert together == pytest.approx((2 * layers + 1) * 1e-4, rel=0.02)  # and the logits
    assert latency_s(later, "llama2_7b", "h100_sxm", 8) == latency_s(
        sooner, "llama2_7b", "h100_sxm", 8
    )


def test_older_release_has_its_own_start_and_other_engines_that_of_the_last_release() -> None:
    today, older, other = (
        load_runtime(n).message_s[CDNA] for n in ("sglang", "sglang_0_5_8", "vllm")
    )
    assert older == load_runtime("sglang_0_5_9").message_s[CDNA] > today == other > 0.0
    assert not load_runtime("graphs").message_s


def test_gpus_of_the_vendor_outside_the_line_have_no_such_constants() -> None:
    assert load_gpu("strix_halo").architecture not in load_runtime("vllm").message_s


def test_pace_of_latent_decode_leaves_other_attention_alone() -> None:
    runtime = load_runtime("sglang")
    without = replace(runtime, transferred={})
    for model, changes in (("deepseek_v3", True), ("llama2_70b", False)):
        pair = (latency_s(one, model, "mi300x", 8) for one in (runtime, without))
        assert (next(pair) < next(pair)) == changes


def test_database_has_deployments_of_amd() -> None:
    reference = reference_folder()
    if reference is None:
        pytest.skip("measured tables are not part of the repository")
    rows = database(reference, "amd")
    assert {row.gpu for row in rows} == {"mi300x"}
    assert {row.runtime for row in rows} == {"sglang", "sglang_0_5_9"}
    assert any(row.is_median for row in rows)
    assert any(not row.is_median for row in rows)
