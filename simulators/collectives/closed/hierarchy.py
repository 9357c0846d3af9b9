"""Time of a collective over several nodes: measured inside a node, modelled between nodes.

Over several dimensions the innermost is a node; the parts follow one another.
"""

from __future__ import annotations

import numpy as np

from simulators.collectives.algorithms import ALL_GATHER, COLLECTIVES, IMPOSSIBLE
from simulators.collectives.closed.phase_model import collectives_ns
from simulators.collectives.closed.phases import OP, PLAN, SIZE
from simulators.collectives.measured import CollectiveTime, measured_time, over_nodes
from simulators.collectives.topologies.blocks import RANKS
from simulators.collectives.topologies.plan import NS, Plan
from simulators.core.columns import UNMODELLED
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints


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
) -> CollectiveTime:
    """Return the time on a node, or on several.

    Raises:
        UnknownNameError: the library was not measured on this GPU.
        Infeasible: this collective was not measured with the library.
    """
    inside = plan.topology.dimensions[0].ranks

    def timed(part: str) -> CollectiveTime:
        return measured_time(
            gpu=gpu,
            library=library,
            collective=part,
            dtype=dtype,
            ranks=inside,
            size_bytes=size_bytes,
        )

    if plan.ranks == inside:
        return timed(collective)
    between_s = _between_s(plan, collective, size_bytes / inside, requests, memory_bytes_per_s)
    level = np.full(size_bytes.shape, UNMODELLED)
    return over_nodes(collective, CollectiveTime(between_s, between_s, between_s, level), timed)


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
