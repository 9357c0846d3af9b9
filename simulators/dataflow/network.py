"""Networks as graphs of layers: which layer reads the output of which.

Layers are listed in the order in which they run. An entry of a network file may state

- `reads`: the layers whose outputs are its inputs; left out, the layer before it, if shapes agree;
- `weights_from`: the layer whose output is its second operand (keys and values of attention);
- `adds`: layers whose outputs are added to its output (residual branches).

The name `input` is what enters a block: the output of the block before, or the network's input.
Pooling is part of the layer before it: the stored output has the words that its readers use.
Activations, normalisations and softmax run where a tensor is produced and move no words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError, suggestion
from simulators.core.folder import read_toml, reader
from simulators.dataflow.access import distinct_sums
from simulators.dataflow.mapping import NETWORKS, is_file, layer_from, read_yaml, table_of
from simulators.workload.loop_nest import Layer

INPUT = "input"
OUTSIDE, ENTRY = -1, -2
"""Producers of a tensor from outside of the network: read by one layer, or the network's input."""
ONNX = "formats.hardware.onnx_layers"
"""Module of `formats` that reads ONNX files."""
EDGES = ("reads", "weights_from", "adds")


@dataclass(frozen=True)
class LayerNode:
    """A layer of a network, with the positions of the layers that produce its operands."""

    layer: Layer
    reads: tuple[int, ...]
    weights_from: int = OUTSIDE
    adds: tuple[int, ...] = ()
    stored_words: int = 0  # of the output, after pooling

    @property
    def producers(self) -> tuple[int, ...]:
        """Layers whose outputs this layer reads, each once; the network's input is `ENTRY`."""
        found = (*self.reads, self.weights_from, *self.adds)
        return tuple(dict.fromkeys(one for one in found if one != OUTSIDE))


@dataclass(frozen=True)
class LayerGraph:
    """Layers in running order."""

    nodes: tuple[LayerNode, ...]

    @property
    def entry_words(self) -> int:
        """Words of the network's input."""
        reads = [used_words(n.layer, 1) for n in self.nodes if ENTRY in n.reads]
        return max(reads, default=0)

    def last_use(self, node: int) -> int:
        """Return the position of the last reader of an output, or of the network's end."""
        readers = [k for k, one in enumerate(self.nodes) if node in one.producers]
        return max(readers, default=len(self.nodes))


def used_words(layer: Layer, tensor: int) -> int:
    """Return the words of a tensor that a layer uses: padding counts, gaps of a stride do not."""
    extents = layer.extents
    words = 1
    for rank in layer.tensors[tensor].ranks:
        (d, a), *rest = rank
        if rest:
            e, b = rest[0]
            words *= int(distinct_sums(extents[d], a, extents[e], b))
        else:
            words *= extents[d]
    return words


def rows_of(layer: Layer) -> int:
    """Return the rows of an output that tiles may split: pixel rows, or tokens."""
    extents = layer.extents
    if "P" in extents:
        return extents["P"] * extents.get("N", 1)
    return extents.get("N", 1)


def batched(layer: Layer, batch: int) -> Layer:
    """Return a layer for several inputs at once.

    Raises:
        UserError: the layer has no dimension of a batch.
    """
    if batch == 1:
        return layer
    dim = next((d for d in ("B", "N") if d in layer.dims), "")
    if not dim:
        raise UserError(f"layer '{layer.name}' has no dimension N or B for a batch of {batch}")
    bounds = tuple(
        b * batch if d == dim else b for d, b in zip(layer.dims, layer.bounds, strict=True)
    )
    return replace(layer, bounds=bounds)


def is_onnx(name: str) -> bool:
    """Return whether a network is the path of an ONNX file."""
    return name.endswith(".onnx")


def network_files(name: str) -> tuple[Path, ...]:
    """Return the user's file of a network; none for a shipped network, which the version covers."""
    if is_file(name) or is_onnx(name):
        return (Path(name),)
    file = NETWORKS.find(name)
    return () if file.parent == NETWORKS.shipped else (file,)


def network_graph(name: str, batch: int = 1) -> LayerGraph:
    """Return the graph of a network that is known by name, or of a YAML or ONNX file.

    Raises:
        UnknownNameError: the network is unknown.
        UserError: the file is invalid, or a layer is unknown.
    """
    if is_onnx(name):
        graph: LayerGraph = reader(ONNX, "layers_of_onnx")(Path(name), batch)
        return graph
    if is_file(name):
        found = _graph(table_of(read_yaml(Path(name)), name), name)
    else:
        found = NETWORKS.load(name, lambda file: _graph(read_toml(file), str(file)))
    nodes = [replace(node, layer=batched(node.layer, batch)) for node in found.nodes]
    nodes = [replace(node, stored_words=node.stored_words * batch) for node in nodes]
    return LayerGraph(tuple(nodes))


def _graph(content: Mapping[str, Any], where: str) -> LayerGraph:
    entries = content.get("layers")
    if not isinstance(entries, list):
        raise UserError(f"{where}: a network is a list of 'layers'")
    nodes: list[LayerNode] = []
    entering = ENTRY
    for _ in range(int(content.get("blocks", 1))):
        known = {INPUT: entering}
        for entry in entries:
            table = table_of(entry, where)
            layer, times = layer_from(table, where)
            for _ in range(times):
                nodes.append(_node(table, layer, nodes, known, where))
            known[layer.name] = len(nodes) - 1
        entering = len(nodes) - 1
    return LayerGraph(stored(nodes))


def _node(
    table: Mapping[str, Any],
    layer: Layer,
    nodes: Sequence[LayerNode],
    known: Mapping[str, int],
    where: str,
) -> LayerNode:
    edges: dict[str, tuple[int, ...]] = {}
    for key in EDGES:
        names = table.get(key, ())
        names = [names] if isinstance(names, str) else names
        if unknown := [one for one in names if one not in known]:
            raise UserError(
                f"{where}: layer '{layer.name}' {key} '{unknown[0]}', which is no layer before "
                f"it{suggestion(str(unknown[0]), known)}"
            )
        edges[key] = tuple(known[one] for one in names)
    reads = edges["reads"]
    if "reads" not in table:
        before = len(nodes) - 1 if len(known) > 1 else known[INPUT]
        if before != ENTRY and not feeds(nodes[before].layer, layer):
            before = OUTSIDE
        reads = (before,)
    return LayerNode(layer, reads, (*edges["weights_from"], OUTSIDE)[0], edges["adds"])


def stored(nodes: Sequence[LayerNode]) -> tuple[LayerNode, ...]:
    """Return nodes with the words of their outputs: no more than the readers use."""
    used: dict[int, int] = {}
    for node in nodes:
        for tensor, producers in ((1, node.reads), (0, (node.weights_from,))):
            for producer in producers:
                words = used_words(node.layer, tensor) // len(producers)
                used[producer] = max(used.get(producer, 0), words)
        for producer in node.adds:
            used[producer] = max(used.get(producer, 0), used_words(node.layer, 2))
    return tuple(
        replace(node, stored_words=min(used.get(k, math.inf), used_words(node.layer, 2)))  # type: ignore[arg-type]
        for k, node in enumerate(nodes)
    )


def feeds(first: Layer, second: Layer) -> bool:
    """Return whether outputs of a layer can be inputs of another: images and channels agree.

    Pixels may be fewer after pooling, and tokens may be pixels.

    >>> from simulators.workload.loop_nest import matmul
    >>> feeds(matmul("up", n=8, c=16, m=32), matmul("down", n=8, c=32, m=16))
    True
    """
    made, taken = first.extents, second.extents
    channels = made.get("M", made.get("C", 1))
    if first.extents.get("B", 1) != taken.get("B", 1):
        return used_words(first, 2) == used_words(second, 1)
    if channels != taken.get("C", 1):
        return used_words(first, 2) == used_words(second, 1)
    return "P" in made or made.get("N", 1) == taken.get("N", 1)
