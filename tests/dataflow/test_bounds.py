"""Lower bounds of spatial mappings against an enumeration for small layers."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from simulators.catalog.accelerator import Accelerator, Level, load_accelerator
from simulators.dataflow import access as at
from simulators.dataflow.evaluation import CYCLES, ENERGY_PJ, evaluate, problem_of
from simulators.dataflow.mapping import layers_of
from simulators.dataflow.search.bounds import compulsory, spread_bounds
from simulators.dataflow.search.map_space import Constraints, space_of, spreads
from simulators.dataflow.search.mapper import find
from simulators.workload.loop_nest import Layer, conv, einsum, matmul
from tests.dataflow.test_search import small

Spread = tuple[int, ...]
ONE_D = "Outputs[m,p] += Inputs[{}*p+r] * Weights[m,r]"


def deep(depth: int) -> Accelerator:
    """Return DRAM, a buffer, and 2 x 2 multipliers with a register each that holds weights."""
    cost = {"read": 0.5, "write": 0.25, "update": 0.5, "leak": 0.125}
    register = Level(
        name="register",
        kind="register",
        mesh=(2, 2),
        width_bits=16,
        word_bits=16,
        depth=2,
        energy_pj=cost,
        may_keep=(("Weights",), ()),
    )
    base = small(depth, banks=0.5)
    return dataclasses.replace(base, levels=(*base.levels, register))


def passing(depth: int, words: int) -> Accelerator:
    """Return the same with a buffer that need not hold weights, and registers of so many words."""
    dram, buffer, register = deep(depth).levels
    free = dataclasses.replace(buffer, may_keep=(*buffer.may_keep, ("Inputs", "Outputs")))
    held = dataclasses.replace(register, depth=words, may_keep=(("Weights",),))
    return dataclasses.replace(deep(depth), levels=(dram, free, held))


def all_goals(layer: Layer, accelerator: Accelerator) -> dict[Spread, tuple[float, float, float]]:
    """Return least energy, cycles and energy-delay product of all mappings, by their spread."""
    space, start = space_of(layer, layer.bounds, accelerator, "edp", Constraints())
    problem, counts = problem_of(layer, accelerator), np.zeros((len(start), 3, 3), np.int64)
    masks = [row[:n] for row, n in zip(space.keeps.tolist(), space.keep_count, strict=True)]
    dims = range(len(layer.dims))
    orders = list(itertools.product(itertools.permutations(dims), repeat=2))
    places = [space.slots[d, : space.slot_count[d]].tolist() for d, _ in space.primes.tolist()]
    placed = {}
    for slots in itertools.product(*places):
        loops = start.copy()
        for (d, prime), slot in zip(space.primes.tolist(), slots, strict=True):
            loops[0, at.TEMPORAL, d] //= prime
            loops[slot // 3, (at.TEMPORAL, at.SPATIAL_X, at.SPATIAL_Y)[slot % 3], d] *= prime
        placed[loops.tobytes()] = loops
    found: dict[Spread, tuple[float, float, float]] = {}
    out = np.zeros(4)
    for loops in placed.values():
        for order, keep in itertools.product(orders, itertools.product(*masks)):
            loops[:2, at.ORDER] = order
            if evaluate(problem, loops, np.array(keep, np.int64), counts, out) == at.FEASIBLE:
                cost = (out[ENERGY_PJ], out[CYCLES], out[ENERGY_PJ] * out[CYCLES])
                key = spread_of(loops)
                found[key] = tuple(map(min, cost, found.get(key, cost)))
    return found


def spread_of(loops: np.ndarray) -> Spread:
    """Return what is spread in all, by level and dimension."""
    return tuple(loops[:, at.SPATIAL_X :].prod(axis=1).ravel().tolist())


@pytest.mark.parametrize(
    "accelerator",
    [small(4), small(7), small(12), deep(5), deep(9), passing(5, 1), passing(9, 1), passing(9, 2)],
)
@pytest.mark.parametrize(
    "layer",
    [
        matmul("product", n=2, c=4, m=2),
        einsum("window", ONE_D.format(1), m=2, p=4, r=2),
        einsum("stride", ONE_D.format(2), m=1, p=6, r=2),
        einsum("gaps", ONE_D.format(3), m=2, p=4, r=1),
    ],
    ids=lambda layer: layer.name,
)
def test_lower_bound_of_a_spread_holds_for_every_mapping(
    layer: Layer, accelerator: Accelerator
) -> None:
    space, loops = space_of(layer, layer.bounds, accelerator, "edp", Constraints())
    problem = problem_of(layer, accelerator)
    spread, left_out = spreads(space, loops, problem.sizes, 100)
    least_costs, _ = spread_bounds(layer, accelerator, problem, space, spread)
    listed = dict(zip(map(spread_of, spread), least_costs, strict=True))
    goals = all_goals(layer, accelerator)
    assert left_out == 0
    assert {key for key, row in listed.items() if np.isfinite(row[3])} == set(goals)
    for key, costs in goals.items():
        assert (listed[key][:3] <= np.array(costs) * (1 + 1e-12)).all()
    found = find(layer, accelerator, evaluations=4000)
    least = min(edp for _, _, edp in goals.values())
    assert found.bounds.edp <= least * (1 + 1e-12)
    assert found.evaluation.edp == pytest.approx(least, rel=1e-12)


def test_lower_bounds_are_near_the_best_mapping() -> None:
    layer, accelerator = matmul("product", n=64, c=64, m=64), load_accelerator("two_level")
    found = find(layer, accelerator, evaluations=20_000)
    assert found.gap < 0.05
    energy_pj, cycles = compulsory(layer, accelerator, problem_of(layer, accelerator))
    assert energy_pj * cycles < 0.8 * found.bounds.edp


def test_strided_gaps_are_not_read() -> None:
    layer, accelerator = conv("skip", m=8, c=8, r=1, s=1, p=8, q=8, stride=2), small(64)
    energy_pj, _ = compulsory(layer, accelerator, problem_of(layer, accelerator))
    assert energy_pj == 8**4 * 1.0 + 40.0 * (64 + 8 * 64 + 8 * 64)


def test_search_stops_at_the_lower_bound() -> None:
    found = find(matmul("dot", n=1, c=64, m=1), small(64, banks=1e9), evaluations=100_000)
    assert found.gap == 0.0
    assert found.evaluations < 100_000


def test_larger_budgets_list_more_spreads() -> None:
    layer, accelerator = layers_of("resnet50", "conv3_2_3x3")[0][0], load_accelerator("tpu_like")
    space, loops = space_of(layer, layer.bounds, accelerator, "edp", Constraints())
    sizes = problem_of(layer, accelerator).sizes
    few, left_out = spreads(space, loops, sizes, 50)
    assert len(few) == 50
    assert left_out == accelerator.mac.instances
    used = few[:, :, at.SPATIAL_X :].prod(axis=(1, 2, 3))
    assert (np.diff(used) <= 0).all()
    assert used[-1] == 1
    assert (
        few.prod(axis=1)[:, [at.TEMPORAL, at.SPATIAL_X, at.SPATIAL_Y]].prod(axis=1) == layer.bounds
    ).all()
