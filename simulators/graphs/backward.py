"""The kernels of a backward pass: what each operator's derivative is written in.

The formulas are those of PyTorch's `derivatives.yaml`, as streams over memory where they are no
products: softmax multiplies gradient and result before it takes row sums, dropout turns its mask
into numbers, scales them and multiplies. A result that several operators read gets its gradients
summed, one kernel per further reader. Gradients are stored, not added to older ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from simulators.graphs.forward import (
    BACKWARD,
    DEPTHWISE,
    KernelLaunch,
    Moved,
    gemm,
    product,
    stream,
)
from simulators.workload.graphs.graph import ACTIVATIONS, PRODUCTS, Graph, Node
from simulators.workload.operators import Attention, Compute, Gemm
from simulators.workload.precision import BYTES

READ_WRITE: Moved = (1.0, 1.0)
BINARY: Moved = (2.0, 1.0)
READ: Moved = (2.0, 0.0)

DERIVATIVES: dict[str, tuple[Moved, ...]] = {
    **dict.fromkeys(("input", "weight", "view", "copy", "scatter", "shift", "add", "sum"), ()),
    **dict.fromkeys(("part", "scale", "mask"), (READ_WRITE,)),  # slices are put together
    **dict.fromkeys(ACTIVATIONS, (BINARY,)),
    "pow": (READ_WRITE, READ_WRITE, BINARY),  # x^(p-1), p times that, times the gradient
    "rsqrt": (BINARY, READ_WRITE),
    "softmax": (BINARY, BINARY),
    "layer_norm": (BINARY, READ),
    "rms_norm": (BINARY, READ),  # of the input; of the weights
    "batch_norm": (READ, BINARY),
    "group_norm": (READ, BINARY, READ),
    "pool": (READ_WRITE,),
    "mean": ((0.0, 1.0),),
}
"""Kernels of the derivatives that depend on nothing but the size of a result."""

ATTENTION_BACKWARD = 2.5
"""Products of fused attention's backward pass over those of its forward: scores once more, and two
for each of the two forward products (Dao et al., FlashAttention, 2022)."""


def backward_launches(graph: Graph, dtype: str) -> tuple[KernelLaunch, ...]:
    """Return the kernels of a backward pass, last operators first."""
    readers, found = graph.readers(), list[KernelLaunch]()
    for position, node in reversed(list(enumerate(graph.nodes))):
        sums = [(kernel, "") for kernel in _sums(graph, readers[position], node, dtype)]
        kernels = _derivative(graph, node, dtype)
        paces = (DEPTHWISE[1:] if node.is_depthwise else ()) + ("",) * len(kernels)
        for kernel, pace in (*sums, *zip(kernels, paces, strict=False)):
            found.append(KernelLaunch(kernel, node.repeat, node.name, BACKWARD, pace=pace))
    return tuple(found)


def _sums(graph: Graph, readers: tuple[int, ...], node: Node, dtype: str) -> Iterator[Compute]:
    """Yield a sum for each reader beyond the first; slices are put together, not summed."""
    if node.kind not in ("input", "weight"):
        whole = [r for r in readers if graph.nodes[r].kind != "part"]
        for _ in whole[1:]:
            yield stream(float(node.numbers), BINARY, dtype)


def _derivative(graph: Graph, node: Node, dtype: str) -> tuple[Compute, ...]:
    """Return the kernels of one operator's derivative."""
    kind, size = node.kind, float(node.numbers)
    if kind in PRODUCTS:
        return _product_derivative(graph, node, dtype)
    byte = 1.0 / BYTES[dtype]
    if kind == "mul":
        return tuple(_factors(graph, node, dtype))
    if kind == "dropout":
        moved: tuple[Moved, ...] = ((byte, 1.0), READ_WRITE, BINARY)
    elif kind == "maximum":  # equal, halved there; chosen; smaller, none there
        moved = ((1.0, byte), READ_WRITE, (2.0 + byte, 1.0), (1.0, byte), (1.0 + byte, 1.0))
    elif kind in ("embedding", "embedding_bag", "gather"):
        table = math.prod(node.weights[0] if node.weights else graph.shape(node))
        return stream(float(table), (0.0, 1.0), dtype), stream(size, BINARY, dtype)
    else:
        moved = DERIVATIVES[kind]
    if kind in ("mean", "pool"):
        size = float(math.prod(graph.shape(node)))
    return tuple(stream(size, each, dtype) for each in moved)


def _factors(graph: Graph, node: Node, dtype: str) -> Iterator[Compute]:
    """Yield a product per factor with a gradient, and the sum of broadcast factors."""
    for source in node.inputs:
        factor = graph.nodes[source]
        if factor.kind != "input":
            yield stream(float(node.numbers), BINARY, dtype)
            if factor.numbers < node.numbers:
                yield stream(float(node.numbers), (1.0, 0.0), dtype)


def _product_derivative(graph: Graph, node: Node, dtype: str) -> tuple[Compute, ...]:
    """Return the products for the gradients of both factors, and the sum for a bias."""
    forward = product(graph, node, dtype)
    if isinstance(forward, Attention):
        return (replace(forward, pairs=ATTENTION_BACKWARD * forward.pairs),)
    if isinstance(forward, Gemm):
        m, n = node.numbers / node.shape[-1], float(node.shape[-1])
        k, batch = float(graph.shape(node)[-1]), 1.0
        if node.kind == "matmul":
            batch = float(math.prod(node.shape[:-2]))
            m /= batch
        of_input: Compute = gemm(node.name, m, k, n, batch, dtype)
        of_weight: Compute = gemm(node.name, k, n, m, batch, dtype)
        if node.kind == "linear":
            of_weight = gemm(node.name, n, k, m, batch, dtype)
    else:
        of_input = of_weight = forward  # as many products again for either
    bias = (stream(float(node.numbers), (1.0, 0.0), dtype),) if len(node.weights) > 1 else ()
    if graph.nodes[node.inputs[0]].kind == "input":
        return (of_weight, *bias)
    return (of_input, of_weight, *bias)
