"""Measured layers of experts beyond the dense tables: Frontier's and LLMServingSim's profiles.

Both say how many experts woke, but for Frontier's A100 series, taken as independent draws. Its
series are layers between two events, launched by the host, so its numbers serve nobody else. An
A800 is an A100 in its arithmetic. Left out are the H800 series, nearly all of whose times lie
between 125 and 150 us whatever the shape, and four rows of another routing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
from numpy.typing import NDArray

from lab.tables.kernels.fused_kernels import Measured, group_of

Floats = NDArray[np.float64]

FRONTIER = "moe/frontier_moe_profile.parquet"
SERVING = "serving_modern/lss_profile_moe.parquet"

FRONTIER_GPUS = {"a100_sxm": ("a100", "a800")}
SERVING_GPUS = {"rtx_pro_6000": "RTXPRO6000"}

QWEN3_30B = {"hidden_size": 2048.0, "inter_size": 768.0, "topk": 8.0, "num_experts": 128.0}
"""The one model of the serving table, by its public configuration."""


def read_layers(reference: Path, gpu: str) -> list[Measured]:
    """Return the rows of one GPU, each series by itself."""
    found: list[Measured] = []
    if gpu in FRONTIER_GPUS and (reference / FRONTIER).is_file():
        first, *others = (_frontier(reference / FRONTIER, gpu, b) for b in FRONTIER_GPUS[gpu])
        for rows in others:
            first = first.with_rows(rows)
        found.append(first)
    if gpu in SERVING_GPUS and (reference / SERVING).is_file():
        found.append(_serving(reference / SERVING, gpu))
    return found


def _frontier(path: Path, gpu: str, board: str) -> Measured:
    table = pyarrow.parquet.read_table(path, filters=[("gpu", "==", board)])
    column = {name: np.array(table[name].to_pylist()) for name in table.column_names}

    def number(name: str) -> Floats:
        return np.asarray(column[name], np.float64)

    sizes = {
        "num_tokens": number("num_tokens"), "hidden_size": number("hidden_dim"),
        "inter_size": number("expert_hidden_dim"), "topk": number("router_topk"),
        "num_experts": number("num_experts"),
        "moe_tp_size": number("num_tensor_parallel_workers"),
        "moe_ep_size": number("expert_parallel_size"),
    }  # fmt: skip
    keep = number("moe_grouped_gemm_ms") > 0.0
    routed = number("total_routed_tokens")
    here = number("num_experts_per_device")
    sizes["routed"], sizes["awake"] = routed, number("expert_utilization") * here
    if np.isfinite(routed).any():
        keep &= (routed > 0.0) & (column["load_distribution"] == "uniform")
    else:
        chance = sizes["topk"] / sizes["num_experts"]
        sizes["routed"] = np.maximum(sizes["num_tokens"] * chance * here, 1.0)
        sizes["awake"] = np.maximum(here * (1.0 - (1.0 - chance) ** sizes["num_tokens"]), 1.0)
    seconds = number("moe_grouped_gemm_ms") * 1e-3
    shape = group_of({name: size[keep] for name, size in sizes.items()})
    sizes = {name: size[keep] for name, size in sizes.items()}
    return Measured(gpu, "frontier", "experts", "bf16", sizes, seconds[keep], shape, "uniform")


def _serving(path: Path, gpu: str) -> Measured:
    table = pyarrow.parquet.read_table(path, filters=[("gpu", "==", SERVING_GPUS[gpu])])
    tokens = table["tokens"].to_numpy().astype(np.float64)
    sizes = {
        "num_tokens": tokens,
        **{name: np.full(tokens.shape, value) for name, value in QWEN3_30B.items()},
        "moe_tp_size": np.ones(tokens.shape), "moe_ep_size": np.ones(tokens.shape),
        "routed": tokens * QWEN3_30B["topk"],
        "awake": table["activated_experts"].to_numpy().astype(np.float64),
    }  # fmt: skip
    seconds = table["time_us"].to_numpy().astype(np.float64) * 1e-6
    return Measured(gpu, "vllm", "experts", "bf16", sizes, seconds, group_of(sizes), "activated")
