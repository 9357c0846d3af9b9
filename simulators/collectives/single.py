"""One collective through the event loop: its phases laid out, its ranks one or all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulators.collectives.algorithms import IMPOSSIBLE, IN_NETWORK
from simulators.collectives.analytic import (
    ACTIVE,
    ALGORITHM,
    BASELINE,
    BLOCK,
    ENDPOINT_NS,
    OP,
    QUEUES,
    RANKS,
    SIZE,
    SPLITS,
)
from simulators.collectives.events import NO_ROOM, REPORT, UNFINISHED, run
from simulators.collectives.phases import MAX_PHASES, lay_out, split
from simulators.collectives.plan import Plan
from simulators.collectives.steps import sends
from simulators.collectives.wires import FAT_TREE_BLOCK, SWITCH_BLOCK

Ints = NDArray[np.int64]

EVENT_LIMIT = 500_000_000
"""Events after which a run is given up: about a minute."""


def has_event_model(plan: Plan, op: int) -> bool:
    """Say whether every phase of a collective can be simulated message by message."""
    ranks = plan.whole[:, RANKS].copy()
    _, phase, _ = _laid_out(plan, op, int(np.prod(ranks)) * 2, 0)
    return all(_has_steps(plan.whole[int(d)], int(o)) for d, o, _ in phase)


def simulate(
    plan: Plan, request: Ints, memory_bytes_per_s: float, *, every_rank: bool = False
) -> Ints:
    """Return what a run reports.

    Args:
        plan: the network.
        request: a row as of `analytic.collectives_ns`.
        memory_bytes_per_s: of the local memory.
        every_rank: simulate all ranks even where one stands for all.
    """
    cut = np.zeros(2, np.int64)
    split(int(request[OP]), int(request[SIZE]), int(request[SPLITS]), plan.ranks, cut)
    phases, phase, half = _laid_out(plan, int(request[OP]), int(cut[0]), int(request[BASELINE]))
    ranks = plan.whole[:, RANKS]
    strides = np.concatenate(([1], np.cumprod(ranks)[:-1])).astype(np.int64)
    alike = plan.is_alike and not every_rank
    report = np.zeros(REPORT, np.int64)
    report[UNFINISHED] = NO_ROOM
    slack = 1
    while report[UNFINISHED] == NO_ROOM:
        run(
            strides,
            1 if alike else plan.ranks,
            int(cut[1]),
            phases,
            int(request[ACTIVE]),
            int(request[QUEUES]),
            memory_bytes_per_s,
            int(request[ENDPOINT_NS]),
            int(alike),
            EVENT_LIMIT,
            slack,
            plan.whole,
            plan.rates,
            np.concatenate((phase, np.zeros((1, 3), np.int64))),
            half,
            report,
        )
        slack *= 4
    return report


def _has_steps(dimension: Ints, op: int) -> bool:
    algorithm, block = int(dimension[ALGORITHM]), int(dimension[BLOCK])
    if algorithm == IN_NETWORK and block not in (SWITCH_BLOCK, FAT_TREE_BLOCK):
        return False
    return sends(algorithm, op, int(dimension[RANKS])) != IMPOSSIBLE


def _laid_out(plan: Plan, op: int, chunk: int, baseline: int) -> tuple[int, Ints, Ints]:
    dimension, ops, payload, half = (np.zeros(MAX_PHASES, np.int64) for _ in range(4))
    ranks = plan.whole[:, RANKS].copy()
    phases = lay_out(op, baseline, ranks, chunk, dimension, ops, payload, half)
    return phases, np.stack((dimension, ops, payload), axis=1)[:phases], half
