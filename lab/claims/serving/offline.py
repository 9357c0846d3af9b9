"""Throughput with everything queued at once, against what NVIDIA publishes.

Nothing was fitted to it. Of groups (a model on a GPU) that the runtimes were fitted to, the numbers
without it are used.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import answered, ratio_line
from lab.fits.left_out import shelf_without
from lab.tables.published_runs import OFFLINE, OFFLINE_RUNTIME, PublishedRun, offline
from simulators.core.contract import Check
from simulators.core.errors import Infeasible
from simulators.serving.simulator import simulate

NEEDS = (OFFLINE,)
LIMITS = {"dense": 14.0, "experts": 25.0}
"""Of mean errors in percent."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of dense models and of mixtures."""
    shelf = functools.cache(functools.partial(shelf_without, OFFLINE_RUNTIME))

    def tokens_per_s(run: PublishedRun) -> float:
        """Our throughput; not a number where we say that it cannot be run."""
        try:
            return simulate(run.point, shelf(run.group)).tokens_per_s
        except Infeasible:
            return np.nan

    found = answered("offline throughput", offline(reference), tokens_per_s)
    yield from found.lines
    ratio = np.array(found.answers) / np.array([run.tokens_per_s for run in found.rows])
    dense = np.array([run.is_dense for run in found.rows], bool)
    for kind, which in (("dense", dense), ("experts", ~dense)):
        refused = f", {np.isnan(ratio[which]).sum()} not runnable by our account"
        yield ratio_line(f"offline throughput, {kind}", ratio[which], LIMITS[kind], refused)
