"""Extrapolated counts against the closed form, where both must agree, and by hand elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from lab.parity.timeloop import extrapolated
from simulators.dataflow.evaluation import Evaluation, evaluated
from simulators.dataflow.mapping import LevelLoops, LoopNest
from simulators.workload.loop_nest import Layer, conv, dwconv, matmul
from tests.dataflow.test_access import ALL, cut_nests, machine, nests


def counted(
    layer: Layer, mapping: LoopNest, *, links: bool = False
) -> tuple[Evaluation, Evaluation] | None:
    """Return a mapping counted exactly and extrapolated, or None if it does not fit."""
    accelerator = machine(len(mapping.levels))
    exact = evaluated(mapping, layer, accelerator)
    if isinstance(exact, str):
        return None
    return exact, extrapolated(mapping, layer, accelerator, exact, links=links)


@settings(max_examples=200, deadline=None)
@given(nest=nests())
def test_where_bounds_divide_tensors_without_halos_are_counted_exactly(
    nest: tuple[Layer, LoopNest],
) -> None:
    if (both := counted(*nest)) is None:
        return
    exact, theirs = both
    slides = any(len(rank) > 1 for tensor in nest[0].tensors for rank in tensor.ranks)
    for ours, line in zip(exact.traffic, theirs.traffic, strict=True):
        if line.tensor != "Inputs" or not slides:
            assert (line.reads, line.fills, line.updates) == (ours.reads, ours.fills, ours.updates)
            assert line.instances == ours.instances
            assert line.energy_pj == pytest.approx(ours.energy_pj)


@settings(max_examples=200, deadline=None)
@given(nest=cut_nests())
def test_any_mapping_can_be_extrapolated_and_links_never_add_reads(
    nest: tuple[Layer, LoopNest],
) -> None:
    plain, linked = counted(*nest), counted(*nest, links=True)
    if plain is None or linked is None:
        return
    for without, line in zip(plain[1].traffic, linked[1].traffic, strict=True):
        assert min(line.reads, line.fills, line.updates) >= 0
        if line.level == "L0":
            assert line.reads <= without.reads


def test_the_last_step_next_to_a_level_counts_as_a_whole_one() -> None:
    layer = matmul("g", n=1, c=10, m=1)
    mapping = LoopNest((LevelLoops("L0", ALL, (("C", 4),)), LevelLoops("L1", ALL, (("C", 3),))))
    both = counted(layer, mapping)
    assert both is not None
    reads = [e.traffic[1].reads for e in both]
    assert both[0].traffic[1].tensor == "Inputs"
    assert reads == [10, 12]


def test_a_neighbour_hands_over_what_it_had_a_step_before() -> None:
    # Elements r = 0, 1, 2 need column p + r: at each of four steps only the last one's is new.
    layer = conv("c", m=1, c=1, r=8, s=1, p=4, q=1)
    mapping = LoopNest((LevelLoops("L0", ALL, (("P", 4),), (("R", 8),)),))
    both, linked = counted(layer, mapping), counted(layer, mapping, links=True)
    assert both is not None
    assert linked is not None
    assert [e.traffic[1].reads for e in (*both, linked[1])] == [32, 32, 8 + 3]
    assert linked[1].traffic[0].reads == both[0].traffic[0].reads


def test_averages_are_over_instances_in_use() -> None:
    layer = matmul("g", n=1, c=4, m=10)
    mapping = LoopNest(
        (
            LevelLoops("L0", ALL, (("M", 3),), (("M", 4),)),
            LevelLoops("L1", ALL, (("C", 4),)),
        )
    )
    both = counted(layer, mapping)
    assert both is not None
    weights = [next(t for t in e.traffic if (t.level, t.tensor) == ("L1", "Weights")) for e in both]
    # Ten of twelve elements have work; each is said to get 10 * 4 words over 4 elements.
    assert [t.instances for t in weights] == [4, 3]
    assert [t.fills for t in weights] == [12, 10]


def test_a_level_that_keeps_nothing_hands_nothing_on() -> None:
    layer = dwconv("d", c=1, r=3, s=2, p=2, q=4)
    above = LevelLoops("L0", ALL, (("Q", 2), ("S", 2)), (("R", 3), ("P", 2)))
    mapping = LoopNest((above, LevelLoops("L1", (), (("Q", 3),))))
    plain, linked = counted(layer, mapping), counted(layer, mapping, links=True)
    assert plain is not None
    assert linked is not None
    reads = [e.traffic[1].reads for e in (plain[1], linked[1]) if e.traffic[1].tensor == "Inputs"]
    assert reads == [32, 32]


def test_idle_elements_take_nothing_away() -> None:
    # Eight of twelve elements work; over all twelve, each gets fewer sums than it has to begin.
    layer = conv("c", m=1, c=1, r=1, s=2, p=4, q=2)
    above = LevelLoops("L0", ALL, (("Q", 2),), (("S", 2), ("P", 2)), (("P", 3),))
    both = counted(layer, LoopNest((above, LevelLoops("L1", ALL))))
    assert both is not None
    sums = next(t for t in both[1].traffic if (t.level, t.tensor) == ("L1", "Outputs"))
    assert (sums.reads, sums.fills, sums.updates) == (0, 0, 2)
