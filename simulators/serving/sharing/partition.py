"""Partition of a GPU among processes: shares of SMs, memory bandwidth and time.

A process alone on a share `x` of the SMs keeps all of the bandwidth: the kernel model with fewer
SMs prices it. While neighbours are busy, bandwidth is shared max-min fairly: every process gets its
demand up to an even share, and the rest is divided.

    bandwidth beside others   b = max(1 - traffic of neighbours, 1 / processes)
    SMs beside others         x / max(1, sum of all shares)
    over time                 1 / effective = (1 - p) / alone + p / beside

`p` is the probability that a neighbour is busy. With time slicing, kernels take `1 + sum of the
neighbours' busy shares` times as long. Context switches and L2 evictions are not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

STEPS = 256
"""Bandwidth shares are rounded to this many steps, so that equal shares reuse price tables."""


@dataclass(frozen=True)
class Pressure:
    """Load of another process on the GPU."""

    busy: float = 0.0  # share of the time it has work
    traffic: float = 0.0  # share of the memory bandwidth it takes meanwhile
    kv_bytes: float = 0.0  # that it holds on each GPU, mean over time


IDLE, ALWAYS_BUSY = Pressure(), Pressure(busy=1.0, traffic=1.0)
"""Bounds of a neighbour's load: idle, or always busy with all available bandwidth."""


@dataclass(frozen=True)
class GpuPartition:
    """Shares of a whole GPU that a process gets."""

    sms: float = 1.0
    bandwidth: float = 1.0
    time: float = 1.0


def by_turns(others: Sequence[Pressure]) -> GpuPartition:
    """Return the partition of a process under time slicing.

    >>> by_turns([Pressure(busy=1.0), Pressure(busy=0.5)]).time
    0.4
    """
    return GpuPartition(time=1.0 / (1.0 + sum(other.busy for other in others)))


def by_share(share: float, shares: Sequence[float], others: Sequence[Pressure]) -> GpuPartition:
    """Return the partition of a process on a share of the SMs, with neighbours on `shares`.

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
    oversubscription = max(1.0, share + sum(shares))
    return GpuPartition(
        sms=share / ((1.0 - beside) + beside * oversubscription),
        bandwidth=round(bandwidth * STEPS) / STEPS,
    )
