"""Watts and joules per output token of served models against ML.ENERGY's, which nobody fitted to.

No kernel of these boards was metered: their watts are by the formula of a board of their
architecture. Joules per token are watts over a rate, so they err by that of both. A rank
correlation says whether what draws more is said to: of all GPUs of a row, as the table states
watts, and of one.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import answered, at_least, rank_correlation, ratio_line, skipped_lines
from lab.fits.left_out import shelf_without
from lab.tables.kernels.served_energy import SERVED, Served, served
from simulators.catalog.model import load_model
from simulators.core.contract import Check
from simulators.serving.simulator import simulate

NEEDS = (SERVED,)
BAR, LEAST_LIKENESS = 20.0, 0.8
"""Of mean errors in percent, and of rank correlations, asked of a board that was left out."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of watts and of joules per token, and, without a limit, of the time."""
    told, untold = served(reference)
    yield from skipped_lines("served energy", Counter(untold))
    shelf = functools.cache(shelf_without)

    def ratios(row: Served) -> tuple[float, float, float]:
        metrics = simulate(row.point, shelf(row.point.runtime, row.group))
        assert metrics.tpot_mean_s is not None
        assert metrics.energy_j_per_token is not None
        watts = metrics.energy_j_per_token * metrics.tokens_per_s / _gpus(row)
        return (
            watts / row.watts,
            metrics.energy_j_per_token / row.token_j,
            metrics.tpot_mean_s / row.itl_median_s,
        )

    found = answered("served energy", told, ratios)
    yield from found.lines
    watts, joules, time = np.array(found.answers, np.float64).reshape(-1, 3).T
    yield ratio_line("served energy, watts, board left out", watts, BAR)
    measured = np.array([row.watts for row in found.rows])
    gpus = np.array([_gpus(row) for row in found.rows])
    for whose, each, limit in (("of all GPUs", gpus, LEAST_LIKENESS), ("of one GPU", 1, None)):
        name = f"served energy, watts {whose}, rank correlation"
        likeness = rank_correlation(watts * measured * each, measured * each)
        yield at_least(name, likeness, limit, watts.size, unit="")
    yield ratio_line("served energy, joules per token, board left out", joules, BAR)
    mixed = np.array([load_model(row.point.model).experts > 0 for row in found.rows], bool)
    for kind, which in (("dense models", ~mixed), ("mixtures of experts", mixed)):
        yield ratio_line(f"served energy, joules per token, {kind}", joules[which], None)
    yield ratio_line("served energy, time per token", time, None)


def _gpus(row: Served) -> int:
    return row.point.tp * row.point.attention_dp * row.point.replicas
