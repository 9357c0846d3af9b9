"""Measured attention and expert kernels as operators whose every size is a column.

The layout is that of the reference folder `llm_kernels`: `num_heads` are those of one GPU, a decode
step sees `isl + step` keys, a window of `w` keys cuts them at `w`, and 0 means no window. Experts
were timed as a whole layer: both products, the activation between them, routing and gathering.
A shape falls wholly on one side of the split, whatever framework or GPU it was timed on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from lab.tables.kernels.fp32_kernels import fraction
from simulators.kernels.families.attention import LATENT_DECODE_DIM, LATENT_PREFILL_DIM
from simulators.workload.operators import Attention

Floats = NDArray[np.float64]
Sizes = dict[str, Floats]

GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "rtx_pro_6000", "rtx_4090")
NAMED = {"rtx_pro_6000": "rtx_pro_6000_server"}
"""What the tables call a GPU, where the catalog calls it something else."""
FOLDER = "llm_kernels"
TABLES = {
    "prefill": "context_attention", "decode": "generation_attention",
    "mla_prefill": "context_mla", "mla_decode": "generation_mla", "experts": "moe",
}  # fmt: skip
DTYPES = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "fp4",
    "w4a8_mxfp4_mxfp8": "w4a8", "w4a16_mxfp4": "w4a16",
}  # fmt: skip
NARROW = ("fp8_block", "fp4", "w4a8", "w4a16")
"""Formats in which experts alone were timed: numbers that share scales."""

SHAPE = {
    "attention": ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim",
                  "window_size"),
    "mla": ("batch_size", "isl", "step", "num_heads"),
    "experts": ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size",
                "moe_ep_size"),
}  # fmt: skip
HELD_OUT = 0.5
"""Half of all shapes are never fitted to."""

LEAST_ROWS, LEAST_EXPERT_ROWS = 600, 250
"""Kernels with fewer rows served odd shapes only, as fallbacks of the framework."""


@dataclass(frozen=True)
class Measured:
    """Rows of one kernel of one framework on one GPU."""

    gpu: str
    framework: str
    kernel: str  # prefill, decode, mla_prefill, mla_decode, experts
    dtypes: str  # of the arithmetic and of the cache
    sizes: Sizes
    seconds: Floats
    group: NDArray[np.uint64]
    spread: str = "balanced"  # how tokens spread over experts

    @property
    def name(self) -> str:
        """The calibration's name of this kernel."""
        return f"{self.framework}.{self.kernel}.{self.dtypes}"

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Rows of shapes no fit may see."""
        return fraction(self.group) >= HELD_OUT

    def with_rows(self, more: Measured) -> Measured:
        """Return these rows and others of the same kernel."""
        sizes = {n: np.concatenate([c, more.sizes[n]]) for n, c in self.sizes.items()}
        seconds = np.concatenate([self.seconds, more.seconds])
        return replace(
            self, sizes=sizes, seconds=seconds, group=np.concatenate([self.group, more.group])
        )

    def where(self, keep: NDArray[np.bool_] | NDArray[np.int64]) -> Measured:
        """Return some of the rows."""
        sizes = {name: column[keep] for name, column in self.sizes.items()}
        return replace(self, sizes=sizes, seconds=self.seconds[keep], group=self.group[keep])


def read_measured(reference: Path, gpu: str, kernel: str) -> list[Measured]:
    """Return the rows of one GPU, by framework and precisions, each of its most used kernel."""
    path = reference / FOLDER / f"{TABLES.get(kernel, kernel)}.parquet"
    if not path.is_file():
        return []
    table = pyarrow.parquet.read_table(path, filters=[("gpu", "==", NAMED.get(gpu, gpu))])
    return measured_in(table, gpu, kernel, LEAST_EXPERT_ROWS if kernel == "experts" else LEAST_ROWS)


def measured_in(table: pa.Table, gpu: str, kernel: str, least_rows: int) -> list[Measured]:
    """Return a table's rows by framework and precisions, each of its most used kernel.

    Args:
        table: rows of one GPU and kernel, with the columns of its reference table.
        gpu: the name of its data sheet.
        kernel: prefill, decode, mla_prefill, mla_decode or experts.
        least_rows: kernels with fewer are left out.
    """
    text = [n for n in ("framework", "kernel", "attn_dtype", "mla_dtype", "kv_cache_dtype",
                        "moe_dtype", "distribution") if n in table.column_names]  # fmt: skip
    labels = {name: np.array(table[name].to_pylist()) for name in text}
    shape = SHAPE[
        "experts"
        if kernel == "experts"
        else kernel.split("_")[0].replace("prefill", "attention").replace("decode", "attention")
    ]
    sizes = {name: table[name].to_numpy().astype(np.float64) for name in shape}
    seconds = table["latency_us"].to_numpy().astype(np.float64) * 1e-6
    group = group_of(sizes)
    found: dict[str, Measured] = {}
    keys = np.array(["|".join(row) for row in zip(*labels.values(), strict=True)])
    for key in np.unique(keys):
        label = dict(zip(text, str(key).split("|"), strict=True))
        mine = keys == key
        dtypes = [label[n] for n in ("attn_dtype", "mla_dtype", "moe_dtype") if n in label]
        dtypes += [label["kv_cache_dtype"]] if "kv_cache_dtype" in label else []
        if mine.sum() < least_rows or not set(dtypes) <= set(DTYPES):
            continue
        rows = Measured(
            gpu, label["framework"], kernel, "_".join(DTYPES[d] for d in dtypes),
            {n: c[mine] for n, c in sizes.items()}, seconds[mine], group[mine],
            label.get("distribution", "balanced"),
        )  # fmt: skip
        name = f"{rows.name}.{rows.spread}"
        if name not in found or found[name].seconds.size < rows.seconds.size:
            found[name] = rows
    return list(found.values())


def group_of(sizes: Sizes) -> NDArray[np.uint64]:
    """Return a number of each row's shape, by which it falls on a side of the split."""
    group = np.zeros(next(iter(sizes.values())).size, np.uint64)
    for column in sizes.values():
        group = group * np.uint64(1_000_003) + column.astype(np.uint64)
    return group


def attention_of(rows: Measured) -> Attention:
    """Return the attention these rows timed, as columns."""
    s = rows.sizes
    dtype, kv_dtype = rows.dtypes.split("_")
    requests, heads = s["batch_size"], s["num_heads"]
    window = s.get("window_size", heads * 0.0)
    seen = np.where(window > 0.0, window, np.inf)
    decode = rows.kernel.endswith("decode")
    if decode:
        query_tokens = requests
        pairs = kv_tokens = requests * np.minimum(s["isl"] + s["step"], seen)
    else:
        new, past = np.minimum(s["isl"], seen), np.minimum(s["step"], seen)
        pairs = requests * (new * (new + 1.0) / 2.0 + (s["isl"] - new) * new + s["isl"] * past)
        query_tokens, kv_tokens = requests * s["isl"], requests * (s["isl"] + past)
    decodes = s.get("decodes", heads * 0.0)
    decode_kv_tokens = decodes * s.get("decode_keys", decodes)
    latent = rows.kernel.startswith("mla")
    kv_heads, head_dim = s.get("num_key_value_heads", heads), s.get("head_dim", heads * 0.0)
    if latent and decode:
        head_dim = np.full(heads.shape, LATENT_DECODE_DIM)
        kv_heads = np.full(heads.shape, 576.0 / (2.0 * LATENT_DECODE_DIM))
    elif latent:
        head_dim = np.full(heads.shape, LATENT_PREFILL_DIM)
    columns: dict[str, object] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return Attention(
        name=rows.kernel,
        phase=rows.kernel.removeprefix("mla_"),
        requests=requests + decodes,
        query_tokens=query_tokens + decodes,
        pairs=pairs + decode_kv_tokens,
        kv_tokens=kv_tokens + decode_kv_tokens,
        dtype=dtype,
        kv_dtype=kv_dtype,
        window=window,
        decodes=decodes,
        decode_kv_tokens=decode_kv_tokens,
        **columns,  # type: ignore[arg-type]  # a table has a head count per row
    )


@dataclass(frozen=True)
class Product:
    """One of the two products of a gated layer of experts, as columns."""

    sizes: tuple[Floats, Floats, Floats, Floats]  # routed rows, awake experts, n and k
    experts: Floats  # of this GPU
    top_k: Floats  # of them, per token


def products_of(rows: Measured) -> tuple[Product, Product]:
    """Return the two products of a gated layer.

    Balanced tables spread tokens evenly: as many experts wake as there are routed rows. Others are
    taken as independent draws, unless they say how many woke.
    """
    s = rows.sizes
    experts = np.maximum(s["num_experts"] / s["moe_ep_size"], 1.0)
    top_k = s["topk"] / s["moe_ep_size"]
    routed = np.maximum(s["num_tokens"] * top_k, 1.0)
    awake = np.minimum(experts, routed)
    if rows.spread != "balanced":
        chance = np.minimum(1.0, s["topk"] / s["num_experts"])
        awake = np.maximum(experts * (1.0 - (1.0 - chance) ** s["num_tokens"]), 1.0)
    routed, awake = s.get("routed", routed), s.get("awake", awake)
    width, hidden = s["inter_size"] / s["moe_tp_size"], s["hidden_size"]
    return (
        Product((routed, awake, 2.0 * width, hidden), experts, top_k),
        Product((routed, awake, hidden, width), experts, top_k),
    )
