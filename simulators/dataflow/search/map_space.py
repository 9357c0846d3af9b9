"""The mappings that a search may visit: constraints, named dataflows, loop factors, spreads.

Weight stationary spreads filters and the reduction: each element holds its weights while outputs
stream past. Output stationary spreads pixels or filters, and reduces in time. Input stationary
spreads the dimensions of inputs. Row stationary (Chen et al., ISCA 2016) lays filter rows along Y
and output rows along X. The mapper chooses the temporal loops inside the array.

A spread is one choice of loop factors over the rows and columns of the array. Temporal loops change
a mapping's cost gradually; spatial ones change it in leaps, for few products of factors nearly fill
a side. So spreads are listed, and searches start from the best of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.errors import Infeasible, UnknownNameError, UserError, suggestion
from simulators.core.jit import Ints
from simulators.dataflow import access as at
from simulators.dataflow.evaluation import Machine, machine_of
from simulators.dataflow.mapping import BOUNDS, ROWS, ordered
from simulators.dataflow.search.annealing import Space, exponents_of, padded
from simulators.workload.loop_nest import Layer

_KEYS = (*ROWS, "order", "keep")


@dataclass(frozen=True)
class Constraints:
    """Constraints on mappings.

    `allow`: dimensions allowed in a level's `temporal`, `spatial_x` or `spatial_y` loops; `fixed`:
    fixed bounds of loops; `order`: dimensions of a level's temporal loops, outermost first; `keep`:
    the tensors a level keeps, instead of the sets that the accelerator allows.
    """

    allow: Mapping[str, Mapping[str, str | tuple[str, ...]]] = field(default_factory=dict)
    fixed: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keep: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    least_utilization: float = 0.0

    def left_free(self, layer: Layer, sizes: Sequence[int], levels: Sequence[str]) -> list[int]:
        """Return the part of each dimension that the mapper may factor.

        Raises:
            UserError: a level, a loop or a bound does not match the layer or the accelerator.
        """
        for name in (*self.allow, *self.keep, *self.fixed, *self.order):
            if name not in levels:
                raise UserError(f"constraint on level '{name}'{suggestion(name, levels)}")
        left = list(sizes)
        for name, rows in self.fixed.items():
            for row, bounds_of in rows.items():
                if row not in ROWS:
                    raise UserError(f"constraint on {name}: '{row}'{suggestion(row, ROWS)}")
                for dim, bound in bounds_of.items():
                    d = _dimension(name, dim, layer)
                    if bound < 1 or left[d] % bound:
                        raise UserError(
                            f"constraint on {name}: {dim} {bound} does not divide what is left of "
                            f"{dim}, {left[d]}; of {sizes[d]}"
                        )
                    left[d] //= bound
        for name, dims in self.order.items():
            for dim in dims:
                _dimension(name, dim, layer)
        return left


def read_constraints(table: Any) -> Constraints:
    """Return constraints from a table by level, with an optional minimum utilization.

    `temporal`, `spatial_x` and `spatial_y` of a level are lists of allowed dimensions, or tables of
    fixed bounds; `order` and `keep` are lists.

    Raises:
        UserError: a key or a value is invalid.
    """
    if not isinstance(table, Mapping):
        raise UserError("constraints: a table by level is needed, as in DRAM: {order: [M, C]}")
    allow: dict[str, dict[str, tuple[str, ...]]] = {}
    fixed: dict[str, dict[str, dict[str, int]]] = {}
    whole: dict[str, dict[str, tuple[str, ...]]] = {"order": {}, "keep": {}}
    least = table.get("least_utilization", 0.0)
    if not isinstance(least, int | float) or not 0.0 <= least <= 1.0:
        raise UserError(f"constraints: least_utilization is {least!r}, not between 0 and 1")
    for level, rules in table.items():
        if level == "least_utilization":
            continue
        if not isinstance(rules, Mapping):
            raise UserError(f"constraints: {level}: {rules!r} is not a table")
        for key, value in rules.items():
            if key not in _KEYS:
                raise UserError(
                    f"constraints: {level}: '{key}' is not known{suggestion(key, _KEYS)}"
                )
            if isinstance(value, Mapping) and key in ROWS:
                if not all(isinstance(bound, int) for bound in value.values()):
                    raise UserError(f"constraints: {level}: {key}: a bound is no whole number")
                fixed.setdefault(level, {})[key] = {str(d): b for d, b in value.items()}
                continue
            if not isinstance(value, list):
                raise UserError(f"constraints: {level}: {key} is {value!r}, not a list")
            words = tuple(str(word) for word in value)
            if key in whole:
                whole[key][level] = words
            else:
                allow.setdefault(level, {})[key] = words
    return Constraints(allow=allow, fixed=fixed, **whole, least_utilization=float(least))


def _dimension(level: str, dim: str, layer: Layer) -> int:
    if dim not in layer.dims:
        raise UserError(f"constraint on {level}: no loop '{dim}'{suggestion(dim, layer.dims)}")
    return layer.dims.index(dim)


ANY, ASIDE = "any", "/"
"""The dataflow without constraints; what separates dimensions of columns and rows: `M/C,R`."""

SPREAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "weight_stationary": (("M", "B"), ("C", "R", "S")),
    "output_stationary": (("M", "Q", "B", "N"), ("P", "N", "M")),
    "input_stationary": (("C", "Q", "N", "B"), ("C", "P", "R", "S")),
    "row_stationary": (("P", "Q", "M"), ("R", "S", "C", "M")),
}
"""Dimensions that a dataflow spreads over columns and over rows, by name."""


def dataflows() -> tuple[str, ...]:
    """Return the names a design point may use."""
    return (ANY, *SPREAD)


def spread_of(dataflow: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the dimensions that a dataflow spreads over columns and rows; of `any`, all choices.

    A dataflow may state its dimensions, those of columns first.

    Raises:
        UnknownNameError: the dataflow is unknown.

    >>> spread_of("M/C,R")
    [(('M',), ('C', 'R'))]
    """
    if dataflow == ANY:
        return list(SPREAD.values())
    if ASIDE in dataflow:
        columns, rows = (tuple(s.split(",")) for s in dataflow.split(ASIDE, 1))
        return [(columns, rows)]
    if dataflow not in SPREAD:
        raise UnknownNameError("dataflow", dataflow, dataflows())
    return [SPREAD[dataflow]]


def constraints_of(
    dataflow: str, layer: Layer, accelerator: Accelerator, rules: Constraints | None = None
) -> Constraints:
    """Return the constraints of a named dataflow on every fan-out, in addition to `rules`.

    Raises:
        UnknownNameError: the dataflow is unknown.
    """
    rules = rules or Constraints()
    if dataflow == ANY:
        return rules
    [(columns, rows)] = spread_of(dataflow)
    # A layer without M, such as a depthwise one, spreads its channels where filters would go.
    if "M" not in layer.dims:
        columns = (*columns, "C") if "M" in columns else columns
        rows = (*rows, "C") if "M" in rows else rows
    return dataclasses.replace(
        rules,
        allow={
            level.name: {"spatial_x": columns, "spatial_y": rows, **rules.allow.get(level.name, {})}
            for level in accelerator.levels
        },
    )


SMOOTH = 5
"""The largest prime factor of a dimension that was rounded up."""

MOST_LARGER = 1.25
"""Largest enlargement of a dimension by rounding up to a side of the array."""


def space_of(
    layer: Layer, sizes: tuple[int, ...], accelerator: Accelerator, goal: str, rules: Constraints
) -> tuple[Space, Ints]:
    """Return the search space of mappings, and the loops of the initial mapping.

    In the initial mapping all free loops are temporal at the outermost level.

    Raises:
        Infeasible: a buffer cannot hold one word of each tensor it must keep.
        UserError: a constraint names something unknown.
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
    """Return padded sizes with more divisors: smooth numbers, or multiples of the array's sides.

    Multiples that enlarge a dimension by more than a quarter are not used.
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
    """Return the allowed slots of a dimension's factors; temporal at the outermost level first."""
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
            "a slot is needed for factors that fit nowhere else"
        )
    return found or [0]


def _keeps(k: int, accelerator: Accelerator, machine: Machine, rules: Constraints) -> list[int]:
    level = accelerator.levels[k]
    options = [rules.keep[level.name]] if level.name in rules.keep else list(level.may_keep)
    if unknown := [t for keep in options for t in keep if t not in TENSORS]:
        raise UserError(f"constraint keeps '{unknown[0]}'{suggestion(unknown[0], TENSORS)}")
    words = int(machine.sizes[k, at.CAPACITY])
    if level.holds:
        options = [keep for keep in options if set(level.holds) <= set(keep)]
    fitting = [keep for keep in options if len(set(keep) - set(level.holds)) <= words]
    if not fitting:
        raise Infeasible(
            "buffer_too_small",
            f"{level.name} holds {words} words, fewer than the tensors it must keep",
        )
    return [sum(1 << TENSORS.index(tensor) for tensor in keep) for keep in fitting]


Side = tuple[int, tuple[int, ...]]
"""Instances along a side of the array, and the dimensions that may be spread over the side."""


def spreads(space: Space, loops: Ints, sizes: Ints, most: int) -> tuple[Ints, int]:
    """Return spreads as loops, and the most multipliers of any omitted spread (0: none omitted).

    Spreads that use most multipliers come first, the one without spatial loops last. Of spreads
    that differ only in the side of a factor, one is returned. All free factors of `loops` are
    temporal at the outermost level.
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
    """Return factors by spread, side and dimension, and the most multipliers of omitted spreads."""
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
    """Return factors by dimension with a product of at most a side's length, largest first."""
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
