"""Deployments measured in public: InferenceMAX and NVIDIA's gap analyses, one row a load.

Rows are left out by the documented rules of `excluded` alone, none of which looks at a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lab.tables.known import known_rows
from simulators.catalog.model import load_model
from simulators.composition.deployments import FRAMEWORKS, Deployed, four_bit_experts
from simulators.core.folder import GPUS
from simulators.workload.llm.parallelism import Parallelism

SILICON = "serving_measured/inferencex_aic_silicon.parquet"
PEER = "serving_measured/peer_aiconfigurator_on_silicon.parquet"

MODELS = {
    "MiniMaxAI/MiniMax-M2.5": "minimax_m2_5",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3_235b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3_5_397b",
    "deepseek-ai/DeepSeek-R1": "deepseek_v3",
    "deepseek-ai/DeepSeek-V3": "deepseek_v3",
    "meta-llama/Llama-3.1-70B": "llama3_1_70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3_1_8b",
    "moonshotai/Kimi-K2.5": "kimi_k2_5",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek_v3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek_v3",
    "openai/gpt-oss-120b": "gpt_oss_120b",
    "zhipuai/GLM-5": "glm_5",
}

CROWDED = "trtllm/1.0.0rc3/meta-llama"
"""A source whose engines take no more requests than are stated, while one more is in flight: its
first tokens wait for the time of a whole answer over the clients."""


def silicon(reference: Path) -> list[Deployed]:
    """Return the aggregated deployments of the reference folder, without copies.

    Without the table of the peer, it answers none.
    """
    answers = pq.read_table(reference / PEER).to_pylist() if (reference / PEER).is_file() else []
    peers = {row["id"]: row for row in answers}
    found: dict[tuple[object, ...], Deployed] = {}
    rows = pq.read_table(reference / SILICON).to_pylist()
    aggregated = known_rows(
        [row for row in rows if row["mode"] == "agg" and row["concurrency"]], SILICON,
        model=MODELS.__contains__, gpu=GPUS.has, framework=FRAMEWORKS.__contains__,
    )  # fmt: skip
    for row in aggregated:
        one = _deployed(row, peers.get(row["id"], {}))
        times = (round(row["ttft_ms"], 1), round(row["tpot_ms"], 1))
        load = (one.cut, one.clients, one.prompt, one.output)
        found.setdefault((*one.family, *load, *times), one)
    return list(found.values())


def _deployed(row: Mapping[str, Any], peer: Mapping[str, Any]) -> Deployed:
    """Return one row.

    Assumed where the table is silent: of mixtures in 4 bits the experts alone are narrow; the KV
    cache is fp8 where weights are narrow; nothing is speculated.
    """
    model, framework = MODELS[row["model"]], row["framework"]
    precision = row["precision"] or "bf16"
    answered = bool(peer.get("aic_ok"))  # else the peer has nothing to say
    return Deployed(
        name=row["id"],
        family=(model, row["gpu"], framework, precision, row["framework_version"] or ""),
        framework=framework,
        model=model,
        gpu=row["gpu"],
        cut=_cut(row),
        dtype=_dtype(model, row["gpu"], precision),
        kv_dtype="bf16" if precision == "bf16" else "fp8",
        clients=int(row["concurrency"]),
        prompt=row["isl"],
        output=row["osl"],
        crowded=CROWDED in row["provenance"],
        ttft_s=row["ttft_ms"] * 1e-3,
        tpot_s=row["tpot_ms"] * 1e-3,
        peer_ttft_s=peer["aic_ttft_ms"] * 1e-3 if answered else None,
        peer_tpot_s=peer["aic_tpot_ms"] * 1e-3 if answered else None,
        excluded=excluded(row),
    )


def _cut(row: Mapping[str, Any]) -> Parallelism:
    """Return how a row's model is cut.

    Where both degrees of attention are `n`, the source has multiplied out one stage of `n` GPUs.
    """
    tp, dp, ep = (int(row[n] or 1) for n in ("tp_size", "attention_dp_size", "moe_ep_size"))
    if tp == dp:
        return Parallelism(tp=1, ep=dp, attention_dp=dp)
    has_experts = load_model(MODELS[row["model"]]).experts > 0
    return Parallelism(tp=tp, ep=ep if has_experts else 1, attention_dp=dp)


def _dtype(model: str, gpu: str, precision: str) -> str:
    """Return the precision a checkpoint is served in: mixtures in 8 bits are scaled in blocks."""
    if precision == "bf16" or load_model(model).experts == 0:
        return precision
    if precision == "fp8":
        return "fp8_block"
    return four_bit_experts(model, gpu) if precision == "fp4" else "bf16+w4a16"


def excluded(row: Mapping[str, Any]) -> str:
    """Return why a row says nothing certain about its deployment; empty where it does.

    The rules are those of the reference's own notes, and older than any fit.
    """
    model, gpu, precision = MODELS[row["model"]], row["gpu"], row["precision"]
    framework, date = row["framework"], row["measured_date"] or ""
    rules = {
        "parallelism multiplied out": bool(row["suspect_parallelism"]),
        "speculation not stated": model == "deepseek_v3"
        and framework == "trtllm"
        and date in ("2026-01-14", "2026-02-05", "2026-02-06"),
        "a mixture of runs": model == "qwen3_5_397b"
        and (precision, framework, gpu, date) == ("fp8", "sglang", "b200_sxm", "2026-03-20"),
        "a start-up stall averaged in": model == "deepseek_v3"
        and (precision, framework, date) == ("fp4", "sglang", "2025-11-10")
        and row["ttft_ms"] > 3000.0,
        "an engine limit below the clients": model == "gpt_oss_120b"
        and (gpu, framework) == ("h100_sxm", "vllm")
        and date.startswith("2025-12"),
        "weights leave no room": model == "deepseek_v3"
        and (precision, gpu, _cut(row).width) == ("fp8", "b200_sxm", 4),
        "batch per rank unclear": row["model"].startswith("nvidia/")
        or gpu == "gb200"
        or (model == "gpt_oss_120b" and (gpu, framework) == ("h100_sxm", "trtllm")),
    }
    return next((why for why, applies in rules.items() if applies), "")
