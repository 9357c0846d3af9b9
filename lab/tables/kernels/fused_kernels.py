"""Attention and expert kernels timed in loops: the reference tables of `llm_kernels`.

`num_heads` are those of one GPU, a decode step attends to `isl + step` keys, a window of `w` keys
limits them to `w`, and 0 means no window. Experts were timed as a whole layer: both products, the
activation between them, routing and gathering. A shape falls wholly on one side of the split,
whatever framework or GPU it was timed on.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lab.tables.rows import (
    Floats,
    Groups,
    Rows,
    Sizes,
    by_labels,
    first,
    group_of,
    is_host_timed,
    metered,
    numbers,
    read_table,
    tidy,
)
from simulators.core.folder import read_toml
from simulators.kernels.corrections import LATENT_WIDTH
from simulators.kernels.families.attention import LATENT_DECODE_DIM, LATENT_PREFILL_DIM
from simulators.kernels.families.experts import ExpertSizes
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
