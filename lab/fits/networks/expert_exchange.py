"""Fit what DeepEP's exchanges take to start, and which shares of their links they sustain.

Three numbers for both kinds of kernels, so that the mean |log(predicted / measured)| is least.
DeepEP's first version alone is fitted; each number of ranks is left out in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes, table_lines
from lab.tables.collectives import EXCHANGES, Exchange, read_exchanges
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.collectives.closed.expert_exchange import CALIBRATION, Rates
from simulators.collectives.price import expert_exchange_time
from simulators.core.jit import Floats

FOLDER = CALIBRATION.parent
FITTED = "V1"
SPLIT = "each number of ranks in turn"

STARTS_S = np.arange(10e-6, 60e-6, 2e-6)
SHARES = np.arange(0.5, 1.0 + 1e-9, 0.02)


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the numbers of DeepEP's exchanges."""
    rows = [row for row in read_exchanges(reference) if row.kernel.startswith(FITTED)]
    errors = np.concatenate([e for _, e in left_out(rows)])
    found = fitted(rows)
    band = float(np.exp(np.quantile(np.abs(errors), 0.9)))
    numbers = {
        "start_s": found.start_s,
        "inside": found.inside,
        "between": found.between,
        "band": band,
    }
    yield calibration(
        CALIBRATION.stem,
        hashes(reference, [EXCHANGES]),
        rows=len(rows),
        split=SPLIT,
        held_out=np.expm1(errors),
        lines=table_lines("exchange", numbers, ".3g"),
    )


def left_out(rows: Sequence[Exchange]) -> Iterator[tuple[list[Exchange], Floats]]:
    """Yield the rows of each number of ranks, and log(predicted / measured) by the others."""
    for ranks in sorted({row.ranks for row in rows}):
        mine = [row for row in rows if row.ranks == ranks]
        yield mine, log_errors(mine, fitted([row for row in rows if row.ranks != ranks]))


def fitted(rows: Sequence[Exchange]) -> Rates:
    """Return the rates under which some rows are off least."""
    seconds = np.array([row.seconds for row in rows])
    near_s, far_s = (
        np.array([_predicted_s(row, alone) for row in rows])
        for alone in (Rates(0.0, 1.0, np.inf), Rates(0.0, np.inf, 1.0))
    )

    def off(rates: Rates) -> float:
        wire_s = np.maximum(near_s / rates.inside, far_s / rates.between)
        return float(np.abs(np.log((rates.start_s + wire_s) / seconds)).mean())

    tried = product(STARTS_S.tolist(), SHARES.tolist(), SHARES.tolist())
    return min((Rates(*numbers) for numbers in tried), key=off)


def log_errors(rows: Sequence[Exchange], rates: Rates | None) -> Floats:
    """Return log(predicted / measured) of each row."""
    return np.array([float(np.log(_predicted_s(row, rates) / row.seconds)) for row in rows])


def _predicted_s(row: Exchange, rates: Rates | None) -> float:
    gpu = load_gpu(row.gpu)
    found = expert_exchange_time(
        row.mode,
        row.rank_bytes,
        row.routed,
        ranks=row.ranks,
        gpu=gpu,
        cluster=cluster_for("auto", gpu),
        rates=rates,
    )
    return float(found.time_s)
