"""A model as a graph of the operators in its author's code, and the memory of the graph.

One list of nodes answers for every phase: kernels of a forward pass, additions of the backward
pass, saved activations, and the number of weights. Layers that repeat are drawn once and counted.
Sizes are whole numbers: a graph belongs to one batch and one length. `Sketch` draws a graph;
`Graph` is the result. Package `simulators.graphs` chooses kernels.

Training keeps, besides weights and gradients, the states of Adam: 16 bytes per weight in total in
mixed precision (Rajbhandari et al., ZeRO, 2020), and of every operator what its derivative reads
(Korthikanti et al., Reducing activation recomputation, 2022, count the same for a transformer
layer). Inference frees a result after its last reader.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from simulators.core.errors import UserError
from simulators.workload.precision import BYTES

Shape = tuple[int, ...]

PRODUCTS = ("linear", "matmul", "conv", "attention", "grouped_linear")
"""Kinds that multiply matrices; all other kinds are bound by memory."""

ACTIVATIONS = ("relu", "gelu", "tanh", "silu", "sigmoid")
ARITHMETIC = ("add", "mul", "scale", "shift", "pow", "rsqrt", "maximum", "mask", "dropout")
NORMS = ("softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm")
TABLES = ("embedding", "embedding_bag", "gather", "scatter")
MOVES = ("copy", "mean", "sum", "pool")
VIEWS = ("input", "weight", "view", "part")
"""Kinds without a kernel: input, weight, reshape, slice."""

KINDS = (*VIEWS, *PRODUCTS, *ACTIVATIONS, *ARITHMETIC, *NORMS, *TABLES, *MOVES)


@dataclass(frozen=True)
class Load:
    """The load of a graph: batch, length of each input, training or inference."""

    batch: int
    length: int = 0  # tokens, pixels per side, rows per lookup ...; 0: the model's default
    training: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelFamily(ABC):
    """A family of models: sizes from the model's file, and a method that draws the graph."""

    name: str
    source: str
    aliases: tuple[str, ...] = ()

    @abstractmethod
    def draw(self, load: Load) -> Graph:
        """Return the graph for a load; each family defines the unit of its length."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """An operator: inputs, shape of the result, weights."""

    name: str
    kind: str  # one of KINDS
    inputs: tuple[int, ...]  # positions of the nodes it reads
    shape: Shape  # of the result; the last rank is contiguous
    weights: tuple[Shape, ...] = ()  # empty for tied weights
    repeat: int = 1  # number of runs: layers represented, times steps
    copies: int = 1  # of the weights: layers represented
    stride: int = 1  # of a convolution or pool
    groups: int = 1  # of a convolution; routed copies per row of a grouped linear
    causal: bool = False  # causal attention
    waits: bool = False  # the host waits for the result

    @property
    def numbers(self) -> int:
        """Number of elements of the result.

        >>> Node(name="x", kind="input", inputs=(), shape=(2, 3)).numbers
        6
        """
        return math.prod(self.shape)

    @property
    def parameters(self) -> int:
        """Number of weights of one repetition."""
        return sum(math.prod(shape) for shape in self.weights)

    @property
    def is_depthwise(self) -> bool:
        """Whether the node is a depthwise convolution."""
        return self.kind == "conv" and self.groups > 1 and self.weights[0][1] == 1


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The operators of a model for a batch, in topological order."""

    name: str
    nodes: tuple[Node, ...]

    @property
    def parameters(self) -> int:
        """Number of weights; tied weights count once."""
        return sum(node.copies * node.parameters for node in self.nodes)

    @property
    def flops(self) -> float:
        """FLOPs of all matrix products of one forward pass."""
        return sum(node.repeat * product_flops(self, node) for node in self.nodes)

    def shape(self, node: Node, place: int = 0) -> Shape:
        """Return the shape of one of a node's inputs."""
        return self.nodes[node.inputs[place]].shape

    def base(self, position: int, *, through_dropout: bool = False) -> int:
        """Return the node that owns the memory of a position, behind views and slices."""
        seen_through = ("view", "part", "dropout") if through_dropout else ("view", "part")
        while self.nodes[position].kind in seen_through:
            position = self.nodes[position].inputs[0]
        return position

    def users(self, *, through_dropout: bool = False) -> tuple[frozenset[int], ...]:
        """Return for every node the operators that read its memory, directly or through views."""
        found: list[set[int]] = [set() for _ in self.nodes]
        skipped = (*VIEWS, "dropout") if through_dropout else VIEWS
        for position, node in enumerate(self.nodes):
            if node.kind not in skipped:
                for source in node.inputs:
                    found[self.base(source, through_dropout=through_dropout)].add(position)
        return tuple(map(frozenset, found))

    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Return for every node the positions of its readers, views included."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for position, node in enumerate(self.nodes):
            for source in node.inputs:
                found[source].append(position)
        return tuple(map(tuple, found))


def product_flops(graph: Graph, node: Node) -> float:
    """Return the FLOPs of one repetition of a matrix product, 0 for any other node.

    >>> sketch = Sketch("mlp")
    >>> _ = sketch.linear(sketch.input((4, 8)), 16, bias=False)
    >>> sketch.graph().flops
    1024.0
    """
    if node.kind in ("linear", "matmul", "grouped_linear"):
        return 2.0 * node.numbers * graph.shape(node)[-1]
    if node.kind == "conv":
        return 2.0 * node.numbers * math.prod(node.weights[0][1:])
    if node.kind == "attention":
        batch, length, heads, width = graph.shape(node)
        seen = graph.shape(node, 1)[1]
        pairs = length * seen / 2 if node.causal else length * seen
        return 2.0 * batch * heads * pairs * (width + node.shape[-1])
    return 0.0


@dataclass
class Sketch:
    """A graph under construction: every method adds a node and returns the node's position.

    >>> sketch = Sketch("mlp")
    >>> x = sketch.input((4, 8))
    >>> with sketch.layers(3):
    ...     x = sketch.add(x, sketch.relu(sketch.linear(x, 8)))
    >>> sketch.graph().parameters
    216
    """

    name: str
    nodes: list[Node] = field(default_factory=list)
    scope: str = ""
    _repeat: int = 1
    _copies: int = 1

    def graph(self) -> Graph:
        """Return the finished graph."""
        return Graph(name=self.name, nodes=tuple(self.nodes))

    @contextmanager
    def layers(self, count: int, scope: str = "layer") -> Iterator[None]:
        """Draw a layer that represents `count` equal layers with separate weights."""
        outer, self._copies = self._copies, self._copies * count
        with self.steps(count, scope):
            yield
        self._copies = outer

    @contextmanager
    def steps(self, count: int, scope: str = "step") -> Iterator[None]:
        """Draw one of `count` runs of the same weights."""
        outer, self._repeat = self._repeat, self._repeat * count
        named, self.scope = self.scope, f"{self.scope}{scope}."
        yield
        self._repeat, self.scope = outer, named

    def shape(self, position: int) -> Shape:
        """Return the shape of a node's result."""
        return self.nodes[position].shape

    def node(
        self, kind: str, inputs: Sequence[int], shape: Shape, *, name: str = "", **facts: Any
    ) -> int:
        """Add an operator; `facts` are further fields of `Node`.

        Raises:
            UserError: a size is not positive.
        """
        assert kind in KINDS, kind
        if min((1, *shape)) < 1:
            raise UserError(f"{self.name}: {self.scope}{name or kind} has the shape {shape}")
        self.nodes.append(
            Node(
                name=f"{self.scope}{name or kind}",
                kind=kind,
                inputs=tuple(inputs),
                shape=shape,
                repeat=self._repeat,
                copies=self._copies,
                **facts,
            )
        )
        return len(self.nodes) - 1

    def input(self, shape: Shape, name: str = "input") -> int:
        """Add an input of the model."""
        return self.node("input", (), shape, name=name)

    def linear(
        self, x: int, n: int, *, bias: bool = True, tied: bool = False, name: str = ""
    ) -> int:
        """Add a linear layer; a tied layer uses another node's weights."""
        *rows, k = self.shape(x)
        own = ((n, k), (n,)) if bias else ((n, k),)
        weights = () if tied else own
        return self.node("linear", (x,), (*rows, n), weights=weights, name=name)

    def matmul(self, a: int, b: int, *, name: str = "") -> int:
        """Multiply `a[..., m, k]` by `b[..., k, n]`, one product per leading index."""
        return self.node("matmul", (a, b), (*self.shape(a)[:-1], self.shape(b)[-1]), name=name)

    def attention(self, q: int, k: int, v: int, *, causal: bool) -> int:
        """Attend in one kernel; all are [batch, length, heads, width]."""
        shape = (*self.shape(q)[:-1], self.shape(v)[-1])
        return self.node("attention", (q, k, v), shape, causal=causal)

    def view(self, x: int, shape: Shape) -> int:
        """Add a reshape, which costs nothing."""
        assert math.prod(shape) == self.nodes[x].numbers, (self.shape(x), shape)
        return self.node("view", (x,), shape)

    def part(self, x: int, shape: Shape, *, name: str = "") -> int:
        """Add a slice of a result, which costs nothing in the forward pass."""
        return self.node("part", (x,), shape, name=name)

    def copy(self, inputs: Sequence[int], shape: Shape, *, name: str = "") -> int:
        """Add a copy of one or several results: transposed, concatenated, upsampled."""
        return self.node("copy", inputs, shape, name=name)

    def embedding(self, ids: int, table: Shape, *, name: str = "") -> int:
        """Gather rows of a table, one per index."""
        shape = (*self.shape(ids), table[1])
        return self.node("embedding", (ids,), shape, weights=(table,), name=name)

    def norm(self, x: int, kind: str = "layer_norm") -> int:
        """Normalise rows (layer, RMS), channels (batch) or groups of channels (group)."""
        shape = self.shape(x)
        width = shape[1] if kind in ("batch_norm", "group_norm") else shape[-1]
        weights = ((width,),) if kind == "rms_norm" else ((width,), (width,))
        return self.node(kind, (x,), shape, weights=weights)

    def softmax(self, x: int) -> int:
        """Normalise exponentials along the last rank."""
        return self.node("softmax", (x,), self.shape(x))

    def conv(
        self,
        x: int,
        filters: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        padding: int | None = None,
        bias: bool = False,
    ) -> int:
        """Convolve images [batch, channels, height, width]; by default padded to the same size."""
        batch, channels, *sides = self.shape(x)
        pad = kernel // 2 if padding is None else padding
        out = tuple((side + 2 * pad - kernel) // stride + 1 for side in sides)
        weights: tuple[Shape, ...] = ((filters, channels // groups, kernel, kernel),)
        weights += ((filters,),) if bias else ()
        shape = (batch, filters, *out)
        return self.node("conv", (x,), shape, weights=weights, stride=stride, groups=groups)

    def pool(self, x: int, kernel: int, *, stride: int, padding: int = 0) -> int:
        """Pool each window by its maximum or mean."""
        batch, channels, *sides = self.shape(x)
        out = tuple((side + 2 * padding - kernel) // stride + 1 for side in sides)
        return self.node("pool", (x,), (batch, channels, *out), stride=stride)

    def mean(self, x: int, shape: Shape) -> int:
        """Average over the ranks that `shape` lacks."""
        return self.node("mean", (x,), shape)

    def add(self, a: int, b: int) -> int:
        """Add two results; the smaller is broadcast."""
        return self.node("add", (a, b), self._wider(a, b))

    def mul(self, a: int, b: int) -> int:
        """Multiply two results number by number; the smaller is broadcast."""
        return self.node("mul", (a, b), self._wider(a, b))

    def pointwise(self, kind: str, x: int, *others: int) -> int:
        """Apply a function to every number."""
        return self.node(kind, (x, *others), self.shape(x))

    def relu(self, x: int) -> int:
        """Apply a ReLU."""
        return self.pointwise("relu", x)

    def _wider(self, a: int, b: int) -> Shape:
        return max(self.shape(a), self.shape(b), key=math.prod)


STATES = 2
"""Numbers that Adam keeps per weight, in fp32."""

KEPT_NORMS = ("layer_norm", "rms_norm", "batch_norm", "group_norm")
KEPT_INPUTS = (*PRODUCTS, *KEPT_NORMS, "gelu", "silu", "pow", "mul", "maximum")
KEPT_RESULTS = ("softmax", "relu", "tanh", "sigmoid", "rsqrt", "attention")
MASK_BYTES = {"dropout": 1.0, "pool": 8.0}
"""Bytes of a mask per number: dropped or not, and the position of a window's maximum."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes on one GPU."""

    weights: float
    gradients: float = 0.0
    states: float = 0.0  # of the optimizer, with the fp32 copy of narrower weights
    activations: float = 0.0

    @property
    def total(self) -> float:
        """Total bytes."""
        return self.weights + self.gradients + self.states + self.activations


def training_footprint(parameters: float, dtype: str) -> Footprint:
    """Return the bytes of weights, gradients and Adam's states on a GPU.

    >>> training_footprint(1.5e9, "fp16").total / 1e9
    24.0
    """
    width = BYTES[dtype]
    copy = BYTES["fp32"] if width < BYTES["fp32"] else 0.0
    states = parameters * (STATES * BYTES["fp32"] + copy)
    return Footprint(weights=parameters * width, gradients=parameters * width, states=states)


def kept_bytes(graph: Graph, dtype: str) -> float:
    """Return the bytes that a forward pass saves for the backward pass, without recomputation."""
    kept: set[int] = set()
    masks = 0.0
    for position, node in enumerate(graph.nodes):
        if node.kind in KEPT_INPUTS:
            kept |= {graph.base(s) for s in node.inputs}
        if node.kind in KEPT_RESULTS:
            kept.add(graph.base(position))
        masks += MASK_BYTES.get(node.kind, 0.0) * node.repeat * node.numbers
    results = (graph.nodes[i] for i in sorted(kept) if graph.nodes[i].kind != "weight")
    return masks + BYTES[dtype] * sum(node.repeat * node.numbers for node in results)


def peak_bytes(graph: Graph, dtype: str) -> float:
    """Return the peak bytes of results; a result is freed after the last reader.

    >>> from simulators.workload.graphs.graph import Sketch
    >>> g = Sketch("mlp")
    >>> x = g.linear(g.input((1, 10)), 100)
    >>> _ = g.linear(x, 10)
    >>> peak_bytes(g.graph(), "fp32")
    440.0
    """
    users = graph.users(through_dropout=True)
    last = [max(readers, default=position) for position, readers in enumerate(users)]
    freed: dict[int, list[Node]] = {}
    live = peak = 0.0
    for position, node in enumerate(graph.nodes):
        if node.kind not in VIEWS[1:] and node.kind != "dropout":
            live += node.numbers
            freed.setdefault(last[position], []).append(node)
        peak = max(peak, live)
        live -= sum(done.numbers for done in freed.pop(position, ()))
    return peak * BYTES[dtype]
