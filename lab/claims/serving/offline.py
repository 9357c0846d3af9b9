"""Throughput with everything queued at once, against what NVIDIA publishes.

Nothing was fitted to it. Of groups (a model on a GPU) that the runtimes were fitted to, the numbers
without it are used.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, evaluated, ratio_line, skipped_lines
from lab.fits.left_out import shelf_without
from lab.tables.offline import OFFLINE, RUNTIME, Throughput, offline
from simulators.core.contract import Check
from simulators.core.errors import Infeasible
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

NEEDS = (OFFLINE,)
LIMITS = {"dense": 14.0, "experts": 25.0}
"""Of mean errors in percent."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of dense models and of mixtures."""
    skipped, shelf = Counter[str](), functools.cache(functools.partial(shelf_without, RUNTIME))
    answer = evaluated(
        offline(reference), lambda row: _tokens_per_s(row, shelf(row.group)), skipped
    )
    found = list(answer)
    yield from skipped_lines("offline", skipped)
    if not found:
        yield absent("offline throughput")
        return
    rows = [row for row, _ in found]
    ratio = np.array([ours / row.tokens_per_s for row, ours in found])
    dense = np.array([row.is_dense for row in rows])
    for kind, which in (("dense", dense), ("experts", ~dense)):
        refused = f", {np.isnan(ratio[which]).sum()} not runnable by our account"
        yield ratio_line(f"offline throughput, {kind}", ratio[which], LIMITS[kind], refused)


def _tokens_per_s(row: Throughput, shelf: Shelf) -> float:
    """Return our throughput; not a number where we say that it cannot be run."""
    try:
        return simulate(row.point, shelf).tokens_per_s
    except Infeasible:
        return np.nan
