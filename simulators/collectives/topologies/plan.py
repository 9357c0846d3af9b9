"""Networks as products of building blocks, and the plan of a collective's algorithms on a network.

A topology is a notation or a TOML file, innermost dimension first. Ranks of one block differ in one
coordinate. Eight GPUs on NVSwitch with rails between nodes are `switch:8,switch:32`: GPU i of every
node is on rail i. A torus is a product of rings, `torus:4x4x4`. A fat tree states the ports of a
leaf switch and how many ports share an uplink: `fat_tree:64:8:2`. The point gives bandwidths and
latencies that a notation leaves out; a TOML file gives them by dimension.

A plan has one algorithm for all dimensions, or one for each, innermost first:
`ring,halving_doubling`. `direct:4` keeps four messages in flight. `flat:ring` ignores the
dimensions and runs over all ranks on the slowest link.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.sheet import fill
from simulators.collectives.algorithms import ALGORITHMS
from simulators.collectives.topologies.blocks import BLOCKS, MAX_DIMENSIONS, RANKS
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import TOPOLOGIES, read_toml

ABBREVIATIONS = {"full": "fully_connected", "torus": "ring"}
LINK_BYTES_PER_S = 400.0 * 2**30
LINK_LATENCY_S = 936.25e-9
"""Link of a notation without links: ASTRA-sim's description of an HGX H100."""
MAX_RANKS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """Equal blocks of ranks with equal links."""

    block: str
    ranks: int
    bytes_per_s: float  # per link and direction
    latency_s: float  # per link; a switch is two links away
    leaf: int = 0  # ports of a leaf switch, of a fat tree
    oversubscription: float = 1.0  # ports of a leaf over its uplinks
    energy_j_per_bit: float = math.nan  # per link crossed; NaN if unknown
    is_usual: bool = False  # the link of a notation that states none


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Dimensions, innermost first."""

    name: str
    dimensions: tuple[Dimension, ...]

    @property
    def ranks(self) -> int:
        """All ranks."""
        return math.prod(d.ranks for d in self.dimensions)


def load_topology(text: str) -> Topology:
    """Return a topology by file name, path or notation.

    Raises:
        UserError: the topology is invalid; names the part.

    >>> load_topology("torus:4x2").dimensions[1].block, load_topology("ring:4,switch:8").ranks
    ('ring', 32)
    """
    if ":" not in text or os.sep in text:
        return _from_file(TOPOLOGIES.find(text), text)
    dimensions = tuple(d for part in text.split(",") for d in _parsed(part.strip(), text))
    return _checked(Topology(name=text, dimensions=dimensions))


def file_behind(text: str) -> Path | None:
    """Return the file of a named topology, or None for a notation."""
    return TOPOLOGIES.find(text) if ":" not in text or os.sep in text else None


def with_link(topology: Topology, bytes_per_s: float | None, latency_s: float | None) -> Topology:
    """Return the topology with the same link everywhere; None keeps the topology's own."""
    if bytes_per_s is None and latency_s is None:
        return topology
    dimensions = tuple(
        dataclasses.replace(
            d,
            bytes_per_s=d.bytes_per_s if bytes_per_s is None else bytes_per_s,
            latency_s=d.latency_s if latency_s is None else latency_s,
            is_usual=d.is_usual and bytes_per_s is None,
        )
        for d in topology.dimensions
    )
    return _checked(dataclasses.replace(topology, dimensions=dimensions))


def _parsed(part: str, text: str) -> list[Dimension]:
    block, *numbers = part.split(":")
    full = ABBREVIATIONS.get(block, block)
    if block == "mesh":
        raise UserError(
            f"topology '{text}': grids without wrap-around links are not modelled; write "
            f"{part.replace(block, 'torus')} with them, or {part.replace(block, 'full')} for a "
            "link between every two ranks of a side"
        )
    if full not in BLOCKS:
        raise UnknownNameError(
            f"building block of topology '{text}':", block, (*BLOCKS, *ABBREVIATIONS)
        )
    joined = functools.partial(
        Dimension,
        block=full,
        bytes_per_s=LINK_BYTES_PER_S,
        latency_s=LINK_LATENCY_S,
        is_usual=True,
    )
    try:
        if full == "fat_tree":
            ranks, leaf = int(numbers[0]), int(numbers[1])
            over = float(numbers[2]) if len(numbers) > 2 else 1.0
            return [joined(ranks=ranks, leaf=leaf, oversubscription=over)]
        (sides,) = numbers
        return [joined(ranks=int(side)) for side in sides.split("x")]
    except (ValueError, IndexError) as error:
        raise UserError(
            f"topology '{text}': '{part}' is not block:ranks, as in switch:8, torus:4x4 or "
            "fat_tree:ranks:leaf:oversubscription"
        ) from error


def _from_file(path: Path, text: str) -> Topology:
    content = read_toml(path)
    entries = content.get("dimension", [])
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{path}: has no [[dimension]]; a topology needs at least one")
    dimensions = tuple(fill(Dimension, entry, path, "[[dimension]]") for entry in entries)
    for d in dimensions:
        if d.block not in BLOCKS:
            raise UnknownNameError(f"block in {path}:", d.block, BLOCKS)
    return _checked(Topology(name=text, dimensions=dimensions))


def _checked(topology: Topology) -> Topology:
    name = f"topology '{topology.name}'"
    if len(topology.dimensions) > MAX_DIMENSIONS:
        raise UserError(f"{name} has {len(topology.dimensions)} dimensions; up to 4 are simulated")
    for d in topology.dimensions:
        if d.ranks < 1:
            raise UserError(f"{name}: {d.block} of {d.ranks} ranks; it needs at least 1")
        if not 0.0 < d.bytes_per_s < math.inf:
            raise UserError(
                f"{name} is disconnected: its {d.block} has links of {d.bytes_per_s:g} bytes/s; "
                "a bandwidth must be positive"
            )
        if not 0.0 <= d.latency_s < math.inf:
            raise UserError(f"{name}: latency {d.latency_s:g} s; it must not be negative")
        if d.block == "fat_tree" and (d.leaf < 1 or d.ranks % d.leaf):
            raise UserError(f"{name}: {d.ranks} ranks do not fill leaf switches of {d.leaf} ports")
        if not 0.0 < d.oversubscription < math.inf:
            raise UserError(f"{name}: oversubscription {d.oversubscription:g}; it must be positive")
    if topology.ranks > MAX_RANKS:
        raise UserError(f"{name} has {topology.ranks:,} ranks; up to {MAX_RANKS:,} are simulated")
    return topology


NS = 1e9
FLAT = "flat:"


@dataclass(frozen=True, eq=False)
class Plan:
    """A topology with an algorithm on each dimension; with the columns of `blocks`."""

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
    topology: str, algorithm: str, bytes_per_s: float | None = None, latency_s: float | None = None
) -> Plan:
    """Return the plan of a topology and an algorithm, with optional link values for all dimensions.

    Raises:
        UserError: the topology or the algorithm is invalid.

    >>> plan_of("torus:4x4", "ring").ranks
    16
    """
    return plan_for(with_link(load_topology(topology), bytes_per_s, latency_s), algorithm)


def plan_for(network: Topology, algorithm: str) -> Plan:
    """Return a plan on a topology.

    Raises:
        UserError: an algorithm is unknown, or the number of algorithms is wrong.
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
    """Return the plan of a collective among a subset of the ranks of a network.

    Ranks that share coordinates in some dimensions and fill the other dimensions use these
    dimensions. Any other ranks are connected by the slowest link between them.

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
