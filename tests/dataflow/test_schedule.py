"""Schedules of whole networks: hand counts of DRAM traffic, and AccelForge's optima.

Hand counts: weights, input and output once, and each tensor that a schedule sends through DRAM.
"""

from __future__ import annotations

import pytest

from simulators.core.errors import UserError
from simulators.dataflow.mapping import network, network_names
from simulators.dataflow.network import (
    ENTRY,
    OUTSIDE,
    LayerGraph,
    LayerNode,
    feeds,
    network_graph,
    used_words,
)
from simulators.dataflow.schedule.search import (
    Buffer,
    ScheduleSteps,
    cheapest,
    compulsory_words,
    least_words,
    on_chip,
)
from simulators.dataflow.simulator import SIMULATOR, DataflowPoint, simulate
from simulators.workload.loop_nest import Layer, conv, dwconv, matmul

KIB = 1024
MULTIPLIERS = 168


def words(
    found: LayerGraph, capacity: int, *, lanes: int = MULTIPLIERS, most_layers: int = 8
) -> float:
    return least_words(ScheduleSteps(found, Buffer(1, capacity, lanes, 7, True), most_layers))


def chain(*layers: Layer) -> LayerGraph:
    nodes = [
        LayerNode(one, (k - 1 if k else ENTRY,), OUTSIDE, (), used_words(one, 2))
        for k, one in enumerate(layers)
    ]
    return LayerGraph(tuple(nodes))


RESNET50 = 25_502_912 + 229 * 229 * 3 + 1000
MOBILENET_V2 = 3_469_760 + 225 * 225 * 3 + 1000
BERT = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 2 * 128 * 768


@pytest.mark.parametrize(
    ("name", "kib", "counted"),
    [
        ("resnet50", 2048, RESNET50),
        # The outputs of conv2_2_3x3, conv2_3 and conv3_1_3x3 leave; the skip of conv3_1 reads a
        # quarter of conv2_3.
        (
            "resnet50",
            1024,
            RESNET50 + 2 * (56 * 56 * 64) + (56 * 56 + 28 * 28) * 256 + 2 * (28 * 28 * 128),
        ),
        # conv2_1_3x3, conv2_3, conv3_1, conv3_2 and conv3_4 leave; the skip of conv4_1 reads a
        # quarter of conv3_4 once more.
        (
            "resnet50",
            512,
            RESNET50 + 2 * (56 * 56 * 64 + 56 * 56 * 256 + 3 * 28 * 28 * 512) + 14 * 14 * 512,
        ),
        ("mobilenet_v2", 256, MOBILENET_V2),
        ("mobilenet_v2", 128, MOBILENET_V2 + 2 * 28 * 28 * 32),
        ("mobilenet_v2", 64, MOBILENET_V2 + 2 * (56 * 56 * 24 + 28 * 28 * 32)),
        ("bert_base_128", 512, BERT),
        # Keys, values and the residual leave in every block; the first residual is the input.
        ("bert_base_128", 256, BERT + (12 * 4 + 11 * 2 + 1) * 128 * 768),
        # In every block all but values; the hidden layer counts four times.
        ("bert_base_128", 128, BERT + (12 * 19 - 1) * 128 * 768),
    ],
)
def test_dram_words_equal_the_hand_count(name: str, kib: int, counted: int) -> None:
    assert words(network_graph(name), kib * KIB) == counted


@pytest.mark.parametrize(
    ("layers", "rows", "width", "optima"),
    [
        # AccelForge 1.0.467, architecture snowcat, DRAM bytes by GlobalBuffer bytes: examples
        # matmuls and three_matmuls_annotated.
        (2, 64, 64, {2048: 36864, 4096: 24576, 8192: 16384}),
        (2, 128, 128, {2048: 294912, 4096: 212992, 8192: 147456, 16384: 98304, 65536: 65536}),
        (2, 256, 64, {2048: 147456, 4096: 98304, 8192: 65536, 16384: 40960}),
        (3, 64, 64, {2048: 57344, 4096: 36864, 8192: 24576, 16384: 20480}),
        (3, 128, 128, {2048: 442368, 4096: 327680, 8192: 229376, 16384: 147456, 65536: 81920}),
        (3, 256, 64, {2048: 229376, 4096: 147456, 8192: 98304, 16384: 45056}),
    ],
)
def test_cascades_of_products_have_the_traffic_of_accelforge(
    layers: int, rows: int, width: int, optima: dict[int, int]
) -> None:
    cascade = chain(*[matmul(f"m{k}", n=rows, c=width, m=width) for k in range(layers)])
    assert {size: words(cascade, size, lanes=1) for size in optima} == optima


def mobilenet_blocks() -> LayerGraph:
    block = [
        conv("expand", m=192, c=24, r=1, s=1, p=28, q=28),
        dwconv("depthwise", c=192, r=3, s=3, p=28, q=28),
        conv("project", m=24, c=192, r=1, s=1, p=28, q=28),
    ]
    return chain(*block, *block)


def test_blocks_of_mobilenet_have_at_most_the_traffic_of_accelforge() -> None:
    """AccelForge's example mobilenet_28. In between, kept rows of a window save more."""
    optima = {8192: 805632, 16384: 737280, 32768: 642816, 65536: 59520}
    ours = {size: words(mobilenet_blocks(), size, lanes=1) for size in optima}
    assert all(ours[size] <= 1.02 * optima[size] for size in optima)
    assert ours[65536] == optima[65536]


@pytest.mark.parametrize(
    ("capacity", "rows", "keeps_weights"), [(16384, 4, False), (32768, 7, True)]
)
def test_kept_rows_of_a_window_fit_the_buffer(
    capacity: int, rows: int, keeps_weights: bool
) -> None:
    """Walk the schedule of a block of mobilenet_28, channel by channel, and count every word.

    AccelForge's optimum sends the expanded tensors through DRAM here: its tiles do not keep rows
    of a window for the next tile.
    """
    side, narrow, wide = 28, 24, 192
    weights = 2 * narrow * wide + 9 * wide
    held: dict[int, set[int]] = {channel: set() for channel in range(wide)}  # rows by channel
    moved, most = weights if keeps_weights else 0, 0
    # The depthwise layer needs a row more than a tile has: the expansion runs one row ahead.
    passes = [(0, 1, 0, 0)]
    passes += [(k + 1, min(k + 1 + rows, side), k, k + rows) for k in range(0, side, rows)]
    for first, last, top, bottom in passes:
        moved += (last - first) * side * narrow + (bottom - top) * side * narrow
        for channel in range(wide):
            if not keeps_weights:
                moved += narrow + (9 + narrow if bottom > top else 0)
            held[channel] |= set(range(first, last))
            used = (last - first) * side * narrow + (bottom - top) * side * (narrow + 1)
            used += sum(len(one) for one in held.values()) * side
            most = max(most, used + (weights if keeps_weights else 3))
            needed = range(max(0, top - 1), min(side, bottom + 1))
            assert bottom == top or held[channel] >= set(needed)
            held[channel] = {row for row in held[channel] if row >= bottom - 1}
    assert most <= capacity
    assert 2 * moved == words(mobilenet_blocks(), capacity, lanes=1)


@pytest.mark.parametrize("name", ["mobilenet_v2", "deit_tiny", "alexnet"])
def test_larger_buffers_move_fewer_words(name: str) -> None:
    found = network_graph(name)
    moved = [words(found, kib * KIB) for kib in (64, 128, 256, 1024)]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] >= compulsory_words(found)


def test_longer_groups_never_move_more_words() -> None:
    found = network_graph("mobilenet_v2")
    moved = [words(found, 64 * KIB, most_layers=n) for n in (1, 2, 4, 8)]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < moved[0]


def test_layers_on_chip_are_those_that_are_never_written() -> None:
    found = network_graph("mobilenet_v2")
    steps = ScheduleSteps(found, Buffer(1, 512 * KIB, MULTIPLIERS, 7, True), 8)
    _, chosen = cheapest(steps, lambda step: step.dram_words)
    assert on_chip(steps, chosen) == list(range(len(found.nodes) - 1))


@pytest.mark.parametrize("name", network_names())
def test_graphs_have_the_layers_of_the_network(name: str) -> None:
    nodes = network_graph(name).nodes
    assert sum(n.layer.macs for n in nodes) == sum(one.macs * times for one, times in network(name))
    assert all(producer < k for k, n in enumerate(nodes) for producer in n.producers)
    assert all(n.reads != (OUTSIDE,) for n in nodes)


def test_layers_of_other_shapes_are_not_connected() -> None:
    large = conv("a", m=256, c=64, r=1, s=1, p=112, q=112)
    assert feeds(large, conv("b", m=8, c=256, r=1, s=1, p=56, q=56))
    assert not feeds(large, conv("b", m=8, c=255, r=1, s=1, p=112, q=112))


SMALL = {"network": "mobilenet_v2", "evaluations": 300}


def test_residency_lowers_traffic_energy_and_never_the_goal() -> None:
    kept = simulate(DataflowPoint("eyeriss_like", **SMALL))  # type: ignore[arg-type]
    sent = simulate(DataflowPoint("eyeriss_like", residency="layer", **SMALL))  # type: ignore[arg-type]
    assert kept.edp_js <= sent.edp_js
    assert kept.dram_bytes < 0.5 * sent.dram_bytes
    assert (
        kept.dram_bytes >= kept.dram_bytes_bound == words(network_graph("mobilenet_v2"), 128 * KIB)
    )
    assert kept.on_chip_bytes > 0 == sent.on_chip_bytes
    assert kept.macs == sent.macs


def test_explanation_of_a_schedule_sums_to_the_row() -> None:
    row = simulate(DataflowPoint("eyeriss_like", **SMALL))  # type: ignore[arg-type]
    lines = SIMULATOR.explain({"accelerator": "eyeriss_like", **SMALL})
    assert sum(line.energy_j for line in lines) == pytest.approx(row.energy_j)
    assert sum(line.time_s for line in lines) == pytest.approx(row.latency_s)


def test_batches_share_weights() -> None:
    point = {"network": "bert_base_128", "evaluations": 100, "buffer_bytes": 2.0**22}
    one, four = (simulate(DataflowPoint("two_level", batch=n, **point)) for n in (1, 4))  # type: ignore[arg-type]
    assert four.macs == 4 * one.macs
    assert four.dram_bytes < 2 * one.dram_bytes


def test_unknown_reader_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "net.yaml"
    file.write_text("layers:\n- {name: a, matmul: {n: 1, c: 8, m: 4}, reads: b}\n")
    with pytest.raises(UserError, match="reads 'b', which is no layer before"):
        network_graph(str(file))
