"""Times of collectives without contention: by formula, or event by event where ranks differ.

The formulas hold where all ranks of a dimension are alike, so that chunks move on in step. Ranks of
a tree end their parts at different times and begin the next chunk as soon as they can; only of
trees that are too large to simulate do all ranks wait for the last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulators.collectives.algorithms import ALL_REDUCE, DOUBLE_BINARY_TREE, IMPOSSIBLE
from simulators.collectives.closed.phase_model import collectives_ns
from simulators.collectives.closed.phases import OP, PLAN
from simulators.collectives.events.run import simulate
from simulators.collectives.events.state import ALONE
from simulators.collectives.topologies.blocks import ALGORITHM, RANKS
from simulators.collectives.topologies.plan import Plan
from simulators.core.errors import Infeasible

Ints = NDArray[np.int64]


def uncontended_ns(
    plans: Sequence[Plan], requests: Ints, memory_bytes_per_s: NDArray[np.float64]
) -> Ints:
    """Return the time of every request, or IMPOSSIBLE; columns of requests as of `phases`."""
    out = np.zeros(len(requests), np.int64)
    whole, rates = np.stack([p.whole for p in plans]), np.stack([p.rates for p in plans])
    collectives_ns(requests, memory_bytes_per_s, whole, rates, out)
    has_tree = ((whole[:, :, ALGORITHM] == DOUBLE_BINARY_TREE) & (whole[:, :, RANKS] > 1)).any(1)
    possible = (out != IMPOSSIBLE) & (requests[:, OP] == ALL_REDUCE)
    for i in np.flatnonzero(possible & has_tree[requests[:, PLAN]]):
        plan, memory = plans[requests[i, PLAN]], float(memory_bytes_per_s[i])
        with contextlib.suppress(Infeasible):
            report = simulate(plan, requests[i], memory, mode=ALONE)
            out[i] = out[i] if report.unfinished else report.finish_ns
    return out
