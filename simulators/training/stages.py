"""Layers of pipeline stages: what each chunk of a pipeline and each rank holds.

By default layers are split evenly over chunks. Where one or two are missing, the chunks at the ends
of the model have one layer less: embedding and head count as layers (Megatron-LM), and may be
chunks of their own (Llama 3, 2024). Where more are missing, the last chunk has what is left, if
anything is (as in NVIDIA's layouts of DeepSeek-V3 and Kimi K2), or else chunks before it are
shortened too. The first and the last rank may have other
numbers of layers than the ranks between them (Megatron-LM, `--decoder-first-pipeline-num-layers`),
or a layout states the content of every chunk (`--pipeline-model-parallel-layout`).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Ints

DENSE, EXPERTS, TABLE, HEAD, MTP = range(5)
"""Columns of a chunk or a rank: dense layers, layers with experts, embeddings, heads, and layers
that predict a further token, each with its head."""

LETTERS = "EtmL"
"""Letters of a layout: embedding, layer, layer of multi-token prediction, head with loss."""
REPEATED = (r"\(([^()]+)\)\*(\d+)", r"(.)\*(\d+)")
MOST_CHUNKS = 4096

ENDS = 2
"""Chunks with the embedding or the head."""


@dataclass(frozen=True)
class PipelinedModel:
    """Layers of a model, of which the first `dense` have no experts, and a layout or none."""

    layers: int
    dense: int
    mtp: int = 0
    layout: str = ""


@functools.lru_cache(maxsize=256)
def read_layout(text: str) -> tuple[str, ...]:
    """Return the letters of each chunk of a layout in Megatron-LM's notation; empty for no text.

    Raises:
        UserError: the text is no layout.

    >>> read_layout("Et*2|(t|)*2mL")
    ('Ett', 't', 't', 'mL')
    """
    unrolled = text.replace(",", "")
    for pattern in REPEATED:
        counts = [int(count) for _, count in re.findall(pattern, unrolled)]
        if sum(counts) > MOST_CHUNKS:
            raise UserError(f"pipeline_layout '{text}' repeats more than {MOST_CHUNKS:,} times")
        unrolled = re.sub(pattern, lambda found: found[1] * int(found[2]), unrolled)
    if set(unrolled) - set(LETTERS + "|"):
        raise UserError(
            f"pipeline_layout '{text}' must have E (embedding), t (layer), m (multi-token "
            "prediction) and L (loss), chunks between |, repeats as t*3 or (tt|)*3"
        )
    return tuple(unrolled.split("|")) if unrolled else ()


def layout_error(model: PipelinedModel, pp: int, chunks: int) -> str:
    """Return why a layout does not fit a model and a pipeline, or an empty string."""
    held = read_layout(model.layout)
    if len(held) != pp * chunks:
        return f"pipeline_layout_chunks: {len(held)} chunks, pp {pp} x chunks {chunks}"
    letters = "".join(held)
    if letters != "E" + "t" * model.layers + "m" * model.mtp + "L":
        has = f"{letters.count('t')} t and {letters.count('m')} m"
        return (
            f"pipeline_layout_layers: {has}, the model has {model.layers} layers and "
            f"{model.mtp} of multi-token prediction, between E and L"
        )
    predicting = [chunk for chunk, one in enumerate(held) if "m" in one]
    if len(predicting) > 1 or (predicting and predicting[0] < pp * (chunks - 1) + (pp > 1)):
        return "pipeline_layout_mtp: m must be in one last chunk of a rank other than the first"
    return ""


@functools.lru_cache(maxsize=4096)
def chunk_contents(
    model: PipelinedModel, pp: int, chunks: int, first: int = 0, last: int = 0
) -> Ints:
    """Return what each chunk of a pipeline holds, (pp x chunks, 5): see `DENSE` and what follows.

    `first` and `last` are the layers of the first and the last rank; 0: as many as the others.

    >>> chunk_contents(PipelinedModel(layers=6, dense=1), 4, 1).tolist()
    [[1, 0, 1, 0, 0], [0, 2, 0, 0, 0], [0, 2, 0, 0, 0], [0, 1, 0, 1, 0]]
    """
    number, letters = pp * chunks, read_layout(model.layout)
    sizes = np.array(
        [one.count("t") for one in letters]
        if letters
        else stage_sizes(model.layers, pp, first, last, chunks) * chunks
        if first or last
        else even_sizes(model.layers, number),
        np.int64,
    )
    before = np.cumsum(sizes) - sizes
    held = np.zeros((number, 5), np.int64)
    held[:, DENSE] = np.clip(model.dense - before, 0, sizes)
    held[:, EXPERTS] = sizes - held[:, DENSE]
    held[0, TABLE] = held[-1, HEAD] = 1
    predicting = next((chunk for chunk, one in enumerate(letters) if "m" in one), number - 1)
    held[predicting, MTP] = model.mtp
    return held


def even_sizes(layers: int, chunks: int) -> list[int]:
    """Return the layers of each chunk; ends of the model are shortened first.

    >>> even_sizes(14, 4), even_sizes(5, 4), even_sizes(4, 6)
    ([3, 4, 4, 3], [1, 2, 1, 1], [0, 1, 1, 1, 1, 0])
    >>> even_sizes(61, 8)
    [8, 8, 8, 8, 8, 8, 8, 5]
    """
    each, extra = divmod(layers, chunks)
    short = chunks - extra if extra else 0
    if ENDS < short <= each:
        return [each + 1] * (chunks - 1) + [each + 1 - short]
    shortened = [chunks - 1, 0, *range(chunks - 2, 0, -1)][:short]
    sizes = [each + (1 if extra else 0)] * chunks
    for chunk in shortened:
        sizes[chunk] -= 1
    return sizes


def stage_sizes(layers: int, pp: int, first: int, last: int, chunks: int = 1) -> list[int]:
    """Return the layers of a chunk of each rank, where the ends have `first` and `last` layers.

    >>> stage_sizes(61, 4, 13, 0), stage_sizes(58, 4, 14, 12, chunks=2)
    ([13, 16, 16, 16], [7, 8, 8, 6])
    """
    between = pp - (first > 0) - (last > 0)
    each = (layers - first - last) // max(1, between)
    sizes = [first or each, *[each] * (pp - 2), last or each]
    return [size // chunks for size in sizes]
