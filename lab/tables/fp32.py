"""fp32 under PyTorch: calls timed from the host, whole models, and profiles of kernels.

Calls: the tables `gpu_kernels/*.parquet`, whose column `split` says how shapes were chosen: `train`
shapes are spread over a range, `test` shapes are of layers of real models. Fits may use all shapes
of the first kind and half of the second; half of the other shapes if a class has no layer shapes.

Models: NeuSight's artefact (Lee et al., ASPLOS 2025), forward and backward of six transformers on
ten GPUs, and the answers of four predictors. Graphs are drawn from the shapes alone, as Hugging
Face's code runs them: BERT (Devlin et al., 2019), GPT-2 and GPT-3 (Radford et al., 2019; Brown et
al., 2020) and Switch (Fedus et al., 2021). Scores and probabilities are written to memory, GPT's
activation is a chain of eight pointwise kernels, and operands of batched products are copied into
the order of heads.

Profiles: Orion's artefact (Strati et al., EuroSys 2024), every kernel of a pass of ResNet-101 and
MobileNetV2 on a V100, without the gaps between kernels.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from lab.tables.records import declared, file_of, known_rows, records, warn_once
from lab.tables.rows import (
    Record,
    Rows,
    by_labels,
    joined,
    mixed_group_of,
    numbers,
    read_records,
    read_table,
    tidy,
    words,
)
from planning.calibrate import measurements
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import GPUS, read_toml
from simulators.evidence.lookup import BEST
from simulators.graphs.launches import DEPTHWISE, backward_launches, forward_launches
from simulators.graphs.price import Framework, PricedLaunches, price_launches, slowdown
from simulators.kernels.price import Level
from simulators.kernels.profile import Profile
from simulators.workload.graphs.families import draw
from simulators.workload.graphs.graph import Graph, Load, Sketch
from simulators.workload.graphs.transformers import (
    UnfusedTransformer,
    embed_tokens,
    opt_graph,
    per_head_shape,
)

FACTS = Record(read_toml(Path(__file__).with_suffix(".toml")))


SHAPE = {"linear": ("n", "k"), "bmm": ("m", "n", "k"), "conv": measurements.WINDOW}
"""Sizes that make up a shape; the batch and the rows of activations vary with the load."""

FAULTY = {("p4", "linear", "train")}  # in another clock state; see the cautions of the data set


def read_rows(reference: Path) -> list[Rows]:
    """Return the rows of GPUs with a data sheet, by GPU and operator class."""
    files = (reference / name for name in FACTS.tables)
    tables = (read_table(file, measurements.NEEDS) for file in files if file.is_file())
    parts = (part for table in tables for part in rows_of_table(table))
    return [rows for rows in joined(parts, lambda part: (part.gpu, part.kernel)) if len(rows)]


def rows_of_table(table: pa.Table, device: str = "") -> Iterator[Rows]:
    """Yield the rows of each GPU and operator class, and warn about rows that are left out.

    `device`: the GPU of all rows, in place of the column `gpu`.
    """
    for (name,), mine in [((device,), table)] if device else by_labels(table, "gpu"):
        if not device and not is_in_catalog(str(name)):
            warn_once(f"{name} has no data sheet, its rows are left out")
            continue
        gpu = device or catalog_name(str(name))
        labels = np.array(
            [measurements.CLASS_OF.get(op, "") for op in mine["op"].to_pylist()], np.str_
        )
        if np.any(labels == ""):
            warn_once(f"{name}: rows of unknown operators are left out")
        for label in np.unique(labels[labels != ""]):
            yield _rows(mine.filter(pa.array(labels == label)), gpu, str(label))


def catalog_name(measured: str) -> str:
    """Return the catalog's name for a GPU as PyTorch writes it.

    >>> catalog_name("P100-PCIE-16GB")
    'p100_pcie'

    Raises:
        UnknownNameError: the catalog has no such GPU.
    """
    name = measured.lower().replace("-", "_").replace(" ", "_")
    known = next((n for n in (name, re.sub(r"_\d+gb$", "", name)) if GPUS.has(n)), "")
    if not known:
        raise UnknownNameError("gpu", measured, GPUS.names())
    found = GPUS.find(known).stem
    return str(FACTS.twins.get(found, found))


def is_in_catalog(measured: str) -> bool:
    """Return whether the catalog has a GPU, as PyTorch writes it."""
    try:
        return bool(catalog_name(measured))
    except UnknownNameError:
        return False


def _rows(table: pa.Table, gpu: str, label: str) -> Rows:
    """Return one class of one GPU. A missing batch is 1; rows without a split are of layers."""
    names = measurements.SIZES.get(label, ("rows", "cols"))
    measurements.check_columns(
        table, (name for name in names if name != "batch"), f"a table of {label}"
    )
    there = numbers(table, (name for name in names if name in table.column_names))
    sizes = {name: there.get(name, np.ones(table.num_rows)) for name in names}
    has_split = "split" in table.column_names
    split = words(table, "split") if has_split else np.full(table.num_rows, "test")
    rows = tidy(
        sizes,
        numbers(table, ["latency_us"])["latency_us"] * 1e-6,
        mixed_group_of(sizes[name] for name in SHAPE.get(label, names)),
        gpu=gpu,
        kernel=label,
        dtype="fp32",
        from_layers=split == "test",
        operator_of=functools.partial(measurements.operator_of, label),
    )
    return rows.where(np.array([(gpu, label, str(s)) not in FAULTY for s in split], bool))


@dataclass(frozen=True, kw_only=True)
class TimedTransformer(UnfusedTransformer):
    """The shape of a transformer whose implementation is `code`: bert, gpt2, opt or switch."""

    code: str
    experts: int = 0
    expert_capacity: int = 0
    has_language_head: bool = True  # BERT: else a classifier of whole sequences


def unfused_graph(model: TimedTransformer, batch: int, length: int, tp: int = 1) -> Graph:
    """Return the graph of a whole model over `batch` sequences of `length` tokens.

    >>> sizes = {"layers": 2, "hidden": 8, "heads": 2, "ffn": 32, "vocab": 100}
    >>> bert = TimedTransformer(name="bert", code="bert", **sizes)
    >>> len([n for n in unfused_graph(bert, 2, 16).nodes if n.kind == "linear"])
    10
    """
    draw = {"bert": _bert, "gpt2": _gpt2, "opt": opt_graph, "switch": _switch}[model.code]
    return draw(model, batch, length, tp)


def _bert(model: TimedTransformer, batch: int, length: int, tp: int) -> Graph:
    g = Sketch(model.name)
    x = embed_tokens(g, model, batch, length, types=True)
    x = g.pointwise("dropout", g.norm(x))
    mask = g.input((batch, 1, 1, length), "mask")
    with g.layers(model.layers):
        q, k, v = (g.linear(x, model.attention_width // tp, name=n) for n in ("q", "k", "v"))
        scores = g.add(g.pointwise("scale", _scores(g, model, q, k, tp)), mask)
        seen = _weighted(g, model, g.pointwise("dropout", g.softmax(scores)), v, tp)
        out = g.pointwise("dropout", g.linear(seen, model.hidden, name="out"))
        y = g.norm(g.add(out, x))
        up = g.pointwise("gelu", g.linear(y, model.ffn // tp, name="up"))
        down = g.pointwise("dropout", g.linear(up, model.hidden, name="down"))
        x = g.norm(g.add(down, y))
    first = g.part(x, (batch, model.hidden))
    pooled = g.pointwise("tanh", g.linear(first, model.hidden, name="pooler"))
    g.linear(pooled, 2, name="classifier")
    if not model.has_language_head:
        return g.graph()
    y = g.norm(g.pointwise("gelu", g.linear(x, model.hidden, name="transform")))
    g.linear(y, model.vocab // tp, tied=True, name="lm_head")
    return g.graph()


def _gpt2(model: TimedTransformer, batch: int, length: int, tp: int) -> Graph:
    g = Sketch(model.name)
    x = g.pointwise("dropout", embed_tokens(g, model, batch, length))
    mask = g.input((1, 1, length, length), "mask")
    width = model.attention_width // tp
    with g.layers(model.layers):
        qkv = g.linear(g.norm(x), 3 * width, name="qkv")
        q, k, v = (g.part(qkv, (batch, length, width), name=n) for n in ("q", "k", "v"))
        scores = g.pointwise("mask", g.pointwise("scale", _scores(g, model, q, k, tp)), mask)
        seen = _weighted(g, model, g.pointwise("dropout", g.softmax(scores)), v, tp)
        x = g.add(g.pointwise("dropout", g.linear(seen, model.hidden, name="out")), x)
        up = _gelu_by_formula(g, g.linear(g.norm(x), model.ffn // tp, name="up"))
        x = g.add(g.pointwise("dropout", g.linear(up, model.hidden, name="down")), x)
    g.linear(g.norm(x), model.vocab // tp, bias=False, tied=True, name="lm_head")
    return g.graph()


def _switch(model: TimedTransformer, batch: int, length: int, tp: int) -> Graph:
    """Draw T5's encoder and decoder; every second feed-forward block has experts, one per token."""
    g = Sketch(model.name)
    ids = g.input((batch, length), "ids")
    table = (model.vocab // tp, model.hidden)
    bias = g.input((batch, model.heads // tp, length, length), "position_bias")
    x = g.pointwise("dropout", g.embedding(ids, table, name="tokens"))
    with g.layers(model.layers // 2, "encoder"):
        for sparse in (False, True):
            x = _t5_attention(g, model, x, x, bias, tp)
            x = _t5_ffn(g, model, x, tp, sparse=sparse)
    memory = g.pointwise("dropout", _t5_norm(g, x))
    y = g.embedding(g.input((batch, length), "ids"), table, name="decoder_tokens")
    y = g.pointwise("dropout", y)
    with g.layers(model.layers // 2, "decoder"):
        for sparse in (False, True):
            y = _t5_attention(g, model, y, y, bias, tp)
            y = _t5_attention(g, model, y, memory, bias, tp)
            y = _t5_ffn(g, model, y, tp, sparse=sparse)
    y = g.pointwise("scale", g.pointwise("dropout", _t5_norm(g, y)))
    g.linear(y, model.vocab // tp, bias=False, tied=True, name="lm_head")
    return g.graph()


def _heads_of(g: Sketch, x: int, heads: int) -> int:
    part = g.part(x, per_head_shape(g, x, heads))
    return g.copy((part,), g.shape(part)) if g.shape(x)[0] > 1 else part


def _scores(g: Sketch, model: TimedTransformer, q: int, k: int, tp: int) -> int:
    queries, keys = (_heads_of(g, x, model.heads // tp) for x in (q, k))
    batch, heads, length, width = g.shape(keys)
    return g.matmul(queries, g.view(keys, (batch, heads, width, length)), name="scores")


def _weighted(g: Sketch, model: TimedTransformer, probabilities: int, v: int, tp: int) -> int:
    """Draw the weighted sum of values and the copy back to one row per token."""
    seen = g.matmul(probabilities, _heads_of(g, v, model.heads // tp), name="weighted")
    batch, heads, length, width = g.shape(seen)
    return g.copy((seen,), (batch, length, heads * width))


def _gelu_by_formula(g: Sketch, x: int) -> int:
    half = g.pointwise("scale", x)
    cubed = g.pointwise("scale", g.pointwise("pow", x))
    inner = g.pointwise("scale", g.add(x, cubed))
    return g.mul(half, g.pointwise("shift", g.pointwise("tanh", inner)))


def _t5_norm(g: Sketch, x: int) -> int:
    """Draw T5's RMS norm: square, mean, reciprocal root, two products."""
    root = g.pointwise("rsqrt", g.mean(g.pointwise("pow", x), (*g.shape(x)[:-1], 1)))
    weight = g.node("weight", (), (g.shape(x)[-1],), weights=((g.shape(x)[-1],),))
    return g.mul(g.mul(x, root), weight)


def _t5_attention(
    g: Sketch, model: TimedTransformer, x: int, memory: int, bias: int, tp: int
) -> int:
    y = _t5_norm(g, x)
    width = model.attention_width // tp
    source = y if memory == x else memory
    q = g.linear(y, width, bias=False, name="q")
    k, v = (g.linear(source, width, bias=False, name=n) for n in ("k", "v"))
    scores = g.add(_scores(g, model, q, k, tp), bias)
    seen = _weighted(g, model, g.pointwise("dropout", g.softmax(scores)), v, tp)
    out = g.linear(seen, model.hidden, bias=False, name="out")
    return g.add(x, g.pointwise("dropout", out))


def _t5_ffn(g: Sketch, model: TimedTransformer, x: int, tp: int, *, sparse: bool) -> int:
    y = _t5_norm(g, x)
    if sparse:
        y = _switch_experts(g, model, y, tp)
    else:
        up = g.pointwise("dropout", g.relu(g.linear(y, model.ffn // tp, bias=False, name="up")))
        y = g.linear(up, model.hidden, bias=False, name="down")
    return g.add(x, g.pointwise("dropout", y))


def _switch_experts(g: Sketch, model: TimedTransformer, y: int, tp: int) -> int:
    """Draw a router, and each expert over as many rows as its capacity."""
    batch, length, hidden = g.shape(y)
    probabilities = g.softmax(g.linear(y, model.experts, bias=False, name="router"))
    joined = g.copy((y,), g.shape(y), name="next_states")
    rows = batch * min(length, model.expert_capacity)
    for _ in range(model.experts):
        mine = g.node("gather", (y,), (rows, hidden), waits=True)
        up = g.relu(g.linear(mine, model.ffn // tp, bias=False, name="expert_up"))
        down = g.linear(g.pointwise("dropout", up), hidden, bias=False, name="expert_down")
        joined = g.node("scatter", (joined, down), (batch, length, hidden), waits=True)
    return g.mul(joined, g.part(probabilities, (batch, length, 1)))


MODEL_TIMES, SHAPES = "gpu_models/labels.parquet", "gpu_models/models.json"


@dataclass(frozen=True, kw_only=True)
class GraphCase:
    """One measured configuration."""

    gpu: Gpu
    graph_name: str  # model, mode, length and batch, which are held out together
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
    peers_s: dict[str, float]  # by predictor with a prediction

    def is_allocating(self, launches: float) -> bool:
        """Return whether a forward pass of so many launches shows fresh allocations."""
        is_long = self.backward_s > 0 and self.forward_s > FACTS.allocator_share * self.backward_s
        return is_long and self.forward_s > FACTS.longest_launch_s * launches

    def graph(self, reference: Path, batch: int = 0, tp: int = 1) -> Graph:
        """Return the model as one GPU runs it."""
        shape = _model(reference, self.model, language_head=self.is_training)
        return unfused_graph(shape, batch or self.batch, self.length, tp)

    def price(self, reference: Path, level: str | Profile = BEST) -> PricedLaunches:
        """Return the kernels of the whole model on one GPU."""
        graph = self.graph(reference)
        options: dict[str, bool] = {"training": self.is_training, "fused": self.is_fused}
        return price_graph(graph, self.gpu, dtype="fp32", level=level, **options)


def read_cases(reference: Path) -> list[GraphCase]:
    """Return every row of the table whose model and GPU are known."""
    rows = read_records(reference / MODEL_TIMES)
    known = known_rows(rows, MODEL_TIMES, gpu=is_in_catalog, model=FACTS.codes.__contains__)
    return [_case(row) for row in known]


def _case(row: Record) -> GraphCase:
    peers_ms = {peer: row[f"{peer}_predicted_ms"] for peer in FACTS.peers}
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
        peers_s={peer: 1e-3 * value for peer, value in peers_ms.items() if value},
    )


@functools.lru_cache(maxsize=16)
def _model(reference: Path, name: str, *, language_head: bool) -> TimedTransformer:
    file = reference / SHAPES
    if not file.is_file():
        raise UserError(f"{file}: there is no such file")
    shape = json.loads(file.read_text(encoding="utf-8"))["models"][name]
    sizes = {key: shape[key] for key in ("layers", "hidden", "heads", "ffn", "vocab")}
    more = {key: shape.get(key, 0) for key in ("head_dim", "experts", "expert_capacity")}
    return TimedTransformer(
        name=name,
        code=FACTS.codes[name],
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


PROFILES, PROFILED_GPU = file_of("orion"), "v100_sxm"  # rented where only this form is offered
FITTED = "mobilenetv2_32_fb1"  # sets the time of depthwise kernels; all others are held out


@dataclass(frozen=True)
class WorkloadProfile:
    """A profiled workload: measured kernels by name and duration, and kernels of the graph."""

    name: str
    kernels: tuple[tuple[str, float], ...]
    priced: PricedLaunches

    @property
    def measured_s(self) -> float:
        """Seconds of all measured kernels."""
        return sum(seconds for _, seconds in self.kernels)

    def predicted_s(self, framework: Framework) -> float:
        """Return the seconds of the graph's kernels."""
        factors = slowdown(self.priced, load_gpu(PROFILED_GPU), framework)
        return float(np.sum(self.priced.seconds * factors))


def read_profiles(reference: Path) -> list[WorkloadProfile]:
    """Return the profiles of the table that a graph can be drawn for."""
    workloads = declared("orion")["workloads"]
    seen: dict[str, list[tuple[str, float]]] = {}
    for row in records(reference, "orion", workload=list(workloads)):
        seen.setdefault(row.workload, []).append((row.kernel, row.seconds))
    found = []
    for name, (model, batch, training) in workloads.items():
        if name in seen:
            graph = draw(model, Load(batch=batch, training=training))
            priced = price_graph(graph, load_gpu(PROFILED_GPU), dtype="fp32", training=training)
            found.append(WorkloadProfile(name, tuple(seen[name]), priced))
    return found


def depthwise_paces(profiles: list[WorkloadProfile]) -> dict[str, float]:
    """Return seconds of depthwise kernels relative to streaming their inputs and outputs.

    Raises:
        UserError: the profile that is fitted to is missing.
    """
    one = next((profile for profile in profiles if profile.name == FITTED), None)
    if one is None:
        raise UserError(f"{PROFILES} lacks {FITTED}, which sets the time of depthwise kernels")
    paces = np.array([launch.pace for launch in one.priced.launches])
    return {
        pace: sum(s for kernel, s in one.kernels if f"conv_depthwise2d_{name}" in kernel)
        / float(np.sum(one.priced.seconds[paces == pace]))
        for pace, name in zip(DEPTHWISE, FACTS.depthwise_kernels, strict=True)
    }
