"""Schedules of small networks that are counted by hand: transfers, contention, the DRAM port."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from simulators.catalog.accelerator import Accelerator, load_accelerator
from simulators.dataflow.network import ENTRY, OUTSIDE, LayerGraph, LayerNode, stored
from simulators.multicore.allocation import Allocator, CoreSchedule
from simulators.multicore.chip import MulticoreChip, links_of
from simulators.multicore.core_state import (
    BETWEEN,
    L2_USED,
    READ,
    SPILLED,
    WEIGHTS,
    WRITTEN,
    state_of,
)
from simulators.multicore.costs import TileCost
from simulators.multicore.events import run
from simulators.multicore.nodes import CHANNELS, ROWS, Nodes
from simulators.workload.loop_nest import Layer, conv, matmul

US = 1e-6
CORE = load_accelerator("two_level")
"""A core with words of two bytes and a buffer of 128 KiB for weights and tensors."""


def chip(cores: int, noc: str = "bus", **changes: Any) -> MulticoreChip:
    """Return a chip whose links and DRAM port move one byte per nanosecond."""
    plain = MulticoreChip(
        name="by hand",
        cores=(CORE,) * cores,
        links=links_of(cores, noc, 1e9, 1.0),
        dram_bytes_per_s=1e9,
        dram_pj_per_bit=10.0,
    )
    return dataclasses.replace(plain, **changes)


def a_microsecond(layer: Layer, core: Accelerator) -> TileCost:
    """Return a cost of one microsecond and one nanojoule for any tile."""
    return TileCost(US, 1e-9, (0, 0, 0))


def by_row(layer: Layer, core: Accelerator) -> TileCost:
    """Return a cost of one microsecond per row."""
    return TileCost(layer.extents["N"] * US, 1e-9, (0, 0, 0))


def graph(*nodes: LayerNode) -> LayerGraph:
    """Return the network of some nodes."""
    return LayerGraph(stored(nodes))


def schedule(
    network: LayerGraph,
    on: MulticoreChip,
    allocation: Sequence[int],
    tiles: int = 1,
    cost: Any = a_microsecond,
) -> CoreSchedule:
    """Return the schedule of an allocation."""
    return Allocator(Nodes(network, on, tiles, cost), lambda j, s: s).evaluate(allocation)


UP = matmul("up", n=8, c=16, m=32)  # inputs 256 B, weights 1,024 B, outputs 512 B
DOWN = matmul("down", n=8, c=32, m=16)  # weights 1,024 B, outputs 256 B
PAIR = graph(LayerNode(UP, (ENTRY,)), LayerNode(DOWN, (0,)))


def test_two_layers_on_one_core_load_weights_ahead_and_move_nothing_between_cores() -> None:
    found = schedule(PAIR, chip(1), [0, 0])
    # Weights 1.024 and inputs 0.256; the other weights arrive while the first layer computes.
    assert found.state.start_s[-2:] == pytest.approx([1.28 * US, 2.304 * US])
    assert found.latency_s == pytest.approx((2.304 + 1.0 + 0.256) * US)
    assert found.state.sums[BETWEEN] == 0.0


def test_two_layers_on_two_cores_wait_for_the_transfer_between_them() -> None:
    found = schedule(PAIR, chip(2), [0, 1])
    # 1.024 + 0.256 until the operands are there, 1 of work, 0.512 on the bus, 1 of work, 0.256 out.
    assert found.state.start_s[-2:] == pytest.approx([1.28 * US, 2.792 * US])
    assert found.latency_s == pytest.approx(4.048 * US)
    assert found.state.sums[BETWEEN] == 512.0
    assert found.state.sums[READ] == 256.0 + 2 * 1024.0
    assert found.state.sums[WEIGHTS] == 2 * 1024.0
    assert found.state.sums[WRITTEN] == 256.0


def test_energy_is_that_of_cores_and_of_bits_on_links() -> None:
    found = schedule(PAIR, chip(2), [0, 1])
    assert found.compute_j == pytest.approx(2e-9)
    assert found.link_j[0] == pytest.approx(512 * 8 * 1e-12)
    assert found.link_j[1] == pytest.approx((256 + 2048 + 256) * 8 * 10e-12)
    assert found.energy_j == pytest.approx(found.compute_j + found.link_j.sum())


FORK = graph(
    LayerNode(UP, (ENTRY,)),
    LayerNode(DOWN, (0,)),
    LayerNode(dataclasses.replace(DOWN, name="other"), (0,)),
)


def test_readers_on_two_cores_wait_for_each_other_on_a_bus_but_not_on_a_mesh() -> None:
    bus = schedule(FORK, chip(3, dram_bytes_per_s=1e15), [0, 1, 2])
    mesh = schedule(FORK, chip(3, "mesh", dram_bytes_per_s=1e15), [0, 1, 2])
    first = bus.state.end_s[1]
    assert bus.state.start_s[-2:] - first == pytest.approx([0.512 * US, 1.024 * US])
    assert mesh.state.start_s[-2:] - first == pytest.approx([0.512 * US, 0.512 * US])


def test_weights_of_the_third_core_arrive_last_through_the_dram_port() -> None:
    fast = chip(3, "mesh", links=links_of(3, "mesh", 1e12, 0.0))
    found = schedule(FORK, fast, [0, 1, 2])
    # The port sends 1,024 and 256 bytes to core 0, then 1,024 to core 1 and to core 2.
    assert found.state.start_s[-1] == pytest.approx((1.28 + 2 * 1.024) * US)


def test_two_independent_layers_share_the_dram_port() -> None:
    both = graph(LayerNode(UP, (OUTSIDE,)), LayerNode(UP, (OUTSIDE,)))
    one = schedule(both, chip(2), [0, 1])
    assert one.state.start_s[-2:] == pytest.approx([1.28 * US, 2.56 * US])
    two = schedule(both, chip(2, dram_bytes_per_s=2e9), [0, 1])
    assert two.state.start_s[-2:] == pytest.approx([0.64 * US, 1.28 * US])


def test_rows_flow_through_two_cores_as_a_pipeline() -> None:
    fast = chip(2, links=links_of(2, "bus", 1e15, 0.0), dram_bytes_per_s=1e15)
    layers = schedule(PAIR, fast, [0, 1], tiles=1, cost=by_row)
    rows = schedule(PAIR, fast, [0, 1], tiles=8, cost=by_row)
    assert layers.latency_s == pytest.approx(16 * US, rel=1e-4)
    assert rows.latency_s == pytest.approx(9 * US, rel=1e-4)
    assert rows.state.sums[WEIGHTS] == 2048.0  # they stay for all tiles


def test_a_layer_that_shares_its_rows_or_channels_takes_half_the_time() -> None:
    fast = chip(2, links=links_of(2, "bus", 1e15, 0.0), dram_bytes_per_s=1e15)

    def macs(layer: Layer, core: Accelerator) -> TileCost:
        return TileCost(layer.macs * 1e-9, 0.0, (0, 0, 0))

    alone = schedule(PAIR, fast, [0, 0], cost=macs)
    for place in (ROWS, CHANNELS):
        found = schedule(PAIR, fast, [place, place], cost=macs)
        assert found.latency_s == pytest.approx(alone.latency_s / 2, rel=1e-4)
    assert schedule(PAIR, fast, [ROWS, ROWS]).state.sums[WEIGHTS] == 2 * 2048.0
    assert schedule(PAIR, fast, [CHANNELS, CHANNELS]).state.sums[WEIGHTS] == 2048.0


def test_a_filter_of_three_rows_waits_for_the_next_tile() -> None:
    first = conv("first", m=8, c=8, r=1, s=1, p=8, q=8)
    second = conv("second", m=8, c=8, r=3, s=3, p=8, q=8)
    network = graph(LayerNode(first, (ENTRY,)), LayerNode(second, (0,)))
    fast = chip(2, links=links_of(2, "bus", 1e15, 0.0), dram_bytes_per_s=1e15)
    found = schedule(network, fast, [0, 1], tiles=4)
    # Tile 0 of the second layer reads rows 0 to 2: tiles 0 and 1 of the first.
    assert found.latency_s == pytest.approx(6 * US, rel=1e-3)


WIDE = 24_000  # words: two tensors of 48,000 bytes fit into 131,072, three do not
HELD = graph(
    LayerNode(matmul("a", n=1, c=1, m=WIDE), (ENTRY,)),
    LayerNode(matmul("b", n=1, c=WIDE, m=WIDE), (0,)),
    LayerNode(matmul("c", n=1, c=WIDE, m=WIDE), (1,)),
    LayerNode(matmul("d", n=1, c=WIDE, m=1), (2,)),
    LayerNode(matmul("e", n=1, c=WIDE, m=1), (0,), adds=(3,)),
)


def test_a_tensor_that_does_not_fit_beside_others_goes_to_dram_or_to_the_l2() -> None:
    spilled = schedule(HELD, chip(1), [0] * 5)
    held = [1] + [0] * 2 + [1] * 2  # whether weights stay; the others are streamed, at no cost here
    weights = 2 * WIDE * sum(held)
    # The output of a goes out and in again, and so do the input and the output.
    assert spilled.state.sums[SPILLED] == 2 * WIDE
    assert spilled.state.sums[WRITTEN] == 2 * WIDE + 2
    assert spilled.state.sums[READ] == 2 * WIDE + 2 + weights
    kept = schedule(HELD, chip(1, l2_bytes=1e6), [0] * 5)
    assert kept.state.sums[SPILLED] == 0.0
    assert kept.state.sums[WRITTEN] == 2
    assert kept.state.sums[READ] == 2 + weights
    apart = schedule(HELD, chip(2), [0, 1, 1, 1, 0])
    assert apart.state.sums[SPILLED] == 0.0


@pytest.mark.parametrize("tiles", [1, 3, 8])
@pytest.mark.parametrize("network", [PAIR, FORK, HELD])
def test_compiled_and_interpreted_loops_give_the_same_bits(network: LayerGraph, tiles: int) -> None:
    on = chip(3, "mesh", l2_bytes=50_000.0)
    allocator = Allocator(Nodes(network, on, tiles, by_row), lambda j, s: s)
    allocation = [0, ROWS, CHANNELS, 2, 0][: len(network.nodes)]
    allocation = [p if p in allocator.nodes.places(k) else 1 for k, p in enumerate(allocation)]
    found = allocator.evaluate(allocation)
    again = state_of(found.work, allocator.fabric)
    assert run.py_func(found.work, allocator.fabric, again) == found.latency_s
    for one, other in zip(found.state, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_search_finds_the_best_of_all_allocations_and_the_bound_holds() -> None:
    allocator = Allocator(Nodes(FORK, chip(2), 2, by_row), lambda j, s: s)
    best = allocator.best(budget=1000, seed=0)
    assert best.is_optimal
    bound_s = allocator.latency_bound_s()
    for a in allocator.nodes.places(0):
        for b in allocator.nodes.places(1):
            for c in allocator.nodes.places(2):
                found = allocator.evaluate([a, b, c])
                assert best.latency_s <= found.latency_s
                assert bound_s <= found.latency_s


POOLED = graph(
    LayerNode(conv("c1", m=24, c=3, r=3, s=3, p=57, q=57), (ENTRY,)),
    LayerNode(conv("c2", m=24, c=24, r=3, s=3, p=28, q=28), (0,)),
    LayerNode(conv("c3", m=40, c=24, r=1, s=1, p=28, q=28), (1,)),
    LayerNode(conv("c4", m=40, c=24, r=3, s=3, p=28, q=28), (1,), adds=(2,)),
    LayerNode(matmul("fc", n=1, c=40 * 49, m=20), (3,)),
)


@pytest.mark.parametrize("tiles", [1, 7, 57])
def test_all_allocations_end_and_keep_memories_within_their_capacity(tiles: int) -> None:
    on = chip(3, "mesh", l2_bytes=20_000.0)
    allocator = Allocator(Nodes(POOLED, on, tiles, a_microsecond), lambda j, s: s)
    draws = np.random.default_rng(tiles)
    bound_s = allocator.latency_bound_s()
    for _ in range(25):
        places = [allocator.nodes.places(k) for k in range(5)]
        found = allocator.evaluate([p[draws.integers(len(p))] for p in places])
        state = found.state
        assert state.peak.max() <= allocator.fabric.tensor_bytes.max()
        assert state.tensor_used.tolist() == state.weight_used.tolist() == [0.0] * 3
        assert state.sums[L2_USED] == 0.0
        assert bound_s <= found.latency_s
