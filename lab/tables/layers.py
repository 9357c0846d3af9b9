"""One layer's operators as timed on GPUs, to be added up and compared with ours.

VIDUR's tables (Agrawal et al., 2024) have the medians of every linear operator of one layer of one
rank, by model, tensor parallel degree and number of tokens. They ran vLLM's kernels of their time,
which leave residual sums, norms and rotary embeddings apart, in loops that keep a GPU busy.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.tables.catalog_names import replica_of
from lab.tables.rows import Record, read_records
from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.operator_prices import compute_rows
from simulators.composition.replica import Effects, Replica
from simulators.composition.throttling import throttled_s
from simulators.core.jit import Floats
from simulators.workload.llm.parallelism import Parallelism, Stage
from simulators.workload.llm.shard import Shard
from simulators.workload.llm.transformer import token_operators
from simulators.workload.operators import Collective

LINEAR = "llm_ops/linear_ops.parquet"

GPUS = {"a100": "a100_sxm", "h100": "h100_sxm", "a40": "a40"}
"""GPUs of the table's first source; its other sources time launches too, or reduced models."""

SOURCE = "vidur"
HELD_OUT = ("meta-llama/Llama-2-70b-hf", "meta-llama/Meta-Llama-3-70B")
"""Models kept out of every fit."""

TIMED = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
"""Columns of a layer; the residual sum of which there are two is timed once."""

TWICE = ("add",)
ABSENT = ("cache_write",)
"""Of our operators what the tables have in attention."""

KERNEL_BY_KERNEL = Effects(fusion=False, clocks=False)
ONE_LAYER = Stage(dense_layers=1, expert_layers=0, has_embedding=False, has_head=False)


@dataclass(frozen=True)
class LayerRows:
    """Measured layers of a model on a rank of a GPU, by number of tokens."""

    replica: Replica
    model: str  # its name in the table
    tokens: Floats
    measured_s: Floats

    @property
    def is_test(self) -> bool:
        """Whether the model is kept out of fits."""
        return self.model in HELD_OUT

    @functools.cached_property
    def work_s(self) -> tuple[Floats, Floats]:
        """Return our sum without lowered clocks, and the least time of matrix units."""
        replica = self.replica
        shard = Shard(replica.model, replica.cut, ONE_LAYER, replica.dtype)
        operators = token_operators(shard, self.tokens)
        rows = compute_rows(operators, replica, "tokens")
        kept = [row for row in rows if row.operator.name not in ABSENT]
        matrix_s = np.zeros_like(self.tokens)
        for row in kept:
            assert not isinstance(row.operator, Collective)
            matrix_s = matrix_s + throttled_s(row.operator, replica.gpu, 1.0)
        kernels = [np.broadcast_to(row.seconds, self.tokens.shape) for row in kept]
        return np.sum(kernels, axis=0), matrix_s

    def predicted_s(self, throttling: float) -> Floats:
        """Return our sum, with a share of `throttling.slowdown`."""
        kernels_s, matrix_s = self.work_s
        return kernels_s + throttling * matrix_s


def layer_rows(reference: Path) -> list[LayerRows]:
    """Return the measured layers of every GPU, model and degree."""
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for row in read_records(reference / LINEAR, source=SOURCE, gpu=list(GPUS)):
        if all(row[f"{name}_ms"] is not None for name in TIMED):
            groups.setdefault((row.gpu, row.model, int(row.tp)), []).append(row)
    found = []
    for (gpu, model, tp), rows in groups.items():
        sums = [sum(row[f"{name}_ms"] * (1 + (name in TWICE)) for name in TIMED) for row in rows]
        replica = replica_of(
            _model(rows[0]),
            GPUS[gpu],
            cut=Parallelism(tp=tp),
            framework="vllm",
            effects=KERNEL_BY_KERNEL,
        )
        tokens = np.array([row.num_tokens for row in rows], np.float64)
        found.append(LayerRows(replica, model, tokens, np.array(sums, np.float64) * 1e-3))
    return found


def _model(row: Record) -> LanguageModel:
    """Return a model of one layer with the widths of a row."""
    return replace(
        load_model("llama2_7b"),
        name=row.model,
        layers=1,
        hidden=int(row.n_embd),
        heads=int(row.n_q_head),
        kv_heads=int(row.n_kv_head),
        head_dim=int(row.n_embd) // int(row.n_q_head),
        ffn=int(row.mlp_hidden),
        vocab=int(row.vocab_size),
    )
