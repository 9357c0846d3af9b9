"""Watts and joules of served models in steady state, from ML.ENERGY's leaderboard.

vLLM 0.11.1 on H100 under a fixed number of concurrent requests with real prompts (ML.ENERGY, LLM
Inference Energy: A Longitudinal Analysis); watts are the mean of all GPUs together. Requests with
images and videos are left out: their encoders are not modelled. Launch configurations state the
tokens of an iteration and whether attention is data-parallel; otherwise the launcher uses tensor
parallelism. Its runner samples by top_p = 0.95 unless configured, which no configuration does.

Lengths of prompts are not stated. Where the KV cache held fewer requests than the batch allows, its
tokens over those requests, less half an answer, are a prompt's; elsewhere at least as many fit. The
least such number of a task is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.catalog_names import four_bit_experts, gpu_name, is_model, model_name
from lab.tables.rows import Record, read_records
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, load_model
from simulators.core.fields import updated
from simulators.serving.point import CLOSED, NUCLEUS, ArrivalsConfig, ServingPoint

SERVED = "power/mlenergy_llm_serving.parquet"
LAUNCHED = "power/mlenergy_launch_configs.parquet"
CONFIGURED = "configs/vllm/{task}/{model}/{gpu}/monolithic.config.yaml"
ENGINE, RUNTIME = "vllm", "vllm_0_13"

PROMPT_TOKENS = {"lm-arena-chat": 385, "gpqa": 230, "sourcegraph-fim": 1112}
"""Tasks of text and their mean prompts: Llama-3.1-70B on four GPUs held 898 chats of 1,024,
Qwen3-Coder-30B on two for 750 files of 768. Questions are as short as their set prints them."""

TURNS, FEWEST = 2, 8
"""Requests of a client in turn, and the least number of all."""


@dataclass(frozen=True)
class Served:
    """One row; watts of one GPU, joules and rate of all, and seconds between tokens."""

    point: ServingPoint
    watts: float
    token_j: float
    tokens_per_s: float
    itl_median_s: float

    @property
    def group(self) -> str:
        """A model on a GPU."""
        return f"{self.point.model}.{self.point.gpu}"


def served(reference: Path) -> tuple[list[Served], list[str]]:
    """Return the usable rows, and the reason against each other one."""
    usable: list[Served] = []
    reasons: list[str] = []
    launches = {row.path: row.text for row in read_records(reference / LAUNCHED)}
    for row in read_records(reference / SERVED):
        if row.task not in PROMPT_TOKENS:
            reasons.append("images and videos")
        elif not is_model(row.model):
            reasons.append("unknown model")
        else:
            usable.append(_served(row, launches.get(CONFIGURED.format(**row), "")))
    return usable, reasons


def _served(row: Record, launched: str) -> Served:
    model, gpu = model_name(row.model), load_gpu(gpu_name(row.gpu)).name
    clients = max(1, round(row.avg_batch_size))
    point = ServingPoint(
        model=model,
        gpu=gpu,
        scheduler=load_engine(ENGINE).schedulers[0],
        runtime=RUNTIME,
        dtype=_dtype(row, model, gpu),
        max_batch=max(clients, int(row.max_num_seqs)),
        prompt_tokens=PROMPT_TOKENS[row.task],
        output_tokens=max(2, round(row.avg_output_tokens)),
        sampling=NUCLEUS,
        arrivals=ArrivalsConfig(process=CLOSED, clients=clients),
        requests=max(TURNS * clients, FEWEST),
    )
    point = updated(point, _budget(launched) | _cut(row, launched))
    watts = row.avg_power_W / row.n_gpus
    joules, rate = row.energy_J_per_output_token, row.output_tokens_per_s
    return Served(point, watts, joules, rate, row.itl_median_s)


def _dtype(row: Mapping[str, Any], model: str, gpu: str) -> str:
    sheet = load_model(model)
    if sheet.published_experts == MXFP4:
        return four_bit_experts(model, gpu)
    if row["weight_precision"] == "fp8":
        return "fp8_block" if sheet.experts else "fp8"
    return "bf16"


def _budget(launched: str) -> dict[str, Any]:
    """Return the token budget that a launch configuration states, if any."""
    found = re.search(r"^max-num-batched-tokens: (\d+)", launched, re.MULTILINE)
    return (
        {name: int(found[1]) for name in ("chunk_size", "scheduling.max_batch_tokens")}
        if found
        else {}
    )


def _cut(row: Mapping[str, Any], launched: str) -> dict[str, Any]:
    """Return the parallelism: tensor-parallel, or data-parallel where the launch states it."""
    gpus = int(row["n_gpus"])
    ep = gpus if row["ep"] > 1 else 1
    if "data-parallel-size" not in launched:
        return {"tp": gpus, "ep": ep}
    return {"tp": 1, "attention_dp": gpus, "ep": ep} if ep > 1 else {"tp": 1, "replicas": gpus}
