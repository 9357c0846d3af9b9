"""Read an ONNX file as a graph of loop nests for accelerators.

Convolutions and matrix products become layers; a product of two computed tensors reads the second
as weights. Sums (and other arithmetic) of two computed tensors join the layer that runs last.
Reshapes, normalisations, activations and pooling belong to the layer before them.
"""

from __future__ import annotations

import math
from pathlib import Path

from formats.onnx_graph import graph_of_onnx
from simulators.core.errors import UserError
from simulators.dataflow.network import ENTRY, OUTSIDE, LayerGraph, LayerNode, stored
from simulators.workload.graphs.graph import ARITHMETIC, Graph, Load, Node
from simulators.workload.loop_nest import Layer, bmm, conv, dwconv, matmul


def layers_of_onnx(path: Path, batch: int) -> LayerGraph:
    """Return the layers of an ONNX file for a batch, connected as the operators are.

    Raises:
        UserError: the file cannot be read, a convolution has groups that are not depthwise, or the
            file has no layer.
    """
    graph = graph_of_onnx(path, Load(batch=batch))
    nodes: list[LayerNode] = []
    made: list[tuple[int, ...]] = []  # layers that produce each operator's result
    for node in graph.nodes:
        made.append(_converted(node, graph, made, nodes, path))
    if not nodes:
        raise UserError(f"{path} has no convolution and no matrix product")
    return LayerGraph(stored(nodes))


def _converted(
    node: Node, graph: Graph, made: list[tuple[int, ...]], nodes: list[LayerNode], path: Path
) -> tuple[int, ...]:
    """Append a layer for a product; return the layers that produce the operator's result."""
    sources = [made[k] for k in node.inputs]
    if node.kind == "input":
        return (ENTRY,)
    if node.kind in ("conv", "linear"):
        source = graph.nodes[node.inputs[0]]
        layer = _conv(node, path) if node.kind == "conv" else _linear(node, source)
        nodes.append(LayerNode(layer, sources[0] or (OUTSIDE,)))
        return (len(nodes) - 1,)
    if node.kind == "matmul":
        first = graph.nodes[node.inputs[0]]
        rows, keys = node.shape[-2], first.shape[-1]
        heads = math.prod(node.shape[:-2])
        layer = bmm(node.name, b=heads, n=rows, c=keys, m=node.shape[-1])
        second = sources[1] if len(sources) > 1 else ()
        weights_from = second[0] if len(second) == 1 and second[0] >= 0 else OUTSIDE
        nodes.append(LayerNode(layer, sources[0] or (OUTSIDE,), weights_from))
        return (len(nodes) - 1,)
    found = tuple(dict.fromkeys(k for one in sources for k in one))
    if len(found) > 1 and node.kind in ARITHMETIC:
        last = max(found)
        if last >= 0:
            old = nodes[last]
            others = tuple(k for k in found if k != last and k not in old.adds)
            nodes[last] = LayerNode(old.layer, old.reads, old.weights_from, (*old.adds, *others))
            return (last,)
    return found


def _conv(node: Node, path: Path) -> Layer:
    batch, filters, *pixels = node.shape
    _, channels, *taps = node.weights[0]
    (p, q), (r, s) = ([*sizes, 1][:2] for sizes in (pixels, taps))
    if node.is_depthwise:
        return dwconv(node.name, n=batch, c=filters, r=r, s=s, p=p, q=q, stride=node.stride)
    if node.groups > 1:
        raise UserError(f"{path}: node '{node.name}' has {node.groups} groups; only depthwise ones")
    return conv(node.name, n=batch, m=filters, c=channels, r=r, s=s, p=p, q=q, stride=node.stride)


def _linear(node: Node, source: Node) -> Layer:
    keys, columns = source.shape[-1], node.shape[-1]
    return matmul(node.name, n=node.numbers // columns, c=keys, m=columns)
