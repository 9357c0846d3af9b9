"""Collectives over several nodes, as nccl-tests measured them on clusters.

A latency and a share of the bandwidth are fitted to a system's other numbers of ranks, and test
those left out. Beside it stand the systems under the numbers in use, which hold InfiniBand alone:
each InfiniBand system under those of the other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, mean_error
from lab.fits.networks.between_nodes import INFINIBAND, fitted, large, log_errors
from lab.tables.collectives import BETWEEN_NODES, NodesCurve, read_between_nodes
from simulators.collectives.closed.between import EXCHANGES, RINGS, family
from simulators.core.contract import Check
from simulators.core.jit import Floats

NEEDS = (BETWEEN_NODES,)


WORST = 3
"""Parts that a line names."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of ranks left out, and of systems left out."""
    curves = large(read_between_nodes(reference))
    if not curves:
        yield absent("collectives/between_nodes", unit="%")
        return
    ranks, systems = _ranks_left_out(curves), _systems_left_out(curves)
    yield _line("between_nodes_ranks", ranks, 15.0, "1 MiB and more, numbers of ranks left out")
    yield _line("between_nodes_systems", systems, None, "InfiniBand, each system left out")


def _ranks_left_out(curves: Sequence[NodesCurve]) -> Iterator[tuple[str, Floats]]:
    """Yield the errors of curves of each system and collective under those of other ranks."""
    for curve in curves:
        alike = [c for c in curves if (c.system, c.collective) == (curve.system, curve.collective)]
        others = [other for other in alike if other.ranks != curve.ranks]
        if others:
            name = f"{curve.system.name} {curve.collective} of {curve.ranks}"
            yield name, log_errors(curve, fitted(others))


def _systems_left_out(curves: Sequence[NodesCurve]) -> Iterator[tuple[str, Floats]]:
    """Yield the errors of InfiniBand systems under what the other one was measured to do."""
    for kind in (RINGS, EXCHANGES):
        mine = [c for c in curves if family(c.collective) == kind and c.system.name in INFINIBAND]
        for name in INFINIBAND:
            known = fitted([curve for curve in mine if curve.system.name != name])
            for curve in mine:
                if curve.system.name == name:
                    yield f"{name} {curve.collective}", log_errors(curve, known)


def _line(name: str, found: Iterator[tuple[str, Floats]], limit: float | None, what: str) -> Check:
    """Return the mean error with that of the worst parts."""
    parts: dict[str, list[Floats]] = {}
    for part, errors in found:
        parts.setdefault(part, []).append(np.expm1(errors))
    each = {part: np.concatenate(errors) for part, errors in parts.items()}
    means = {part: 100.0 * float(np.mean(np.abs(e))) for part, e in each.items()}
    worst = sorted(means, key=lambda part: -means[part])[:WORST]
    said = ", ".join(f"{part} {means[part]:.0f}" for part in worst)
    every = np.concatenate([np.zeros(0), *each.values()])
    return mean_error(f"collectives/{name}", every, limit, f"{what}; worst: {said}")
