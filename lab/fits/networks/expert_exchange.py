"""Fit DeepEP's all-to-all: a start time and the share of each link's bandwidth that is sustained.

Three numbers minimise the mean absolute log error of DeepEP's first version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration
from lab.fits.methods.held_out import COVERED_SHARE, leave_one_out, quantile
from lab.tables.collectives import EXCHANGES, DeepEpExchange, read_exchanges
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.collectives.library_models import EXCHANGE_CALIBRATION, Rates
from simulators.collectives.price import expert_exchange_time
from simulators.core.jit import Floats

FOLDER = EXCHANGE_CALIBRATION.parent
FITTED = "V1"
STARTS_S, SHARES = np.arange(10e-6, 60e-6, 2e-6), np.arange(0.5, 1.0 + 1e-9, 0.02)


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the numbers of DeepEP's exchanges."""
    rows = [row for row in read_exchanges(reference) if row.kernel.startswith(FITTED)]
    errors = np.concatenate([off for _, off in left_out(rows)])
    band = float(np.exp(quantile(np.abs(errors), COVERED_SHARE)))
    yield Calibration(
        name=EXCHANGE_CALIBRATION.stem,
        content={"exchange": {**vars(fitted(rows)), "band": band}},
        style=".3g",
        tables=[EXCHANGES],
        rows=len(rows),
        split="each number of ranks in turn",
        errors=np.expm1(errors),
    )


def left_out(rows: Sequence[DeepEpExchange]) -> Iterator[tuple[list[DeepEpExchange], Floats]]:
    """Yield the rows of each number of ranks, and their log errors by a fit to the others."""
    for mine, rates in leave_one_out(rows, lambda row: row.ranks, fitted):
        yield mine, log_errors(mine, rates)


def fitted(rows: Sequence[DeepEpExchange]) -> Rates:
    """Return the rates with the least mean absolute log error."""
    seconds = np.array([row.seconds for row in rows])
    near_s, far_s = (
        np.array([_predicted_s(row, alone) for row in rows])
        for alone in (Rates(0.0, 1.0, np.inf), Rates(0.0, np.inf, 1.0))
    )

    def error(rates: Rates) -> float:
        wire_s = np.maximum(near_s / rates.inside, far_s / rates.between)
        return float(np.abs(np.log((rates.start_s + wire_s) / seconds)).mean())

    tried = product(STARTS_S.tolist(), SHARES.tolist(), SHARES.tolist())
    return min((Rates(*numbers) for numbers in tried), key=error)


def log_errors(rows: Sequence[DeepEpExchange], rates: Rates | None) -> Floats:
    """Return log(predicted / measured) of each row; without rates, by the calibrated ones."""
    return np.array([float(np.log(_predicted_s(row, rates) / row.seconds)) for row in rows])


def _predicted_s(row: DeepEpExchange, rates: Rates | None) -> float:
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
