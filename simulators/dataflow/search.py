"""The mapper: anytime, the same for the same seed, and never without a mapping if one exists.

It starts from the mapping that streams every operand from the outermost level one word at a time,
which fits whenever anything fits, and walks from there and from the best so far, hot and cold in
turn. Beside the best it reports a bound that no mapping can beat: all multiplies, each word of each
tensor once from the outermost level, and what levels inside the array read for every multiply.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping as Table
from dataclasses import dataclass, field

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.errors import Infeasible, UserError, suggestion
from simulators.core.jit import Ints
from simulators.dataflow.access import (
    CAPACITY,
    FAN_X,
    FAN_Y,
    OUTPUT,
    READS,
    RESULTS,
    UPDATES,
    Machine,
    work_for,
)
from simulators.dataflow.annealing import DRAWS, Space, anneal
from simulators.dataflow.energy import Evaluation, evaluated, machine_of
from simulators.dataflow.mapping import Mapping, decode, nest_of
from simulators.workload.convolution import Layer

GOALS = {"edp": (1.0, 1.0), "energy": (1.0, 1e-3), "cycles": (1e-3, 1.0)}
"""Exponents of energy and cycles; of two equal in the one, the better in the other is taken."""

WALK = 10_000
"""Steps of one walk."""

HOT, COLD = 0.4, 0.002
"""Temperatures a walk cools between: factors of 1.5 and 1.002 in the goal."""

ROWS = ("temporal", "spatial_x", "spatial_y")


@dataclass(frozen=True)
class Constraints:
    """What a mapping must obey; whatever is not named is free.

    `allow` names the dimensions that may stand in a level's `temporal`, `spatial_x` or `spatial_y`
    loops; `keep` the tensors a level keeps, instead of the sets its accelerator allows.
    """

    allow: Table[str, Table[str, str | tuple[str, ...]]] = field(default_factory=dict)
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
    gap: float  # of the goal: 0 is proven optimal, 0.5 at most half as much is possible


def find(
    layer: Layer,
    accelerator: Accelerator,
    *,
    goal: str = "edp",
    evaluations: int = 200_000,
    seconds: float = math.inf,
    seed: int = 0,
    constraints: Constraints | None = None,
) -> Found:
    """Return the best mapping found within a budget.

    Args:
        layer: the loop nest.
        accelerator: what runs it.
        goal: `edp`, `energy` or `cycles`.
        evaluations: mappings tried; with this budget alone the result depends on the seed only.
        seconds: processor time after which no further walk begins.
        seed: of the walks.
        constraints: what the mapping must obey.

    Raises:
        Infeasible: a buffer cannot hold one word of each tensor it must keep, or no mapping
            reaches the utilisation asked for.
        UserError: the goal or a constraint names something that is not there.
    """
    if goal not in GOALS:
        raise UserError(
            f"unknown goal '{goal}'{suggestion(goal, GOALS)}; known: {', '.join(GOALS)}"
        )
    rules = constraints or Constraints()
    nest, machine = nest_of(layer), machine_of(accelerator)
    space = _space(layer, accelerator, machine, goal, rules)
    energy_bound_pj, cycles_bound = bounds(layer, accelerator)
    floor = _goal(goal, energy_bound_pj, cycles_bound)
    loops, keep, where = _start(layer, accelerator, space)
    work = work_for(keep.shape[1], len(layer.dims))
    counts = np.zeros((keep.shape[1], len(TENSORS), 3), np.int64)
    best = np.full(3 + RESULTS, np.inf)
    tried = feasible = 0
    started = time.process_time()
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
        if best[2] <= floor or time.process_time() - started > seconds:
            break
    if not math.isfinite(best[2]):
        raise Infeasible("utilization_too_low", f"none reaches {rules.least_utilization:g}")
    evaluation = evaluated(loops[2], keep[2], layer, accelerator)
    assert isinstance(evaluation, Evaluation)
    return Found(
        mapping=decode(loops[2], keep[2], layer, accelerator),
        evaluation=evaluation,
        evaluations=tried,
        feasible=feasible,
        energy_bound_pj=energy_bound_pj,
        cycles_bound=cycles_bound,
        gap=max(0.0, 1.0 - math.exp(floor - float(best[2]))),
    )


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


def _space(
    layer: Layer, accelerator: Accelerator, machine: Machine, goal: str, rules: Constraints
) -> Space:
    names = [level.name for level in accelerator.levels]
    for name in (*rules.allow, *rules.keep):
        if name not in names:
            raise UserError(f"constraint on level '{name}'{suggestion(name, names)}")
    primes = [(d, p) for d, bound in enumerate(layer.bounds) for p in primes_of(bound)]
    slots = [_slots(dim, layer, accelerator, machine, rules) for dim in layer.dims]
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
        goal=np.array([*GOALS[goal], most]),
    )


def _slots(
    dim: str, layer: Layer, accelerator: Accelerator, machine: Machine, rules: Constraints
) -> list[int]:
    """Return where factors of a dimension may stand; the outermost level's time comes first."""
    found = []
    for k, level in enumerate(accelerator.levels):
        allowed = rules.allow.get(level.name, {})
        for row, name in enumerate(ROWS):
            fan = (2, int(machine.sizes[k, FAN_X]), int(machine.sizes[k, FAN_Y]))[row]
            if fan > 1 and dim in allowed.get(name, layer.dims):
                found.append(3 * k + row)
    if not found or found[0] != 0:
        raise UserError(
            f"constraints forbid loops over {dim} at {accelerator.levels[0].name}, outermost; "
            "there must be a place for whatever fits nowhere else"
        )
    return found


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


def _start(layer: Layer, accelerator: Accelerator, space: Space) -> tuple[Ints, Ints, Ints]:
    """Return three copies of the mapping with all loops in time at the outermost level."""
    levels, dims = len(accelerator.levels), len(layer.dims)
    loops = np.ones((3, levels, 4, dims), np.int64)
    loops[:, 0, 0] = layer.bounds
    loops[:, :, 1] = np.arange(dims)
    keep = np.tile(space.keeps[:, 0], (3, 1))
    where = np.zeros((3, len(space.primes)), np.int64)
    return loops, keep, where


def _goal(goal: str, energy_pj: float, cycles: float) -> float:
    a, b = GOALS[goal]
    return a * math.log(energy_pj) + b * math.log(cycles)
