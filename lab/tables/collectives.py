"""Measured collectives, as nccl-tests print them: one median per curve and size.

A curve is a collective, a precision and a number of ranks, of one library on the GPUs of one node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.tables.catalog_names import gpu_name
from lab.tables.rows import Bools, read_records
from simulators.collectives.closed.expert_exchange import HIGH_THROUGHPUT, LOW_LATENCY, Routed
from simulators.core.jit import Floats, Ints

Key = tuple[str, str, int]  # collective, dtype, ranks

NCCL = "collectives/nccl_measured.parquet"
BETWEEN_NODES = "collectives/multinode_nccl.parquet"
EXCHANGES = "moe/deepep_all2all.parquet"
COLUMNS = ("collective", "dtype", "ranks", "bytes", "time_us")
SHORT_NAMES = {"half": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, eq=False)
class Curves:
    """All medians of one GPU and library, sorted by curve and size."""

    keys: tuple[Key, ...]
    curve: Ints  # of each row: the position of its curve in `keys`
    octave: Floats  # log2 of bytes
    log_s: Floats

    def take(self, where: Bools | Ints) -> Curves:
        """Return some of the rows."""
        return replace(
            self, curve=self.curve[where], octave=self.octave[where], log_s=self.log_s[where]
        )

    def of(self, key: Key) -> Bools:
        """Say which rows belong to a curve."""
        mine: Bools = self.curve == self.keys.index(key)
        return mine


@dataclass(frozen=True)
class System:
    """A cluster whose collectives between nodes were measured."""

    name: str
    gpu: str
    port_bytes_per_s: float  # of the network, for each GPU
    gpus_per_node: int
    setup: str  # of the table's environments: the one its owners recommend


SYSTEMS = (
    System("polaris", "a100_sxm", 12.5e9, 4, "setup 5 of the README"),
    System("sirius", "a100_sxm", 12.5e9, 4, "setup 5 of the README"),
    System("sophia", "a100_sxm", 25e9, 8, "setup 6 of the README"),
    System("example-cluster01", "h100_sxm", 50e9, 8, ""),
)
"""Two 200 Gb/s Slingshot cards for four GPUs (ALCF, Polaris), a 200 Gb/s InfiniBand card for each
GPU of a DGX A100, a 400 Gb/s one for each H100. `example-cluster00`, known for its slow links, and
racks joined by NVLink are left out."""


@dataclass(frozen=True)
class NodesCurve:
    """Medians of one collective over equally filled nodes of a system, by size."""

    system: System
    collective: str
    nodes: int
    ranks: int
    size_bytes: Floats
    seconds: Floats


def read_between_nodes(reference: Path) -> list[NodesCurve]:
    """Return the curves of systems over several nodes."""
    by_name = {system.name: system for system in SYSTEMS}
    found: dict[tuple[str, str, int, int], dict[int, list[float]]] = {}
    for row in read_records(reference / BETWEEN_NODES):
        system = by_name.get(row["system"])
        if system is None or row["nodes"] < 2 or not row["size_bytes"] or not row["collective"]:
            continue
        if system.setup and row["environment"] != system.setup:
            continue
        kind = {"alltoall": "all_to_all"}.get(row["collective"], row["collective"])
        sizes = found.setdefault((system.name, kind, int(row["nodes"]), int(row["ranks"])), {})
        sizes.setdefault(int(row["size_bytes"]), []).append(row["time_us"] * 1e-6)
    return [
        NodesCurve(
            by_name[name],
            kind,
            nodes,
            ranks,
            size_bytes=np.array(sorted(sizes), np.float64),
            seconds=np.array([float(np.median(sizes[size])) for size in sorted(sizes)]),
        )
        for (name, kind, nodes, ranks), sizes in sorted(found.items())
    ]


@dataclass(frozen=True)
class Exchange:
    """One dispatch or combine of DeepEP's own test, its time from the bandwidth that it prints."""

    kernel: str  # V1-normal, V1-lowlat, V2
    gpu: str
    ranks: int
    op: str
    tokens: int
    routed: Routed
    seconds: float

    @property
    def mode(self) -> str:
        """The kind of its kernels."""
        return LOW_LATENCY if self.kernel == LOW_LATENCY_KERNEL else HIGH_THROUGHPUT

    @property
    def rank_bytes(self) -> float:
        """Of one copy of all tokens of a rank."""
        return self.tokens * HIDDEN * NUMBER_BYTES[self.op]


HIDDEN, EXPERTS, TOP_K, TOP_GROUPS, NODE = 7168, 256, 8, 4, 8
"""Of DeepEP's tests: those of DeepSeek-V3; in high throughput a token keeps to four nodes of 8."""

NUMBER_BYTES = {"dispatch": 1.0 + 4.0 / 128.0, "combine": 2.0}
"""Bytes of a number: in 8 bits, with a scale in 32 for every 128 numbers, and in 16."""

LOW_LATENCY_KERNEL = "V1-lowlat"
TOKENS = {"V1-normal": 4096, LOW_LATENCY_KERNEL: 128, "V2": 8192}
BOARDS = {"H800": "h800", "SM90": "h100_sxm", "SM100": "b200_sxm"}
"""Boards by their names in the table; where it names an architecture, the usual one of it."""


def read_exchanges(reference: Path) -> list[Exchange]:
    """Return DeepEP's dispatches and combines.

    Bandwidths are of bytes as the tests count them: copies that stay at home are in. Of low latency
    a copy for every expert; else one for every node, or within one node for every GPU.
    """
    found = []
    for row in read_records(reference / EXCHANGES):
        kernel, ranks, op = row["kernel"], int(row["ep"]), row["op"]
        nodes = -(-ranks // NODE)
        routed = Routed(EXPERTS, TOP_K)
        if kernel != LOW_LATENCY_KERNEL:
            routed = replace(routed, groups=nodes, chosen=min(nodes, TOP_GROUPS))
        copies = routed.reached(nodes if nodes > 1 else ranks)
        if kernel == LOW_LATENCY_KERNEL:
            copies = float(TOP_K)
        one = Exchange(kernel, BOARDS[row["gpu"]], ranks, op, TOKENS[kernel], routed, 0.0)
        seconds = copies * one.rank_bytes / (row["bandwidth_gb_s"] * 1e9)
        if row["latency_us"] is not None:
            seconds = row["latency_us"] * 1e-6
        found.append(replace(one, seconds=seconds))
    return found


Libraries = dict[str, dict[str, Curves]]
"""Measured curves, by GPU and library."""


def read_libraries(reference: Path) -> Libraries:
    """Return the medians of the measured table."""
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in read_records(reference / NCCL):
        is_eager = str(row["implementation"]).endswith("_eager")
        key = (gpu_name(row["gpu"]), row["library"] + "_eager" * is_eager)
        parts.setdefault(key, []).append(row)
    table: Libraries = {}
    for (gpu, library), rows in sorted(parts.items()):
        table.setdefault(gpu, {})[library] = _medians(rows)
    return table


def read_own(path: Path) -> Curves:
    """Return measurements of one's own.

    Raises:
        UserError: the file cannot be read or lacks a column.
    """
    return _medians(read_records(path, COLUMNS))


def _medians(rows: Iterable[dict[str, Any]]) -> Curves:
    found: dict[tuple[Key, int], list[float]] = {}
    for row in rows:
        key = (row["collective"], SHORT_NAMES.get(row["dtype"], row["dtype"]), int(row["ranks"]))
        found.setdefault((key, int(row["bytes"])), []).append(row["time_us"] * 1e-6)
    entries = sorted(found)
    keys = tuple(sorted({key for key, _ in entries}))
    return Curves(
        keys,
        curve=np.array([keys.index(key) for key, _ in entries]),
        octave=np.log2([size for _, size in entries]),
        log_s=np.log([float(np.median(found[entry])) for entry in entries]),
    )
