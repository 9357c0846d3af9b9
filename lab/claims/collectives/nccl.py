"""Curves of NCCL and of engines' own libraries: sizes and ranks left out, and intervals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.fits import collectives
from lab.tables.collectives import Curves, Libraries, read_libraries
from lab.tables.rows import Floats
from simulators.collectives.measured import NETWORKS


def sizes(reference: Path) -> pl.DataFrame:
    """Return predicted over measured seconds of sizes that were held out of their curve."""
    frames = []
    for gpu, libraries in _known(reference).items():
        for library, curves in libraries.items():
            held, errors = collectives.held_out_errors(curves)
            names = np.array([" ".join(map(str, key)) for key in curves.keys])
            frames.append(
                _frame(
                    errors, gpu=gpu, library=library, curve=names[held.curve], octave=held.octave
                )
            )
    return together(frames)


def growth(reference: Path) -> pl.DataFrame:
    """Return the same at eight ranks, from four and the growth of other GPUs."""
    table = _known(reference)
    return together(
        _frame(errors, gpu=gpu, collective=collective)
        for collective in collectives.COLLECTIVES
        for gpu, errors in collectives.growth_errors(table, collectives.NVLINK, collective).items()
    )


def ranks_between(reference: Path) -> pl.DataFrame:
    """Return the same at four ranks, from two and eight."""
    return together(
        _frame(collectives.errors_between(curves, key), gpu=gpu)
        for gpu, curves in _nvlink(_known(reference))
        for key in curves.keys
        if key[2] == 4
    )


def coverage(reference: Path) -> pl.DataFrame:
    """Return whether rows are inside intervals fitted without them, by what was left out."""
    table = _known(reference)
    splits = {
        "sizes": [
            collectives.held_out_coverage(one["nccl"]) for one in table.values() if "nccl" in one
        ],
        "ranks_8_from_4": [
            collectives.growth_coverage(table, collectives.NVLINK, name)
            for name in collectives.COLLECTIVES
        ],
    }
    return together(
        columns(predicted=inside, split=split)
        for split, parts in splits.items()
        for inside in parts
    )


def _known(reference: Path) -> Libraries:
    """Return the measured curves of GPUs whose network is described."""
    return {gpu: one for gpu, one in read_libraries(reference).items() if NETWORKS.has(gpu)}


def _nvlink(table: Libraries) -> Iterator[tuple[str, Curves]]:
    for gpu in collectives.NVLINK:
        if "nccl" in table.get(gpu, {}):
            yield gpu, table[gpu]["nccl"]


def _frame(log_error: Floats, **labels: object) -> pl.DataFrame:
    return columns(predicted=np.exp(log_error), measured=np.ones(log_error.size), **labels)
