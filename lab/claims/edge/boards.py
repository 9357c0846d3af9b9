"""MLPerf Tiny on a board that is left out: all but one of its benchmarks measured, or one alone.

Everybody brings a runtime to the same four models, and a board with another runtime is another
program: so boards under the same submitter's runtime, of the same round, say most about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from types import MappingProxyType

import numpy as np

from lab.claims.lines import at_most
from lab.tables.edge.programs import TINY, Matrix, System, tiny
from lab.tables.rows import Floats
from simulators.core.contract import Check
from simulators.edge.few_shot import adapt
from simulators.edge.programs import learn_programs, one_hot

NEEDS = (TINY,)
LIMITS = MappingProxyType({"latency_s": 20.0, "energy_J_per_inference": 25.0})
SAME_RUNTIME, SAME_SUBMITTER = 1000.0, 30.0
"""How much more such boards count than others: first of all, and before all others."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors of latency and of energy."""
    for quantity, limit in LIMITS.items():
        systems, table = tiny(reference, quantity)
        name = f"MLPerf Tiny {quantity.partition('_')[0]}, board left out"
        boards = len({system.board for system in systems})
        for measured, bar in ((None, limit), (1, None)):
            errors = np.array(list(_errors(systems, table, measured)))
            told = "other benchmarks" if measured is None else "one benchmark"
            note = f"median {np.median(errors):.1f}; {boards} boards, {len(systems)} with a runtime"
            mean = float(errors.mean())
            yield at_most(f"{name}, {told} measured: MAPE", mean, bar, errors.size, note)


def _errors(systems: Sequence[System], table: Matrix, measured: int | None) -> Iterator[float]:
    """Yield the error in percent of each benchmark of each board, and of each choice of others."""
    for number, system in enumerate(systems):
        there = np.flatnonzero(~np.isnan(table.log[number])).tolist()
        if len(there) < 2:
            continue
        others = [i for i, one in enumerate(systems) if one.board != system.board]
        alike = _alike([systems[i] for i in others], system)
        prior = learn_programs(table.log[others], alike)
        values = np.exp(table.log[number])
        for left in there:
            rest = [one for one in there if one != left]
            for some in combinations(rest, measured or len(rest)):
                samples = one_hot(some, len(table.programs))
                weights = adapt(prior, samples, values[list(some)])
                said, _, _ = weights.seconds(one_hot([left], len(table.programs)))
                yield 100.0 * abs(float(said[0]) / values[left] - 1.0)


def _alike(others: Sequence[System], system: System) -> Floats:
    """Return how much boards count; those with many results share their weight among them."""
    boards = [one.board for one in others]
    factor = [
        SAME_RUNTIME if (one.submitter, one.round) == (system.submitter, system.round)
        else SAME_SUBMITTER if one.submitter == system.submitter else 1.0
        for one in others
    ]  # fmt: skip
    return np.array([f / boards.count(one) for f, one in zip(factor, boards, strict=True)])
