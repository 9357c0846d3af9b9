"""The mapper: the best mapping found within a budget, and a lower bound over all mappings.

All spatial mappings (spreads) are listed, each with a lower bound over its mappings. Temporal
searches race from the spreads with the least bounds; the least of all bounds is the bound of the
layer. A race ends when a search reaches the bound.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from simulators.catalog.accelerator import Accelerator
from simulators.core.errors import Infeasible, UserError
from simulators.dataflow.evaluation import Evaluation, evaluated, problem_of
from simulators.dataflow.mapping import LoopNest, decode
from simulators.dataflow.search.annealing import LEAST_STEPS, Start, Walk, exponents_of, race
from simulators.dataflow.search.bounds import MappingBounds, bounds, compulsory, spread_bounds
from simulators.dataflow.search.map_space import Constraints, rounded_up, space_of, spreads
from simulators.workload.loop_nest import Layer

FEWEST_SPREADS, MAPPINGS_A_SPREAD = 256, 40
"""Smallest number of listed spreads, and mappings of the budget per further spread."""


@dataclass(frozen=True)
class Found:
    """The best mapping of a search, with lower bounds over all mappings."""

    mapping: LoopNest
    evaluation: Evaluation
    evaluations: int  # mappings tried
    feasible: int  # of them
    bounds: MappingBounds
    gap: float  # largest possible improvement of the goal: 0 is proven optimal

    def restated(self, evaluation: Evaluation, energy_pj: float, cycles: int) -> Found:
        """Return the result with another evaluation and other bounds of energy and cycles."""
        edp = energy_pj * cycles
        gap = max(0.0, 1.0 - edp / evaluation.edp)
        least = MappingBounds(energy_pj, cycles, edp)
        return dataclasses.replace(self, evaluation=evaluation, bounds=least, gap=gap)


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

    The goal is one of `GOALS`. With `remainders`, loops need not divide their dimension, so that
    last tiles are smaller; half of the budget is then spent on padded dimensions.

    Raises:
        Infeasible: a buffer cannot hold one word of each tensor it must keep, fixed loops do not
            fit, or no mapping reaches the minimum utilization.
        UserError: the goal or a name in a constraint is unknown, or the accelerator states no
            energy.
    """
    rules, exponents = constraints or Constraints(), exponents_of(goal)
    rounded = rounded_up(layer, accelerator) if remainders else []
    share = evaluations // 2 // len(rounded) if rounded else 0
    plan = [(layer.bounds, evaluations - share * len(rounded))]
    plan += [(sizes, share) for sizes in rounded]
    problem = problem_of(layer, accelerator)
    unknown, widest = np.zeros((0, 4)), accelerator.mac.instances
    least, least_goal = bounds(layer, accelerator, problem, exponents, unknown, widest)
    walked: list[Walk] = []
    for sizes, budget in plan:
        space, loops = space_of(layer, sizes, accelerator, goal, rules)
        most = FEWEST_SPREADS + budget // MAPPINGS_A_SPREAD
        spread, left_out = spreads(space, loops, problem.sizes, most)
        least_costs, keep = spread_bounds(layer, accelerator, problem, space, spread)
        fitting = np.isfinite(least_costs[:, 3])
        if fitting.any() and not remainders:
            least, least_goal = bounds(
                layer, accelerator, problem, exponents, least_costs, left_out
            )
        most = min(int(fitting.sum()), max(1, budget // LEAST_STEPS))
        order = np.argsort(least_costs[:, 3], kind="stable")[:most]
        starts = [Start(spread[k], keep[k], _log(least_costs[k, 3])) for k in order]
        if starts:
            bound_log = _log(least_goal)
            walked.append(race(problem, space, loops, starts, budget, seed, bound_log))
            if walked[-1].best <= bound_log:
                break
    if not walked:
        raise Infeasible("constraints_exceed_buffer", "no mapping with the fixed loops fits")
    best = min(walked, key=lambda w: w.best)
    if best.best == -math.inf:
        raise UserError(f"goal '{goal}' is zero: accelerator {accelerator.name} states no energy")
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
        bounds=least,
        gap=max(0.0, 1.0 - math.exp(bound_log - best.best)),
    )


def _log(goal: float) -> float:
    return math.log(goal) if goal > 0 else -math.inf


def given(mapping: LoopNest, layer: Layer, accelerator: Accelerator) -> Found:
    """Return the result for a given mapping, with lower bounds over all mappings.

    Raises:
        Infeasible: the tiles or the loops do not fit.
        UserError: the mapping does not match the layer or the accelerator.
    """
    evaluation = evaluated(mapping, layer, accelerator)
    if isinstance(evaluation, str):
        raise Infeasible(evaluation, "the mapping that was given does not fit")
    energy_pj, cycles = compulsory(layer, accelerator, problem_of(layer, accelerator))
    found = Found(mapping, evaluation, 1, 1, MappingBounds(energy_pj, cycles, 0.0), 1.0)
    return found.restated(evaluation, energy_pj, cycles)
