"""Simulated annealing over mappings, by local moves: the loop of the mapper.

A move puts a prime factor elsewhere, exchanges two, reorders loops or toggles a bypass. Each step
changes a feasible mapping a little and keeps the change when it is better, or not much worse while
it is still warm. Kirkpatrick et al., "Optimization by simulated annealing" (1983). Random numbers
are drawn outside, so that a seed gives one answer everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulators.core.jit import Floats, IntMatrix, Ints, array, f8, i8, kernel, matrix, struct
from simulators.dataflow.access import arrays as at
from simulators.dataflow.access.arrays import COUNTS, KEEP, LOOPS, PROBLEM, Problem
from simulators.dataflow.energy.charges import CYCLES, ENERGY_PJ, evaluate
from simulators.dataflow.search.objective import score

DRAWS = 12
"""Uniform numbers each step may use."""

RELOCATE, EXCHANGE, REORDER = 0.45, 0.65, 0.90
"""Cumulative shares of the kinds of move; the rest toggles a bypass. Where a kind can change
nothing, the one before it is made."""

AGAIN = 0.5
"""Chance of a second move in the same step, which crosses walls of capacity and mesh."""


class Space(NamedTuple):
    """What may be changed."""

    primes: IntMatrix  # by factor: dim, prime
    slots: IntMatrix  # dim x place: where its factors may stand, 3 * level + row
    slot_count: Ints  # by dim
    keeps: IntMatrix  # level x option: masks of kept tensors
    keep_count: Ints  # by level
    ordered: Ints  # by level: whether its loops must keep their order
    goal: Floats  # exponents of energy and cycles
    most_cycles: float


SPACE = struct(Space)


def padded(rows: list[list[int]], width: int) -> Ints:
    """Return rows made as long as a width, with zeros."""
    return np.array([[*row, *[0] * (width - len(row))] for row in rows], np.int64)


@kernel(i8(LOOPS, array(i8), matrix(i8), i8, i8), no_refcount=True)
def place(loops: Ints, where: Ints, primes: Ints, factor: int, slot: int) -> int:
    """Move one prime factor to a slot."""
    d, prime = int(primes[factor, 0]), primes[factor, 1]
    old = where[factor]
    # Rows of time, X and Y are 0, 2 and 3: the order of loops stands between.
    row = old % 3
    loops[old // 3, row + (row > 0), d] //= prime
    row = slot % 3
    loops[slot // 3, row + (row > 0), d] *= prime
    where[factor] = slot
    return d


@kernel(i8(array(i8, 4), matrix(i8), matrix(i8), i8, i8), no_refcount=True)
def copy(loops: Ints, keep: Ints, where: Ints, source: int, target: int) -> int:
    """Copy a mapping over another; return its levels."""
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
    """Draw one of the first `number` options, other than the current one."""
    found = options[int(draw * (number - 1))]
    return int(options[number - 1] if found == current else found)


@kernel(i8(SPACE, LOOPS, f8, f8, f8), no_refcount=True)
def reorder(space: Space, loops: Ints, u: float, v: float, w: float) -> int:
    """Put one loop in time before or behind another of its level; return whether any can move.

    Loops of one iteration stay where they are among others: they are none.
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
    """Return the loops in time of a level that are free to change places."""
    running = 0
    if not space.ordered[level]:
        for d in range(loops.shape[2]):
            running += loops[level, at.TEMPORAL, d] > 1
    return running


@kernel(i8(SPACE, LOOPS, KEEP, array(i8), matrix(f8), i8, i8), no_refcount=True)
def change(
    space: Space, loops: Ints, keep: Ints, where: Ints, draws: Floats, step: int, first: int
) -> int:
    """Make one move; return its kind."""
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
    """Return the logarithm of a mapping's goal, infinite if too slow; nan if it does not fit."""
    if evaluate(problem, loops, keep, counts, out) != at.FEASIBLE:
        return np.nan
    if out[CYCLES] > space.most_cycles:
        return np.inf
    return float(np.log(score(space.goal, out[ENERGY_PJ], out[CYCLES])))


@kernel(
    i8(
        PROBLEM,
        SPACE,
        COUNTS,
        matrix(f8),
        array(f8),
        array(i8, 4),
        matrix(i8),
        matrix(i8),
        array(f8),
    ),
    no_refcount=True,
)
def anneal(
    problem: Problem,
    space: Space,
    counts: Ints,
    draws: Floats,
    heat: Floats,
    loops: Ints,
    keep: Ints,
    where: Ints,
    best: Floats,
) -> int:
    """Walk from mapping 0 of `loops`; return the feasible mappings seen.

    Mappings are where the walk is, its trial and the best so far: so are `loops`, `keep`, `where`
    (slots of the factors) and the first of `best`, logarithms of the goal; the rest of that and
    `counts` are scratch. Draws are a row a step; `heat` is the first and the last temperature.
    """
    seen = 0
    steps = draws.shape[0]
    out = best[3:]
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
