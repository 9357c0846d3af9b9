"""Random serving points for laws that hold for every scheduler and load."""

from __future__ import annotations

from typing import Any

from hypothesis.strategies import SearchStrategy, fixed_dictionaries, integers, sampled_from

from simulators.core.fields import updated
from simulators.serving.point import ServingPoint
from tests.serving.cases import SCHEDULERS

OPTIONS: dict[str, SearchStrategy[Any]] = {
    "scheduler": sampled_from(SCHEDULERS),
    "runtime": sampled_from(("auto", "vllm", "trtllm", "sglang")),
    "prompt_tokens": integers(1, 3000),
    "output_tokens": sampled_from((1, 2, 3, 8, 32, 128, 500)),
    "lengths.spread": sampled_from((0.0, 0.5)),
    "max_batch": sampled_from((1, 2, 8, 64)),
    "chunk_size": sampled_from((128, 512, 4096)),
    "memory_fraction": sampled_from((0.22, 0.25, 0.9)),
    "client.frontend": sampled_from(("auto", "none")),
    "requests": integers(1, 120),
    "seed": integers(0, 1000),
}
CLOSED: dict[str, SearchStrategy[Any]] = {
    "arrivals.process": sampled_from(("closed",)),
    "arrivals.clients": sampled_from((1, 2, 7, 40)),
    "client.think_s": sampled_from((0.0, 0.0, 0.3)),
}
OPEN: dict[str, SearchStrategy[Any]] = {
    "arrivals.process": sampled_from(("poisson", "even", "mmpp")),
    "qps": sampled_from((0.5, 5.0, 100.0)),
}


def points(load: dict[str, SearchStrategy[Any]]) -> SearchStrategy[ServingPoint]:
    """Return random points under a load, measured over the whole run."""

    def point(options: dict[str, Any]) -> ServingPoint:
        block = 1 if options["scheduler"] == "lightllm" else 16
        fixed = {"cache.block_size": block, "measurement.window": "whole", "max_context": 4096}
        return updated(ServingPoint("llama3_1_8b", "h100_sxm"), {**options, **fixed})

    return fixed_dictionaries({**OPTIONS, **load}).map(point)
