"""Watts and joules per output token of served models beside ML.ENERGY's; none was fitted to.

No kernel of these GPUs was metered: their watts are by the formula of a GPU of their architecture.
Joules per token are watts over a rate, so they err by both. "From activity" takes the measured
rate: joules of what is switched, which do not depend on time, and the draw of clocks and leakage
for the measured time.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from lab.claims.predictions import predict
from lab.fits.left_out import run_cache_without
from lab.tables.kernels.served_energy import Served, served
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.kernels.energy import active_idle_w
from simulators.serving.simulator import simulate


def energy(reference: Path) -> pl.DataFrame:
    """Return watts of all GPUs, and joules per token, of every served model."""
    known, unknown = served(reference)
    cache_of = functools.cache(run_cache_without)

    def answer(row: Served) -> list[dict[str, Any]]:
        gpus = row.point.tp * row.point.attention_dp * row.point.replicas
        metrics = simulate(row.point, cache_of(row.point.runtime, row.group))
        token_j = metrics.energy_j_per_token
        assert token_j is not None
        longer_s = 1.0 / row.tokens_per_s - 1.0 / metrics.tokens_per_s
        figures = {
            "watts": (token_j * metrics.tokens_per_s, row.watts * gpus),
            "joules": (token_j, row.token_j),
            "activity": (
                token_j + gpus * active_idle_w(load_gpu(row.point.gpu)) * longer_s,
                row.token_j,
            ),
        }
        is_dense = load_model(row.point.model).experts == 0
        return [
            {"figure": figure, "is_dense": is_dense, "predicted": ours, "measured": theirs}
            for figure, (ours, theirs) in figures.items()
        ]

    skipped = [{"skipped": why} for why in Counter(unknown).elements()]
    return pl.concat([predict(known, answer), pl.DataFrame(skipped)], how="diagonal_relaxed")
