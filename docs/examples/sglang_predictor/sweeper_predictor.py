"""Forward times of sweeper as a predictor of SGLang's simulator.

SGLang's simulator (`tools/sglang-simulator`) runs SGLang's own scheduler and caches, and asks an
`InferTimePredictor` for the seconds of each forward pass. `install` makes it ask sweeper, whose
calibrations apply: a runtime of `sweeper calibrate` is given by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sglang_simulator.simulation.manager import ConfigManager
from sglang_simulator.time_predictor.base import InferTimePredictor

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.price import pass_s
from simulators.composition.replica import Replica, load_runtime, runtime_across
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import Step


@dataclass(frozen=True)
class Deployment:
    """What the simulator runs, in the names of sweeper's catalog."""

    model: str
    gpu: str
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    runtime: str = "sglang"


class SweeperTimePredictor(InferTimePredictor):
    """Seconds of forward passes by sweeper's kernels, messages and runtime."""

    def __init__(self, model: Any, hw: Any, config: Any, deployment: Deployment) -> None:
        super().__init__(model, hw, config)
        if config.dp_size > 1:
            raise ValueError("data-parallel attention is not predicted here; dp_size must be 1")
        layout = Parallelism(tp=config.tp_size, pp=config.pp_size, ep=config.ep_size)
        gpu = load_gpu(deployment.gpu)
        self.replica = Replica(
            model=load_model(deployment.model),
            gpu=gpu,
            cluster=cluster_for("auto", gpu),
            layout=layout,
            dtype=deployment.dtype,
            kv_dtype=deployment.kv_dtype,
            runtime=runtime_across(load_runtime(deployment.runtime), layout.width),
        )
        self._known: dict[Step, float] = {}

    def predict_infer_time(self, batch: Any) -> float:
        """Return the seconds of a pass; requests with one new token are decodes."""
        if batch.is_empty():
            return 0.0
        step = step_of([(one.extend_length, one.past_kv_length) for one in batch.reqs])
        if step not in self._known:
            self._known[step] = float(np.asarray(pass_s(self.replica, step)))
        return self._known[step]


def step_of(requests: list[tuple[int, int]]) -> Step:
    """Return the work of a pass from the new and the earlier tokens of each request."""
    decodes = [past + 1.0 for new, past in requests if new == 1]
    chunks = [(float(new), float(past)) for new, past in requests if new > 1]
    return Step(
        prefills=float(len(chunks)),
        prefill_tokens=sum(new for new, _ in chunks),
        prefill_pairs=sum(new * past + new * (new + 1.0) / 2.0 for new, past in chunks),
        prefill_kv_tokens=sum(new + past for new, past in chunks),
        decodes=float(len(decodes)),
        decode_kv_tokens=sum(decodes),
        logits_rows=float(len(requests)),
    )


def install(deployment: Deployment) -> None:
    """Let SGLang's simulator predict by sweeper, whatever its configuration names."""

    def predictor(_: type, model: Any, hw: Any, config: Any) -> SweeperTimePredictor:
        return SweeperTimePredictor(model, hw, config, deployment)

    ConfigManager.get_inference_time_predictor = classmethod(predictor)
