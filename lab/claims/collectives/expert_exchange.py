"""DeepEP's dispatch and combine, as its authors measured them, by rates of other numbers of ranks.

Its second version is in no fit: its lines stand under the rates of the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import mean_error
from lab.fits.networks.expert_exchange import FITTED, fitted, left_out, log_errors
from lab.tables.collectives import EXCHANGES, Exchange, read_exchanges
from simulators.core.contract import Check

NEEDS = (EXCHANGES,)
BAR = 20.0
"""Percent that are asked of the mean error."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of both kinds of kernels, ranks left out, and of the second version."""
    rows = read_exchanges(reference)
    first = [row for row in rows if row.kernel.startswith(FITTED)]
    found: dict[str, list[tuple[Exchange, float]]] = {}
    for mine, errors in left_out(first):
        for row, error in zip(mine, errors.tolist(), strict=True):
            found.setdefault(row.mode, []).append((row, error))
    for mode, pairs in found.items():
        yield _line(mode, pairs, "numbers of ranks left out")
    later = [row for row in rows if not row.kernel.startswith(FITTED)]
    if not later or not first:
        return
    errors = log_errors(later, fitted(first)).tolist()
    yield _line("version 2", list(zip(later, errors, strict=True)), "in no fit")


def _line(name: str, pairs: list[tuple[Exchange, float]], how: str) -> Check:
    row, worst = max(pairs, key=lambda pair: abs(pair[1]))
    said = f"{how}; worst: {row.op} of {row.ranks} {100.0 * np.expm1(worst):+.0f} %"
    errors = np.expm1([error for _, error in pairs])
    return mean_error(f"collectives/expert exchange, {name}", errors, BAR, said)
