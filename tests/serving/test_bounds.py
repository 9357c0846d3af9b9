"""Bounds of a box hold for every design, and are exact for a single design."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from simulators.core.columns import numbers
from simulators.core.errors import UserError
from simulators.serving.simulator import SIMULATOR
from simulators.serving.steady.bounds import BOUNDED
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, number_of

SPACE = DesignSpace.of(
    "serving",
    model=["llama2_70b", "llama3_1_8b", "mixtral_8x7b"],
    gpu=["h100_sxm", "b200_sxm", "l4"],
    dtype=["fp16", "fp8"],
    fidelity="analytic",
    tp=[1, 2, 8],
    pp=[1, 2, 4],
    scheduler=["vllm", "sarathi"],
    replicas=[1, 2, 3],
    max_batch="1..256",
    chunk_size=[64, 100, 128, 200, 300, 512, 700, 1024, 2048],
    **{"scheduling.max_batch_tokens": [2048, 4096, 8192]},
    prompt_tokens=[64, 128, 700, 4096],
    output_tokens=[1, 2, 64, 300],
    qps=[None, 1.0, 8.0],
)
INSIDE = 8


def drawn(seed: int, boxes: int) -> tuple[Index, Index, Index]:
    """Return the corners of boxes, every third of one design, and designs inside each."""
    random, sizes = np.random.default_rng(seed), SPACE.sizes
    ranged = [any(n in SIMULATOR.ranged for n in f.columns) for f in SPACE.factors]
    low = (random.random((boxes, sizes.size)) * sizes).astype(np.int64)
    share = random.random((boxes, sizes.size)) ** 4 * np.array(ranged)
    share[::3] = 0.0
    high = low + (share * (sizes - low)).astype(np.int64)
    inside = np.repeat(low, INSIDE, axis=0)
    wide = np.repeat(high, INSIDE, axis=0) - inside + 1
    inside += (random.random(inside.shape) * wide).astype(np.int64)
    inside[::INSIDE], inside[1::INSIDE] = low, high
    return tuple(number_of(codes.T, sizes) for codes in (low, high, inside))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("seed", "boxes"), [(4, 25), *(pytest.param(s, 400, marks=pytest.mark.slow) for s in (1, 2, 3))]
)
def test_no_design_of_a_box_beats_the_bounds(seed: int, boxes: int) -> None:
    low, high, inside = drawn(seed, boxes)
    least = SIMULATOR.bounds(SPACE.batch(low), SPACE.batch(high))
    answers = SIMULATOR.evaluate(SPACE.batch(inside))
    for name, bound in least.items():
        found = numbers(answers, name).astype(np.float64)
        assert not (found < np.repeat(bound, INSIDE)).any(), name


def test_design_is_equal_alone_and_in_a_batch() -> None:
    """Prompts in chunks without decodes beside them are not priced as others of the same number."""
    space = SPACE.at({"model": "llama3_1_8b", "gpu": "h100_sxm", "output_tokens": 1, "tp": 1})
    some = np.random.default_rng(0).integers(len(space), size=24)
    together = SIMULATOR.evaluate(space.batch(some))
    for place, number in enumerate(some.tolist()):
        alone = SIMULATOR.evaluate(space.batch(np.array([number])))
        assert alone.equals(together.slice(place, 1))


def test_ignored_limits_do_not_change_analytic_results() -> None:
    space = SPACE.at({"gpu": "h100_sxm", "model": "llama3_1_8b", "qps": None, "pp": 1})
    batch = space.batch(np.random.default_rng(0).integers(len(space), size=60))
    answers, ignored = SIMULATOR.evaluate(batch), SIMULATOR.ignored(batch)
    for name, where in ignored.items():
        place = batch.schema.get_field_index(name)
        other = pa.array(np.where(where, 1234, numbers(batch, name))).dictionary_encode()
        again = SIMULATOR.evaluate(batch.set_column(place, name, other))
        assert where.any()
        for metric in BOUNDED:
            assert again.column(metric).equals(answers.column(metric))


@pytest.mark.parametrize("metric", BOUNDED)
@pytest.mark.parametrize("stages", [1, 4])
def test_bounds_of_a_single_saturated_design_are_its_metrics(stages: int, metric: str) -> None:
    """Of pipelines nearly: the pass of a prompt is bounded from above by its slowest stage."""
    space = SPACE.at({"qps": None, "pp": stages})
    some = np.random.default_rng(0).integers(len(space), size=150)
    least = SIMULATOR.bounds(space.batch(some), space.batch(some))[metric]
    found = numbers(SIMULATOR.evaluate(space.batch(some)), metric).astype(np.float64)
    ratios = (found / least)[~np.isnan(found)]
    assert len(ratios) > 20
    assert np.median(ratios) < 1.001
    assert stages > 1 or ratios.max() < 1.0 + 1e-6


def test_boxes_with_event_driven_designs_are_refused() -> None:
    space = DesignSpace.of(
        "serving", model="llama3_1_8b", gpu="l4", fidelity=["event", "analytic"], qps=1.0
    )
    both, runs = space.batch(np.arange(2)), space.batch(np.zeros(1, np.int64))
    for box in (both, runs):
        with pytest.raises(UserError, match="fidelity=analytic"):
            SIMULATOR.bounds(box, box)
