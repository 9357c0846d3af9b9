"""Throughput of S-LoRA by the number of adapters, as its authors measured it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.tables.rows import read_records

RUNS = "serving_modern/slora_results.parquet"
FILE = "synthetic/slora/synthetic_num_adapters_{}_{}_slora.jsonl"


@dataclass(frozen=True)
class Setting:
    """A model and the ranks of its adapters, equally many of each (S-LoRA, 2023, table 2)."""

    model: str
    ranks: tuple[int, ...]


SETTINGS: Mapping[str, Setting] = {
    "S2": Setting("llama2_7b", (64, 32, 16, 8)),
    "S4": Setting("llama2_13b", (64, 32, 16)),
}
"""The model is LLaMA in either size, whose shape Llama 2 has."""


def throughputs(reference: Path, board: str, setting: str) -> Mapping[int, float]:
    """Return requests per second by the number of adapters; 0: without any.

    Lengths are drawn evenly from 8 to 512 tokens. Runs that the authors gave up are other files.
    """
    wanted = FILE.format(board, setting)
    return {
        int(row["cfg_num_adapters"]): float(row["throughput"])
        for row in read_records(reference / RUNS)
        if row["file"] == wanted
    }
