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
    """Return the file's graph with shapes inferred for a batch."""
    try:
        import onnx
    except ImportError as error:
        raise UserError(
            "an ONNX file needs the package onnx: pip install 'sweeper[onnx]'"
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
    """State of the conversion: nodes and values so far."""

    def __init__(self, path: Path, proto: Any) -> None:
        self.path = path
        self.sketch = Sketch(path.stem)
        self.known = {
            operator: (group, kind)
            for group, kinds in read_toml(OPERATORS).items()
            for kind, operators in kinds.items()
            for operator in operators
        }
        self.weights: dict[str, Shape] = {w.name: tuple(w.dims) for w in proto.initializer}
        values = (*proto.input, *proto.value_info, *proto.output)
        self.shapes = {v.name: _shape_of(v) for v in values}
        self.drawn: dict[str, int] = {}
        for value in proto.input:
            if value.name not in self.weights:
                shape = self._shape(value.name)
                self.drawn[value.name] = self.sketch.input(shape, value.name)

    def add(self, node: Any) -> None:
        """Convert one operator; results that depend on shapes only count as weights, at no cost."""
        kind, result = node.op_type, node.output[0]
        if kind not in self.known:
            raise UserError(
                f"{self.path}: operator '{kind}' of node '{node.name}' is not supported"
                f"{suggestion(kind, self.known)}"
            )
        inputs = [self.drawn[name] for name in node.input if name in self.drawn]
        own = tuple(self.weights[name] for name in node.input if name in self.weights)
        if self.known[kind][1] == "constant" or not inputs:
            for name in node.output:
                self.weights[name] = self.shapes.get(name) or ()
            return
        for name in node.output:
            if name:
                self.drawn[name] = self._draw(node, inputs, own, self._shape(name, result))
                break
        for name in node.output[1:]:
            if name and name in self.shapes:
                self.drawn[name] = self.sketch.part(inputs[0], self._shape(name))

    def _draw(self, node: Any, inputs: list[int], own: tuple[Shape, ...], shape: Shape) -> int:
        g, kind, name = self.sketch, node.op_type, node.name
        if kind == "Conv":
            strides = _attribute(node, "strides", [1])
            groups = _attribute(node, "group", 1)
            return g.node(
                "conv", inputs, shape, weights=own, name=name, stride=strides[0], groups=groups
            )
        if kind in ("Gemm", "MatMul"):
            if own and len(inputs) == 1:
                return g.node("linear", inputs, shape, weights=own, name=name)
            return g.node("matmul", inputs[:2], shape, name=name)
        if kind == "Gather":
            if own:
                return g.node("embedding", inputs, shape, weights=own[:1], name=name)
            return g.part(inputs[0], shape, name=name)
        group, ours = self.known[kind]
        if ours == "view":
            whole = math.prod(shape) == g.nodes[inputs[0]].numbers
            return g.view(inputs[0], shape) if whole else g.part(inputs[0], shape, name=name)
        if group == "moves":
            return g.node(ours, inputs, shape, name=name)
        if group == "norms":
            return g.node(ours, inputs[:1], shape, weights=own[:2], name=name)
        if group == "binary" and len(inputs) == 1:
            ours = "scale"
        return g.node(ours, inputs, shape, weights=own, name=name)

    def _shape(self, name: str, node: str = "") -> Shape:
        shape = self.shapes.get(name)
        if shape is None:
            raise UserError(
                f"{self.path}: the shape of '{name or node}' cannot be inferred; state all sizes "
                "of the model's inputs but the first"
            )
        return shape or (1,)


def _shape_of(value: Any) -> Shape | None:
    """Return a value's shape, or None if a dimension is unknown."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    sizes = tuple(rank.dim_value for rank in tensor.shape.dim)
    return sizes if all(size > 0 for size in sizes) else None


def _attribute(node: Any, name: str, otherwise: Any) -> Any:
    """Return an integer attribute of a node, or a list of integers."""
    for attribute in node.attribute:
        if attribute.name == name:
            return list(attribute.ints) or attribute.i
    return otherwise
