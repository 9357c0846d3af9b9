"""Features of networks from three search spaces: how many layers of each kind, and how wide.

`nb201`: a cell of NAS-Bench-201 with six edges (Dong and Yang, 2020), as
`|conv~0|+|conv~0|conv~1|+|conv~0|conv~1|conv~2|`; what a runtime prunes because no path leads
through it is counted apart. `fbnet`: 22 blocks (Wu et al., 2019), as `k3_e1 k5_e6 skip ...`. `ofa`:
kernel sizes, expansions, depths and resolution of a Once-for-all MobileNetV3 (Cai et al., 2020), as
JSON. Widths stand in the weights: a feature is a count at a stage, so its weight is a time.

Runtimes run a convolution with the norm, the activation and the addition behind it as one kernel,
so norms and activations are no features. What of fusion differs between networks is: of FBNet, how
many additions end in a projection, which blocks that narrow their input have none of; of OFA, how
wide the first fused kernel of a stage is, that still runs at the resolution before it. Additions of
cells did not improve predictions for held-out devices and are no features.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from simulators.core.errors import UnknownNameError, UserError
from simulators.core.jit import Floats

NONE = "none"
CELL_OPERATIONS = ("skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
"""What an edge of a cell may be, besides `none`."""

EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
"""Of a cell, from node to node, in the order of its text."""

CELLS, CELL_MACS = 15, 16**2 * 32**2
"""Cells of a network, and multiply-accumulates of a 1x1 convolution in any: 16 channels of 32 by 32
pixels; later stages have twice the channels on half the sides."""

BLOCKS = ("k3_e1", "k3_e1_g2", "k3_e3", "k3_e6", "k5_e1", "k5_e1_g2", "k5_e3", "k5_e6")
"""What a layer of FBNet may be, besides `skip`: kernel size, expansion, groups."""

FBNET_STAGES = (1, 4, 4, 4, 4, 4, 1)
"""Layers of each stage, which have one width and resolution."""

OFA_STAGES, OFA_DEPTH = 5, 4
OFA_RESOLUTION = 224.0


def features(space: str, texts: Sequence[str]) -> Floats:
    """Return a row of features per network.

    Raises:
        UnknownNameError: there is no such search space.
        UserError: a text is no network of it.
    """
    return np.array([_row(space, text) for text in texts]).reshape(len(texts), -1)


@functools.lru_cache(maxsize=65536)
def _row(space: str, text: str) -> tuple[float, ...]:
    if space not in SPACES:
        raise UnknownNameError("search space", space, tuple(SPACES))
    return tuple(SPACES[space](text))


def cell_text(operations: Sequence[str]) -> str:
    """Return the text of a cell, given the operation of each of its edges.

    >>> cell_text(["none", "none", "none", "skip_connect", "none", "none"])
    '|none~0|+|none~0|none~1|+|skip_connect~0|none~1|none~2|'
    """
    nodes: dict[int, str] = {}
    for (source, target), operation in zip(EDGES, operations, strict=True):
        nodes[target] = nodes.get(target, "|") + f"{operation}~{source}|"
    return "+".join(nodes.values())


def cell_operations(text: str) -> list[str]:
    """Return the operation of each edge of a cell.

    Raises:
        UserError: it is no such cell.
    """
    found = [word.partition("~")[0] for word in text.replace("+", "").split("|") if word]
    if len(found) != len(EDGES) or not {*found} <= {NONE, *CELL_OPERATIONS}:
        raise UserError(
            f"'{text}' is no cell of NAS-Bench-201: six edges, each {NONE}, "
            f"{', '.join(CELL_OPERATIONS)}, as in '{cell_text(['skip_connect'] * len(EDGES))}'"
        )
    return found


def cell_macs(text: str) -> float:
    """Return the multiply-accumulates of a network's cells, as written: with what is pruned.

    >>> cell_macs(cell_text(["nor_conv_1x1", *["none"] * 5])) / 1e6
    3.93216
    """
    operations = cell_operations(text)
    taps = operations.count("nor_conv_1x1") + 9 * operations.count("nor_conv_3x3")
    return float(CELLS * CELL_MACS * taps)


def _cell(text: str) -> list[float]:
    """Return how many edges are of each operation: of all, and of those on a path to the end."""
    operations = cell_operations(text)
    used = [edge for edge, name in zip(EDGES, operations, strict=True) if name != NONE]
    reached, needed = {0}, {3}
    for source, target in used:  # edges are in the order of their targets
        reached |= {target} if source in reached else set()
    for source, target in sorted(used, reverse=True):
        needed |= {source} if target in needed else set()
    on_path = [
        name
        for (source, target), name in zip(EDGES, operations, strict=True)
        if source in reached and target in needed
    ]
    return [float(some.count(one)) for some in (operations, on_path) for one in CELL_OPERATIONS]


def _fbnet(text: str) -> list[float]:
    """Return how many blocks of each stage are of each kind, and how many of them end in a sum."""
    layers = text.split()
    if len(layers) != sum(FBNET_STAGES) or not {*layers} <= {"skip", *BLOCKS}:
        raise UserError(
            f"'{text}' is no network of FBNet: {sum(FBNET_STAGES)} layers, each skip, "
            f"{', '.join(BLOCKS)}, apart by spaces"
        )
    starts = np.cumsum([0, *FBNET_STAGES])
    stages = [layers[a:b] for a, b in pairwise(starts)]
    kinds = [float(stage.count(block)) for stage in stages for block in BLOCKS]
    sums = [float(len(stage) - 1 - stage[1:].count("skip")) for stage in stages if len(stage) > 1]
    return kinds + sums


def _ofa(text: str) -> list[float]:
    """Return pixels, then per stage its depth and pixels times depth, expansions, kernels' areas.

    Last comes per stage the expansion at its input: pixels times that of its first block.
    """
    try:
        asked = json.loads(text)
        sizes, wide, depths = ([int(v) for v in asked[key]] for key in ("ks", "e", "d"))
        pixels = (float(asked["r"]) / OFA_RESOLUTION) ** 2
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"'{text}' is no network of OFA: JSON with ks, e, d and r") from error
    if len(depths) != OFA_STAGES or not len(sizes) == len(wide) == OFA_STAGES * OFA_DEPTH:
        raise UserError(f"'{text}' is no network of OFA: 20 numbers in ks and e, 5 in d")
    found = [pixels]
    for stage, depth in enumerate(depths):
        blocks = range(OFA_DEPTH * stage, OFA_DEPTH * stage + depth)
        expansion = sum(wide[block] for block in blocks)
        area = sum(wide[block] * sizes[block] ** 2 for block in blocks)
        found += [depth, pixels * depth, pixels * expansion, pixels * area]
    return found + [pixels * wide[OFA_DEPTH * stage] for stage in range(OFA_STAGES)]


FUSED = MappingProxyType({"nb201": 0, "fbnet": 5, "ofa": 5})
"""How many of the last features are of fused kernels: of format 1 devices have no such weights."""

SPACES: Mapping[str, Callable[[str], list[float]]] = MappingProxyType(
    {"nb201": _cell, "fbnet": _fbnet, "ofa": _ofa}
)
