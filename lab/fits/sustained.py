"""Fit how much of a link a large all-reduce sustains, by fabric.

The mean |log(predicted / measured)| is least: a factor too high weighs as much as one too low.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.fits.driver import Calibration, calibration, hashes, table_lines
from lab.fits.methods.least_squares import best_share
from lab.tables.rows import read_table
from simulators.catalog.cluster import load_cluster
from simulators.collectives.closed.protocols import CALIBRATION, ring_s
from simulators.core.jit import Floats

RingErrors = Callable[[float], Floats]

FOLDER = CALIBRATION.parent
NETWORK = "llm_ops/network.parquet"
SPLIT = "DGX: rings of 2 and 8 fitted, 4 held out; PCIe: A100 fitted, H100 held out"
LINKS = {
    "a100_dgx": ("dgx_a100", 300e9),
    "h100_dgx": ("dgx_h100", 450e9),
    "a100_pairwise_nvlink": ("pcie_server", 31.5e9),
    "h100_pairwise_nvlink": ("pcie_server", 63e9),
}
"""Nodes of the network table: whose links they have, and the data-sheet rate of those. In the
pairwise nodes a ring over four GPUs crosses PCIe."""

Rings = Sequence[tuple[str, int]]
RINGS: dict[str, tuple[Rings, Rings]] = {
    "nvlink3": ([("a100_dgx", 2), ("a100_dgx", 8)], [("a100_dgx", 4)]),
    "nvlink4": ([("h100_dgx", 2), ("h100_dgx", 8)], [("h100_dgx", 4)]),
    "pcie": ([("a100_pairwise_nvlink", 4)], [("h100_pairwise_nvlink", 4)]),
}
"""By fabric: the rings (node, GPUs) it is fitted to, and those held out."""

LARGE_BYTES = 2**20
"""Smaller messages were timed with the host's launch in them; they say nothing about the link."""

SUSTAINED = np.arange(0.3, 1.0 + 0.005 / 2, 0.005)


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the sustained parts of links; fabrics nobody measured have the mean."""
    columns = _large_all_reduces(reference)
    sustained, held_out, rows = {}, [], 0
    for fabric, (train, test) in RINGS.items():
        errors = [_ring_errors(columns, node, ranks) for node, ranks in train]
        sustained[fabric] = best_share(SUSTAINED, errors)
        held_out += [_ring_errors(columns, node, n)(sustained[fabric]) for node, n in test]
        rows += sum(error(1.0).size for error in errors)
    sustained["other"] = float(np.mean([sustained[fabric] for fabric in RINGS]))
    yield calibration(
        CALIBRATION.stem, hashes(reference, [NETWORK]), rows=rows, split=SPLIT,
        held_out=np.expm1(np.concatenate(held_out)),
        lines=table_lines("sustained", sustained, ".3f"),
    )  # fmt: skip


def _large_all_reduces(reference: Path) -> dict[str, NDArray[Any]]:
    """Return the columns of large all-reduces within one node."""
    table = read_table(reference / NETWORK).to_pydict()
    columns = {name: np.array(values) for name, values in table.items()}
    kept = (columns["op"] == "all_reduce") & (columns["size_bytes"] >= LARGE_BYTES)
    kept &= columns["num_workers"] == columns["devices_per_node"]
    return {name: column[kept] for name, column in columns.items()}


def _ring_errors(table: dict[str, NDArray[Any]], node: str, ranks: int) -> RingErrors:
    """Return the |log error| of each all-reduce of one ring, given the sustained part."""
    here = (table["node"] == node) & (table["num_workers"] == ranks)
    measured_s = np.asarray(table["min_ms"][here] * 1e-3, np.float64)
    name, rate = LINKS[node]
    link = dataclasses.replace(load_cluster(name).intra, bytes_per_s=rate)
    sizes = np.asarray(table["size_bytes"][here], np.float64)

    def errors(fraction: float) -> Floats:
        off: Floats = np.abs(
            np.log(ring_s("all_reduce", sizes, ranks, link, fraction) / measured_s)
        )
        return off

    return errors
