"""Tensor-core products timed in loops on the GPU: `llm_kernels/gemm.parquet` and `mla_bmm.parquet`.

A weight matrix (n, k) was timed with tens of row counts that lie close together, so a hash of
(n, k) decides on which side of the split all its rows fall.
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

from lab.tables.fused_kernels import FOLDER, kernel_rows
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
from simulators.core.folder import read_toml
from simulators.kernels.families.auxiliary_kernels import Auxiliary, kernel_of
from simulators.kernels.families.streaming import chain_of
from simulators.kernels.levels import MEASURED
from simulators.workload.operators import (
    CausalConvolution,
    Elementwise,
    Embedding,
    EncoderAttention,
    Gemm,
    Quantisation,
    StateUpdate,
)

PRODUCTS = "llm_kernels/gemm.parquet"
LATENT_TABLE = "llm_kernels/mla_bmm.parquet"
"""Batched products of latent attention: heads as the batch, before and after a decode step."""

PRODUCERS = (*FRAMEWORKS, "pytorch")
"""Frameworks whose products the table holds."""

PRODUCT_SPLIT = (
    "matrices (n, k, batch) by hash: three quarters fitted, one quarter held out with all rows"
)

FACTS = read_toml(Path(__file__).with_name("kernels.toml"))
KIND_OF, LATENT_KIND_OF, PRODUCT_GPUS = (
    FACTS["tensor"]["kinds"],
    FACTS["tensor"]["latent_kinds"],
    FACTS["tensor"]["gpus"],
)

KERNELS = {("vllm", "fp8"): "CutlassFP8ScaledMMLinearKernel"}
"""The kernel to use where a table mixes several."""


@functools.lru_cache(maxsize=1)
def read_tensor_rows(reference: Path, frameworks: tuple[str, ...]) -> tuple[Rows, ...]:
    """Return the rows of each known GPU, framework and kind; empty without tables."""
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

    Args:
        table: with the columns of the reference table.
        frameworks: whose rows.
        gpus: data sheets by the table's names of GPUs.
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
    return tidy(
        {"m": m, "n": n, "k": k, "batch": batch},
        seconds,
        group_of([n + 2**16 * (batch - 1.0), k], base=2**32),
        LOWER_QUARTER,
        kernel="gemm",
        dtype=dtype,
        operator_of=functools.partial(_product, dtype),
        **more,
    )


def sizes_of(rows: Rows) -> tuple[Floats, Floats, Floats, Floats]:
    """Return m, n, k and batch."""
    s = rows.sizes
    return s["m"], s["n"], s["k"], s["batch"]


def _product(kind: str, sizes: Sizes) -> Gemm:
    dtype, weight_dtype = MEASURED[kind]
    return Gemm(name="product", dtype=dtype, weight_dtype=weight_dtype, **sizes)  # type: ignore[arg-type]


def _latent_rows(table: pa.Table, frameworks: Sequence[str]) -> Iterator[Rows]:
    """Yield products with one matrix per head."""
    for key, rows in _known(table, "bmm_dtype", frameworks, PRODUCT_GPUS, LATENT_KIND_OF):
        n, k = np.array(
            [FACTS["tensor"]["latent_shapes"][op] for op in rows["op_name"].to_pylist()]
        ).T
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


LAYER_PROFILES = "serving_modern/lss_profile_dense.parquet"
HEADS = "serving_modern/lss_profile_per_sequence.parquet"
SIZES = {LAYER_PROFILES: "tokens", HEADS: "sequences"}
"""The column of a product's rows, by table."""

LAYER_GPUS = {"rtx_4090": "RTX4090", "rtx_pro_6000": "RTXPRO6000"}
MODELS, CHAINS = FACTS["engine_layers"]["models"], FACTS["engine_layers"]["chains"]
KIND = "bf16"
LABELS: dict[str, Any] = {"framework": "vllm", "dtype": KIND}

LAYER_SPLIT = "matrices (n, k) in the order of a hash: three quarters fitted, one quarter held out"


def read_layer_products(reference: Path, gpu: str) -> list[Rows]:
    """Return the products of one GPU's layers, all models together; empty without tables."""
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
    labels = {"gpu": gpu, "version": "0.19.0", **LABELS}
    ones = np.ones(m.size)
    hashes, order = np.unique(
        products(m, n, k, ones, seconds, **labels).bucket, return_inverse=True
    )
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
            elements = tokens * _width(layer, model, tp)
            labels = {"gpu": gpu, "kernel": chain_of(CHAINS[layer][0]), **LABELS}
            operator = functools.partial(_chain, layer)
            sizes, group = {"elements": elements}, group_of([elements])
            found.append(tidy(sizes, time_us * 1e-6, group, operator_of=operator, **labels))
    return joined(found, lambda rows: rows.kernel)


def _chain(layer: str, sizes: Sizes) -> Elementwise:
    name, reads, writes = CHAINS[layer]
    elements = np.asarray(sizes["elements"])
    return Elementwise(name=name, elements=elements, reads=reads, writes=writes, dtype=KIND)


def _width(layer: str, model: LanguageModel, tp: int) -> float:
    """Return elements per token on one of `tp` GPUs."""
    if layer == "layernorm":
        return float(model.hidden)
    if layer == "act_fn":
        return model.ffn / tp
    return (model.heads + model.kv_heads) * model.head_dim / tp


def by_layer(file: Path, gpu: str) -> Iterator[tuple[str, LanguageModel, int, pa.Table]]:
    """Yield layer, model, degree and rows of one GPU, for known models; nothing without a table."""
    for name, model in MODELS.items() if gpu in LAYER_GPUS and file.is_file() else ():
        table = read_table(file, gpu=LAYER_GPUS[gpu], model=name)
        for (tp, layer), rows in by_labels(table, "tp", "layer"):
            yield layer, load_model(model), tp, rows


AUXILIARY_GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "a40")

LINEAR_OPERATORS = "llm_ops/linear_ops.parquet"
LINEAR_OPERATOR_GPUS = {"a100_sxm": "a100", "h100_sxm": "h100", "a40": "a40"}
"""VIDUR's timed layers of vllm, whose embedding is PyTorch's; times are in whole microseconds."""

PHASES = {"context": "prefill", "generation": "decode", "": ""}

DIFFERENCE = "_minus_"
"""In the name of a kernel whose times are differences of two measured ones, mostly noise."""

LEAST_ROWS = 20
"""Kernels with fewer rows are leftovers of a table, such as three of 8 to 420 ns."""

KEYS_ONLY = ("1.3.0rc20", "0.5.10")
"""Versions whose convolutions before a delta rule were timed over the keys' channels alone: their
times do not move with the value heads, and are those of other versions at as many channels."""

AUXILIARY_SIZES = FACTS["auxiliary"]["sizes"]
AUXILIARY_TABLES = (*(f"{FOLDER}/{name}.parquet" for name in AUXILIARY_SIZES), LINEAR_OPERATORS)

Make = Callable[[Sizes], Auxiliary]


def read_auxiliary_rows(reference: Path, gpu: str) -> list[Rows]:
    """Return the rows of one GPU by table, framework and kernel; empty without tables."""
    found: list[Rows] = []
    for name in AUXILIARY_SIZES:
        if (file := reference / FOLDER / f"{name}.parquet").is_file():
            found += _kernels(name, read_table(file, gpu=gpu), gpu)
    if gpu in LINEAR_OPERATOR_GPUS and (reference / LINEAR_OPERATORS).is_file():
        found.append(_embeddings(reference / LINEAR_OPERATORS, gpu))
    return found


def _embeddings(file: Path, gpu: str) -> Rows:
    """Return the embeddings of one GPU."""
    table = read_table(file, gpu=LINEAR_OPERATOR_GPUS[gpu], source="vidur")
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
        columns = numbers(rows, (*AUXILIARY_SIZES[name], "latency_us"))
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


POWER_TABLES = {
    "gemm": "gemm_power",
    "prefill": "context_attention_power",
    "decode": "generation_attention_power",
}
"""Tables of times and watts by kernel."""

POWER_SPLIT = "gemm by (n, k), a quarter held out; attention by shape, half held out"

POWER_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}


@functools.lru_cache(maxsize=1)
def read_power_rows(reference: Path) -> tuple[Rows, ...]:
    """Return the rows of each GPU, kernel and pair of formats; empty without tables."""
    return tuple(
        rows
        for kernel, name in POWER_TABLES.items()
        if (file := reference / FOLDER / f"{name}.parquet").is_file()
        for rows in _parts(read_table(file), kernel)
    )


def power_tables(reference: Path) -> list[str]:
    """Return the names of the tables there are."""
    names = [f"{FOLDER}/{name}.parquet" for name in POWER_TABLES.values()]
    return [name for name in names if (reference / name).is_file()]


def meter_name(rows: Rows) -> str:
    """Return the name of a power meter: of a kind of product, or of attention in all formats."""
    return f"gemm_{rows.dtype}" if rows.kernel == "gemm" else rows.kernel


def _parts(table: pa.Table, kernel: str) -> list[Rows]:
    """Return the rows by GPU, framework, version and formats."""
    is_product = kernel == "gemm"
    columns = ("gemm_dtype",) if is_product else ("attn_dtype", "kv_cache_dtype")
    known = KIND_OF if is_product else POWER_DTYPES
    found = []
    for key, rows in by_labels(table, "gpu", "framework", "version", *columns):
        gpu, framework, _, *formats = key
        if gpu in PRODUCT_GPUS and all(name in known for name in formats):
            of = (PRODUCT_GPUS[gpu], framework, "_".join(known[name] for name in formats))
            found.append(product_rows(rows, *of) if is_product else kernel_rows(rows, kernel, *of))
    return found
