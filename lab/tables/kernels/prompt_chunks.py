"""Measured prefill chunks on a prefix, and batches that mix one with decodes, as attention.

Two tables: `serving_modern/lss_profile_attention` (vllm: one chunk and equal decodes in one launch)
and `llm_ops/attention` (VIDUR's FlashAttention and Frontier's FlashInfer, each apart). Of the
second, a series is left out where more than one row in a hundred is faster than the data sheet
allows, or where rows of one shape differ by a tenth (something else than the shape was timed). An
A800 and an H800 compute as an A100 and an H100 do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.tables.kernels.fused_kernels import timed
from lab.tables.rows import Floats, Rows, by_labels, first, joined, numbers, read_table, words
from simulators.catalog.gpu import load_gpu
from simulators.kernels.price import roofline_s

MIXED = "serving_modern/lss_profile_attention.parquet"
CHUNKS = "llm_ops/attention.parquet"
POINTS = "llm_ops/attention_vidur_7b_a100_points.parquet"

MIXED_GPUS = {"rtx_pro_6000": "RTXPRO6000", "rtx_4090": "RTX4090"}
CHUNK_GPUS = {"a100_sxm": ("a100", "a800"), "h100_sxm": ("h100", "h800")}
POINT_GPUS = ("a100_sxm",)
FRAMEWORKS = {"FLASH_ATTENTION": "flash_attention", "FLASHINFER": "flashinfer"}

HEADS = {
    "meta-llama/Llama-3.1-8B": (32, 8),
    "Qwen/Qwen3-32B": (64, 8),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": (32, 4),
}
"""Query and key heads of the models of the mixed table, by their public configurations."""

HEAD_DIM = 128.0
KNOWN = ("codellama", "meta-llama", "qwen3-a3b-30b", "Llama-3.1-405B", "qwen2_moe")
"""Models whose heads are 128 wide; the rest of the table are reduced copies."""

LEAST_ROWS = 100
IMPOSSIBLE, REPEATED = 0.01, 1.1


def read_chunks(reference: Path, gpu: str, kernel: str) -> list[Rows]:
    """Return the rows of one GPU and kernel: prefill (chunks), decode, or mixed.

    A library with a mixed kernel also runs chunks by it, so they are among its rows.
    """
    found: list[Rows] = []
    kernels = ("mixed", "prefill", "decode")
    if gpu in MIXED_GPUS and kernel in kernels and (reference / MIXED).is_file():
        found.append(_mixed(reference / MIXED, gpu, kernel))
    if gpu in CHUNK_GPUS and kernel in ("prefill", "decode"):
        series = [*_chunks(reference / CHUNKS, gpu, kernel), *_points(reference, gpu, kernel)]
        found += joined(series, lambda rows: rows.framework)
    return found


def _mixed(path: Path, gpu: str, kernel: str) -> Rows:
    table = read_table(path, gpu=MIXED_GPUS[gpu], model=list(HEADS))
    new, past, decodes, keys, tp, time_us = numbers(
        table, ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "tp", "time_us")
    ).values()
    heads = np.array([HEADS[model] for model in table["model"].to_pylist()], np.float64)
    query_heads, kv_heads = heads.reshape(-1, 2).T / tp
    sizes = _sizes(np.where(new > 0, 1.0, 0.0), new, past, query_heads, kv_heads)
    if kernel == "decode":
        sizes |= {"batch_size": decodes, "isl": np.ones(new.shape), "step": keys - 1.0}
    if kernel == "mixed":
        sizes |= {"decodes": decodes, "decode_keys": keys}
    wanted = {"mixed": new > 0, "prefill": (new > 0) & (decodes == 0), "decode": new == 0}
    rows = timed(sizes, time_us * 1e-6, kernel, "bf16_bf16", gpu=gpu, framework="vllm")
    return rows.where(wanted[kernel])


def _chunks(path: Path, gpu: str, kernel: str) -> Iterator[Rows]:
    """Yield each sound series of the table of chunks."""
    if not path.is_file():
        return
    column, is_prefill = f"attn_{kernel}_ms", kernel == "prefill"
    wanted = {"gpu": CHUNK_GPUS[gpu], "is_prefill": is_prefill, "is_mixed_batch": False}
    table = read_table(path, (column,), **wanted)
    known = np.array([model.startswith(KNOWN) for model in words(table, "model").tolist()], bool)
    timed_rows = table.filter(pa.array(known)).filter(pc.field(column) > 0.0)
    for _, rows in by_labels(timed_rows, "gpu", "model", "measurement", "tp"):
        series = _series(rows, gpu, kernel)
        if len(series) >= LEAST_ROWS and _is_sound(series):
            yield series


def _points(reference: Path, gpu: str, kernel: str) -> Iterator[Rows]:
    """Yield decode points of VIDUR's first A100 profile, of a model with a key head per head."""
    if gpu in POINT_GPUS and kernel == "decode" and (reference / POINTS).is_file():
        points = read_table(reference / POINTS, ("backend",))
        if points.num_rows:
            yield _series(points, gpu, kernel)


def _series(table: pa.Table, gpu: str, kernel: str) -> Rows:
    """Return one series of measurements, each of equal requests."""
    names = ("batch_size", "kv_cache_size", "tp", "n_q_head", "n_kv_head", f"attn_{kernel}_ms")
    requests, past, tp, heads, kv_heads, time_ms = numbers(table, names).values()
    chunk = np.ones(requests.shape)
    if kernel == "prefill":
        chunk = numbers(table, ["prefill_chunk_size"])["prefill_chunk_size"]
    sizes = _sizes(requests, chunk, past, heads / tp, np.maximum(kv_heads / tp, 1.0))
    framework = FRAMEWORKS[first(table, "backend")]
    return timed(sizes, time_ms * 1e-3, kernel, "bf16_bf16", gpu=gpu, framework=framework)


def _sizes(
    requests: Floats, new: Floats, past: Floats, heads: Floats, kv_heads: Floats
) -> dict[str, Floats]:
    """Return the sizes of attention without a window."""
    return {
        "batch_size": requests,
        "isl": new,
        "step": past,
        "num_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": np.full(new.shape, HEAD_DIM),
        "window_size": np.zeros(new.shape),
    }


def _is_sound(rows: Rows) -> bool:
    """Return whether a series can be what it claims: no impossible times, equal shapes alike."""
    least_s = roofline_s(rows.operator, load_gpu(rows.gpu))
    _, shape = np.unique(rows.group, return_inverse=True)
    slowest, fastest = np.zeros(shape.max() + 1), np.full(shape.max() + 1, np.inf)
    np.maximum.at(slowest, shape, rows.seconds)
    np.minimum.at(fastest, shape, rows.seconds)
    repeats = np.bincount(shape) > 1
    spread = float(np.median(slowest[repeats] / fastest[repeats])) if repeats.any() else 1.0
    return bool(np.mean(rows.seconds < least_s) <= IMPOSSIBLE and spread <= REPEATED)
