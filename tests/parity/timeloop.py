"""Timeloop's counts of a mapping: it walks a few iterations of each loop and extrapolates.

docs/explanation/dataflow.md lists the rules (Parashar et al., ISPASS 2019). Where bounds divide and
no halo outlives a loop, the counts equal those of `dataflow.access`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from lab.tables.rows import Bools
from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.jit import Ints
from simulators.dataflow.mapping import LoopNest
from simulators.workload.loop_nest import Layer, Tensor

Mesh = tuple[int, int] | None
"""Columns and rows of elements that pass words to their neighbours."""


class Accesses(NamedTuple):
    """Accesses of one tensor by an instance of a level, and the instances in use."""

    reads: int
    fills: int
    updates: int
    instances: int


class TiledLoop(NamedTuple):
    """A loop with more than one iteration."""

    dim: int  # position of the dimension in the layer
    times: int
    last: int  # iterations of the last run
    tile: int  # of the dimension, inside the loop
    is_spatial: bool


class LevelTiles(NamedTuple):
    """Loops of a level, outermost first, and the tiles inside its spatial and all its loops."""

    temporal: tuple[TiledLoop, ...]
    spatial: tuple[TiledLoop, ...]
    block: tuple[int, ...]
    tile: tuple[int, ...]


class WalkTotals(NamedTuple):
    """Totals over all iterations outside the tile of a child."""

    sent: int  # words that leave the level
    received: int  # words that arrive at the children
    linked: int  # words that children get from neighbours
    largest: int  # words of the largest tile of a child
    largest_block: int  # words of the largest tile of all children
    steps: int
    active: int  # children in use, summed over steps


def extrapolated(
    mapping: LoopNest, layer: Layer, accelerator: Accelerator, *, links: bool
) -> dict[tuple[str, str], Accesses]:
    """Return the accesses that Timeloop counts, by level and tensor that the level keeps.

    `links`: elements pass words to the neighbours in their row and column.
    """
    levels = _level_tiles(mapping, layer)
    walks = {
        name: _walks(
            tensor,
            levels,
            layer,
            accelerator,
            [links and name in one.keep for one in mapping.levels[1:]] + [links],
        )
        for name, tensor in zip(TENSORS, layer.tensors, strict=True)
    }
    shares = [Fraction(walk.active, walk.steps) for walk in walks[TENSORS[0]]]
    reached = itertools.accumulate(shares, lambda a, b: a * b, initial=Fraction(1))
    in_use = [math.floor(instances) for instances in reached]
    fan_out = [math.prod(loop.times for loop in one.spatial) for one in levels]
    found = {}
    for name, tensor in zip(TENSORS, layer.tensors, strict=True):
        kept = [name in one.keep for one in mapping.levels]
        words = tensor.words(layer.extents)
        accesses = _accesses(walks[name], words, kept, fan_out, in_use, output=tensor.output)
        for level, one in zip(mapping.levels, accesses, strict=True):
            if name in level.keep:
                found[level.level, name] = one
    return found


def _level_tiles(mapping: LoopNest, layer: Layer) -> list[LevelTiles]:
    """Return the loops and tiles of all levels; spatial loops along Y are outside those along X."""
    tile = [1] * len(layer.dims)

    def outwards(loops: tuple[tuple[str, int], ...], *, is_spatial: bool) -> tuple[TiledLoop, ...]:
        found = []
        for dim, times in reversed(loops):
            if times > 1:
                d = layer.dims.index(dim)
                left = (layer.bounds[d] - 1) % (tile[d] * times) + 1
                found.append(TiledLoop(d, times, (left - 1) // tile[d] + 1, tile[d], is_spatial))
                tile[d] *= times
        return tuple(reversed(found))

    levels = []
    for one in reversed(mapping.levels):
        spatial = outwards((*one.spatial_y, *one.spatial_x), is_spatial=True)
        block = tuple(tile)
        temporal = outwards(one.temporal, is_spatial=False)
        levels.append(LevelTiles(temporal, spatial, block, tuple(tile)))
    return levels[::-1]


def _walks(
    tensor: Tensor,
    levels: Sequence[LevelTiles],
    layer: Layer,
    accelerator: Accelerator,
    linked: Sequence[bool],
) -> list[WalkTotals]:
    """Return the walk between each level and the next; multipliers come last.

    `linked`: whether the elements of each next level pass words of the tensor to neighbours.
    """
    loops = [loop for one in levels for loop in (*one.temporal, *one.spatial)]
    partial = {loop.dim for loop in loops if loop.times != loop.last}
    strides = np.zeros((len(layer.dims), len(tensor.ranks)), np.int64)
    for r, rank in enumerate(tensor.ranks):
        for dim, coefficient in rank:
            strides[layer.dims.index(dim), r] = coefficient
    meshes = [*(level.mesh for level in accelerator.levels), accelerator.mac.mesh]
    outside: list[TiledLoop] = []
    walks = []
    for k, one in enumerate(levels):
        is_last = k + 1 == len(levels)
        child = (1,) * len(layer.dims) if is_last else levels[k + 1].tile
        columns, rows = (
            inner // outer for inner, outer in zip(meshes[k + 1], meshes[k], strict=True)
        )
        outside += one.temporal
        steps = WalkedSteps.of(outside, partial, layer.bounds, strides)
        mesh = (columns, rows) if linked[k] else None
        walks.append(steps.walk(one, child, mesh, is_last=is_last))
        outside += one.spatial
    return walks


@dataclass(frozen=True)
class WalkedSteps:
    """Walked iterations in order; arrays have a row per step."""

    bounds: Ints
    strides: Ints  # of a tensor's ranks, by dimension
    weight: Ints  # iterations that a step represents
    place: Ints  # 0, 1 or 2: the walked iteration of the innermost loop
    low: Ints  # corner of the tile, by rank
    is_end: Bools  # whether a step is in the last run of all loops, by dimension

    @classmethod
    def of(
        cls, loops: Sequence[TiledLoop], partial: set[int], bounds: Sequence[int], strides: Ints
    ) -> WalkedSteps:
        """Return the steps of loops, outermost first; of spatial loops only the first instance.

        `partial`: dimensions whose last tile is smaller, of which the last iteration is walked.
        """
        weight, place = np.ones(1, np.int64), np.zeros(1, np.int64)
        low = np.zeros((1, strides.shape[1]), np.int64)
        is_end = np.ones((1, len(bounds)), bool)
        for loop in loops:
            end = np.where(is_end[:, loop.dim], loop.last, loop.times)
            most = 1 if loop.is_spatial else 3 if loop.dim in partial else 2
            walked = np.minimum(end, most)
            parent = np.repeat(np.arange(walked.size), walked)
            place = np.arange(parent.size) - np.repeat(np.cumsum(walked) - walked, walked)
            index = np.where(place == 2, end[parent] - 1, place)
            represented = np.where(place == 1, np.maximum(1, end[parent] - (most - 1)), 1)
            weight = weight[parent] * represented
            low = low[parent] + np.outer(index * loop.tile, strides[loop.dim])
            is_end = is_end[parent]
            is_end[:, loop.dim] &= index + 1 >= loop.last
        return cls(np.array(bounds, np.int64), strides, weight, place, low, is_end)

    def extents(self, tile: Sequence[int], is_end: Bools) -> Ints:
        """Return the extents of a tile by rank; the last tile of a dimension may be smaller."""
        sizes = np.array(tile, np.int64)
        last = self.bounds - (self.bounds - 1) // sizes * sizes
        extents: Ints = 1 + (np.where(is_end, last, sizes) - 1) @ self.strides
        return extents

    def walk(
        self, level: LevelTiles, child: Sequence[int], mesh: Mesh, *, is_last: bool
    ) -> WalkTotals:
        """Return the words that a level, of the innermost temporal loops, sends to its children.

        `child`: tile of a child. `is_last`: children are multipliers, which keep no words.
        """
        block = self.extents(level.block, self.is_end)
        is_end = self.is_end.copy()
        ends = np.ones((self.weight.size, len(level.spatial)), np.int64)
        for k, loop in enumerate(level.spatial):
            ends[:, k] = np.where(is_end[:, loop.dim], loop.last, loop.times)
            is_end[:, loop.dim] &= loop.last == 1
        extent = self.extents(child, is_end)
        low, new = _new_words(self.low, extent) if not is_last else (self.low, extent)
        words = new.prod(axis=1)
        if level.temporal and not level.spatial and not is_last:  # the last needs as the second
            words = np.where(self.place == 2, np.roll(words, 1), words)
        is_alike = (new == _before(new)).all(axis=1) & (words > 0)
        # Corners are never further apart than the tensor, in either direction, twice over.
        whole = low.max(axis=0) + block.max(axis=0)
        radix = np.array([math.prod((4 * whole[r + 1 :]).tolist()) for r in range(whole.size)])
        fan_out = functools.cache(_fan_out(level.spatial, self.strides @ radix, mesh))
        runs = list(map(tuple, ends.tolist()))
        shifts = (low - _before(low)) @ radix
        arrived = np.array(
            [
                fan_out(here, before, shift if is_linked else None)
                for here, before, shift, is_linked in zip(
                    runs, [runs[0], *runs], shifts.tolist(), is_alike.tolist(), strict=False
                )
            ]
        )
        sent, received, linked = (self.weight * words) @ arrived
        return WalkTotals(
            int(sent),
            int(received),
            int(linked),
            largest=int(extent.prod(axis=1).max()),
            largest_block=int(block.prod(axis=1).max()),
            steps=int(self.weight.sum()),
            active=int(self.weight @ ends.prod(axis=1)),
        )


def _before(rows: Ints) -> Ints:
    """Return the rows of the steps before; zeros before the first step."""
    return np.concatenate([np.zeros_like(rows[:1]), rows[:-1]])


def _new_words(low: Ints, extent: Ints) -> tuple[Ints, Ints]:
    """Return corners and extents of the words of each tile that the tile before does not hold.

    A tile that moved by the vector of the step before holds the overlap, if the rest is a box.
    """
    held, held_extent = _before(low), _before(extent)
    end, held_end = low + extent, held + held_extent
    differs = (low != held) | (end != held_end)
    moved = np.flatnonzero(differs.any(axis=1))
    vector = (low - held)[moved]
    is_same = [False, *(vector[1:] == vector[:-1]).all(axis=1).tolist()]
    is_moving = np.zeros(len(low), bool)
    is_moving[moved] = list(itertools.accumulate(is_same, lambda was, same: not was or same))
    overlaps = ((held_end > low) & (held < end)).all(axis=1)
    sheds = is_moving & (differs.sum(axis=1) == 1) & overlaps
    forward = differs & sheds[:, None] & (held <= low)
    backward = differs & sheds[:, None] & (held > low)
    new_extent = np.where(forward, np.maximum(0, end - held_end), extent)
    new_extent = np.where(backward, held - low, new_extent)
    new_extent[~differs.any(axis=1)] = 0
    return np.where(forward, held_end, low), new_extent


def _fan_out(
    spatial: Sequence[TiledLoop], strides: Ints, mesh: Mesh
) -> Callable[[tuple[int, ...], tuple[int, ...], int | None], tuple[int, int, int]]:
    """Return a function of a step: tiles that leave, arrive at children, and neighbours pass on.

    Its arguments are the iterations of the spatial loops at the step and the step before, and how
    far tiles have moved since; None if no neighbour has a tile. `strides`: between tiles.
    """

    def corners(ends: tuple[int, ...]) -> Ints:
        places = np.indices(ends).reshape(len(ends), -1)
        scale = [loop.tile * int(strides[loop.dim]) for loop in spatial]
        return np.array(scale, np.int64) @ places

    def count(
        ends: tuple[int, ...], ends_before: tuple[int, ...], shift: int | None
    ) -> tuple[int, int, int]:
        here = corners(ends) if ends else np.zeros(1, np.int64)
        tiles = np.unique(here).size
        if mesh is None or shift is None:
            return tiles, here.size, 0
        before = corners(ends_before) if ends else here
        is_given = _has_neighbour(here + shift, before, *mesh)
        left = np.unique(here[~is_given]).size
        given = 0 if left == tiles else int(is_given.sum())
        return left, here.size - given, given

    return count


def _has_neighbour(here: Ints, before: Ints, columns: int, rows: int) -> Bools:
    """Return whether a neighbour of each element had its tile a step before."""
    element = np.arange(here.size)
    column, row = element % columns, element // columns
    found = np.zeros(here.size, bool)
    for offset, is_linked in (
        (-columns, row > 0),
        (columns, row + 1 < rows),
        (-1, column > 0),
        (1, column + 1 < columns),
    ):
        there = element + offset
        is_there = is_linked & (there >= 0) & (there < before.size)
        found |= is_there & (before[np.where(is_there, there, 0)] == here)
    return found


def _accesses(
    walks: Sequence[WalkTotals],
    words: int,
    kept: Sequence[bool],
    fan_out: Sequence[int],
    in_use: Sequence[int],
    *,
    output: bool,
) -> list[Accesses]:
    """Return the accesses of an instance of each level, from the walks between levels.

    `words`: of the whole tensor. `kept`: whether each level keeps the tensor. `fan_out`: children
    of an instance of each level. `in_use`: instances of each level in use, on average.
    """
    sent = [float(walk.sent) for walk in walks]
    for k in range(len(walks) - 1, 0, -1):
        if not kept[k]:
            sent[k - 1] *= sent[k] * fan_out[k - 1] / float(walks[k - 1].received)
    found = []
    share = words
    for k in range(len(walks)):
        came, handed = 0.0, 0
        if k:
            before = walks[k - 1]
            handed = before.linked // in_use[k]
            came = float(before.received) / fan_out[k - 1] + handed
            share = share * before.largest // before.largest_block
        if not any(kept[:k]):
            came = 0.0
        elif output:
            came = max(0, round(came - share))  # averaged over idle elements, it may be less
        reads = max(0.0, sent[k] + handed - (share if output else 0))
        updates = round(sent[k]) if output else 0
        found.append(Accesses(round(reads), int(came), updates, in_use[k]))
    return found
