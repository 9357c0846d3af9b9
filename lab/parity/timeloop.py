"""Timeloop's counts of a mapping: it walks a few iterations of each loop and extrapolates.

Timeloop counts so (Parashar et al., ISPASS 2019), and these are its rules. Of a loop in time it
walks the first iteration, the second on behalf of all that follow and, over a dimension whose last
tile is smaller, the last. Of instances side by side it walks the first; the others need the same
words, displaced. A level keeps its words from one walked iteration to the next as long as its tile
moves on by the same vector, or does not move. The last step of a loop right next to a level so
counts as a whole one, and a step from the second iteration to the last shares nothing. With links,
an element takes the words that a neighbour in its row or column was sent the step before, where
that saves the level outside some reads.

Fills are averages over the whole fan-out, idle elements included. A level that bypasses a tensor
passes on the words of its children, scaled by the average share of the words sent to it that
arrive. Words that linked elements exchange are read and filled in these elements, averaged over the
elements in use. Where bounds divide and no halo outlives a loop, the counts equal those of
`dataflow.access`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator, Level
from simulators.core.jit import Floats, Ints, array, i8, kernel, matrix
from simulators.dataflow.access import FILLS, LEAK, READS, UPDATES, left_over
from simulators.dataflow.evaluation import Evaluation, Traffic, machine_of, totalled
from simulators.dataflow.mapping import LoopNest
from simulators.workload.loop_nest import Layer, Tensor

DIM, TIMES, LAST, TILE, KIND = range(5)
"""Columns of a loop: dimension, iterations, those of the last run, the tile inside it, place."""

STILL, IN_TIME, NEXT = range(3)
"""A spatial loop, of which the first instance is looked at; one in time; that next to the child."""

BOUND, INSIDE, BLOCK, CUT, RANK, COEFFICIENT = range(6)
"""Columns of a dimension: bound, in the child's tile, in all children's; whether cut; its rank."""

LOW, EXTENT, HELD_LOW, HELD_EXTENT, VECTOR, NEW_LOW, NEW_EXTENT, SENT_EXTENT = range(8)
"""Rows of boxes, by rank: the tile, the one before, how it moved, what is new, what was before."""

SENT, RECEIVED, LINKED, LARGEST, LARGEST_BLOCK, STEPS, ACTIVE = range(7)
"""Results of a walk: words sent, received and linked; largest tiles; steps; active elements."""

CODE, SAME_AS, CODE_BEFORE, STAMP = range(4)
"""Rows of elements: where its tile begins, the first that has the same, both, a step before."""


@kernel(i8(matrix(i8), matrix(i8), array(i8), array(i8), array(i8), matrix(i8)), no_refcount=True)
def go_to(loops: Ints, dims: Ints, at: Ints, count: Ints, last: Ints, boxes: Ints) -> int:
    """Place the tile for the walked iterations `at`; return the iterations represented."""
    weight = 1
    last[:] = 1
    boxes[LOW] = 0
    for k in range(loops.shape[0]):
        d = loops[k, DIM]
        index = 0
        if loops[k, KIND] != STILL:
            end = loops[k, LAST] if last[d] else loops[k, TIMES]
            count[k] = min(end, 3 if dims[d, CUT] else 2)
            index = at[k]
            if index == 1:
                weight *= max(1, end - (2 if dims[d, CUT] else 1))
            elif index == 2:
                index = end - 1
        if index + 1 < loops[k, LAST]:
            last[d] = 0
        if dims[d, RANK] >= 0:
            boxes[LOW, dims[d, RANK]] += index * loops[k, TILE] * dims[d, COEFFICIENT]
    return weight


@kernel(i8(matrix(i8), array(i8), i8, matrix(i8)), no_refcount=True)
def measure(dims: Ints, last: Ints, column: int, boxes: Ints) -> int:
    """Fill in the extents of a tile; return its words."""
    boxes[EXTENT] = 1
    for d in range(dims.shape[0]):
        if dims[d, RANK] >= 0:
            size = dims[d, column]
            if last[d]:
                size = left_over(dims[d, BOUND], size)
            boxes[EXTENT, dims[d, RANK]] += (size - 1) * dims[d, COEFFICIENT]
    words = 1
    for rank in range(boxes.shape[1]):
        words *= int(boxes[EXTENT, rank])
    return words


@kernel(i8(matrix(i8), i8))
def step_to(boxes: Ints, moving: int) -> int:
    """Fill in what is new of the tile; return whether the tile moves on by one vector.

    A tile that moved by the vector of the step before holds the overlap, if the rest is a box.
    """
    low, held = boxes[LOW], boxes[HELD_LOW]
    end, held_end = low + boxes[EXTENT], held + boxes[HELD_EXTENT]
    differs = (low != held) | (end != held_end)
    boxes[NEW_LOW], boxes[NEW_EXTENT] = low, boxes[EXTENT]
    if not differs.any():
        boxes[NEW_EXTENT] = 0
    else:
        vector = low - held
        is_first = boxes[HELD_EXTENT, 0] == 0
        moving = not is_first and (not moving or np.array_equal(vector, boxes[VECTOR]))
        if moving:
            boxes[VECTOR] = vector
            if differs.sum() == 1 and ((held_end > low) & (held < end)).all():
                rank = np.argmax(differs)
                if held[rank] <= low[rank]:
                    boxes[NEW_LOW, rank] = held_end[rank]
                    boxes[NEW_EXTENT, rank] = max(0, end[rank] - held_end[rank])
                else:
                    boxes[NEW_EXTENT, rank] = held[rank] - low[rank]
    boxes[HELD_LOW], boxes[HELD_EXTENT] = low, boxes[EXTENT]
    return moving


@kernel(i8(matrix(i8), matrix(i8), array(i8), array(i8), matrix(i8)), no_refcount=True)
def spread_out(spatial: Ints, dims: Ints, ends: Ints, radix: Ints, elements: Ints) -> int:
    """Fill in the origins of the tiles of all elements; return the number of elements."""
    active = 1
    for k in range(spatial.shape[0]):
        active *= ends[k]
    for e in range(active):
        rest, code = e, 0
        for k in range(spatial.shape[0] - 1, -1, -1):
            d = spatial[k, DIM]
            if dims[d, RANK] >= 0:
                step = spatial[k, TILE] * dims[d, COEFFICIENT]
                code += rest % ends[k] * step * radix[dims[d, RANK]]
            rest //= ends[k]
        elements[CODE, e] = code
        first = 0
        while elements[CODE, first] != code:
            first += 1
        elements[SAME_AS, e] = first
    return active


@kernel(i8(matrix(i8), i8, i8, i8, i8, i8), no_refcount=True)
def handed_over(elements: Ints, e: int, before: int, shift: int, columns: int, rows: int) -> int:
    """Return whether a neighbour had the words of this element a step before."""
    code = elements[CODE, e] + shift
    column, row = e % columns, e // columns
    for there, linked in (
        (e - columns, row > 0),
        (e + columns, row + 1 < rows),
        (e - 1, column > 0),
        (e + 1, column + 1 < columns),
    ):
        if linked and there < before and elements[CODE_BEFORE, there] == code:
            return 1
    return 0


@kernel(i8(matrix(i8), i8, i8, i8, i8, i8, i8, i8, i8, array(i8)), no_refcount=True)
def fan_out_words(
    elements: Ints,
    active: int,
    before: int,
    shift: int,
    columns: int,
    rows: int,
    linked: int,
    step: int,
    words: int,
    found: Ints,
) -> int:
    """Add up the words that leave for the elements, arrive, and come from neighbours."""
    tiles = left = given = 0
    for e in range(active):
        tiles += elements[SAME_AS, e] == e
        if linked and handed_over(elements, e, before, shift, columns, rows):
            given += 1
        elif elements[STAMP, elements[SAME_AS, e]] != step:
            elements[STAMP, elements[SAME_AS, e]] = step
            left += 1
    if left == tiles:
        given = 0
    found[SENT] += words * left
    found[RECEIVED] += words * (active - given)
    found[LINKED] += words * given
    return left


@kernel(i8(matrix(i8), array(i8), array(i8)), no_refcount=True)
def runs_of(spatial: Ints, last: Ints, ends: Ints) -> int:
    """Fill in the iterations of spatial loops at the current place; return the elements."""
    active = 1
    for k in range(spatial.shape[0]):
        d = spatial[k, DIM]
        ends[k] = spatial[k, LAST] if last[d] else spatial[k, TIMES]
        last[d] = last[d] and spatial[k, LAST] == 1
        active *= ends[k]
    return active


@kernel(i8(array(i8), array(i8)), no_refcount=True)
def advance(at: Ints, count: Ints) -> int:
    """Advance to the next walked iterations, innermost first; return whether any are left."""
    for k in range(at.size - 1, -1, -1):
        at[k] += 1
        if at[k] < count[k]:
            return 1
        at[k] = 0
    return 0


@kernel(i8(matrix(i8), matrix(i8), matrix(i8), array(i8), array(i8), array(i8)))
def walk(loops: Ints, spatial: Ints, dims: Ints, radix: Ints, wiring: Ints, found: Ints) -> int:
    """Walk the iterations outside a child's tile and fill in what is found; return the steps.

    `loops` are those outside the child, outermost first, without those that spread it out: these
    are `spatial`, slowest first. A `radix` by rank tells corners of boxes apart by one number;
    `wiring` is columns, rows, whether neighbours are linked, whether the child multiplies; `found`
    is zero.
    """
    depth = loops.shape[0]
    columns, rows, links, multiplies = wiring[0], wiring[1], wiring[2], wiring[3]
    at, count = np.zeros(depth, np.int64), np.ones(depth, np.int64)
    last = np.zeros(dims.shape[0], np.int64)
    ends, laid_out = np.zeros(spatial.shape[0], np.int64), np.zeros(spatial.shape[0], np.int64)
    boxes = np.zeros((8, radix.size), np.int64)
    elements = np.zeros((4, runs_of(spatial, last, ends)), np.int64)
    spread_out(spatial, dims, ends, radix, elements)
    step = moving = before = corner = second = 0
    while True:
        step += 1
        weight = go_to(loops, dims, at, count, last, boxes)
        found[LARGEST_BLOCK] = max(found[LARGEST_BLOCK], measure(dims, last, BLOCK, boxes))
        active = runs_of(spatial, last, ends)
        found[LARGEST] = max(found[LARGEST], measure(dims, last, INSIDE, boxes))
        if multiplies:
            boxes[NEW_LOW], boxes[NEW_EXTENT] = boxes[LOW], boxes[EXTENT]
        else:
            moving = step_to(boxes, moving)
        words, shift, same = 1, -corner, 1
        for rank in range(radix.size):
            words *= boxes[NEW_EXTENT, rank]
            shift += boxes[NEW_LOW, rank] * radix[rank]
            same = same and boxes[NEW_EXTENT, rank] == boxes[SENT_EXTENT, rank]
        if depth and loops[depth - 1, KIND] == NEXT:
            if at[depth - 1] == 1:
                second = words
            elif at[depth - 1] == 2:
                words = second
        if not np.array_equal(ends, laid_out):
            spread_out(spatial, dims, ends, radix, elements)
            laid_out[:] = ends
        fan_out_words(
            elements,
            active,
            before,
            shift,
            columns,
            rows,
            links and same and words,
            step,
            weight * words,
            found,
        )
        found[STEPS] += weight
        found[ACTIVE] += weight * active
        before, corner = active, corner + shift
        boxes[SENT_EXTENT] = boxes[NEW_EXTENT]
        elements[CODE_BEFORE] = elements[CODE]
        if not advance(at, count):
            return step


FOUND = 7
APART = 4
"""Corners of boxes are never further apart than the tensor, in either direction, twice over."""

Loop = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Level:
    """Loops of a level, outermost first, and the tiles inside its spatial and all its loops."""

    temporal: tuple[Loop, ...]
    spatial: tuple[Loop, ...]
    block: tuple[int, ...]
    tile: tuple[int, ...]

    @property
    def fan_out(self) -> int:
        """Children of an instance."""
        return math.prod(loop[1] for loop in self.spatial)


def extrapolated(
    mapping: LoopNest, layer: Layer, accelerator: Accelerator, exact: Evaluation, *, links: bool
) -> Evaluation:
    """Return an evaluation with the counts, energy and cycles of Timeloop.

    `links`: elements pass words to the neighbours in their row and column.
    """
    levels, energy_pj = _levels(mapping, layer), machine_of(accelerator).energy_pj
    found = {
        name: _walks(
            tensor,
            levels,
            layer,
            accelerator,
            [links and name in one.keep for one in mapping.levels[1:]] + [links],
        )
        for name, tensor in zip(TENSORS, layer.tensors, strict=True)
    }
    fan_out = [one.fan_out for one in levels]
    shares = [Fraction(int(walks[ACTIVE]), int(walks[STEPS])) for walks in found[TENSORS[0]]]
    reached = list(itertools.accumulate(shares, lambda a, b: a * b, initial=Fraction(1)))
    in_use = [math.floor(instances) for instances in reached]
    counts = {
        name: _counts(
            found[name],
            tensor.words(layer.extents),
            [name in one.keep for one in mapping.levels],
            fan_out,
            in_use,
            output=tensor.output,
        )
        for name, tensor in zip(TENSORS, layer.tensors, strict=True)
    }
    names = [level.name for level in accelerator.levels]
    lines = [
        _recounted(line, counts[line.tensor][k], in_use[k], accelerator.levels[k], energy_pj[k])
        for line in exact.traffic
        for k in (names.index(line.level),)
    ]
    # Instances of the innermost level are counted in full, their multipliers on average.
    multiplies = float(exact.compute_cycles * in_use[-2] * shares[-1] / exact.macs)
    result = totalled(exact, lines, accelerator, multiplies=multiplies)
    there = itertools.accumulate(fan_out, lambda a, b: a * b, initial=1)
    idle_pj = sum(
        float(row[LEAK]) * (instances - used)
        for row, instances, used in zip(energy_pj, there, in_use, strict=True)
    )
    return dataclasses.replace(result, energy_pj=result.energy_pj - idle_pj * result.cycles)


def _recounted(
    line: Traffic, words: tuple[int, int, int], instances: int, level: Level, energy_pj: Floats
) -> Traffic:
    """Return a line with other counts of an instance, and other instances."""
    reads, fills, updates = words
    spent_pj = sum(
        float(energy_pj[action]) * -(-words[action] // level.block_words)
        for action in (READS, FILLS, UPDATES)
    )
    return dataclasses.replace(
        line,
        reads=reads,
        fills=fills,
        updates=updates,
        instances=instances,
        totals=(reads * instances, fills * instances, updates * instances),
        energy_pj=spent_pj * instances,
    )


def _levels(mapping: LoopNest, layer: Layer) -> list[_Level]:
    """Return the loops with more than one iteration and the tiles inside them; Y is outside X."""
    tile = [1] * len(layer.dims)

    def outwards(loops: tuple[tuple[str, int], ...]) -> tuple[Loop, ...]:
        found = []
        for dim, times in reversed(loops):
            if times > 1:
                d = layer.dims.index(dim)
                left = (layer.bounds[d] - 1) % (tile[d] * times) + 1
                found.append((d, times, (left - 1) // tile[d] + 1, tile[d]))
                tile[d] *= times
        return tuple(reversed(found))

    levels = []
    for one in reversed(mapping.levels):
        spatial = outwards((*one.spatial_y, *one.spatial_x))
        block = tuple(tile)
        levels.append(_Level(outwards(one.temporal), spatial, block, tuple(tile)))
    return levels[::-1]


def _walks(
    tensor: Tensor, levels: list[_Level], layer: Layer, accelerator: Accelerator, linked: list[bool]
) -> list[Ints]:
    """Return the counts of a walk between each level and the next; multipliers come last.

    `linked`: whether the elements of each next level pass words of the tensor to neighbours.
    """
    ranks = {
        layer.dims.index(dim): (r, c) for r, rank in enumerate(tensor.ranks) for dim, c in rank
    }
    whole = [
        1 + sum((levels[0].tile[layer.dims.index(dim)] - 1) * c for dim, c in rank)
        for rank in tensor.ranks
    ]
    radix = [math.prod(APART * extent for extent in whole[r + 1 :]) for r in range(len(whole))]
    cut = {
        d for one in levels for d, times, last, _ in (*one.temporal, *one.spatial) if times != last
    }
    meshes = [*(level.mesh for level in accelerator.levels), accelerator.mac.mesh]
    outside: list[tuple[int, ...]] = []
    found = []
    for k, one in enumerate(levels):
        child = levels[k + 1].tile if k + 1 < len(levels) else (1,) * len(layer.dims)
        own = [(*loop, IN_TIME) for loop in one.temporal]
        loops = [*outside, *own]
        if own and not one.spatial and k + 1 < len(levels):
            loops[-1] = (*one.temporal[-1], NEXT)
        dims = [
            (bound, child[d], one.block[d], int(d in cut), *ranks.get(d, (-1, 0)))
            for d, bound in enumerate(layer.bounds)
        ]
        wires = (meshes[k + 1][0] // meshes[k][0], meshes[k + 1][1] // meshes[k][1])
        counts = np.zeros(FOUND, np.int64)
        walk(
            np.array(loops, np.int64).reshape(-1, 5),
            np.array(one.spatial, np.int64).reshape(-1, 4),
            np.array(dims, np.int64),
            np.array(radix, np.int64),
            np.array([*wires, int(linked[k]), int(k + 1 == len(levels))], np.int64),
            counts,
        )
        found.append(counts)
        outside += [*own, *((*loop, STILL) for loop in one.spatial)]
    return found


def _counts(
    walks: list[Ints],
    words: int,
    kept: list[bool],
    fan_out: list[int],
    in_use: list[int],
    *,
    output: bool,
) -> list[tuple[int, int, int]]:
    """Return reads, fills and updates of an instance, by level.

    By level: what was found between it and the next, whether it keeps the tensor, the children of
    an instance, and the instances in use on average.
    """
    sent = [float(found[SENT]) for found in walks]
    linked = [int(found[LINKED]) for found in walks]
    for k in range(len(walks) - 1, 0, -1):
        if not kept[k]:
            sent[k - 1] *= sent[k] * fan_out[k - 1] / float(walks[k - 1][RECEIVED])
    counts = []
    share = words
    for k in range(len(walks)):
        came, handed = 0.0, 0
        if k:
            before = walks[k - 1]
            handed = linked[k - 1] // in_use[k]
            came = float(before[RECEIVED]) / fan_out[k - 1] + handed
            share = share * int(before[LARGEST]) // int(before[LARGEST_BLOCK])
        if not any(kept[:k]):
            came = 0.0
        elif output:
            came = max(0, round(came - share))  # averaged over idle elements, it may be less
        reads = max(0.0, sent[k] + handed - (share if output else 0))
        counts.append((round(reads), int(came), round(sent[k]) if output else 0))
    return counts
