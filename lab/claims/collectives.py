"""Collectives over several nodes, as nccl-tests measured them on clusters.

A latency and a share of the bandwidth are fitted to a system's other numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.fits import collectives
from lab.fits.links import (
    FITTED_VERSION,
    exchange_log_errors,
    exchanges_left_out,
    fit_network,
    fit_rates,
    large_messages,
    network_log_errors,
)
from lab.tables.collectives import (
    Curves,
    DeepEpExchange,
    Libraries,
    NodesCurve,
    read_between_nodes,
    read_exchanges,
    read_libraries,
)
from lab.tables.rows import Floats
from simulators.collectives.measured import NETWORKS


def ranks_left_out(reference: Path) -> pl.DataFrame:
    """Return errors of curves of each system and collective under those of other ranks."""
    curves = large_messages(read_between_nodes(reference))
    frames = []
    for curve in curves:
        alike = [c for c in curves if (c.system, c.collective) == (curve.system, curve.collective)]
        if others := [other for other in alike if other.ranks != curve.ranks]:
            frames.append(_errors(curve, others))
    return together(frames)


def _errors(curve: NodesCurve, others: Sequence[NodesCurve]) -> pl.DataFrame:
    """Return predicted over measured seconds of a curve, by a network fitted to other curves."""
    ratio = np.exp(network_log_errors(curve, fit_network(others)))
    label = f"{curve.system.name} {curve.collective} of {curve.ranks}"
    return columns(predicted=ratio, measured=1.0 + 0.0 * ratio, label=label)


def exchanges(reference: Path) -> pl.DataFrame:
    """Return predicted over measured seconds of each kernel, by mode; the later version is one."""
    rows = read_exchanges(reference)
    first = [row for row in rows if row.kernel.startswith(FITTED_VERSION)]
    later = [row for row in rows if not row.kernel.startswith(FITTED_VERSION)]
    frames = [_exchange_frame(mine, errors) for mine, errors in exchanges_left_out(first)]
    version_2 = _exchange_frame(later, exchange_log_errors(later, fit_rates(first))).with_columns(
        mode=pl.lit("version 2")
    )
    return together([*frames, version_2])


def _exchange_frame(rows: Sequence[DeepEpExchange], log_error: Floats) -> pl.DataFrame:
    return columns(
        predicted=np.exp(log_error),
        measured=np.ones(len(rows)),
        mode=[row.mode for row in rows],
        label=[f"{row.op} of {row.ranks}" for row in rows],
    )


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
