"""The schedule with the least cost: fused groups, tiles, and tensors that stay on chip.

Dynamic programming over the layers in running order. A state is a position and the set of tensors
that are wholly on chip; a step runs a group of the next layers tile by tile and leaves another set
on chip. All steps of up to `most_layers` layers, all sets of tensors that fit, and all tilings of
`tiles` are considered, so the result is the optimum of this space for additive costs. Branches keep
their tensors alive, on chip (they take capacity) or in DRAM (they are written and read again).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulators.dataflow.network import ENTRY, OUTSIDE, LayerGraph, LayerNode, rows_of, used_words
from simulators.dataflow.schedule.tiles import (
    BETWEEN,
    FROM_DRAM,
    ON_CHIP,
    TO_DRAM,
    Group,
    Member,
    Operand,
    Tiling,
    best_tiling,
)
from simulators.dataflow.search.bounds import least_traffic
from simulators.workload.loop_nest import Layer

MOST_STATES = 64
"""Sets of tensors on chip that are kept per position: the cheapest ones."""


@dataclass(frozen=True)
class Buffer:
    """The shared on-chip level in which tensors stay."""

    level: int  # position among the accelerator's levels
    capacity: int  # words
    lanes: int  # multipliers
    mask: int  # of the tensors that the level may hold
    can_keep_weights: bool
    remainders: bool = False  # whether the last tile may be smaller


@dataclass(frozen=True, eq=False)
class ScheduleStep:
    """Layers `first` to `last` (exclusive) run together; `ScheduleSteps` makes each once."""

    first: int
    last: int
    group: Group
    tiling: Tiling | None  # None: a single layer, with its tensors outside
    heads: int  # independent groups of heads that run one after the other
    held_words: int  # tensors on chip that other layers read later, and operands of attention
    dram_words: float  # the least
    on_chip: frozenset[int]  # tensors on chip after the step
    spilled_words: int = 0  # written to DRAM when a tensor leaves the chip
    added_words: int = 0  # read from DRAM by sums with residual branches
    loaded_words: int = 0  # of the network's input, read to stay on chip


Cost = Callable[[ScheduleStep], float]


class ScheduleSteps:
    """All steps of a network; equal groups of layers are tiled once."""

    def __init__(self, network: LayerGraph, buffer: Buffer, most_layers: int) -> None:
        self.network, self.buffer, self.most_layers = network, buffer, most_layers
        self.count = len(network.nodes)
        self.last_use = [network.last_use(k) for k in range(self.count)]
        self.layers = [dataclasses.replace(n.layer, name="") for n in network.nodes]
        self.rows = [rows_of(layer) for layer in self.layers]
        self.uses = [tuple(used_words(layer, t) for t in range(3)) for layer in self.layers]
        self.extents = [layer.extents for layer in self.layers]
        self.strides = [_stride(layer) for layer in self.layers]
        self.words = dict(enumerate(n.stored_words for n in network.nodes))
        self.words[ENTRY] = network.entry_words
        self.last_use_of = dict(enumerate(self.last_use)) | {ENTRY: self._last_use_of_entry()}
        self._found: dict[tuple[int, int, frozenset[int], frozenset[int]], ScheduleStep | None] = {}

    def _last_use_of_entry(self) -> int:
        nodes = self.network.nodes
        return max((k for k, n in enumerate(nodes) if ENTRY in n.producers), default=-1)

    def live(self, position: int) -> list[int]:
        """Return the layers before a position whose outputs are read at or after the position."""
        made = [k for k in range(position) if position <= self.last_use[k] < self.count]
        return [*made, *([ENTRY] if self.last_use_of[ENTRY] >= position else [])]

    def sets_after(self, first: int, last: int, before: frozenset[int]) -> list[frozenset[int]]:
        """Return the sets of tensors that may be on chip after a step."""
        able = [
            k
            for k in self.live(last)
            if (k in before or k >= first or self._enters(k, first, last))
            and self.words[k] < self.buffer.capacity
        ]
        sets = [
            frozenset(chosen)
            for n in range(len(able) + 1)
            for chosen in itertools.combinations(able, n)
        ]
        return [s for s in sets if sum(self.words[k] for k in s) < self.buffer.capacity]

    def _enters(self, tensor: int, first: int, last: int) -> bool:
        """Return whether a group reads the network's input."""
        nodes = self.network.nodes[first:last]
        return tensor == ENTRY and any(ENTRY in n.producers for n in nodes)

    def step(
        self, first: int, last: int, before: frozenset[int], after: frozenset[int]
    ) -> ScheduleStep | None:
        """Return the step of a group of layers with the least traffic, or None if none fits."""
        key = (first, last, before, after)
        if key not in self._found:
            self._found[key] = self._step(*key)
        return self._found[key]

    def _step(
        self, first: int, last: int, before: frozenset[int], after: frozenset[int]
    ) -> ScheduleStep | None:
        nodes, inside = self.network.nodes[first:last], range(first, last)
        if any(node.weights_from in inside for node in nodes):
            return None  # every tile would need the whole tensor
        tensors = _GroupTensors(self, inside, before, after)
        members = []
        for k, node in zip(inside, nodes, strict=True):
            source = tensors.read(k, node)
            weights = 0 if node.weights_from in before else self.uses[k][0]
            members.append(self._member(k, source, tensors.number(k, k, 0, 0), weights))
        held = sum(self.words[k] for k in sorted(before) if k not in tensors.used)
        spilled = sum(
            self.words[k]
            for k in sorted(before)
            if k >= 0 and k not in after and self.last_use[k] >= last
        )
        loaded = self.words[ENTRY] if ENTRY in after and ENTRY not in before else 0
        capacity, added = self.buffer.capacity - held, tensors.added_words
        if capacity <= 0:
            return None
        operands = tensors.operands()
        group = Group(tuple(members), operands, capacity, self.buffer.lanes, self.buffer.remainders)
        if (
            len(members) == 1
            and all(t.place in (FROM_DRAM, TO_DRAM) for t in operands)
            and members[0].weight_words
        ):
            least = least_traffic(self.layers[first], capacity, self.buffer.mask)
            if least == float("inf"):
                return None
            return ScheduleStep(
                first, last, group, None, 1, held, least + spilled + added, after, spilled, added
            )
        # The network's input is read whole when it comes to stay.
        heads, tiling = _tiled(group, [e.get("B", 1) for e in self.extents[first:last]])
        if tiling is None:
            return None
        words = heads * tiling.dram_words + spilled + loaded
        return ScheduleStep(
            first, last, group, tiling, heads, held, words, after, spilled, added, loaded
        )

    def _member(self, k: int, source: int, result: int, weight_words: int) -> Member:
        extents = self.extents[k]
        has_pixels = "P" in extents
        return Member(
            source,
            result,
            weight_words,
            rows=self.rows[k],
            channels=extents.get("M", extents.get("C", 1)),
            taps=extents.get("R", 1) if has_pixels else 1,
            has_pixels=has_pixels,
            is_depthwise="M" not in extents and "C" in extents,
            can_keep_weights=self.buffer.can_keep_weights,
        )


def _stride(layer: Layer) -> int:
    for rank in layer.tensors[1].ranks:
        for dim, coefficient in rank:
            if dim == "P":
                return coefficient
    return 1


class _GroupTensors:
    """The tensors of a group of layers, numbered in the order in which layers use them."""

    def __init__(
        self, steps: ScheduleSteps, inside: range, before: frozenset[int], after: frozenset[int]
    ) -> None:
        self.steps, self.inside, self.before, self.after = steps, inside, before, after
        self.used: set[int] = set()  # producers of the tensors that are read
        self.added_words = 0  # read from DRAM by sums with residual branches
        self._numbers: dict[object, int] = {}
        self._operands: list[Operand] = []
        self._readers: list[list[int]] = []
        self._adders: list[list[int]] = []

    def read(self, k: int, node: LayerNode) -> int:
        """Add the tensors that a layer reads or adds; return the number of its first input."""
        steps, source = self.steps, -1
        for place, producer in enumerate(node.reads):
            words = steps.uses[k][1] // len(node.reads)
            key: object = producer if producer != OUTSIDE else ("own", k)
            number = self.number(producer, key, words, steps.rows[k] * steps.strides[k])
            self.used.add(producer)
            if place == 0:
                source = number
            (self._readers if place == 0 else self._adders)[number].append(k - self.inside.start)
        for producer in node.adds:
            number = self.number(producer, producer, steps.uses[k][2], steps.rows[k])
            self._adders[number].append(k - self.inside.start)
            self.used.add(producer)
            operand = self._operands[number]
            self.added_words += operand.words if operand.place == FROM_DRAM else 0
        return source

    def number(self, producer: int, key: object, words: int, rows: int) -> int:
        """Return the number of a tensor; `words` and `rows` are those of its first use."""
        if key not in self._numbers:
            self._numbers[key] = len(self._operands)
            self._operands.append(self._operand(producer, words, rows))
            self._readers.append([])
            self._adders.append([])
        return self._numbers[key]

    def _operand(self, producer: int, words: int, rows: int) -> Operand:
        steps, first = self.steps, self.inside.start
        if producer in self.inside:
            stays = steps.last_use[producer] >= self.inside.stop
            place = (ON_CHIP if producer in self.after else TO_DRAM) if stays else BETWEEN
            words, rows = steps.words[producer], steps.rows[producer]
            return Operand(place, words, producer - first, (), (), rows)
        stays = producer in self.before or producer in self.after
        if producer >= 0:
            rows = steps.rows[producer]
        if producer != OUTSIDE and stays:
            words = steps.words[producer]
        return Operand(ON_CHIP if stays else FROM_DRAM, words, -1, (), (), rows)

    def operands(self) -> tuple[Operand, ...]:
        """Return all tensors with the layers that read and add them."""
        return tuple(
            dataclasses.replace(operand, readers=tuple(readers), adders=tuple(adders))
            for operand, readers, adders in zip(
                self._operands, self._readers, self._adders, strict=True
            )
        )


def _tiled(group: Group, heads: Sequence[int]) -> tuple[int, Tiling | None]:
    """Return the number of independent groups of heads, and the tiling of one of them."""
    best: tuple[int, Tiling | None] = (1, best_tiling(group))
    if len(set(heads)) > 1 or heads[0] == 1 or any(t.place == ON_CHIP for t in group.tensors):
        return best
    for split in (n for n in range(2, heads[0] + 1) if heads[0] % n == 0):
        if best[1] is not None and best[0] * best[1].dram_words <= _outside(group):
            break
        found = best_tiling(of_heads(group, split))
        if found is not None and (
            best[1] is None or split * found.dram_words < best[0] * best[1].dram_words
        ):
            best = (split, found)
    return best


def _outside(group: Group) -> int:
    return sum(m.weight_words for m in group.members) + sum(
        t.words for t in group.tensors if t.place in (FROM_DRAM, TO_DRAM)
    )


def of_heads(group: Group, split: int) -> Group:
    """Return the part of a group of batched products that computes some of the heads."""
    members = tuple(
        dataclasses.replace(m, weight_words=m.weight_words // split, channels=m.channels)
        for m in group.members
    )
    tensors = tuple(dataclasses.replace(t, words=t.words // split) for t in group.tensors)
    return dataclasses.replace(group, members=members, tensors=tensors)


@functools.lru_cache(maxsize=4096)
def fewer_heads(layer: Layer, split: int) -> Layer:
    """Return a batched product of fewer heads."""
    bounds = tuple(
        b // split if d == "B" else b for d, b in zip(layer.dims, layer.bounds, strict=True)
    )
    return dataclasses.replace(layer, bounds=bounds)


def cheapest(steps: ScheduleSteps, cost: Cost) -> tuple[float, list[ScheduleStep]]:
    """Return the least total cost of a schedule, and its steps."""
    empty: frozenset[int] = frozenset()
    best: list[dict[frozenset[int], tuple[float, ScheduleStep | None, frozenset[int]]]]
    best = [{} for _ in range(steps.count + 1)]
    best[0][empty] = (0.0, None, empty)
    for first in range(steps.count):
        states = sorted(best[first].items(), key=lambda item: item[1][0])[:MOST_STATES]
        for before, (spent, _, _) in states:
            for last in range(first + 1, min(first + steps.most_layers, steps.count) + 1):
                is_possible = False
                for after in steps.sets_after(first, last, before):
                    step = steps.step(first, last, before, after)
                    if step is None:
                        continue
                    is_possible = True
                    total = spent + cost(step)
                    if after not in best[last] or total < best[last][after][0]:
                        best[last][after] = (total, step, before)
                if not is_possible and last > first + 1:
                    break
    total, step, state = best[-1][empty]
    found = []
    while step is not None:
        found.append(step)
        _, step, state = best[step.first][state]
    return total, found[::-1]


def least_words(steps: ScheduleSteps) -> float:
    """Return the fewest words through DRAM over all schedules of the space."""
    return cheapest(steps, lambda step: step.dram_words)[0]


def compulsory_words(network: LayerGraph, *, with_weights: bool = True) -> int:
    """Return the words of weights, inputs and outputs of a network, each once."""
    words = network.entry_words
    for k, node in enumerate(network.nodes):
        if with_weights and node.weights_from == OUTSIDE:
            words += used_words(node.layer, 0)
        words += used_words(node.layer, 1) * node.reads.count(OUTSIDE) // len(node.reads)
        if network.last_use(k) == len(network.nodes):
            words += node.stored_words
    return words


def on_chip(steps: ScheduleSteps, chosen: Sequence[ScheduleStep]) -> list[int]:
    """Return the layers whose outputs never leave the chip in a schedule."""
    found = []
    for step in chosen:
        for k in range(step.first, step.last):
            stays = all(
                k in one.on_chip for one in chosen if step.last <= one.last <= steps.last_use[k]
            )
            if steps.last_use[k] < steps.count and stays:
                found.append(k)
    return found
