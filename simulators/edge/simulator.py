"""Latency of networks on devices: features of a network times the weights of a device.

Features count the layers of each kind per stage, so a weight is a time. Search spaces:

- `nb201`: a cell of NAS-Bench-201 with six edges (Dong and Yang, 2020), as
  `|conv~0|+|conv~0|conv~1|+|conv~0|conv~1|conv~2|`. Operations on no path to the output, which a
  runtime prunes, are counted separately.
- `fbnet`: 22 blocks (Wu et al., 2019), as `k3_e1 k5_e6 skip ...`.
- `ofa`: kernel sizes, expansions, depths and resolution of a Once-for-all MobileNetV3 (Cai et al.,
  2020), as JSON.

Runtimes fuse a convolution with the norm, the activation and the addition behind it, so those are
no features. Two effects of fusion differ between networks: the number of additions that end in a
projection (FBNet), and the width of a stage's first fused kernel at the resolution of the stage
before (OFA).

A device is a calibrated one, or a JSON file of a user that `calibrate` writes. Files of older
formats stay readable.

The user may add a file with the accuracy of each network. A cell may also be given by six axes, the
operations of its edges.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from simulators.core.calibration import read_calibration
from simulators.core.columns import EXTRAPOLATED, FITTED, equal_row_groups, outcome, shares_of
from simulators.core.contract import choice, metric
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.fields import check_batch
from simulators.core.folder import once, reader
from simulators.core.jit import Floats

NONE = "none"
CELL_OPERATIONS = ("skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
"""Operations of a cell's edge, besides `none`."""

EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
"""Edges of a cell, from node to node, in the order of its text."""

CELLS, CELL_MACS = 15, 16**2 * 32**2
"""Cells per network, and multiply-accumulates of a 1x1 convolution in every cell: 16 channels of 32
by 32 pixels; later stages have twice the channels at half the side."""

BLOCKS = ("k3_e1", "k3_e1_g2", "k3_e3", "k3_e6", "k5_e1", "k5_e1_g2", "k5_e3", "k5_e6")
"""Blocks of an FBNet layer, besides `skip`: kernel size, expansion, groups."""

FBNET_STAGES = (1, 4, 4, 4, 4, 4, 1)
"""Layers per stage; a stage has one width and resolution."""

OFA_STAGES, OFA_DEPTH = 5, 4
OFA_RESOLUTION = 224.0
_of_blocks = msgspec.Meta(min_length=OFA_STAGES * OFA_DEPTH, max_length=OFA_STAGES * OFA_DEPTH)
_of_stages = msgspec.Meta(min_length=OFA_STAGES, max_length=OFA_STAGES)


class _OfaNetwork(msgspec.Struct, frozen=True):
    """A network of Once-for-all: kernel sizes, expansions, depths, and pixels of a side."""

    ks: Annotated[list[Literal[3, 5, 7]], _of_blocks]
    e: Annotated[list[Literal[3, 4, 6]], _of_blocks]
    d: Annotated[list[Literal[2, 3, 4]], _of_stages]
    r: Annotated[float, msgspec.Meta(ge=128.0, le=OFA_RESOLUTION)]


def features(space: str, texts: Sequence[str]) -> Floats:
    """Return the features of networks, one row per network.

    Raises:
        UnknownNameError: the search space is unknown.
        UserError: a text is not a network of the search space.
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
        UserError: the text is not a cell of NAS-Bench-201.
    """
    found = [word.partition("~")[0] for word in text.replace("+", "").split("|") if word]
    if len(found) != len(EDGES) or not {*found} <= {NONE, *CELL_OPERATIONS}:
        raise UserError(
            f"'{text}' is no cell of NAS-Bench-201: six edges, each {NONE}, "
            f"{', '.join(CELL_OPERATIONS)}, as in '{cell_text(['skip_connect'] * len(EDGES))}'"
        )
    return found


def cell_macs(text: str) -> float:
    """Return the multiply-accumulates of a network's cells, pruned operations included.

    >>> cell_macs(cell_text(["nor_conv_1x1", *["none"] * 5])) / 1e6
    3.93216
    """
    operations = cell_operations(text)
    taps = operations.count("nor_conv_1x1") + 9 * operations.count("nor_conv_3x3")
    return float(CELLS * CELL_MACS * taps)


def _cell(text: str) -> list[float]:
    """Return the number of edges per operation: all edges, then edges on a path to the output."""
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
    """Return the number of blocks per stage and kind, then the number of additions per stage."""
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
    """Return relative pixels, four features per stage, and the input expansion per stage.

    The features of a stage are its depth, and pixels times depth, expansions and kernel areas. The
    input expansion is pixels times the expansion of the first block.
    """
    try:
        asked = msgspec.json.decode(text, type=_OfaNetwork)
    except msgspec.DecodeError as error:
        raise UserError(
            f"'{text}' is no network of OFA ({error}): JSON with 20 sizes in ks and in e, 5 depths "
            "in d, and pixels r"
        ) from error
    sizes, wide, pixels = asked.ks, asked.e, (asked.r / OFA_RESOLUTION) ** 2
    found = [pixels]
    for stage, depth in enumerate(asked.d):
        blocks = range(OFA_DEPTH * stage, OFA_DEPTH * stage + depth)
        expansion = sum(wide[block] for block in blocks)
        area = sum(wide[block] * sizes[block] ** 2 for block in blocks)
        found += [depth, pixels * depth, pixels * expansion, pixels * area]
    return found + [pixels * wide[OFA_DEPTH * stage] for stage in range(OFA_STAGES)]


FUSED = MappingProxyType({"nb201": 0, "fbnet": 5, "ofa": 5})
"""Number of features of fused kernels, which come last. Device files of format 1 lack them."""

SPACES: Mapping[str, Callable[[str], list[float]]] = MappingProxyType(
    {"nb201": _cell, "fbnet": _fbnet, "ofa": _ofa}
)


FOLDER = Path(__file__).parent / "calibration"
DEVICE_FORMAT = 2
"""Version of device files. Format 1 has no weights of fused kernels."""

SUFFIX, ONNX = ".json", ".onnx"
"""Suffixes of device files and of networks as files."""

LEAST = 0.02
"""Least latency of a network, as a share of the mean; degenerate cells would have less."""

NINETY = 1.645
"""Standard deviations on each side of a 90 % interval."""


@dataclass(frozen=True)
class Weights:
    """Weights of a device with their covariance and the residual noise.

    Latency is `unit_s * (mean[0] + features @ mean[1:])`, or `unit_s` times the exponential of the
    sum if `is_log`.
    """

    unit_s: float
    mean: Floats
    covariance: Floats
    noise: float
    is_log: bool = False

    def seconds(self, features: Floats) -> tuple[Floats, Floats, Floats]:
        """Return latencies and both ends of their 90 % intervals. `features`: a row per network."""
        design = with_level(features)
        # Sums by rows: the bits of matrix products would depend on the batch.
        middle = np.sum(design * self.mean, axis=1)
        variance = np.full(middle.size, self.noise**2)
        for column, line in zip(design.T, self.covariance, strict=True):
            variance += column * np.sum(design * line, axis=1)
        margin = NINETY * np.sqrt(variance)
        ends = (middle, middle - margin, middle + margin)
        if self.is_log:
            found = tuple(self.unit_s * np.exp(end) for end in ends)
        else:
            found = tuple(self.unit_s * np.maximum(end, LEAST) for end in ends)
        return found[0], found[1], found[2]


def with_level(features: Floats) -> Floats:
    """Return features with a leading column of ones.

    >>> with_level(np.array([[2.0, 3.0]])).tolist()
    [[1.0, 2.0, 3.0]]
    """
    return np.column_stack([np.ones(len(features)), features])


def calibration_of(space: str) -> Path:
    """Return the calibration file of a search space.

    Raises:
        UnknownNameError: the search space is unknown.
    """
    if space not in SPACES:
        raise UnknownNameError("search space", space, tuple(SPACES))
    return FOLDER / f"{space}.toml"


def device(space: str, name: str) -> Weights:
    """Return the weights of a calibrated device, or of a device file given by path.

    Raises:
        UnknownNameError: the calibration has no device of this name.
        UserError: the file is not a device file, or belongs to another search space.
    """
    if name.endswith(SUFFIX):
        measured_space, weights = once(_read_device, Path(name))
        if measured_space != space:
            raise UserError(f"{name} was measured on networks of {measured_space}, not of {space}")
        return weights
    known = once(read_calibration, calibration_of(space))["devices"]
    if name not in known:
        raise UnknownNameError(
            "device",
            name,
            tuple(known),
            "One of your own is the path of a file that "
            f"`calibrate` has written from its latencies, such as my_phone{SUFFIX}",
        )
    numbers = known[name]
    return _weights(numbers["unit_s"], numbers["mean"], numbers["noise"], numbers.get("covariance"))


class _DeviceFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a device file, which `calibrate` writes."""

    format: int
    search_space: str
    unit_s: Annotated[float, msgspec.Meta(gt=0.0)]
    mean: list[float]
    noise: Annotated[float, msgspec.Meta(ge=0.0)]
    covariance: list[list[float]] | None = None


def _read_device(path: Path) -> tuple[str, Weights]:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_DeviceFile)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is not a device file ({error}); `calibrate` writes one") from error
    if found.format > DEVICE_FORMAT:
        raise UserError(
            f"{path} has format {found.format}; this version reads up to {DEVICE_FORMAT}"
        )
    space, covariance = found.search_space, found.covariance
    missing = FUSED[space] if space in FUSED and found.format < 2 else 0
    count = len(once(read_calibration, calibration_of(space))["prior"]["mean"]) + 1 - missing
    for name, rows, wanted in (("mean", [found.mean], 1), ("covariance", covariance, count)):
        if rows is not None and [len(row) for row in rows] != [count] * wanted:
            raise UserError(f"{path}: `{name}` needs {count} numbers per row for {space}")
    if covariance is not None and np.linalg.eigvalsh(covariance)[0] < -1e-9 * np.trace(covariance):
        raise UserError(f"{path}: `covariance` is not positive semidefinite")
    mean = np.pad(np.array(found.mean), (0, missing))
    padded = None if covariance is None else np.pad(np.array(covariance), (0, missing))
    return space, _weights(found.unit_s, mean, found.noise, padded)


def _weights(unit_s: float, mean: Any, noise: float, covariance: Any) -> Weights:
    means = np.array(mean, np.float64)
    certain = np.zeros((means.size, means.size)) if covariance is None else covariance
    return Weights(float(unit_s), means, np.array(certain, np.float64), float(noise))


CELL_SPACE = "nb201"
OPERATIONS = (NONE, *CELL_OPERATIONS)
EDGE_FIELDS = tuple(f"op_{source}_{target}" for source, target in EDGES)

_edge = partial(choice, default=NONE, known=OPERATIONS)


@dataclass(frozen=True)
class EdgePoint:
    """A network and the device it runs on."""

    device: str = choice(
        "a calibrated device, or the path of a device file that `calibrate` has written", given=True
    )
    search_space: str = choice(
        f"search space: {', '.join(SPACES)}", default=CELL_SPACE, known=tuple(SPACES), given=True
    )
    network: str = choice(
        "network in the notation of its search space, or the path of an ONNX file of FBNet or "
        "Once-for-all; empty: the cell of the six edges",
        default="",
    )
    op_0_1: str = _edge("operation of a cell from its input to node 1")
    op_0_2: str = _edge("operation from the input to node 2")
    op_1_2: str = _edge("operation from node 1 to node 2")
    op_0_3: str = _edge("operation from the input to the output")
    op_1_3: str = _edge("operation from node 1 to the output")
    op_2_3: str = _edge("operation from node 2 to the output")
    accuracy: str = choice(
        "the user's CSV with columns network and accuracy; without it no accuracy is reported",
        default="",
        given=True,
    )


_latency = partial(metric, unit="s", page="edge.md#latency")
_worth = partial(metric, page="edge.md#what-a-network-is-worth")


@dataclass(frozen=True)
class EdgeMetrics:
    """Latency and accuracy of a network."""

    latency_s: float = _latency("time of one inference", better="min")
    latency_s_lo: float = _latency("lower end of its 90 % interval")
    latency_s_hi: float = _latency("upper end of its 90 % interval")
    cell_macs: float = _worth("multiply-accumulates in the cells of NAS-Bench-201")
    accuracy_proxy: float = _worth("accuracy that the user's file gives the network", better="max")


@dataclass(frozen=True)
class Edge:
    """The simulator of networks on edge devices."""

    name: str = "edge"
    version: int = 2
    point: type = EdgePoint
    metrics: type = EdgeMetrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Evaluate a batch; rows with the same device and search space are evaluated together."""
        check_batch(EdgePoint, batch)
        texts = _texts(batch)
        out = {name: np.full(batch.num_rows, np.nan) for name in EdgeMetrics.__dataclass_fields__}
        level = np.zeros(batch.num_rows, np.int64)
        for where, group in equal_row_groups(batch, ("device", "search_space", "accuracy")):
            named = [texts[i] for i in where]
            weights = device(group["search_space"], group["device"])
            columns = weights.seconds(features(group["search_space"], named))
            for name, column in zip(("", "_lo", "_hi"), columns, strict=True):
                out[f"latency_s{name}"][where] = column
            if group["search_space"] == CELL_SPACE:
                out["cell_macs"][where] = [cell_macs(text) for text in named]
            known = once(_accuracies, Path(group["accuracy"])) if group["accuracy"] else {}
            out["accuracy_proxy"][where] = [known.get(text, np.nan) for text in named]
            level[where] = EXTRAPOLATED if group["device"].endswith(SUFFIX) else FITTED
        return outcome(EdgeMetrics, out, shares=shares_of(level), sparse=True)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files that a point depends on: calibration, device file and accuracies."""
        if name == "search_space":
            return (calibration_of(str(value)),)
        is_file = str(value).endswith({"device": SUFFIX, "network": ONNX}.get(name, "\n"))
        if is_file or (name == "accuracy" and value):
            return (Path(str(value)),)
        return ()


SIMULATOR = Edge()


def _texts(batch: pa.RecordBatch) -> list[str]:
    """Return the network of every row; an empty network is the cell of its six edges.

    Raises:
        UserError: a row of another search space has no network.
    """
    named, spaces = (batch.column(name).to_pylist() for name in ("network", "search_space"))
    edges = [batch.column(name).to_pylist() for name in EDGE_FIELDS]
    cells = [cell_text(operations) for operations in zip(*edges, strict=True)]
    for text, space in zip(named, spaces, strict=True):
        if not text and space != CELL_SPACE:
            raise UserError(f"network is missing: what is one of {space}, as text?")
    files = {asked for asked in zip(named, spaces, strict=True) if asked[0].endswith(ONNX)}
    read = reader("onnx_search_space", "network_of_onnx") if files else None
    known = {(file, space): read(Path(file), space) for file, space in sorted(files) if read}
    return [
        known.get((text, space)) or text or cell
        for text, cell, space in zip(named, cells, spaces, strict=True)
    ]


def _accuracies(file: Path) -> Mapping[str, float]:
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        found = {row["network"]: float(row["accuracy"]) for row in rows}
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"{file}: write two columns, network and accuracy, a number each ({error})"
        ) from error
    if wrong := [name for name, share in found.items() if not 0.0 <= share < math.inf]:
        raise UserError(f"{file}: accuracy of {wrong[0]} is {found[wrong[0]]:g}, not 0 or more")
    return found
