"""What measured tables call models and GPUs, by their names in the catalog."""

from __future__ import annotations

from typing import Any

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, LanguageModel, load_model
from simulators.composition.replica import Replica
from simulators.core.folder import GPUS as CATALOG

MODELS = {
    "DeepSeek-R1-0528": "deepseek_v3",
    "GPT-J 6B": "gptj_6b",
    "GPT-OSS 120B": "gpt_oss_120b",
    "GPT-OSS 20B": "gpt_oss_20b",
    "LLaMA 3.1 70B": "llama3_1_70b",
    "LLaMA 3.1 8B": "llama3_1_8b",
    "LLaMA 70B": "llama2_70b",
    "LLaMA 7B": "llama2_7b",
    "LLaMA v3.1 70B": "llama3_1_70b",
    "LLaMA v3.1 8B": "llama3_1_8b",
    "LLaMA-2-13B": "llama2_13b",
    "LLaMA-2-7B": "llama2_7b",
    "LLaMA-3-8B": "llama3_1_8b",
    "Llama 3.1 405B": "llama3_1_405b",
    "Llama 3.1 8B": "llama3_1_8b",
    "Llama 3.3 70B": "llama3_1_70b",
    "Llama 4 Maverick": "llama4_maverick",
    "Llama 4 Scout": "llama4_scout",
    "MiniMaxAI/MiniMax-M2.5": "minimax_m2_5",
    "Mistral 7B": "mistral_7b",
    "Mixtral 8x7B": "mixtral_8x7b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3_235b",
    "Qwen/Qwen3-32B": "qwen3_32b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3_5_397b",
    "Qwen3-30B-A3B": "qwen3_30b",
    "Vicuna-13B": "llama2_13b",
    "Vicuna-7B": "llama2_7b",
    "deepseek-ai/DeepSeek-R1": "deepseek_v3",
    "deepseek-ai/DeepSeek-V3": "deepseek_v3",
    "llama2-70b": "llama2_70b",
    "meta-llama/Llama-3.1-70B": "llama3_1_70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3_1_8b",
    "moonshotai/Kimi-K2.5": "kimi_k2_5",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek_v3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek_v3",
    "openai/gpt-oss-120b": "gpt_oss_120b",
    "zhipuai/GLM-5": "glm_5",
}

GPUS = {
    "A100-80GB": "a100_sxm",
    "NVIDIA B200-SXM-180GB": "b200_sxm",
    "NVIDIA H100-SXM-80GB": "h100_sxm",
    "NVIDIA H200-SXM-141GB": "h200_sxm",
    "NVIDIA L40S": "l40s",
    "RTX4090": "rtx_4090",
    "RTXPRO6000": "rtx_pro_6000",
    "a100-80gb": "a100_sxm",
    "a100_pcie": "a100_pcie_80gb",
    "gh200_480gb": "gh200",
    "h100-80gb": "h100_sxm",
    "rtx_pro_6000_server": "rtx_pro_6000",
}
"""Where a table's name of a GPU is not the catalog's."""


def gpu_name(written: str) -> str:
    """Return the catalog's name of a GPU, or the name as it is written."""
    return GPUS.get(written, written)


def is_gpu(written: str) -> bool:
    """Say whether the catalog has a GPU."""
    return CATALOG.has(gpu_name(written))


def replica_of(model: str | LanguageModel, gpu: str, **more: Any) -> Replica:
    """Return a replica of a model on GPUs in the nodes they are sold in, by the catalog's names."""
    known, board = load_model(model) if isinstance(model, str) else model, load_gpu(gpu)
    return Replica(model=known, gpu=board, cluster=cluster_for("auto", board), **more)


def four_bit_experts(model: str, gpu: str) -> str:
    """Return the precision of a mixture whose experts alone have 4 bits.

    Engines multiply those published in MXFP4 by 8 bits.
    """
    if "fp4" not in load_gpu(gpu).peak_flops:
        return "bf16+w4a16"
    return "bf16+w4a8" if load_model(model).published_experts == MXFP4 else "bf16+fp4"
