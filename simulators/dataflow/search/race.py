"""A race of walks: from the spreads that promise most, in time alone; the worse half gives up.

Karnin et al., "Almost optimal exploration in multi-armed bandits" (ICML 2013). A walk is as good as
the mean, in logarithms, of what it has come to and of what its spread could at best come to.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulators.core.jit import Floats, Ints
from simulators.dataflow.access.arrays import ORDER, SPATIAL_X, TEMPORAL, Problem
from simulators.dataflow.energy.charges import RESULTS
from simulators.dataflow.mapping.loop_nest import BOUNDS, ROWS
from simulators.dataflow.search.annealing import DRAWS, Space, anneal, goal_of, padded

HOT, WARM, COLD = 0.3, 0.2, 0.002
"""Temperatures of first walks, of later ones, and that they cool to: factors in the goal of 1.35,
1.2 and 1.002."""

LEAST_STEPS = 200
"""Mappings below which a spread is not worth a walk."""

LEAST_WALKS = 6
"""Walks that set out where fewer spreads are near the best, several from one."""

NEAR = 0.7
"""How much worse than the best promise a spread's may be, in logarithms: twice as much."""

KEPT_STEPS = 16_384
"""Steps whose random numbers, of which all layers have the same, are kept: 1.5 MB."""

FREED = 0.2
"""Share of the mappings tried by the winner with factors free to move between time and space."""


@dataclass(frozen=True)
class Start:
    """A mapping that fits, with a spread and all else in time at the outermost level."""

    loops: Ints
    keep: Ints
    promise: float  # logarithm of the least goal its spread allows


@dataclass
class Walk:
    """Mappings a walk is at, tries next and found best, and how many it has tried."""

    space: Space
    loops: Ints
    keep: Ints
    where: Ints  # slots of the factors
    goals: Floats  # logarithms of the goal of the three mappings, and scratch
    promise: float  # as of its start
    evaluations: int = 0
    feasible: int = 0

    @property
    def best(self) -> float:
        """The logarithm of the best goal so far."""
        return float(self.goals[2])

    @property
    def mapping(self) -> tuple[Ints, Ints]:
        """Loops and keep masks of the best mapping so far."""
        return self.loops[2], self.keep[2]

    def walk(self, problem: Problem, counts: Ints, draws: Floats, hot: float) -> None:
        """Walk from the best so far, a step for each row of draws."""
        for three in (self.loops, self.keep, self.where):
            three[0] = three[2]
        self.goals[0] = self.goals[2]
        self.feasible += anneal(
            problem,
            self.space,
            counts,
            draws,
            np.array([hot, COLD]),
            self.loops,
            self.keep,
            self.where,
            self.goals,
        )
        self.evaluations += len(draws)


def race(
    problem: Problem,
    space: Space,
    loops: Ints,
    starts: Sequence[Start],
    evaluations: int,
    seed: int,
    lower_bound: float,
) -> Walk:
    """Return the best of walks from some starts, which counts the mappings that all have tried.

    Starts are spreads of `loops`, which have all that is free outermost, in time; the best promise
    goes first. `lower_bound` is the logarithm of a goal that cannot be beaten.
    """
    counts = np.zeros_like(problem.totals)
    raced = evaluations - int(FREED * evaluations)
    chosen = _line_up(starts, raced // LEAST_STEPS)
    rounds, alive = _rounds(len(chosen)), [_in_time(space, loops, one) for one in chosen]
    for one in alive:
        one.goals[:3] = goal_of(problem, space, one.loops[2], one.keep[2], counts, one.goals[3:])
        one.evaluations = one.feasible = 1
    field = list(alive)
    for number in range(rounds):
        steps = raced // rounds // len(alive) - (number == 0)
        draws = _draws(seed, number, steps * len(alive))
        for k, one in enumerate(alive):
            own = draws[k * steps : (k + 1) * steps]
            one.walk(problem, counts, own, WARM if number else HOT)
        best = min(field, key=lambda one: one.best)
        if best.best <= lower_bound:
            break
        alive = [one for one in alive if one.promise < best.best]
        alive.sort(key=lambda one: one.best + one.promise)
        alive = alive[: math.ceil(len(alive) / 2)] or [best]
    tried = sum(one.evaluations for one in field)
    winner = _freed(best, space, loops)
    if best.best > lower_bound and tried < evaluations:
        winner.walk(problem, counts, _draws(seed, rounds, evaluations - tried), WARM)
    winner.evaluations += tried
    winner.feasible += sum(one.feasible for one in field)
    return winner


def _draws(seed: int, number: int, steps: int) -> Floats:
    """Return uniform numbers of a round, a row a step; short ones are kept for the next layer."""
    if steps > KEPT_STEPS:
        return _drawn.__wrapped__(seed, number, steps)
    return _drawn(seed, number, math.ceil(steps / 1024) * 1024)[:steps]


@functools.lru_cache(maxsize=64)
def _drawn(seed: int, number: int, steps: int) -> Floats:
    seeds = np.random.SeedSequence(seed, spawn_key=(number,))
    return np.random.default_rng(seeds).random((steps, DRAWS))


def _line_up(starts: Sequence[Start], most: int) -> list[Start]:
    """Return the starts of a race, of which rounds x starts there are `most`.

    Where few promise enough, several walks set out from one.
    """
    near = [one for one in starts[: max(1, most)] if one.promise <= starts[0].promise + NEAR]
    number = max(1, min(max(len(near), LEAST_WALKS), most))
    number = max(1, min(number, most // _rounds(number)))
    return [near[k % len(near)] for k in range(number)]


def _rounds(walks: int) -> int:
    """Return how often a field is halved until one is left; once at least."""
    return max(1, math.ceil(math.log2(walks)))


def _in_time(space: Space, loops: Ints, start: Start) -> Walk:
    """Return a walk that leaves a spread as it is."""
    beside = start.loops[:, SPATIAL_X:].prod(axis=(0, 1)) // loops[:, SPATIAL_X:].prod(axis=(0, 1))
    primes = []
    for d, prime in space.primes.tolist():
        if beside[d] % prime:
            primes.append((d, prime))
        else:
            beside[d] //= prime
    slots = [
        [slot for slot in row[:n] if slot % len(ROWS) == 0]
        for row, n in zip(space.slots.tolist(), space.slot_count.tolist(), strict=True)
    ]
    timed = space._replace(
        primes=np.array(primes, np.int64).reshape(-1, 2),
        slots=padded(slots, space.slots.shape[1]),
        slot_count=np.array([len(row) for row in slots], np.int64),
    )
    where = np.zeros(len(primes), np.int64)
    return _three(timed, start.loops, start.keep, where, start.promise)


def _freed(walk: Walk, space: Space, loops: Ints) -> Walk:
    """Return a walk from the best of another, whose factors may stand wherever rules allow."""
    fixed = loops.copy()
    for d, prime in space.primes.tolist():
        fixed[0, TEMPORAL, d] //= prime
    fixed[:, ORDER] = 1
    free = walk.loops[2] // fixed
    where = []
    for d, prime in space.primes.tolist():
        places = [(slot, BOUNDS[slot % len(ROWS)]) for slot in space.slots[d].tolist()]
        slot, row = next((s, r) for s, r in places if free[s // len(ROWS), r, d] % prime == 0)
        free[slot // len(ROWS), row, d] //= prime
        where.append(slot)
    freed = _three(space, *walk.mapping, np.array(where, np.int64), walk.promise)
    freed.goals[:] = walk.goals
    return freed


def _three(space: Space, loops: Ints, keep: Ints, where: Ints, promise: float) -> Walk:
    """Return a walk that starts from a mapping, whose goal is not known yet."""
    copies = [np.repeat(one[None], 3, axis=0) for one in (loops, keep, where)]
    return Walk(space, copies[0], copies[1], copies[2], np.full(3 + RESULTS, np.inf), promise)
