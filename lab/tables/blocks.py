"""Measured attention blocks, and the operators that this product composes them of.

A block is one layer's norms of latents, projections, indexer and attention. `blocks.toml` names the
tables. The heads of a row are those of one GPU; everything that ranks do not split stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.tables.kernels import NAMED, newest_releases
from lab.tables.rows import UPPER_HALF, Bools, Floats, Record, fraction, group_of, read_frame
from simulators.catalog.engine import kernel_choices
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import OVERLAPPED, LanguageModel, load_model
from simulators.composition.adjustments import whole_lists
from simulators.core.folder import read_toml
from simulators.evidence.lookup import BEST
from simulators.kernels.price import price, roofline_s
from simulators.workload.llm.attention import decode_operators, prefill_operators
from simulators.workload.llm.parallelism import Parallelism, Stage
from simulators.workload.llm.step import Shard, Step
from simulators.workload.llm.transformer import attention_projections
from simulators.workload.operators import Compute

FACTS = Record(read_toml(Path(__file__).with_suffix(".toml")))
PHASES = ("prompts", "decodes")
SIZES = ("batch_size", "isl", "step", "num_heads")
IN_SHORT_PROMPTS = ("kv_up", "prefill_attention")
IN_LONG_PROMPTS = ("index_scores", "index_choice", "q_absorb", "decode_attention", "v_expand")
"""Operators of prompts shorter than an indexer's list that attend to all keys, and of others."""

EAGER = "eager"
"""Part of the path of blocks whose kernels are not replayed as a CUDA graph."""

LONE = "one token"
"""Part of the path of prompts' chunks of one token, which some engines run as decodes."""

FIRST = ("latent_down", "qkv_proj")
"""Products of a block's input."""

ONE_LAYER = Stage(dense_layers=1, expert_layers=0, has_embedding=False, has_head=False)


@dataclass(frozen=True)
class TimedBlock:
    """Measured blocks of a model in a precision on a GPU; columns have an entry per row."""

    gpu: str
    framework: str
    kind: str  # of attention: a key of `blocks` in the facts
    phase: str
    path: str  # what kernels the host launches: precision of products, lists, indexer, CUDA graph
    kv_dtype: str
    operators: tuple[Compute, ...]
    seconds: Floats
    held_out: Bools


def read_blocks(reference: Path, gpu: str) -> Iterator[TimedBlock]:
    """Yield the blocks of one GPU by kind, phase, framework, model and precisions."""
    for kind, names in FACTS.blocks.items():
        for phase, name in zip(PHASES, names, strict=True):
            file = reference / FACTS.folder / f"{name}.parquet"
            if file.is_file():
                found = _read(file, gpu, kind, phase)
                yield from (block for block in found if not is_left_out(block))


def is_left_out(block: TimedBlock) -> bool:
    """Return whether the times of an engine's blocks are not those of its kernels."""
    return any(
        (block.kind, block.framework) == (one["kind"], one["framework"])
        and block.gpu in one["gpus"]
        and block.phase in one["phases"]
        for one in FACTS.left_out
    )


def _read(file: Path, gpu: str, kind: str, phase: str) -> Iterator[TimedBlock]:
    words = pl.col("gpu", "framework", "version", "op_name").cast(pl.String)
    frame = newest_releases(read_frame(file, gpu=NAMED.get(gpu, gpu)).with_columns(words))
    if "compress_ratio" not in frame.columns:
        frame = frame.with_columns(compress_ratio=pl.lit(0))
    known = frame.filter(pl.col("gemm_type").is_in(FACTS.dtypes))
    if phase == PHASES[1]:
        known = known.filter(pl.col("isl") == 1)
    top_k = {name: load_model(name).index_top_k for name in known["model"].unique()}
    keys = pl.col("step") + pl.col("isl") > pl.col("model").replace_strict(top_k)
    by = (*FACTS.labels, "is_long", "is_eager", "is_lone")
    most = pl.col("framework").replace_strict(_captured(gpu), default=np.inf)
    eager = (pl.col("batch_size") > most) if phase == PHASES[1] else pl.lit(value=False)
    lone = (pl.col("isl") == 1) & pl.lit(phase == PHASES[0])
    known = known.with_columns(is_long=keys, is_eager=eager, is_lone=lone)
    for labels, rows in known.group_by(by, maintain_order=True):
        label = Record(zip(by, labels, strict=True))
        sizes = {name: rows[name].to_numpy().astype(np.float64) for name in SIZES}
        bucket = fraction(group_of(sizes.values()))
        operators = composed(_shard(label), sizes, phase, gpu, label.framework)
        skips = FACTS.skipped in label.op_name
        if skips or label.compress_ratio > OVERLAPPED:
            operators = tuple(o for o in operators if not o.name.startswith("index"))
        seconds = rows["latency_us"].to_numpy() * 1e-6
        held_out = bucket >= UPPER_HALF[0]
        kv_dtype = FACTS.kv_dtypes[label.kv_cache_dtype]
        path = ", ".join(
            [
                FACTS.dtypes[label.gemm_type],
                *["lists"] * (label.is_long and phase == PHASES[0]),
                *["no indexer"] * skips,
                *[EAGER] * label.is_eager,
                *[LONE] * label.is_lone,
            ]
        )
        yield TimedBlock(
            gpu, label.framework, kind, phase, path, kv_dtype, operators, seconds, held_out
        )


def _captured(gpu: str) -> dict[str, float]:
    """Return the largest batch of decodes in CUDA graphs, by engine."""
    return {name: sizes.get(gpu, np.inf) for name, sizes in FACTS.captured.items()}


def composed(
    shard: Shard, sizes: dict[str, Floats], phase: str, gpu: str, framework: str
) -> tuple[Compute, ...]:
    """Return the operators of a block, with columns of one entry per row."""
    choices = kernel_choices(framework)
    unused: tuple[str, ...] = ()
    requests, new, past = (sizes[name] for name in SIZES[:3])
    if phase == PHASES[1]:
        step = Step(decodes=requests, decode_kv_tokens=requests * (past + new))
        attention, tokens = decode_operators(shard, step), requests
    else:
        tokens = requests * new
        step = Step(
            prefills=requests,
            prefill_tokens=tokens,
            prefill_pairs=requests * (new * past + new * (new + 1.0) / 2.0),
            prefill_kv_tokens=requests * (past + new),
        )
        chooses = bool(np.all(_is_long(shard.model, past + new, framework)))
        attention = prefill_operators(shard, step, chooses=chooses)
        if shard.model.is_latent and shard.model.index_top_k and not shard.model.compress_ratios:
            unused = IN_SHORT_PROMPTS if chooses else IN_LONG_PROMPTS
    architecture = load_gpu(gpu).architecture
    attention = whole_lists(
        attention,
        shard.model,
        skips_empty_keys=architecture in choices.skips_empty_keys,
        as_pages=phase == PHASES[1] and architecture in choices.lists_as_pages,
    )
    both = (*attention_projections(shard, tokens), *attention)
    without = {*choices.fused_into_attention, *unused}
    return tuple(o for o in both if o.repeat and o.name not in without)


def _is_long(model: LanguageModel, keys: Floats, framework: str) -> Bools:
    """Return a mask of the prompts whose queries attend to lists of keys."""
    all_keys = kernel_choices(framework).attends_to_all_in_short_prompts
    return (keys > model.index_top_k) | (not all_keys)


def _shard(label: Record) -> Shard:
    model = _one_layer(load_model(label.model), int(label.num_heads), int(label.compress_ratio))
    dtype, kv_dtype = FACTS.dtypes[label.gemm_type], FACTS.kv_dtypes[label.kv_cache_dtype]
    return Shard(model, Parallelism(), ONE_LAYER, dtype, kv_dtype)


def _one_layer(model: LanguageModel, heads: int, ratio: int) -> LanguageModel:
    """Return a layer of the model with the heads of one GPU."""
    share = heads / model.heads
    changed: dict[str, Any] = {
        "layers": 1,
        "dense_layers": 0,
        "heads": heads,
        "kv_heads": heads if model.is_latent else max(1, round(model.kv_heads * share)),
        "output_groups": max(1, round(model.output_groups * share)),
    }
    if model.compress_ratios:
        changed["compress_ratios"] = (ratio,)
    if model.index_layers:
        changed["index_layers"] = 1
    if not model.is_latent:
        changed["index_heads"] = max(1, round(model.index_heads * share))
    return replace(model, **changed)


def kernels_s(block: TimedBlock, level: str = BEST) -> Floats:
    """Return the seconds of a block's kernels, one after the other, at a level of information.

    Quantization is in the kernels before a product, except before the first.
    """
    gpu, total = load_gpu(block.gpu), np.zeros_like(block.seconds)
    for operator in block.operators:
        alone = price(operator, gpu, level, block.framework)
        seconds = alone.latency_s
        if operator.name not in FIRST:
            least_s = roofline_s(operator, gpu)
            seconds = np.maximum(seconds - alone.quantising_s, least_s)
        total = total + seconds * operator.repeat
    return total
