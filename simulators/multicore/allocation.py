"""Which core runs which layer: the best allocation found, and a lower bound of the latency.

All allocations are evaluated if they are no more than the budget. Otherwise a few simple ones and a
balanced one are evaluated, and the best of them is improved: one layer after the other, in random
order, moves to each of its other places, and better allocations are kept until the budget is spent.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulators.core.errors import Infeasible, UserError, suggestion
from simulators.core.jit import Floats
from simulators.dataflow.schedule.search import compulsory_words
from simulators.multicore.chip import BITS, MulticoreChip, fabric_of, link_energies
from simulators.multicore.core_state import CoreState, Fabric, NodeArrays, state_of
from simulators.multicore.events import run
from simulators.multicore.nodes import CHANNELS, ROWS, Nodes, Place

SEARCH, ROUND_ROBIN = "search", "round_robin"
SHARED = {"rows": ROWS, "channels": CHANNELS}
WORDS = (SEARCH, ROUND_ROBIN, *SHARED)
PJ_PER_J = 1e12

Score = Callable[[float, float], float]


@dataclass(frozen=True)
class CoreSchedule:
    """An allocation with its simulated schedule."""

    allocation: tuple[Place, ...]
    latency_s: float
    energy_j: float
    compute_j: float
    link_j: Floats  # by link, the ports of DRAM and L2 at the end
    work: NodeArrays
    state: CoreState
    streamed_weight_bytes: float
    tried: int = 1
    is_optimal: bool = False  # whether all allocations were evaluated


class Allocator:
    """Evaluates and searches allocations of one network on one chip."""

    def __init__(self, nodes: Nodes, score: Score) -> None:
        self.nodes, self.score = nodes, score
        self.chip: MulticoreChip = nodes.chip
        self.fabric: Fabric = fabric_of(nodes.chip)
        self.energies = np.array(link_energies(nodes.chip)) * BITS / PJ_PER_J
        self.layers = len(nodes.layers)
        self._known: dict[tuple[Place, ...], CoreSchedule | None] = {}

    def evaluate(self, allocation: Sequence[Place]) -> CoreSchedule:
        """Return the schedule of an allocation.

        Raises:
            Infeasible: a tile cannot be mapped, or two nodes wait for each other's memory.
        """
        found = self.nodes.assemble(allocation)
        state = state_of(found.work, self.fabric)
        latency_s = run(found.work, self.fabric, state)
        if latency_s < 0:
            raise Infeasible("buffer_too_small", "a core's memory cannot hold its operands")
        link_j = state.link_bytes * self.energies
        return CoreSchedule(
            tuple(allocation),
            latency_s,
            found.energy_j + float(link_j.sum()),
            found.energy_j,
            link_j,
            found.work,
            state,
            found.weight_bytes_streamed,
        )

    def _try(self, allocation: tuple[Place, ...]) -> CoreSchedule | None:
        if allocation not in self._known:
            try:
                self._known[allocation] = self.evaluate(allocation)
            except Infeasible:
                self._known[allocation] = None
        return self._known[allocation]

    def best(self, budget: int, seed: int) -> CoreSchedule:
        """Return the best schedule found with about `budget` evaluations.

        Raises:
            Infeasible: no allocation is feasible.
        """
        places = [self.nodes.places(k) for k in range(self.layers)]
        count = math.prod(len(options) for options in places)
        best: CoreSchedule | None = None
        if count <= budget:
            for allocation in itertools.product(*places):
                best = self._better(best, self._try(allocation))
        else:
            for allocation in self._starts(places)[:budget]:
                best = self._better(best, self._try(allocation))
        if best is None:
            raise Infeasible("buffer_too_small", "no allocation to cores is feasible")
        if count > budget:
            best = self._improved(best, places, budget, seed)
        tried, self._known = len(self._known), {}
        return dataclasses.replace(best, tried=tried, is_optimal=count <= budget)

    def _better(self, best: CoreSchedule | None, other: CoreSchedule | None) -> CoreSchedule | None:
        if best is None or other is None:
            return best or other
        return other if self._value(other) < self._value(best) else best

    def _value(self, schedule: CoreSchedule) -> float:
        return self.score(schedule.energy_j, schedule.latency_s)

    def _improved(
        self, best: CoreSchedule, places: Sequence[Sequence[Place]], budget: int, seed: int
    ) -> CoreSchedule:
        draws = np.random.default_rng(seed)
        while len(self._known) < budget:
            before = best
            for k in draws.permutation(self.layers):
                for place in places[k]:
                    if place == best.allocation[k] or len(self._known) >= budget:
                        continue
                    moved = (*best.allocation[:k], place, *best.allocation[k + 1 :])
                    if moved not in self._known:
                        best = self._better(best, self._try(moved)) or best
            if best is before:
                break
        return best

    def _starts(self, places: Sequence[Sequence[Place]]) -> list[tuple[Place, ...]]:
        """Return allocations to start from: each core alone, in turn, shared, balanced."""
        cores = len(self.chip.cores)
        found = [tuple([core] * self.layers) for core in range(cores)]
        found.append(round_robin(self.layers, cores))
        found += [
            tuple(shared if shared in p else k % cores for k, p in enumerate(places))
            for shared in SHARED.values()
        ]
        both = tuple(ROWS if ROWS in p else CHANNELS if CHANNELS in p else 0 for p in places)
        found += [both, self._balanced()]
        return list(dict.fromkeys(found))

    def _balanced(self) -> tuple[Place, ...]:
        """Return each layer, the largest first, on the core that would end first."""
        cores = range(len(self.chip.cores))
        seconds = [[max(self._loads(k, core)[0]) for core in cores] for k in range(self.layers)]
        loads = [0.0] * len(cores)
        place = [0] * self.layers
        for k in sorted(range(self.layers), key=lambda k: -min(seconds[k])):
            core = min(range(len(loads)), key=lambda c: (loads[c] + seconds[k][c], c))
            place[k] = core
            loads[core] += seconds[k][core]
        return tuple(place)

    def latency_bound_s(self) -> float:
        """Return a time that no allocation beats: work, DRAM bytes and the longest chain.

        Cores share the least work of all layers perfectly. A layer needs all of its tiles at its
        fastest place, and one tile of each layer before and behind it on a path.
        """
        network, nodes = self.nodes.network, self.nodes
        loads = [[self._loads(k, p) for p in nodes.places(k)] for k in range(self.layers)]
        work = sum(min(sum(seconds) for seconds, _ in places) for places in loads)
        spread = [min(max(seconds) for seconds, _ in places) for places in loads]
        tile = [min(shortest for _, shortest in places) for places in loads]
        ahead, behind = [0.0] * self.layers, [0.0] * self.layers
        edges = [[p for p in n.producers if p >= 0] for n in network.nodes]
        for k in range(self.layers):
            ahead[k] = max((ahead[p] + tile[p] for p in edges[k]), default=0.0)
        for k in reversed(range(self.layers)):
            for p in edges[k]:
                behind[p] = max(behind[p], behind[k] + tile[k])
        chain = max(ahead[k] + spread[k] + behind[k] for k in range(self.layers))
        dram = compulsory_words(network) * nodes.word_bytes / self.chip.dram_bytes_per_s
        if self.chip.has_two_ports:
            dram /= 2.0
        return max(work / len(self.chip.cores), dram, chain)

    def _loads(self, k: int, place: Place) -> tuple[list[float], float]:
        """Return the seconds of a layer on each core, and those of its shortest tile."""
        split, cores = self.nodes.split(k, place), len(self.chip.cores)
        loads, shortest = [0.0] * cores, math.inf
        where = self.nodes.cores_of(split, place)
        for first, last, core in zip(split.first, split.last, where, strict=True):
            seconds = self.nodes.cost(k, int(last - first), split.parts, int(core)).compute_s
            loads[core] += seconds
            shortest = min(shortest, seconds)
        return loads, shortest


def round_robin(layers: int, cores: int) -> tuple[Place, ...]:
    """Return layer k on core k modulo the number of cores."""
    return tuple(k % cores for k in range(layers))


def allocation_of(text: str, nodes: Nodes) -> tuple[Place, ...]:
    """Return the allocation that a text states: a word, or a place per layer with commas.

    Places are numbers of cores, `rows` or `channels`.

    Raises:
        UserError: the text does not fit the network or the chip.
    """
    layers, cores = len(nodes.layers), len(nodes.chip.cores)
    if text == ROUND_ROBIN:
        return round_robin(layers, cores)
    if text in SHARED:
        one = SHARED[text]
        return tuple(one if one in nodes.places(k) else k % cores for k in range(layers))
    names = [name.strip() for name in text.split(",")]
    if len(names) != layers:
        raise UserError(
            f"allocation '{text}': one of {', '.join(WORDS)}, or a place for each of {layers} "
            f"layers{suggestion(text, WORDS)}"
        )
    found = []
    for k, name in enumerate(names):
        place = SHARED.get(name, int(name) if name.isdigit() else None)
        if place is None or place not in nodes.places(k):
            known = [*(str(c) for c in range(cores)), *SHARED]
            raise UserError(
                f"allocation of layer {k + 1}, {nodes.layers[k].name}: '{name}' is not one of its "
                f"places, {', '.join(known)}"
            )
        found.append(place)
    return tuple(found)
