"""What one of several processes on a GPU gets of it: SMs, memory bandwidth, time.

A process alone on a share `x` of the SMs keeps all of the bandwidth: the kernel model with fewer
SMs prices it. While others are at work, bandwidth is shared max-min fairly: who asks for little
gets it, the rest is for the others, and nobody gets less than an even part.

    bandwidth beside others   b = max(1 - what they take, 1 / processes)
    SMs beside others         x / max(1, sum of all shares)
    over time                 1 / effective = (1 - p) / alone + p / beside

`p` is how often another is at work. Turns of equal length (time slicing) make kernels `1 + sum of
the others' busy shares` times as long. Switches between processes are not counted, nor is what
processes evict of each other's L2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

STEPS = 256
"""Bandwidth is told in so many steps: finer than anything is known, and equal ones share tables."""


@dataclass(frozen=True)
class Pressure:
    """What another process does on the GPU."""

    busy: float = 0.0  # share of the time it has work
    traffic: float = 0.0  # share of the memory bandwidth it takes meanwhile
    kv_bytes: float = 0.0  # that it holds on each GPU, mean over time


IDLE, GREEDY = Pressure(), Pressure(busy=1.0, traffic=1.0)
"""What bounds others: no work at all, or work at all times and all the bandwidth one can get."""


@dataclass(frozen=True)
class GpuPartition:
    """What of a whole GPU a process gets."""

    sms: float = 1.0
    bandwidth: float = 1.0
    time: float = 1.0


def by_turns(others: Sequence[Pressure]) -> GpuPartition:
    """Return the part of a process that takes turns with others while these have work.

    >>> by_turns([Pressure(busy=1.0), Pressure(busy=0.5)]).time
    0.4
    """
    return GpuPartition(time=1.0 / (1.0 + sum(other.busy for other in others)))


def by_share(share: float, shares: Sequence[float], others: Sequence[Pressure]) -> GpuPartition:
    """Return the part of a process on a share of the SMs, beside others on `shares` of them.

    >>> by_share(0.5, [0.5], [IDLE])
    GpuPartition(sms=0.5, bandwidth=1.0, time=1.0)
    >>> by_share(1.0, [1.0], [Pressure(busy=1.0, traffic=0.75)])
    GpuPartition(sms=0.5, bandwidth=0.5, time=1.0)
    """
    beside = 1.0 - prod(1.0 - other.busy for other in others)
    if beside <= 0.0:
        return GpuPartition(sms=share)
    taken = sum(other.busy * other.traffic for other in others) / beside
    left = max(1.0 - taken, 1.0 / (1 + len(others)))
    bandwidth = 1.0 / ((1.0 - beside) + beside / left)
    crowd = max(1.0, share + sum(shares))
    return GpuPartition(
        sms=share / ((1.0 - beside) + beside * crowd), bandwidth=round(bandwidth * STEPS) / STEPS
    )
