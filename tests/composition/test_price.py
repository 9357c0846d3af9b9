"""Stages composed of layers equal directly computed stages."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.price import layers_of, stage_iteration
from simulators.composition.replica import Replica, load_runtime
from simulators.composition.uncertainty import shares
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import Step

NUMBERS = ("latency_s", "energy_j", "launch_s", "tokens_s", "collective_s", "send_recv_s")


def replica(model: str, gpu: str, *, pp: int, runtime: str) -> Replica:
    sheet = load_gpu(gpu)
    return Replica(
        load_model(model),
        sheet,
        cluster_for("auto", sheet),
        Parallelism(tp=4, pp=pp),
        runtime=load_runtime(runtime),
    )


@pytest.mark.parametrize("runtime", ["graphs", "eager"])
@pytest.mark.parametrize("model", ["llama2_70b", "mixtral_8x7b", "deepseek_v3"])
def test_stage_composed_of_layers_equals_directly_computed_stage(model: str, runtime: str) -> None:
    batches = np.array([1.0, 17.0, 256.0])[:, None]
    step = Step(
        decodes=batches,
        decode_kv_tokens=batches * np.array([128.0, 4096.0]),
        prefills=1.0,
        prefill_tokens=512.0,
        prefill_pairs=512.0 * 513.0 / 2.0,
        prefill_kv_tokens=512.0,
        logits_rows=batches + 1.0,
    )
    layers = layers_of(replica(model, "h100_sxm", pp=1, runtime=runtime), step)
    for pp in (1, 2, 3, 8):
        layout = replica(model, "h100_sxm", pp=pp, runtime=runtime)
        for stage in range(pp):
            whole, made = stage_iteration(layout, step, stage), layers.stage(pp, stage)
            for name in NUMBERS:
                np.testing.assert_allclose(
                    getattr(made, name), getattr(whole, name), rtol=1e-12, err_msg=name
                )
            np.testing.assert_allclose(
                shares(made.seconds_by_level), shares(whole.seconds_by_level), atol=1e-12
            )
