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
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from simulators.core.calibration import read_calibration
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import once
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
    return np.array([_features_of(space, text) for text in texts]).reshape(len(texts), -1)


@functools.lru_cache(maxsize=65536)
def _features_of(space: str, text: str) -> tuple[float, ...]:
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


FOLDER = Path(__file__).parent / "calibration"
DEVICE_FORMAT = 2
"""Of format 1 are devices without weights of fused kernels."""

SUFFIX = ".json"
NEEDED = ("format", "search_space", "unit_s", "mean", "noise")

LEAST = 0.02
"""No network is quicker than this share of the mean: degenerate cells, which are no network."""

NINETY = 1.645
"""Standard deviations on either side that hold 90 %."""


@dataclass(frozen=True)
class Weights:
    """A device: its weights, how sure they are, and what they leave unexplained.

    Latency is `unit_s * (mean[0] + features @ mean[1:])`; where `is_log`, its exponential.
    """

    unit_s: float
    mean: Floats
    covariance: Floats
    noise: float
    is_log: bool = False

    def seconds(self, features: Floats) -> tuple[Floats, Floats, Floats]:
        """Return latencies and both ends of their 90 % intervals.

        Features have a row per network.
        """
        design = with_level(features)
        # Sums by rows, not matrix products: those have other last bits in other batches.
        middle = np.sum(design * self.mean, axis=1)
        variance = np.full(middle.size, self.noise**2)
        for column, line in zip(design.T, self.covariance, strict=True):
            variance += column * np.sum(design * line, axis=1)
        reach = NINETY * np.sqrt(variance)
        ends = (middle, middle - reach, middle + reach)
        if self.is_log:
            found = tuple(self.unit_s * np.exp(end) for end in ends)
        else:
            found = tuple(self.unit_s * np.maximum(end, LEAST) for end in ends)
        return found[0], found[1], found[2]


def with_level(features: Floats) -> Floats:
    """Return features behind a column of ones.

    >>> with_level(np.array([[2.0, 3.0]])).tolist()
    [[1.0, 2.0, 3.0]]
    """
    return np.column_stack([np.ones(len(features)), features])


def calibration_of(space: str) -> Path:
    """Return the file of what devices have in common on a search space.

    Raises:
        UnknownNameError: there is no such search space.
    """
    if space not in SPACES:
        raise UnknownNameError("search space", space, tuple(SPACES))
    return FOLDER / f"{space}.toml"


def device(space: str, name: str) -> Weights:
    """Return a device of the calibration, or one of a user's own by the path of its file.

    Raises:
        UnknownNameError: nothing was measured on a device of that name.
        UserError: a file is no device, or one of another search space.
    """
    if name.endswith(SUFFIX):
        return once(_read, Path(name)).of(space)
    known = once(read_calibration, calibration_of(space))["devices"]
    if name not in known:
        raise UnknownNameError(
            "device",
            name,
            tuple(known),
            "One of your own is the path of a file that "
            f"`calibrate` has written from its latencies, such as my_phone{SUFFIX}",
        )
    return _weights(known[name])


class _File(dict[str, Any]):
    """The content of a device's file."""

    def of(self, space: str) -> Weights:
        if self["search_space"] != space:
            raise UserError(
                f"{self['path']} was measured on networks of {self['search_space']}, not of {space}"
            )
        return _weights(self)


def _read(path: Path) -> _File:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict) or any(name not in found for name in NEEDED):
        raise UserError(
            f"{path} is no device: it lacks {', '.join(NEEDED)}; `calibrate` writes one"
        )
    if not isinstance(found["format"], int):
        raise UserError(f"{path}: format is {found['format']!r}, and no number of one")
    if found["format"] > DEVICE_FORMAT:
        raise UserError(
            f"{path} is of format {found['format']}; this version reads up to {DEVICE_FORMAT}"
        )
    space = found["search_space"]
    if not isinstance(space, str):
        raise UserError(f"{path}: search_space is {space!r}, and no name")
    known = once(read_calibration, calibration_of(space))["prior"]["mean"]
    lacking = FUSED[space] if found["format"] < 2 else 0
    _check(found, len(known) + 1 - lacking, path)
    for name in [one for one in ("mean", "covariance") if one in found]:
        found[name] = np.pad(np.array(found[name], np.float64), (0, lacking))
    return _File(found, path=path)


def _check(found: Mapping[str, Any], weights: int, path: Path) -> None:
    """Hold a device's numbers to those its search space has: a level and a weight per feature.

    Raises:
        UserError: something is no number, or there are more or fewer of them.
    """
    shapes: dict[str, tuple[int, ...]] = {"unit_s": (), "noise": (), "mean": (weights,)}
    if "covariance" in found:
        shapes["covariance"] = (weights, weights)
    for name, shape in shapes.items():
        try:
            numbers = np.array(found[name], np.float64)
        except (TypeError, ValueError):
            numbers = np.full(shape, np.nan)
        wanted = " by ".join(map(str, shape)) + " numbers" if shape else "a number"
        if numbers.shape != shape or not np.isfinite(numbers).all():
            raise UserError(f"{path}: `{name}` is {wanted}, on networks of {found['search_space']}")


def _weights(found: Mapping[str, Any]) -> Weights:
    mean = np.array(found["mean"], np.float64)
    covariance = found.get("covariance", np.zeros((mean.size, mean.size)))
    return Weights(
        float(found["unit_s"]), mean, np.array(covariance, np.float64), float(found["noise"])
    )
