"""Pointwise chains of an engine's layers, as timed inside it: see `engine_products.py`.

Norms have their residual sum inside, and rotary embeddings leave the write to the cache out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.tables.kernels.engine_products import FRAMEWORK, LAYERS, by_layer
from lab.tables.rows import Rows, Sizes, group_of, joined, numbers, tidy
from simulators.catalog.model import LanguageModel
from simulators.kernels.families.pointwise import chain_of
from simulators.workload.operators import Elementwise

NAMES = {"layernorm": "ffn_norm", "act_fn": "ffn_activation", "rotary_emb": "rotary"}
"""Layers of the table, by the name of the operator they are."""

STREAMS = {"ffn_norm": (2.0, 2.0), "ffn_activation": (2.0, 1.0), "rotary": (1.0, 1.0)}
"""Numbers read and written by element."""


def read_chain_rows(reference: Path, gpu: str) -> list[Rows]:
    """Return the rows of one GPU by kernel, all models together; empty without the table."""
    return joined(_layers(reference, gpu), lambda rows: rows.kernel)


def _layers(reference: Path, gpu: str) -> Iterator[Rows]:
    """Yield the rows of each layer of each model."""
    for layer, model, tp, rows in by_layer(reference / LAYERS, gpu):
        if layer in NAMES:
            tokens, time_us = numbers(rows, ("tokens", "time_us")).values()
            elements = tokens * _width(layer, model, tp)
            yield tidy(
                {"elements": elements}, time_us * 1e-6, group_of([elements]), gpu=gpu,
                framework=FRAMEWORK, kernel=chain_of(NAMES[layer]), dtype="bf16",
                make=functools.partial(_chain, NAMES[layer]),
            )  # fmt: skip


def _chain(name: str, sizes: Sizes) -> Elementwise:
    reads, writes = STREAMS[name]
    return Elementwise(
        name=name, elements=np.asarray(sizes["elements"]), reads=reads, writes=writes, dtype="bf16"
    )


def _width(layer: str, model: LanguageModel, tp: int) -> float:
    """Return elements per token on one of `tp` GPUs."""
    if layer == "layernorm":
        return float(model.hidden)
    if layer == "act_fn":
        return model.ffn / tp
    return (model.heads + model.kv_heads) * model.head_dim / tp
