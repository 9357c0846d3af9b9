"""Attention and expert kernels timed in loops: the reference tables of `llm_kernels`.

`num_heads` are those of one GPU, a decode step attends to `isl + step` keys, a window of `w` keys
limits them to `w`, and 0 means no window. Experts were timed as a whole layer: both products, the
activation between them, routing and gathering. A shape falls wholly on one side of the split,
whatever framework or GPU it was timed on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.tables.rows import (
    Floats,
    Groups,
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

FACTS = read_toml(Path(__file__).with_name("kernels.toml"))["fused"]
GPUS, NARROW = tuple(FACTS["gpus"]), tuple(FACTS["narrow"])
NAMED, TABLES, DTYPES = FACTS["gpu_names"], FACTS["tables"], FACTS["dtypes"]
FOLDER = "llm_kernels"

LATENT, ATTENTION, EXPERTS = (tuple(FACTS["sizes"][k]) for k in ("latent", "attention", "experts"))
SHAPE = {"mla_prefill": LATENT, "mla_decode": LATENT, "experts": EXPERTS}
"""Columns of sizes, where they are not those of attention."""

LATENT_HEADS = 64.0
"""SGLang's benchmark gives a rank's backend the heads of its whole model: 64, or 128."""

REPEATED = {("sglang", "0.5.10")}
"""Versions whose benchmark of ranks repeated the rows of an expert for every rank, up to `topk`
times: the times of many tokens are constant up to `ep = topk` and halve from there on, for each
layer, format and GPU, while few tokens activate the right number of experts."""

GROUPED, GROUPED_DTYPE = {("sglang", "0.5.14"), ("vllm", "0.24.0")}, "fp8_block"
"""Versions whose benchmark routes DeepSeek-V3's layers by groups, of which all tokens keep the same
half, on the timed rank: it gets half of a token's choices and, of twice the choices, its share. At
most 128 of 256 experts are activated, and few tokens share experts."""

LEAST_ROWS, LEAST_EXPERT_ROWS = 600, 250
"""Kernels with fewer rows served odd shapes only, as fallbacks of the framework."""


def read_measured(reference: Path, gpu: str, kernel: str) -> list[Rows]:
    """Return the rows of one GPU, by framework and precisions, each of its most used kernel.

    Tables of attention that timed the host are left out; experts are layers of several kernels.
    """
    is_layer = kernel == "experts"
    least_rows = LEAST_EXPERT_ROWS if is_layer else LEAST_ROWS
    return [
        rows
        for name in tables_of(kernel)
        if (path := reference / name).is_file()
        for rows in measured_in(read_table(path, gpu=NAMED.get(gpu, gpu)), gpu, kernel, least_rows)
        if is_layer or not is_host_timed(rows)
    ]


def tables_of(kernel: str) -> list[str]:
    """Return the tables that have rows of a kernel."""
    names = (TABLES.get(kernel, kernel), *FACTS["more_tables"].get(kernel, ()))
    return [f"{FOLDER}/{name}.parquet" for name in names]


def measured_in(table: pa.Table, gpu: str, kernel: str, least_rows: int) -> list[Rows]:
    """Return a table's rows by framework and precisions, each of its most used kernel.

    Args:
        table: rows of one GPU and kernel, with the columns of its reference table.
        gpu: the name of its data sheet.
        kernel: prefill, decode, mla_prefill, mla_decode or experts.
        least_rows: kernels with fewer are left out.
    """
    labels = [name for name in FACTS["labels"] if name in table.column_names]
    found: dict[tuple[str, str], Rows] = {}
    for key, rows in sorted(by_labels(table, *labels), key=lambda group: "|".join(group[0])):
        label = dict(zip(labels, key, strict=True))
        formats = [label[name] for name in FACTS["formats"] if name in label]
        if rows.num_rows < least_rows or not set(formats) <= set(DTYPES):
            continue
        dtypes = "_".join(DTYPES[name] for name in formats)
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
    """Return rows of attention, or of experts, of given sizes; `more` are other labels."""
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
        split_heads=np.maximum(heads, LATENT_HEADS) if latent and decode else nothing,
        decodes=decodes,
        decode_kv_tokens=decode_kv_tokens,
        **columns,  # a table has a head count per row
    )


def models_of(rows: Rows) -> Groups:
    """Return a number of the model whose layer of experts each row is, however it was cut."""
    return group_of(
        rows.sizes[name] for name in ("hidden_size", "inter_size", "topk", "num_experts")
    )


def octaves_of(rows: Rows) -> Groups:
    """Return the octave of each row's tokens."""
    return np.floor(np.log2(rows.sizes["num_tokens"])).astype(np.uint64)


def products_of(rows: Rows) -> tuple[ExpertSizes, ExpertSizes]:
    """Return the two products of a gated layer.

    Balanced tables spread tokens evenly: as many experts are activated as there are routed rows.
    Others are taken as independent draws, unless they state the activated experts.
    """
    s = rows.sizes
    experts = np.maximum(s["num_experts"] / s["moe_ep_size"], 1.0)
    top_k = s["topk"] / s["moe_ep_size"]
    mine, activated = _dealt(rows, experts, top_k)
    if rows.variant:
        chance = np.minimum(1.0, s["topk"] / s["num_experts"])
        activated = np.maximum(experts * (1.0 - (1.0 - chance) ** s["num_tokens"]), 1.0)
    width, hidden = s["inter_size"] / s["moe_tp_size"], s["hidden_size"]
    up = ExpertSizes(
        tokens=s["num_tokens"],
        routed=s["num_tokens"] * s["topk"],
        rows=s.get("routed", mine),
        activated=s.get("activated", activated),
        experts=experts,
        chosen=top_k,
        width=width,
        n=2.0 * width,
        k=hidden,
    )
    return up, replace(up, n=hidden, k=width)


def _dealt(rows: Rows, experts: Floats, top_k: Floats) -> tuple[Floats, Floats]:
    """Return the rows that a benchmark gave to a GPU, and the experts that they activate."""
    s = rows.sizes
    label = rows.framework, rows.version
    mine = np.maximum(s["num_tokens"] * top_k, 1.0)
    activated = np.minimum(experts, mine)
    if label in REPEATED:
        return mine * np.minimum(s["topk"], s["moe_ep_size"]), activated
    if label in GROUPED and rows.dtype == GROUPED_DTYPE:
        here = np.minimum(np.minimum(s["topk"], experts), s["topk"] / 2.0 + top_k)
        grouped = np.maximum(s["num_tokens"] * here, 1.0)
        is_grouped = (s["hidden_size"] == 7168.0) & (s["num_experts"] == 256.0)
        pool = np.minimum(experts, s["num_experts"] / 2.0)
        drawn = pool * (1.0 - (1.0 - np.minimum(here / pool, 1.0)) ** s["num_tokens"])
        is_spread = s["num_tokens"] * s["topk"] >= s["num_experts"]
        few = np.where(is_spread, np.minimum(pool, grouped), np.maximum(drawn, 1.0))
        return np.where(is_grouped, grouped, mine), np.where(is_grouped, few, activated)
    return mine, activated


FRONTIER = "moe/frontier_moe_profile.parquet"
SERVING = "serving_modern/lss_profile_moe.parquet"

FRONTIER_GPUS = {"a100_sxm": ("a100", "a800")}
SERVING_GPUS = {"rtx_pro_6000": "RTXPRO6000"}

SIZES = read_toml(Path(__file__).with_name("kernels.toml"))["frontier"]["sizes"]
"""Frontier's names of `EXPERTS`."""
MORE = ("moe_grouped_gemm_ms", "total_routed_tokens", "num_experts_per_device")

QWEN3_30B = {"hidden_size": 2048.0, "inter_size": 768.0, "topk": 8.0, "num_experts": 128.0}
"""The one model of the serving table, by its public configuration."""


def read_layers(reference: Path, gpu: str) -> list[Rows]:
    """Return the rows of one GPU, each series by itself."""
    found: list[Rows] = []
    if gpu in FRONTIER_GPUS and (reference / FRONTIER).is_file():
        series = (_frontier(reference / FRONTIER, gpu, name) for name in FRONTIER_GPUS[gpu])
        found += joined(series, lambda rows: rows.name)
    if gpu in SERVING_GPUS and (reference / SERVING).is_file():
        found.append(_serving(reference / SERVING, gpu))
    return found


def _frontier(path: Path, gpu: str, name: str) -> Rows:
    table = read_table(path, gpu=name)
    sizes = dict(zip(EXPERTS, numbers(table, SIZES).values(), strict=True))
    time_ms, routed, here, used = numbers(table, (*MORE, "expert_utilization")).values()
    keep = time_ms > 0.0
    sizes |= {"routed": routed, "activated": used * here}
    if np.isfinite(routed).any():
        keep &= (routed > 0.0) & (words(table, "load_distribution") == "uniform")
    else:
        chance, tokens = sizes["topk"] / sizes["num_experts"], sizes["num_tokens"]
        sizes["routed"] = np.maximum(tokens * chance * here, 1.0)
        sizes["activated"] = np.maximum(here * (1.0 - (1.0 - chance) ** tokens), 1.0)
    kept = {name: column[keep] for name, column in sizes.items()}
    labels = {"gpu": gpu, "framework": "frontier", "variant": "uniform"}
    return timed(kept, time_ms[keep] * 1e-3, "experts", "bf16", **labels)


def _serving(path: Path, gpu: str) -> Rows:
    table = read_table(path, gpu=SERVING_GPUS[gpu])
    tokens, activated, time_us = numbers(table, ("tokens", "activated_experts", "time_us")).values()
    ones = np.ones(tokens.shape)
    sizes = {
        "num_tokens": tokens,
        **{name: ones * value for name, value in QWEN3_30B.items()},
        "moe_tp_size": ones,
        "moe_ep_size": ones,
        "routed": tokens * QWEN3_30B["topk"],
        "activated": activated,
    }
    labels = {"gpu": gpu, "framework": "vllm", "variant": "activated"}
    return timed(sizes, time_us * 1e-6, "experts", "bf16", **labels)


MIXED = "serving_modern/lss_profile_attention.parquet"
CHUNKS = "llm_ops/attention.parquet"
POINTS = "llm_ops/attention_vidur_7b_a100_points.parquet"

MIXED_GPUS = {"rtx_pro_6000": "RTXPRO6000", "rtx_4090": "RTX4090"}
CHUNK_GPUS = {"a100_sxm": ("a100", "a800"), "h100_sxm": ("h100", "h800")}
POINT_GPUS = ("a100_sxm",)
FRAMEWORKS = {"FLASH_ATTENTION": "flash_attention", "FLASHINFER": "flashinfer"}

HEADS = {
    "meta-llama/Llama-3.1-8B": (32, 8),
    "Qwen/Qwen3-32B": (64, 8),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": (32, 4),
}
"""Query and key heads of the models of the mixed table, by their public configurations."""

HEAD_DIM = 128.0
KNOWN = ("codellama", "meta-llama", "qwen3-a3b-30b", "Llama-3.1-405B", "qwen2_moe")
"""Models whose heads are 128 wide; the rest of the table are reduced copies."""

LEAST_SERIES_ROWS = 100
IMPOSSIBLE, REPEAT_SPREAD = 0.01, 1.1


def read_chunks(reference: Path, gpu: str, kernel: str) -> list[Rows]:
    """Return the rows of one GPU and kernel: prefill (chunks), decode, or mixed.

    A library with a mixed kernel also runs chunks by it, so they are among its rows.
    """
    found: list[Rows] = []
    kernels = ("mixed", "prefill", "decode")
    if gpu in MIXED_GPUS and kernel in kernels and (reference / MIXED).is_file():
        found.append(_mixed(reference / MIXED, gpu, kernel))
    if gpu in CHUNK_GPUS and kernel in ("prefill", "decode"):
        series = [*_chunks(reference / CHUNKS, gpu, kernel), *_points(reference, gpu, kernel)]
        found += joined(series, lambda rows: rows.framework)
    return found


def _mixed(path: Path, gpu: str, kernel: str) -> Rows:
    table = read_table(path, gpu=MIXED_GPUS[gpu], model=list(HEADS))
    new, past, decodes, keys, tp, time_us = numbers(
        table, ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "tp", "time_us")
    ).values()
    heads = np.array([HEADS[model] for model in table["model"].to_pylist()], np.float64)
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
    """Yield each sound series of the table of chunks."""
    if not path.is_file():
        return
    column, is_prefill = f"attn_{kernel}_ms", kernel == "prefill"
    wanted = {"gpu": CHUNK_GPUS[gpu], "is_prefill": is_prefill, "is_mixed_batch": False}
    table = read_table(path, (column,), **wanted)
    known = np.array([model.startswith(KNOWN) for model in words(table, "model").tolist()], bool)
    timed_rows = table.filter(pa.array(known)).filter(pc.field(column) > 0.0)
    for _, rows in by_labels(timed_rows, "gpu", "model", "measurement", "tp"):
        series = _series(rows, gpu, kernel)
        if len(series) >= LEAST_SERIES_ROWS and _is_sound(series):
            yield series


def _points(reference: Path, gpu: str, kernel: str) -> Iterator[Rows]:
    """Yield decode points of VIDUR's first A100 profile, of a model with a key head per head."""
    if gpu in POINT_GPUS and kernel == "decode" and (reference / POINTS).is_file():
        points = read_table(reference / POINTS, ("backend",))
        if points.num_rows:
            yield _series(points, gpu, kernel)


def _series(table: pa.Table, gpu: str, kernel: str) -> Rows:
    """Return one series of measurements, each of equal requests."""
    names = ("batch_size", "kv_cache_size", "tp", "n_q_head", "n_kv_head", f"attn_{kernel}_ms")
    requests, past, tp, heads, kv_heads, time_ms = numbers(table, names).values()
    chunk = np.ones(requests.shape)
    if kernel == "prefill":
        chunk = numbers(table, ["prefill_chunk_size"])["prefill_chunk_size"]
    sizes = _sizes(requests, chunk, past, heads / tp, np.maximum(kv_heads / tp, 1.0))
    framework = FRAMEWORKS[first(table, "backend")]
    return timed(sizes, time_ms * 1e-3, kernel, "bf16_bf16", gpu=gpu, framework=framework)


def _sizes(
    requests: Floats, new: Floats, past: Floats, heads: Floats, kv_heads: Floats
) -> dict[str, Floats]:
    """Return the sizes of attention without a window."""
    return {
        "batch_size": requests,
        "isl": new,
        "step": past,
        "num_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": np.full(new.shape, HEAD_DIM),
        "window_size": np.zeros(new.shape),
    }


def _is_sound(rows: Rows) -> bool:
    """Return whether a series can be what it claims: no impossible times, equal shapes alike."""
    least_s = roofline_s(rows.operator, load_gpu(rows.gpu))
    _, shape = np.unique(rows.group, return_inverse=True)
    slowest, fastest = np.zeros(shape.max() + 1), np.full(shape.max() + 1, np.inf)
    np.maximum.at(slowest, shape, rows.seconds)
    np.minimum.at(fastest, shape, rows.seconds)
    repeats = np.bincount(shape) > 1
    spread = float(np.median(slowest[repeats] / fastest[repeats])) if repeats.any() else 1.0
    return bool(np.mean(rows.seconds < least_s) <= IMPOSSIBLE and spread <= REPEAT_SPREAD)
