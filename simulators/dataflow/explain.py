"""Why a count is what it is: the loop that moves a tile, what it shares, and what multiplies it.

The same rules as the closed form, told in words, one line for each level and tensor.
"""

from __future__ import annotations

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.jit import Ints
from simulators.dataflow.access import (
    AFTER,
    BOUND,
    DIM,
    FEASIBLE,
    LEVEL,
    Work,
    count,
    deliveries,
    distinct_in_stages,
    distinct_tiles,
    lay_out,
    work_for,
)
from simulators.dataflow.energy import VERDICTS, machine_of
from simulators.dataflow.mapping import Mapping, encode, nest_of
from simulators.workload.convolution import Layer


def explained(mapping: Mapping, layer: Layer, accelerator: Accelerator) -> str:
    """Return a line per level and tensor: its counts, and the factors they are the product of."""
    loops, keep = encode(mapping, layer, accelerator)
    nest, machine = nest_of(layer), machine_of(accelerator)
    work = work_for(keep.size, len(layer.dims))
    temporal = lay_out(nest, machine, loops, keep, work)
    if temporal < FEASIBLE:
        return f"infeasible: {VERDICTS[-temporal]}"
    counts = np.zeros((keep.size, len(TENSORS), 3), np.int64)
    compute = count(nest, machine, loops, keep, work, temporal, counts)
    names = [*(level.name for level in accelerator.levels), "mac"]
    lines = []
    for t, tensor in enumerate(TENSORS):
        kept = [k for k in range(keep.size) if int(keep[k]) >> t & 1]
        for level, child in zip(kept, [*kept[1:], keep.size], strict=True):
            if child == keep.size:
                arrive, why = compute, "one word per cycle, no latch"
            else:
                arrive = deliveries(nest.terms, nest.home, nest.coef, t, work, child, temporal)
                why = _why(t, child, temporal, layer, names, nest.home, work)
            copies = 1
            for fan in range(level, child):
                copies *= (
                    distinct_in_stages(nest.terms, t, loops, work.extents, fan)
                    if accelerator.levels[fan].staged
                    else distinct_tiles(nest.terms, t, work.spread, work.extents, fan)
                )
            reads, fills, updates = (int(n) for n in counts[level, t])
            lines.append(
                f"{names[level]} {tensor}: {reads:,} reads, {fills:,} fills, {updates:,} updates\n"
                f"  to each {names[child]}: {int(arrive):,} = {why}\n"
                f"  different tiles among them: {copies:,}; together {int(arrive) * copies:,}"
            )
    return "\n".join(lines)


def _why(
    tensor: int, child: int, temporal: int, layer: Layer, names: list[str], home: Ints, work: Work
) -> str:
    tile = int(work.tiles[child, tensor])
    k = int(work.first[child])
    skipped = []
    while k < temporal and home[tensor, work.loops[k, DIM]] < 0:
        skipped.append(f"{layer.dims[int(work.loops[k, DIM])]} {int(work.loops[k, BOUND])}")
        k += 1
    reused = f", reused over {', '.join(skipped)}" if skipped else ""
    if k == temporal:
        return f"the tile of {tile:,} once{reused}"
    dim, bound = layer.dims[int(work.loops[k, DIM])], int(work.loops[k, BOUND])
    outer, level = int(work.loops[k, AFTER]), names[int(work.loops[k, LEVEL])]
    return (
        f"{outer:,} x (the tile of {tile:,} + {bound - 1} steps of {dim} at {level}, "
        f"of which only what is new{reused})"
    )
