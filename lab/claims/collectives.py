"""Claims about collectives: sizes and ranks left out, clusters, and DeepEP's expert exchange.

Rows are predicted over measured seconds. Between nodes, a latency and a share of the bandwidth are
fitted to a system's other numbers of ranks. DeepEP's second version is in no fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.claim import columns
from lab.fits import collectives as fits
from lab.tables import collectives as tables
from lab.tables.rows import Floats
from simulators.collectives.library_models import (
    HIGH_THROUGHPUT,
    LOW_LATENCY,
    exchange_rates,
    network_between,
)
from simulators.collectives.measured import NETWORKS


def ranks_left_out(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield curves between nodes, by a fit to other numbers of ranks of the same system.

    `split` is `ranks` (fitted to fewer and more ranks) or `beyond` (to fewer ranks alone).
    Intervals have the width of the shipped ones.
    """
    curves = fits.without_launch_bound_messages(tables.read_between_nodes(reference))
    for curve in curves:
        alike = [c for c in curves if (c.system, c.collective) == (curve.system, curve.collective)]
        band = network_between(curve.collective).band
        for split, seen in (
            ("ranks", [other for other in alike if other.ranks != curve.ranks]),
            ("beyond", [other for other in alike if other.ranks < curve.ranks]),
        ):
            if seen:
                errors = fits.network_log_errors(curve, fits.fit_network(seen))
                label = f"{curve.system.name} {curve.collective} of {curve.ranks}"
                yield _frame(errors, label=label, split=split, band=band)


def exchanges(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield DeepEP's dispatches and combines by a fit to other ranks, GPUs or the other source.

    `mode` is that of the kernels. In no fit: DeepEP's second version, which copies without SMs, and
    TensorRT-LLM's kernels within an NVLink domain, by the rates of low latency.
    Intervals are fitted without the rows.
    """
    rows = fits.fitted_exchanges(reference)
    for mode, split in product((HIGH_THROUGHPUT, LOW_LATENCY), fits.LEFT_OUT):
        mine = [row for row in rows if row.mode == mode]
        for out, errors, band in fits.exchanges_left_out(mine, split):
            labels = {"mode": mode, "split": split, "label": _labels(out)}
            kernels = [row.kernel for row in out]
            yield _frame(errors, **labels, kernel=kernels, band=band)
    many = fits.fit_rates([row for row in rows if row.mode == HIGH_THROUGHPUT])
    later = [row for row in tables.read_exchanges(reference) if row not in rows]
    errors = fits.exchange_log_errors(later, replace(many, copied_bytes_per_s=math.inf))
    yield _frame(errors, mode="version 2", split="version", label=_labels(later), kernel="V2")

    in_domain = tables.read_in_domain(reference)
    few = fits.fit_rates([row for row in rows if row.mode == LOW_LATENCY])
    errors = fits.exchange_log_errors(in_domain, few)
    band = exchange_rates(LOW_LATENCY).band
    labels = {"mode": "NVLink domain", "split": "backend", "label": _labels(in_domain)}
    yield _frame(errors, **labels, kernel="TensorRT-LLM", band=band)


def _labels(rows: Sequence[tables.DeepEpExchange]) -> list[str]:
    return [f"{row.op} of {row.tokens} tokens, {row.ranks} {row.gpu}" for row in rows]


def sizes(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield held-out sizes of the curves of each library; baseline: start and rate alone."""
    for gpu, libraries in _known(reference).items():
        for library, curves in libraries.items():
            held, errors = fits.held_out_errors(curves)
            _, simpler = fits.held_out_errors(curves, has_departures=False)
            names = np.array([" ".join(map(str, key)) for key in curves.keys])
            cells: dict[str, Any] = {
                "curve": names[held.curve],
                "octave": held.octave,
                "baseline": np.exp(simpler),
            }
            yield _frame(errors, gpu=gpu, library=library, **cells)


def growth(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield times at eight ranks, from four ranks and the growth of other GPUs."""
    table = _known(reference)
    for collective in fits.CONFIG.collectives:
        for gpu, errors in fits.growth_errors(table, fits.CONFIG.nvlink, collective).items():
            yield _frame(errors, gpu=gpu, collective=collective)


def ranks_between(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield times at four ranks, from two and eight."""
    table = _known(reference)
    for gpu in fits.CONFIG.nvlink:
        if (curves := table.get(gpu, {}).get("nccl")) is not None:
            keys = (key for key in curves.keys if key[2] == 4)
            yield from (_frame(fits.errors_between(curves, key), gpu=gpu) for key in keys)


def coverage(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield whether rows are inside intervals fitted without them, by what is left out."""
    table = _known(reference)
    for one in table.values():
        if "nccl" in one:
            yield columns(predicted=fits.held_out_coverage(one["nccl"]), split="sizes")
    for name in fits.CONFIG.collectives:
        inside = fits.growth_coverage(table, fits.CONFIG.nvlink, name)
        yield columns(predicted=inside, split="ranks_8_from_4")


def _known(reference: Path) -> tables.Libraries:
    return {gpu: one for gpu, one in tables.read_libraries(reference).items() if NETWORKS.has(gpu)}


def _frame(log_error: Floats, *, band: float = math.nan, **labels: object) -> pl.DataFrame:
    ratio = np.exp(log_error)
    ends = {} if math.isnan(band) else {"lo": ratio / band, "hi": ratio * band}
    return columns(predicted=ratio, measured=np.ones(ratio.size), **ends, **labels)
