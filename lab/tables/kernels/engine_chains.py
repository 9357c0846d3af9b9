"""Measured chains of an engine's layers: LLMServingSim's profiles, as in `tensor_layers.py`.

Norms have their residual sum inside, and rotary embeddings leave the write to the cache out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.tables.kernels.engine_products import FRAMEWORK, GPUS, LAYERS, MODELS, by_layer
from lab.tables.kernels.fp32_kernels import fraction
from simulators.catalog.model import LanguageModel, load_model
from simulators.kernels.families.cache_resident import chain_of
from simulators.workload.operators import Elementwise

Floats = NDArray[np.float64]

NAMES = {"layernorm": "ffn_norm", "act_fn": "ffn_activation", "rotary_emb": "rotary"}
"""Layers of the table, by the name of the operator they are."""

STREAMS = {"ffn_norm": (2.0, 2.0), "ffn_activation": (2.0, 1.0), "rotary": (1.0, 1.0)}
"""Numbers read and written by element."""

HELD_OUT = 0.5
"""Half of all sizes are never fitted to."""


@dataclass(frozen=True)
class ChainRows:
    """Rows of one kernel on one GPU, all models together."""

    gpu: str
    name: str
    elements: Floats
    seconds: Floats

    @property
    def label(self) -> str:
        """The calibration's name of the kernel."""
        return f"{FRAMEWORK}.{chain_of(self.name)}.bf16"

    @property
    def operator(self) -> Elementwise:
        """Rows as one operator whose size is a column."""
        reads, writes = STREAMS[self.name]
        return Elementwise(
            name=self.name, elements=self.elements, reads=reads, writes=writes, dtype="bf16"
        )

    @property
    def place(self) -> Floats:
        """A number in [0, 1) per size that looks drawn."""
        return fraction(self.elements.astype(np.uint64))

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Rows of sizes no fit may see."""
        return np.asarray(self.place >= HELD_OUT)

    def where(self, keep: NDArray[np.bool_]) -> ChainRows:
        """Return some of the rows."""
        return replace(self, elements=self.elements[keep], seconds=self.seconds[keep])


def read_chain_rows(reference: Path, gpu: str) -> list[ChainRows]:
    """Return the rows of one GPU by kernel; empty without the table."""
    if gpu not in GPUS or not (reference / LAYERS).is_file():
        return []
    found: dict[str, list[NDArray[np.float64]]] = {}
    for rows in by_layer(reference / LAYERS, GPUS[gpu]):
        model, tp, layer = (rows[name][0].as_py() for name in ("model", "tp", "layer"))
        if layer in NAMES:
            width = _width(layer, load_model(MODELS[model]), tp)
            tokens, time_us = (rows[n].to_numpy().astype(np.float64) for n in ("tokens", "time_us"))
            found.setdefault(NAMES[layer], []).append(np.stack([tokens * width, time_us * 1e-6]))
    return [ChainRows(gpu, name, *np.concatenate(parts, axis=1)) for name, parts in found.items()]


def _width(layer: str, model: LanguageModel, tp: int) -> float:
    """Return elements per token on one of `tp` GPUs."""
    if layer == "layernorm":
        return float(model.hidden)
    if layer == "act_fn":
        return model.ffn / tp
    return (model.heads + model.kv_heads) * model.head_dim / tp
