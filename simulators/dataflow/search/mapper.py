"""The mapper: the best mapping found within a budget, and a bound no mapping can beat.

What may be spread over the array is listed, and each spread has a floor: what no mapping with it
can beat. Walks in time race from the spreads with the least floors, and the least of all floors is
the bound. A race ends where a walk has come to the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simulators.catalog.accelerator import Accelerator
from simulators.core.errors import Infeasible, UserError
from simulators.dataflow.energy.evaluation import Evaluation, evaluated, problem_of
from simulators.dataflow.mapping.loop_nest import Mapping, decode
from simulators.dataflow.search.bounds import bounds, compulsory, floors
from simulators.dataflow.search.constraints import Constraints
from simulators.dataflow.search.map_space import rounded_up, space_of
from simulators.dataflow.search.objective import objective
from simulators.dataflow.search.race import LEAST_STEPS, Start, Walk, race
from simulators.dataflow.search.spreads import spreads
from simulators.workload.loop_nest import Layer

FEWEST_SPREADS, MAPPINGS_A_SPREAD = 256, 40
"""Spreads listed however few mappings may be tried, and mappings for each of which one more is."""


@dataclass(frozen=True)
class Found:
    """The best mapping of a search, and how good it could possibly be."""

    mapping: Mapping
    evaluation: Evaluation
    evaluations: int  # mappings tried
    feasible: int  # of them
    energy_bound_pj: float
    cycles_bound: int
    edp_bound: float  # pJ cycles
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
) -> Found:
    """Return the best mapping found within a budget.

    The goal is `edp`, `energy`, `cycles`, or an expression as of `objective` that is positive. With
    `remainders` loops need not divide their dimension, so that last tiles are smaller; half of the
    mappings tried are then of dimensions rounded up.

    Raises:
        Infeasible: a buffer cannot hold one word of each tensor it must keep, fixed loops fit
            nowhere, or no mapping reaches the utilisation asked for.
        UserError: the goal or a constraint names something that is not there.
    """
    rules, aim = constraints or Constraints(), objective(goal)
    rounded = rounded_up(layer, accelerator) if remainders else []
    share = evaluations // 2 // len(rounded) if rounded else 0
    plan = [(layer.bounds, evaluations - share * len(rounded))]
    plan += [(sizes, share) for sizes in rounded]
    problem = problem_of(layer, accelerator)
    unknown, widest = np.zeros((0, 4)), accelerator.mac.instances
    least = bounds(layer, accelerator, problem, aim, unknown, widest)
    walked: list[Walk] = []
    for sizes, budget in plan:
        space, loops = space_of(layer, sizes, accelerator, aim, rules)
        most = FEWEST_SPREADS + budget // MAPPINGS_A_SPREAD
        spread, left_out = spreads(space, loops, problem.sizes, most)
        floor, keep = floors(layer, accelerator, problem, space, spread)
        fitting = np.isfinite(floor[:, 3])
        if fitting.any() and not remainders:
            least = bounds(layer, accelerator, problem, aim, floor, left_out)
        most = min(int(fitting.sum()), max(1, budget // LEAST_STEPS))
        order = np.argsort(floor[:, 3], kind="stable")[:most]
        starts = [Start(spread[k], keep[k], _log(floor[k, 3])) for k in order]
        if starts:
            floor_log = _log(least.goal)
            walked.append(race(problem, space, loops, starts, budget, seed, floor_log))
            if walked[-1].best <= floor_log:
                break
    if not walked:
        raise Infeasible("constraints_exceed_buffer", "no mapping with the fixed loops fits")
    best = min(walked, key=lambda w: w.best)
    if best.best == -math.inf:
        raise UserError(f"goal '{goal}' is not positive; the mapper compares ratios")
    if not math.isfinite(best.best):
        raise Infeasible("utilization_too_low", f"none reaches {rules.least_utilization:g}")
    mapping = decode(*best.mapping, layer, accelerator)
    evaluation = evaluated(mapping, layer, accelerator)
    assert isinstance(evaluation, Evaluation)
    return Found(
        mapping=mapping,
        evaluation=evaluation,
        evaluations=sum(w.evaluations for w in walked),
        feasible=sum(w.feasible for w in walked),
        energy_bound_pj=least.energy_pj,
        cycles_bound=least.cycles,
        edp_bound=least.edp,
        gap=max(0.0, 1.0 - math.exp(floor_log - best.best)),
    )


def _log(goal: float) -> float:
    """Return the logarithm of a goal, of which nothing is known unless it is positive."""
    return math.log(goal) if goal > 0 else -math.inf


def given(mapping: Mapping, layer: Layer, accelerator: Accelerator) -> Found:
    """Return a mapping that was not searched for, with the bounds of any other.

    Raises:
        Infeasible: its tiles or its loops do not fit.
        UserError: it is not of this layer and accelerator.
    """
    evaluation = evaluated(mapping, layer, accelerator)
    if isinstance(evaluation, str):
        raise Infeasible(evaluation, "the mapping that was given does not fit")
    energy_bound_pj, cycles_bound = compulsory(layer, accelerator, problem_of(layer, accelerator))
    best = energy_bound_pj * cycles_bound
    return Found(
        mapping=mapping,
        evaluation=evaluation,
        evaluations=1,
        feasible=1,
        energy_bound_pj=energy_bound_pj,
        cycles_bound=cycles_bound,
        edp_bound=best,
        gap=1.0 - best / evaluation.edp,
    )
