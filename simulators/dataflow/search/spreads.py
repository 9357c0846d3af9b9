"""Which factors of which dimensions lie side by side: the spreads over an array worth a walk.

What runs in time changes a mapping's cost little by little; what is spread over rows and columns
changes it in leaps, for few products of factors nearly fill a side. So spreads are listed, not
walked among.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from simulators.core.jit import Ints
from simulators.dataflow.access import arrays as at
from simulators.dataflow.search.annealing import Space

Side = tuple[int, tuple[int, ...]]
"""Instances along it, and the dimensions that may lie there."""


def spreads(space: Space, loops: Ints, sizes: Ints, most: int) -> tuple[Ints, int]:
    """Return loops with factors moved from the outermost level's time to sides of the array.

    Those that use most multipliers come first, the one that spreads nothing last; of those that
    differ only in which side a factor lies along, one is returned. Beside them stands how many
    multipliers spreads use at most that are not returned, 0 if all are.
    `loops` have all that is free in time at the outermost level.
    """
    levels, _, dims = loops.shape
    sides, places = [], []
    left = np.ones(dims, np.int64)
    for d, prime in space.primes.tolist():
        left[d] *= prime
    for level in range(levels):
        for row, fan in ((1, at.FAN_X), (2, at.FAN_Y)):
            taken = math.prod(loops[level, row + 1].tolist())
            free = tuple(
                d
                for d in range(dims)
                if 3 * level + row in space.slots[d, : space.slot_count[d]].tolist()
            )
            if free and int(sizes[level, fan]) // taken > 1:
                sides.append((int(sizes[level, fan]) // taken, free))
                places.append((level, row + 1))
    found, left_out = _side_by_side(
        tuple(left.tolist()), tuple(sides), tuple(k for k, _ in places), most
    )
    spread = np.repeat(loops[None], len(found), axis=0)
    for side, (level, row) in enumerate(places):
        spread[:, level, row] *= found[:, side]
    spread[:, 0, at.TEMPORAL] //= found.prod(axis=1)
    return spread, left_out * math.prod(loops[:, at.SPATIAL_X :].ravel().tolist())


@functools.lru_cache(maxsize=4096)
def _side_by_side(
    left: tuple[int, ...], sides: tuple[Side, ...], levels: tuple[int, ...], most: int
) -> tuple[Ints, int]:
    """Return factors by spread, side and dimension, and what spreads left out use at most."""
    found, left_out = np.ones((1, 0, len(left)), np.int64), 0
    rest = math.prod(fan for fan, _ in sides)
    for number, (fan, free) in enumerate(sides, 1):
        rest //= fan
        factors = _products(left, fan, free)
        free_of = np.array(left) // found.prod(axis=1)
        one, two = np.nonzero((free_of[:, None] % factors[None] == 0).all(axis=2))
        found = np.concatenate([found[one], factors[two][:, None]], axis=1)
        by_level = [
            found[:, [k == level for k in levels[:number]]].prod(axis=1)
            for level in sorted({*levels[:number]})
        ]
        _, first = np.unique(np.concatenate(by_level, axis=1), axis=0, return_index=True)
        found = found[np.sort(first)]
        found = found[np.argsort(-found.prod(axis=(1, 2)), kind="stable")]
        if len(found) > most:
            left_out = max(left_out, int(found[most - 1].prod()) * rest)
            found = np.concatenate([found[: most - 1], found[-1:]])
    return found, left_out


@functools.lru_cache(maxsize=4096)
def _products(left: tuple[int, ...], fan: int, free: tuple[int, ...]) -> Ints:
    """Return factors by dimension whose product is at most a side's length, larger ones first."""
    found = [(1, (1,) * len(left))]
    for d in free:
        divisors = [f for f in range(2, min(fan, left[d]) + 1) if left[d] % f == 0]
        found += [
            (product * f, (*factors[:d], f, *factors[d + 1 :]))
            for product, factors in found
            for f in divisors
            if product * f <= fan
        ]
    found.sort(key=lambda one: -one[0])
    return np.array([factors for _, factors in found], np.int64)
