"""Walks every iteration of a tiny nest and counts the words that arrive where they were not.

Written from the meaning of the loops, not from the closed form: buffers hold sets of coordinates, a
tile that moves along its innermost loop keeps what it still needs, a loop further out fills it
again, and a network sends a word once to all that want it at one time, fan-out by fan-out.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from simulators.catalog.accelerator import TENSORS
from simulators.dataflow.mapping import LoopNest
from simulators.workload.loop_nest import Layer, Rank, Tensor

Word = tuple[int, ...]
Counts = dict[tuple[str, str], tuple[int, int, int]]


@dataclass(frozen=True)
class Loop:
    level: int
    dim: str
    bound: int
    spatial: bool
    stride: int  # iterations of the dimension that one step of this loop moves by


def interpret(layer: Layer, mapping: LoopNest) -> Counts:
    """Return reads, fills and updates per instance, by level and tensor."""
    loops, depth = loops_of(mapping), len(mapping.levels)
    counts: Counts = {}
    for name, tensor in zip(TENSORS, layer.tensors, strict=True):
        keepers = [k for k, level in enumerate(mapping.levels) if name in level.keep]
        fills = 0
        for parent, child in zip(keepers, [*keepers[1:], depth], strict=True):
            arrived = _arrivals(tensor, loops, child, depth)
            sent = arrived
            for level in range(parent, child):
                sent *= _different(tensor, loops, level)
            own = len(_ever(tensor, loops, parent)) if tensor.output else 0
            reads, updates = (sent - own, sent) if tensor.output else (sent, 0)
            counts[mapping.levels[parent].level, name] = (reads, fills, updates)
            fills = arrived
            if tensor.output:
                fills -= len(_ever(tensor, loops, child))
    return counts


def loops_of(mapping: LoopNest) -> list[Loop]:
    """Return all loops, outermost first."""
    plain = [
        (k, dim, bound, spatial)
        for k, level in enumerate(mapping.levels)
        for spatial, found in (
            (False, level.temporal),
            (True, (*level.spatial_x, *level.spatial_y)),
        )
        for dim, bound in found
    ]
    strides: dict[str, int] = {}
    loops = []
    for level, dim, bound, spatial in reversed(plain):
        loops.append(Loop(level, dim, bound, spatial, strides.get(dim, 1)))
        strides[dim] = strides.get(dim, 1) * bound
    return loops[::-1]


def _arrivals(tensor: Tensor, loops: list[Loop], child: int, depth: int) -> int:
    """Return the words that arrive at one instance of a level, or of the multipliers."""
    moving = [loop for loop in loops if loop.level < child and not loop.spatial]
    inside = {}
    for loop in loops:
        if loop.level >= child:
            inside[loop.dim] = inside.get(loop.dim, 1) * loop.bound
    matters = [k for k, loop in enumerate(moving) if loop.dim in tensor.dims]
    arrived, held, before = 0, set[Word](), None
    for now in itertools.product(*(range(loop.bound) for loop in moving)):
        tile = _tile(tensor, moving, now, inside)
        if child == depth:
            arrived += 1  # no latch at the multiplier: each multiply asks again
        elif before is None:
            arrived += len(tile)
        elif matters:
            stepped = next(k for k in range(len(now)) if now[k] != before[k])
            if stepped == matters[-1]:
                arrived += len(tile - held)
            elif stepped < matters[-1]:
                arrived += len(tile)
        held, before = tile, now
    return arrived


def _tile(
    tensor: Tensor, moving: list[Loop], now: tuple[int, ...], inside: dict[str, int]
) -> set[Word]:
    """Return the coordinates of a tile, gaps of a stride included."""
    at: dict[str, int] = {}
    for loop, index in zip(moving, now, strict=True):
        at[loop.dim] = at.get(loop.dim, 0) + index * loop.stride

    def values(rank: Rank) -> range:
        low = sum(coef * at.get(dim, 0) for dim, coef in rank)
        return range(low, low + 1 + sum(coef * (inside.get(dim, 1) - 1) for dim, coef in rank))

    return set(itertools.product(*(values(rank) for rank in tensor.ranks)))


def _different(tensor: Tensor, loops: list[Loop], level: int) -> int:
    """Return how many different tiles the instances of one fan-out want at one time."""
    across = [loop for loop in loops if loop.spatial and loop.level == level]
    return len(
        {
            min(_tile(tensor, across, now, {}))
            for now in itertools.product(*(range(loop.bound) for loop in across))
        }
    )


def _ever(tensor: Tensor, loops: list[Loop], level: int) -> set[Word]:
    """Return all words one instance of a level ever sees."""
    mine = [
        loop
        for loop in loops
        if loop.dim in tensor.dims and (not loop.spatial or loop.level >= level)
    ]
    seen: set[Word] = set()
    for now in itertools.product(*(range(loop.bound) for loop in mine)):
        seen |= _tile(tensor, mine, now, {})
    return seen
