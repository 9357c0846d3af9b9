"""A serving engine's layers, timed inside it: LLMServingSim's profiles of vllm.

Sizes follow from the layer's name, the model's public configuration and its parallelism. The LM
head was timed by sequences, all else by tokens. Norms include their residual sum, and rotary
embeddings leave out the write to the cache. A model has too few matrices for a hash to split them,
so they are put in the order of their hashes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lab.tables.kernels.tensor_cores import products
from lab.tables.rows import Rows, Sizes, by_labels, group_of, joined, numbers, read_table, tidy
from simulators.catalog.model import LanguageModel, load_model
from simulators.core.folder import read_toml
from simulators.kernels.families.streaming import chain_of
from simulators.workload.operators import Elementwise

LAYERS = "serving_modern/lss_profile_dense.parquet"
HEADS = "serving_modern/lss_profile_per_sequence.parquet"
SIZES = {LAYERS: "tokens", HEADS: "sequences"}
"""The column of a product's rows, by table."""

GPUS = {"rtx_4090": "RTX4090", "rtx_pro_6000": "RTXPRO6000"}
FACTS = read_toml(Path(__file__).with_name("kernels.toml"))["engine_layers"]
MODELS, CHAINS = FACTS["models"], FACTS["chains"]
KIND = "bf16"
LABELS: dict[str, Any] = {"framework": "vllm", "dtype": KIND}

LAYER_SPLIT = "matrices (n, k) in the order of a hash: three quarters fitted, one quarter held out"


def read_layer_products(reference: Path, gpu: str) -> list[Rows]:
    """Return the products of one GPU's layers, all models together; empty without tables."""
    columns = [
        np.stack([m, np.full_like(m, matrix[0]), np.full_like(m, matrix[1]), time_us * 1e-6])
        for file in (LAYERS, HEADS)
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
    for layer, model, tp, rows in by_layer(reference / LAYERS, gpu):
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
    for name, model in MODELS.items() if gpu in GPUS and file.is_file() else ():
        table = read_table(file, gpu=GPUS[gpu], model=name)
        for (tp, layer), rows in by_labels(table, "tp", "layer"):
            yield layer, load_model(model), tp, rows
