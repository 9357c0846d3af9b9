"""Read an ONNX file as a graph: operators become nodes, initialisers become weights.

ONNX infers shapes with the first dimension of every input set to the batch size. Reading needs the
package `onnx`, an extra that is imported when a file is read.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError, suggestion
from simulators.core.folder import read_toml
from simulators.workload.graphs.graph import Graph, Load, Shape, Sketch

OPERATORS = Path(__file__).with_name("onnx_operators.toml")


def graph_of_onnx(path: Path, load: Load) -> Graph:
    """Return the graph of an ONNX file for a batch.

    Raises:
        UserError: the package is missing, the file is not an ONNX model, an operator is unknown,
            or a shape cannot be inferred.
    """
    proto = _read(path, load.batch)
    reader = _Reader(path, proto)
    for node in proto.node:
        reader.add(node)
    return reader.sketch.graph()


def _read(path: Path, batch: int) -> Any:
    try:
        import onnx
    except ImportError as error:
        raise UserError(
            "an ONNX file needs the package onnx: pip install 'mlsweeper[onnx]'"
        ) from error
    try:
        model = onnx.load(str(path), load_external_data=False)
        weights = {weight.name for weight in model.graph.initializer}
        for value in model.graph.input:
            ranks = value.type.tensor_type.shape.dim
            if value.name not in weights and len(ranks):
                ranks[0].dim_value = batch
        for value in (*model.graph.output, *model.graph.value_info):
            value.type.tensor_type.ClearField("shape")
        return onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.onnx_cpp2py_export.checker.ValidationError, ValueError, OSError) as error:
        raise UserError(f"{path} is not a readable ONNX model: {error}") from error
    except Exception as error:
        if type(error).__module__.startswith(("google.protobuf", "onnx")):
            raise UserError(f"{path} is not a readable ONNX model: {error}") from error
        raise


class _Reader:
    """Converts operators in file order, and keeps the nodes and shapes of values so far."""

    def __init__(self, path: Path, proto: Any) -> None:
        self.path = path
        self.sketch = Sketch(path.stem)
        self.kinds = {
            operator: (group, kind)
            for group, kinds in read_toml(OPERATORS).items()
            for kind, operators in kinds.items()
            for operator in operators
        }
        self.weights: dict[str, Shape] = {w.name: tuple(w.dims) for w in proto.initializer}
        values = (*proto.input, *proto.value_info, *proto.output)
        self.shapes = {value.name: _shape_of(value) for value in values}
        self.nodes: dict[str, int] = {}  # node that computes a value
        for value in proto.input:
            if value.name not in self.weights:
                shape = self._shape(value.name)
                self.nodes[value.name] = self.sketch.input(shape, value.name)

    def add(self, node: Any) -> None:
        """Convert one operator. Results that depend on shapes alone become free weights."""
        kind, result = node.op_type, node.output[0]
        if kind not in self.kinds:
            raise UserError(
                f"{self.path}: operator '{kind}' of node '{node.name}' is not supported"
                f"{suggestion(kind, self.kinds)}"
            )
        inputs = [self.nodes[name] for name in node.input if name in self.nodes]
        weights = tuple(self.weights[name] for name in node.input if name in self.weights)
        if self.kinds[kind][1] == "constant" or not inputs:
            for name in node.output:
                self.weights[name] = self.shapes.get(name) or ()
            return
        if first := next(filter(None, node.output), ""):
            self.nodes[first] = self._node(node, inputs, weights, self._shape(first, result))
        for name in node.output[1:]:
            if name and name in self.shapes:
                self.nodes[name] = self.sketch.part(inputs[0], self._shape(name))

    def _node(self, node: Any, inputs: list[int], weights: tuple[Shape, ...], shape: Shape) -> int:
        """Return the number of the graph's node with the traffic of an operator."""
        g, kind, name = self.sketch, node.op_type, node.name
        if kind == "Conv":
            stride, groups = _attribute(node, "strides", [1])[0], _attribute(node, "group", 1)
            return g.node(
                "conv", inputs, shape, weights=weights, name=name, stride=stride, groups=groups
            )
        if kind in ("Gemm", "MatMul"):
            if weights and len(inputs) == 1:
                return g.node("linear", inputs, shape, weights=weights, name=name)
            return g.node("matmul", inputs[:2], shape, name=name)
        if kind == "Gather":
            if weights:
                return g.node("embedding", inputs, shape, weights=weights[:1], name=name)
            return g.part(inputs[0], shape, name=name)
        group, ours = self.kinds[kind]
        if ours == "view":
            keeps_size = math.prod(shape) == g.nodes[inputs[0]].numbers
            return g.view(inputs[0], shape) if keeps_size else g.part(inputs[0], shape, name=name)
        if group == "moves":
            return g.node(ours, inputs, shape, name=name)
        if group == "norms":
            return g.node(ours, inputs[:1], shape, weights=weights[:2], name=name)
        if group == "binary" and len(inputs) == 1:
            ours = "scale"
        return g.node(ours, inputs, shape, weights=weights, name=name)

    def _shape(self, name: str, node: str = "") -> Shape:
        """Return the shape of a value; scalars are (1,). Raises UserError if it is unknown."""
        shape = self.shapes.get(name)
        if shape is None:
            raise UserError(
                f"{self.path}: the shape of '{name or node}' cannot be inferred; state all sizes "
                "of the model's inputs but the first"
            )
        return shape or (1,)


def _shape_of(value: Any) -> Shape | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    sizes = tuple(rank.dim_value for rank in tensor.shape.dim)
    return sizes if all(size > 0 for size in sizes) else None


def _attribute(node: Any, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return list(attribute.ints) or attribute.i
    return default
