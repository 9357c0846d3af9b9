"""Goals of the mapper: products of powers of the energy and the cycles of a mapping."""

from __future__ import annotations

import numpy as np

from simulators.core.errors import UnknownNameError
from simulators.core.jit import Floats, array, f8, kernel

GOALS = {
    "edp": (1.0, 1.0),
    "energy": (1.0, 0.001),
    "cycles": (0.001, 1.0),
    "ed2p": (1.0, 2.0),
}
"""Exponents of energy and cycles; the small ones break ties."""


def exponents_of(goal: str) -> Floats:
    """Return the exponents of the energy and of the cycles in a goal.

    Raises:
        UnknownNameError: there is no goal of that name.
    """
    if goal not in GOALS:
        raise UnknownNameError("goal", goal, tuple(GOALS))
    return np.array(GOALS[goal])


@kernel(f8(array(f8), f8, f8), no_refcount=True)
def score(exponents: Floats, energy_pj: float, cycles: float) -> float:
    """Return the value of the goal for a mapping; less is better."""
    return float(energy_pj ** exponents[0] * cycles ** exponents[1])
