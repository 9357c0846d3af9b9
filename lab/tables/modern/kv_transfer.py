"""KV caches moved from a replica that read a prompt to one that decodes, as Mooncake published.

One prefill and one decode replica of eight GPUs each, over RoCE; prompts one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from lab.tables.catalog_names import gpu_name, model_name
from lab.tables.rows import read_records
from simulators.catalog.model import load_model
from simulators.workload.llm.memory import kv_bytes_per_token
from simulators.workload.llm.parallelism import Parallelism

TRANSFERS = "serving_modern/mooncake_pd_transfer.parquet"

BLOCK = 16
"""Tokens by which caches are cut: what is moved are whole blocks."""


@dataclass(frozen=True)
class Moved:
    """One cache that was moved."""

    gpu: str
    model: str
    framework: str
    tp: int
    prompt_tokens: int
    layers: int
    line_s: float  # that each GPU's share takes at the rate of its line
    line_bytes_per_s: float  # of one GPU
    transfer_s: float
    ttft_s: float


def moved(reference: Path) -> Iterator[Moved]:
    """Yield all caches that were moved."""
    for row in read_records(reference / TRANSFERS):
        model = load_model(model_name(row["model"].removesuffix("-bf16")))
        share = kv_bytes_per_token(model, Parallelism(tp=row["tp"]), "bf16")
        line = 1e9 * row["line_rate_gbytes_s"] / row["tp"]
        tokens = BLOCK * ceil(row["prompt_tokens"] / BLOCK)
        yield Moved(
            gpu=gpu_name(row["gpu"].partition("-")[0]),
            model=model.name,
            framework=row["engine"].partition("-")[0],
            tp=row["tp"],
            prompt_tokens=row["prompt_tokens"],
            layers=model.layers,
            line_s=share * tokens / line,
            line_bytes_per_s=line,
            transfer_s=1e-3 * row["transfer_ms"],
            ttft_s=1e-3 * row["ttft_ms"],
        )
