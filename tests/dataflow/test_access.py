"""Closed-form access counts against a walk of every iteration, and general laws."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulators.catalog.accelerator import Accelerator, Level, Mac
from simulators.core.errors import UserError
from simulators.dataflow.access import distinct_sums
from simulators.dataflow.evaluation import Evaluation, evaluate, evaluated, problem_of
from simulators.dataflow.mapping import LevelLoops, LoopNest, decode, encode
from simulators.dataflow.search.map_space import primes_of
from simulators.workload.loop_nest import Layer, bmm, conv, dwconv, einsum, matmul
from tests.dataflow.interpreter import interpret
from tests.dataflow.walker import check_walked

ALL = ("Weights", "Inputs", "Outputs")
PRICES = {"read": 2.0, "write": 3.0, "update": 3.0}


def machine(levels: int) -> Accelerator:
    """Return levels that hold anything, each feeding 8 x 8 of the next."""
    return Accelerator(
        name="tiny",
        source="made up",
        mac=Mac(mesh=(8**levels, 8**levels), energy_pj=1.0),
        levels=tuple(
            Level(
                name=f"L{k}",
                mesh=(8**k, 8**k),
                kind="sram" if k else "dram",
                width_bits=16,
                word_bits=16,
                depth=1 << 20 if k else None,
                energy_pj=PRICES,
                may_keep=(ALL,),
            )
            for k in range(levels)
        ),
    )


LAYERS = st.one_of(
    st.builds(
        lambda m, c, r, p, q, stride, dilation: conv(
            "c", m=m, c=c, r=r, s=2, p=p, q=q, stride=stride, dilation=dilation
        ),
        st.sampled_from([1, 2]),
        st.sampled_from([1, 2]),
        st.sampled_from([1, 2, 3]),
        st.sampled_from([1, 2, 4]),
        st.sampled_from([2, 3]),
        st.integers(1, 3),
        st.integers(1, 2),
    ),
    st.builds(
        lambda c, p, s: dwconv("d", c=c, r=3, s=2, p=p, q=4, stride=s),
        st.sampled_from([1, 2, 4]),
        st.sampled_from([2, 4]),
        st.integers(1, 2),
    ),
    st.builds(
        lambda n, c, m: matmul("g", n=n, c=c, m=m),
        st.sampled_from([1, 2, 4]),
        st.sampled_from([2, 4, 6]),
        st.sampled_from([2, 3, 4]),
    ),
    st.builds(lambda b, n: bmm("b", b=b, n=n, c=3, m=2), st.integers(1, 3), st.integers(1, 4)),
)


@st.composite
def nests(draw: st.DrawFn) -> tuple[Layer, LoopNest]:
    """Draw a layer, a place for each of its prime factors, loop orders and bypasses."""
    layer = draw(LAYERS)
    levels = draw(st.integers(2, 4))
    slots: dict[tuple[int, int], dict[str, int]] = {}
    for dim, bound in layer.extents.items():
        for prime in primes_of(bound):
            slot = slots.setdefault((draw(st.integers(0, levels - 1)), draw(st.integers(0, 2))), {})
            slot[dim] = slot.get(dim, 1) * prime
    found = []
    for k in range(levels):
        temporal = draw(st.permutations(list(slots.get((k, 0), {}).items())))
        keep = ALL if k == 0 else tuple(draw(st.sets(st.sampled_from(ALL))))
        sides = (tuple(slots.get((k, side), {}).items()) for side in (1, 2))
        found.append(LevelLoops(f"L{k}", keep, tuple(temporal), *sides))
    return layer, LoopNest(tuple(found))


@settings(max_examples=400, deadline=None)
@given(nest=nests())
def test_closed_form_counts_match_a_full_walk(nest: tuple[Layer, LoopNest]) -> None:
    layer, mapping = nest
    accelerator = machine(len(mapping.levels))
    result = evaluated(mapping, layer, accelerator)
    if result == "loops_exceed_array":
        return
    assert isinstance(result, Evaluation)
    counted = {(t.level, t.tensor): (t.reads, t.fills, t.updates) for t in result.traffic}
    assert counted == interpret(layer, mapping)


@st.composite
def cut_nests(draw: st.DrawFn) -> tuple[Layer, LoopNest]:
    """Draw loops with remainders: the outermost loop ends at the dimension boundary."""
    layer = draw(LAYERS)
    levels = draw(st.integers(2, 3))
    slots: dict[tuple[int, int], dict[str, int]] = {}
    for dim, bound in layer.extents.items():
        places = [(k, side) for k in range(levels) for side in range(3)]
        inner = 1
        chosen = sorted(draw(st.sets(st.sampled_from(places), min_size=1, max_size=3)))
        for place in chosen[:0:-1]:
            times = draw(st.integers(1, 3))
            if inner * times < bound:
                slots.setdefault(place, {})[dim] = times
                inner *= times
        slots.setdefault(chosen[0], {})[dim] = -(-bound // inner)
    found = []
    for k in range(levels):
        temporal = draw(st.permutations(list(slots.get((k, 0), {}).items())))
        keep = ALL if k == 0 else tuple(draw(st.sets(st.sampled_from(ALL))))
        sides = (tuple(slots.get((k, side), {}).items()) for side in (1, 2))
        found.append(LevelLoops(f"L{k}", keep, tuple(temporal), *sides))
    return layer, LoopNest(tuple(found))


@pytest.mark.slow  # test_access_by_hand covers remainders in the quick run
@settings(max_examples=300, deadline=None)
@given(nest=cut_nests())
def test_remainder_tiles_match_a_full_walk(nest: tuple[Layer, LoopNest]) -> None:
    layer, mapping = nest
    instances = math.prod(
        b for level in mapping.levels for _, b in (*level.spatial_x, *level.spatial_y)
    )
    assume(instances * layer.macs < 1000)
    accelerator = machine(len(mapping.levels))
    result = evaluated(mapping, layer, accelerator)
    if result == "loops_exceed_array":
        return
    assert isinstance(result, Evaluation)
    check_walked(result, layer, mapping)


@settings(max_examples=50, deadline=None)
@given(nest=st.one_of(nests(), cut_nests()))
def test_compiled_and_python_counts_are_bit_equal(nest: tuple[Layer, LoopNest]) -> None:
    layer, mapping = nest
    accelerator = machine(len(mapping.levels))
    loops, keep = encode(mapping, layer, accelerator)
    answers = []
    for run in (evaluate, evaluate.py_func):
        counts, out = np.zeros((keep.size, 3, 3), np.int64), np.zeros(4)
        verdict = run(problem_of(layer, accelerator), loops, keep, counts, out)
        answers.append((verdict, counts.tolist(), out.tolist()))
    assert answers[0] == answers[1]


@settings(max_examples=50, deadline=None)
@given(nest=nests())
def test_mapping_survives_encoding(nest: tuple[Layer, LoopNest]) -> None:
    layer, mapping = nest
    accelerator = machine(len(mapping.levels))
    again = decode(*encode(mapping, layer, accelerator), layer, accelerator)
    assert evaluated(again, layer, accelerator) == evaluated(mapping, layer, accelerator)


@given(m=st.integers(1, 9), n=st.integers(1, 9), a=st.integers(1, 12), b=st.integers(1, 12))
def test_coinciding_diagonals_are_counted_once(m: int, n: int, a: int, b: int) -> None:
    assert distinct_sums(m, a, n, b) == len({a * i + b * j for i in range(m) for j in range(n)})


def test_multi_stage_network_sends_shared_diagonals_twice() -> None:
    layer = conv("c", m=1, c=1, r=1, s=3, p=1, q=4)
    plain = machine(2)
    staged = dataclasses.replace(
        plain, levels=tuple(dataclasses.replace(level, staged=True) for level in plain.levels)
    )
    mapping = LoopNest((LevelLoops("L0", ALL, (), (("Q", 4),), (("S", 3),)), LevelLoops("L1", ALL)))
    reads = []
    for accelerator in (plain, staged):
        result = evaluated(mapping, layer, accelerator)
        assert isinstance(result, Evaluation)
        reads += [t.reads for t in result.traffic if (t.level, t.tensor) == ("L0", "Inputs")]
    assert reads == [6, 12]


def test_bandwidth_changes_time_but_not_energy() -> None:
    layer = matmul("g", n=8, c=8, m=8)
    free = machine(2)
    slow = dataclasses.replace(free.levels[0], shared_words_per_cycle=0.5)
    tight = dataclasses.replace(free, levels=(slow, *free.levels[1:]))
    mapping = LoopNest(
        (LevelLoops("L0", ALL, (("N", 8), ("M", 8))), LevelLoops("L1", ALL, (("C", 8),)))
    )
    one, other = (evaluated(mapping, layer, a) for a in (free, tight))
    assert isinstance(one, Evaluation)
    assert isinstance(other, Evaluation)
    words = sum(t.reads + t.fills + t.updates for t in one.traffic if t.level == "L0")
    assert (one.cycles, other.cycles) == (512, 2 * words)
    assert one.energy_pj == other.energy_pj


def test_einsum_equals_the_written_layer() -> None:
    spelt = einsum(
        "c",
        "Outputs[N,M,P,Q] += Inputs[N,C,R+2*P,S+2*Q] * Weights[C,M,R,S]",
        N=1,
        C=3,
        M=4,
        R=3,
        S=3,
        P=5,
        Q=5,
    )
    assert spelt.tensors == conv("c", m=4, c=3, r=3, s=3, p=5, q=5, stride=2).tensors


@pytest.mark.parametrize(
    ("projection", "said"),
    [
        ("O[m] = I[k] * W[m,k]", "not of the form"),
        ("O[m] += I[k-1] * W[m,k]", "not a sum"),
        ("O[m] += I[z] * W[m,k]", "uses 'z'"),
    ],
)
def test_unreadable_projection_raises_a_user_error(projection: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        einsum("mine", projection, m=2, k=2)


def test_layer_with_overflowing_counts_is_refused() -> None:
    with pytest.raises(UserError, match="too large"):
        matmul("huge", n=1 << 30, c=1 << 30, m=1 << 10)
