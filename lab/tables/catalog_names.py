"""Names of models and GPUs in measured tables (`names.toml`), as the catalog's names."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, LanguageModel, load_model
from simulators.composition.replica import Replica
from simulators.core.folder import GPUS as CATALOG
from simulators.core.folder import MODELS as CATALOG_MODELS
from simulators.core.folder import read_toml

NAMES = read_toml(Path(__file__).with_name("names.toml"))
GPUS, MODELS = NAMES["gpus"], NAMES["models"]

REMARK = re.compile(r"( \(.*\)|-99(\.9)?|-edge|_lora)$")
"""What tables add to a model's name: a variant in brackets, the kind of an MLPerf benchmark."""


@functools.cache
def model_name(written: str) -> str:
    """Return the catalog's name of a model.

    Raises:
        UnknownNameError: the catalog has no such model.

    >>> model_name("Qwen/Qwen3-235B-A22B-FP8"), model_name("llama2-70b-99.9")
    ('qwen3_235b', 'llama2_70b')
    """
    return load_model(_known(written)).name


@functools.cache
def is_model(written: str) -> bool:
    """Return whether the catalog has a model."""
    return CATALOG_MODELS.has(_known(written))


def _known(written: str) -> str:
    plain = REMARK.sub("", written)
    return str(MODELS.get(written, MODELS.get(plain, plain)))


def model_of(written: str) -> LanguageModel:
    """Return the shape of a model that may be missing in the catalog.

    Raises:
        UnknownNameError: neither `names.toml` nor the catalog has it.

    >>> model_of("Vicuna-33B-v1.3").layers, model_of("Vicuna-7B-v1.3").layers
    (60, 32)
    """
    shape = NAMES["shapes"].get(written, written)
    return extra_model(shape) if shape.endswith(".toml") else load_model(model_name(shape))


def extra_model(file: str) -> LanguageModel:
    """Return the model described by a file of `models/`."""
    return load_model(str(Path(__file__).parent / "models" / file))


def gpu_name(written: str) -> str:
    """Return the catalog's name of a GPU, or the written name where the catalog has none.

    >>> gpu_name("AMD Instinct MI355X 288GB HBM3e (x87)")
    'mi355x'
    """
    return str(GPUS.get(written, GPUS.get(REMARK.sub("", written), written)))


@functools.cache
def is_gpu(written: str) -> bool:
    """Return whether the catalog has a GPU."""
    return CATALOG.has(gpu_name(written))


def replica_of(model: str | LanguageModel, gpu: str, **more: Any) -> Replica:
    """Return a replica of a model on GPUs in the nodes that they are sold in."""
    known, sheet = load_model(model) if isinstance(model, str) else model, load_gpu(gpu)
    return Replica(model=known, gpu=sheet, cluster=cluster_for("auto", sheet), **more)


def four_bit_experts(model: str, gpu: str) -> str:
    """Return the precision of a mixture whose experts alone have 4-bit weights.

    Engines multiply experts published in MXFP4 by 8-bit activations.
    """
    if "fp4" not in load_gpu(gpu).peak_flops:
        return "bf16+w4a16"
    return "bf16+w4a8" if load_model(model).published_experts == MXFP4 else "bf16+fp4"
