"""Measured collectives, as nccl-tests print them: one median per curve and size.

A curve is a collective, a precision and a number of ranks, of one library on the GPUs of one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np

from lab.tables.records import declared, file_of, gpu_name, model_name, records
from lab.tables.rows import Bools, Record, read_records
from simulators.catalog.model import load_model
from simulators.collectives.library_models import HIGH_THROUGHPUT, LOW_LATENCY, Routed
from simulators.core.jit import Floats, Ints
from simulators.workload.llm.memory import kv_bytes_per_token
from simulators.workload.llm.parallelism import Parallelism

Key = tuple[str, str, int]  # collective, dtype, ranks

NCCL = file_of("nccl")
BETWEEN_NODES = file_of("between_nodes")
EXCHANGES = file_of("expert_exchange")
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
        curve, octave, log_s = self.curve[where], self.octave[where], self.log_s[where]
        return replace(self, curve=curve, octave=octave, log_s=log_s)

    def of(self, key: Key) -> Bools:
        """Return which rows belong to a curve."""
        mine: Bools = self.curve == self.keys.index(key)
        return mine


@dataclass(frozen=True)
class NodesCurve:
    """Medians of one collective over equally filled nodes of a system, by size."""

    system: Record  # name, gpu, port_bytes_per_s, gpus_per_node
    collective: str
    nodes: int
    ranks: int
    size_bytes: Floats
    seconds: Floats


def read_between_nodes(reference: Path) -> list[NodesCurve]:
    """Return the curves of systems over several nodes."""
    systems = {one["name"]: Record(one) for one in declared("between_nodes")["systems"]}
    found: dict[tuple[str, str, int, int], dict[int, list[float]]] = {}
    for row in records(reference, "between_nodes", system=list(systems)):
        setup = systems[row.system].setup or row.environment
        if row.nodes >= 2 and row.size_bytes and row.collective and row.environment == setup:
            kind = "all_to_all" if row.collective == "alltoall" else row.collective
            sizes = found.setdefault((row.system, kind, int(row.nodes), int(row.ranks)), {})
            sizes.setdefault(int(row.size_bytes), []).append(row.time_us * 1e-6)
    return [
        NodesCurve(
            systems[name],
            kind,
            nodes,
            ranks,
            size_bytes=np.array(sorted(sizes), np.float64),
            seconds=np.array([float(np.median(sizes[size])) for size in sorted(sizes)]),
        )
        for (name, kind, nodes, ranks), sizes in sorted(found.items())
    ]


@dataclass(frozen=True)
class DeepEpExchange:
    """A dispatch or combine of the test of DeepEP, timed by the printed bandwidth."""

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
        """Bytes of one copy of all tokens of a rank."""
        return self.tokens * HIDDEN * NUMBER_BYTES[self.op]


HIDDEN, EXPERTS, TOP_K, TOP_GROUPS, NODE = 7168, 256, 8, 4, 8
"""Of DeepEP's tests: those of DeepSeek-V3; in high throughput a token keeps to four nodes of 8."""

NUMBER_BYTES = {"dispatch": 1.0 + 4.0 / 128.0, "combine": 2.0}
"""Bytes of a number: in 8 bits, with a scale in 32 for every 128 numbers, and in 16."""

LOW_LATENCY_KERNEL = "V1-lowlat"


def read_exchanges(reference: Path) -> list[DeepEpExchange]:
    """Return DeepEP's dispatches and combines.

    Bandwidths count bytes as the tests do, local copies included: at low latency one copy per
    expert; else one per node, or within one node one per GPU.
    """
    facts, found = declared("expert_exchange"), []
    for row in records(reference, "expert_exchange"):
        kernel, ranks = row.kernel, int(row.ep)
        nodes = -(-ranks // NODE)
        routed = Routed(EXPERTS, TOP_K)
        if kernel != LOW_LATENCY_KERNEL:
            routed = replace(routed, groups=nodes, chosen=min(nodes, TOP_GROUPS))
        copies = routed.reached(nodes if nodes > 1 else ranks)
        if kernel == LOW_LATENCY_KERNEL:
            copies = float(TOP_K)
        gpu, tokens = facts["gpu_names"][row.gpu], facts["tokens"][kernel]
        one = DeepEpExchange(kernel, gpu, ranks, row.op, tokens, routed, 0.0)
        seconds = copies * one.rank_bytes / (row.bandwidth_gb_s * 1e9)
        if row.latency_us is not None:
            seconds = row.latency_us * 1e-6
        found.append(replace(one, seconds=seconds))
    return found


Libraries = dict[str, dict[str, Curves]]
"""Measured curves, by GPU and library."""


def read_libraries(reference: Path) -> Libraries:
    """Return the medians of the measured table."""
    parts: dict[tuple[str, str], list[Record]] = {}
    for row in records(reference, "nccl"):
        suffix = "_eager" if str(row.implementation).endswith("_eager") else ""
        parts.setdefault((row.gpu, row.library + suffix), []).append(row)
    table: Libraries = {}
    for (gpu, library), rows in sorted(parts.items()):
        table.setdefault(gpu, {})[library] = _medians(rows)
    return table


def read_own(path: Path) -> Curves:
    """Return a user's measurements.

    Raises:
        UserError: the file cannot be read or lacks a column.
    """
    return _medians(read_records(path, COLUMNS))


def _medians(rows: Iterable[Record]) -> Curves:
    found: dict[tuple[Key, int], list[float]] = {}
    for row in rows:
        key = (row.collective, SHORT_NAMES.get(row.dtype, row.dtype), int(row.ranks))
        found.setdefault((key, int(row.bytes)), []).append(row.time_us * 1e-6)
    entries = sorted(found)
    keys = tuple(sorted({key for key, _ in entries}))
    return Curves(
        keys,
        curve=np.array([keys.index(key) for key, _ in entries]),
        octave=np.log2([size for _, size in entries]),
        log_s=np.log([float(np.median(found[entry])) for entry in entries]),
    )


TRANSFERS = file_of("kv_transfers")

BLOCK = 16
"""Tokens of a KV block: whole blocks are transferred."""


def moved(reference: Path) -> Iterator[Record]:
    """Yield KV transfers.

    Further columns: `line_bytes_per_s` of one GPU, and `line_s`, in which the line transfers the
    share of one GPU.
    """
    for row in records(reference, "kv_transfers"):
        model = load_model(model_name(row.model.removesuffix("-bf16")))
        share = kv_bytes_per_token(model, Parallelism(tp=row.tp), "bf16")
        line = row.line / row.tp
        tokens = BLOCK * ceil(row.prompt_tokens / BLOCK)
        derived = {
            "gpu": gpu_name(row.gpu.partition("-")[0]),
            "model": model.name,
            "framework": row.engine.partition("-")[0],
            "layers": model.layers,
            "line_s": share * tokens / line,
            "line_bytes_per_s": line,
        }
        yield Record(row | derived)
