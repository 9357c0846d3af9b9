"""Watts and joules per output token of served models against ML.ENERGY's, which nobody fitted to.

No kernel of these boards was metered: their watts are by the formula of a board of their
architecture. Joules per token are watts over a rate, so they err by that of both. From its activity
a token costs the joules of what it switches, which take no heed of time, and what clocks and
leakage draw for as long as it took: at the rate that was measured the watts' form alone is judged,
as that of an accelerator is, whose cycles are known. A rank correlation says whether what draws
more is said to: of all GPUs of a row, as the table states watts, and of one.
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
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.core.contract import Check
from simulators.kernels.energy import awake_w
from simulators.serving.simulator import simulate

NEEDS = (SERVED,)
BAR, LEAST_LIKENESS = 20.0, 0.8
"""Of mean errors in percent, and of rank correlations, asked of a board that was left out."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of watts and of joules per token, and, without a limit, of the time."""
    told, untold = served(reference)
    yield from skipped_lines("served energy", Counter(untold))
    shelf = functools.cache(shelf_without)

    def ratios(row: Served) -> tuple[float, float, float, float]:
        metrics = simulate(row.point, shelf(row.point.runtime, row.group))
        assert metrics.tpot_mean_s is not None
        assert metrics.energy_j_per_token is not None
        watts = metrics.energy_j_per_token * metrics.tokens_per_s / _gpus(row)
        longer_s = 1.0 / row.tokens_per_s - 1.0 / metrics.tokens_per_s
        awake_j = _gpus(row) * awake_w(load_gpu(row.point.gpu)) * longer_s
        return (
            watts / row.watts,
            metrics.energy_j_per_token / row.token_j,
            (metrics.energy_j_per_token + awake_j) / row.token_j,
            metrics.tpot_mean_s / row.itl_median_s,
        )

    found = answered("served energy", told, ratios)
    yield from found.lines
    watts, joules, activity, time = np.array(found.answers, np.float64).reshape(-1, 4).T
    yield ratio_line("served energy, watts, board left out", watts, BAR)
    measured = np.array([row.watts for row in found.rows])
    gpus = np.array([_gpus(row) for row in found.rows])
    for whose, each, limit in (("of all GPUs", gpus, LEAST_LIKENESS), ("of one GPU", 1, None)):
        name = f"served energy, watts {whose}, rank correlation"
        likeness = rank_correlation(watts * measured * each, measured * each)
        yield at_least(name, likeness, limit, watts.size, unit="")
    mixed = np.array([load_model(row.point.model).experts > 0 for row in found.rows], bool)
    at_rate = "joules per token from activity, at the measured rate"
    for called, ratio, bar in (("joules per token", joules, None), (at_rate, activity, BAR)):
        yield ratio_line(f"served energy, {called}, board left out", ratio, BAR)
        for kind, which in (("dense models", ~mixed), ("mixtures of experts", mixed)):
            yield ratio_line(f"served energy, {called}, {kind}", ratio[which], bar)
    yield ratio_line("served energy, time per token", time, None)


def _gpus(row: Served) -> int:
    return row.point.tp * row.point.attention_dp * row.point.replicas
