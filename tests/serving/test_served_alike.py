"""One run answers for designs that it serves alike, bit by bit, and for no others."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from simulators.serving import run
from simulators.serving.engine.service import serve
from simulators.serving.point import ServingPoint
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

BASE = ServingPoint(model="llama3_1_8b", gpu="h100_sxm", requests=120, qps=6.0)


@pytest.mark.parametrize("scheduler", ["vllm", "vllm_v1", "sarathi", "sglang"])
def test_a_shelf_changes_no_metric(scheduler: str) -> None:
    shelf = Shelf()
    for pp in (1, 2):
        for most in (64, 4, 8, 16, 32):
            point = replace(BASE, scheduler=scheduler, max_batch=most, pp=pp)
            assert simulate(point, shelf) == simulate(point)


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        ({}, 1),  # 64 and 128 are more than ever run
        ({"qps": 400.0}, 2),  # all 120 at once
        ({"prefix_cache": True, "scheduler": "sarathi"}, 2),  # what is free is a cache
        ({"scheduler": "sglang"}, 2),  # it weighs what is free
        ({"memory_fraction": 0.22}, 2),  # so little that blocks run out
    ],
)
def test_those_that_reach_no_limit_run_once(changes: dict[str, object], runs: int) -> None:
    shelf, point = Shelf(), replace(BASE, **changes)  # type: ignore[arg-type]
    with mock.patch.object(run, "serve", wraps=serve) as served:
        for most in (128, 64):
            simulate(replace(point, max_batch=most), shelf)
    assert served.call_count == runs


def test_each_has_blocks_of_its_own() -> None:
    shelf = Shelf()
    one, two = (simulate(replace(BASE, max_batch=most), shelf) for most in (64, 4096))
    assert one.kv_blocks > two.kv_blocks
    assert (two.kv_use_max or 0.0) > (one.kv_use_max or 1.0)
