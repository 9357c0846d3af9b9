"""Claims about collectives: sizes and ranks left out, clusters, and DeepEP's expert exchange.

Rows are predicted over measured seconds. Between nodes, a latency and a share of the bandwidth are
fitted to a system's other numbers of ranks. DeepEP's second version is in no fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.fits import collectives as fits
from lab.fits import links
from lab.tables.collectives import (
    DeepEpExchange,
    Libraries,
    read_between_nodes,
    read_exchanges,
    read_libraries,
)
from lab.tables.rows import Floats
from simulators.collectives.measured import NETWORKS


def ranks_left_out(reference: Path) -> pl.DataFrame:
    """Return curves between nodes, each by a fit to the other numbers of ranks of its system."""
    curves = links.large_messages(read_between_nodes(reference))
    frames = []
    for curve in curves:
        alike = [c for c in curves if (c.system, c.collective) == (curve.system, curve.collective)]
        if others := [other for other in alike if other.ranks != curve.ranks]:
            errors = links.network_log_errors(curve, links.fit_network(others))
            label = f"{curve.system.name} {curve.collective} of {curve.ranks}"
            frames.append(_frame(errors, label=label))
    return together(frames)


def exchanges(reference: Path) -> pl.DataFrame:
    """Return DeepEP's dispatches and combines, each by a fit to other numbers of ranks, by mode."""
    rows = read_exchanges(reference)
    first = [row for row in rows if row.kernel.startswith(links.FITTED_VERSION)]
    later = [row for row in rows if not row.kernel.startswith(links.FITTED_VERSION)]
    errors = links.exchange_log_errors(later, links.fit_rates(first))
    version_2 = _exchange_frame(later, errors).with_columns(mode=pl.lit("version 2"))
    left_out = links.exchanges_left_out(first)
    return together([*(_exchange_frame(mine, found) for mine, found in left_out), version_2])


def _exchange_frame(rows: Sequence[DeepEpExchange], log_error: Floats) -> pl.DataFrame:
    labels = [f"{row.op} of {row.ranks}" for row in rows]
    return _frame(log_error, mode=[row.mode for row in rows], label=labels)


def sizes(reference: Path) -> pl.DataFrame:
    """Return held-out sizes of the curves of each library."""
    frames = []
    for gpu, libraries in _known(reference).items():
        for library, curves in libraries.items():
            held, errors = fits.held_out_errors(curves)
            names = np.array([" ".join(map(str, key)) for key in curves.keys])
            cells = {"curve": names[held.curve], "octave": held.octave}
            frames.append(_frame(errors, gpu=gpu, library=library, **cells))
    return together(frames)


def growth(reference: Path) -> pl.DataFrame:
    """Return times at eight ranks, from four ranks and the growth of other GPUs."""
    table = _known(reference)
    return together(
        _frame(errors, gpu=gpu, collective=collective)
        for collective in fits.COLLECTIVES
        for gpu, errors in fits.growth_errors(table, fits.NVLINK, collective).items()
    )


def ranks_between(reference: Path) -> pl.DataFrame:
    """Return times at four ranks, from two and eight."""
    table = _known(reference)
    return together(
        _frame(fits.errors_between(curves, key), gpu=gpu)
        for gpu in fits.NVLINK
        if (curves := table.get(gpu, {}).get("nccl")) is not None
        for key in curves.keys
        if key[2] == 4
    )


def coverage(reference: Path) -> pl.DataFrame:
    """Return whether rows are inside intervals fitted without them, by what is left out."""
    table = _known(reference)
    splits = {
        "sizes": [fits.held_out_coverage(one["nccl"]) for one in table.values() if "nccl" in one],
        "ranks_8_from_4": [
            fits.growth_coverage(table, fits.NVLINK, name) for name in fits.COLLECTIVES
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


def _frame(log_error: Floats, **labels: object) -> pl.DataFrame:
    return columns(predicted=np.exp(log_error), measured=np.ones(log_error.size), **labels)
