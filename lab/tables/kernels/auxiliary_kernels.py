"""State updates, convolutions, quantization, encoder attention and embeddings, as timed kernels.

The tables are `llm_kernels/{gdn,mamba2,computescale,scale_matrix,encoder_attention}` and, for
embeddings, `llm_ops/linear_ops`. Half of all shapes, whatever GPU or framework they were timed on,
are held out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lab.tables.kernels.fused_kernels import FOLDER
from lab.tables.rows import (
    Floats,
    Rows,
    Sizes,
    by_labels,
    first,
    group_of,
    numbers,
    read_table,
    tidy,
)
from simulators.core.folder import read_toml
from simulators.kernels.families.auxiliary_kernels import Auxiliary, kernel_of
from simulators.workload.operators import (
    CausalConvolution,
    Embedding,
    EncoderAttention,
    Quantisation,
    StateUpdate,
)

GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "a40")

LAYERS = "llm_ops/linear_ops.parquet"
LAYERS_GPUS = {"a100_sxm": "a100", "h100_sxm": "h100", "a40": "a40"}
"""VIDUR's timed layers of vllm, whose embedding is PyTorch's; times are in whole microseconds."""

PHASES = {"context": "prefill", "generation": "decode", "": ""}

DIFFERENCE = "_minus_"
"""In the name of a kernel whose times are differences of two measured ones, mostly noise."""

LEAST_ROWS = 20
"""Kernels with fewer rows are leftovers of a table, such as three of 8 to 420 ns."""

KEYS_ONLY = ("1.3.0rc20", "0.5.10")
"""Versions whose convolutions before a delta rule were timed over the keys' channels alone: their
times do not move with the value heads, and are those of other versions at as many channels."""

SHAPES = read_toml(Path(__file__).with_name("kernels.toml"))["auxiliary"]["sizes"]
TABLES = (*(f"{FOLDER}/{name}.parquet" for name in SHAPES), LAYERS)

Make = Callable[[Sizes], Auxiliary]


def read_auxiliary_rows(reference: Path, gpu: str) -> list[Rows]:
    """Return the rows of one GPU by table, framework and kernel; empty without tables."""
    found: list[Rows] = []
    for name in SHAPES:
        if (file := reference / FOLDER / f"{name}.parquet").is_file():
            found += _kernels(name, read_table(file, gpu=gpu), gpu)
    if gpu in LAYERS_GPUS and (reference / LAYERS).is_file():
        found.append(_embeddings(reference / LAYERS, gpu))
    return found


def _embeddings(file: Path, gpu: str) -> Rows:
    """Return the embeddings of one GPU."""
    table = read_table(file, gpu=LAYERS_GPUS[gpu], source="vidur")
    columns = numbers(table, ("num_tokens", "n_embd", "emb_ms"))
    seconds = columns.pop("emb_ms") * 1e-3

    def make(s: Sizes) -> Auxiliary:
        return Embedding(name="embedding", rows=s["num_tokens"], cols=s["n_embd"], dtype="bf16")

    rows = _tidy(columns, seconds, make, gpu=gpu, framework="vllm")
    return rows.where(np.isfinite(seconds) & (seconds > 0.0))


def _kernels(name: str, table: pa.Table, gpu: str) -> Iterator[Rows]:
    """Yield the rows of each framework and kernel of a table."""
    for (framework, kernel), rows in by_labels(table, "framework", "kernel"):
        if DIFFERENCE in kernel or rows.num_rows < LEAST_ROWS:
            continue
        version, phase = first(rows, "version"), PHASES[first(rows, "phase")]
        columns = numbers(rows, (*SHAPES[name], "latency_us"))
        seconds = columns.pop("latency_us") * 1e-6
        make = _maker(name, kernel, phase, version in KEYS_ONLY)
        yield _tidy(columns, seconds, make, gpu=gpu, framework=framework, version=version)


def _tidy(sizes: Sizes, seconds: Floats, make: Make, **labels: Any) -> Rows:
    kernel, group = kernel_of(make(sizes)), group_of(sizes.values())
    return tidy(sizes, seconds, group, kernel=kernel, dtype="bf16", operator_of=make, **labels)


def _maker(table: str, kernel: str, phase: str, keys_only: bool) -> Make:
    """Return the function from a table's sizes to an operator."""

    def make(s: Sizes) -> Auxiliary:
        if table in ("computescale", "scale_matrix"):
            is_scan = table == "computescale"
            return Quantisation(name=kernel, rows=s["m"], cols=s["k"], scan=is_scan)
        requests = s["batch_size"]
        if table == "encoder_attention":
            tokens, heads, dim = requests * s["isl"], s["num_heads"], s["head_dim"]
            return EncoderAttention(
                name=kernel, requests=requests, tokens=tokens, heads=heads, head_dim=dim
            )
        tokens = requests * s["seq_len"]
        if kernel.startswith("causal_conv1d"):
            channels = _channels(s, keys_only)
            return CausalConvolution(
                name=kernel, phase=phase, requests=requests, tokens=tokens, channels=channels
            )
        return StateUpdate(
            name=kernel,
            phase=phase,
            requests=requests,
            tokens=tokens,
            key_heads=s["num_k_heads"],
            value_heads=s["num_v_heads"],
        )

    return make


def _channels(s: Sizes, keys_only: bool) -> Floats:
    """Return the channels of a convolution: values, keys and queries of all heads."""
    if "nheads" in s:
        return s["nheads"] * s["head_dim"] + 2.0 * s["n_groups"] * s["d_state"]
    if keys_only:
        return s["num_k_heads"] * s["head_k_dim"]
    return s["num_v_heads"] * s["head_v_dim"] + 2.0 * s["num_k_heads"] * s["head_k_dim"]
