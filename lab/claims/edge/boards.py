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
from lab.fits.methods.few_shot import adapt
from lab.fits.methods.programs import learn_programs, one_hot
from lab.tables.edge.programs import TINY, System, tiny
from lab.tables.rows import Floats
from simulators.core.contract import Check

NEEDS = (TINY,)
LIMITS = MappingProxyType({"latency_s": 20.0, "energy_J_per_inference": 25.0})
Choice = tuple[float, float]
CHOICES: tuple[Choice, ...] = ((1.0, 1.0), (10.0, 3.0), (100.0, 10.0), (1000.0, 30.0))
"""How much more boards count under the same submitter's runtime, and under another of theirs: the
one that errs least on the other boards, each of them left out in turn."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors of latency and of energy."""
    for quantity, limit in LIMITS.items():
        systems, table = tiny(reference, quantity)
        name = f"MLPerf Tiny {quantity.partition('_')[0]}, board left out"
        boards = dict.fromkeys(system.board for system in systems)
        chosen = {board: _chosen(systems, table.log, board) for board in boards}
        for measured, bar in ((None, limit), (1, None)):
            errors = np.array(
                [
                    e
                    for one in boards
                    for e in _errors(systems, table.log, one, chosen[one], measured)
                ]
            )
            told = "other benchmarks" if measured is None else "one benchmark"
            note = f"median {np.median(errors):.1f}; {len(boards)} boards, {len(systems)} with a "
            note += "runtime; how much the same runtime counts is chosen on the other boards"
            mean = float(errors.mean())
            yield at_most(f"{name}, {told} measured: MAPE", mean, bar, errors.size, note)


def _chosen(systems: Sequence[System], log: Floats, board: str) -> Choice:
    """Return the choice that errs least on all boards but one, which lends nothing to it."""
    rest = [i for i, one in enumerate(systems) if one.board != board]
    others, theirs = [systems[i] for i in rest], log[rest]

    def error(choice: Choice) -> float:
        names = dict.fromkeys(one.board for one in others)
        return float(np.mean([e for one in names for e in _errors(others, theirs, one, choice)]))

    return min(CHOICES, key=error)


def _errors(
    systems: Sequence[System], log: Floats, board: str, choice: Choice, measured: int | None = None
) -> Iterator[float]:
    """Yield the error in percent of each benchmark of a board, and of each choice of others.

    Args:
        systems: of each row, all of them.
        log: log seconds or joules, a column per benchmark.
        board: the one that is left out.
        choice: one of `CHOICES`.
        measured: how many other benchmarks are; None: all that are there.
    """
    others = [i for i, one in enumerate(systems) if one.board != board]
    programs = log.shape[1]
    for number, system in enumerate(systems):
        there = np.flatnonzero(~np.isnan(log[number])).tolist()
        if system.board != board or len(there) < 2:
            continue
        prior = learn_programs(log[others], _alike([systems[i] for i in others], system, choice))
        values = np.exp(log[number])
        for left in there:
            rest = [one for one in there if one != left]
            for some in combinations(rest, measured or len(rest)):
                weights = adapt(prior, one_hot(some, programs), values[list(some)])
                said, _, _ = weights.seconds(one_hot([left], programs))
                yield 100.0 * abs(float(said[0]) / values[left] - 1.0)


def _alike(others: Sequence[System], system: System, choice: Choice) -> Floats:
    """Return how much boards count; those with many results share their weight among them."""
    boards = [one.board for one in others]
    same_runtime, same_submitter = choice
    factor = [
        same_runtime
        if (one.submitter, one.round) == (system.submitter, system.round)
        else same_submitter
        if one.submitter == system.submitter
        else 1.0
        for one in others
    ]
    return np.array([f / boards.count(one) for f, one in zip(factor, boards, strict=True)])
