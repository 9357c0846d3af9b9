"""Designs that differ in a limit that none of them reaches are simulated once, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest

from simulators.core.fields import updated
from simulators.serving.point import ServingPoint
from simulators.serving.run import PreparedRun, RunCache, metrics_of, run_of

LIMITS = (16, 32, 64, 128)
LOAD = ServingPoint(
    model="llama3_1_8b", gpu="h100_sxm", workload="chat", requests=300, qps=4.0, seed=3
)


@pytest.mark.parametrize("order", [LIMITS, LIMITS[::-1]])
@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ({"scheduler": "vllm", "gpu": "a100_sxm_80gb", "qps": 1.0}, 1),
        ({"scheduler": "sarathi", "chunk_size": 512, "replicas": 2}, 1),
        ({"scheduler": "vllm_v1", "pp": 2}, 3),
        ({"scheduler": "vllm_v1", "qps": 9.0}, 3),  # 16 is reached, and 32 is
        ({"scheduler": "sarathi", "memory_fraction": 0.25}, 4),  # the KV cache may run short
        ({"scheduler": "sglang", "runtime": "sglang"}, 4),  # admits by the memory expected
        ({"scheduler": "vllm_v1", "sessions.turns": 3}, 4),
    ],
)
def test_one_run_for_equal_runs(
    order: tuple[int, ...],
    options: dict[str, Any],
    runs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated = 0
    run = PreparedRun.run

    def counted(prepared: PreparedRun) -> Any:
        nonlocal simulated
        simulated += 1
        return run(prepared)

    cache = RunCache()
    points = [updated(LOAD, {**options, "max_batch": limit}) for limit in order]
    with monkeypatch.context() as patch:
        patch.setattr(PreparedRun, "run", counted)
        found = [metrics_of(point, cache) for point in points]
    assert found == [run_of(point).metrics() for point in points]
    assert simulated == runs


def test_equal_runs_may_lie_a_hundred_designs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep varies loads and schedulers before it comes to the next limit."""
    loads = [updated(LOAD, {"requests": 20, "qps": 1.0 + n / 100}) for n in range(100)]
    cache, simulated = RunCache(), 0
    run = PreparedRun.run

    def counted(prepared: PreparedRun) -> Any:
        nonlocal simulated
        simulated += 1
        return run(prepared)

    monkeypatch.setattr(PreparedRun, "run", counted)
    for limit in LIMITS[1:]:
        for load in loads:
            metrics_of(updated(load, {"max_batch": limit}), cache)
    assert simulated == len(loads)
