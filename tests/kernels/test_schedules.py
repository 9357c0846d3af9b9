"""User-chosen tiles: SM limits, ranking, and the library choice as the best."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from simulators.catalog.gpu import load_gpu
from simulators.core.contract import load_simulator
from simulators.kernels.simulator import Schedule
from sweeper.engines.task import evaluate
from sweeper.space.design_space import space_of

SIDES = [16, 32, 64, 96, 128, 192, 256]
CUT = {"op": "gemm", "gpu": "a100_sxm", "dtype": "bf16", "m": 512, "n": 8192}


def rows(**axes: object) -> list[dict[str, object]]:
    space = space_of({"simulator": "kernels", "axes": {**CUT, **axes}})
    return evaluate(load_simulator("kernels"), space.batch(np.arange(space.size))).to_pylist()


def seconds(**axes: object) -> np.ndarray:
    return np.array([row["latency_s"] for row in rows(**axes)], np.float64)


@pytest.mark.parametrize(
    ("schedule", "gpu", "why"),
    [
        (Schedule(128, 0), "a100_sxm", "tile_incomplete"),
        (Schedule(split_k=2), "a100_sxm", "tile_incomplete"),
        (Schedule(256, 256), "a100_sxm", "tile_exceeds_registers: sums take 262,144 bytes of 262"),
        (Schedule(4096, 8), "t4", "tile_exceeds_sram: strips take 131,328 of 98,304"),
        (Schedule(64, 64), "xeon_8480", "tile_unknown"),
    ],
)
def test_tile_exceeding_an_sm_is_refused(schedule: Schedule, gpu: str, why: str) -> None:
    assert schedule.refusal(load_gpu(gpu), "fp16").startswith(why)
    assert not Schedule(128, 128).refusal(load_gpu("a100_sxm"), "fp16")


def test_no_tile_beats_the_library_choice() -> None:
    [library] = seconds(k=8192)
    ours = seconds(k=8192, tile_m=[64, 128], tile_n=[128, 256], split_k=[1, 2, 4, 8])
    assert library <= ours.min() <= 1.25 * library


def test_best_of_a_hundred_random_tiles_is_nearly_optimal() -> None:
    generator = np.random.default_rng(0)
    for k in (1024, 8192):
        every = seconds(k=k, tile_m=SIDES, tile_n=SIDES, split_k=[1, 2, 4, 8])
        every = every[~np.isnan(every)]
        some = [generator.choice(every, 100, replace=False).min() for _ in range(20)]
        assert np.median(some) <= 1.05 * every.min()
        assert np.median(every) > 1.5 * every.min()  # it matters which one is taken


def test_larger_gemm_is_never_faster_with_the_same_tile() -> None:
    for tile in itertools.product((32, 128), (64, 192)):
        by_k = seconds(k=[512, 1024, 4096], tile_m=tile[0], tile_n=tile[1])
        assert (np.diff(by_k) >= 0.0).all()


def test_operators_without_tiles_are_refused_and_explicit_tiles_are_not_fitted() -> None:
    [row] = rows(op="softmax", rows=64, cols=64, tile_m=64, tile_n=64)
    assert str(row["reason"]).startswith("op_has_no_tile")
    [row] = rows(k=1024, tile_m=64, tile_n=64)
    assert row["extrapolated_share"] == 1.0
