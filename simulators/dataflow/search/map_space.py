"""The mappings a search may visit: where prime factors may stand, what levels may keep."""

from __future__ import annotations

import itertools
import math

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.errors import Infeasible, UserError, suggestion
from simulators.core.jit import Ints
from simulators.dataflow.access import arrays as at
from simulators.dataflow.energy.technology import Machine, machine_of
from simulators.dataflow.mapping.loop_nest import BOUNDS, ROWS, ordered
from simulators.dataflow.search.annealing import Space, padded
from simulators.dataflow.search.constraints import Constraints
from simulators.dataflow.search.objective import exponents_of
from simulators.workload.loop_nest import Layer

SMOOTH = 5
"""The largest prime factor of a dimension that was rounded up."""

MOST_LARGER = 1.25
"""How much larger rounding up to a side of the array may make a dimension."""


def space_of(
    layer: Layer,
    sizes: tuple[int, ...],
    accelerator: Accelerator,
    goal: str,
    rules: Constraints,
) -> tuple[Space, Ints]:
    """Return what may be changed of mappings of some sizes, and the loops to start from.

    Those have all that is free in time at the outermost level, one word of each tensor at a time.

    Raises:
        Infeasible: a buffer cannot hold one word of each tensor it must keep.
        UserError: a constraint names something that is not there.
    """
    names = [level.name for level in accelerator.levels]
    machine = machine_of(accelerator)
    left = rules.left_free(layer, sizes, names)
    primes = [(d, p) for d, bound in enumerate(left) for p in primes_of(bound)]
    slots = [
        _slots(dim, free, layer, accelerator, machine, rules)
        for dim, free in zip(layer.dims, left, strict=True)
    ]
    keeps = [_keeps(k, accelerator, machine, rules) for k in range(len(names))]
    ideal = layer.macs / accelerator.mac.instances
    space = Space(
        primes=np.array(primes, np.int64).reshape(-1, 2),
        slots=padded(slots, 3 * len(names)),
        slot_count=np.array([len(row) for row in slots], np.int64),
        keeps=padded(keeps, max(len(options) for options in keeps)),
        keep_count=np.array([len(options) for options in keeps], np.int64),
        ordered=np.array([name in rules.order for name in names], np.int64),
        goal=exponents_of(goal),
        most_cycles=ideal / rules.least_utilization if rules.least_utilization > 0 else math.inf,
    )
    loops = np.ones((len(names), 4, len(layer.dims)), np.int64)
    loops[:, at.ORDER] = np.arange(len(layer.dims))
    loops[0, at.TEMPORAL] = left
    for name, rows in rules.fixed.items():
        for row, bounds_of in rows.items():
            for dim, bound in bounds_of.items():
                loops[names.index(name), BOUNDS[ROWS.index(row)], layer.dims.index(dim)] *= bound
    for name, order in rules.order.items():
        loops[names.index(name), at.ORDER] = ordered(order, layer)
    return space, loops


def primes_of(number: int) -> list[int]:
    """Return the prime factors, smallest first.

    >>> primes_of(112)
    [2, 2, 2, 2, 7]
    """
    found, p = [], 2
    while p * p <= number:
        while number % p == 0:
            found.append(p)
            number //= p
        p += 1
    return [*found, number] if number > 1 else found


def rounded_up(layer: Layer, accelerator: Accelerator) -> list[tuple[int, ...]]:
    """Return sizes that divide more easily: smooth ones, or multiples of the array's sides.

    Multiples that would make a dimension more than a quarter larger are not taken.
    """

    def smooth(bound: int) -> int:
        return next(n for n in itertools.count(bound) if n == 1 or primes_of(n)[-1] <= SMOOTH)

    def multiple(bound: int, side: int) -> int:
        up = -(-bound // side) * side
        return up if up <= bound * MOST_LARGER else smooth(bound)

    found = [tuple(map(smooth, layer.bounds))]
    found += [tuple(multiple(b, side) for b in layer.bounds) for side in accelerator.mac.mesh]
    return [sizes for sizes in dict.fromkeys(found) if sizes != layer.bounds]


def _slots(
    dim: str,
    free: int,
    layer: Layer,
    accelerator: Accelerator,
    machine: Machine,
    rules: Constraints,
) -> list[int]:
    """Return where factors of a dimension may stand; the outermost level's time comes first."""
    found = []
    for k, level in enumerate(accelerator.levels):
        allowed = rules.allow.get(level.name, {})
        fixed = rules.fixed.get(level.name, {})
        for row, name in enumerate(ROWS):
            fan = (2, int(machine.sizes[k, at.FAN_X]), int(machine.sizes[k, at.FAN_Y]))[row]
            if fan > 1 and dim in allowed.get(name, layer.dims) and dim not in fixed.get(name, {}):
                found.append(3 * k + row)
    if free > 1 and (not found or found[0] != 0):
        raise UserError(
            f"constraints forbid loops over {dim} at {accelerator.levels[0].name}, outermost; "
            "there must be a place for whatever fits nowhere else"
        )
    return found or [0]


def _keeps(k: int, accelerator: Accelerator, machine: Machine, rules: Constraints) -> list[int]:
    """Return the sets of tensors a level may keep, as masks."""
    level = accelerator.levels[k]
    options = [rules.keep[level.name]] if level.name in rules.keep else list(level.may_keep)
    if unknown := [t for keep in options for t in keep if t not in TENSORS]:
        raise UserError(f"constraint keeps '{unknown[0]}'{suggestion(unknown[0], TENSORS)}")
    words = int(machine.sizes[k, at.CAPACITY])
    fitting = [keep for keep in options if len(keep) <= words]
    if not fitting:
        raise Infeasible(
            "buffer_too_small",
            f"{level.name} holds {words} words, fewer than the tensors it must keep",
        )
    return [sum(1 << TENSORS.index(tensor) for tensor in keep) for keep in fitting]
