"""Fit how much of a link a large all-reduce sustains, by fabric.

The mean |log(predicted / measured)| is least: a factor too high weighs as much as one too low.
Boards that send through their host's memory have a table of their own, whose releases were timed on
one server or another: which server they tell by their rates, four and two times apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.fits.driver import Calibration, calibration, hashes, table_lines
from lab.fits.methods.grid_search import best_share
from lab.tables.catalog_names import gpu_name
from lab.tables.collectives import NCCL
from lab.tables.rows import read_records, read_table
from simulators.catalog.cluster import THROUGH_HOST, Link, load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.collectives.closed.protocols import CALIBRATION, ring_s
from simulators.core.jit import Floats

RingErrors = Callable[[float], Floats]

FOLDER = CALIBRATION.parent
NETWORK = "llm_ops/network.parquet"
SPLIT = (
    "DGX: rings of 2 and 8 fitted, 4 held out; PCIe: A100 fitted, H100 held out; "
    "through the host: two RTX PRO 6000 fitted, four and eight L40S held out"
)
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

HOSTS: dict[str, tuple[Sequence[str], Sequence[int]]] = {
    "rtx_pro_6000": (("0.19.0", "0.5.10", "1.3.0rc10"), (2,)),
    "l40s": (("0.14.0", "0.22.0", "0.5.10", "0.5.14"), (4, 8)),
}
"""Releases of frameworks that were timed on boards without peer access, and how many of them. Their
sums of many bytes are NCCL's. The first board is fitted, the second held out; two of its boards
read each other's memory even there."""

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
    through_host = list(_through_host(reference))
    two, more = ([e for mine, e in through_host if mine is own] for own in (True, False))
    sustained[THROUGH_HOST] = best_share(SUSTAINED, two)
    held_out += [errors(sustained[THROUGH_HOST]) for errors in more]
    rows += sum(error(1.0).size for error in two)
    yield calibration(
        CALIBRATION.stem,
        hashes(reference, [NETWORK, NCCL]),
        rows=rows,
        split=SPLIT,
        held_out=np.expm1(np.concatenate(held_out)),
        lines=table_lines("sustained", sustained, ".3f"),
    )


def _large_all_reduces(reference: Path) -> dict[str, NDArray[Any]]:
    """Return the columns of large all-reduces within one node."""
    table = read_table(reference / NETWORK).to_pydict()
    columns = {name: np.array(values) for name, values in table.items()}
    kept = (columns["op"] == "all_reduce") & (columns["size_bytes"] >= LARGE_BYTES)
    kept &= columns["num_workers"] == columns["devices_per_node"]
    return {name: column[kept] for name, column in columns.items()}


def _through_host(reference: Path) -> Iterator[tuple[bool, RingErrors]]:
    """Yield the errors of large all-reduces by way of the host, and whether they are fitted."""
    table = [
        row
        for row in read_records(reference / NCCL)
        if row["collective"] == "all_reduce" and row["bytes"] >= LARGE_BYTES
    ]
    for index, (gpu, (releases, counts)) in enumerate(HOSTS.items()):
        board = load_gpu(gpu)
        link = load_cluster(THROUGH_HOST).link(2, board)
        for ranks in counts:
            here = [
                row
                for row in table
                if gpu_name(row["gpu"]) == gpu
                and row["library_version_folder"] in releases
                and row["ranks"] == ranks
            ]
            sizes, times_s = np.array([(row["bytes"], row["time_us"] * 1e-6) for row in here]).T
            yield index == 0, partial(_log_errors, sizes, times_s, ranks, link, ranks)


def _log_errors(
    sizes: Floats, times_s: Floats, ranks: int, link: Link, sharing: int, fraction: float
) -> Floats:
    """Return the |log error| of all-reduces, given what those who share a link have of it."""
    off: Floats = np.abs(
        np.log(ring_s("all_reduce", sizes, ranks, link, fraction / sharing) / times_s)
    )
    return off


def _ring_errors(table: dict[str, NDArray[Any]], node: str, ranks: int) -> RingErrors:
    """Return the |log error| of each all-reduce of one ring, given the sustained part."""
    here = (table["node"] == node) & (table["num_workers"] == ranks)
    measured_s = np.asarray(table["min_ms"][here] * 1e-3, np.float64)
    name, rate = LINKS[node]
    link = dataclasses.replace(load_cluster(name).intra, bytes_per_s=rate)
    sizes = np.asarray(table["size_bytes"][here], np.float64)
    return partial(_log_errors, sizes, measured_s, ranks, link, 1)
