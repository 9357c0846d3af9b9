"""Measured layers of experts beyond the dense tables: Frontier's and LLMServingSim's profiles.

Both state how many experts were activated; those of Frontier's A100 series are taken as independent
draws. Frontier's layers were timed between two events and launched by the host, so no other
framework uses them. An A800 computes as an A100. Left out are the H800 series, nearly all of whose
times lie between 125 and 150 us whatever the shape, and four rows of another routing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.tables.kernels.fused_kernels import EXPERTS, timed
from lab.tables.rows import Rows, joined, numbers, read_table, words
from simulators.core.folder import read_toml

FRONTIER = "moe/frontier_moe_profile.parquet"
SERVING = "serving_modern/lss_profile_moe.parquet"

FRONTIER_GPUS = {"a100_sxm": ("a100", "a800")}
SERVING_GPUS = {"rtx_pro_6000": "RTXPRO6000"}

SIZES = read_toml(Path(__file__).with_name("kernels.toml"))["frontier"]["sizes"]
"""Frontier's names of `EXPERTS`."""
MORE = ("moe_grouped_gemm_ms", "total_routed_tokens", "num_experts_per_device")

QWEN3_30B = {"hidden_size": 2048.0, "inter_size": 768.0, "topk": 8.0, "num_experts": 128.0}
"""The one model of the serving table, by its public configuration."""


def read_layers(reference: Path, gpu: str) -> list[Rows]:
    """Return the rows of one GPU, each series by itself."""
    found: list[Rows] = []
    if gpu in FRONTIER_GPUS and (reference / FRONTIER).is_file():
        series = (_frontier(reference / FRONTIER, gpu, name) for name in FRONTIER_GPUS[gpu])
        found += joined(series, lambda rows: rows.name)
    if gpu in SERVING_GPUS and (reference / SERVING).is_file():
        found.append(_serving(reference / SERVING, gpu))
    return found


def _frontier(path: Path, gpu: str, name: str) -> Rows:
    table = read_table(path, gpu=name)
    sizes = dict(zip(EXPERTS, numbers(table, SIZES).values(), strict=True))
    time_ms, routed, here, used = numbers(table, (*MORE, "expert_utilization")).values()
    keep = time_ms > 0.0
    sizes |= {"routed": routed, "activated": used * here}
    if np.isfinite(routed).any():
        keep &= (routed > 0.0) & (words(table, "load_distribution") == "uniform")
    else:
        chance, tokens = sizes["topk"] / sizes["num_experts"], sizes["num_tokens"]
        sizes["routed"] = np.maximum(tokens * chance * here, 1.0)
        sizes["activated"] = np.maximum(here * (1.0 - (1.0 - chance) ** tokens), 1.0)
    kept = {name: column[keep] for name, column in sizes.items()}
    labels = {"gpu": gpu, "framework": "frontier", "variant": "uniform"}
    return timed(kept, time_ms[keep] * 1e-3, "experts", "bf16", **labels)


def _serving(path: Path, gpu: str) -> Rows:
    table = read_table(path, gpu=SERVING_GPUS[gpu])
    tokens, activated, time_us = numbers(table, ("tokens", "activated_experts", "time_us")).values()
    ones = np.ones(tokens.shape)
    sizes = {
        "num_tokens": tokens,
        **{name: ones * value for name, value in QWEN3_30B.items()},
        "moe_tp_size": ones,
        "moe_ep_size": ones,
        "routed": tokens * QWEN3_30B["topk"],
        "activated": activated,
    }
    labels = {"gpu": gpu, "framework": "vllm", "variant": "activated"}
    return timed(sizes, time_us * 1e-6, "experts", "bf16", **labels)
