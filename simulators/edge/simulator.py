"""Latency of a network of a search space on a device, with an accuracy given by the user.

A network is given by its text, or by six axes with the operations of a NAS-Bench-201 cell's edges.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from simulators.core.columns import EXTRAPOLATED, FITTED, alike, outcome, shares_of
from simulators.core.contract import choice, metric
from simulators.core.errors import UserError
from simulators.core.fields import check_batch
from simulators.core.folder import once
from simulators.edge.device import (
    CELL_OPERATIONS,
    EDGES,
    NONE,
    SPACES,
    SUFFIX,
    calibration_of,
    cell_macs,
    cell_text,
    device,
    features,
)

CELL_SPACE = "nb201"
OPERATIONS = (NONE, *CELL_OPERATIONS)
EDGE_FIELDS = tuple(f"op_{source}_{target}" for source, target in EDGES)

_edge = partial(choice, default=NONE, known=OPERATIONS)


@dataclass(frozen=True)
class EdgePoint:
    """A network and the device it runs on."""

    device: str = choice(
        "a measured device, or the path of one that `calibrate` has written", given=True
    )
    search_space: str = choice(
        f"which networks: {', '.join(SPACES)}", default=CELL_SPACE, known=tuple(SPACES), given=True
    )
    network: str = choice(
        "the network as its space spells it; else the six edges of a cell", default=""
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
    version: int = 1
    point: type = EdgePoint
    metrics: type = EdgeMetrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Evaluate a batch; rows with the same device and search space are evaluated together."""
        check_batch(EdgePoint, batch)
        texts = _texts(batch)
        out = {name: np.full(batch.num_rows, np.nan) for name in EdgeMetrics.__dataclass_fields__}
        level = np.zeros(batch.num_rows, np.int64)
        for where, group in alike(batch, ("device", "search_space", "accuracy")):
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
        if (name == "device" and str(value).endswith(SUFFIX)) or (name == "accuracy" and value):
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
    return [text or cell for text, cell in zip(named, cells, strict=True)]


def _accuracies(file: Path) -> Mapping[str, float]:
    """Return the accuracy by network of a user's CSV file."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        return {row["network"]: float(row["accuracy"]) for row in rows}
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"{file}: write two columns, network and accuracy, a number each ({error})"
        ) from error
