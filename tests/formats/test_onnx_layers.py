"""ONNX files as networks of the dataflow simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulators.core.errors import UserError
from simulators.dataflow.network import ENTRY, OUTSIDE, network_graph
from simulators.dataflow.simulator import SIMULATOR, DataflowPoint, simulate

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")


def weight(name: str, *shape: int) -> object:
    return onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name)


def saved(folder: Path, nodes: list[object], weights: list[object], shape: list[int]) -> str:
    given, made = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
        for name, sizes in (("x", shape), ("y", None))
    )
    graph = onnx.helper.make_graph(nodes, "g", [given], [made], weights)
    file = folder / "net.onnx"
    onnx.save(onnx.helper.make_model(graph), str(file))
    return str(file)


def residual_block(folder: Path, groups: int = 16) -> str:
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="a", kernel_shape=[1, 1]),
        node("Relu", ["a"], ["r"], name="r"),
        node("Conv", ["r", "w2"], ["b"], name="b", group=groups, pads=[1] * 4),
        node("Conv", ["b", "w3"], ["c"], name="c"),
        node("Add", ["c", "x"], ["s"], name="s"),
        node("GlobalAveragePool", ["s"], ["p"], name="p"),
        node("Flatten", ["p"], ["f"], name="f"),
        node("MatMul", ["f", "w4"], ["y"], name="fc"),
    ]
    weights = [
        weight("w1", 16, 8, 1, 1),
        weight("w2", 16, 16 // groups, 3, 3),
        weight("w3", 8, 16, 1, 1),
        weight("w4", 8, 10),
    ]
    return saved(folder, nodes, weights, [1, 8, 14, 14])


def test_onnx_operators_become_connected_layers(tmp_path: Path) -> None:
    found = network_graph(residual_block(tmp_path), batch=2).nodes
    assert [n.layer.name for n in found] == ["a", "b", "c", "fc"]
    assert [n.reads for n in found] == [(ENTRY,), (0,), (1,), (2,)]
    assert found[2].adds == (ENTRY,)
    assert all(n.weights_from == OUTSIDE for n in found)
    pixels = 2 * 14 * 14
    assert [n.layer.macs for n in found] == [pixels * 8 * 16, pixels * 9 * 16, pixels * 16 * 8, 160]


def test_onnx_networks_are_simulated_and_part_of_the_key(tmp_path: Path) -> None:
    file = residual_block(tmp_path)
    row = simulate(DataflowPoint("two_level", network=file, evaluations=100))
    assert row.macs == 14 * 14 * (8 * 16 + 9 * 16 + 16 * 8) + 80
    one = simulate(DataflowPoint("two_level", network=file, layer="fc", evaluations=100))
    assert one.macs == 80
    assert SIMULATOR.reads("network", file) == (Path(file),)


def test_attention_reads_keys_as_weights(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [
        node("MatMul", ["x", "wq"], ["q"], name="q"),
        node("MatMul", ["x", "wk"], ["k"], name="k"),
        node("Transpose", ["k"], ["kt"], name="kt", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["y"], name="scores"),
    ]
    file = saved(tmp_path, nodes, [weight("wq", 8, 8), weight("wk", 8, 8)], [1, 4, 8])
    scores = network_graph(file).nodes[2]
    assert (scores.reads, scores.weights_from) == ((0,), 1)


def test_groups_that_are_not_depthwise_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 2 groups"):
        network_graph(residual_block(tmp_path, groups=2))
