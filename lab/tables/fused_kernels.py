"""Measured attention and expert kernels as rows: timed loops, profiles of chunks and of layers.

`kernels.toml` names tables and columns and says which rows are left out. `num_heads` are those of
one GPU; a decode step attends to `isl + step` keys; a window of `w` keys limits them to `w`, and 0
means no window. Experts were timed as a whole layer: both products, the activation between them,
routing and gathering. A shape falls wholly on one side of the split, whatever its framework or GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.tables.rows import (
    Floats,
    Groups,
    Record,
    Rows,
    Sizes,
    by_labels,
    first,
    group_of,
    is_host_timed,
    joined,
    metered,
    numbers,
    read_table,
    tidy,
    words,
)
from simulators.catalog.gpu import load_gpu
from simulators.core.folder import read_toml
from simulators.kernels.corrections import LATENT_WIDTH
from simulators.kernels.families.attention import LATENT_DECODE_DIM, LATENT_PREFILL_DIM
from simulators.kernels.families.experts import ExpertSizes
from simulators.kernels.price import roofline_s
from simulators.workload.operators import Attention

FACTS = {
    name: Record(facts)
    for name, facts in read_toml(Path(__file__).with_name("kernels.toml")).items()
}
FUSED, LAYERS, SERIES = FACTS["fused"], FACTS["expert_layers"], FACTS["chunks"]
FOLDER: str = FUSED.folder
GPUS, NARROW = tuple(FUSED.gpus), tuple(FUSED.narrow)
NAMED: Mapping[str, str] = FUSED.gpu_names
TABLES: Mapping[str, str] = FUSED.tables
LEAST_ROWS: int = FUSED.least_rows
LATENT, ATTENTION, EXPERTS = (tuple(FUSED.sizes[k]) for k in ("latent", "attention", "experts"))
SHAPE = {"mla_prefill": LATENT, "mla_decode": LATENT, "experts": EXPERTS}

FRONTIER, FRONTIER_GPUS = LAYERS.frontier, LAYERS.frontier_gpus
SERVING_GPUS: Mapping[str, str] = LAYERS.serving_gpus
MIXED, MIXED_GPUS = SERIES.mixed, SERIES.mixed_gpus
CHUNKS, CHUNK_GPUS = SERIES.chunks, SERIES.chunk_gpus
POINTS, POINT_GPUS = SERIES.points, SERIES.point_gpus


def read_measured(reference: Path, gpu: str, kernel: str) -> list[Rows]:
    """Return the rows of one GPU by framework and precisions, each of its most used kernel.

    Tables of attention that timed the host are left out; experts are layers of several kernels.
    """
    is_layer = kernel == "experts"
    least_rows = FUSED.least_expert_rows if is_layer else LEAST_ROWS
    return [
        rows
        for name in tables_of(kernel)
        if (path := reference / name).is_file()
        for rows in measured_in(read_table(path, gpu=NAMED.get(gpu, gpu)), gpu, kernel, least_rows)
        if is_layer or not is_host_timed(rows)
    ]


def tables_of(kernel: str) -> list[str]:
    """Return the tables that have rows of a kernel."""
    names = (TABLES.get(kernel, kernel), *FUSED.more_tables.get(kernel, ()))
    return [f"{FOLDER}/{name}.parquet" for name in names]


def measured_in(table: pa.Table, gpu: str, kernel: str, least_rows: int) -> list[Rows]:
    """Return a table's rows by framework and precisions, each of its most used kernel.

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


def attention_of(kernel: str, dtypes: str, s: Sizes) -> Attention:
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
    return Attention(
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
    found: list[Rows] = []
    if gpu in FRONTIER_GPUS and (reference / FRONTIER).is_file():
        series = (_frontier(reference / FRONTIER, gpu, name) for name in FRONTIER_GPUS[gpu])
        found += joined(series, lambda rows: rows.name)
    if gpu in SERVING_GPUS and (reference / LAYERS.serving).is_file():
        found.append(_serving(reference / LAYERS.serving, gpu))
    return found


def _frontier(path: Path, gpu: str, name: str) -> Rows:
    table = read_table(path, gpu=name)
    sizes = dict(zip(EXPERTS, numbers(table, LAYERS.frontier_sizes).values(), strict=True))
    time_ms, routed, here, used = numbers(table, LAYERS.frontier_columns).values()
    keep = time_ms > 0.0
    sizes |= {"routed": routed, "activated": used * here}
    if np.isfinite(routed).any():
        keep &= (routed > 0.0) & (words(table, "load_distribution") == "uniform")
    else:
        probability, tokens = sizes["topk"] / sizes["num_experts"], sizes["num_tokens"]
        sizes["routed"] = np.maximum(tokens * probability * here, 1.0)
        sizes["activated"] = np.maximum(here * (1.0 - (1.0 - probability) ** tokens), 1.0)
    kept = {name: column[keep] for name, column in sizes.items()}
    labels = {"gpu": gpu, "framework": "frontier", "variant": "uniform"}
    return timed(kept, time_ms[keep] * 1e-3, "experts", "bf16", **labels)


def _serving(path: Path, gpu: str) -> Rows:
    table = read_table(path, gpu=SERVING_GPUS[gpu])
    tokens, activated, time_us = numbers(table, ("tokens", "activated_experts", "time_us")).values()
    constants = LAYERS.serving_model | {"moe_tp_size": 1.0, "moe_ep_size": 1.0}
    sizes = {"num_tokens": tokens, **{n: np.full(tokens.shape, v) for n, v in constants.items()}}
    sizes |= {"routed": tokens * constants["topk"], "activated": activated}
    labels = {"gpu": gpu, "framework": "vllm", "variant": "activated"}
    return timed(sizes, time_us * 1e-6, "experts", "bf16", **labels)


def read_chunks(reference: Path, gpu: str, kernel: str) -> list[Rows]:
    """Return prefill chunks, decodes or mixed batches of one GPU.

    A library with a mixed kernel also runs chunks by it, so chunks are among its mixed rows.
    """
    found: list[Rows] = []
    kernels = ("mixed", "prefill", "decode")
    if gpu in MIXED_GPUS and kernel in kernels and (reference / MIXED).is_file():
        found.append(_mixed(reference / MIXED, gpu, kernel))
    if gpu in CHUNK_GPUS and kernel in ("prefill", "decode"):
        series = list(_chunks(reference / CHUNKS, gpu, kernel))
        if gpu in POINT_GPUS and kernel == "decode" and (reference / POINTS).is_file():
            points = read_table(reference / POINTS, ("backend",))
            series += [_series(points, gpu, kernel)] if points.num_rows else []
        found += joined(series, lambda rows: rows.framework)
    return found


def _mixed(path: Path, gpu: str, kernel: str) -> Rows:
    table = read_table(path, gpu=MIXED_GPUS[gpu], model=list(SERIES.heads))
    new, past, decodes, keys, tp, time_us = numbers(table, SERIES.mixed_columns).values()
    heads = np.array([SERIES.heads[model] for model in table["model"].to_pylist()], np.float64)
    query_heads, kv_heads = heads.reshape(-1, 2).T / tp
    sizes = _sizes(np.where(new > 0, 1.0, 0.0), new, past, query_heads, kv_heads)
    if kernel == "decode":
        sizes |= {"batch_size": decodes, "isl": np.ones(new.shape), "step": keys - 1.0}
    if kernel == "mixed":
        sizes |= {"decodes": decodes, "decode_keys": keys}
    wanted = {"mixed": new > 0, "prefill": (new > 0) & (decodes == 0), "decode": new == 0}
    rows = timed(sizes, time_us * 1e-6, kernel, "bf16_bf16", gpu=gpu, framework="vllm")
    return rows.where(wanted[kernel])


def _chunks(path: Path, gpu: str, kernel: str) -> Iterator[Rows]:
    """Yield each plausible series of the table of chunks."""
    if not path.is_file():
        return
    column, is_prefill = f"attn_{kernel}_ms", kernel == "prefill"
    wanted = {"gpu": CHUNK_GPUS[gpu], "is_prefill": is_prefill, "is_mixed_batch": False}
    table = read_table(path, (column,), **wanted)
    known = [model.startswith(tuple(SERIES.models)) for model in words(table, "model").tolist()]
    timed_rows = table.filter(pa.array(known, pa.bool_())).filter(pc.field(column) > 0.0)
    for _, rows in by_labels(timed_rows, "gpu", "model", "measurement", "tp"):
        series = _series(rows, gpu, kernel)
        if len(series) >= SERIES.least_rows and _is_plausible(series):
            yield series


def _series(table: pa.Table, gpu: str, kernel: str) -> Rows:
    """Return one series of measurements, each of equal requests."""
    names = ("batch_size", "kv_cache_size", "tp", "n_q_head", "n_kv_head", f"attn_{kernel}_ms")
    requests, past, tp, heads, kv_heads, time_ms = numbers(table, names).values()
    chunk = np.ones(requests.shape)
    if kernel == "prefill":
        chunk = numbers(table, ["prefill_chunk_size"])["prefill_chunk_size"]
    sizes = _sizes(requests, chunk, past, heads / tp, np.maximum(kv_heads / tp, 1.0))
    framework = SERIES.frameworks[first(table, "backend")]
    return timed(sizes, time_ms * 1e-3, kernel, "bf16_bf16", gpu=gpu, framework=framework)


def _sizes(
    requests: Floats, new: Floats, past: Floats, heads: Floats, kv_heads: Floats
) -> dict[str, Floats]:
    """Return the sizes of attention without a window."""
    head_dim, window = np.full(new.shape, SERIES.head_dim), np.zeros(new.shape)
    columns = (requests, new, past, heads, kv_heads, head_dim, window)
    return dict(zip(ATTENTION, columns, strict=True))


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
