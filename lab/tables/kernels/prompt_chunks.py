"""Measured prompt chunks on a prefix, and batches that mix one with decodes, as attention columns.

Two tables: `serving_modern/lss_profile_attention` (vllm: one chunk and equal decodes in one launch)
and `llm_ops/attention` (VIDUR's FlashAttention and Frontier's FlashInfer, each apart).
Of the second, a series is left out where more than one row in a hundred beats the data sheet (no
kernel does), or where rows of one shape differ by a tenth (something else than the shape was
timed). An A800 and an H800 compute as an A100 and an H100 do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
from numpy.typing import NDArray

from lab.tables.kernels.fused_kernels import Measured, attention_of, group_of
from simulators.catalog.gpu import load_gpu
from simulators.kernels.families.attention import attention_roofline_s

Floats = NDArray[np.float64]

MIXED = "serving_modern/lss_profile_attention.parquet"
CHUNKS = "llm_ops/attention.parquet"
POINTS = "llm_ops/attention_vidur_7b_a100_points.parquet"

MIXED_GPUS = {"rtx_pro_6000": "RTXPRO6000", "rtx_4090": "RTX4090"}
CHUNK_GPUS = {"a100_sxm": ("a100", "a800"), "h100_sxm": ("h100", "h800")}
FRAMEWORKS = {"FLASH_ATTENTION": "flash_attention", "FLASHINFER": "flashinfer"}

HEADS = {
    "meta-llama/Llama-3.1-8B": (32, 8),
    "Qwen/Qwen3-32B": (64, 8),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": (32, 4),
}
"""Query and key heads of the models of the mixed table, by their public configurations."""

HEAD_DIM = 128.0
"""Of every model kept, by its public configuration."""

KNOWN = ("codellama", "meta-llama", "qwen3-a3b-30b", "Llama-3.1-405B", "qwen2_moe")
"""Models whose heads are 128 wide; the rest of the table are reduced copies."""

LEAST_ROWS = 100
IMPOSSIBLE, REPEATED = 0.01, 1.1


def read_chunks(reference: Path, gpu: str, kernel: str) -> list[Measured]:
    """Return the rows of one GPU and kernel: prefill (chunks), decode, or mixed.

    A library with a mixed kernel runs chunks by it as well, so they are among its rows.
    """
    found: list[Measured] = []
    if gpu in MIXED_GPUS and kernel in ("prefill", "decode", "mixed"):
        found += _mixed(reference, gpu, kernel)
    if gpu in CHUNK_GPUS and kernel in ("prefill", "decode"):
        found += _chunks(reference, gpu, kernel)
    return found


def _mixed(reference: Path, gpu: str, kernel: str) -> list[Measured]:
    path = reference / MIXED
    if not path.is_file():
        return []
    mine = [("gpu", "==", MIXED_GPUS[gpu]), ("model", "in", list(HEADS))]
    table = pyarrow.parquet.read_table(path, filters=mine)
    cut = table["tp"].to_numpy()
    heads = np.array([HEADS[model] for model in table["model"].to_pylist()], np.float64)
    new, past, decodes, keys = (
        table[name].to_numpy().astype(np.float64)
        for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    )
    sizes = {
        "batch_size": np.where(new > 0, 1.0, 0.0), "isl": new, "step": past,
        "num_heads": heads[:, 0] / cut, "num_key_value_heads": heads[:, 1] / cut,
        "head_dim": np.full(new.shape, HEAD_DIM), "window_size": np.zeros(new.shape),
    }  # fmt: skip
    mine = {
        "mixed": new > 0,
        "prefill": (new > 0) & (decodes == 0),
        "decode": new == 0,
    }[kernel]
    if kernel == "decode":
        sizes |= {"batch_size": decodes, "isl": np.ones(new.shape), "step": keys - 1.0}
    if kernel == "mixed":
        sizes |= {"decodes": decodes, "decode_keys": keys}
    seconds = table["time_us"].to_numpy().astype(np.float64) * 1e-6
    rows = Measured(gpu, "vllm", kernel, "bf16_bf16", sizes, seconds, group_of(sizes))
    return [rows.where(mine)]


def _chunks(reference: Path, gpu: str, kernel: str) -> list[Measured]:
    """Return each sound series of a table, and the points, those of one framework together."""
    path = reference / CHUNKS
    if not path.is_file():
        return []
    table = pyarrow.parquet.read_table(path, filters=[("gpu", "in", CHUNK_GPUS[gpu])])
    column = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    timed = f"attn_{kernel}_ms"
    wanted = (column["is_prefill"] == (kernel == "prefill")) & ~column["is_mixed_batch"]
    wanted &= np.array([any(model.startswith(k) for k in KNOWN) for model in column["model"]])
    wanted &= column[timed].astype(np.float64) > 0.0
    label = [f"{a}|{b}|{c}|{d}" for a, b, c, d in zip(
        *(column[n] for n in ("gpu", "model", "measurement", "tp")), strict=True)]  # fmt: skip
    labels = np.array(label)
    found: dict[str, Measured] = {}
    for name in np.unique(labels[wanted]):
        mine = wanted & (labels == name)
        rows = _series({n: c[mine] for n, c in column.items()}, gpu, kernel)
        if rows.seconds.size >= LEAST_ROWS and _sound(rows):
            _keep(found, rows)
    for points in _points(reference, gpu, kernel):
        _keep(found, points)
    return list(found.values())


def _keep(found: dict[str, Measured], rows: Measured) -> None:
    """Add rows to those of their framework."""
    before = found.get(rows.framework)
    found[rows.framework] = rows if before is None else before.with_rows(rows)


def _points(reference: Path, gpu: str, kernel: str) -> list[Measured]:
    """Return decode points of VIDUR's first A100 profile, of a model with a key head per head."""
    path = reference / POINTS
    if gpu != "a100_sxm" or kernel != "decode" or not path.is_file():
        return []
    return [_series(pyarrow.parquet.read_table(path).to_pydict(), gpu, kernel)]


def _series(column: dict[str, NDArray[np.generic]], gpu: str, kernel: str) -> Measured:
    """Return one series of measurements, each of equal requests."""
    timed = f"attn_{kernel}_ms"
    names = ("batch_size", "kv_cache_size", "tp", "n_q_head", "n_kv_head", timed)
    number = {name: np.asarray(column[name], np.float64) for name in names}
    requests = number["batch_size"]
    chunk = requests * 0.0 + 1.0
    if kernel == "prefill":
        chunk = np.asarray(column["prefill_chunk_size"], np.float64)
    sizes = {
        "batch_size": requests, "isl": chunk, "step": number["kv_cache_size"],
        "num_heads": number["n_q_head"] / number["tp"],
        "num_key_value_heads": np.maximum(number["n_kv_head"] / number["tp"], 1.0),
        "head_dim": np.full(requests.shape, HEAD_DIM),
        "window_size": np.zeros(requests.shape),
    }  # fmt: skip
    seconds = number[timed] * 1e-3
    framework = FRAMEWORKS[str(column["backend"][0])]
    return Measured(gpu, framework, kernel, "bf16_bf16", sizes, seconds, group_of(sizes))


def _sound(rows: Measured) -> bool:
    """Say whether a series can be what it says: no row too fast, and shapes that repeat alike."""
    least_s = attention_roofline_s(attention_of(rows), load_gpu(rows.gpu))
    _, shape = np.unique(rows.group, return_inverse=True)
    slowest, fastest = np.zeros(shape.max() + 1), np.full(shape.max() + 1, np.inf)
    np.maximum.at(slowest, shape, rows.seconds)
    np.minimum.at(fastest, shape, rows.seconds)
    repeats = np.bincount(shape) > 1
    spread = float(np.median(slowest[repeats] / fastest[repeats])) if repeats.any() else 1.0
    return bool(np.mean(rows.seconds < least_s) <= IMPOSSIBLE and spread <= REPEATED)
