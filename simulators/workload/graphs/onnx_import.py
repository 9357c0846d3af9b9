"""Reads an ONNX file as a graph: its operators become nodes, its initialisers their weights.

Shapes are those that ONNX infers once the first rank of every input is the batch. Reading needs the
package `onnx`, an extra that is imported when a file is read.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError, suggestion
from simulators.workload.graphs.graph import Graph, Load, Shape, Sketch

POINTWISE = {
    "Relu": "relu", "LeakyRelu": "relu", "PRelu": "relu", "Clip": "relu", "HardSwish": "silu",
    "Gelu": "gelu", "Erf": "gelu", "Elu": "gelu", "Tanh": "tanh", "Sigmoid": "sigmoid",
    "HardSigmoid": "sigmoid", "Softplus": "sigmoid", "Sqrt": "rsqrt", "Reciprocal": "rsqrt",
    "Exp": "sigmoid", "Log": "sigmoid", "Sin": "tanh", "Cos": "tanh", "Neg": "scale",
    "Abs": "scale", "Cast": "scale", "Not": "scale", "Dropout": "dropout", "Pow": "pow",
    "Where": "mask",
}  # fmt: skip
BINARY = {
    "Add": "add", "Sub": "add", "Sum": "add", "Mul": "mul", "Div": "mul", "Max": "maximum",
    "Min": "maximum", "Equal": "add", "Greater": "add", "Less": "add", "And": "add",
}  # fmt: skip
"""Operators by the kind whose traffic they have; comparisons write as additions do."""

NORMS = {
    "Softmax": "softmax", "LogSoftmax": "softmax", "LayerNormalization": "layer_norm",
    "SimplifiedLayerNormalization": "rms_norm", "RMSNormalization": "rms_norm",
    "BatchNormalization": "batch_norm", "GroupNormalization": "group_norm",
    "InstanceNormalization": "group_norm",
}  # fmt: skip
POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
MEANS = ("ReduceMean", "ReduceSum", "ReduceMax", "ArgMax")
COPIES = ("Transpose", "Concat", "Resize", "Upsample", "Pad", "Expand", "Tile")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Split")
CONSTANTS = ("Constant", "ConstantOfShape", "Shape", "Range")
PRODUCTS = ("Conv", "Gemm", "MatMul", "Gather")

ALL = (
    *POINTWISE, *BINARY, *NORMS, *POOLS, *MEANS, *COPIES, *VIEWS, *CONSTANTS, *PRODUCTS,
)  # fmt: skip


def graph_of_onnx(path: Path, load: Load) -> Graph:
    """Return the graph of an ONNX file for a batch.

    Raises:
        UserError: the package is missing, the file is no ONNX model, an operator is unknown here,
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
    """What of a file has been drawn."""

    def __init__(self, path: Path, proto: Any) -> None:
        self.path = path
        self.sketch = Sketch(path.stem)
        self.weights: dict[str, Shape] = {w.name: tuple(w.dims) for w in proto.initializer}
        values = (*proto.input, *proto.value_info, *proto.output)
        self.shapes = {v.name: _shape_of(v) for v in values}
        self.drawn: dict[str, int] = {}
        for value in proto.input:
            if value.name not in self.weights:
                shape = self._shape(value.name)
                self.drawn[value.name] = self.sketch.input(shape, value.name)

    def add(self, node: Any) -> None:
        """Draw one operator; what follows from shapes alone is a weight, and free."""
        kind, result = node.op_type, node.output[0]
        if kind not in ALL:
            raise UserError(
                f"{self.path}: operator '{kind}' of node '{node.name}' is not known here"
                f"{suggestion(kind, ALL)}"
            )
        inputs = [self.drawn[name] for name in node.input if name in self.drawn]
        own = tuple(self.weights[name] for name in node.input if name in self.weights)
        if kind in CONSTANTS or not inputs:
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
        if kind in VIEWS:
            whole = math.prod(shape) == g.nodes[inputs[0]].numbers
            return g.view(inputs[0], shape) if whole else g.part(inputs[0], shape, name=name)
        groups_of = (
            (POOLS, "pool"), (MEANS, "mean"), (COPIES, "copy"),
        )  # fmt: skip
        for kinds, ours in groups_of:
            if kind in kinds:
                return g.node(ours, inputs, shape, name=name)
        if kind in NORMS:
            return g.node(NORMS[kind], inputs[:1], shape, weights=own[:2], name=name)
        if kind in BINARY:  # with a weight alone it is as good as unary
            ours = BINARY[kind] if len(inputs) > 1 else "scale"
            return g.node(ours, inputs, shape, weights=own, name=name)
        return g.node(POINTWISE[kind], inputs, shape, weights=own, name=name)

    def _shape(self, name: str, node: str = "") -> Shape:
        shape = self.shapes.get(name)
        if shape is None:
            raise UserError(
                f"{self.path}: the shape of '{name or node}' cannot be inferred; state all sizes "
                "of the model's inputs but the first"
            )
        return shape or (1,)


def _shape_of(value: Any) -> Shape | None:
    """Return a value's shape, or nothing where a rank is unknown."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    sizes = tuple(rank.dim_value for rank in tensor.shape.dim)
    return sizes if all(size > 0 for size in sizes) else None


def _attribute(node: Any, name: str, otherwise: Any) -> Any:
    """Return a whole number or a list of them that a node states."""
    for attribute in node.attribute:
        if attribute.name == name:
            return list(attribute.ints) or attribute.i
    return otherwise
