"""Throughput given up by choosing a deployment by predictions instead of measurements.

A decision is a choice among alternatives for one load (model, GPU, lengths and clients): other
frameworks, precisions and cuts. Its regret is the throughput per GPU that is given up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, at_most
from lab.claims.predicted_deployments import FEWEST, TPOT, TTFT, predicted
from lab.tables.deployments import SILICON
from lab.tables.rows import Bools
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.serving.measured_deployments import Deployed

NEEDS = (SILICON,)


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the regret of choosing by ours and by the peer's predictions."""
    found = predicted(reference)
    kept = found.kept
    measured = _throughput(found.rows, found.measured)
    ours, peer = _throughput(found.rows, found.ours), _throughput(found.rows, found.peer)
    answered = kept & ~np.isnan(peer)
    all_rows = _regrets(found.rows, measured, ours, kept)
    both = _regrets(found.rows, measured, ours, answered)
    theirs = _regrets(found.rows, measured, peer, answered)
    if not all_rows.size:
        yield absent("deployments regret", f"no choice among {FEWEST}")
        return
    wanted = [("mean", float(all_rows.mean()), 4.0), ("median", float(np.median(all_rows)), 1.5)]
    for name, value, limit in wanted:
        yield at_most(f"deployments regret {name}", value, limit, all_rows.size)
    if theirs.size:
        name, bar = "deployments regret mean, peer's rows", float(theirs.mean())
        note = f"the limit is the peer's; medians {np.median(both):.2f}, {np.median(theirs):.2f}"
        yield at_most(name, float(both.mean()), bar, theirs.size, note, peer=bar)


def _throughput(rows: Sequence[Deployed], times: dict[str, Floats]) -> Floats:
    """Return output tokens per second and GPU of a closed loop, from its mean times."""
    output = np.array([row.mean_output for row in rows])
    clients = np.array([row.clients for row in rows])
    gpus = np.array([row.cut.gpus for row in rows])
    answer_s = times[TTFT] + times[TPOT] * (output - 1.0)
    return np.asarray(clients * output / answer_s / gpus, np.float64)


def _regrets(rows: Sequence[Deployed], true: Floats, believed: Floats, which: Bools) -> Floats:
    """Return what each decision gives up, in percent."""
    choices: dict[tuple[object, ...], list[int]] = {}
    for i in np.flatnonzero(which).tolist():
        row = rows[i]
        load = (row.model, row.gpu, row.prompt, row.output, row.clients)
        choices.setdefault(load, []).append(i)
    regrets = [
        1.0 - true[members[int(np.argmax(believed[members]))]] / true[members].max()
        for members in choices.values()
        if len(members) >= FEWEST
    ]
    return 100.0 * np.array(regrets)
