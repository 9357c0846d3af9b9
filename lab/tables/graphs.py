"""Whole models timed under PyTorch in fp32, as graphs beside what was measured.

The table is that of NeuSight's artefact (Lee et al., ASPLOS 2025): forward and backward of six
transformers on ten GPUs, and what four predictors said. Graphs are drawn from the models' shapes
alone; the table's own operator lists are used to test them, not to price them.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from lab.tables.kernels.fp32_kernels import catalog_name, is_in_catalog
from lab.tables.kernels.unfused_transformers import TimedTransformer, unfused_graph
from lab.tables.records import known_rows
from lab.tables.rows import Record, read_records
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.errors import UserError
from simulators.evidence.lookup import BEST
from simulators.graphs.backward import backward_launches
from simulators.graphs.forward import forward_launches
from simulators.graphs.timeline import PricedLaunches, price_launches
from simulators.kernels.price import Level
from simulators.kernels.profile import Profile
from simulators.workload.graphs.graph import Graph

TABLE = "gpu_models/labels.parquet"
SHAPES = "gpu_models/models.json"

CODES = {
    "bert-large": "bert",
    "gpt2-large": "gpt2",
    "gpt3-xl-3072": "gpt2",
    "gpt3-2.7b": "gpt2",
    "opt-1.3b": "opt",
    "switch-xl-4e": "switch",
}
"""The models of the table, by whose code ran them."""

PEERS = ("neusight", "roofline", "habitat", "li")

ALLOCATOR_SHARE, LONGEST_LAUNCH_S = 0.62, 1e-4
"""A backward pass has twice the products of its forward pass. Where the forward pass takes more
than this part of it, and longer than hosts need to launch it, the run allocated its memory afresh.
The rule reads no prediction."""


@dataclass(frozen=True, kw_only=True)
class GraphCase:
    """One measured configuration."""

    gpu: Gpu
    graph_name: str  # model, mode, length, batch: held out together
    model: str
    is_training: bool
    is_fused: bool
    parallelism: str  # none, DP4, TP4, PP4
    gpus: int
    batch: int
    length: int
    has_graph: bool  # whether the table has its operators
    forward_s: float
    backward_s: float
    total_s: float
    peers_s: dict[str, float]  # by predictor, where it has a prediction

    def is_allocating(self, launches: float) -> bool:
        """Return whether a forward pass of so many launches shows fresh allocations."""
        is_long = self.backward_s > 0 and self.forward_s > ALLOCATOR_SHARE * self.backward_s
        return is_long and self.forward_s > LONGEST_LAUNCH_S * launches

    def graph(self, reference: Path, batch: int = 0, tp: int = 1) -> Graph:
        """Return the model as one GPU runs it."""
        shape = _model(reference, self.model, language_head=self.is_training)
        return unfused_graph(shape, batch or self.batch, self.length, tp)

    def price(self, reference: Path, level: str | Profile = BEST) -> PricedLaunches:
        """Return the kernels of the whole model on one GPU."""
        training, fused = self.is_training, self.is_fused
        graph = self.graph(reference)
        return price_graph(
            graph, self.gpu, dtype="fp32", training=training, fused=fused, level=level
        )


def read_cases(reference: Path) -> list[GraphCase]:
    """Return every row of the table whose model and GPU are known."""
    rows = read_records(reference / TABLE)
    known = known_rows(rows, TABLE, gpu=is_in_catalog, model=CODES.__contains__)
    return [_case(row) for row in known]


def _case(row: Record) -> GraphCase:
    found = {peer: row[f"{peer}_predicted_ms"] for peer in PEERS}
    return GraphCase(
        gpu=load_gpu(catalog_name(row.gpu)),
        graph_name=f"{row.model} {row.mode} {row.seq_len} x {row.batch}",
        model=row.model,
        is_training=row.mode == "training",
        is_fused=bool(row.fused),
        parallelism=row.parallelism,
        gpus=int(row.n_gpus),
        batch=int(row.batch),
        length=int(row.seq_len),
        has_graph=row.num_layers is not None,
        forward_s=1e-3 * (row.measured_forward_ms or 0.0),
        backward_s=1e-3 * (row.measured_backward_ms or 0.0),
        total_s=1e-3 * row.measured_ms,
        peers_s={peer: 1e-3 * value for peer, value in found.items() if value},
    )


@functools.lru_cache(maxsize=16)
def _model(reference: Path, name: str, *, language_head: bool) -> TimedTransformer:
    """Return the shape of one of the table's models."""
    file = reference / SHAPES
    if not file.is_file():
        raise UserError(f"{file}: there is no such file")
    shape = json.loads(file.read_text(encoding="utf-8"))["models"][name]
    sizes = {key: shape[key] for key in ("layers", "hidden", "heads", "ffn", "vocab")}
    more = {key: shape.get(key, 0) for key in ("head_dim", "experts", "expert_capacity")}
    return TimedTransformer(
        name=name,
        code=CODES[name],
        max_context=shape["seq_len_measured"],
        has_language_head=language_head,
        **sizes,
        **more,
    )


def price_graph(
    graph: Graph,
    gpu: Gpu,
    *,
    dtype: str,
    training: bool = False,
    fused: bool = False,
    level: Level = BEST,
) -> PricedLaunches:
    """Return the kernels of a pass with their times, before what a framework adds.

    Raises:
        UserError: the GPU has no such precision.
    """
    launches = forward_launches(graph, dtype, training=training, fused=fused)
    if training:
        launches += backward_launches(graph, dtype)
    return price_launches(launches, gpu, level)
