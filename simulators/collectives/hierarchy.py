"""Inside a node a collective takes what was measured; between nodes, what the model says.

Over several dimensions the innermost is a node. The buffer is reduce-scattered inside, combined
between nodes by each GPU for its share, and gathered inside; the parts follow one another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.collectives.algorithms import ALL_GATHER, COLLECTIVES, IMPOSSIBLE
from simulators.collectives.analytic import OP, PLAN, RANKS, SIZE, collectives_ns
from simulators.collectives.measured import Timed, measured_time
from simulators.collectives.plan import NS, Plan
from simulators.core.errors import Infeasible

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Answer:
    """Seconds, their interval, and whether they rest on measurements alone."""

    time_s: Floats
    lo_s: Floats
    hi_s: Floats
    calibrated: bool
    extrapolated: NDArray[np.bool_]


def measured_s(
    plan: Plan,
    *,
    collective: str,
    gpu: str,
    library: str,
    dtype: str,
    size_bytes: Floats,
    requests: Ints,
    memory_bytes_per_s: Floats,
) -> Answer:
    """Return the time on a node, or on several.

    Raises:
        UnknownNameError: nobody measured the library on this GPU.
        Infeasible: nobody measured this collective with it.
    """
    inside, outside = plan.topology.dimensions[0].ranks, plan.ranks
    outside //= inside

    def timed(part: str, size: Floats) -> Timed:
        return measured_time(
            gpu=gpu, library=library, collective=part, dtype=dtype, ranks=inside, size_bytes=size
        )

    if outside == 1:
        alone = timed(collective, size_bytes)
        return Answer(alone.time_s, alone.lo_s, alone.hi_s, True, alone.extrapolated)
    if collective == "send_recv":
        parts: list[Timed] = []
    elif collective == "all_reduce":
        parts = [timed("reduce_scatter", size_bytes), timed("all_gather", size_bytes)]
    else:
        parts = [timed(collective, size_bytes)]
    between_s = _between_s(plan, collective, size_bytes / inside, requests, memory_bytes_per_s)
    total = [between_s, between_s.copy(), between_s.copy()]
    for part in parts:
        for i, column in enumerate((part.time_s, part.lo_s, part.hi_s)):
            total[i] = total[i] + column
    return Answer(total[0], total[1], total[2], False, np.ones(size_bytes.shape, bool))


def _between_s(
    plan: Plan, collective: str, share_bytes: Floats, requests: Ints, memory_bytes_per_s: Floats
) -> Floats:
    """Return what the dimensions between nodes take, by the phase model."""
    whole = plan.whole.copy()
    whole[0, RANKS] = 1
    op = COLLECTIVES.index(collective)
    nodes = int(np.prod(whole[:, RANKS]))
    asked = requests.copy()
    asked[:, PLAN] = 0
    size = share_bytes / nodes if op == ALL_GATHER else share_bytes
    if collective in ("all_to_all", "send_recv", "broadcast"):
        size = share_bytes * plan.whole[0, RANKS]
    asked[:, OP], asked[:, SIZE] = op, np.maximum(size.astype(np.int64), 1)
    taken = np.zeros(len(asked), np.int64)
    collectives_ns(asked, memory_bytes_per_s, whole[None], plan.rates[None], taken)
    if (taken == IMPOSSIBLE).any():
        raise Infeasible(
            "no_such_algorithm", f"{collective} over {nodes} nodes of {plan.topology.name}"
        )
    return taken / NS
