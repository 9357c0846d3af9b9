"""Chips of several cores: accelerators, memories, a network on chip, an L2 and one DRAM port.

A transfer between two cores takes a shortest path over the links and occupies all of them. The DRAM
port serves one transfer at a time; a chip whose links do not reach DRAM has a way from every core
to the port. Cores are named as in `2*tpu_like + eyeriss_like`; a file lists cores and links in the
format of stream, which `formats` reads.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulators.catalog.accelerator import Accelerator, Level
from simulators.core.errors import UserError
from simulators.core.folder import reader
from simulators.dataflow.evaluation import machine_of
from simulators.dataflow.mapping import accelerator_named, is_file, read_yaml, table_of
from simulators.multicore.core_state import Fabric

STREAM = "formats.hardware.stream"
"""Module of `formats` that reads files of chips."""
BITS = 8.0
MOST_CORES = 64
NOCS = BUS, MESH = "bus", "mesh"


@dataclass(frozen=True)
class NocLink:
    """A bus, whose ends share the bandwidth, or a link from its first end to its second."""

    ends: tuple[int, ...]  # cores; the number of cores is DRAM
    bytes_per_s: float
    pj_per_bit: float = 0.0
    is_bus: bool = True


@dataclass(frozen=True, kw_only=True)
class MulticoreChip:
    """Cores, links between them, and memories behind them."""

    name: str
    cores: tuple[Accelerator, ...]
    links: tuple[NocLink, ...]
    dram_bytes_per_s: float
    dram_pj_per_bit: float
    has_two_ports: bool = False  # of DRAM: one for reads and one for writes
    l2_bytes: float = 0.0
    l2_bytes_per_s: float = math.inf
    l2_pj_per_bit: float = 0.0

    @property
    def dram(self) -> int:
        """The end that is DRAM."""
        return len(self.cores)

    @property
    def word_bytes(self) -> float:
        """Bytes per word of tensors."""
        return self.cores[0].levels[0].word_bits / BITS


@dataclass(frozen=True)
class CoreMemory:
    """What a core can hold: bytes of tensors between layers, and of weights."""

    tensor_bytes: float
    weight_bytes: float
    is_shared: bool  # one level holds both


def memory_of(core: Accelerator) -> CoreMemory:
    """Return the capacities of a core.

    Raises:
        UserError: no shared buffer may hold inputs and outputs.
    """
    tensors = _home(core, ("Inputs", "Outputs"), alone=True)
    weights = _home(core, ("Weights",), alone=False)
    if tensors is None:
        raise UserError(f"{core.name} has no shared buffer for inputs and outputs, as a core needs")
    tensor_bytes = _bytes(tensors)
    if weights is tensors:
        return CoreMemory(tensor_bytes, tensor_bytes, is_shared=True)
    return CoreMemory(tensor_bytes, _bytes(weights) if weights else 0.0, is_shared=False)


def _home(core: Accelerator, tensors: Sequence[str], *, alone: bool) -> Level | None:
    """Return the outermost on-chip level that may hold some tensors; `alone`: one instance."""
    for level in core.levels[1:]:
        fits = any(set(tensors) <= set(keep) for keep in level.may_keep)
        if fits and level.capacity_words is not None and (level.instances == 1 or not alone):
            return level
    return None


def _bytes(level: Level) -> float:
    words = level.capacity_words
    assert words is not None
    return words * level.buffering * level.instances * level.word_bits / BITS


def cores_named(text: str) -> tuple[Accelerator, ...]:
    """Return the cores of a text such as `4*tpu_like` or `2*tpu_like + eyeriss_like`.

    Raises:
        UserError: the text is invalid, or an accelerator is unknown.
    """
    found: list[Accelerator] = []
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(?:(\d+)\s*\*)?\s*(\S+)\s*", part)
        if match is None or int(match[1] or 1) < 1:
            raise UserError(f"cores '{text}': write them as in '2*tpu_like + eyeriss_like'")
        found += [accelerator_named(match[2])] * min(int(match[1] or 1), MOST_CORES + 1)
    return tuple(found)


def is_chip_file(cores: str) -> bool:
    """Return whether cores are the path of a file that lists cores and links."""
    return is_file(cores) and "*" not in cores and "+" not in cores


def chip_of_file(path: Path) -> MulticoreChip:
    """Return the chip of a file in the format of stream.

    Raises:
        UserError: the file is invalid.
    """
    chip: MulticoreChip = reader(STREAM, "chip_of_stream")(
        table_of(read_yaml(path), str(path)), path
    )
    return checked(chip)


def chip_of(cores: str, noc: str, bytes_per_s: float, pj_per_bit: float) -> MulticoreChip:
    """Return a chip of named cores; the DRAM port is that of the first core's outermost level.

    Raises:
        UserError: a name is unknown, or words of the cores differ.
    """
    found = cores_named(cores)
    rate, dram_pj_per_bit = dram_of(found[0])
    links = links_of(len(found), noc, bytes_per_s, pj_per_bit)
    return checked(
        MulticoreChip(
            name=cores,
            cores=found,
            links=links,
            dram_bytes_per_s=rate,
            dram_pj_per_bit=dram_pj_per_bit,
        )
    )


def checked(chip: MulticoreChip) -> MulticoreChip:
    """Return a chip whose cores work together.

    Raises:
        UserError: there are too many cores, words differ, or a core cannot be reached.
    """
    if not 1 <= len(chip.cores) <= MOST_CORES:
        raise UserError(f"{chip.name}: 1 to {MOST_CORES} cores are modelled")
    widths = {core.levels[0].word_bits: core.name for core in chip.cores}
    if len(widths) > 1:
        said = ", ".join(f"{name} {bits} bits" for bits, name in widths.items())
        raise UserError(f"{chip.name}: words of all cores must be equally wide: {said}")
    for core in chip.cores:
        memory_of(core)
    routes(chip)
    return chip


def dram_of(core: Accelerator) -> tuple[float, float]:
    """Return the bandwidth (bytes per second) and energy (pJ per bit) of a core's outermost level.

    Unlimited bandwidth is infinite.
    """
    level, machine = core.levels[0], machine_of(core)
    read, write, shared = (float(rate) for rate in machine.rates[0, :3])
    words = min(shared, max(read, write))
    picojoules = float(machine.energy_pj[0, 0]) / level.block_words / level.word_bits
    return words * core.clock_hz * level.word_bits / BITS, picojoules


def links_of(cores: int, noc: str, bytes_per_s: float, pj_per_bit: float) -> tuple[NocLink, ...]:
    """Return a bus between cores, or a mesh as square as possible with two links per neighbour."""
    if noc == BUS:
        return (NocLink(tuple(range(cores)), bytes_per_s, pj_per_bit),) if cores > 1 else ()
    columns = math.ceil(math.sqrt(cores))
    pairs = [(k, k + 1) for k in range(cores - 1) if (k + 1) % columns]
    pairs += [(k, k + columns) for k in range(cores - columns)]
    return mesh_of(pairs, bytes_per_s, pj_per_bit)


def mesh_of(
    pairs: Iterable[tuple[int, int]], bytes_per_s: float, pj_per_bit: float
) -> tuple[NocLink, ...]:
    """Return a link in each direction for every pair of neighbours."""
    return tuple(
        NocLink(ends, bytes_per_s, pj_per_bit, is_bus=False)
        for a, b in pairs
        for ends in ((a, b), (b, a))
    )


def routes(chip: MulticoreChip) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return the links between all pairs of ends: cores, DRAM, L2.

    Behind `chip.links` are the port of DRAM (two if it has two) and that of the L2.

    Raises:
        UserError: an end cannot be reached.
    """
    ends, first = chip.dram + 1, len(chip.links)
    reaches_dram = any(chip.dram in link.ends for link in chip.links)
    ways: list[list[tuple[int, int]]] = [[] for _ in range(ends)]
    for number, link in enumerate(chip.links):
        for a, b in itertools.permutations(link.ends, 2):
            if link.is_bus or a == link.ends[0]:
                ways[a].append((b, number))
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for source in range(ends):
        paths = _shortest(ways, source)
        for target in range(ends):
            if source == target:
                found[source, target] = ()
                continue
            path = paths.get(target)
            if chip.dram in (source, target):
                port = first + int(chip.has_two_ports and target == chip.dram)
                path = () if not reaches_dram else path
                path = None if path is None else (*path, port)
            if path is None:
                names = [f"core {k}" if k < chip.dram else "DRAM" for k in (source, target)]
                raise UserError(f"{chip.name}: no link leads from {names[0]} to {names[1]}")
            found[source, target] = path
    l2 = first + 1 + int(chip.has_two_ports)
    for core in range(ends):
        found[core, ends] = found[ends, core] = (l2,)
    found[ends, ends] = ()
    return found


def _shortest(ways: Sequence[Sequence[tuple[int, int]]], source: int) -> dict[int, tuple[int, ...]]:
    """Return the links of a shortest path to every end that can be reached."""
    paths: dict[int, tuple[int, ...]] = {source: ()}
    waiting = deque([source])
    while waiting:
        at = waiting.popleft()
        for target, link in ways[at]:
            if target not in paths:
                paths[target] = (*paths[at], link)
                waiting.append(target)
    return paths


def link_energies(chip: MulticoreChip) -> list[float]:
    """Return the energy (pJ per bit) of all links, with the ports of DRAM and L2 at the end."""
    ports = [chip.dram_pj_per_bit] * (1 + int(chip.has_two_ports))
    return [*(link.pj_per_bit for link in chip.links), *ports, chip.l2_pj_per_bit]


def fabric_of(chip: MulticoreChip) -> Fabric:
    """Return the arrays of a chip for the event loop."""
    memories = [memory_of(core) for core in chip.cores]
    found, ends = routes(chip), chip.dram + 2
    starts, route = [0], list[int]()
    for source in range(ends):
        for target in range(ends):
            route += found[source, target]
            starts.append(len(route))
    rates = [link.bytes_per_s for link in chip.links]
    rates += [chip.dram_bytes_per_s] * (1 + int(chip.has_two_ports)) + [chip.l2_bytes_per_s]
    return Fabric(
        tensor_bytes=np.array([m.tensor_bytes for m in memories], np.float64),
        weight_bytes=np.array([m.weight_bytes for m in memories], np.float64),
        is_shared=np.array([m.is_shared for m in memories], np.int64),
        l2_bytes=np.array([chip.l2_bytes], np.float64),
        bytes_per_s=np.array(rates, np.float64),
        route_start=np.array(starts, np.int64),
        route=np.array(route, np.int64),
    )
