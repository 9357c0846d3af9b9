"""The mapper: the best mapping found within a budget, and a bound no mapping can beat.

It starts from the mapping that streams every operand from the outermost level one word at a time,
which fits whenever anything fits, and walks from there and from the best so far, hot and cold in
turn. The bound is of all multiplies, each word of each tensor once from the outermost level, and
what levels inside the array read for every multiply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.errors import Infeasible, UserError
from simulators.core.jit import Ints
from simulators.dataflow.access.arrays import OUTPUT, READS, UPDATES
from simulators.dataflow.energy.charges import RESULTS
from simulators.dataflow.energy.evaluation import Evaluation, evaluated, problem_of
from simulators.dataflow.energy.technology import area_mm2, machine_of
from simulators.dataflow.mapping.loop_nest import Mapping, decode
from simulators.dataflow.search.annealing import DRAWS, Space, anneal
from simulators.dataflow.search.constraints import Constraints
from simulators.dataflow.search.map_space import rounded_up, space_of
from simulators.dataflow.search.objective import Objective, objective
from simulators.workload.loop_nest import Layer

WALK = 10_000
"""Steps of one walk."""

HOT, COLD = 0.4, 0.002
"""Temperatures a walk cools between: factors of 1.5 and 1.002 in the goal."""

LEAST_HINTED = 500
"""Mappings below which a hint is not worth a walk."""


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
        evaluations: mappings tried.
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
    rules, aim = constraints or Constraints(), objective(goal)
    energy_bound_pj, cycles_bound = bounds(layer, accelerator)
    floor = _floor(layer, accelerator, aim, energy_bound_pj, cycles_bound)
    rounded = rounded_up(layer, accelerator) if remainders else []
    share = evaluations // 2 // len(rounded) if rounded else 0
    exact = evaluations - share * len(rounded)
    hinted = exact // 2 // len(hints) if hints else 0
    plan = [(layer.bounds, hint, hinted) for hint in hints if hinted >= LEAST_HINTED]
    plan.append((layer.bounds, rules, exact - len(plan) * hinted))
    plan += [(sizes, rules, share) for sizes in rounded]
    walked: list[_Walked] = []
    for sizes, obeyed, budget in plan:
        space, loops = space_of(layer, sizes, accelerator, aim, obeyed)
        start = _Walked(
            math.inf, loops, space.keeps[:, 0].copy(), np.zeros(len(space.primes), np.int64)
        )
        if walked and obeyed is rules and sizes == layer.bounds:
            start = min(walked, key=lambda w: w.best)
        walked.append(_walk(layer, accelerator, space, start, budget, seed, floor))
        if walked[-1].best <= floor:
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
    evaluation = evaluated(mapping, layer, accelerator)
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
    evaluation = evaluated(mapping, layer, accelerator)
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
    evaluations: int, seed: int, floor: float,
) -> _Walked:  # fmt: skip
    """Walk hot from the start and cold from the best so far, in turn."""
    problem = problem_of(layer, accelerator)
    loops, keep, where = (
        np.ascontiguousarray(np.repeat(one[None], 3, axis=0))
        for one in (start.loops, start.keep, start.where)
    )
    counts = np.zeros_like(problem.totals)
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
        feasible += anneal(problem, space, counts, draws, heat, loops, keep, where, best)
        tried += steps
        if best[2] <= floor:
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


def _floor(
    layer: Layer, accelerator: Accelerator, aim: Objective, energy_pj: float, cycles: int
) -> float:
    """Return the logarithm of the least goal that bounds of energy and cycles allow."""
    if not aim.bounded:
        return -math.inf
    least = aim.value(
        energy_pj=energy_pj, cycles=cycles, area_mm2=area_mm2(accelerator),
        utilization=layer.macs / accelerator.mac.instances / cycles,
    )  # fmt: skip
    return math.log(least) if least > 0 else -math.inf
