"""What is given up by choosing a deployment by predictions instead of measurements.

On one GPU and load, the choice is among frameworks, precisions and cuts, and throughput per GPU is
given up. Across GPUs it is among those too, for one model, its lengths and a deadline of a token:
tokens per dollar of list prices are given up, or tokens per joule of the boards' power limits, as
nobody metered what these deployments drew. GPUs without a list price are in the second alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.claims.decisions import (
    FEWEST,
    Decisions,
    across_gpus,
    board_w,
    regrets,
    usd_per_hour,
    within_gpu,
)
from lab.claims.lines import absent, at_most
from lab.claims.predicted_deployments import Predicted, predicted
from lab.tables.deployments import SILICON
from simulators.core.contract import Check

NEEDS = (SILICON,)


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the regret of choosing by ours and by the peer's predictions."""
    found = predicted(reference)
    rows = found.rows
    yield from _lines("deployments regret", found, within_gpu(rows), 4.0, 1.5)
    for what, cost in (("dollar", usd_per_hour(rows)), ("joule", board_w(rows))):
        name = f"deployments regret across GPUs, per {what},"
        yield from _lines(name, found, across_gpus(rows, cost), 3.0, None)


def _lines(
    name: str, found: Predicted, decisions: Sequence[Decisions], mean: float, median: float | None
) -> Iterator[Check]:
    """Yield the regret over all rows, then over the peer's, which is its limit there."""
    answered = found.kept & ~np.isnan(found.peer["TPOT"])
    all_rows = regrets(decisions, found.measured, found.ours, found.kept)
    both = regrets(decisions, found.measured, found.ours, answered)
    theirs = regrets(decisions, found.measured, found.peer, answered)
    if not all_rows.size:
        yield absent(name.rstrip(","), f"no choice among {FEWEST}")
        return
    worst = f"worst {all_rows.max():.0f}"
    yield at_most(f"{name} mean", float(all_rows.mean()), mean, all_rows.size, worst)
    yield at_most(f"{name} median", float(np.median(all_rows)), median, all_rows.size)
    if theirs.size:
        bar = float(theirs.mean())
        note = f"the limit is the peer's; medians {np.median(both):.2f}, {np.median(theirs):.2f}"
        yield at_most(
            f"{name} mean, peer's rows", float(both.mean()), bar, theirs.size, note, peer=bar
        )
