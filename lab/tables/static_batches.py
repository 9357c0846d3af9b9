"""Static batches under TensorRT-LLM's session runtime of 2023 and 2024, as NVIDIA published them.

A batch is one prefill of all prompts and decodes of all of them. Copies of a row in a later release
are left out, and rows whose unit is not sure.

Until TensorRT-LLM had a kernel in which query heads share what they read (XQA, release 0.8), its
masked multi-head attention read the keys of a group for each of its heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lab.tables.known import known_rows
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.engine_columns import (
    BORROWED,
    COLUMNS,
    bare,
    numbers_of,
    step_columns,
)
from simulators.composition.replica import Replica, load_runtime
from simulators.core.folder import GPUS
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import decode_step, prefill_step

Floats = NDArray[np.float64]

STATIC = "serving_measured/trtllm_static_batch_2023_2024.parquet"
SESSION = "trtllm_session"

MODELS = {
    "LLaMA 7B": "llama2_7b",
    "LLaMA 70B": "llama2_70b",
    "GPT-J 6B": "gptj_6b",
    "Mistral 7B": "mistral_7b",
    "Mixtral 8x7B": "mixtral_8x7b",
}

DECODE = [COLUMNS.index(name) for name in ("decode", BORROWED["decode"])]
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

    def replica(self) -> Replica:
        """Return who ran it, with a runtime that adds nothing."""
        gpu = load_gpu(self.gpu)
        return Replica(
            model=load_model(self.model),
            gpu=gpu,
            cluster=cluster_for("auto", gpu),
            cut=Parallelism(tp=self.tp),
            dtype=self.precision,
            kv_dtype=self.precision,
            runtime=bare(SESSION),
        )


def static_rows(reference: Path) -> list[StaticBatch]:
    """Return the static batches of the reference folder, each once: as its last release has it."""
    found = {}
    rows = known_rows(
        pq.read_table(reference / STATIC).to_pylist(),
        STATIC,
        model=MODELS.__contains__,
        gpu=GPUS.has,
    )
    for row in sorted(rows, key=lambda row: str(row["doc_tag"])):
        unsure = row["doc_tag"] == UNSURE and row["tp_size"] > 1
        if row["output_tokens_per_s_total"] and not unsure:
            one = _batch(row)
            found[one.group, one.precision, one.tp, one.batch, one.prompt, one.output] = one
    return list(found.values())


def _batch(row: Mapping[str, Any]) -> StaticBatch:
    return StaticBatch(
        version=row["doc_tag"],
        model=MODELS[row["model"]],
        gpu=row["gpu"],
        precision=row["precision"],
        tp=int(row["tp_size"]),
        batch=int(row["batch_size"]),
        prompt=int(row["isl"]),
        output=int(row["osl"]),
        tokens_per_s=row["output_tokens_per_s_total"],
    )


def static_columns(rows: Sequence[StaticBatch]) -> tuple[Floats, list[Replica]]:
    """Return what whole batches take, by column, and the replica of each."""
    columns, replicas = np.zeros((len(rows), len(COLUMNS))), []
    for i, row in enumerate(rows):
        replica, batch = row.replica(), np.array([float(row.batch)])
        decodes = decode_step(batch, row.prompt + row.output / 2.0)
        prefill = step_columns(replica, prefill_step(batch, float(row.prompt)))
        decode = step_columns(replica, decodes)
        if not row.shares_keys:
            apart = dataclasses.replace(replica.model, kv_heads=replica.model.heads)
            unshared = step_columns(dataclasses.replace(replica, model=apart), decodes)
            decode[:, DECODE] = unshared[:, DECODE]
        columns[i] = (prefill + (row.output - 1.0) * decode)[0]
        replicas.append(replica)
    return columns, replicas


def predicted_s(rows: Sequence[StaticBatch]) -> Floats:
    """Return how long batches take under the session runtime, their groups left out of its fit."""
    columns, replicas = static_columns(rows)
    runtimes = [load_runtime(f"{SESSION}@{row.group}") for row in rows]
    numbers = [numbers_of(*one) for one in zip(runtimes, replicas, strict=True)]
    return np.asarray(np.sum(columns * np.stack(numbers), axis=-1), np.float64)
