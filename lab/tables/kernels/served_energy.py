"""Watts and joules of served models in steady state, as ML.ENERGY's leaderboard shows them.

vLLM on H100, so many requests at once of real prompts; watts are the mean of all GPUs together.
Requests of text alone are told: images and videos are read by encoders that are no part of ours.
How long prompts are is not told: lengths here are about those of the sets by name, and weigh
little, since answers are longer. A model whose ranks do not share a layer keeps attention apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.catalog_names import four_bit_experts, gpu_name, is_model, model_name
from lab.tables.rows import read_records
from simulators.catalog.engine import load_engine
from simulators.catalog.model import MXFP4, load_model
from simulators.serving.point import CLOSED, ServingPoint

SERVED = "power/mlenergy_llm_serving.parquet"
ENGINE = "vllm"

PROMPT_TOKENS = {"lm-arena-chat": 120, "gpqa": 230, "sourcegraph-fim": 400}
"""Tasks of text, and about how long their prompts are."""

TURNS, FEWEST = 2, 8
"""Requests a seat answers in turn, and the least number of all."""


@dataclass(frozen=True)
class Served:
    """One row; watts of one GPU, joules of all per output token, and seconds between tokens."""

    point: ServingPoint
    watts: float
    token_j: float
    itl_median_s: float

    @property
    def group(self) -> str:
        """A model on a GPU."""
        return f"{self.point.model}.{self.point.gpu}"


def served(reference: Path) -> tuple[list[Served], list[str]]:
    """Return the rows that can be told, and why each of the others cannot."""
    told: list[Served] = []
    reasons: list[str] = []
    for row in read_records(reference / SERVED):
        if row["task"] not in PROMPT_TOKENS:
            reasons.append("images and videos")
        elif not is_model(row["model"]):
            reasons.append("unknown model")
        else:
            told.append(_served(row))
    return told, reasons


def _served(row: Mapping[str, Any]) -> Served:
    model, gpu = model_name(row["model"]), gpu_name(row["gpu"])
    seats = max(1, round(row["avg_batch_size"]))
    point = ServingPoint(
        model=model,
        gpu=gpu,
        scheduler=load_engine(ENGINE).schedulers[0],
        runtime=ENGINE,
        dtype=_dtype(row, model, gpu),
        max_batch=max(seats, int(row["max_num_seqs"])),
        prompt_tokens=PROMPT_TOKENS[row["task"]],
        output_tokens=max(2, round(row["avg_output_tokens"])),
        arrivals=CLOSED,
        clients=seats,
        requests=max(TURNS * seats, FEWEST),
        **_cut(row, model),
    )
    watts = row["avg_power_W"] / row["n_gpus"]
    return Served(point, watts, row["energy_J_per_output_token"], row["itl_median_s"])


def _dtype(row: Mapping[str, Any], model: str, gpu: str) -> str:
    sheet = load_model(model)
    if sheet.published_experts == MXFP4:
        return four_bit_experts(model, gpu)
    if row["weight_precision"] == "fp8":
        return "fp8_block" if sheet.experts else "fp8"
    return "bf16"


def _cut(row: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return how GPUs are shared: ranks of tensors, or of attention and experts."""
    gpus, tp = int(row["n_gpus"]), int(row["tp"])
    if tp == gpus:
        return {"tp": tp, "ep": tp if row["ep"] > 1 else 1}
    if not load_model(model).experts:
        return {"tp": tp, "replicas": gpus // tp}
    return {"tp": tp, "attention_dp": gpus // tp, "ep": gpus if row["ep"] > 1 else 1}
