"""Shapes of models that published comparisons ran and the catalog lacks, by the tables' names."""

from __future__ import annotations

from collections.abc import Mapping

from lab.tables.catalog_names import model_name
from simulators.catalog.model import LanguageModel, load_model

LLAMA_33B = LanguageModel(
    name="llama_33b",
    layers=60,
    hidden=6656,
    heads=52,
    kv_heads=52,
    head_dim=128,
    ffn=17_920,
    vocab=32_000,
    max_context=2048,
    source="Touvron et al., LLaMA (2023), table 2, and its release",
)
LLAMA_65B = LanguageModel(
    name="llama_65b",
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=64,
    head_dim=128,
    ffn=22_016,
    vocab=32_000,
    max_context=2048,
    source="Touvron et al., LLaMA (2023), table 2, and its release",
)
VICUNA_68M = LanguageModel(
    name="vicuna_68m",
    layers=2,
    hidden=768,
    heads=12,
    kv_heads=12,
    head_dim=64,
    ffn=3072,
    vocab=32_000,
    max_context=2048,
    source="double7/vicuna-68m config.json",
)
CODELLAMA_34B = LanguageModel(
    name="codellama_34b",
    layers=48,
    hidden=8192,
    heads=64,
    kv_heads=8,
    head_dim=128,
    ffn=22_016,
    vocab=32_000,
    max_context=16_384,
    source="codellama/CodeLlama-34b-hf config.json",
)
OPENLLAMA_3B = LanguageModel(
    name="openllama_3b",
    layers=26,
    hidden=3200,
    heads=32,
    kv_heads=32,
    head_dim=100,
    ffn=8640,
    vocab=32_000,
    max_context=2048,
    source="openlm-research/open_llama_3b config.json",
)
TINYLLAMA = LanguageModel(
    name="tinyllama_1_1b",
    layers=22,
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_dim=64,
    ffn=5632,
    vocab=32_000,
    max_context=2048,
    source="Zhang et al., TinyLlama (2024), table 2",
)

BY_NAME: Mapping[str, LanguageModel] = {
    "Vicuna-33B-v1.3": LLAMA_33B,
    "Llama 33B": LLAMA_33B,
    "llama-30b": LLAMA_33B,
    "llama-65b": LLAMA_65B,
    "CodeLlama 34B": CODELLAMA_34B,
    "OpenLlama 3B": OPENLLAMA_3B,
    "TinyLlama 1.1B": TINYLLAMA,
}
"""Vicuna 1.3 is LLaMA, fine-tuned."""

SAME_SHAPE = {
    "Vicuna-7B-v1.3": "llama2_7b",
    "Vicuna-13B-v1.3": "llama2_13b",
    "Llama 7B": "llama2_7b",
    "llama-7b": "llama2_7b",
    "llama-13b": "llama2_13b",
    "Llama2 7B": "llama2_7b",
    "Llama2 70B": "llama2_70b",
}
"""LLaMA and Llama 2 differ in their data and context, not in the shape of 7B and 13B."""


def model_of(written: str) -> LanguageModel:
    """Return the shape of a model that a table names.

    Raises:
        UnknownNameError: neither this page nor the catalog has it.

    >>> model_of("Vicuna-33B-v1.3").layers, model_of("Vicuna-7B-v1.3").layers
    (60, 32)
    """
    if written in BY_NAME:
        return BY_NAME[written]
    return load_model(model_name(SAME_SHAPE.get(written, written)))
