"""Closed-form matrix products against the mapper."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.catalog.accelerator import load_accelerator
from simulators.core.errors import Infeasible, UserError
from simulators.dataflow.closed_form import products, tabulated
from simulators.dataflow.evaluation import problem_of
from simulators.dataflow.price import estimate, price
from simulators.dataflow.search.bounds import compulsory
from simulators.dataflow.search.map_space import ANY
from simulators.dataflow.search.mapper import find
from simulators.workload.loop_nest import matmul
from simulators.workload.operators import Gemm, Norm

SHAPES = [(1, 8192, 7168), (64, 1024, 8192), (512, 128, 4096), (2048, 4096, 1792)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cycles_within", "energy_within"),
    [("tpu_like", 1.05, 1.1), ("gpu_sm_like", 1.4, 1.6), ("simba_like", 1.1, 1.7)],
)
def test_closed_form_is_close_to_the_mapper(
    name: str, cycles_within: float, energy_within: float
) -> None:
    accelerator = load_accelerator(name)
    n, c, m = np.array(SHAPES, np.float64).T
    closed_cycles, closed_pj = products(accelerator, np.ones(n.size), n, c, m)
    for i, (rows, reduced, columns) in enumerate(SHAPES):
        layer = matmul("g", n=rows, c=reduced, m=columns)
        found = find(layer, accelerator, evaluations=10_000, remainders=True)
        cycles = closed_cycles[i] / found.evaluation.cycles
        energy = closed_pj[i] / found.evaluation.energy_pj
        assert 1 / cycles_within <= cycles <= cycles_within
        assert 1 / energy_within <= energy <= energy_within


@pytest.mark.parametrize("name", ["tpu_like", "gpu_sm_like", "simba_like", "two_level"])
def test_closed_form_respects_the_lower_bound(name: str) -> None:
    accelerator, rng = load_accelerator(name), np.random.default_rng(0)
    n, c, m = 2.0 ** rng.integers(0, 12, (3, 20))
    closed_cycles, closed_pj = products(accelerator, np.ones(n.size), n, c, m)
    for i in range(n.size):
        layer = matmul("g", n=int(n[i]), c=int(c[i]), m=int(m[i]))
        energy_pj, cycles = compulsory(layer, accelerator, problem_of(layer, accelerator))
        assert closed_cycles[i] >= 0.999 * cycles
        assert closed_pj[i] >= 0.999 * energy_pj


def test_product_cost_is_independent_of_the_batch() -> None:
    accelerator = load_accelerator("tpu_like")
    n, c, m = np.array(SHAPES, np.float64).T
    all_cycles, all_pj = products(accelerator, np.full(n.size, 3.0), n, c, m)
    for i in range(n.size):
        cycles, energy_pj = products(
            accelerator, np.ones(1), n[i : i + 1], c[i : i + 1], m[i : i + 1]
        )
        assert all_cycles[i] == 3.0 * cycles[0]
        assert all_pj[i] == 3.0 * energy_pj[0]


def test_fixed_dataflow_is_never_better_than_free_dataflow() -> None:
    free, fixed = (
        products(
            load_accelerator("tpu_like"), *np.ones((1, 1)), *np.full((3, 1), 512.0), dataflow=d
        )
        for d in (ANY, "output_stationary")
    )
    assert free[0] * free[1] <= fixed[0] * fixed[1]


def test_table_is_exact_at_powers_of_two_and_monotonic_between() -> None:
    version = ("tpu_like", 0)
    n = np.array([64.0, 96.0, 128.0])
    cycles, energy_pj = tabulated(version, 2.0, n, 1024.0, 4096.0)
    exact_cycles, exact_pj = products(
        load_accelerator("tpu_like"), np.full(3, 2.0), n, np.full(3, 1024.0), np.full(3, 4096.0)
    )
    assert cycles[[0, 2]] == pytest.approx(exact_cycles[[0, 2]])
    assert energy_pj[[0, 2]] == pytest.approx(exact_pj[[0, 2]])
    assert cycles[0] <= cycles[1] <= cycles[2]


def test_matrix_operators_are_interpolated_and_streaming_operators_exact() -> None:
    seconds, joules = estimate(
        Gemm(name="up", m=np.array([1.0, 64.0]), n=4096.0, k=1024.0), "tpu_like"
    )
    assert seconds[0] <= seconds[1]
    assert joules[0] < joules[1]
    norm = Norm(name="norm", rows=10.0, cols=100.0)
    [exact] = price([norm], "two_level")
    assert estimate(norm, "two_level") == (exact.latency_s, exact.energy_j)


def test_accelerator_name_accepts_size_overrides() -> None:
    wide = load_accelerator("tpu_like?pe_cols=256&clock_hz=1e9&memory_bytes_per_s=1e12")
    assert wide.mac.mesh == (256, 128)
    assert wide.levels[0].shared_words_per_cycle == 1000.0
    with pytest.raises(UserError, match="cannot change 'pe_column'; it can pe_rows"):
        load_accelerator("tpu_like?pe_column=256")
    with pytest.raises(UserError, match="pe_cols is 'many', no number"):
        load_accelerator("tpu_like?pe_cols=many")
    with pytest.raises(UserError, match="mapping is 'best', not searched or closed_form"):
        load_accelerator("tpu_like?mapping=best")


def test_buffer_too_small_for_the_array_is_infeasible() -> None:
    tiny = load_accelerator("tpu_like?buffer_scale=1e-6")
    with pytest.raises(Infeasible, match="less than its multipliers need"):
        products(tiny, *np.full((4, 1), 256.0))
