"""Spec-Bench: what drafting methods speed up, one sequence at a time (Xia et al., 2024)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.tables.catalog_names import gpu_name
from lab.tables.modern.uncatalogued import model_of
from lab.tables.rows import read_records
from simulators.catalog.model import LanguageModel

SPEC_BENCH = "serving_modern/specbench_speedup.parquet"


@dataclass(frozen=True)
class Sped:
    """What one method did for one model on one GPU, over all tasks."""

    method: str
    model: LanguageModel
    gpu: str
    tokens: float  # of an iteration, the model's own included
    speed_up: float


def sped_up(reference: Path, methods: tuple[str, ...]) -> Iterator[Sped]:
    """Yield the rows of some methods, Vicuna in fp16."""
    for row in read_records(reference / SPEC_BENCH, method=methods):
        yield Sped(
            row["method"],
            model_of(row["model"]),
            gpu_name(row["gpu"]),
            row["mean_accepted_tokens"],
            row["overall_speedup"],
        )
