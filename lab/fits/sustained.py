"""Fit the share of a link's bandwidth that a large all-reduce sustains, by fabric.

The share minimises the mean absolute log error. GPUs without peer access send through their host's
memory and have a table of their own, whose releases were timed on one server or another: their
rates, four and two times apart, tell which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.fits.driver import Calibration
from lab.fits.methods.grid_search import best_share
from lab.tables.collectives import NCCL
from lab.tables.records import gpu_name
from lab.tables.rows import read_records, read_table
from simulators.catalog.cluster import THROUGH_HOST, Link, load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.collectives.library_models import SUSTAINED_CALIBRATION, ring_s
from simulators.core.jit import Floats

RingErrors = Callable[[float], Floats]
Rings = Sequence[tuple[str, int]]

FOLDER = SUSTAINED_CALIBRATION.parent
NETWORK = "llm_ops/network.parquet"
LINKS = {
    "a100_dgx": ("dgx_a100", 300e9),
    "h100_dgx": ("dgx_h100", 450e9),
    "a100_pairwise_nvlink": ("pcie_server", 31.5e9),
    "h100_pairwise_nvlink": ("pcie_server", 63e9),
}
"""Cluster and data-sheet rate of the nodes of the network table. In the pairwise nodes a ring over
four GPUs crosses PCIe."""

RINGS: dict[str, tuple[Rings, Rings]] = {
    "nvlink3": ([("a100_dgx", 2), ("a100_dgx", 8)], [("a100_dgx", 4)]),
    "nvlink4": ([("h100_dgx", 2), ("h100_dgx", 8)], [("h100_dgx", 4)]),
    "pcie": ([("a100_pairwise_nvlink", 4)], [("h100_pairwise_nvlink", 4)]),
}
"""Rings (node, GPUs) that each fabric is fitted to, and those held out."""

HOSTS: dict[str, tuple[Sequence[str], Sequence[int]]] = {
    "rtx_pro_6000": (("0.19.0", "0.5.10", "1.3.0rc10"), (2,)),
    "l40s": (("0.14.0", "0.22.0", "0.5.10", "0.5.14"), (4, 8)),
}
"""Releases timed on GPUs without peer access, and ranks; large all-reduces are NCCL's. The first
GPU is fitted, the second held out; two of its GPUs read each other's memory even there."""

LARGE_BYTES = 2**20
"""Smaller messages were timed with the host's launch in them."""

SUSTAINED = np.arange(0.3, 1.0 + 0.005 / 2, 0.005)


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the sustained shares of links; other fabrics have the mean."""
    columns = _large_all_reduces(reference)
    fitted, held_out = {}, []
    for fabric, (train, test) in RINGS.items():
        fitted[fabric] = [_ring_errors(columns, node, ranks) for node, ranks in train]
        held_out += [(fabric, _ring_errors(columns, node, ranks)) for node, ranks in test]
    own, *others = HOSTS
    fitted[THROUGH_HOST] = list(_through_host(reference, own))
    held_out += [(THROUGH_HOST, e) for gpu in others for e in _through_host(reference, gpu)]
    sustained = {fabric: best_share(SUSTAINED, errors) for fabric, errors in fitted.items()}
    yield Calibration(
        name=SUSTAINED_CALIBRATION.stem,
        content={
            "sustained": {"other": float(np.mean([sustained[f] for f in RINGS])), **sustained}
        },
        style=".3f",
        tables=[NETWORK, NCCL],
        rows=sum(error(1.0).size for errors in fitted.values() for error in errors),
        split="DGX: rings of 2 and 8 fitted, 4 held out; PCIe: A100 fitted, H100 held out; "
        "through the host: two RTX PRO 6000 fitted, four and eight L40S held out",
        errors=np.expm1(np.concatenate([errors(sustained[fabric]) for fabric, errors in held_out])),
    )


def _large_all_reduces(reference: Path) -> dict[str, NDArray[Any]]:
    """Return the columns of large all-reduces within one node."""
    table = read_table(reference / NETWORK).to_pydict()
    columns = {name: np.array(values) for name, values in table.items()}
    kept = (columns["op"] == "all_reduce") & (columns["size_bytes"] >= LARGE_BYTES)
    kept &= columns["num_workers"] == columns["devices_per_node"]
    return {name: column[kept] for name, column in columns.items()}


def _through_host(reference: Path, gpu: str) -> Iterator[RingErrors]:
    """Yield the errors of large all-reduces through the host, by number of ranks."""
    releases, counts = HOSTS[gpu]
    link = load_cluster(THROUGH_HOST).link(2, load_gpu(gpu))
    table = [
        row
        for row in read_records(reference / NCCL)
        if row["collective"] == "all_reduce"
        and row["bytes"] >= LARGE_BYTES
        and gpu_name(row["gpu"]) == gpu
        and row["library_version_folder"] in releases
    ]
    for ranks in counts:
        here = [(row["bytes"], row["time_us"] * 1e-6) for row in table if row["ranks"] == ranks]
        sizes, times_s = np.array(here).T
        yield partial(_log_errors, sizes, times_s, ranks, link, ranks)


def _ring_errors(table: dict[str, NDArray[Any]], node: str, ranks: int) -> RingErrors:
    """Return the errors of the all-reduces of one ring, given the sustained share."""
    here = (table["node"] == node) & (table["num_workers"] == ranks)
    measured_s = np.asarray(table["min_ms"][here] * 1e-3, np.float64)
    name, rate = LINKS[node]
    link = dataclasses.replace(load_cluster(name).intra, bytes_per_s=rate)
    sizes = np.asarray(table["size_bytes"][here], np.float64)
    return partial(_log_errors, sizes, measured_s, ranks, link, 1)


def _log_errors(
    sizes: Floats, times_s: Floats, ranks: int, link: Link, sharing: int, share: float
) -> Floats:
    """Return |log(predicted / measured)| of all-reduces over a link that some ranks share."""
    predicted_s = ring_s("all_reduce", sizes, ranks, link, share / sharing)
    return np.asarray(np.abs(np.log(predicted_s / times_s)), np.float64)
