"""Static batches under TensorRT-LLM's session runtime of 2023 and 2024, as NVIDIA published them.

A batch is one prefill of all prompts and decodes of all of them. Copies of a row in a later release
are left out, and rows whose unit is not sure.

Until TensorRT-LLM had a kernel in which query heads share what they read (XQA, release 0.8), its
masked multi-head attention read the keys of a group for each of its heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.catalog_names import is_gpu, is_model, model_name, replica_of
from lab.tables.records import known_rows
from lab.tables.rows import read_records
from simulators.composition.replica import Replica, Runtime
from simulators.workload.llm.parallelism import Parallelism

STATIC = "serving_measured/trtllm_static_batch_2023_2024.parquet"
SESSION = "trtllm_session"

SHARED_SINCE = "v0.8.0"

UNSURE = "v0.7.1"
"""In this release some rows of several GPUs can only be rates per GPU, and do not say so."""


@dataclass(frozen=True)
class StaticBatch:
    """One measured batch: who ran it, and how many output tokens a second came out."""

    version: str
    model: str
    gpu: str
    precision: str
    tp: int
    batch: int
    prompt: int
    output: int
    tokens_per_s: float

    @property
    def group(self) -> str:
        """A model on a GPU."""
        return f"{self.model}.{self.gpu}"

    @property
    def shares_keys(self) -> bool:
        """Whether the heads of a group read keys together."""
        return self.version >= SHARED_SINCE

    @property
    def measured_s(self) -> float:
        """Return how long the batch took."""
        return self.batch * self.output / self.tokens_per_s

    def replica(self, runtime: Runtime) -> Replica:
        """Return who ran it, under a runtime."""
        return replica_of(
            self.model,
            self.gpu,
            cut=Parallelism(tp=self.tp),
            dtype=self.precision,
            kv_dtype=self.precision,
            runtime=runtime,
        )


def static_rows(reference: Path) -> list[StaticBatch]:
    """Return the static batches of the reference folder, each once: as its last release has it."""
    found = {}
    table = read_records(reference / STATIC)
    rows = known_rows(table, STATIC, model=is_model, gpu=is_gpu)
    for row in sorted(rows, key=lambda row: str(row["doc_tag"])):
        unsure = row["doc_tag"] == UNSURE and row["tp_size"] > 1
        if row["output_tokens_per_s_total"] and not unsure:
            one = _batch(row)
            found[one.group, one.precision, one.tp, one.batch, one.prompt, one.output] = one
    return list(found.values())


def _batch(row: Mapping[str, Any]) -> StaticBatch:
    return StaticBatch(
        version=row["doc_tag"],
        model=model_name(row["model"]),
        gpu=row["gpu"],
        precision=row["precision"],
        tp=int(row["tp_size"]),
        batch=int(row["batch_size"]),
        prompt=int(row["isl"]),
        output=int(row["osl"]),
        tokens_per_s=row["output_tokens_per_s_total"],
    )
