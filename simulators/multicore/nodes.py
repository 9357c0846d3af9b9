"""Nodes of a network on a chip: tiles of layers, their tensors, and the cores that run them.

A layer runs on one core, or on all cores, which share its rows (tile t runs on core t modulo the
number of cores) or its output channels (every tile on all cores, a part each). A tile reads the
tiles of its producers that overlap its rows; filters of R rows need R - 1 further ones. Symons et
al., "Stream" (IEEE Transactions on Computers, 2025), call nodes computation nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulators.catalog.accelerator import Accelerator
from simulators.core.jit import Floats, Ints
from simulators.dataflow.network import ENTRY, OUTSIDE, LayerGraph, rows_of, used_words
from simulators.multicore.chip import MulticoreChip, memory_of
from simulators.multicore.core_state import TENSORS_STAY, WEIGHTS_STAY, NodeArrays
from simulators.multicore.costs import TileCost, channel_dim, part_of
from simulators.workload.loop_nest import Layer

ROWS, CHANNELS = -1, -2
"""Places of a layer besides the number of a core: all cores share its rows, or its channels."""

ROUNDING = 1e-6
"""Bytes by which a sum of shares may exceed a whole number."""

Place = int
Priced = Callable[[Layer, Accelerator], TileCost]


@dataclass(frozen=True)
class Split:
    """Nodes of a layer: the rows of each, and its part of the channels."""

    first: Ints
    last: Ints  # exclusive
    part: Ints
    parts: int

    @property
    def count(self) -> int:
        """Number of nodes."""
        return int(self.first.size)


@dataclass(frozen=True)
class Assembled:
    """The arrays of an allocation, and what its nodes spend on their cores."""

    work: NodeArrays
    energy_j: float
    macs: int
    weight_bytes_streamed: float


def split_of(rows: int, tiles: int, parts: int) -> Split:
    """Return tiles of equal rows, the last one smaller, each in equal parts of the channels."""
    size = -(-rows // min(tiles, rows))
    first = np.arange(0, rows, size, dtype=np.int64)
    last = np.minimum(first + size, rows)
    part = np.tile(np.arange(parts, dtype=np.int64), first.size)
    return Split(np.repeat(first, parts), np.repeat(last, parts), part, parts)


class Nodes:
    """Builds the arrays of allocations of one network on one chip.

    Args:
        network: the layers.
        chip: the cores.
        tiles: tiles per layer, at most; 1 runs layer by layer.
        priced: the cost of a tile on a core.
    """

    def __init__(
        self, network: LayerGraph, chip: MulticoreChip, tiles: int, priced: Priced
    ) -> None:
        self.network, self.chip, self.tiles, self.priced = network, chip, tiles, priced
        self.layers = [node.layer for node in network.nodes]
        self.rows = [rows_of(layer) for layer in self.layers]
        self.word_bytes = chip.word_bytes
        self.memories = [memory_of(core) for core in chip.cores]
        self.outside = self._tensors_outside()

    def _tensors_outside(self) -> list[tuple[int, int, int]]:
        """Return reader, rows and words of tensors from DRAM; readers share the network's input."""
        found = []
        entry = [k for k, node in enumerate(self.network.nodes) if ENTRY in node.reads]
        if entry:
            found.append((ENTRY, self._input_rows(entry[0]), self.network.entry_words))
        for k, node in enumerate(self.network.nodes):
            if OUTSIDE in node.reads:
                words = used_words(node.layer, 1) * node.reads.count(OUTSIDE) // len(node.reads)
                found.append((k, self._input_rows(k), words))
        return found

    def _input_rows(self, k: int) -> int:
        return self.rows[k] * stride_of(self.layers[k])

    def places(self, k: int) -> tuple[Place, ...]:
        """Return the places that a layer may have."""
        cores = len(self.chip.cores)
        found: list[Place] = list(range(cores))
        if cores > 1 and self.rows[k] >= cores:
            found.append(ROWS)
        if cores > 1 and self.layers[k].extents.get(channel_dim(self.layers[k]), 1) >= cores:
            found.append(CHANNELS)
        return tuple(found)

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - lives as long as the answer of one point
    def split(self, k: int, place: Place) -> Split:
        """Return the nodes of a layer at a place."""
        cores = len(self.chip.cores)
        tiles = max(self.tiles, cores) if place == ROWS else self.tiles
        return split_of(self.rows[k], tiles, cores if place == CHANNELS else 1)

    @functools.lru_cache(maxsize=65536)  # noqa: B019
    def _pairs(self, reader: int, producer: int, here: Place, there: Place) -> tuple[Ints, Ints]:
        """Return which nodes of a reader read which nodes of a producer."""
        mine = self.split(reader, here)
        if producer < 0 or producer >= len(self.layers):
            theirs = self._outside_split(producer)
        else:
            theirs = self.split(producer, there)
        needed = self._needed(reader, producer, int(theirs.last[-1]), mine)
        overlap = (needed[0][:, None] < theirs.last[None, :]) & (
            needed[1][:, None] > theirs.first[None, :]
        )
        if _is_depthwise(self.layers[reader]) and mine.parts == theirs.parts > 1:
            overlap &= mine.part[:, None] == theirs.part[None, :]
        pairs = np.nonzero(overlap)
        return pairs[0].astype(np.int64), pairs[1].astype(np.int64)

    def _outside_split(self, producer: int) -> Split:
        rows = next(r for who, r, _ in self.outside if producer in (who, who + len(self.layers)))
        return split_of(rows, self.tiles, 1)

    def _needed(self, reader: int, producer: int, rows: int, mine: Split) -> tuple[Ints, Ints]:
        """Return the first and last (exclusive) rows of a producer that nodes need."""
        node, layer = self.network.nodes[reader], self.layers[reader]
        if producer == node.weights_from and producer >= 0:
            return np.zeros_like(mine.first), np.full_like(mine.first, rows)
        if producer in node.adds and producer not in node.reads:
            scale, taps, stride = rows / self.rows[reader], 1, 1
        else:
            taps, stride = (
                layer.extents.get("R", 1) if "P" in layer.extents else 1,
                stride_of(layer),
            )
            scale = rows / (self.rows[reader] * stride)
        before = max(0, taps - stride) // 2 if taps > stride else 0
        first = (mine.first * stride - before) * scale
        last = ((mine.last - 1) * stride - before + taps) * scale
        first = np.clip(np.floor(first + 1e-9), 0, rows - 1).astype(np.int64)
        last = np.clip(np.ceil(last - 1e-9), first + 1, rows).astype(np.int64)
        return first, last

    @functools.lru_cache(maxsize=65536)  # noqa: B019
    def cost(self, k: int, rows: int, parts: int, core: int) -> TileCost:
        """Return the cost of a tile of a layer on a core.

        Raises:
            Infeasible: the tile cannot be mapped onto the core.
        """
        return self.priced(part_of(self.layers[k], rows, parts), self.chip.cores[core])

    def assemble(self, allocation: Sequence[Place]) -> Assembled:
        """Return the arrays of an allocation: a place per layer.

        Raises:
            Infeasible: a tile cannot be mapped onto its core.
        """
        cores, layers = len(self.chip.cores), len(self.layers)
        splits = [self.split(k, place) for k, place in enumerate(allocation)]
        outside = [split_of(rows, self.tiles, 1) for _, rows, _ in self.outside]
        starts = np.cumsum([0, *(s.count for s in (*outside, *splits))])
        total, ahead = int(starts[-1]), len(outside)
        core = np.full(total, -1, np.int64)
        layer_of = np.zeros(total, np.int64)
        rank = np.zeros(total, np.int64)
        out_bytes = np.zeros(total)
        weights = np.zeros((layers, cores))
        for j, ((_, rows, words), split) in enumerate(zip(self.outside, outside, strict=True)):
            nodes = slice(starts[j], starts[j + 1])
            out_bytes[nodes] = (split.last - split.first) * words * self.word_bytes / rows
        positions = {who: j for j, (who, _, _) in enumerate(self.outside)}
        readers, read = [], []
        for k, (place, split) in enumerate(zip(allocation, splits, strict=True)):
            nodes = slice(starts[ahead + k], starts[ahead + k + 1])
            layer_of[nodes] = k
            rank[nodes] = -k * total + np.arange(split.count)
            core[nodes] = self.cores_of(split, place)
            share = (split.last - split.first) / self.rows[k] / split.parts
            out_bytes[nodes] = self.network.nodes[k].stored_words * self.word_bytes * share
            node = self.network.nodes[k]
            if node.weights_from == OUTSIDE:
                held = used_words(self.layers[k], 0) / split.parts
                used = [who for who, _, _ in self._alike(k, place)]
                weights[k, used] = held * self.word_bytes
            for producer in dict.fromkeys((*node.reads, *node.adds, node.weights_from)):
                if producer == OUTSIDE and OUTSIDE not in node.reads:
                    continue
                if producer in (ENTRY, OUTSIDE):
                    who = ENTRY if producer == ENTRY else k
                    j, key = positions[who], who if who == ENTRY else who + layers
                    pairs, offset = self._pairs(k, key, place, 0), starts[j]
                else:
                    pairs = self._pairs(k, producer, place, allocation[producer])
                    offset = starts[ahead + producer]
                readers.append(pairs[0] + starts[ahead + k])
                read.append(pairs[1] + offset)
        # Whole bytes, whose sums are exact: memory that is empty has 0 bytes in use.
        out_bytes, weights = np.ceil(out_bytes - ROUNDING), np.ceil(weights - ROUNDING)
        users = np.concatenate(readers)
        inputs = np.concatenate(read)
        both = np.unique(users * total + inputs)
        users, inputs = both // total, both % total
        stays, compute_s, reads, writes, energy_j, streamed = self._costs(
            allocation, starts[ahead:], out_bytes, weights, users, inputs
        )
        by_input = np.lexsort((users, inputs))
        work = NodeArrays(
            core=core,
            layer=layer_of,
            rank=rank,
            stays=stays,
            compute_s=compute_s,
            out_bytes=out_bytes,
            stream_reads=reads,
            stream_writes=writes,
            input_start=np.searchsorted(users, np.arange(total + 1)),
            inputs=inputs,
            user_start=np.searchsorted(inputs[by_input], np.arange(total + 1)),
            users=users[by_input],
            weight_bytes=weights,
        )
        macs = sum(layer.macs for layer in self.layers)
        return Assembled(work, energy_j, macs, streamed)

    def cores_of(self, split: Split, place: Place) -> Ints:
        """Return the core of each node of a layer."""
        if place >= 0:
            return np.full(split.count, place, np.int64)
        cores = len(self.chip.cores)
        return split.part if place == CHANNELS else np.arange(split.count) % cores

    def _costs(
        self,
        allocation: Sequence[Place],
        starts: Ints,
        out_bytes: Floats,
        weights: Floats,
        users: Ints,
        inputs: Ints,
    ) -> tuple[Ints, Floats, Floats, Floats, float, float]:
        """Return what stays, seconds and streamed bytes by node; joules and streamed weights."""
        total = out_bytes.size
        in_bytes = np.bincount(users, out_bytes[inputs], total)
        stays = np.zeros(total, np.int64)
        compute_s, reads, writes = np.zeros(total), np.zeros(total), np.zeros(total)
        energy_j, streamed = 0.0, 0.0
        for k, place in enumerate(allocation):
            parts = self.split(k, place).parts
            for who, rows, nodes in self._alike(k, place):
                some = nodes + starts[k]
                held = self._stays(who, in_bytes[some] + out_bytes[some], weights[k, who])
                cost = self.cost(k, rows, parts, who)
                stays[some], compute_s[some] = held, cost.compute_s
                energy_j += cost.energy_j * some.size
                moved = [words * self.word_bytes for words in cost.moved]
                no_weights = held & WEIGHTS_STAY == 0
                no_tensors = held & TENSORS_STAY == 0
                reads[some] = no_weights * moved[0] + no_tensors * moved[1]
                writes[some] = no_tensors * moved[2]
                streamed += float(no_weights.sum() * moved[0])
        return stays, compute_s, reads, writes, energy_j, streamed

    def energies(self, allocation: Sequence[Place]) -> dict[tuple[int, int], float]:
        """Return the energy (J) of each layer on each of its cores."""
        found: dict[tuple[int, int], float] = {}
        for k, place in enumerate(allocation):
            for who, rows, nodes in self._alike(k, place):
                cost = self.cost(k, rows, self.split(k, place).parts, who)
                found[k, who] = found.get((k, who), 0.0) + cost.energy_j * nodes.size
        return found

    @functools.lru_cache(maxsize=4096)  # noqa: B019
    def _alike(self, k: int, place: Place) -> tuple[tuple[int, int, Ints], ...]:
        """Return core, rows and numbers of the nodes of a layer that cost the same."""
        split = self.split(k, place)
        cores, sizes = self.cores_of(split, place), split.last - split.first
        found = []
        for core in sorted({*cores.tolist()}):
            for rows in sorted({*sizes.tolist()}):
                nodes = np.nonzero((cores == core) & (sizes == rows))[0]
                if nodes.size:
                    found.append((int(core), int(rows), nodes))
        return tuple(found)

    def _stays(self, core: int, tensors: Floats, weights: float) -> Ints:
        """Return which operands of nodes a core's memory holds: as many as fit."""
        memory = self.memories[core]
        if not memory.is_shared:
            holds = WEIGHTS_STAY if weights <= memory.weight_bytes else 0
            return np.where(tensors <= memory.tensor_bytes, TENSORS_STAY, 0) | holds
        chunk = self.chip.cores[core].mac.instances * self.word_bytes
        capacity = memory.tensor_bytes
        found = np.where(tensors + weights <= capacity, TENSORS_STAY | WEIGHTS_STAY, 0)
        alone = np.where(tensors + chunk <= capacity, TENSORS_STAY, 0)
        only = WEIGHTS_STAY if weights + 3 * chunk <= capacity else 0
        return np.where(found > 0, found, np.where(alone > 0, alone, only))


def stride_of(layer: Layer) -> int:
    """Return the rows of an input per row of the output."""
    for rank in layer.tensors[1].ranks:
        for dim, coefficient in rank:
            if dim == "P":
                return coefficient
    return 1


def _is_depthwise(layer: Layer) -> bool:
    return "M" not in layer.dims
