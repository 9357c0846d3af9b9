"""Memory of a graph: weights, saved activations and peak of temporary results.

Training keeps, besides weights and gradients, the states of Adam: 16 bytes a weight in all in mixed
precision (Rajbhandari et al., ZeRO, 2020). Of every operator it keeps what its derivative reads
(Korthikanti et al., Reducing activation recomputation, 2022, count the same for a transformer's
layer). Inference frees a result after its last reader.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulators.workload.graphs.graph import PRODUCTS, VIEWS, Graph, Node
from simulators.workload.precision import BYTES

STATES = 2
"""Numbers that Adam keeps per weight, in fp32."""

KEPT_NORMS = ("layer_norm", "rms_norm", "batch_norm", "group_norm")
KEPT_INPUTS = (*PRODUCTS, *KEPT_NORMS, "gelu", "silu", "pow", "mul", "maximum")
KEPT_RESULTS = ("softmax", "relu", "tanh", "sigmoid", "rsqrt", "attention")
MASK_BYTES = {"dropout": 1.0, "pool": 8.0}
"""Of a number: whether it was dropped, and where the largest of a window was."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes on one GPU."""

    weights: float
    gradients: float = 0.0
    states: float = 0.0  # of the optimiser, the fp32 copy of narrower weights among them
    activations: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.gradients + self.states + self.activations


def training_footprint(parameters: float, dtype: str) -> Footprint:
    """Return what weights, gradients and Adam take on a GPU.

    >>> training_footprint(1.5e9, "fp16").total / 1e9
    24.0
    """
    width = BYTES[dtype]
    copy = BYTES["fp32"] if width < BYTES["fp32"] else 0.0
    states = parameters * (STATES * BYTES["fp32"] + copy)
    return Footprint(weights=parameters * width, gradients=parameters * width, states=states)


def kept_bytes(graph: Graph, dtype: str) -> float:
    """Return what a forward pass keeps for the backward pass; nothing is computed twice."""
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
