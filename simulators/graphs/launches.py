"""Kernel launches of a graph: forward pass, fused forward pass and backward pass.

Eager PyTorch launches one or several kernels per operator. A compiler fuses the operators between
two matrix products, as far as they do not depend on a product in between: a group reads its inputs
once and writes its results once (Ansel et al., PyTorch 2, 2024). A backward pass has the kernels of
the derivatives, last operators first, and a sum for each additional reader of a result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulators.workload import operators as ops
from simulators.workload.graphs.graph import (
    ACTIVATIONS,
    PRODUCTS,
    TABLES,
    VIEWS,
    Graph,
    Node,
    Shape,
)
from simulators.workload.operators import Attention, Compute, Gemm
from simulators.workload.precision import BYTES

INFERENCE, FORWARD, BACKWARD, OPTIMIZER = "inference", "forward", "backward", "optimizer"
"""Phases: an inference, and the three phases of a training step."""

DEPTHWISE = ("depthwise", "depthwise_input", "depthwise_weight")
"""Paces of depthwise convolutions: forward, gradient of the input, gradient of the weights."""

Moved = tuple[float, float]
"""Numbers read and written per number of the result."""


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel of a graph's node, with its number of repetitions."""

    kernel: Compute
    repeat: int
    node: str
    phase: str = INFERENCE
    waits: bool = False  # the host reads the result before the next launch
    pace: str = ""  # kind of kernels with a fitted slowdown; empty: none


def forward_launches(
    graph: Graph, dtype: str, *, training: bool = False, fused: bool = False
) -> tuple[KernelLaunch, ...]:
    """Return the kernel launches of a forward pass.

    `training` adds dropout and the statistics of norms. With `fused` a compiler fuses the operators
    between two matrix products.

    >>> from simulators.workload.graphs.graph import Sketch
    >>> sketch = Sketch("mlp")
    >>> y = sketch.relu(sketch.linear(sketch.input((4, 8)), 16))
    >>> [type(launch.kernel).__name__ for launch in forward_launches(sketch.graph(), "fp32")]
    ['Gemm', 'Elementwise']
    """
    phase, found = FORWARD if training else INFERENCE, list[tuple[int, KernelLaunch]]()
    for at, node in enumerate(graph.nodes):
        if not fused or _stays_alone(node):
            pace = DEPTHWISE[0] if node.is_depthwise else ""
            for kernel in _kernels(graph, node, dtype, training=training):
                found.append(
                    (at, KernelLaunch(kernel, node.repeat, node.name, phase, node.waits, pace))
                )
    if fused:
        found += _fused_groups(graph, dtype, training=training)
    return tuple(launch for _, launch in sorted(found, key=lambda pair: pair[0]))


def stream(numbers: float, moved: Moved, dtype: str, name: str = "") -> ops.Elementwise:
    """Return a pointwise kernel for a result of `numbers` numbers.

    A kernel that reads more than it writes has two input streams, another kernel has one.
    """
    reads, writes = moved
    inputs = 2.0 if reads > writes else 1.0
    elements = numbers * (reads + writes) / (inputs + 1.0)
    return ops.Elementwise(name=name or "pointwise", elements=elements, reads=inputs, dtype=dtype)


def product(graph: Graph, node: Node, dtype: str) -> Compute:
    """Return the kernel of a matrix product, attention or convolution."""
    if node.kind == "linear":
        n = node.shape[-1]
        return gemm(node.name, node.numbers / n, n, graph.shape(node)[-1], 1, dtype)
    if node.kind == "matmul":
        *batch, m, n = node.shape
        return gemm(node.name, m, n, graph.shape(node)[-1], math.prod(batch), dtype)
    if node.kind == "grouped_linear":
        experts, n, k = node.weights[0]
        return ops.GroupedGemm(
            name=node.name,
            tokens=node.numbers / n / node.groups,
            n=float(n),
            k=float(k),
            experts=experts,
            top_k=float(node.groups),
            dtype=dtype,
        )
    if node.kind == "attention":
        return _attention(graph, node, dtype)
    return _convolution(graph, node, dtype)


def gemm(name: str, m: float, n: float, k: float, batch: float, dtype: str) -> ops.Gemm:
    """Return `batch` products of m x k and k x n."""
    return ops.Gemm(name=name, m=float(m), n=float(n), k=float(k), batch=float(batch), dtype=dtype)


def _stays_alone(node: Node) -> bool:
    """Return whether a compiler calls a library for the operator instead of fusing it."""
    return node.kind in PRODUCTS or node.kind in TABLES


def _kernels(graph: Graph, node: Node, dtype: str, *, training: bool) -> tuple[Compute, ...]:
    kind, size = node.kind, float(node.numbers)
    if kind in VIEWS or (kind == "dropout" and not training):
        return ()
    if kind in PRODUCTS:
        return (product(graph, node, dtype),)
    if kind in ("softmax", "layer_norm", "rms_norm"):
        cols = float(node.shape[-1])
        return (ops.Norm(name=node.name, rows=size / cols, cols=cols, kind=kind, dtype=dtype),)
    if kind in ("embedding", "gather"):
        cols = float(node.shape[-1])
        return (ops.Embedding(name=node.name, rows=size / cols, cols=cols, dtype=dtype),)
    if kind == "dropout":  # the mask has a byte per number
        return (stream(size, (1.0, 1.0 + 1.0 / BYTES[dtype]), dtype),)
    if kind == "group_norm" or (kind == "batch_norm" and training):
        return (stream(size, (2.0, 1.0), dtype),)
    if kind == "batch_norm":
        return (stream(size, (1.0, 1.0), dtype),)
    if kind == "scatter":
        size = float(math.prod(graph.shape(node, 1)))
        return (stream(size, (1.0, 1.0), dtype),)
    if kind == "embedding_bag":
        read = float(math.prod(graph.shape(node)) * node.shape[-1])
    elif kind == "mask":  # its other input is a byte or less per number, shared by heads
        read = size
    else:
        read = sum(_operand(graph.nodes[s].shape, node.shape) for s in node.inputs)
    return (stream(size, (read / size, 1.0), dtype, "powu" if kind == "pow" else ""),)


def _operand(shape: Shape, result: Shape) -> float:
    """Return the numbers read of an operand: a matrix once per use, a row or a column once.

    A matrix that many heads share, such as a bias over pairs, leaves L2 before the next head.
    """
    is_plane = len(shape) > 1 and shape[-1] > 1 and shape[-2] > 1
    return float(max(math.prod(shape), math.prod(result) if is_plane else 0))


def _attention(graph: Graph, node: Node, dtype: str) -> ops.Attention:
    batch, length, heads, width = graph.shape(node)
    _, seen, kv_heads, _ = graph.shape(node, 1)
    pairs = length * (length + 1) / 2 if node.causal else length * seen
    return ops.Attention(
        name=node.name,
        phase="prefill",
        requests=float(batch),
        query_tokens=float(batch * length),
        pairs=float(batch * pairs),
        kv_tokens=float(batch * seen),
        heads=float(heads),
        kv_heads=float(kv_heads),
        head_dim=float(width),
        dtype=dtype,
        kv_dtype=dtype,
    )


def _convolution(graph: Graph, node: Node, dtype: str) -> Compute:
    """Return the kernel of a convolution; a depthwise convolution is a stream."""
    batch, _, *sides = graph.shape(node)
    filters, depth, kernel, _ = node.weights[0]
    if node.is_depthwise:
        read = math.prod(graph.shape(node))
        return stream(float(node.numbers), (read / node.numbers, 1.0), dtype)
    side, out = math.sqrt(math.prod(sides)), math.sqrt(math.prod(node.shape[2:]))
    padding = max(0.0, ((out - 1) * node.stride + kernel - side) / 2)
    return ops.Convolution(
        name=node.name,
        batch=float(batch * node.groups),
        in_channels=float(depth),
        out_channels=float(filters // node.groups),
        kernel_size=float(kernel),
        input_size=side,
        stride=float(node.stride),
        padding=padding,
        dtype=dtype,
    )


def _fused_groups(
    graph: Graph, dtype: str, *, training: bool
) -> Iterator[tuple[int, KernelLaunch]]:
    group = _groups(graph, training=training)
    members: dict[int, set[int]] = {}
    for position, head in group.items():
        members.setdefault(head, set()).add(position)
    users = graph.users(through_dropout=not training)
    for inside in members.values():
        inputs = (s for i in inside for s in graph.nodes[i].inputs)
        sources = {graph.base(s, through_dropout=not training) for s in inputs} - inside
        results = [i for i in inside if not users[i] or not users[i] <= inside]
        reads, writes = (sum(graph.nodes[i].numbers for i in some) for some in (sources, results))
        last = graph.nodes[max(inside)]
        kernel = stream(1.0, (float(reads), float(writes)), dtype)
        phase = FORWARD if training else INFERENCE
        yield max(inside), KernelLaunch(kernel, last.repeat, last.name, phase)


def _groups(graph: Graph, *, training: bool) -> dict[int, int]:
    """Return the first node of the group of each node that can be fused."""
    waits: list[int] = []
    group: dict[int, int] = {}
    for position, node in enumerate(graph.nodes):
        behind = [waits[s] + _stays_alone(graph.nodes[s]) for s in node.inputs]
        waits.append(max(behind, default=0))
        if node.kind in VIEWS or _stays_alone(node) or (node.kind == "dropout" and not training):
            continue
        bases = [graph.base(s, through_dropout=not training) for s in node.inputs]
        near = [
            group[b]
            for b in bases
            if b in group and waits[b] == waits[position] and graph.nodes[b].repeat == node.repeat
        ]
        group[position] = min(near, default=position)
        joined = set(near)
        group.update({k: group[position] for k, head in group.items() if head in joined})
    return group


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
"""Kernels of derivatives that depend only on the size of the result, by kind of node."""

ATTENTION_BACKWARD = 2.5
"""Products of fused attention's backward pass over its forward pass: the scores again, and two
products for each forward product (Dao et al., FlashAttention, 2022)."""


def backward_launches(graph: Graph, dtype: str) -> tuple[KernelLaunch, ...]:
    """Return the kernel launches of a backward pass, last operators first."""
    readers, found = graph.readers(), list[KernelLaunch]()
    for position, node in reversed(list(enumerate(graph.nodes))):
        sums = [(kernel, "") for kernel in _gradient_sums(graph, readers[position], node, dtype)]
        kernels = _derivative(graph, node, dtype)
        paces = (DEPTHWISE[1:] if node.is_depthwise else ()) + ("",) * len(kernels)
        for kernel, pace in (*sums, *zip(kernels, paces, strict=False)):
            found.append(KernelLaunch(kernel, node.repeat, node.name, BACKWARD, pace=pace))
    return tuple(found)


def _gradient_sums(
    graph: Graph, readers: tuple[int, ...], node: Node, dtype: str
) -> Iterator[Compute]:
    """Yield a sum of gradients for each reader after the first; slices are not summed."""
    if node.kind not in ("input", "weight"):
        whole = [r for r in readers if graph.nodes[r].kind != "part"]
        for _ in whole[1:]:
            yield stream(float(node.numbers), BINARY, dtype)


def _derivative(graph: Graph, node: Node, dtype: str) -> tuple[Compute, ...]:
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
    """Yield a product per factor with a gradient, and a sum for broadcast factors."""
    for source in node.inputs:
        factor = graph.nodes[source]
        if factor.kind != "input":
            yield stream(float(node.numbers), BINARY, dtype)
            if factor.numbers < node.numbers:
                yield stream(float(node.numbers), (1.0, 0.0), dtype)


def _product_derivative(graph: Graph, node: Node, dtype: str) -> tuple[Compute, ...]:
    """Return the products for the gradients of both factors, and the sum for a bias gradient."""
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
