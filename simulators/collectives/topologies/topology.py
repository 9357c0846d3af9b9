"""Networks as products of building blocks, innermost first: by notation or from a TOML file.

Ranks of one block differ in one coordinate. Eight GPUs on NVSwitch with rails between nodes are
`switch:8,switch:32`: GPU i of every node is on rail i. A torus is a product of rings,
`torus:4x4x4`. A fat tree says how many ports a leaf switch has and how many of them share an
uplink: `fat_tree:64:8:2`. Of bandwidths and latencies that a notation leaves out, the point states
the values; a TOML file states them by dimension.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from dataclasses import dataclass
from pathlib import Path

from simulators.catalog.sheet import fill
from simulators.collectives.topologies.blocks import BLOCKS, MAX_DIMENSIONS
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import TOPOLOGIES, read_toml

ABBREVIATIONS = {"full": "fully_connected", "torus": "ring", "mesh": "fully_connected"}
LINK_BYTES_PER_S = 400.0 * 2**30
LINK_LATENCY_S = 936.25e-9
"""Of notations that name no link: ASTRA-sim's shipped description of an HGX H100."""
MAX_RANKS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """Equal blocks of ranks that are joined in the same way."""

    block: str
    ranks: int
    bytes_per_s: float  # per link and direction
    latency_s: float  # per link; a switch is two links away
    leaf: int = 0  # ports of a leaf switch, of a fat tree
    oversubscription: float = 1.0  # ports of a leaf over its uplinks
    energy_j_per_bit: float = math.nan  # per link crossed, where it is known


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
        UserError: it cannot be built; says which part and why.

    >>> load_topology("torus:4x2").dimensions[1].block, load_topology("ring:4,switch:8").ranks
    ('ring', 32)
    """
    if ":" not in text or os.sep in text:
        return _from_file(TOPOLOGIES.find(text), text)
    dimensions = tuple(d for part in text.split(",") for d in _parsed(part.strip(), text))
    return _checked(Topology(name=text, dimensions=dimensions))


def file_behind(text: str) -> Path | None:
    """Return the file of a named topology, or None for a written topology."""
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
        )
        for d in topology.dimensions
    )
    return _checked(dataclasses.replace(topology, dimensions=dimensions))


def _parsed(part: str, text: str) -> list[Dimension]:
    block, *numbers = part.split(":")
    full = ABBREVIATIONS.get(block, block)
    if full not in BLOCKS:
        raise UnknownNameError(
            f"building block of topology '{text}':", block, (*BLOCKS, *ABBREVIATIONS)
        )
    joined = functools.partial(
        Dimension, block=full, bytes_per_s=LINK_BYTES_PER_S, latency_s=LINK_LATENCY_S
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
    """Refuse networks that do not connect their ranks."""
    said = f"topology '{topology.name}'"
    if len(topology.dimensions) > MAX_DIMENSIONS:
        raise UserError(f"{said} has {len(topology.dimensions)} dimensions; up to 4 are simulated")
    for d in topology.dimensions:
        if d.ranks < 1:
            raise UserError(f"{said}: {d.block} of {d.ranks} ranks; it needs at least 1")
        if not 0.0 < d.bytes_per_s < math.inf:
            raise UserError(
                f"{said} is disconnected: its {d.block} has links of {d.bytes_per_s:g} bytes/s; "
                "a bandwidth must be positive"
            )
        if not 0.0 <= d.latency_s < math.inf:
            raise UserError(f"{said}: latency {d.latency_s:g} s; it must not be negative")
        if d.block == "fat_tree" and (d.leaf < 1 or d.ranks % d.leaf):
            raise UserError(f"{said}: {d.ranks} ranks do not fill leaf switches of {d.leaf} ports")
        if not 0.0 < d.oversubscription < math.inf:
            raise UserError(f"{said}: oversubscription {d.oversubscription:g}; it must be positive")
    if topology.ranks > MAX_RANKS:
        raise UserError(f"{said} has {topology.ranks:,} ranks; up to {MAX_RANKS:,} are simulated")
    return topology
