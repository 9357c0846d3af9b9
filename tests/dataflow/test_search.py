"""The mapper against full enumeration and its lower bound, with and without constraints."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.catalog.accelerator import Accelerator, Level, Mac, load_accelerator
from simulators.core.errors import Infeasible, UserError
from simulators.dataflow.access import FEASIBLE
from simulators.dataflow.evaluation import CYCLES, ENERGY_PJ, evaluate, machine_of, problem_of
from simulators.dataflow.search.map_space import Constraints, primes_of, read_constraints
from simulators.dataflow.search.mapper import find
from simulators.workload.loop_nest import Layer, conv, dwconv, matmul

ALL = ("Weights", "Inputs", "Outputs")


def small(depth: int = 24, banks: float = 2.0) -> Accelerator:
    """Return DRAM, one buffer and 2 x 2 multipliers."""
    cost = {"read": 2.0, "write": 3.0, "update": 3.0}
    dram = dict.fromkeys(cost, 40.0)
    return Accelerator(
        name="small",
        source="made up",
        mac=Mac(mesh=(2, 2), energy_pj=1.0),
        levels=(
            Level(
                name="DRAM",
                kind="dram",
                width_bits=16,
                word_bits=16,
                energy_pj=dram,
                shared_words_per_cycle=banks,
                may_keep=(ALL,),
            ),
            Level(
                name="buffer",
                width_bits=16,
                word_bits=16,
                depth=depth,
                energy_pj=cost,
                may_keep=(ALL, ALL[:2], ALL[1:]),
            ),
        ),
    )


def least_edp(layer: Layer, accelerator: Accelerator) -> float:
    """Return the least energy-delay product of all mappings there are."""
    levels, dims = len(accelerator.levels), len(layer.dims)
    primes = [(d, p) for d, bound in enumerate(layer.bounds) for p in primes_of(bound)]
    slots = ((0, 0), (1, 0), (1, 2), (1, 3))
    placed = {}
    for choice in itertools.product(slots, repeat=len(primes)):
        loops = np.ones((levels, 4, dims), np.int64)
        for (d, p), (level, row) in zip(primes, choice, strict=True):
            loops[level, row, d] *= p
        placed[loops.tobytes()] = loops
    orders = list(itertools.permutations(range(dims)))
    masks = {sum(1 << ALL.index(t) for t in keep) for keep in accelerator.levels[1].may_keep}
    problem, counts = problem_of(layer, accelerator), np.zeros((levels, 3, 3), np.int64)
    best, out, keep = math.inf, np.zeros(4), np.full(levels, 7, np.int64)
    for loops in placed.values():
        for one, two, mask in itertools.product(orders, orders, sorted(masks)):
            loops[0, 1], loops[1, 1], keep[1] = one, two, mask
            if evaluate(problem, loops, keep, counts, out) == FEASIBLE:
                best = min(best, float(out[ENERGY_PJ] * out[CYCLES]))
    return best


@pytest.mark.parametrize(
    "layer", [matmul("a", n=4, c=6, m=2), matmul("b", n=1, c=4, m=6), matmul("c", n=3, c=2, m=2)]
)
def test_mapper_finds_the_optimum_of_tiny_problems(layer: Layer) -> None:
    found = find(layer, small(), evaluations=30_000)
    assert found.evaluation.edp == pytest.approx(least_edp(layer, small()), rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(
    m=st.integers(1, 64),
    c=st.integers(1, 32),
    p=st.integers(1, 28),
    r=st.integers(1, 3),
    stride=st.integers(1, 2),
    name=st.sampled_from(["eyeriss_like", "simba_like", "tpu_like", "two_level", "gpu_sm_like"]),
)
def test_mapping_cost_is_at_least_the_lower_bound(
    m: int, c: int, p: int, r: int, stride: int, name: str
) -> None:
    layer, accelerator = (
        conv("c", m=m, c=c, r=r, s=r, p=p, q=p, stride=stride),
        load_accelerator(name),
    )
    found = find(layer, accelerator, evaluations=500)
    assert found.evaluation.energy_pj >= found.bounds.energy_pj * (1 - 1e-12)
    assert found.evaluation.cycles >= found.bounds.cycles
    assert found.evaluation.edp >= found.bounds.edp * (1 - 1e-12)
    assert 0.0 <= found.gap < 1.0


def test_one_evaluation_gives_a_valid_mapping() -> None:
    found = find(
        conv("c", m=64, c=64, r=3, s=3, p=56, q=56), load_accelerator("eyeriss_like"), evaluations=1
    )
    assert found.evaluation.cycles > 0


def test_seed_is_reproducible_and_longer_search_is_never_worse() -> None:
    layer, accelerator = matmul("g", n=64, c=96, m=128), load_accelerator("two_level")
    first, again = (find(layer, accelerator, evaluations=20_000, seed=3) for _ in range(2))
    longer = find(layer, accelerator, evaluations=60_000, seed=3)
    assert first == again
    assert longer.evaluation.edp <= first.evaluation.edp


def test_each_goal_is_best_for_its_metric() -> None:
    layer, accelerator = conv("c", m=32, c=16, r=3, s=3, p=28, q=28), load_accelerator("two_level")
    by_goal = {
        goal: find(layer, accelerator, goal=goal) for goal in ("energy", "cycles", "edp", "ed2p")
    }
    least = min(f.evaluation.energy_pj for f in by_goal.values())
    assert by_goal["energy"].evaluation.energy_pj == pytest.approx(least, rel=0.01)
    ed2p = {goal: f.evaluation.edp * f.evaluation.cycles for goal, f in by_goal.items()}
    assert ed2p["ed2p"] == pytest.approx(min(ed2p.values()), rel=0.02)
    assert by_goal["cycles"].evaluation.cycles == min(f.evaluation.cycles for f in by_goal.values())


def test_constraints_are_obeyed() -> None:
    rules = Constraints(
        allow={"buffer": {"spatial_x": ("M",), "spatial_y": ("C",)}},
        keep={"buffer": ("Inputs", "Outputs")},
    )
    found = find(dwconv("d", c=8, r=3, s=3, p=8, q=8), small(64), constraints=rules)
    inner = found.mapping.levels[1]
    assert inner.keep == ("Inputs", "Outputs")
    assert {dim for dim, _ in inner.spatial_y} <= {"C"}
    assert not inner.spatial_x


def test_fixed_loops_and_orders_are_kept() -> None:
    rules = Constraints(
        fixed={"buffer": {"spatial_x": {"M": 2}, "temporal": {"C": 3}}},
        order={"DRAM": ("N", "M", "C")},
    )
    found = find(matmul("g", n=8, c=12, m=6), small(64), constraints=rules, evaluations=20_000)
    outer, inner = found.mapping.levels
    assert inner.spatial_x == (("M", 2),) or ("M", 2) in inner.spatial_x
    assert ("C", 3) in inner.temporal
    wanted = [dim for dim in ("N", "M", "C") if dim in dict(outer.temporal)]
    assert [dim for dim, _ in outer.temporal] == wanted


def test_fixed_loops_without_a_fit_are_infeasible() -> None:
    rules = Constraints(fixed={"buffer": {"temporal": {"N": 64, "C": 64}}})
    with pytest.raises(Infeasible, match="constraints_exceed_buffer"):
        find(matmul("g", n=64, c=64, m=4), small(24), constraints=rules, evaluations=500)


@pytest.mark.parametrize("bound", [7, 13, 31, 197])
def test_remainder_tiles_help_indivisible_dimensions(bound: int) -> None:
    layer, accelerator = matmul("g", n=bound, c=64, m=bound), load_accelerator("two_level")
    whole, cut = (
        find(layer, accelerator, evaluations=40_000, remainders=choice) for choice in (False, True)
    )
    assert cut.evaluation.edp < whole.evaluation.edp
    assert cut.evaluation.edp >= cut.bounds.energy_pj * cut.bounds.cycles
    for dim, size in layer.extents.items():
        loops = [
            b
            for level in cut.mapping.levels
            for row in (level.temporal, level.spatial_x, level.spatial_y)
            for d, b in row
            if d == dim
        ]
        assert math.prod(loops) >= size


def test_constraints_are_read_from_toml() -> None:
    table = {
        "buffer": {"spatial_x": ["M"], "temporal": {"C": 3}, "order": ["C"], "keep": ["Inputs"]},
        "least_utilization": 0.25,
    }
    assert read_constraints(table) == Constraints(
        allow={"buffer": {"spatial_x": ("M",)}},
        fixed={"buffer": {"temporal": {"C": 3}}},
        order={"buffer": ("C",)},
        keep={"buffer": ("Inputs",)},
        least_utilization=0.25,
    )


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([], "a table by level"),
        ({"buffer": ["M"]}, "not a table"),
        ({"buffer": {"spatial": ["M"]}}, "did you mean 'spatial_"),
        ({"buffer": {"order": "MC"}}, "not a list"),
        ({"buffer": {"temporal": {"C": "all"}}}, "no whole number"),
        ({"least_utilization": 2}, "not between 0 and 1"),
    ],
)
def test_invalid_constraints_name_the_error(table: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_constraints(table)


def test_minimum_utilization_is_reached_or_infeasible() -> None:
    layer = matmul("g", n=4, c=4, m=4)
    free = small(depth=64, banks=1e9)
    found = find(layer, free, goal="energy", constraints=Constraints(least_utilization=1.0))
    assert found.evaluation.utilization == 1.0
    with pytest.raises(Infeasible, match="utilization_too_low"):
        find(matmul("p", n=1, c=1, m=1), free, constraints=Constraints(least_utilization=1.0))


def test_buffer_smaller_than_one_tile_is_infeasible() -> None:
    tiny = small(depth=1)
    with pytest.raises(Infeasible, match="buffer_too_small"):
        find(matmul("g", n=2, c=2, m=2), tiny)
    two = small(depth=2)  # space for one word of two tensors: either tensor bypasses
    assert find(matmul("g", n=2, c=2, m=2), two, evaluations=100).evaluation.cycles > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"goal": "edpp"}, "did you mean 'edp'"),
        ({"constraints": Constraints(fixed={"buffer": {"temporal": {"C": 5}}})}, "does not divide"),
        ({"constraints": Constraints(fixed={"buffer": {"time": {"C": 2}}})}, "'time'"),
        ({"constraints": Constraints(order={"buffer": ("K",)})}, "no loop 'K'"),
        ({"constraints": Constraints(allow={"bufer": {}})}, "did you mean 'buffer'"),
        ({"constraints": Constraints(allow={"DRAM": {"temporal": ("N",)}})}, "forbid loops over C"),
        ({"constraints": Constraints(keep={"buffer": ("Weight",)})}, "did you mean 'Weights'"),
    ],
)
def test_invalid_search_options_raise_a_user_error(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        find(matmul("g", n=2, c=2, m=2), small(), **changes)  # type: ignore[arg-type]


def test_larger_buffer_costs_more_per_access_and_saves_dram_traffic() -> None:
    layer = conv("c", m=256, c=256, r=3, s=3, p=28, q=28)
    base = load_accelerator("two_level")
    large = dataclasses.replace(
        base, levels=(base.levels[0], dataclasses.replace(base.levels[1], depth=1 << 18))
    )
    words = []
    for accelerator in (base, large):
        found = find(layer, accelerator, goal="energy")
        words.append(
            sum(t.reads + t.updates for t in found.evaluation.traffic if t.level == "DRAM")
        )
    assert machine_of(large).energy_pj[1, 0] > machine_of(base).energy_pj[1, 0]
    assert words[1] < words[0]
