"""Walks every instance and iteration of a nest whose last tiles may be smaller, and counts words.

Independent of the closed form: coordinates past the end of a dimension do not exist, an instance
without any coordinate is idle, and of tiles that begin at one place a network sends the largest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from simulators.catalog.accelerator import TENSORS
from simulators.dataflow.evaluation import Evaluation
from simulators.dataflow.mapping import LoopNest
from simulators.workload.loop_nest import Layer, Tensor
from tests.dataflow.interpreter import Counts, Loop, Word, loops_of

Indices = tuple[int, ...]
Arrivals = dict[tuple[Indices, Indices], int]
"""Words by instance and time."""


def walk(layer: Layer, mapping: LoopNest, *, only_first: bool) -> Counts:
    """Return reads, fills and updates by level and tensor: of first instances, or of all."""
    loops, depth = loops_of(mapping), len(mapping.levels)
    counts: Counts = {}
    for name, tensor in zip(TENSORS, layer.tensors, strict=True):
        keepers = [k for k, level in enumerate(mapping.levels) if name in level.keep]
        fills = 0
        for parent, child in zip(keepers, [*keepers[1:], depth], strict=True):
            came = _arrivals(layer, tensor, loops, child, depth)
            sent = _sent(tensor, loops, parent, child, came, only_first)
            own = _seen(layer, tensor, loops, parent, only_first) if tensor.output else 0
            reads, updates = (sent - own, sent) if tensor.output else (sent, 0)
            counts[mapping.levels[parent].level, name] = (reads, fills, updates)
            fills = sum(n for (where, _), n in came.items() if not only_first or not any(where))
            if tensor.output:
                fills -= _seen(layer, tensor, loops, child, only_first)
    return counts


def cycles(layer: Layer, mapping: LoopNest) -> int:
    """Return the iterations in which any multiplier works."""
    loops, depth = loops_of(mapping), len(mapping.levels)
    tensor = layer.tensors[0]
    return len({when for _, when in _arrivals(layer, tensor, loops, depth, depth)})


def _ranges(
    layer: Layer, chosen: Sequence[tuple[Loop, int]], loops: Sequence[Loop], level: int
) -> dict[str, range] | None:
    """Return the coordinates of a tile by dimension, or None if it has none."""
    low = dict.fromkeys(layer.dims, 0)
    size = dict.fromkeys(layer.dims, 1)
    for loop, index in chosen:
        low[loop.dim] += index * loop.stride
    for loop in loops:
        if loop.level >= level:
            size[loop.dim] *= loop.bound
    found = {d: range(low[d], min(low[d] + size[d], n)) for d, n in layer.extents.items()}
    return found if all(found.values()) else None


def _words(tensor: Tensor, found: dict[str, range]) -> set[Word]:
    """Return the words of a tile, gaps of a stride included."""
    spans = [
        range(sum(c * found[d][0] for d, c in rank), sum(c * found[d][-1] for d, c in rank) + 1)
        for rank in tensor.ranks
    ]
    return set(itertools.product(*spans))


def _every(loops: Sequence[Loop]) -> list[Indices]:
    return list(itertools.product(*(range(loop.bound) for loop in loops)))


def _arrivals(layer: Layer, tensor: Tensor, loops: list[Loop], child: int, depth: int) -> Arrivals:
    """Return the words that arrive at each instance at each time at which it works."""
    space = [loop for loop in loops if loop.level < child and loop.spatial]
    time = [loop for loop in loops if loop.level < child and not loop.spatial]
    matters = [k for k, loop in enumerate(time) if loop.bound > 1 and loop.dim in tensor.dims]
    came: Arrivals = {}
    for where in _every(space):
        held: set[Word] = set()
        before: Indices | None = None
        for when in _every(time):
            chosen = [*zip(space, where, strict=True), *zip(time, when, strict=True)]
            found = _ranges(layer, chosen, loops, child)
            if found is None:
                continue
            tile = _words(tensor, found)
            words = len(tile)
            if child == depth:
                words = 1
            elif before is not None:
                stepped = next(k for k in range(len(when)) if when[k] != before[k])
                if not matters or stepped > matters[-1]:
                    words = 0
                elif stepped == matters[-1]:
                    words = len(tile - held)
            came[where, when] = words
            held, before = tile, when
    return came


def _sent(
    tensor: Tensor, loops: list[Loop], parent: int, child: int, came: Arrivals, only_first: bool
) -> int:
    """Return the words that leave parents: fan-out by fan-out, equal beginnings once."""
    times = {when for _, when in came}

    def fork(level: int, where: Indices, when: Indices) -> int:
        if level == child:
            return came.get((where, when), 0)
        spread = [loop for loop in loops if loop.level == level and loop.spatial]
        largest: dict[Word, int] = {}
        for here in _every(spread):
            at = dict.fromkeys(tensor.dims, 0)
            for loop, index in zip(spread, here, strict=True):
                if loop.dim in at:
                    at[loop.dim] += index * loop.stride
            begin = tuple(sum(c * at[d] for d, c in rank) for rank in tensor.ranks)
            words = fork(level + 1, (*where, *here), when)
            largest[begin] = max(largest.get(begin, 0), words)
        return sum(largest.values())

    outside = _every([loop for loop in loops if loop.level < parent and loop.spatial])
    if only_first:
        outside = outside[:1]
    return sum(fork(parent, where, when) for where in outside for when in times)


def _seen(layer: Layer, tensor: Tensor, loops: list[Loop], level: int, only_first: bool) -> int:
    """Return the different words that instances of a level ever see."""
    space = [loop for loop in loops if loop.level < level and loop.spatial]
    time = [loop for loop in loops if loop.level < level and not loop.spatial]
    total = 0
    for where in _every(space)[: 1 if only_first else None]:
        seen: set[Word] = set()
        for when in _every(time):
            chosen = [*zip(space, where, strict=True), *zip(time, when, strict=True)]
            if found := _ranges(layer, chosen, loops, level):
                seen |= _words(tensor, found)
        total += len(seen)
    return total


def check_walked(result: Evaluation, layer: Layer, mapping: LoopNest) -> None:
    """Hold counts to those of a walk: of the first tile, of all, and cycles."""
    first = {(t.level, t.tensor): (t.reads, t.fills, t.updates) for t in result.traffic}
    assert first == walk(layer, mapping, only_first=True)
    assert {(t.level, t.tensor): t.totals for t in result.traffic} == walk(
        layer, mapping, only_first=False
    )
    assert result.compute_cycles == cycles(layer, mapping)
