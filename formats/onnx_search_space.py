"""Read an ONNX file as a network of a search space of the edge simulator: FBNet or Once-for-all.

A block is an expansion (1x1), a depthwise convolution, and a projection (1x1). Blocks of one stage
have the same output channels. Convolutions of squeeze-and-excitation have one pixel and are left
out. An FBNet stage with fewer blocks than layers has skips.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from formats.onnx_graph import graph_of_onnx
from simulators.core.errors import UserError
from simulators.workload.graphs.graph import Graph, Load, Node

FBNET_LAYERS = (1, 4, 4, 4, 4, 4, 1)
"""Layers per stage of FBNet (Wu et al., 2019)."""
FBNET_EXPANSIONS, FBNET_KERNELS = (1, 3, 6), (3, 5)
OFA_STAGES, OFA_DEPTHS = 5, (2, 3, 4)
OFA_EXPANSIONS, OFA_KERNELS = (3, 4, 6), (3, 5, 7)
"""Stages, blocks per stage, expansions and kernel sizes of Once-for-all (Cai et al., 2020)."""


@dataclass(frozen=True)
class InvertedBlock:
    """An expansion, a depthwise convolution and a projection."""

    kernel: int
    expansion: float  # channels of the depthwise convolution over those of the block's input
    groups: int  # of the projection
    channels: int  # of the output


def network_of_onnx(path: Path, space: str) -> str:
    """Return the text of an ONNX file's network in the notation of `fbnet` or `ofa`.

    Raises:
        UserError: the file cannot be read, or is not a network of the search space.
    """
    graph = graph_of_onnx(path, Load(1))
    stages = [list(found) for _, found in itertools.groupby(blocks_of(graph), _channels)]
    if space == "fbnet":
        return _fbnet(stages, path)
    if space == "ofa":
        return _ofa(stages, _pixels(graph), path)
    raise UserError(f"{path}: ONNX files are read as networks of fbnet and ofa, not of {space}")


def blocks_of(graph: Graph) -> Iterator[InvertedBlock]:
    """Yield the inverted residual blocks of a graph, in the order of the file."""
    convolutions = [n for n in graph.nodes if n.kind == "conv" and n.weights and n.shape[-1] > 1]
    for place, node in enumerate(convolutions[:-1]):
        outputs, each, kernel = node.weights[0][0], node.weights[0][1], node.weights[0][-1]
        if each != 1 or node.groups != outputs or outputs == 1:
            continue
        before, after = convolutions[place - 1] if place else None, convolutions[place + 1]
        expands = before is not None and before.weights[0][-1] == 1 and _outputs(before) == outputs
        entering = before.weights[0][1] * before.groups if before and expands else outputs
        yield InvertedBlock(kernel, outputs / entering, after.groups, _outputs(after))


def _outputs(node: Node) -> int:
    return node.weights[0][0]


def _channels(block: InvertedBlock) -> int:
    return block.channels


def _pixels(graph: Graph) -> int:
    return next(node.shape[-1] for node in graph.nodes if node.kind == "input")


def _fbnet(stages: Sequence[Sequence[InvertedBlock]], path: Path) -> str:
    if len(stages) != len(FBNET_LAYERS):
        raise UserError(
            f"{path} is no network of FBNet: its blocks have {len(stages)} widths in a row, "
            f"FBNet's {len(FBNET_LAYERS)}"
        )
    words = []
    for number, (stage, layers) in enumerate(zip(stages, FBNET_LAYERS, strict=True), 1):
        if len(stage) > layers:
            raise UserError(
                f"{path} is no network of FBNet: stage {number} has {len(stage)} blocks, "
                f"at most {layers}"
            )
        for block in stage:
            kernel = _one_of(block.kernel, FBNET_KERNELS, "kernel size", path)
            expansion = _one_of(block.expansion, FBNET_EXPANSIONS, "expansion", path)
            grouped = expansion == 1 and block.groups == 2
            words.append(f"k{kernel}_e{expansion}" + ("_g2" if grouped else ""))
        words += ["skip"] * (layers - len(stage))
    return " ".join(words)


def _ofa(stages: Sequence[Sequence[InvertedBlock]], pixels: int, path: Path) -> str:
    stages = [s for s in stages if any(block.expansion > 1.0 for block in s)]  # the first is fixed
    if len(stages) != OFA_STAGES:
        raise UserError(
            f"{path} is no network of Once-for-all: its blocks have {len(stages)} widths in a "
            f"row, a network of Once-for-all {OFA_STAGES}"
        )
    sizes, wide, depths = [], [], []
    for stage in stages:
        depths.append(_one_of(len(stage), OFA_DEPTHS, "number of blocks per stage", path))
        kernels = [_one_of(block.kernel, OFA_KERNELS, "kernel size", path) for block in stage]
        expansions = [
            _one_of(block.expansion, OFA_EXPANSIONS, "expansion", path) for block in stage
        ]
        missing = OFA_DEPTHS[-1] - len(stage)  # blocks beyond the depth have no effect
        sizes += kernels + kernels[-1:] * missing
        wide += expansions + expansions[-1:] * missing
    return json.dumps({"ks": sizes, "e": wide, "d": depths, "r": pixels})


def _one_of(value: float, known: Sequence[int], what: str, path: Path) -> int:
    """Return the known value closest to a value: rounded channels differ by a few percent."""
    nearest = min(known, key=lambda one: abs(one - value))
    if abs(nearest - value) > 0.1 * nearest:
        raise UserError(
            f"{path} is not a network of the search space: {what} {value:g}, "
            f"known are {', '.join(map(str, known))}"
        )
    return nearest
