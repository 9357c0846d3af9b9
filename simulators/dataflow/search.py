"""The mapper: anytime, the same for the same seed, and never without a mapping if one exists.

It starts from the mapping that streams every operand from the outermost level one word at a time,
which fits whenever anything fits, and walks from there and from the best so far, hot and cold in
turn. Beside the best it reports a bound that no mapping can beat: all multiplies, each word of each
tensor once from the outermost level, and what levels inside the array read for every multiply.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping as Table
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.errors import Infeasible, UserError, suggestion
from simulators.core.jit import Ints
from simulators.dataflow.access import (
    CAPACITY,
    FAN_X,
    FAN_Y,
    ORDER,
    OUTPUT,
    READS,
    SPATIAL_X,
    SPATIAL_Y,
    TEMPORAL,
    UPDATES,
    Machine,
    work_for,
)
from simulators.dataflow.annealing import DRAWS, Space, anneal
from simulators.dataflow.costs import RESULTS
from simulators.dataflow.energy import Evaluation, area_mm2, evaluated, machine_of
from simulators.dataflow.mapping import Mapping, decode, encode, nest_of
from simulators.dataflow.objective import DEPTH, Objective, objective
from simulators.workload.loop_nest import Layer

WALK = 10_000
"""Steps of one walk."""

HOT, COLD = 0.4, 0.002
"""Temperatures a walk cools between: factors of 1.5 and 1.002 in the goal."""

LEAST_HINTED = 500
"""Mappings below which a hint is not worth a walk."""

ROWS = ("temporal", "spatial_x", "spatial_y")

SMOOTH = 5
"""The largest prime factor of a dimension that was rounded up."""

MOST_LARGER = 1.25
"""How much larger rounding up to a side of the array may make a dimension."""


@dataclass(frozen=True)
class Constraints:
    """What a mapping must obey; whatever is not named is free.

    `allow` names the dimensions that may stand in a level's `temporal`, `spatial_x` or `spatial_y`
    loops; `fixed` the bounds that some of them have there; `order` the dimensions of a level's
    loops in time, outermost first; `keep` the tensors a level keeps, instead of the sets its
    accelerator allows.
    """

    allow: Table[str, Table[str, str | tuple[str, ...]]] = field(default_factory=dict)
    fixed: Table[str, Table[str, Table[str, int]]] = field(default_factory=dict)
    order: Table[str, tuple[str, ...]] = field(default_factory=dict)
    keep: Table[str, tuple[str, ...]] = field(default_factory=dict)
    least_utilization: float = 0.0


@dataclass(frozen=True)
class Found:
    """The best mapping of a search, and how good it could possibly be."""

    mapping: Mapping
    evaluation: Evaluation
    evaluations: int  # mappings tried
    feasible: int  # of them
    energy_bound_pj: float
    cycles_bound: int
    gap: float  # of the goal: 0 is proven optimal, 0.5 at most half as much is possible, 1 unknown


def find(
    layer: Layer,
    accelerator: Accelerator,
    *,
    goal: str = "edp",
    evaluations: int = 200_000,
    seconds: float = math.inf,
    seed: int = 0,
    constraints: Constraints | None = None,
    remainders: bool = False,
    hints: Sequence[Constraints] = (),
) -> Found:
    """Return the best mapping found within a budget.

    Args:
        layer: the loop nest.
        accelerator: what runs it.
        goal: `edp`, `energy`, `cycles`, or an expression as of `objective`; it must be positive.
        evaluations: mappings tried; with this budget alone the result depends on the seed only.
        seconds: processor time after which no further walk begins.
        seed: of the walks.
        constraints: what the mapping must obey.
        remainders: whether loops need not divide their dimension, so that last tiles are smaller;
            half of the mappings tried are of dimensions rounded up.
        hints: tighter constraints worth a look first, such as named dataflows; half of the mappings
            tried obey one of them, and the walk without them goes on from the best.

    Raises:
        Infeasible: a buffer cannot hold one word of each tensor it must keep, fixed loops fit
            nowhere, or no mapping reaches the utilisation asked for.
        UserError: the goal or a constraint names something that is not there.
    """
    rules = constraints or Constraints()
    aim = objective(goal)
    energy_bound_pj, cycles_bound = bounds(layer, accelerator)
    area = area_mm2(accelerator)
    ideal = layer.macs / accelerator.mac.instances
    floor = -math.inf
    if aim.bounded:
        least = aim.value(
            energy_pj=energy_bound_pj, cycles=cycles_bound, area_mm2=area,
            utilization=ideal / cycles_bound,
        )  # fmt: skip
        floor = math.log(least) if least > 0 else -math.inf
    rounded = _rounded_up(layer, accelerator) if remainders else []
    budgets = [evaluations, *[0] * len(rounded)]
    if rounded:
        share = evaluations // 2 // len(rounded)
        budgets = [evaluations - share * len(rounded), *[share] * len(rounded)]
    walked: list[_Walked] = []
    until = time.process_time() + seconds
    first = budgets[0] // 2 // len(hints) if hints else 0
    plan = [(layer.bounds, hint, first) for hint in hints if first >= LEAST_HINTED]
    rest = budgets[0] - len(plan) * first
    plan += [
        (sizes, rules, budget)
        for sizes, budget in zip([layer.bounds, *rounded], [rest, *budgets[1:]], strict=True)
    ]
    for sizes, obeyed, budget in plan:
        space = _space(layer, sizes, accelerator, aim, area, obeyed)
        start = _start(layer, sizes, accelerator, space, obeyed)
        if walked and obeyed is rules and sizes == layer.bounds:
            start = min(walked, key=lambda w: w.best)
        walked.append(_walk(layer, accelerator, space, start, budget, seed, until, floor))
        if walked[-1].best <= floor or time.process_time() > until:
            break
    best = min(walked, key=lambda w: w.best)
    feasible = sum(w.feasible for w in walked)
    if best.best == -math.inf:
        raise UserError(f"goal '{goal}' is not positive; the mapper compares ratios")
    if not math.isfinite(best.best):
        if feasible == 0:
            raise Infeasible("constraints_exceed_buffer", "no mapping with the fixed loops fits")
        raise Infeasible("utilization_too_low", f"none reaches {rules.least_utilization:g}")
    mapping = decode(best.loops, best.keep, layer, accelerator)
    evaluation = evaluated(*encode(mapping, layer, accelerator), layer, accelerator)
    assert isinstance(evaluation, Evaluation)
    return Found(
        mapping=mapping,
        evaluation=evaluation,
        evaluations=sum(w.evaluations for w in walked),
        feasible=feasible,
        energy_bound_pj=energy_bound_pj,
        cycles_bound=cycles_bound,
        gap=max(0.0, 1.0 - math.exp(floor - best.best)),
    )


def given(mapping: Mapping, layer: Layer, accelerator: Accelerator) -> Found:
    """Return a mapping that was not searched for, with the bounds of any other.

    Raises:
        Infeasible: its tiles or its loops do not fit.
        UserError: it is not of this layer and accelerator.
    """
    evaluation = evaluated(*encode(mapping, layer, accelerator), layer, accelerator)
    if isinstance(evaluation, str):
        raise Infeasible(evaluation, "the mapping that was given does not fit")
    energy_bound_pj, cycles_bound = bounds(layer, accelerator)
    best = energy_bound_pj * cycles_bound
    return Found(
        mapping=mapping, evaluation=evaluation, evaluations=1, feasible=1,
        energy_bound_pj=energy_bound_pj, cycles_bound=cycles_bound,
        gap=1.0 - best / evaluation.edp,
    )  # fmt: skip


@dataclass(frozen=True)
class _Walked:
    """What one run of walks came to; `best` is the logarithm of the goal."""

    best: float
    loops: Ints
    keep: Ints
    where: Ints
    evaluations: int = 0
    feasible: int = 0


def _walk(
    layer: Layer, accelerator: Accelerator, space: Space, start: _Walked,
    evaluations: int, seed: int, until: float, floor: float,
) -> _Walked:  # fmt: skip
    """Walk hot from the start and cold from the best so far, in turn."""
    nest, machine = nest_of(layer), machine_of(accelerator)
    loops, keep, where = (
        np.ascontiguousarray(np.repeat(one[None], 3, axis=0))
        for one in (start.loops, start.keep, start.where)
    )
    work = work_for(keep.shape[1], len(layer.dims))
    counts = np.zeros((keep.shape[1], len(TENSORS), 3), np.int64)
    best = np.full(3 + RESULTS, np.inf)
    best[0] = best[2] = start.best
    tried = feasible = 0
    walks = math.ceil(evaluations / WALK)
    for walk, child in enumerate(np.random.SeedSequence(seed).spawn(walks)):
        steps = min(WALK, evaluations - tried)
        draws = np.random.default_rng(child).random((steps, DRAWS))
        if walk and walk % 2 == 0:
            loops[0], keep[0], where[0] = loops[2], keep[2], where[2]
            best[0] = best[2]
        heat = np.array([HOT if walk % 2 == 0 or walk < 3 else HOT / 8, COLD])
        feasible += anneal(
            nest, machine, space, work, counts, draws, heat, loops, keep, where, best
        )
        tried += steps
        if best[2] <= floor or time.process_time() > until:
            break
    return _Walked(float(best[2]), loops[2], keep[2], where[2], tried, feasible)


def bounds(layer: Layer, accelerator: Accelerator) -> tuple[float, int]:
    """Return energy in pJ and cycles that no mapping can beat.

    Every tensor crosses the outermost level once; where a level at the multipliers must keep a
    tensor, each multiply reads it there, and updates it if it is the output.
    """
    machine = machine_of(accelerator)
    levels = accelerator.levels
    words = [layer.words(tensor.name) for tensor in layer.tensors]
    actions = [UPDATES if tensor.output else READS for tensor in layer.tensors]
    energy_pj = float(machine.energy_pj[-1, 0]) * layer.macs
    for number, action in zip(words, actions, strict=True):
        energy_pj += float(machine.energy_pj[0, action]) * number / levels[0].block_words
    for t, tensor in enumerate(TENSORS):
        inner = [k for k, level in enumerate(levels) if any(tensor in s for s in level.may_keep)]
        last = inner[-1]
        forced = all(tensor in keep for keep in levels[last].may_keep)
        if last > 0 and forced and levels[last].mesh == accelerator.mac.mesh:
            cost = float(machine.energy_pj[last, actions[t]]) / levels[last].block_words
            energy_pj += cost * layer.macs
    fed = words[0] + words[1]
    rates = machine.rates[0]
    return energy_pj, max(
        math.ceil(layer.macs / accelerator.mac.instances),
        math.ceil(fed / rates[0]),
        math.ceil(words[OUTPUT] / rates[1]),
        math.ceil(sum(words) / rates[2]),
    )


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


def _rounded_up(layer: Layer, accelerator: Accelerator) -> list[tuple[int, ...]]:
    """Return sizes that divide more easily: smooth ones, or multiples of the array's sides.

    Multiples that would make a dimension more than a quarter larger are not taken.
    """

    def smooth(bound: int) -> int:
        return next(n for n in itertools.count(bound) if n == 1 or primes_of(n)[-1] <= SMOOTH)

    def multiple(bound: int, side: int) -> int:
        up = -(-bound // side) * side
        return up if up <= bound * MOST_LARGER else smooth(bound)

    columns, rows = accelerator.mac.mesh
    found = [
        tuple(smooth(bound) for bound in layer.bounds),
        tuple(multiple(bound, columns) for bound in layer.bounds),
        tuple(multiple(bound, rows) for bound in layer.bounds),
    ]
    return [sizes for sizes in dict.fromkeys(found) if sizes != layer.bounds]


def _space(
    layer: Layer, sizes: tuple[int, ...], accelerator: Accelerator, aim: Objective, area: float,
    rules: Constraints,
) -> Space:  # fmt: skip
    names = [level.name for level in accelerator.levels]
    for name in (*rules.allow, *rules.keep, *rules.fixed, *rules.order):
        if name not in names:
            raise UserError(f"constraint on level '{name}'{suggestion(name, names)}")
    machine = machine_of(accelerator)
    left = _left_free(layer, sizes, rules)
    primes = [(d, p) for d, bound in enumerate(left) for p in primes_of(bound)]
    slots = [
        _slots(dim, free, layer, accelerator, machine, rules)
        for dim, free in zip(layer.dims, left, strict=True)
    ]
    padded = [[*row, *[0] * (3 * len(names) - len(row))] for row in slots]
    keeps = [_keeps(k, accelerator, machine, rules) for k in range(len(names))]
    widest = max(len(options) for options in keeps)
    masks = [[*options, *[0] * (widest - len(options))] for options in keeps]
    ideal = layer.macs / accelerator.mac.instances
    most = ideal / rules.least_utilization if rules.least_utilization > 0 else math.inf
    return Space(
        primes=np.array(primes, np.int64).reshape(-1, 2),
        slots=np.array(padded, np.int64),
        slot_count=np.array([len(row) for row in slots], np.int64),
        keeps=np.array(masks, np.int64),
        keep_count=np.array([len(options) for options in keeps], np.int64),
        ordered=np.array([name in rules.order for name in names], np.int64),
        limits=np.array([most, ideal]),
        program=aim.program,
        quantities=np.array([0.0, 0.0, 0.0, area]),
        stack=np.zeros(DEPTH),
    )


def _left_free(layer: Layer, sizes: tuple[int, ...], rules: Constraints) -> list[int]:
    """Return the part of each dimension that fixed loops leave to the mapper."""
    left = list(sizes)
    for name, rows in rules.fixed.items():
        for row, bounds_of in rows.items():
            if row not in ROWS:
                raise UserError(f"constraint on {name}: '{row}'{suggestion(row, ROWS)}")
            for dim, bound in bounds_of.items():
                if dim not in layer.dims:
                    raise UserError(
                        f"constraint on {name}: no loop '{dim}'{suggestion(dim, layer.dims)}"
                    )
                d = layer.dims.index(dim)
                if bound < 1 or left[d] % bound:
                    raise UserError(
                        f"constraint on {name}: {dim} {bound} does not divide what is left of "
                        f"{dim}, {left[d]}; of {sizes[d]}"
                    )
                left[d] //= bound
    for name, dims in rules.order.items():
        if unknown := [dim for dim in dims if dim not in layer.dims]:
            raise UserError(
                f"constraint on {name}: no loop '{unknown[0]}'{suggestion(unknown[0], layer.dims)}"
            )
    return left


def _slots(
    dim: str, free: int, layer: Layer, accelerator: Accelerator, machine: Machine,
    rules: Constraints,
) -> list[int]:  # fmt: skip
    """Return where factors of a dimension may stand; the outermost level's time comes first."""
    found = []
    for k, level in enumerate(accelerator.levels):
        allowed = rules.allow.get(level.name, {})
        fixed = rules.fixed.get(level.name, {})
        for row, name in enumerate(ROWS):
            fan = (2, int(machine.sizes[k, FAN_X]), int(machine.sizes[k, FAN_Y]))[row]
            if fan > 1 and dim in allowed.get(name, layer.dims) and dim not in fixed.get(name, {}):
                found.append(3 * k + row)
    if free > 1 and (not found or found[0] != 0):
        raise UserError(
            f"constraints forbid loops over {dim} at {accelerator.levels[0].name}, outermost; "
            "there must be a place for whatever fits nowhere else"
        )
    return found or [0]


def _keeps(k: int, accelerator: Accelerator, machine: Machine, rules: Constraints) -> list[int]:
    level = accelerator.levels[k]
    options = [rules.keep[level.name]] if level.name in rules.keep else list(level.may_keep)
    if unknown := [t for keep in options for t in keep if t not in TENSORS]:
        raise UserError(f"constraint keeps '{unknown[0]}'{suggestion(unknown[0], TENSORS)}")
    room = int(machine.sizes[k, CAPACITY])
    fitting = [keep for keep in options if len(keep) <= room]
    if not fitting:
        raise Infeasible(
            "buffer_too_small",
            f"{level.name} holds {room} words, fewer than the tensors it must keep",
        )
    return [sum(1 << TENSORS.index(tensor) for tensor in keep) for keep in fitting]


def _start(
    layer: Layer, sizes: tuple[int, ...], accelerator: Accelerator, space: Space,
    rules: Constraints,
) -> _Walked:  # fmt: skip
    """Return the mapping with all free loops in time at the outermost level, not evaluated."""
    names = [level.name for level in accelerator.levels]
    levels, dims = len(names), len(layer.dims)
    loops = np.ones((levels, 4, dims), np.int64)
    loops[:, ORDER] = np.arange(dims)
    loops[0, TEMPORAL] = _left_free(layer, sizes, rules)
    for name, rows in rules.fixed.items():
        for row, bounds_of in rows.items():
            for dim, bound in bounds_of.items():
                at = (TEMPORAL, SPATIAL_X, SPATIAL_Y)[ROWS.index(row)]
                loops[names.index(name), at, layer.dims.index(dim)] *= bound
    for name, order in rules.order.items():
        inner = [layer.dims.index(dim) for dim in order]
        rest = [d for d in range(dims) if d not in inner]
        loops[names.index(name), ORDER] = rest + inner
    where = np.zeros(len(space.primes), np.int64)
    return _Walked(math.inf, loops, space.keeps[:, 0].copy(), where)
