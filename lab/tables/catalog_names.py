"""What measured tables call models and GPUs, by their names in the catalog."""

from __future__ import annotations

import functools
import re
from typing import Any

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, LanguageModel, load_model
from simulators.composition.replica import Replica
from simulators.core.folder import GPUS as CATALOG
from simulators.core.folder import MODELS as CATALOG_MODELS

MODELS = {
    "/workspace/DeepSeek-v3.2": "deepseek_v3_2",
    "DeepSeekV3": "deepseek_v3",
    "GPT-J 6B": "gptj_6b",
    "GPT3-175B": "gpt3_175b",
    "LLaMA 70B": "llama2_70b",
    "LLaMA 7B": "llama2_7b",
    "LLaMA v3.1 70B": "llama3_1_70b",
    "LLaMA v3.1 8B": "llama3_1_8b",
    "Nemotron-340B": "nemotron_4_340b",
    "Vicuna-13B": "llama2_13b",
    "Vicuna-7B": "llama2_7b",
}
"""Where a table's name of a model is none that the catalog finds it by."""

REMARK = re.compile(r"( \(.*\)|-99(\.9)?|-edge|_lora)$")
"""What tables say after a model's name: a variant in brackets, the kind of an MLPerf benchmark."""

GPUS = {
    "3090": "rtx_3090",
    "A100": "a100_sxm",
    "A100-80GB": "a100_sxm",
    "AMD Instinct MI300X 192GB HBM3": "mi300x",
    "AMD Instinct MI300X-NPS1-SPX-192GB-750W": "mi300x",
    "AMD Instinct MI325X 256GB HBM3E DLC": "mi325x",
    "AMD Instinct MI325X 256GB HBM3e": "mi325x",
    "AMD Instinct MI350X": "mi350x",
    "AMD Instinct MI350X 288GB HBM3e": "mi350x",
    "AMD Instinct MI355X 288GB HBM3E": "mi355x",
    "AMD Instinct MI355X 288GB HBM3e": "mi355x",
    "AMD MI300X-NPS1-SPX-192GB-750W": "mi300x",
    "H100 NVL Tensor Core GPU (PCIe)": "h100_nvl",
    "NVIDIA A100 - PCIe - 80 GB": "a100_pcie_80gb",
    "NVIDIA A100-SXM4-80GB": "a100_sxm",
    "NVIDIA B200-SXM-180GB": "b200_sxm",
    "NVIDIA Blackwell GPU (B200-SXM-180GB)": "b200_sxm",
    "NVIDIA Blackwell GPU (GB200)": "gb200",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "NVIDIA GH200 Grace Hopper Superchip 144GB": "gh200_144gb",
    "NVIDIA GH200 Grace Hopper Superchip 96GB": "gh200",
    "NVIDIA GeForce RTX 4090": "rtx_4090",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA H100-NVL-94GB": "h100_nvl",
    "NVIDIA H100-PCIe-80GB": "h100_pcie",
    "NVIDIA H100-SXM-80GB": "h100_sxm",
    "NVIDIA H100-SXM5-80GB": "h100_sxm",
    "NVIDIA H200-NVL-141GB": "h200_nvl",
    "NVIDIA H200-SXM-141GB": "h200_sxm",
    "NVIDIA H200-SXM5-141GB": "h200_sxm",
    "NVIDIA L40S": "l40s",
    "NVIDIA RTX A5000": "rtx_a5000",
    "RTX4090": "rtx_4090",
    "RTXPRO6000": "rtx_pro_6000",
    "a100-80gb": "a100_sxm",
    "a100_pcie": "a100_pcie_80gb",
    "gh200_480gb": "gh200",
    "h100-80gb": "h100_sxm",
    "rtx_pro_6000_server": "rtx_pro_6000",
}
"""Where a table's name of a GPU is not the catalog's."""


@functools.cache
def model_name(written: str) -> str:
    """Return the catalog's name of a model; a remark may follow.

    Raises:
        UnknownNameError: the catalog has no such model.

    >>> model_name("Qwen/Qwen3-235B-A22B-FP8"), model_name("llama2-70b-99.9")
    ('qwen3_235b', 'llama2_70b')
    """
    return load_model(_known(written)).name


@functools.cache
def is_model(written: str) -> bool:
    """Say whether the catalog has a model."""
    return CATALOG_MODELS.has(_known(written))


def _known(written: str) -> str:
    plain = REMARK.sub("", written)
    return MODELS.get(written, MODELS.get(plain, plain))


def gpu_name(written: str) -> str:
    """Return the catalog's name of a GPU, or the name as it is written.

    What follows in brackets, such as a number of boards, says nothing of the board.

    >>> gpu_name("AMD Instinct MI355X 288GB HBM3e (x87)")
    'mi355x'
    """
    return GPUS.get(written, GPUS.get(REMARK.sub("", written), written))


@functools.cache
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
