"""Why a count is what it is: the loop that moves a tile, what it shares, and what multiplies it.

The same rules as the closed form, told in words, one line for each level and tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.contract import Contribution
from simulators.core.jit import Ints
from simulators.dataflow.access import (
    AFTER,
    BOUND,
    DIM,
    FEASIBLE,
    LEVEL,
    STAGED,
    Machine,
    Nest,
    Work,
    count,
    deliveries,
    distinct_in_stages,
    distinct_tiles,
    lay_out,
    work_for,
)
from simulators.dataflow.energy import VERDICTS, Evaluation, level_cycles, machine_of
from simulators.dataflow.mapping import Mapping, encode, nest_of
from simulators.dataflow.remainders import DISTINCT, FIRST, count_cut, words_moved
from simulators.workload.loop_nest import Layer

PJ_PER_J = 1e12


@dataclass(frozen=True)
class Reason:
    """How the words of one tensor come from one level to the next that keeps it."""

    level: str
    tensor: str
    child: str
    arrive: int  # at one child
    sent: int  # by one instance of the level
    why: str


def explained(mapping: Mapping, layer: Layer, accelerator: Accelerator) -> str:
    """Return a line per level and tensor: its counts, and the factors they are the product of."""
    loops, keep = encode(mapping, layer, accelerator)
    counted = _counted(loops, keep, layer, accelerator)
    if isinstance(counted, str):
        return f"infeasible: {counted}"
    _, counts, _ = counted
    names = [level.name for level in accelerator.levels]
    lines = []
    for reason in reasons(mapping, layer, accelerator):
        words = counts[names.index(reason.level), TENSORS.index(reason.tensor)]
        reads, fills, updates = (int(n) for n in words)
        lines.append(
            f"{reason.level} {reason.tensor}: "
            f"{reads:,} reads, {fills:,} fills, {updates:,} updates\n"
            f"  to each {reason.child}: {reason.arrive:,} = {reason.why}\n"
            f"  to all that differ: {reason.sent:,}"
        )
    return "\n".join(lines)


def reasons(mapping: Mapping, layer: Layer, accelerator: Accelerator) -> Iterator[Reason]:
    """Yield how each tensor moves between levels that keep it; nothing of an infeasible mapping."""
    loops, keep = encode(mapping, layer, accelerator)
    nest, machine = nest_of(layer), machine_of(accelerator)
    counted = _counted(loops, keep, layer, accelerator)
    if isinstance(counted, str):
        return
    work, _, compute = counted
    temporal = lay_out(nest, machine, loops, keep, work)
    names = [*(level.name for level in accelerator.levels), "mac"]
    for t, tensor in enumerate(TENSORS):
        kept = [k for k in range(keep.size) if int(keep[k]) >> t & 1]
        for level, child in zip(kept, [*kept[1:], keep.size], strict=True):
            cut = bool(work.cut[0])
            if child == keep.size:
                arrive, why = compute, "one word per cycle, no latch"
            elif cut:
                arrive = words_moved(nest, machine, loops, work, t, level, child, FIRST, FIRST)
                why = _why(t, child, temporal, layer, names, nest.home, work) + ", the last smaller"
            else:
                arrive = deliveries(nest.terms, nest.home, nest.coef, t, work, child, temporal)
                why = _why(t, child, temporal, layer, names, nest.home, work)
            if cut:
                sent = words_moved(nest, machine, loops, work, t, level, child, FIRST, DISTINCT)
            else:
                sent = int(arrive) * _copies(nest, machine, loops, work, t, level, child)
            yield Reason(names[level], tensor, names[child], int(arrive), int(sent), why)


def contributions(
    layer: Layer, times: int, mapping: Mapping, evaluation: Evaluation, accelerator: Accelerator
) -> list[Contribution]:
    """Return one line per level and tensor, one of multiplies, and one of what else costs energy.

    The time of the layer stands at what sets its pace: the multipliers, or the slowest level.
    """
    why = {(r.level, r.tensor): r.why for r in reasons(mapping, layer, accelerator)}
    time_s = times * evaluation.cycles / accelerator.clock_hz
    pace = "mac"
    if evaluation.cycles > evaluation.compute_cycles:
        pace = _slowest(evaluation, accelerator)
    bits = {level.name: level.word_bits for level in accelerator.levels}
    lines = [
        Contribution(
            phase=layer.name, name="mac", count=times, time_s=time_s if pace == "mac" else 0.0,
            energy_j=times * evaluation.mac_energy_pj / PJ_PER_J, flops=2.0 * times * layer.macs,
            bound="compute", note=f"{evaluation.utilization:.0%} of the multipliers at work",
        )
    ]  # fmt: skip
    rest_pj = evaluation.energy_pj - evaluation.mac_energy_pj
    for line in evaluation.traffic:
        rest_pj -= line.energy_pj
        first = pace == line.level and not any(c.time_s for c in lines)
        lines.append(
            Contribution(
                phase=layer.name, name=f"{line.level} {line.tensor}", count=times,
                time_s=time_s if first else 0.0, energy_j=times * line.energy_pj / PJ_PER_J,
                moved_bytes=times * sum(line.totals) * bits[line.level] / 8, bound="memory",
                note=why[line.level, line.tensor],
            )
        )  # fmt: skip
    lines.append(
        Contribution(
            phase=layer.name, name="leakage and network", count=times,
            energy_j=times * rest_pj / PJ_PER_J, note="zero unless an accelerator states them",
        )
    )  # fmt: skip
    return lines


def _counted(
    loops: Ints, keep: Ints, layer: Layer, accelerator: Accelerator
) -> tuple[Work, Ints, int] | str:
    """Return a mapping laid out, its counts and its cycles, or why it is infeasible."""
    nest, machine = nest_of(layer), machine_of(accelerator)
    work = work_for(keep.size, len(layer.dims))
    temporal = lay_out(nest, machine, loops, keep, work)
    if temporal < FEASIBLE:
        return VERDICTS[-temporal]
    counts = np.zeros((keep.size, len(TENSORS), 3), np.int64)
    if work.cut[0]:
        return work, counts, count_cut(nest, machine, loops, keep, work, counts)
    return work, counts, count(nest, machine, loops, keep, work, temporal, counts)


def _copies(
    nest: Nest, machine: Machine, loops: Ints, work: Work, tensor: int, level: int, child: int
) -> int:
    """Return how many different tiles go from one instance to its children at a time."""
    copies = 1
    for fan in range(level, child):
        if machine.sizes[fan, STAGED]:
            copies *= distinct_in_stages(nest.terms, tensor, loops, work.extents, fan)
        else:
            copies *= distinct_tiles(nest.terms, tensor, work.spread, work.extents, fan)
    return copies


def _slowest(evaluation: Evaluation, accelerator: Accelerator) -> str:
    """Return the level whose words take longest."""
    levels = accelerator.levels
    took = [level_cycles(k, evaluation.traffic, accelerator) for k in range(len(levels))]
    return levels[took.index(max(took))].name


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
