"""Layers of pipeline stages: what each chunk of a pipeline and each rank holds.

Layers are split evenly over chunks. Where they do not divide, the chunks at the ends of the model
have one layer less, then the last chunks. Chunks at the ends may have no layer: embedding and head
are then chunks of their own (Llama 3, 2024).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from simulators.core.jit import Ints
from simulators.training.schedule import DUALPIPE, stage_of

DENSE, EXPERTS, TABLE, HEAD = range(4)
"""Columns of a chunk or a rank: dense layers, layers with experts, embeddings, heads."""


@dataclass(frozen=True)
class PipelinedModel:
    """Layers of a model, of which the first `dense` have no experts."""

    layers: int
    dense: int


@functools.lru_cache(maxsize=4096)
def chunk_contents(model: PipelinedModel, chunks: int) -> Ints:
    """Return what each chunk of a pipeline holds, (chunks, 4): see `DENSE` and what follows.

    >>> chunk_contents(PipelinedModel(layers=6, dense=1), 4).tolist()
    [[1, 0, 1, 0], [0, 2, 0, 0], [0, 2, 0, 0], [0, 1, 0, 1]]
    """
    sizes = np.array(even_sizes(model.layers, chunks), np.int64)
    before = np.cumsum(sizes) - sizes
    held = np.zeros((chunks, 4), np.int64)
    held[:, DENSE] = np.clip(model.dense - before, 0, sizes)
    held[:, EXPERTS] = sizes - held[:, DENSE]
    held[0, TABLE] = held[-1, HEAD] = 1
    return held


def even_sizes(layers: int, chunks: int) -> list[int]:
    """Return the layers of each chunk; ends of the model are shortened first.

    >>> even_sizes(14, 4), even_sizes(5, 4), even_sizes(4, 6)
    ([3, 4, 4, 3], [1, 2, 1, 1], [0, 1, 1, 1, 1, 0])
    """
    each, extra = divmod(layers, chunks)
    short = chunks - extra if extra else 0
    shortened = [chunks - 1, 0, *range(chunks - 2, 0, -1)][:short]
    sizes = [each + (1 if extra else 0)] * chunks
    for chunk in shortened:
        sizes[chunk] -= 1
    return sizes


@functools.lru_cache(maxsize=4096)
def rank_contents(
    model: PipelinedModel, schedule: int, pp: int, chunks: int, ranks: tuple[int, ...]
) -> Ints:
    """Return what some ranks hold, in the columns of `chunk_contents`: (ranks, 4)."""
    number = pp * chunks
    every = chunk_contents(model, number)
    copies = range(2 if schedule == DUALPIPE else chunks)
    stages = [[stage_of(schedule, c, rank, pp) % number for c in copies] for rank in ranks]
    return np.array([every[mine].sum(axis=0) for mine in stages], np.int64)
