"""Products of a serving engine's layers, as timed inside it: LLMServingSim's profiles of vllm.

A layer is named, not its sizes: they follow from the model's public configuration and its cut. The
LM head was timed by sequences, the rest by tokens, both as kernels on the GPU among those of other
layers. One model has few matrices, fewer than a hash of them would share out: they are put in the
order of their hashes instead, so that there is one to judge by.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from lab.tables.kernels.tensor_cores import TensorRows
from simulators.catalog.model import LanguageModel, load_model

LAYERS, HEADS = (
    "serving_modern/lss_profile_dense.parquet",
    "serving_modern/lss_profile_per_sequence.parquet",
)
SIZES = {LAYERS: "tokens", HEADS: "sequences"}
"""The column of rows of each table."""

GPUS = {"rtx_4090": "RTX4090", "rtx_pro_6000": "RTXPRO6000"}
MODELS = {
    "meta-llama/Llama-3.1-8B": "llama3_1_8b",
    "Qwen/Qwen3-32B": "qwen3_32b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3_30b",
}
FRAMEWORK, VERSION, KIND = "vllm", "0.19.0", "bf16"

LAYER_SPLIT = "matrices (n, k) in the order of a hash: three quarters fitted, one quarter held out"


def read_layer_products(reference: Path, gpu: str) -> list[TensorRows]:
    """Return the products of one GPU's layers, all models together; empty without tables."""
    sizes = [
        _sizes(rows, file)
        for file in (LAYERS, HEADS)
        if gpu in GPUS and (reference / file).is_file()
        for rows in by_layer(reference / file, GPUS[gpu])
    ]
    sizes = [columns for columns in sizes if columns.size]
    if not sizes:
        return []
    m, n, k, seconds = np.concatenate(sizes, axis=1)
    rows = TensorRows(gpu, FRAMEWORK, KIND, VERSION, m, n, k, np.ones(m.size), seconds)
    hashes, order = np.unique(rows.place, return_inverse=True)
    return [replace(rows, order=(order + 0.5) / hashes.size)]


def matrix_of(layer: str, model: LanguageModel, tp: int) -> tuple[float, float] | None:
    """Return columns and inner length of a layer's product on one of `tp` GPUs; none without one.

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


def by_layer(file: Path, gpu: str) -> list[pa.Table]:
    """Return a table's rows of one GPU by model, degree and layer, models we know."""
    mine = [("gpu", "==", gpu), ("model", "in", list(MODELS))]
    table = pa.parquet.read_table(file, filters=mine)
    keys = ("model", "tp", "layer")
    found = []
    for wanted in table.select(keys).group_by(list(keys)).aggregate([]).to_pylist():
        rows = table
        for name in keys:
            rows = rows.filter(pc.equal(rows[name], wanted[name]))
        found.append(rows)
    return found


def _sizes(rows: pa.Table, file: str) -> np.ndarray:
    """Return m, n, k and seconds of one matrix; no columns where a layer has none."""
    matrix = matrix_of(
        rows["layer"][0].as_py(),
        load_model(MODELS[rows["model"][0].as_py()]),
        rows["tp"][0].as_py(),
    )
    if matrix is None:
        return np.zeros((4, 0))
    m, time_us = (rows[name].to_numpy().astype(np.float64) for name in (SIZES[file], "time_us"))
    return np.stack([m, np.full_like(m, matrix[0]), np.full_like(m, matrix[1]), time_us * 1e-6])
