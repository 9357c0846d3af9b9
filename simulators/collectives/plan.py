"""Words become numbers: topologies, algorithms and collectives as the arrays that kernels take.

An algorithm is named once for all dimensions, or once for each, innermost first:
`ring,halving_doubling`. `direct:4` keeps four messages in flight. `flat:ring` ignores the
dimensions and runs over all ranks on the slowest link.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.collectives.algorithms import ALGORITHMS, COLLECTIVES, HALVING_DOUBLING
from simulators.collectives.analytic import (
    ALGORITHM,
    BLOCK,
    BYTES_PER_NS,
    LATENCY_NS,
    LEAF,
    OVERSUBSCRIPTION,
    RANKS,
    WINDOW,
)
from simulators.collectives.phases import MAX_DIMENSIONS
from simulators.collectives.topology import Dimension, Topology, load_topology, with_link
from simulators.collectives.wires import BLOCKS
from simulators.core.errors import UnknownNameError, UserError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NS = 1e9
FLAT = "flat:"


@dataclass(frozen=True, eq=False)
class Plan:
    """A topology with an algorithm on each dimension."""

    topology: Topology
    whole: Ints  # per dimension, see `analytic`
    rates: Floats
    energy_j_per_bit: Floats

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.topology.ranks

    @property
    def is_alike(self) -> bool:
        """Whether all ranks do the same at the same time.

        On a ring, partners of halving-doubling share links with some ranks and not with others.
        """
        odd = (self.whole[:, ALGORITHM] == HALVING_DOUBLING) & (
            self.whole[:, BLOCK] == BLOCKS.index("ring")
        )
        return not bool((odd & (self.whole[:, RANKS] > 1)).any())


@functools.lru_cache(maxsize=4096)
def plan_of(
    topology: str,
    algorithm: str,
    bytes_per_s: float | None = None,
    latency_s: float | None = None,
) -> Plan:
    """Return a plan from words.

    Raises:
        UserError: a word that means nothing.

    >>> plan_of("torus:4x4", "ring").ranks
    16
    """
    return plan_for(with_link(load_topology(topology), bytes_per_s, latency_s), algorithm)


def plan_for(network: Topology, algorithm: str) -> Plan:
    """Return a plan on a topology.

    Raises:
        UserError: an algorithm that does not exist, or too many of them.
    """
    dimensions: Sequence[Dimension] = network.dimensions
    names = algorithm.removeprefix(FLAT).split(",")
    if algorithm.startswith(FLAT) and len(dimensions) > 1:
        slowest = min(dimensions, key=lambda d: (d.bytes_per_s, -d.latency_s))
        dimensions = (Dimension(
            block=slowest.block, ranks=network.ranks, bytes_per_s=slowest.bytes_per_s,
            latency_s=max(d.latency_s for d in dimensions), leaf=slowest.leaf,
            oversubscription=slowest.oversubscription, energy_j_per_bit=slowest.energy_j_per_bit,
        ),)  # fmt: skip
    if len(names) == 1:
        names = names * len(dimensions)
    if len(names) != len(dimensions):
        raise UserError(
            f"algorithm '{algorithm}' names {len(names)} dimensions, topology '{network.name}' "
            f"has {len(dimensions)}; name one for all or one for each"
        )
    whole = np.zeros((MAX_DIMENSIONS, 5), np.int64)
    whole[:, RANKS] = 1
    rates = np.ones((MAX_DIMENSIONS, 3))
    energy = np.zeros(MAX_DIMENSIONS)
    for i, (name, dimension) in enumerate(zip(names, dimensions, strict=True)):
        code, window = _algorithm(name.strip())
        row = {BLOCK: BLOCKS.index(dimension.block), RANKS: dimension.ranks, ALGORITHM: code}
        for column, value in {**row, WINDOW: window, LEAF: dimension.leaf}.items():
            whole[i, column] = value
        rates[i, BYTES_PER_NS] = dimension.bytes_per_s / NS
        rates[i, LATENCY_NS] = dimension.latency_s * NS
        rates[i, OVERSUBSCRIPTION] = dimension.oversubscription
        energy[i] = dimension.energy_j_per_bit
    return Plan(network, whole, rates, energy)


def op_of(collective: str) -> int:
    """Return the code of a collective.

    Raises:
        UnknownNameError: there is no such collective.
    """
    if collective not in COLLECTIVES:
        raise UnknownNameError("collective", str(collective), COLLECTIVES)
    return COLLECTIVES.index(collective)


def busbw_factor(collective: str, ranks: int) -> float:
    """Return busbw over algbw, as nccl-tests define it.

    >>> busbw_factor("all_reduce", 8)
    1.75
    """
    if collective in ("broadcast", "send_recv") or ranks < 2:
        return 1.0
    return (2.0 if collective == "all_reduce" else 1.0) * (ranks - 1) / ranks


def whole_ns(seconds: float) -> int:
    """Return a time in whole nanoseconds.

    Raises:
        UserError: it is negative or no number.
    """
    if not 0.0 <= seconds < math.inf:
        raise UserError(f"endpoint_delay_s is {seconds:g}; it must not be negative")
    return round(seconds * NS)


def _algorithm(name: str) -> tuple[int, int]:
    word, _, window = name.partition(":")
    if word not in ALGORITHMS:
        raise UnknownNameError("algorithm", word, (*ALGORITHMS, "direct:K", "flat:ring"))
    if not window:
        return ALGORITHMS.index(word), 0
    if word != "direct" or not window.isdigit() or int(window) < 1:
        raise UserError(f"algorithm '{name}': only direct takes a window, as in direct:4")
    return ALGORITHMS.index(word), int(window)
