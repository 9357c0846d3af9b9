"""Timeloop's counts of a mapping: it walks a few iterations of each loop and extrapolates.

Words between neighbouring levels come from a walk of the first instance (`timeloop_walk`). Fills
are averages over the whole fan-out, idle elements included. A level that bypasses a tensor passes
on the words of its children, scaled by the average share of the words sent to it that arrive. Words
that linked elements exchange are read and filled in these elements, averaged over the elements in
use. Where bounds divide and no halo outlives a loop, the counts equal those of `dataflow.access`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lab.parity import timeloop_walk as sampled
from simulators.catalog.accelerator import TENSORS, Accelerator, Level
from simulators.core.jit import Floats, Ints
from simulators.dataflow import access as at
from simulators.dataflow.evaluation import Evaluation, Traffic, machine_of, totalled
from simulators.dataflow.mapping import LoopNest
from simulators.workload.loop_nest import Layer, Tensor

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
    """Return an evaluation with the counts, energy and cycles that Timeloop has.

    `links`: elements hand words to the neighbours in their row and column.
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
    shares = [
        Fraction(int(walks[sampled.ACTIVE]), int(walks[sampled.STEPS]))
        for walks in found[TENSORS[0]]
    ]
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
        float(row[at.LEAK]) * (instances - used)
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
        for action in (at.READS, at.FILLS, at.UPDATES)
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
    """Return the loops that iterate with the tiles inside them; Y is outside X."""
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
    """Return what walks find between each level and the next, the multipliers last.

    `linked` says of each next level whether its elements hand on what they have of the tensor.
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
        own = [(*loop, sampled.IN_TIME) for loop in one.temporal]
        loops = [*outside, *own]
        if own and not one.spatial and k + 1 < len(levels):
            loops[-1] = (*one.temporal[-1], sampled.NEXT)
        dims = [
            (bound, child[d], one.block[d], int(d in cut), *ranks.get(d, (-1, 0)))
            for d, bound in enumerate(layer.bounds)
        ]
        wires = (meshes[k + 1][0] // meshes[k][0], meshes[k + 1][1] // meshes[k][1])
        counts = np.zeros(FOUND, np.int64)
        sampled.walk(
            np.array(loops, np.int64).reshape(-1, 5),
            np.array(one.spatial, np.int64).reshape(-1, 4),
            np.array(dims, np.int64),
            np.array(radix, np.int64),
            np.array([*wires, int(linked[k]), int(k + 1 == len(levels))], np.int64),
            counts,
        )
        found.append(counts)
        outside += [*own, *((*loop, sampled.STILL) for loop in one.spatial)]
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
    sent = [float(found[sampled.SENT]) for found in walks]
    linked = [int(found[sampled.LINKED]) for found in walks]
    for k in range(len(walks) - 1, 0, -1):
        if not kept[k]:
            sent[k - 1] *= sent[k] * fan_out[k - 1] / float(walks[k - 1][sampled.RECEIVED])
    counts = []
    share = words
    for k in range(len(walks)):
        came, handed = 0.0, 0
        if k:
            before = walks[k - 1]
            handed = linked[k - 1] // in_use[k]
            came = float(before[sampled.RECEIVED]) / fan_out[k - 1] + handed
            share = share * int(before[sampled.LARGEST]) // int(before[sampled.LARGEST_BLOCK])
        if not any(kept[:k]):
            came = 0.0
        elif output:
            came = max(0, round(came - share))  # averaged over idle elements, it may be less
        reads = max(0.0, sent[k] + handed - (share if output else 0))
        counts.append((round(reads), int(came), round(sent[k]) if output else 0))
    return counts
