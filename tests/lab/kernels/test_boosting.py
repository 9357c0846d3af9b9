"""Corrections bend towards measurements and never against the laws."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.fits.kernels.kernel_calibration import boosted
from simulators.kernels.corrections import Correction, corrected_seconds, features_of

COUNT = 400


def fitted(seed: int) -> Correction:
    """Fit trees to noise that grows with every size, on shapes of many scales."""
    draw = np.random.default_rng(np.random.SeedSequence(seed))
    sizes = tuple(np.exp2(draw.uniform(0, 12, COUNT)) for _ in range(4))
    seconds = 1e-9 * np.prod(np.stack(sizes), axis=0) ** 0.5
    wanted = 0.02 * np.log(sizes[2]) + draw.normal(0, 0.05, COUNT)
    features, thresholds, values = boosted(
        features_of(sizes, seconds).T, wanted, np.ones(COUNT), trees=16, depth=3
    )
    log_t = np.log(seconds)
    return Correction(
        alpha=0.9,
        offset=0.1 * float(np.median(log_t)),
        log_t_lo=float(log_t.min()),
        log_t_hi=float(log_t.max()),
        depth=3,
        features=features,
        thresholds=thresholds,
        values=values,
    )


sizes = st.floats(0.5, 1e5)


@settings(deadline=None)  # the first example compiles
@given(
    shape=st.tuples(sizes, sizes, sizes, sizes),
    factor=st.tuples(*[st.floats(1.0, 50.0)] * 5),
    seed=st.integers(0, 5),
)
def test_a_corrected_time_never_falls_when_sizes_and_time_grow(
    shape: tuple[float, ...], factor: tuple[float, ...], seed: int
) -> None:
    correction = fitted(seed)
    seconds = 1e-9 * float(np.prod(shape)) ** 0.5
    small = tuple(np.array([size]) for size in shape)
    large = tuple(size * grown for size, grown in zip(small, factor, strict=False))
    before = corrected_seconds(correction, small, np.array([seconds]))
    after = corrected_seconds(correction, large, np.array([seconds * factor[4]]))
    assert after[0] >= before[0] * (1.0 - 1e-12)


def test_trees_find_a_step_in_one_size() -> None:
    draw = np.random.default_rng(np.random.SeedSequence(1))
    shape = tuple(draw.uniform(1, 1000, 2000) for _ in range(4))
    seconds = np.full(2000, 1e-3)
    step = np.where(shape[2] > 500.0, 0.4, 0.0)
    features, thresholds, values = boosted(
        features_of(shape, seconds).T, step, np.ones(2000), trees=32, depth=2
    )
    correction = Correction(1.0, 0.0, -20.0, 0.0, 2, features, thresholds, values)
    ratio = corrected_seconds(correction, shape, seconds) / seconds
    clear = np.abs(shape[2] - 500.0) > 20.0  # thresholds are quantiles, about 16 apart
    assert np.allclose(np.log(ratio)[clear], step[clear], atol=0.05)


def test_compiled_and_plain_python_agree_bit_for_bit() -> None:
    from simulators.kernels import corrections as correction

    bent = fitted(3)
    draw = np.random.default_rng(np.random.SeedSequence(2))
    sizes = tuple(np.ceil(draw.uniform(1, 3000, 300)) for _ in range(4))
    rows = features_of(sizes, 1e-6 * sizes[0])
    bends = np.array([bent.alpha, bent.offset, bent.log_t_lo, bent.log_t_hi])
    trees = (bent.depth, bent.features, bent.thresholds, bent.values)
    compiled, plain = np.empty(300), np.empty(300)
    correction._walk(rows, bends, *trees, compiled)
    correction._walk.py_func(rows, bends, *trees, plain)
    assert np.array_equal(compiled, plain)
