"""Extrapolated counts against the closed form, where both must agree, and by hand elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from lab.claims import dataflow as claims
from lab.tables.rows import read_records
from simulators.dataflow.evaluation import evaluated
from simulators.dataflow.mapping import LevelLoops, LoopNest, read_mapping, read_yaml
from simulators.workload.loop_nest import Layer, conv, dwconv, matmul
from tests.dataflow.test_access import ALL, cut_nests, machine, nests
from tests.parity.timeloop import Accesses, extrapolated

Counts = dict[tuple[str, str], Accesses]
"""Accesses by level and tensor."""


def counted(
    layer: Layer, mapping: LoopNest, *, links: bool = False
) -> tuple[Counts, Counts] | None:
    """Return exact and extrapolated counts of a mapping, or None if the mapping does not fit."""
    accelerator = machine(len(mapping.levels))
    exact = evaluated(mapping, layer, accelerator)
    if isinstance(exact, str):
        return None
    ours = {place: Accesses(*counts) for place, counts in claims.exact(exact).items()}
    return ours, extrapolated(mapping, layer, accelerator, links=links)


@settings(max_examples=200, deadline=None)
@given(nest=nests())
def test_where_bounds_divide_tensors_without_halos_are_counted_exactly(
    nest: tuple[Layer, LoopNest],
) -> None:
    if (both := counted(*nest)) is None:
        return
    exact, theirs = both
    slides = any(len(rank) > 1 for tensor in nest[0].tensors for rank in tensor.ranks)
    assert exact.keys() == theirs.keys()
    for (level, tensor), accesses in theirs.items():
        if tensor != "Inputs" or not slides:
            assert accesses == exact[level, tensor]


@settings(max_examples=200, deadline=None)
@given(nest=cut_nests())
def test_any_mapping_can_be_extrapolated_and_links_never_add_reads(
    nest: tuple[Layer, LoopNest],
) -> None:
    plain, linked = counted(*nest), counted(*nest, links=True)
    if plain is None or linked is None:
        return
    for (level, tensor), accesses in linked[1].items():
        assert min(accesses) >= 0
        if level == "L0":
            assert accesses.reads <= plain[1][level, tensor].reads


def test_the_last_step_next_to_a_level_counts_as_a_whole_one() -> None:
    layer = matmul("g", n=1, c=10, m=1)
    mapping = LoopNest((LevelLoops("L0", ALL, (("C", 4),)), LevelLoops("L1", ALL, (("C", 3),))))
    both = counted(layer, mapping)
    assert both is not None
    assert [counts["L0", "Inputs"].reads for counts in both] == [10, 12]


def test_a_neighbour_hands_over_what_it_had_a_step_before() -> None:
    # Elements r = 0, 1, 2 need column p + r: at each of four steps only the last one's is new.
    layer = conv("c", m=1, c=1, r=8, s=1, p=4, q=1)
    mapping = LoopNest((LevelLoops("L0", ALL, (("P", 4),), (("R", 8),)),))
    both, linked = counted(layer, mapping), counted(layer, mapping, links=True)
    assert both is not None
    assert linked is not None
    reads = [counts["L0", "Inputs"].reads for counts in (*both, linked[1])]
    assert reads == [32, 32, 8 + 3]
    assert linked[1]["L0", "Weights"].reads == both[0]["L0", "Weights"].reads


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
    weights = [counts["L1", "Weights"] for counts in both]
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
    assert [counts["L0", "Inputs"].reads for counts in (plain[1], linked[1])] == [32, 32]


def test_idle_elements_take_nothing_away() -> None:
    # Eight of twelve elements work; over all twelve, each gets fewer sums than it has to begin.
    layer = conv("c", m=1, c=1, r=1, s=2, p=4, q=2)
    above = LevelLoops("L0", ALL, (("Q", 2),), (("S", 2), ("P", 2)), (("P", 3),))
    both = counted(layer, LoopNest((above, LevelLoops("L1", ALL))))
    assert both is not None
    sums = both[1]["L1", "Outputs"]
    assert (sums.reads, sums.fills, sums.updates) == (0, 0, 2)


@pytest.mark.slow
def test_timeloop_counts_every_stored_mapping_so(reference: Path) -> None:
    accelerators = claims.read_accelerators(reference)
    problems, wanted = read_yaml(reference / claims.PROBLEMS), claims.stored_counts(reference)
    rows = list(read_records(reference / claims.TRIPLES))
    for row in rows:
        layer = claims.problem_layer(problems, row.problem)
        mapping = read_mapping(json.loads(row.mapping))
        counts = extrapolated(mapping, layer, accelerators[row.arch], links=True)
        assert claims.is_equal(counts, wanted[row.id, "default"]), row.id
    assert len(rows) >= 362
