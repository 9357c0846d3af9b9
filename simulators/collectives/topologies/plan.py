"""A topology with an algorithm on each dimension, as the arrays that kernels take.

An algorithm is named once for all dimensions, or once for each, innermost first:
`ring,halving_doubling`. `direct:4` keeps four messages in flight. `flat:ring` ignores the
dimensions and runs over all ranks on the slowest link.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.collectives.algorithms import ALGORITHMS
from simulators.collectives.topologies.blocks import BLOCKS, MAX_DIMENSIONS, RANKS
from simulators.collectives.topologies.topology import Dimension, Topology, load_topology, with_link
from simulators.core.errors import UnknownNameError, UserError

NS = 1e9
FLAT = "flat:"


@dataclass(frozen=True, eq=False)
class Plan:
    """A topology with an algorithm on each dimension; columns as of `blocks`."""

    topology: Topology
    whole: NDArray[np.int64]
    rates: NDArray[np.float64]
    energy_j_per_bit: NDArray[np.float64]

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.topology.ranks


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
        latency_s = max(d.latency_s for d in dimensions)
        dimensions = [dataclasses.replace(slowest, ranks=network.ranks, latency_s=latency_s)]
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
    for i, (name, d) in enumerate(zip(names, dimensions, strict=True)):
        whole[i] = BLOCKS.index(d.block), d.ranks, *_algorithm(name.strip()), d.leaf
        rates[i] = d.bytes_per_s / NS, d.latency_s * NS, d.oversubscription
        energy[i] = d.energy_j_per_bit
    return Plan(network, whole, rates, energy)


def plan_among(ranks: tuple[int, ...], network: Topology, algorithm: str) -> Plan:
    """Return the plan of some ranks among themselves, of a network with an algorithm.

    Ranks that are a block of the network, those of one coordinate in some of its dimensions, have
    the others to themselves. Any other ranks are joined by the slowest link between them.

    >>> rails = load_topology("switch:8,switch:4")
    >>> plan_among((0, 8, 16, 24), rails, "ring").whole[:2, RANKS].tolist()
    [1, 4]
    >>> plan_among((0, 1, 9), rails, "ring").whole[:2, RANKS].tolist()
    [3, 1]
    """
    sizes = [d.ranks for d in network.dimensions]
    inner = [math.prod(sizes[:i]) for i in range(len(sizes))]
    wide = [
        len({rank // stride % n for rank in ranks}) for stride, n in zip(inner, sizes, strict=True)
    ]
    if math.prod(wide) == len(ranks):
        dimensions = tuple(
            dataclasses.replace(d, ranks=n) for d, n in zip(network.dimensions, wide, strict=True)
        )
        return plan_for(dataclasses.replace(network, dimensions=dimensions), algorithm)
    crossed = [i for i, n in enumerate(wide) if n > 1]
    slowest = min(crossed, key=lambda i: network.dimensions[i].bytes_per_s)
    latency_s = max(network.dimensions[i].latency_s for i in crossed)
    joined = dataclasses.replace(network.dimensions[slowest], ranks=len(ranks), latency_s=latency_s)
    names = algorithm.split(",")
    name = names[slowest] if len(names) > 1 else algorithm
    return plan_for(dataclasses.replace(network, dimensions=(joined,)), name)


def _algorithm(name: str) -> tuple[int, int]:
    """Return the code of an algorithm and its window, 0 without one."""
    word, _, window = name.partition(":")
    if word not in ALGORITHMS:
        raise UnknownNameError("algorithm", word, (*ALGORITHMS, "direct:K", "flat:ring"))
    if not window:
        return ALGORITHMS.index(word), 0
    if word != "direct" or not window.isdigit() or int(window) < 1:
        raise UserError(f"algorithm '{name}': only direct takes a window, as in direct:4")
    return ALGORITHMS.index(word), int(window)
