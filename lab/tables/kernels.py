"""Measured kernels as rows: products, attention, experts, engine layers and auxiliaries.

`kernels.toml` names tables and columns and says which rows are left out. A shape falls wholly on
one side of the split, whatever its framework or GPU.

Attention: `num_heads` are those of one GPU; a decode step attends to `isl + step` keys; a window of
`w` keys limits them to `w`, and 0 means no window. Experts were timed as a whole layer: both
products, the activation between them, routing and gathering. Of products, a weight matrix (n, k)
was timed with tens of row counts that lie close together, so a hash of (n, k) decides on which side
of the split all its rows fall.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lab.tables.rows import (
    LOWER_QUARTER,
    Floats,
    Groups,
    Record,
    Rows,
    Sizes,
    by_labels,
    chosen_rows,
    computed,
    evaluated,
    first,
    group_of,
    is_host_timed,
    joined,
    metered,
    numbers,
    read_frame,
    read_table,
    tidy,
)
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.replica import FRAMEWORKS
from simulators.core.folder import read_toml
from simulators.kernels.corrections import LATENT_WIDTH
from simulators.kernels.families.attention import LATENT_DECODE_DIM, LATENT_PREFILL_DIM
from simulators.kernels.families.auxiliary_kernels import Auxiliary, kernel_of
from simulators.kernels.families.experts import ExpertSizes
from simulators.kernels.families.streaming import chain_of
from simulators.kernels.levels import MEASURED
from simulators.kernels.price import roofline_s
from simulators.workload import operators

FACTS = {
    name: Record(facts) for name, facts in read_toml(Path(__file__).with_suffix(".toml")).items()
}
FUSED, LAYERS, SERIES = FACTS["fused"], FACTS["expert_layers"], FACTS["chunks"]
TENSOR, ENGINE, AUXILIARY = (FACTS[name] for name in ("tensor", "engine_layers", "auxiliary"))
STATES = FACTS["states"]
STATE_SIZES = AUXILIARY.sizes | {"kda": STATES.kda}
FOLDER: str = FUSED.folder
GPUS, NARROW = tuple(FUSED.gpus), tuple(FUSED.narrow)
NAMED: Mapping[str, str] = FUSED.gpu_names
TABLES: Mapping[str, str] = FUSED.tables
LEAST_ROWS: int = FUSED.least_rows
LATENT, ATTENTION, EXPERTS = (tuple(FUSED.sizes[k]) for k in ("latent", "attention", "experts"))
SHAPE = {"mla_prefill": LATENT, "mla_decode": LATENT, "experts": EXPERTS}

PRODUCERS = (*FRAMEWORKS, "pytorch")  # frameworks whose products the table holds
KERNELS = {
    ("vllm", "fp8"): ["CutlassFP8ScaledMMLinearKernel"],
    ("vllm", "fp8_block"): ["DeepGemmFp8BlockScaledMMKernel", "FlashInferFp8BlockScaledMMKernel"],
}
"""The kernels to use where a table mixes several. In blocks, CUTLASS runs only matrices whose sides
are no multiples of 64 (n) and 128 (k), which models do not have."""

ROW_COLUMNS = {ENGINE.layers: "tokens", ENGINE.heads: "sequences"}  # of products, by table
LAYER_LABELS: dict[str, Any] = {"framework": "vllm", "dtype": "bf16"}
PHASES = {"context": "prefill", "generation": "decode", "": ""}

Make = Callable[[Sizes], Auxiliary]


def read_measured(reference: Path, gpu: str, kernel: str) -> list[Rows]:
    """Return the rows of one GPU by framework and precisions, each of its most used kernel.

    Tables of attention that timed the host are left out; experts are layers of several kernels.
    """
    is_layer = kernel == "experts"
    least_rows = FUSED.least_expert_rows if is_layer else LEAST_ROWS
    return [
        rows
        for name in tables_of(kernel)
        for table in existing(reference / name, gpu=NAMED.get(gpu, gpu))
        for rows in measured_in(table, gpu, kernel, least_rows)
        if is_layer or not is_host_timed(rows)
    ]


def existing(file: Path, needs: Sequence[str] = (), /, **wanted: Any) -> Iterator[pa.Table]:
    """Yield a table as `read_table` reads it; nothing without the file."""
    if file.is_file():
        yield read_table(file, needs, **wanted)


def tables_of(kernel: str) -> list[str]:
    """Return the tables that have rows of a kernel."""
    names = (TABLES.get(kernel, kernel), *FUSED.more_tables.get(kernel, ()))
    return [f"{FOLDER}/{name}.parquet" for name in names]


def measured_in(table: pa.Table, gpu: str, kernel: str, least_rows: int) -> list[Rows]:
    """Return a table's rows by framework and precisions, each of its most used kernel.

    Kernels among which an engine chooses by the layout of a layer count as one.

    Args:
        table: rows of one GPU and kernel, with the columns of its reference table.
        gpu: name of the data sheet.
        kernel: prefill, decode, mla_prefill, mla_decode or experts.
        least_rows: kernels with fewer rows are left out.
    """
    labels = [name for name in FUSED.labels if name in table.column_names]
    found: dict[tuple[str, str], Rows] = {}
    for key, rows in sorted(by_labels(table, *labels), key=lambda group: "|".join(group[0])):
        label = dict(zip(labels, key, strict=True))
        formats = [label[name] for name in FUSED.formats if name in label]
        if rows.num_rows < least_rows or not set(formats) <= set(FUSED.dtypes):
            continue
        dtypes = "_".join(FUSED.dtypes[name] for name in formats)
        spread = label.get("distribution", "")
        variant = "" if spread == "balanced" else spread
        part = replace(kernel_rows(rows, kernel, gpu, label["framework"], dtypes), variant=variant)
        before = found.get((part.name, variant))
        if before is not None and [gpu, part.framework, part.version, dtypes] in FUSED.dispatched:
            [part] = joined([before, part], lambda rows: (rows.name, rows.version))
        if before is None or len(before) < len(part):
            found[part.name, variant] = part
    return list(found.values())


def kernel_rows(table: pa.Table, kernel: str, gpu: str, framework: str, dtypes: str) -> Rows:
    """Return the rows of a table of one GPU, framework, kernel and formats."""
    columns = numbers(table, (*SHAPE.get(kernel, ATTENTION), "latency_us"))
    seconds = columns.pop("latency_us") * 1e-6
    labels = {"gpu": gpu, "framework": framework, "version": first(table, "version")}
    return timed(columns, seconds, kernel, dtypes, **labels, **metered(table))


def timed(sizes: Sizes, seconds: Floats, kernel: str, dtypes: str, **more: Any) -> Rows:
    """Return rows of attention or of experts; `more` are other labels."""
    if kernel != "experts":
        more["operator_of"] = functools.partial(attention_of, kernel, dtypes)
    group = group_of(sizes.values())
    return tidy(sizes, seconds, group, kernel=kernel, dtype=dtypes, **more)


def attention_of(kernel: str, dtypes: str, s: Sizes) -> operators.Attention:
    """Return the attention that was timed, as columns."""
    dtype, kv_dtype = dtypes.split("_")
    requests, heads = s["batch_size"], s["num_heads"]
    nothing = heads * 0.0
    window = s.get("window_size", nothing)
    seen = np.where(window > 0.0, window, np.inf)
    decode, latent = kernel.endswith("decode"), kernel.startswith("mla")
    if decode:
        query_tokens = requests
        pairs = kv_tokens = requests * np.minimum(s["isl"] + s["step"], seen)
    else:
        new, past = np.minimum(s["isl"], seen), np.minimum(s["step"], seen)
        pairs = requests * (new * (new + 1.0) / 2.0 + (s["isl"] - new) * new + s["isl"] * past)
        query_tokens, kv_tokens = requests * s["isl"], requests * (s["isl"] + past)
    decodes = s.get("decodes", nothing)
    decode_kv_tokens = decodes * s.get("decode_keys", decodes)
    kv_heads, head_dim = s.get("num_key_value_heads", heads), s.get("head_dim", nothing)
    if latent:
        head_dim = nothing + (LATENT_DECODE_DIM if decode else LATENT_PREFILL_DIM)
    if latent and decode:
        kv_heads = nothing + LATENT_WIDTH / (2.0 * LATENT_DECODE_DIM)
    columns: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return operators.Attention(
        name=kernel,
        phase=kernel.removeprefix("mla_"),
        requests=requests + decodes,
        query_tokens=query_tokens + decodes,
        pairs=pairs + decode_kv_tokens,
        kv_tokens=kv_tokens + decode_kv_tokens,
        dtype=dtype,
        kv_dtype=kv_dtype,
        window=window,
        context_tokens=requests * (s["isl"] + s["step"]) if decode else nothing,
        latent=latent,
        split_heads=np.maximum(heads, FUSED.latent_heads) if latent and decode else nothing,
        decodes=decodes,
        decode_kv_tokens=decode_kv_tokens,
        **columns,  # a table has a head count per row
    )


def models_of(rows: Rows) -> Groups:
    """Return a number of the model whose layer of experts each row is, for any parallelism."""
    names = ("hidden_size", "inter_size", "topk", "num_experts")
    return group_of(rows.sizes[name] for name in names)


def octaves_of(rows: Rows) -> Groups:
    """Return the octave of each row's tokens."""
    return np.floor(np.log2(rows.sizes["num_tokens"])).astype(np.uint64)


def products_of(rows: Rows) -> tuple[ExpertSizes, ExpertSizes]:
    """Return the two products of a gated layer of experts.

    Balanced tables spread tokens evenly: as many experts are activated as there are routed rows.
    Other tables are taken as independent draws, unless they state the activated experts.
    """
    s = rows.sizes
    experts = np.maximum(s["num_experts"] / s["moe_ep_size"], 1.0)
    top_k = s["topk"] / s["moe_ep_size"]
    routed, activated = _benchmark_routing(rows, experts, top_k)
    if rows.variant:
        probability = np.minimum(1.0, s["topk"] / s["num_experts"])
        activated = np.maximum(experts * (1.0 - (1.0 - probability) ** s["num_tokens"]), 1.0)
    width, hidden = s["inter_size"] / s["moe_tp_size"], s["hidden_size"]
    up = ExpertSizes(
        tokens=s["num_tokens"],
        routed=s["num_tokens"] * s["topk"],
        rows=s.get("routed", routed),
        activated=s.get("activated", activated),
        experts=experts,
        chosen=top_k,
        width=width,
        n=2.0 * width,
        k=hidden,
    )
    return up, replace(up, n=hidden, k=width)


def _benchmark_routing(rows: Rows, experts: Floats, top_k: Floats) -> tuple[Floats, Floats]:
    """Return the rows that a benchmark routed to a GPU, and the experts that these activate."""
    s = rows.sizes
    label = [rows.framework, rows.version]
    routed = np.maximum(s["num_tokens"] * top_k, 1.0)
    activated = np.minimum(experts, routed)
    if label in FUSED.repeated_experts:
        return routed * np.minimum(s["topk"], s["moe_ep_size"]), activated
    if label in FUSED.grouped_experts and rows.dtype == FUSED.grouped_dtype:
        here = np.minimum(np.minimum(s["topk"], experts), s["topk"] / 2.0 + top_k)
        grouped = np.maximum(s["num_tokens"] * here, 1.0)
        is_grouped = (s["hidden_size"] == 7168.0) & (s["num_experts"] == 256.0)
        pool = np.minimum(experts, s["num_experts"] / 2.0)
        drawn = pool * (1.0 - (1.0 - np.minimum(here / pool, 1.0)) ** s["num_tokens"])
        is_spread = s["num_tokens"] * s["topk"] >= s["num_experts"]
        few = np.where(is_spread, np.minimum(pool, grouped), np.maximum(drawn, 1.0))
        return np.where(is_grouped, grouped, routed), np.where(is_grouped, few, activated)
    return routed, activated


def read_layers(reference: Path, gpu: str) -> list[Rows]:
    """Return the layers of experts of one GPU in Frontier's and LLMServingSim's profiles."""
    found = [
        _expert_layers(table, gpu, source)
        for source in map(Record, LAYERS.values())
        for name in source.gpus.get(gpu, ())
        for table in existing(reference / source.file, gpu=name)
    ]
    return joined(found, lambda rows: rows.name)


def _expert_layers(table: pa.Table, gpu: str, source: Record) -> Rows:
    """Return a profile's rows; experts of unknown routing are activated by independent draws."""
    sizes = computed(chosen_rows(table, source.where), source.sizes)
    seconds, here = sizes.pop("seconds"), sizes.pop("experts")
    probability, stated = sizes["topk"] / sizes["num_experts"], sizes["activated"]
    drawn = np.maximum(here * (1.0 - (1.0 - probability) ** sizes["num_tokens"]), 1.0)
    sizes["activated"] = np.where(np.isnan(stated), drawn, stated)
    return timed(sizes, seconds, "experts", "bf16", gpu=gpu, **source.labels)


def read_chunks(reference: Path, gpu: str, kernel: str) -> list[Rows]:
    """Return prefill chunks, decodes or mixed batches of one GPU.

    A library with a mixed kernel also runs chunks by it, so chunks are among its mixed rows.
    """
    found: list[Rows] = []
    if gpu in SERIES.mixed_gpus and kernel in SERIES.batches:
        tables = existing(reference / SERIES.mixed, gpu=SERIES.mixed_gpus[gpu])
        found += [_batches(table, gpu, kernel, SERIES.batches, "vllm") for table in tables]
    if gpu in SERIES.chunk_gpus and kernel in SERIES.series:
        series = list(_chunks(reference / SERIES.chunks, gpu, kernel))
        if gpu in SERIES.point_gpus and kernel == "decode":
            points = existing(reference / SERIES.points, ("backend",))
            series += [_series(table, gpu, kernel) for table in points if table.num_rows]
        found += joined(series, lambda rows: rows.framework)
    return found


def _chunks(path: Path, gpu: str, kernel: str) -> Iterator[Rows]:
    is_prefill = kernel == "prefill"
    wanted = {"gpu": SERIES.chunk_gpus[gpu], "is_prefill": is_prefill, "is_mixed_batch": False}
    for table in existing(path, **wanted):
        known = chosen_rows(table, SERIES.known)
        for _, rows in by_labels(known, "gpu", "model", "measurement", "tp"):
            series = _series(rows, gpu, kernel)
            if len(series) >= SERIES.least_rows and _is_plausible(series):
                yield series


def _series(table: pa.Table, gpu: str, kernel: str) -> Rows:
    framework = SERIES.frameworks[first(table, "backend")]
    return _batches(table, gpu, kernel, SERIES.series, framework)


def _batches(
    table: pa.Table, gpu: str, kernel: str, source: Mapping[str, Any], framework: str
) -> Rows:
    own = source[kernel]
    columns = own["sizes"] | source["heads"]
    sizes = computed(chosen_rows(table, own["where"]), columns)
    seconds = sizes.pop("seconds")
    ordered = {name: sizes[name] for name in SERIES.order if name in sizes}
    return timed(ordered, seconds, kernel, "bf16_bf16", gpu=gpu, framework=framework)


def _is_plausible(rows: Rows) -> bool:
    """Return whether few times beat the data sheet and times of equal shapes agree."""
    least_s = roofline_s(rows.operator, load_gpu(rows.gpu))
    _, shape = np.unique(rows.group, return_inverse=True)
    slowest, fastest = np.zeros(shape.max() + 1), np.full(shape.max() + 1, np.inf)
    np.maximum.at(slowest, shape, rows.seconds)
    np.minimum.at(fastest, shape, rows.seconds)
    repeats = np.bincount(shape) > 1
    spread = float(np.median(slowest[repeats] / fastest[repeats])) if repeats.any() else 1.0
    impossible = np.mean(rows.seconds < least_s)
    return bool(impossible <= SERIES.most_impossible and spread <= SERIES.most_spread)


@functools.lru_cache(maxsize=1)
def read_tensor_rows(reference: Path, frameworks: tuple[str, ...]) -> tuple[Rows, ...]:
    """Return the products of each known GPU, framework and kind; empty without tables."""
    found: list[Rows] = []
    for table in existing(reference / TENSOR.table):
        found += plain_rows(table, frameworks)
    for table in existing(reference / TENSOR.again_table, gemm_dtype=TENSOR.again_kinds):
        found += plain_rows(table, frameworks)
    for table in existing(reference / TENSOR.latent_table):
        found += _latent_rows(table, frameworks)
    return tuple(found)


def plain_rows(
    table: pa.Table, frameworks: Sequence[str], gpus: Mapping[str, str] = TENSOR.gpus
) -> Iterator[Rows]:
    """Yield products with one weight matrix, by GPU, framework and kind.

    `gpus`: data sheets by the table's names of GPUs.
    """
    for key, rows in _known(table, "gemm_dtype", frameworks, gpus, TENSOR.kinds):
        if kernels := KERNELS.get(key[1:]):
            rows = rows.filter(pc.is_in(rows["kernel"].cast(pa.string()), pa.array(kernels)))
        if rows.num_rows and not is_host_timed(found := product_rows(rows, *key)):
            yield found


def own_products(table: pa.Table, gpu: str) -> list[Rows]:
    """Return the products in a file of one GPU's measurements, by framework and kind."""
    mine = table.filter(pc.equal(table["op"], "gemm"))
    if not mine.num_rows:
        return []
    frameworks, names = (mine[name].unique().to_pylist() for name in ("framework", "gpu"))
    return list(plain_rows(mine, frameworks, dict.fromkeys(names, gpu)))


def product_rows(table: pa.Table, gpu: str, framework: str, kind: str) -> Rows:
    """Return the rows of a table of one GPU, framework and kind."""
    m, n, k, latency_us = numbers(table, ("m", "n", "k", "latency_us")).values()
    labels = {"gpu": gpu, "framework": framework, "version": first(table, "version")}
    ones = np.ones(m.size)
    return products(m, n, k, ones, latency_us * 1e-6, dtype=kind, **labels, **metered(table))


def products(
    m: Floats, n: Floats, k: Floats, batch: Floats, seconds: Floats, *, dtype: str, **more: Any
) -> Rows:
    """Return products of given sizes as rows; `more` are other arguments of `tidy`."""

    def operator(sizes: Sizes) -> operators.Gemm:
        gemm, weight = MEASURED[dtype]
        columns: dict[str, Any] = dict(sizes)
        return operators.Gemm(name="product", dtype=gemm, weight_dtype=weight, **columns)

    sizes = {"m": m, "n": n, "k": k, "batch": batch}
    group = group_of([n + 2**16 * (batch - 1.0), k], base=2**32)
    more |= {"kernel": "gemm", "dtype": dtype, "operator_of": operator}
    return tidy(sizes, seconds, group, LOWER_QUARTER, **more)


def sizes_of(rows: Rows) -> tuple[Floats, Floats, Floats, Floats]:
    """Return m, n, k and batch."""
    s = rows.sizes
    return s["m"], s["n"], s["k"], s["batch"]


def _latent_rows(table: pa.Table, frameworks: Sequence[str]) -> Iterator[Rows]:
    for key, rows in _known(table, "bmm_dtype", frameworks, TENSOR.gpus, TENSOR.latent_kinds):
        n, k = np.array([TENSOR.latent_shapes[op] for op in rows["op_name"].to_pylist()]).T
        m, batch, latency_us = numbers(rows, ("num_tokens", "num_heads", "latency_us")).values()
        labels = dict(zip(("gpu", "framework", "dtype"), key, strict=True))
        yield products(m, n, k, batch, latency_us * 1e-6, version=first(rows, "version"), **labels)


def _known(
    table: pa.Table,
    format_column: str,
    frameworks: Sequence[str],
    gpus: Mapping[str, str],
    kinds: Mapping[str, str],
) -> Iterator[tuple[tuple[str, str, str], pa.Table]]:
    groups = dict(by_labels(table, "gpu", "framework", format_column))
    for gpu, framework, written in product(gpus, frameworks, kinds):
        if (gpu, framework, written) in groups:
            yield (gpus[gpu], framework, kinds[written]), groups[gpu, framework, written]


def read_layer_products(reference: Path, gpu: str) -> list[Rows]:
    """Return the products of one GPU's engine layers, all models together; empty without tables.

    A model has too few matrices for a hash to split them, so matrices are split in the order of
    their hashes.
    """
    columns = [
        np.stack([m, np.full_like(m, matrix[0]), np.full_like(m, matrix[1]), time_us * 1e-6])
        for file in (ENGINE.layers, ENGINE.heads)
        for layer, model, tp, rows in by_layer(reference / file, gpu)
        if layer in ENGINE.matrices
        for matrix in [layer_sizes(ENGINE.matrices[layer], model, tp)]
        for m, time_us in [numbers(rows, (ROW_COLUMNS[file], "time_us")).values()]
    ]
    if not columns:
        return []
    m, n, k, seconds = np.concatenate(columns, axis=1)
    labels = {"gpu": gpu, "version": ENGINE.version, **LAYER_LABELS}
    ones = np.ones(m.size)
    buckets = products(m, n, k, ones, seconds, **labels).bucket
    hashes, order = np.unique(buckets, return_inverse=True)
    bucket = (order + 0.5) / hashes.size
    return [products(m, n, k, ones, seconds, bucket=bucket, **labels)]


def layer_sizes(expressions: Sequence[str], model: LanguageModel, tp: int) -> list[float]:
    """Return sizes of a layer on one of `tp` GPUs, each an expression of the model's fields.

    >>> layer_sizes(ENGINE.matrices["down_proj"], load_model("llama3_1_8b"), 2)
    [4096.0, 7168.0]
    """
    fields = {name: getattr(model, name) for name in ENGINE.fields}
    by_text = evaluated({text: text for text in expressions}, fields | {"tp": tp})
    return [float(by_text[text]) for text in expressions]


def read_chain_rows(reference: Path, gpu: str) -> list[Rows]:
    """Return the pointwise layers of one GPU by kernel, all models together."""
    found = []
    for layer, model, tp, rows in by_layer(reference / ENGINE.layers, gpu):
        if layer in ENGINE.chains:
            tokens, time_us = numbers(rows, ("tokens", "time_us")).values()
            [width] = layer_sizes(ENGINE.chains[layer][3:], model, tp)
            elements = tokens * width
            labels = {"gpu": gpu, "kernel": chain_of(ENGINE.chains[layer][0]), **LAYER_LABELS}
            operator = functools.partial(_chain, layer)
            sizes, group = {"elements": elements}, group_of([elements])
            found.append(tidy(sizes, time_us * 1e-6, group, operator_of=operator, **labels))
    return joined(found, lambda rows: rows.kernel)


def _chain(layer: str, sizes: Sizes) -> operators.Elementwise:
    name, reads, writes, _ = ENGINE.chains[layer]
    elements = np.asarray(sizes["elements"])
    numbers_of = {"elements": elements, "reads": reads, "writes": writes}
    return operators.Elementwise(name=name, dtype="bf16", **numbers_of)


def by_layer(file: Path, gpu: str) -> Iterator[tuple[str, LanguageModel, int, pa.Table]]:
    """Yield layer, model, degree and rows of one GPU, for known models; nothing without a table."""
    for name, model in ENGINE.models.items() if gpu in ENGINE.gpus else ():
        for table in existing(file, gpu=ENGINE.gpus[gpu], model=name):
            for (tp, layer), rows in by_labels(table, "tp", "layer"):
                yield layer, load_model(model), tp, rows


def read_auxiliary_rows(reference: Path, gpu: str) -> list[Rows]:
    """Return auxiliary kernels of one GPU by table, framework and kernel; empty without tables."""
    found: list[Rows] = []
    for name in AUXILIARY.sizes:
        for table in existing(reference / FOLDER / f"{name}.parquet", gpu=gpu):
            found += auxiliary_kernels(name, table, gpu)
    if gpu in AUXILIARY.embedding_gpus:
        wanted = {"gpu": AUXILIARY.embedding_gpus[gpu], "source": "vidur"}
        tables = existing(reference / AUXILIARY.embeddings, **wanted)
        found += [_embeddings(table, gpu) for table in tables]
    return found


def read_state_rows(reference: Path, gpu: str) -> list[Rows]:
    """Return states and convolutions of one GPU that `read_auxiliary_rows` does not read."""
    name_of = NAMED.get(gpu, gpu)
    return [
        rows
        for name in STATES.gpus.get(gpu, ())
        for table in _newest(reference / f"{at}/{name}.parquet" for at in STATES.tables[name])
        for rows in auxiliary_kernels(name, table.filter(pc.equal(table["gpu"], name_of)), gpu)
    ]


def _newest(files: Iterable[Path]) -> Iterator[pa.Table]:
    """Yield the rows of the newest release of each GPU and framework, from the first table."""
    words = pl.col("gpu", "framework", "version", "kernel", "phase").cast(pl.String)
    found = [
        frame.filter(
            pl.col("phase").is_in(STATES.phases),
            pl.col("kernel").is_not_null(),
        ).with_columns(table=number)
        for number, file in enumerate(file for file in files if file.is_file())
        for frame in [read_frame(file).with_columns(words)]
    ]
    if found:
        frame = newest_releases(pl.concat(found, how="diagonal_relaxed"))
        first_table = pl.col("table") == pl.col("table").min().over("gpu", "framework")
        yield frame.filter(first_table).to_arrow()


def newest_releases(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the newest release of each GPU and framework."""
    frame = frame.filter(pl.col("version").str.contains(STATES.release))
    numbers_of = pl.col("version").str.extract_all("[0-9]+")
    release = numbers_of.list.eval(pl.element().str.zfill(6)).list.join(".")
    frame = frame.with_columns(release=release)
    return frame.filter(pl.col("release") == pl.col("release").max().over("gpu", "framework"))


def _embeddings(table: pa.Table, gpu: str) -> Rows:
    columns = numbers(table, ("num_tokens", "n_embd", "emb_ms"))
    seconds = columns.pop("emb_ms") * 1e-3

    def make(s: Sizes) -> Auxiliary:
        rows, cols = s["num_tokens"], s["n_embd"]
        return operators.Embedding(name="embedding", rows=rows, cols=cols, dtype="bf16")

    rows = _auxiliary_rows(columns, seconds, make, gpu=gpu, framework="vllm")
    return rows.where(np.isfinite(seconds) & (seconds > 0.0))


def auxiliary_kernels(name: str, table: pa.Table, gpu: str) -> Iterator[Rows]:
    """Yield the kernels of a table of one GPU, by framework."""
    for (framework, kernel), rows in by_labels(table, "framework", "kernel"):
        if AUXILIARY.difference in kernel or rows.num_rows < AUXILIARY.least_rows:
            continue
        version, phase = first(rows, "version"), PHASES[first(rows, "phase")]
        columns = numbers(rows, (*STATE_SIZES[name], "latency_us"))
        seconds = columns.pop("latency_us") * 1e-6
        make = functools.partial(_auxiliary_of, name, kernel, phase, version in AUXILIARY.keys_only)
        labels = {"gpu": gpu, "framework": framework, "version": version}
        dtype = AUXILIARY.rules.get(name, "bf16")
        yield _auxiliary_rows(columns, seconds, make, dtype=dtype, **labels)


def _auxiliary_rows(sizes: Sizes, seconds: Floats, make: Make, **labels: Any) -> Rows:
    kernel, group = kernel_of(make(sizes)), group_of(sizes.values())
    labels = {"dtype": "bf16", **labels}
    return tidy(sizes, seconds, group, kernel=kernel, operator_of=make, **labels)


def _auxiliary_of(table: str, kernel: str, phase: str, keys_only: bool, s: Sizes) -> Auxiliary:
    if table in ("computescale", "scale_matrix"):
        is_scan = table == "computescale"
        return operators.Quantisation(name=kernel, rows=s["m"], cols=s["k"], scan=is_scan)
    sizes: dict[str, Any] = {"name": kernel, "requests": s["batch_size"]}
    if table == "encoder_attention":
        tokens = s["batch_size"] * s["isl"]
        sizes |= {"tokens": tokens, "heads": s["num_heads"], "head_dim": s["head_dim"]}
        return operators.EncoderAttention(**sizes)
    sizes |= {"phase": phase, "tokens": s["batch_size"] * s["seq_len"], "in_loop": True}
    sizes["rule"] = AUXILIARY.rules.get(table, "delta")
    if kernel.startswith("causal_conv1d"):
        return operators.CausalConvolution(channels=_channels(s, keys_only), **sizes)
    sizes |= {"key_heads": s["num_k_heads"], "value_heads": s["num_v_heads"]}
    return operators.StateUpdate(**sizes)


def is_state(kernel: str) -> bool:
    """Return whether a kernel updates a recurrent state, or is the convolution before it."""
    return kernel.startswith(("delta", "convolution"))


def _channels(s: Sizes, keys_only: bool) -> Floats:
    if "nheads" in s:
        return s["nheads"] * s["head_dim"] + 2.0 * s["n_groups"] * s["d_state"]
    if keys_only:
        return s["num_k_heads"] * s["head_k_dim"]
    return s["num_v_heads"] * s["head_v_dim"] + 2.0 * s["num_k_heads"] * s["head_k_dim"]
