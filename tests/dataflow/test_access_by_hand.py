"""Each access count of the closed forms on numbers worked out by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from simulators.core.jit import Kernel
from simulators.dataflow import access as at
from simulators.dataflow import access as cut
from simulators.dataflow import access as exact
from simulators.dataflow.evaluation import Evaluation, evaluated, problem_of
from simulators.dataflow.mapping import LevelLoops, LoopNest, encode
from simulators.workload.loop_nest import Layer, conv, dwconv, matmul
from tests.dataflow.interpreter import interpret
from tests.dataflow.test_access import ALL, machine
from tests.dataflow.walker import check_walked, cycles

WHOLE, STEP = [10, 7, 6, 4], [5, 3, 2, 1]


@pytest.fixture(autouse=True)
def in_python() -> Iterator[None]:
    """Let all kernels run as written, so that a problem may have the arrays a test needs alone."""
    with mock.patch.object(Kernel, "compiled", property(lambda kernel: kernel.py_func)):
        yield


def sums() -> Any:
    """Return sums of whole tiles and of steps: (whole, whole), (whole, last) and so on."""
    return np.array([WHOLE, STEP])


@pytest.mark.parametrize(("bound", "tile", "left"), [(10, 4, 2), (8, 4, 4), (3, 4, 3), (9, 4, 1)])
def test_last_tile_is_the_remainder(bound: int, tile: int, left: int) -> None:
    assert cut.left_over.py_func(bound, tile) == left


@pytest.mark.parametrize(
    ("bound", "tile", "times", "last"),
    [(10, 2, 3, 2), (12, 2, 3, 3), (7, 2, 3, 1), (9, 2, 3, 2), (5, 2, 3, 3), (10, 1, 4, 2)],
)
def test_last_loop_run_ends_with_the_dimension(
    bound: int, tile: int, times: int, last: int
) -> None:
    assert cut.last_run.py_func(bound, tile, times) == last


@pytest.mark.parametrize(
    ("axis", "last", "added", "whole", "step"),
    [
        (0, 2, 1, [30, 21, 10 + 6, 7 + 4], [15, 9, 5 + 2, 3 + 1]),
        (1, 2, 1, [30, 10 + 7, 18, 6 + 4], [15, 5 + 3, 6, 2 + 1]),
        (0, 1, 1, [30, 21, 6, 4], [15, 9, 2, 1]),
        (0, 2, 0, [10, 7, 10, 7], [5, 3, 5, 3]),  # the first is whole if it is not the last
        (1, 2, 0, [10, 10, 6, 6], [5, 5, 2, 2]),
        (1, 1, 0, WHOLE, STEP),
    ],
)
def test_iterations_are_summed_or_equal_to_the_first(
    axis: int, last: int, added: int, whole: list[int], step: list[int]
) -> None:
    found = sums()
    cut.repeat.py_func(found, axis, 3, last, added)
    assert found.tolist() == [whole, step]


@pytest.mark.parametrize(
    ("axis", "last", "whole"),
    [
        (0, 2, [10 + 2 * 5, 7 + 2 * 3, 10 + 2, 7 + 1]),
        (0, 3, [20, 13, 10 + 5 + 2, 7 + 3 + 1]),
        (0, 1, [20, 13, 6, 4]),
        (1, 3, [20, 10 + 5 + 3, 6 + 2 * 2, 6 + 2 + 1]),
    ],
)
def test_steps_send_only_new_words(axis: int, last: int, whole: list[int]) -> None:
    found = sums()
    cut.slide.py_func(found, axis, 3, last)
    assert found.tolist() == [whole, STEP]


def test_largest_tile_on_a_diagonal_is_counted() -> None:
    # i + j for i < 2 and j < 3 is 0 to 3. With both last: (0, 0); (0, 1), (1, 0) of 6; (0, 2) of 7
    # and (1, 1) of 6; (1, 2) of 4.
    assert cut.of_diagonals.py_func(sums(), 0, 2, 1, 3, 1, 3, 1) == 10 + 10 + 7 + 4
    assert cut.of_diagonals.py_func(sums(), 1, 2, 1, 3, 1, 3, 1) == 5 + 5 + 3 + 1
    assert cut.of_diagonals.py_func(sums(), 0, 2, 1, 3, 1, 0, 1) == 4 * 10


STEPS = [(1, 1), (1, 2), (2, 1), (2, 3), (4, 2), (3, 3)]


@pytest.mark.parametrize(("a", "b"), STEPS)
def test_distinct_values_of_two_loops_are_counted_once(a: int, b: int) -> None:
    finest = int(np.gcd(a, b))
    for m, n, state in itertools.product((1, 2, 4), (2, 3, 5), range(4)):
        largest: dict[int, int] = {}
        for i, j in itertools.product(range(m), range(n)):
            is_last = 2 * (state >> 1 and i == m - 1) + (state & 1 and j == n - 1)
            value = a * i + b * j
            largest[value] = max(largest.get(value, 0), WHOLE[is_last])
        found = cut.of_diagonals.py_func(sums(), 0, m, a, n, b, state, finest)
        assert found == sum(largest.values())
        assert exact.distinct_sums.py_func(m, a, n, b) == len(largest)


def test_fan_out_over_two_dimensions_is_counted() -> None:
    found = sums()  # all of 2 x 3, of which 1 x 2 at the end
    cut.fan_out.py_func(found, 2, 1, 1, 3, 2, 1, cut.EACH)
    assert found[0].tolist() == [60, 2 * (10 + 7), 3 * 6, 6 + 4]
    found = sums()
    cut.fan_out.py_func(found, 2, 1, 1, 3, 2, 1, cut.FIRST)
    assert found[0].tolist() == [10, 10, 6, 6]
    # Different diagonals: 4 of 2 x 3; 0, 1 and 2 of 2 x 2, where (1, 1) is cut; 1 x 3 and 1 x 2.
    found = sums()
    cut.fan_out.py_func(found, 2, 1, 2, 3, 2, 2, cut.DISTINCT)
    assert found.tolist() == [[40, 10 + 10 + 7, 18, 6 + 4], [20, 5 + 5 + 3, 6, 2 + 1]]
    for m, n in ((1, 3), (2, 1)):  # one beside the other: all are different
        found = sums()
        cut.fan_out.py_func(found, m, m, 1, n, n, 1, cut.DISTINCT)
        assert found[0, 0] == 10 * m * n


@pytest.mark.parametrize(
    ("rank", "slides", "step", "whole", "fresh"),
    [
        ([0, 2, 1, 3], -1, 9, [10, 7, 6, 3], [10, 7, 6, 3]),
        ([0, 2, 1, 3], 0, 4, [10, 7, 6, 3], [8, 7, 4, 3]),  # 2 * 4 and, of the last, 2 * 2
        ([0, 2, 1, 3], 0, 3, [10, 7, 6, 3], [6, 6, 2, 2]),
        ([0, 2, 1, 3], 1, 2, [10, 7, 6, 3], [6, 3, 6, 3]),
        ([0, 2, 1, 3], 1, 3, [10, 7, 6, 3], [9, 6, 6, 3]),
        ([0, 2, -1, 0], -1, 9, [7, 7, 3, 3], [7, 7, 3, 3]),
        ([0, 2, -1, 0], 0, 3, [7, 7, 3, 3], [6, 6, 2, 2]),
    ],
)
def test_extents_of_whole_tiles_last_tiles_and_steps(
    rank: list[int], slides: int, step: int, whole: list[int], fresh: list[int]
) -> None:
    # Tiles of 4 of 10 and of 2 of 5: the last ones are of 2 and of 1.
    problem: Any = SimpleNamespace(
        extents=np.array([[9, 9], [4, 2]]), bounds=np.array([10, 5]), sums=np.zeros((2, 4), int)
    )
    cut.tile_sums.py_func(problem, np.array(rank), 1, slides, step)
    assert problem.sums.tolist() == [whole, fresh]


def test_tile_words_with_and_without_a_rank() -> None:
    # The second tensor: 2 * i + 3 * j for i < 4 and j < 2, that is 10 long, by 5, by 1 + 2 * 3.
    terms = np.full((8, 4), -1)
    terms[:4] = 0  # of another tensor
    terms[4:7] = [[0, 2, 1, 3], [2, 1, -1, -1], [0, 2, -1, -1]]
    extents = np.array([[9, 9, 9], [4, 2, 5]])
    found = [exact.tile_words.py_func(terms, 1, extents, 1, place) for place in (-1, 4, 5, 6)]
    assert found == [10 * 5 * 7, 5 * 7, 10 * 7, 10 * 5]
    terms[7] = [1, 1, -1, -1]
    assert exact.tile_words.py_func(terms, 1, extents, 1, -1) == 10 * 5 * 7 * 2


@pytest.mark.parametrize(
    ("rank", "row", "how", "wanted"),
    [
        # Four columns of tiles of 6, three rows of 2 each: the last run is of three.
        ([0, 1, -1, 0], at.SPATIAL_X, cut.EACH, [40, 28, 26, 18]),
        ([0, 1, -1, 0], at.SPATIAL_Y, cut.EACH, [30, 21, 26, 18]),  # of 2 over 17: three as well
        ([0, 1, -1, 0], 0, cut.EACH, [120, 84, 86, 60]),  # nine of twelve
        ([0, 1, -1, 0], at.SPATIAL_X, cut.FIRST, [10, 7, 10, 7]),
        ([0, 1, -1, 0], at.SPATIAL_X, cut.DISTINCT, [40, 28, 26, 18]),
        ([0, 0, -1, 0], at.SPATIAL_X, cut.DISTINCT, [10, 7, 10, 7]),  # iterations: one for all
        ([0, 1, 1, 1], at.SPATIAL_X, cut.EACH, [160, 108, 104, 70]),  # and three of four of 2 by 1
        ([0, 1, 1, 3], at.SPATIAL_X, cut.DISTINCT, [70, 57, 56, 41]),  # steps of 6 both: diagonals
    ],
)
def test_fan_out_has_columns_and_rows(
    rank: list[int], row: int, how: int, wanted: list[int]
) -> None:
    loops = np.ones((1, 4, 2), int)
    loops[0, at.SPATIAL_X], loops[0, at.SPATIAL_Y] = [4, 4], [3, 2]
    problem: Any = SimpleNamespace(
        extents=np.array([[9, 9], [2, 1]]),
        spread=np.array([[12, 8]]),
        bounds=np.array([17, 5]),
        sums=sums(),
    )
    cut.side_by_side.py_func(problem, loops, np.array(rank), 0, row, how)
    assert problem.sums[0].tolist() == wanted


@pytest.mark.parametrize(
    ("staged", "inner", "steps", "wanted"),
    [
        # 4 i + 6 j for i < 4 and j < 4: of 16 two are there already.
        (0, (2, 2), (2, 3), 7 * 14),
        # In stages 2 i + j for i < 2 and j < 3, of 6 one again, then 4 i + 3 j, for i < 4, j < 5.
        (1, (2, 1), (1, 1), 7 * 5 * 19),
    ],
)
def test_fan_out_counts_distinct_tiles(
    staged: int, inner: tuple[int, int], steps: tuple[int, int], wanted: int
) -> None:
    terms, loops = np.full((8, 4), -1), np.ones((1, 4, 3), int)
    terms[4:6] = [[2, 1, -1, -1], [0, steps[0], 1, steps[1]]]
    loops[0, at.SPATIAL_Y], loops[0, at.SPATIAL_X] = [2, 3, 1], [4, 5, 7]
    sizes = np.zeros((1, 6), int)
    sizes[0, at.STAGED] = staged
    problem: Any = SimpleNamespace(
        terms=terms,
        sizes=sizes,
        spread=np.array([[4, 4, 7]]),
        extents=np.array([[9] * 3, [*inner, 1]]),
    )
    assert exact.distinct_tiles.py_func(problem, loops, 1, 0) == wanted


Loops = tuple[tuple[str, int], ...]
Levels = tuple[tuple[Loops, Loops, Loops], ...]


def mapping_of(levels: Levels, keep: tuple[tuple[str, ...], ...] = (ALL,) * 3) -> LoopNest:
    """Return loops in time, over columns and over rows of each level."""
    return LoopNest(tuple(LevelLoops(f"L{k}", keep[k], *loops) for k, loops in enumerate(levels)))


def laid_out(layer: Layer, mapping: LoopNest, **sizes: list[tuple[int, int]]) -> tuple[int, Any]:
    """Lay a mapping out; `sizes` are values of levels by the name of their column."""
    accelerator = machine(len(mapping.levels))
    loops, keep = encode(mapping, layer, accelerator)
    problem = problem_of(layer, accelerator)
    for name, values in sizes.items():
        for level, value in values:
            problem.sizes[level, getattr(at, name)] = value
    return exact.lay_out.py_func(problem, loops, keep), problem


# A product of 4 x 6 and 6 x 5: three rows and two steps in time outside, two columns and two rows
# of instances of three steps.
PRODUCT = matmul("g", n=4, c=6, m=5)
NEST: Levels = (
    ((("C", 2), ("N", 2)), (("N", 2),), (("M", 5),)),
    ((("C", 3),), (), ()),
)


def test_nest_layout_lists_loops_tiles_and_instances() -> None:
    count, problem = laid_out(PRODUCT, mapping_of(NEST))
    dims = PRODUCT.dims
    placed = [(dims[d], bound, level, after) for d, bound, level, after in problem.placed[:count]]
    assert placed == [("C", 3, 1, 4), ("N", 2, 0, 2), ("C", 2, 0, 1)]
    extents = [dict(zip(dims, row.tolist(), strict=True)) for row in problem.extents]
    assert extents == [
        {"N": 4, "C": 6, "M": 5},
        {"N": 1, "C": 3, "M": 1},
        {"N": 1, "C": 1, "M": 1},
    ]
    assert problem.first.tolist() == [0, 1, 0]
    assert problem.instances.tolist() == [[1, 10, 1], [10, 1, 10], [10, 1, 10]]
    assert problem.tiles[:2].tolist() == [[30, 24, 20], [3, 3, 1]]
    assert problem.has_partial_tiles[0] == 0


def test_tile_ends_at_the_dimension_boundary() -> None:
    nest: Levels = (((("C", 2), ("N", 4), ("M", 5)), (), ()), ((("C", 4),), (), ()))
    count, problem = laid_out(PRODUCT, mapping_of(nest))
    assert count == 4
    assert problem.has_partial_tiles[0] == 1
    assert problem.extents[:2, PRODUCT.dims.index("C")].tolist() == [6, 4]


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ({"FAN_X": [(0, 2)]}, 3),
        ({"FAN_X": [(0, 1)]}, -at.TOO_WIDE),
        ({"FAN_Y": [(0, 5)]}, 3),
        ({"FAN_Y": [(0, 4)]}, -at.TOO_WIDE),
        ({"CAPACITY": [(1, 7)]}, 3),
        ({"CAPACITY": [(1, 6)]}, -at.TOO_LARGE),
    ],
)
def test_oversized_fan_outs_and_tiles_are_refused(
    sizes: dict[str, list[tuple[int, int]]], wanted: int
) -> None:
    assert laid_out(PRODUCT, mapping_of(NEST), **sizes)[0] == wanted


C1 = conv("c", m=2, c=1, r=3, s=1, p=4, q=1)
C2 = conv("c", m=1, c=2, r=3, s=2, p=5, q=3, stride=2, dilation=1)
STRIDED = conv("c", m=1, c=1, r=4, s=1, p=6, q=1, stride=3, dilation=2)
DEPTH = dwconv("d", c=4, r=3, s=2, p=4, q=4, stride=1)
NESTS: list[tuple[Layer, LoopNest]] = [
    (PRODUCT, mapping_of(NEST)),
    (PRODUCT, mapping_of(NEST, (ALL, ("Weights",)))),
    (PRODUCT, mapping_of(NEST, (ALL, ("Inputs", "Outputs")))),
    (PRODUCT, mapping_of(NEST, (ALL, ()))),
    (C1, mapping_of((((("M", 2), ("P", 4)), (), ()), ((("R", 3),), (), ())))),
    (C1, mapping_of((((("P", 2),), (("P", 2),), ()), ((), (("R", 3),), (("M", 2),))))),
    (C1, mapping_of((((("R", 3), ("M", 2)), (("P", 2),), ()), ((("P", 2),), (), ())))),
    (
        C2,
        mapping_of(
            (((("P", 5),), (("Q", 3),), (("C", 2),)), ((("S", 2),), (("R", 3),), ())),
            (ALL, ("Inputs", "Outputs")),
        ),
    ),
    (
        C2,
        mapping_of(
            (
                ((("C", 2), ("Q", 3)), (), ()),
                ((("P", 5),), (), (("S", 2),)),
                ((("R", 3),), (), ()),
            )
        ),
    ),
    (STRIDED, mapping_of((((("P", 2), ("R", 2)), (), ()), ((("R", 2), ("P", 3)), (), ())))),
    (STRIDED, mapping_of((((("R", 2), ("P", 3)), (), ()), ((("R", 2),), (("P", 2),), ())))),
    (
        DEPTH,
        mapping_of(
            (
                ((("P", 2), ("C", 2)), (("Q", 2),), (("C", 2),)),
                ((("Q", 2), ("P", 2)), (), ()),
                ((("R", 3), ("S", 2)), (), ()),
            ),
            (ALL, ("Weights", "Inputs"), ALL),
        ),
    ),
]
"""Loops that divide; windows that slide in time, side by side and across both."""


@pytest.mark.parametrize(("layer", "mapping"), NESTS)
def test_nest_counts_match_a_full_walk(layer: Layer, mapping: LoopNest) -> None:
    result = evaluated(mapping, layer, machine(len(mapping.levels)))
    assert isinstance(result, Evaluation)
    counted = {(t.level, t.tensor): (t.reads, t.fills, t.updates) for t in result.traffic}
    assert counted == interpret(layer, mapping)
    assert result.compute_cycles == cycles(layer, mapping)


CUT: list[tuple[Layer, LoopNest]] = [
    (
        PRODUCT,
        mapping_of(
            (((("C", 2), ("N", 2)), (("N", 2),), (("M", 3),)), ((("C", 4), ("M", 2)), (), ()))
        ),
    ),
    (
        PRODUCT,
        mapping_of(
            (((("N", 2), ("C", 3)), (("M", 2),), ()), ((("M", 3), ("N", 3)), (), (("C", 2),))),
            (ALL, ("Weights",)),
        ),
    ),
    (
        PRODUCT,
        mapping_of((((("C", 2), ("N", 2)), (), ()), ((("N", 3), ("C", 3), ("M", 5)), (), ()))),
    ),
    (
        C1,
        mapping_of((((("M", 2),), (), ()), ((("P", 2),), (), ()), ((("P", 3), ("R", 3)), (), ()))),
    ),
    (C1, mapping_of((((("P", 2),), (("M", 2),), ()), ((("P", 3), ("R", 3)), (), ())))),
    (C1, mapping_of((((("R", 2),), (("P", 2),), ()), ((("P", 3),), (), (("R", 2), ("M", 2)))))),
    (
        C2,
        mapping_of(
            (
                ((("P", 3), ("C", 2)), (), (("Q", 2),)),
                ((("R", 3), ("Q", 2)), (("P", 2),), (("S", 2),)),
            )
        ),
    ),
    (
        C2,
        mapping_of(
            (
                ((("Q", 3), ("R", 2)), (("P", 3),), ()),
                ((("P", 2),), (("R", 2),), ()),
                ((("S", 2), ("C", 2)), (), ()),
            ),
            (ALL, ("Inputs",), ALL),
        ),
    ),
    (
        DEPTH,
        mapping_of(
            (
                ((("C", 2), ("P", 2)), (("R", 2),), ()),
                ((("P", 3), ("C", 3)), (), (("Q", 4),)),
                ((("R", 2), ("S", 2)), (), ()),
            ),
            (ALL, ("Inputs", "Outputs"), ALL),
        ),
    ),
]
"""Loops that do not divide."""


@pytest.mark.parametrize(("layer", "mapping"), CUT)
def test_remainder_tiles_match_a_full_walk(layer: Layer, mapping: LoopNest) -> None:
    result = evaluated(mapping, layer, machine(len(mapping.levels)))
    assert isinstance(result, Evaluation)
    check_walked(result, layer, mapping)
