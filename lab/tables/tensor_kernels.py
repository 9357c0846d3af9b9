"""Measured products, engine layers, auxiliary kernels and watts as rows; facts in `kernels.toml`.

A weight matrix (n, k) was timed with tens of row counts that lie close together, so a hash of (n,
k) decides on which side of the split all its rows fall. Of auxiliary kernels half of all shapes,
whatever their GPU or framework, are held out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.tables.fused_kernels import FACTS, FOLDER, kernel_rows
from lab.tables.rows import (
    LOWER_QUARTER,
    Floats,
    Rows,
    Sizes,
    by_labels,
    first,
    group_of,
    is_host_timed,
    joined,
    metered,
    numbers,
    read_table,
    tidy,
)
from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.replica import FRAMEWORKS
from simulators.kernels.families.auxiliary_kernels import Auxiliary, kernel_of
from simulators.kernels.families.streaming import chain_of
from simulators.kernels.levels import MEASURED
from simulators.workload import operators

TENSOR, ENGINE, AUXILIARY, POWER = (
    FACTS[name] for name in ("tensor", "engine_layers", "auxiliary", "power")
)
PRODUCTS, LATENT_TABLE = TENSOR.table, TENSOR.latent_table
PRODUCERS = (*FRAMEWORKS, "pytorch")  # frameworks whose products the table holds
KIND_OF, LATENT_KIND_OF, PRODUCT_GPUS = TENSOR.kinds, TENSOR.latent_kinds, TENSOR.gpus
KERNELS = {("vllm", "fp8"): "CutlassFP8ScaledMMLinearKernel"}
"""The kernel to use where a table mixes several."""

LAYER_PROFILES, HEADS = ENGINE.layers, ENGINE.heads
LAYER_GPUS, MODELS, CHAINS = ENGINE.gpus, ENGINE.models, ENGINE.chains
SIZES = {LAYER_PROFILES: "tokens", HEADS: "sequences"}  # column of a product's rows, by table
LAYER_LABELS: dict[str, Any] = {"framework": "vllm", "dtype": "bf16"}

AUXILIARY_GPUS, LINEAR_OPERATORS = tuple(AUXILIARY.gpus), AUXILIARY.embeddings
PHASES = {"context": "prefill", "generation": "decode", "": ""}
POWER_TABLES = POWER.tables

Make = Callable[[Sizes], Auxiliary]


@functools.lru_cache(maxsize=1)
def read_tensor_rows(reference: Path, frameworks: tuple[str, ...]) -> tuple[Rows, ...]:
    """Return the products of each known GPU, framework and kind; empty without tables."""
    found: list[Rows] = []
    if (file := reference / PRODUCTS).is_file():
        found += plain_rows(read_table(file), frameworks)
    if (file := reference / LATENT_TABLE).is_file():
        found += _latent_rows(read_table(file), frameworks)
    return tuple(found)


def plain_rows(
    table: pa.Table, frameworks: Sequence[str], gpus: Mapping[str, str] = PRODUCT_GPUS
) -> Iterator[Rows]:
    """Yield products with one weight matrix, by GPU, framework and kind.

    `gpus`: data sheets by the table's names of GPUs.
    """
    for key, rows in _known(table, "gemm_dtype", frameworks, gpus, KIND_OF):
        if kernel := KERNELS.get(key[1:]):
            rows = rows.filter(pc.equal(rows["kernel"], kernel))
        if rows.num_rows and not is_host_timed(found := product_rows(rows, *key)):
            yield found


def own_products(table: pa.Table, gpu: str) -> list[Rows]:
    """Return the products in a file of one GPU's measurements, by framework and kind."""
    mine = table.filter(pc.equal(table["op"], "gemm"))
    if not mine.num_rows:
        return []
    frameworks, names = (mine[name].unique().to_pylist() for name in ("framework", "gpu"))
    return list(plain_rows(mine, frameworks, dict.fromkeys(names, gpu)))


def product_rows(table: pa.Table, gpu: str, framework: str, kind: str) -> Rows:
    """Return the rows of a table of one GPU, framework and kind."""
    m, n, k, latency_us = numbers(table, ("m", "n", "k", "latency_us")).values()
    labels = {"gpu": gpu, "framework": framework, "version": first(table, "version")}
    ones = np.ones(m.size)
    return products(m, n, k, ones, latency_us * 1e-6, dtype=kind, **labels, **metered(table))


def products(
    m: Floats, n: Floats, k: Floats, batch: Floats, seconds: Floats, *, dtype: str, **more: Any
) -> Rows:
    """Return products of given sizes as rows; `more` are other arguments of `tidy`."""

    def operator(sizes: Sizes) -> operators.Gemm:
        gemm, weight = MEASURED[dtype]
        columns: dict[str, Any] = dict(sizes)
        return operators.Gemm(name="product", dtype=gemm, weight_dtype=weight, **columns)

    sizes = {"m": m, "n": n, "k": k, "batch": batch}
    group = group_of([n + 2**16 * (batch - 1.0), k], base=2**32)
    more |= {"kernel": "gemm", "dtype": dtype, "operator_of": operator}
    return tidy(sizes, seconds, group, LOWER_QUARTER, **more)


def sizes_of(rows: Rows) -> tuple[Floats, Floats, Floats, Floats]:
    """Return m, n, k and batch."""
    s = rows.sizes
    return s["m"], s["n"], s["k"], s["batch"]


def _latent_rows(table: pa.Table, frameworks: Sequence[str]) -> Iterator[Rows]:
    """Yield products of latent attention: one matrix per head, before and after a decode step."""
    for key, rows in _known(table, "bmm_dtype", frameworks, PRODUCT_GPUS, LATENT_KIND_OF):
        n, k = np.array([TENSOR.latent_shapes[op] for op in rows["op_name"].to_pylist()]).T
        m, batch, latency_us = numbers(rows, ("num_tokens", "num_heads", "latency_us")).values()
        labels = dict(zip(("gpu", "framework", "dtype"), key, strict=True))
        yield products(m, n, k, batch, latency_us * 1e-6, version=first(rows, "version"), **labels)


def _known(
    table: pa.Table,
    format_column: str,
    frameworks: Sequence[str],
    gpus: Mapping[str, str],
    kinds: Mapping[str, str],
) -> Iterator[tuple[tuple[str, str, str], pa.Table]]:
    """Yield the rows of each known GPU, framework and kind, in the order of those lists."""
    groups = dict(by_labels(table, "gpu", "framework", format_column))
    for gpu, framework, written in product(gpus, frameworks, kinds):
        if (gpu, framework, written) in groups:
            yield (gpus[gpu], framework, kinds[written]), groups[gpu, framework, written]


def read_layer_products(reference: Path, gpu: str) -> list[Rows]:
    """Return the products of one GPU's engine layers, all models together; empty without tables.

    A model has too few matrices for a hash to split them, so matrices are split in the order of
    their hashes.
    """
    columns = [
        np.stack([m, np.full_like(m, matrix[0]), np.full_like(m, matrix[1]), time_us * 1e-6])
        for file in (LAYER_PROFILES, HEADS)
        for layer, model, tp, rows in by_layer(reference / file, gpu)
        if (matrix := matrix_of(layer, model, tp)) is not None
        for m, time_us in [numbers(rows, (SIZES[file], "time_us")).values()]
    ]
    if not columns:
        return []
    m, n, k, seconds = np.concatenate(columns, axis=1)
    labels = {"gpu": gpu, "version": ENGINE.version, **LAYER_LABELS}
    ones = np.ones(m.size)
    buckets = products(m, n, k, ones, seconds, **labels).bucket
    hashes, order = np.unique(buckets, return_inverse=True)
    bucket = (order + 0.5) / hashes.size
    return [products(m, n, k, ones, seconds, bucket=bucket, **labels)]


def matrix_of(layer: str, model: LanguageModel, tp: int) -> tuple[float, float] | None:
    """Return columns and inner length of a layer's product on one of `tp` GPUs; None without one.

    >>> matrix_of("down_proj", load_model("llama3_1_8b"), 2)
    (4096.0, 7168.0)
    """
    width = model.heads * model.head_dim / tp
    keys = 2.0 * model.kv_heads * model.head_dim / tp
    hidden = float(model.hidden)
    return {
        "qkv_proj": (width + keys, hidden),
        "o_proj": (hidden, width),
        "gate_up_proj": (2.0 * model.ffn / tp, hidden),
        "down_proj": (hidden, model.ffn / tp),
        "lm_head": (model.vocab / tp, hidden),
    }.get(layer)


def read_chain_rows(reference: Path, gpu: str) -> list[Rows]:
    """Return the pointwise layers of one GPU by kernel, all models together."""
    found = []
    for layer, model, tp, rows in by_layer(reference / LAYER_PROFILES, gpu):
        if layer in CHAINS:
            tokens, time_us = numbers(rows, ("tokens", "time_us")).values()
            width = {
                "layernorm": float(model.hidden),
                "act_fn": model.ffn / tp,
                "rotary_emb": (model.heads + model.kv_heads) * model.head_dim / tp,
            }[layer]
            elements = tokens * width
            labels = {"gpu": gpu, "kernel": chain_of(CHAINS[layer][0]), **LAYER_LABELS}
            operator = functools.partial(_chain, layer)
            sizes, group = {"elements": elements}, group_of([elements])
            found.append(tidy(sizes, time_us * 1e-6, group, operator_of=operator, **labels))
    return joined(found, lambda rows: rows.kernel)


def _chain(layer: str, sizes: Sizes) -> operators.Elementwise:
    name, reads, writes = CHAINS[layer]
    elements = np.asarray(sizes["elements"])
    numbers_of = {"elements": elements, "reads": reads, "writes": writes}
    return operators.Elementwise(name=name, dtype="bf16", **numbers_of)


def by_layer(file: Path, gpu: str) -> Iterator[tuple[str, LanguageModel, int, pa.Table]]:
    """Yield layer, model, degree and rows of one GPU, for known models; nothing without a table."""
    for name, model in MODELS.items() if gpu in LAYER_GPUS and file.is_file() else ():
        table = read_table(file, gpu=LAYER_GPUS[gpu], model=name)
        for (tp, layer), rows in by_labels(table, "tp", "layer"):
            yield layer, load_model(model), tp, rows


def read_auxiliary_rows(reference: Path, gpu: str) -> list[Rows]:
    """Return auxiliary kernels of one GPU by table, framework and kernel; empty without tables."""
    found: list[Rows] = []
    for name in AUXILIARY.sizes:
        if (file := reference / FOLDER / f"{name}.parquet").is_file():
            found += _auxiliary_kernels(name, read_table(file, gpu=gpu), gpu)
    if gpu in AUXILIARY.embedding_gpus and (reference / LINEAR_OPERATORS).is_file():
        found.append(_embeddings(reference / LINEAR_OPERATORS, gpu))
    return found


def _embeddings(file: Path, gpu: str) -> Rows:
    table = read_table(file, gpu=AUXILIARY.embedding_gpus[gpu], source="vidur")
    columns = numbers(table, ("num_tokens", "n_embd", "emb_ms"))
    seconds = columns.pop("emb_ms") * 1e-3

    def make(s: Sizes) -> Auxiliary:
        rows, cols = s["num_tokens"], s["n_embd"]
        return operators.Embedding(name="embedding", rows=rows, cols=cols, dtype="bf16")

    rows = _auxiliary_rows(columns, seconds, make, gpu=gpu, framework="vllm")
    return rows.where(np.isfinite(seconds) & (seconds > 0.0))


def _auxiliary_kernels(name: str, table: pa.Table, gpu: str) -> Iterator[Rows]:
    """Yield the rows of each framework and kernel of a table."""
    for (framework, kernel), rows in by_labels(table, "framework", "kernel"):
        if AUXILIARY.difference in kernel or rows.num_rows < AUXILIARY.least_rows:
            continue
        version, phase = first(rows, "version"), PHASES[first(rows, "phase")]
        columns = numbers(rows, (*AUXILIARY.sizes[name], "latency_us"))
        seconds = columns.pop("latency_us") * 1e-6
        make = functools.partial(_auxiliary_of, name, kernel, phase, version in AUXILIARY.keys_only)
        labels = {"gpu": gpu, "framework": framework, "version": version}
        yield _auxiliary_rows(columns, seconds, make, **labels)


def _auxiliary_rows(sizes: Sizes, seconds: Floats, make: Make, **labels: Any) -> Rows:
    kernel, group = kernel_of(make(sizes)), group_of(sizes.values())
    return tidy(sizes, seconds, group, kernel=kernel, dtype="bf16", operator_of=make, **labels)


def _auxiliary_of(table: str, kernel: str, phase: str, keys_only: bool, s: Sizes) -> Auxiliary:
    """Return the operator that a table timed."""
    if table in ("computescale", "scale_matrix"):
        is_scan = table == "computescale"
        return operators.Quantisation(name=kernel, rows=s["m"], cols=s["k"], scan=is_scan)
    sizes: dict[str, Any] = {"name": kernel, "requests": s["batch_size"]}
    if table == "encoder_attention":
        tokens = s["batch_size"] * s["isl"]
        sizes |= {"tokens": tokens, "heads": s["num_heads"], "head_dim": s["head_dim"]}
        return operators.EncoderAttention(**sizes)
    sizes |= {"phase": phase, "tokens": s["batch_size"] * s["seq_len"]}
    if kernel.startswith("causal_conv1d"):
        return operators.CausalConvolution(channels=_channels(s, keys_only), **sizes)
    sizes |= {"key_heads": s["num_k_heads"], "value_heads": s["num_v_heads"]}
    return operators.StateUpdate(**sizes)


def _channels(s: Sizes, keys_only: bool) -> Floats:
    """Return the channels of a convolution: values, keys and queries of all heads."""
    if "nheads" in s:
        return s["nheads"] * s["head_dim"] + 2.0 * s["n_groups"] * s["d_state"]
    if keys_only:
        return s["num_k_heads"] * s["head_k_dim"]
    return s["num_v_heads"] * s["head_v_dim"] + 2.0 * s["num_k_heads"] * s["head_k_dim"]


@functools.lru_cache(maxsize=1)
def read_power_rows(reference: Path) -> tuple[Rows, ...]:
    """Return the metered rows of each GPU, kernel and pair of formats; empty without tables."""
    found = []
    for kernel, name in POWER_TABLES.items():
        if not (file := reference / FOLDER / f"{name}.parquet").is_file():
            continue
        is_product = kernel == "gemm"
        columns = ("gemm_dtype",) if is_product else ("attn_dtype", "kv_cache_dtype")
        known = KIND_OF if is_product else POWER.dtypes
        for key, rows in by_labels(read_table(file), "gpu", "framework", "version", *columns):
            gpu, framework, _, *formats = key
            if gpu in PRODUCT_GPUS and all(format_ in known for format_ in formats):
                of = (PRODUCT_GPUS[gpu], framework, "_".join(known[one] for one in formats))
                found.append(
                    product_rows(rows, *of) if is_product else kernel_rows(rows, kernel, *of)
                )
    return tuple(found)


def meter_name(rows: Rows) -> str:
    """Return the name of a power meter: of a kind of product, or of attention in all formats."""
    return f"gemm_{rows.dtype}" if rows.kernel == "gemm" else rows.kernel
