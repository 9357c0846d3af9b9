"""Simulated annealing over mappings, and a race of walks that start from the best spreads.

A move relocates a prime factor, exchanges two, reorders loops or toggles a bypass. Each step
changes a feasible mapping a little and keeps the change when it is better, or not much worse while
the temperature is high. Kirkpatrick et al., "Optimization by simulated annealing" (1983). Random
numbers are drawn outside the kernel, so that a seed gives one answer everywhere.

In a race the worse half of the walks stops after each round (Karnin et al., "Almost optimal
exploration in multi-armed bandits", ICML 2013). A walk's rank is the mean, in logarithms, of its
best goal so far and of the lower bound of its spread.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulators.core.errors import UnknownNameError
from simulators.core.jit import Floats, IntMatrix, Ints, array, f8, i8, kernel, matrix, struct
from simulators.dataflow import access as at
from simulators.dataflow.access import (
    COUNTS,
    KEEP,
    LOOPS,
    ORDER,
    PROBLEM,
    SPATIAL_X,
    TEMPORAL,
    Problem,
)
from simulators.dataflow.evaluation import CYCLES, ENERGY_PJ, RESULTS, evaluate
from simulators.dataflow.mapping import BOUNDS, ROWS

GOALS = {"edp": (1.0, 1.0), "energy": (1.0, 0.001), "cycles": (0.001, 1.0), "ed2p": (1.0, 2.0)}
"""Exponents of energy and cycles; the small ones break ties."""


def exponents_of(goal: str) -> Floats:
    """Return the exponents of energy and cycles in a goal.

    Raises:
        UnknownNameError: the goal is unknown.
    """
    if goal not in GOALS:
        raise UnknownNameError("goal", goal, tuple(GOALS))
    return np.array(GOALS[goal])


@kernel(f8(array(f8), f8, f8), no_refcount=True)
def score(exponents: Floats, energy_pj: float, cycles: float) -> float:
    """Return the value of the goal for a mapping; less is better."""
    return float(energy_pj ** exponents[0] * cycles ** exponents[1])


DRAWS = 12
"""Uniform random numbers per step."""

RELOCATE, EXCHANGE, REORDER = 0.45, 0.65, 0.90
"""Cumulative probabilities of the kinds of moves; the rest toggles a bypass. A kind without a
possible change is replaced by the kind before it."""

AGAIN = 0.5
"""Probability of a second move in the same step, which crosses limits of capacity and mesh."""


class Space(NamedTuple):
    """The search space of a mapping."""

    primes: IntMatrix  # by factor: dim, prime
    slots: IntMatrix  # dim x place: allowed slots of its factors, 3 * level + row
    slot_count: Ints  # by dim
    keeps: IntMatrix  # level x option: masks of kept tensors
    keep_count: Ints  # by level
    ordered: Ints  # by level: whether the order of loops is fixed
    goal: Floats  # exponents of energy and cycles
    most_cycles: float


SPACE = struct(Space)


def padded(rows: list[list[int]], width: int) -> Ints:
    """Return rows padded with zeros to a width."""
    return np.array([[*row, *[0] * (width - len(row))] for row in rows], np.int64)


@kernel(i8(LOOPS, array(i8), matrix(i8), i8, i8), no_refcount=True)
def place(loops: Ints, where: Ints, primes: Ints, factor: int, slot: int) -> int:
    """Move one prime factor to a slot."""
    d, prime = int(primes[factor, 0]), primes[factor, 1]
    old = where[factor]
    # Rows of temporal, X and Y bounds are 0, 2 and 3; row 1 is the order of loops.
    row = old % 3
    loops[old // 3, row + (row > 0), d] //= prime
    row = slot % 3
    loops[slot // 3, row + (row > 0), d] *= prime
    where[factor] = slot
    return d


@kernel(i8(array(i8, 4), matrix(i8), matrix(i8), i8, i8), no_refcount=True)
def copy(loops: Ints, keep: Ints, where: Ints, source: int, target: int) -> int:
    """Copy a mapping over another; return the number of levels."""
    levels, rows, dims = loops.shape[1:]
    for level in range(levels):
        keep[target, level] = keep[source, level]
        for row in range(rows):
            for d in range(dims):
                loops[target, level, row, d] = loops[source, level, row, d]
    for factor in range(where.shape[1]):
        where[target, factor] = where[source, factor]
    return int(levels)


@kernel(i8(array(i8), i8, i8, f8), no_refcount=True)
def other(options: Ints, number: int, current: int, draw: float) -> int:
    """Return a random option among the first `number`, except the current option."""
    found = options[int(draw * (number - 1))]
    return int(options[number - 1] if found == current else found)


@kernel(i8(SPACE, LOOPS, f8, f8, f8), no_refcount=True)
def reorder(space: Space, loops: Ints, u: float, v: float, w: float) -> int:
    """Move one temporal loop before or behind another of its level; return whether any can move.

    Loops of one iteration do not count.
    """
    levels, dims = loops.shape[0], loops.shape[2]
    choices = 0
    for level in range(levels):
        choices += movable(space, loops, level) > 1
    chosen = int(u * choices)
    for level in range(levels):
        running = movable(space, loops, level)
        if running < 2:
            continue
        if chosen > 0:
            chosen -= 1
            continue
        one, two = int(v * running), int(w * (running - 1))
        two += two >= one
        i = j = seen = 0
        for place in range(dims):
            if loops[level, at.TEMPORAL, loops[level, at.ORDER, place]] > 1:
                if seen == one:
                    i = place
                if seen == two:
                    j = place
                seen += 1
        moved = loops[level, at.ORDER, i]
        step_by = 1 if j > i else -1
        while i != j:
            loops[level, at.ORDER, i] = loops[level, at.ORDER, i + step_by]
            i += step_by
        loops[level, at.ORDER, j] = moved
        return 1
    return 0


@kernel(i8(SPACE, LOOPS, i8), no_refcount=True)
def movable(space: Space, loops: Ints, level: int) -> int:
    """Return the number of temporal loops of a level that may be reordered."""
    running = 0
    if not space.ordered[level]:
        for d in range(loops.shape[2]):
            running += loops[level, at.TEMPORAL, d] > 1
    return running


@kernel(i8(SPACE, LOOPS, KEEP, array(i8), matrix(f8), i8, i8), no_refcount=True)
def change(
    space: Space, loops: Ints, keep: Ints, where: Ints, draws: Floats, step: int, first: int
) -> int:
    """Apply one random move; return its kind."""
    kind = draws[step, first]
    u, v, w = draws[step, first + 1], draws[step, first + 2], draws[step, first + 3]
    factors, levels = where.size, keep.size
    if kind >= REORDER:
        choices = 0
        for level in range(levels):
            choices += space.keep_count[level] > 1
        chosen = int(u * choices)
        for level in range(levels):
            if space.keep_count[level] > 1:
                if chosen == 0:
                    keep[level] = other(space.keeps[level], space.keep_count[level], keep[level], v)
                    return 3
                chosen -= 1
    if kind >= EXCHANGE and reorder(space, loops, u, v, w):
        return 2
    if factors == 0:
        return 0
    one, two = int(u * factors), int(v * factors)
    a, b = where[one], where[two]
    d, e = space.primes[one, 0], space.primes[two, 0]
    if kind >= RELOCATE and a != b:
        fits = 0
        for k in range(space.slot_count[d]):
            fits += space.slots[d, k] == b
        for k in range(space.slot_count[e]):
            fits += space.slots[e, k] == a
        if fits == 2:
            place(loops, where, space.primes, one, b)
            place(loops, where, space.primes, two, a)
            return 1
    if space.slot_count[d] > 1:
        place(loops, where, space.primes, one, other(space.slots[d], space.slot_count[d], a, w))
    return 0


@kernel(f8(PROBLEM, SPACE, LOOPS, KEEP, COUNTS, array(f8)), no_refcount=True)
def goal_of(
    problem: Problem, space: Space, loops: Ints, keep: Ints, counts: Ints, out: Floats
) -> float:
    """Return the logarithm of a mapping's goal; infinite if too slow, NaN if infeasible."""
    if evaluate(problem, loops, keep, counts, out) != at.FEASIBLE:
        return np.nan
    if out[CYCLES] > space.most_cycles:
        return np.inf
    return float(np.log(score(space.goal, out[ENERGY_PJ], out[CYCLES])))


@kernel(i8(PROBLEM, SPACE, matrix(f8), array(f8), array(i8, 4), matrix(i8), matrix(i8), array(f8)))
def anneal(
    problem: Problem,
    space: Space,
    draws: Floats,
    heat: Floats,
    loops: Ints,
    keep: Ints,
    where: Ints,
    best: Floats,
) -> int:
    """Anneal from mapping 0 of `loops`; return the number of feasible mappings.

    `loops`, `keep`, `where` (slots of the factors) and the first three of `best` (logarithms of the
    goal) hold the current mapping, the trial and the best mapping; the rest of `best` is scratch.
    `draws` has one row per step; `heat` is the first and the last temperature.
    """
    seen = 0
    steps = draws.shape[0]
    counts, out = np.zeros_like(problem.totals), best[3:]
    temperature = heat[0]
    cooling = (heat[1] / heat[0]) ** (1.0 / max(1, steps))
    for step in range(steps):
        temperature *= cooling
        copy(loops, keep, where, 0, 1)
        change(space, loops[1], keep[1], where[1], draws, step, 0)
        if draws[step, 4] < AGAIN:
            change(space, loops[1], keep[1], where[1], draws, step, 5)
        goal = goal_of(problem, space, loops[1], keep[1], counts, out)
        if np.isnan(goal):
            continue
        seen += 1
        if goal - best[0] > -temperature * np.log(draws[step, 9] + 1e-300):
            continue
        copy(loops, keep, where, 1, 0)
        best[0] = goal
        if goal < best[2]:
            copy(loops, keep, where, 1, 2)
            best[2] = goal
    return seen


HOT, WARM, COLD = 0.3, 0.2, 0.002
"""Initial temperatures of first and later walks, and the final temperature: factors in the goal of
1.35, 1.2 and 1.002."""

LEAST_STEPS = 200
"""Smallest number of mappings per walk."""

LEAST_WALKS = 6
"""Smallest number of walks; with fewer good spreads, several walks start from one spread."""

NEAR = 0.7
"""Largest distance of a spread's bound from the best bound, in logarithms: a factor of two."""

KEPT_STEPS = 16_384
"""Steps whose random numbers are cached for the next layer: 1.5 MB."""

FREED = 0.2
"""Share of the budget in which the winner may move factors between temporal and spatial loops."""


@dataclass(frozen=True)
class Start:
    """A feasible mapping: a spread, with all other loops temporal at the outermost level."""

    loops: Ints
    keep: Ints
    promise: float  # logarithm of the spread's lower bound of the goal


@dataclass
class Walk:
    """State of a walk: the current, the trial and the best mapping, and counters."""

    space: Space
    loops: Ints
    keep: Ints
    where: Ints  # slots of the factors
    goals: Floats  # logarithms of the goal of the three mappings, and scratch
    promise: float  # logarithm of the lower bound of the spread
    evaluations: int = 0
    feasible: int = 0

    @property
    def best(self) -> float:
        """Logarithm of the best goal so far."""
        return float(self.goals[2])

    @property
    def mapping(self) -> tuple[Ints, Ints]:
        """Loops and keep masks of the best mapping so far."""
        return self.loops[2], self.keep[2]

    def walk(self, problem: Problem, draws: Floats, hot: float) -> None:
        """Continue from the best mapping, one step per row of draws."""
        for three in (self.loops, self.keep, self.where):
            three[0] = three[2]
        self.goals[0] = self.goals[2]
        mappings, heat = (self.loops, self.keep, self.where, self.goals), np.array([hot, COLD])
        self.feasible += anneal(problem, self.space, draws, heat, *mappings)
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
    """Return the best walk, with the counts of mappings of all walks.

    Starts are spreads of `loops`, ordered by their lower bound. `lower_bound` is the logarithm of
    the bound of the goal over all mappings.
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
            one.walk(problem, own, WARM if number else HOT)
        best = min(field, key=lambda one: one.best)
        if best.best <= lower_bound:
            break
        alive = [one for one in alive if one.promise < best.best]
        alive.sort(key=lambda one: one.best + one.promise)
        alive = alive[: math.ceil(len(alive) / 2)] or [best]
    tried = sum(one.evaluations for one in field)
    winner = _freed(best, space, loops)
    if best.best > lower_bound and tried < evaluations:
        winner.walk(problem, _draws(seed, rounds, evaluations - tried), WARM)
    winner.evaluations += tried
    winner.feasible += sum(one.feasible for one in field)
    return winner


def _draws(seed: int, number: int, steps: int) -> Floats:
    """Return uniform numbers of a round, one row per step; small arrays are cached."""
    if steps > KEPT_STEPS:
        return _drawn.__wrapped__(seed, number, steps)
    return _drawn(seed, number, math.ceil(steps / 1024) * 1024)[:steps]


@functools.lru_cache(maxsize=64)
def _drawn(seed: int, number: int, steps: int) -> Floats:
    seeds = np.random.SeedSequence(seed, spawn_key=(number,))
    return np.random.default_rng(seeds).random((steps, DRAWS))


def _line_up(starts: Sequence[Start], most: int) -> list[Start]:
    """Return the starts of a race, with at most `most` rounds x starts.

    With few good spreads, several walks start from one spread.
    """
    near = [one for one in starts[: max(1, most)] if one.promise <= starts[0].promise + NEAR]
    number = max(1, min(max(len(near), LEAST_WALKS), most))
    number = max(1, min(number, most // _rounds(number)))
    return [near[k % len(near)] for k in range(number)]


def _rounds(walks: int) -> int:
    return max(1, math.ceil(math.log2(walks)))


def _in_time(space: Space, loops: Ints, start: Start) -> Walk:
    """Return a walk over temporal loops with a fixed spread."""
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
    """Return a walk from the best mapping of another walk, without a fixed spread."""
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
    """Return a walk that starts from a mapping with an unknown goal."""
    copies = [np.repeat(one[None], 3, axis=0) for one in (loops, keep, where)]
    return Walk(space, copies[0], copies[1], copies[2], np.full(3 + RESULTS, np.inf), promise)
