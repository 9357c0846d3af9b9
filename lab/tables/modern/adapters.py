"""Throughput of S-LoRA by the number of adapters, as its authors measured it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.tables.records import declared, file_of, records
from lab.tables.rows import Record

RUNS = file_of("slora_runs")
SETTINGS = {name: Record(one) for name, one in declared("slora_runs")["settings"].items()}


def throughputs(reference: Path, gpu: str, setting: str) -> Mapping[int, float]:
    """Return requests per second by the number of adapters; 0: without any.

    Lengths are drawn uniformly from 8 to 512 tokens.
    """
    file = f"synthetic/slora/synthetic_num_adapters_{gpu}_{setting}_slora.jsonl"
    rows = records(reference, "slora_runs", file=file)
    return {int(row.cfg_num_adapters): float(row.throughput) for row in rows}
