"""Measured collectives, expert exchanges of DeepEP, and KV transfers of Mooncake.

A curve has one median per size: of one collective, precision and number of ranks, of one library on
the GPUs of a node, as nccl-tests print them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np
import polars as pl

from lab.tables.records import declared, file_of, gpu_name, model_name, records
from lab.tables.rows import Bools, Record, read_frame
from simulators.catalog.model import load_model
from simulators.collectives.library_models import HIGH_THROUGHPUT, LOW_LATENCY, NVLINK, Routed
from simulators.collectives.measured import ANY, COPIES
from simulators.core.jit import Floats, Ints
from simulators.workload.llm.memory import kv_bytes_per_token
from simulators.workload.llm.parallelism import Parallelism

Key = tuple[str, str, int]  # collective, dtype, ranks

NCCL = file_of("nccl")
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
        """Return selected rows."""
        return Curves(self.keys, self.curve[where], self.octave[where], self.log_s[where])

    def of(self, key: Key) -> Bools:
        """Return a mask of the rows of a curve."""
        return np.asarray(self.curve == self.keys.index(key))


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
    setups = {name: one.setup for name, one in systems.items()}
    setup = pl.col("system").cast(pl.String).replace(setups)
    kept = (pl.col("nodes") >= 2) & (pl.col("size_bytes") > 0) & (pl.col("collective") != "")
    is_usual = (setup == "") | (setup == pl.col("environment").cast(pl.String))
    curve = ("system", "collective", "nodes", "ranks")
    medians = (
        read_frame(reference / file_of("between_nodes"), system=list(systems))
        .filter(kept & is_usual)
        .with_columns(pl.col("collective").replace("alltoall", "all_to_all"))
        .group_by(*curve, "size_bytes")
        .agg((pl.col("time_us") * 1e-6).quantile(0.5, "midpoint"))
        .sort(*curve, "size_bytes")
    )
    return [
        NodesCurve(
            systems[name],
            kind,
            nodes,
            ranks,
            size_bytes=rows["size_bytes"].cast(pl.Float64).to_numpy(),
            seconds=rows["time_us"].to_numpy(),
        )
        for (name, kind, nodes, ranks), rows in medians.group_by(*curve, maintain_order=True)
    ]


@dataclass(frozen=True)
class DeepEpExchange:
    """A dispatch or combine of the test of DeepEP, timed by the printed bandwidth."""

    kernel: str  # V1-normal, V1-lowlat, V2, or the table of a collector
    gpu: str
    ranks: int
    op: str
    tokens: int
    routed: Routed
    seconds: float
    hidden: int
    number_bytes: float = 0.0  # 0: as in DeepEP's tests

    @property
    def mode(self) -> str:
        """The mode of the kernels."""
        if self.kernel == "exchanges_in_domain":
            return NVLINK
        return LOW_LATENCY if self.kernel in EXCHANGE.low_latency else HIGH_THROUGHPUT

    @property
    def rank_bytes(self) -> float:
        """Bytes of one copy of all tokens of a rank."""
        number_bytes = self.number_bytes or EXCHANGE.number_bytes[self.op]
        return float(self.tokens * self.hidden * number_bytes)


EXCHANGE = Record(declared("expert_exchange"))


def read_exchanges(reference: Path) -> list[DeepEpExchange]:
    """Return DeepEP's dispatches and combines.

    Bandwidths count bytes as the tests do, local copies included: at low latency one copy per
    expert; else one per node, or within one node one per GPU.
    """
    found = []
    for row in records(reference, "expert_exchange"):
        kernel, ranks = row.kernel, int(row.ep)
        nodes = -(-ranks // EXCHANGE.node)
        routed, copies = Routed(EXCHANGE.experts, EXCHANGE.top_k), float(EXCHANGE.top_k)
        if kernel != EXCHANGE.low_latency:
            routed = replace(routed, groups=nodes, chosen=min(nodes, EXCHANGE.top_groups))
            copies = routed.reached(nodes if nodes > 1 else ranks)
        gpu, tokens = EXCHANGE.gpu_names[row.gpu], EXCHANGE.tokens[kernel]
        one = DeepEpExchange(kernel, gpu, ranks, row.op, tokens, routed, 0.0, EXCHANGE.hidden)
        seconds = copies * one.rank_bytes / (row.bandwidth_gb_s * 1e9)
        if row.latency_us is not None:
            seconds = row.latency_us * 1e-6
        found.append(replace(one, seconds=seconds))
    return found


def read_collected(reference: Path) -> list[DeepEpExchange]:
    """Return dispatches and combines of both modes, by SGLang's collector, at DeepEP's SMs.

    Eight nodes of high throughput are left out: their kernels waited for the network card 16 ms
    before they sent. Experts that ranks cannot share evenly are left out too.
    """
    found = []
    for name, columns in EXCHANGE.collected.items():
        for row in records(reference, name):
            gpu = str(row.gpu)
            ranks = int(row.node_num) * EXCHANGE.gpus_per_node.get(gpu, EXCHANGE.node)
            if row.num_experts % ranks:
                continue
            routed = Routed(int(row.num_experts), int(row.num_topk))
            for op in EXCHANGE.number_bytes:
                seconds = sum(row[f"{op}_{column}"] for column in columns) * 1e-6
                tokens, hidden = int(row.num_token), int(row.hidden_size)
                one = DeepEpExchange(name, gpu, ranks, op, tokens, routed, seconds, hidden)
                found.append(one)
    return found


def read_in_domain(reference: Path) -> list[DeepEpExchange]:
    """Return dispatches and combines within an NVLink domain, by TensorRT-LLM's kernels.

    Without the kernels that prepare a dispatch, and without combines in less than 16 bits.
    """
    found = []
    for row in records(reference, "exchanges_in_domain"):
        op, routed = row.op_name.removeprefix("alltoall_"), Routed(row.num_experts, row.topk)
        bytes_each = EXCHANGE.dispatched_bytes[row.moe_dtype] if op == "dispatch" else 2.0
        found.append(
            DeepEpExchange(
                "exchanges_in_domain",
                row.gpu,
                row.moe_ep_size,
                op,
                row.num_tokens,
                routed,
                row.latency_us * 1e-6,
                row.hidden_size,
                bytes_each,
            )
        )
    return found


Libraries = dict[str, dict[str, Curves]]
"""Measured curves, by GPU and library."""


def read_libraries(reference: Path) -> Libraries:
    """Return the curves of every GPU and library.

    Without the rows of eager mode: the same kernels behind launches, which composition prices.
    """
    is_eager = pl.col("implementation").cast(pl.String).str.ends_with("_eager")
    frame = read_frame(reference / NCCL).filter(~is_eager.fill_null(value=False))
    table: Libraries = {}
    for (gpu, library), rows in sorted(frame.partition_by("gpu", "library", as_dict=True).items()):
        table.setdefault(gpu_name(gpu), {})[library] = _medians(rows)
    return table


def read_own(path: Path) -> Curves:
    """Return a user's measurements.

    Raises:
        UserError: the file cannot be read or lacks a column.
    """
    return _medians(read_frame(path, COLUMNS))


def _medians(rows: pl.DataFrame) -> Curves:
    curve = ("collective", "dtype", "ranks")
    is_copied = pl.col("collective").is_in(COPIES)
    medians = (
        rows.with_columns(pl.col("collective", "dtype").cast(pl.String).replace(SHORT_NAMES))
        .group_by(*curve, "bytes")
        .agg((pl.col("time_us") * 1e-6).quantile(0.5, "midpoint"))
        .with_columns(dtype=pl.when(is_copied).then(pl.lit(ANY)).otherwise("dtype"))
        .sort(*curve, "bytes", "time_us")
    )
    keys = medians.select(curve).unique(maintain_order=True).rows()
    return Curves(
        tuple(keys),
        curve=np.array([keys.index(key) for key in medians.select(curve).iter_rows()]),
        octave=np.log2(medians["bytes"].to_numpy()),
        log_s=np.log(medians["time_us"].to_numpy()),
    )


BLOCK = 16  # tokens of a KV block: whole blocks are transferred


def moved(reference: Path) -> Iterator[Record]:
    """Yield KV transfers with the line rate per GPU and the seconds at line rate (`line_s`)."""
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
