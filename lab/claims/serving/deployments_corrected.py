"""Errors of public deployments after three measured rows of each family corrected the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.decisions import TPOT, TTFT
from lab.claims.lines import absent, at_most
from lab.claims.predicted_deployments import errors_of, predicted
from lab.tables.deployments import SILICON, PublicDeployment
from simulators.core.contract import Check
from simulators.serving.answer.neighbour_correction import corrected, load_of

NEEDS = (SILICON,)
LIMITS = {TPOT: ("mean", 8.0), TTFT: ("median", 17.0)}
FEWEST = 4
"""Rows that make a family: three are seen."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield a line for each metric; seen are the lightest, the middle and the heaviest load."""
    found = predicted(reference)
    families: dict[tuple[str, ...], list[int]] = {}
    for i in np.flatnonzero(found.kept).tolist():
        families.setdefault(found.rows[i].family, []).append(i)
    for metric, (statistic, limit) in LIMITS.items():
        ratios = found.measured[metric] / found.ours[metric]
        ours, measured = [], []
        for members in families.values():
            if len(members) < FEWEST:
                continue
            order = sorted(members, key=lambda i: _load(found.rows[i]))
            seen = [order[0], order[len(order) // 2], order[-1]]
            rest = [i for i in members if i not in seen]
            known = [(load_of(found.rows[i]), float(ratios[i])) for i in seen]
            factors = corrected(known, [load_of(found.rows[i]) for i in rest], metric)
            ours.append(found.ours[metric][rest] * factors)
            measured.append(found.measured[metric][rest])
        name = f"deployments {metric} {statistic}, after three rows"
        if not ours:
            yield absent(name, f"no family has {FEWEST} rows")
            continue
        off = errors_of(np.concatenate(ours), np.concatenate(measured))
        note, rows_left = f"ours {off}; {len(ours)} families", sum(part.size for part in ours)
        yield at_most(name, getattr(off, statistic), limit, rows_left, note)


def _load(row: PublicDeployment) -> tuple[object, ...]:
    return (row.clients, row.prompt, row.output, row.cut.gpus, row.name)
