"""Measured side kernels as operators whose every size is a column; shapes are held out whole.

The layout is that of the reference tables `llm_kernels/{gdn,mamba2,computescale,scale_matrix,
encoder_attention}.parquet`, and of embeddings in `llm_ops/linear_ops.parquet`. Half of all shapes,
whatever board or framework they were timed on, are never fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from lab.tables.kernels.fp32_kernels import fraction
from lab.tables.kernels.fused_kernels import FOLDER, HELD_OUT
from simulators.kernels.families.auxiliary_kernels import (
    CausalConvolution,
    EncoderAttention,
    Quantisation,
    Side,
    StateUpdate,
    kernel_of,
)
from simulators.workload.operators import Embedding

Floats = NDArray[np.float64]
Sizes = Mapping[str, Floats]

GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "a40")

LAYERS = "llm_ops/linear_ops.parquet"
LAYERS_SOURCE, LAYERS_FRAMEWORK = "vidur", "vllm"
"""Vidur timed the layers of vllm, whose embedding is PyTorch's; times are in whole microseconds."""

LAYERS_GPUS = {"a100_sxm": "a100", "h100_sxm": "h100", "a40": "a40"}
PHASES = {"context": "prefill", "generation": "decode"}

DIFFERENCE = "_minus_"
"""In the name of a kernel whose times are differences of two measured ones, mostly noise."""

LEAST_ROWS = 20
"""Fewer rows than this of a kernel are leftovers of a table, such as three of 8 to 420 ns."""

KEYS_ONLY = ("1.3.0rc20", "0.5.10")
"""Versions whose convolutions before a delta rule were timed over the keys' channels alone: their
times do not move with the value heads, and are those of other versions at as many channels."""

SHAPES = {
    "gdn": ("batch_size", "seq_len", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim"),
    "mamba2": ("batch_size", "seq_len", "nheads", "head_dim", "n_groups", "d_state"),
    "computescale": ("m", "k"),
    "scale_matrix": ("m", "k"),
    "encoder_attention": ("batch_size", "isl", "num_heads", "head_dim"),
}  # fmt: skip
"""Columns that say what was run, by table."""


@dataclass(frozen=True)
class SideRows:
    """Rows of one kernel of one framework on one GPU."""

    gpu: str
    framework: str
    version: str
    make: Callable[[Sizes], Side]
    sizes: Sizes
    seconds: Floats

    def __len__(self) -> int:
        return self.seconds.size

    @property
    def operator(self) -> Side:
        """Rows as one operator whose sizes are columns."""
        return self.make(self.sizes)

    @property
    def kernel(self) -> str:
        """The calibration's name of the kernel."""
        return kernel_of(self.operator)

    @property
    def place(self) -> Floats:
        """A number in [0, 1) per shape that looks drawn."""
        group = np.zeros(len(self), np.uint64)
        for column in self.sizes.values():
            group = group * np.uint64(1_000_003) + column.astype(np.uint64)
        return fraction(group)

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Rows of shapes no fit may see."""
        return np.asarray(self.place >= HELD_OUT)

    def where(self, keep: NDArray[np.bool_] | NDArray[np.int64]) -> SideRows:
        """Return some of the rows."""
        sizes = {name: column[keep] for name, column in self.sizes.items()}
        return replace(self, sizes=sizes, seconds=self.seconds[keep])


def read_side_rows(reference: Path, gpu: str) -> list[SideRows]:
    """Return the rows of one GPU by table, framework and kernel; empty without tables."""
    found: list[SideRows] = []
    for name in SHAPES:
        file = reference / FOLDER / f"{name}.parquet"
        if not file.is_file():
            continue
        table = pa.parquet.read_table(file, filters=[("gpu", "==", gpu)]).unify_dictionaries()
        for framework in sorted(set(table["framework"].to_pylist())):
            found += _kernels(name, table.filter(pc.equal(table["framework"], framework)))
    if gpu in LAYERS_GPUS and (file := reference / LAYERS).is_file():
        found += _embeddings(file, gpu)
    return found


def side_tables(reference: Path) -> list[Path]:
    """Return the tables there are."""
    files = [reference / FOLDER / f"{name}.parquet" for name in SHAPES]
    return [file for file in (*files, reference / LAYERS) if file.is_file()]


def _embeddings(file: Path, gpu: str) -> list[SideRows]:
    """Return the embeddings of one GPU."""
    wanted = [("gpu", "==", LAYERS_GPUS[gpu]), ("source", "==", LAYERS_SOURCE)]
    table = pa.parquet.read_table(file, filters=wanted)
    sizes = {name: table[name].to_numpy().astype(np.float64) for name in ("num_tokens", "n_embd")}
    seconds = table["emb_ms"].to_numpy().astype(np.float64) * 1e-3
    timed = np.isfinite(seconds) & (seconds > 0.0)

    def make(s: Sizes) -> Side:
        return Embedding(name="embedding", rows=s["num_tokens"], cols=s["n_embd"], dtype="bf16")

    return [SideRows(gpu, LAYERS_FRAMEWORK, "", make, sizes, seconds).where(timed)]


def _kernels(name: str, table: pa.Table) -> list[SideRows]:
    """Return the rows of each kernel of one framework."""
    found = []
    for kernel in sorted(set(table["kernel"].to_pylist())):
        if DIFFERENCE in kernel:
            continue
        mine = table.filter(pc.equal(table["kernel"], kernel))
        if mine.num_rows < LEAST_ROWS:
            continue
        columns = {n: mine[n].to_numpy().astype(np.float64) for n in SHAPES[name]}
        gpu, framework, version = (
            str(mine[word][0].as_py()) for word in ("gpu", "framework", "version")
        )
        phase = PHASES[str(mine["phase"][0].as_py())] if "phase" in mine.column_names else ""
        make = _maker(name, kernel, phase, version in KEYS_ONLY)
        seconds = mine["latency_us"].to_numpy().astype(np.float64) * 1e-6
        found.append(SideRows(gpu, framework, version, make, columns, seconds))
    return found


def _maker(table: str, kernel: str, phase: str, keys_only: bool) -> Callable[[Sizes], Side]:
    """Return how a table's sizes become an operator."""
    if table == "computescale":
        return lambda s: Quantisation(name=kernel, rows=s["m"], cols=s["k"], scan=True)
    if table == "scale_matrix":
        return lambda s: Quantisation(name=kernel, rows=s["m"], cols=s["k"])
    if table == "encoder_attention":
        return lambda s: EncoderAttention(
            name=kernel, requests=s["batch_size"], tokens=s["batch_size"] * s["isl"],
            heads=s["num_heads"], head_dim=s["head_dim"],
        )  # fmt: skip
    if kernel.startswith("causal_conv1d"):
        return lambda s: CausalConvolution(
            name=kernel, phase=phase, requests=s["batch_size"],
            tokens=s["batch_size"] * s["seq_len"], channels=_channels(s, keys_only),
        )  # fmt: skip
    return lambda s: StateUpdate(
        name=kernel, phase=phase, requests=s["batch_size"], tokens=s["batch_size"] * s["seq_len"],
        key_heads=s["num_k_heads"], value_heads=s["num_v_heads"],
    )  # fmt: skip


def _channels(s: Sizes, keys_only: bool) -> Floats:
    """Return what a convolution runs over: values, and keys and queries, of all heads."""
    if "nheads" in s:
        return s["nheads"] * s["head_dim"] + 2.0 * s["n_groups"] * s["d_state"]
    if keys_only:
        return s["num_k_heads"] * s["head_k_dim"]
    return s["num_v_heads"] * s["head_v_dim"] + 2.0 * s["num_k_heads"] * s["head_k_dim"]
