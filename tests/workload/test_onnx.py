"""ONNX files are read as graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulators.core.errors import UserError
from simulators.workload.graphs.families import draw, is_graph_model
from simulators.workload.graphs.graph import Load

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")


def written(path: Path, kind: str = "Relu") -> str:
    """Write a small model of images: convolution, norm, activation, pool, linear."""
    from onnx import TensorProto, helper, numpy_helper

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.zeros(shape, np.float32), name)

    weights = [weight("w", 16, 3, 3, 3), weight("b", 16), weight("fc", 16, 10)]
    weights += [weight(n, 16) for n in ("scale", "shift", "mean", "var")]
    nodes = [
        helper.make_node(
            "Conv", ["x", "w", "b"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1], name="conv"
        ),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"]),
        helper.make_node(kind, ["n"], ["r"], name="act"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "fc"], ["y"], name="head"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 32, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    file = path / "small.onnx"
    onnx.save(model, str(file))
    return str(file)


def test_onnx_file_loads_as_a_graph_for_any_batch(tmp_path: Path) -> None:
    name = written(tmp_path)
    assert is_graph_model(name)
    graph = draw(name, Load(batch=4))
    kinds = [node.kind for node in graph.nodes]
    assert kinds == ["input", "conv", "batch_norm", "relu", "pool", "view", "linear"]
    assert graph.nodes[1].shape == (4, 16, 16, 16)
    assert graph.parameters == 16 * 27 + 16 + 32 + 160
    assert graph.flops == 2 * 4 * (16 * 16 * 16 * 27 + 160)


def test_unknown_onnx_operator_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'Det'|'Softsign'"):
        draw(written(tmp_path, "Softsign"), Load(batch=1))


def test_non_onnx_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"not a model")
    with pytest.raises(UserError, match="not a readable ONNX model"):
        draw(str(tmp_path / "no.onnx"), Load(batch=1))
