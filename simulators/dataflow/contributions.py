"""Explanation of a row: time and energy by layer, level and tensor, and their loops."""

from __future__ import annotations

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.columns import DATASHEET, LEVELS
from simulators.core.contract import Contribution
from simulators.dataflow.access import lay_out
from simulators.dataflow.evaluation import PJ_PER_J, Evaluation, level_cycles, problem_of
from simulators.dataflow.mapping import LoopNest, encode
from simulators.workload.loop_nest import Layer


def contributions(
    layer: Layer, times: int, mapping: LoopNest, evaluation: Evaluation, accelerator: Accelerator
) -> list[Contribution]:
    """Return contributions per level and tensor, of multiplies, and of all other energy.

    The time of the layer is attributed to its bottleneck: the multipliers, or the slowest level.
    """
    why = reasons(mapping, layer, accelerator)
    time_s = times * evaluation.cycles / accelerator.clock_hz
    pace = "mac"
    if evaluation.cycles > evaluation.compute_cycles:
        levels = accelerator.levels
        took = [level_cycles(k, evaluation.traffic, accelerator) for k in range(len(levels))]
        pace = levels[took.index(max(took))].name
    bits = {level.name: level.word_bits for level in accelerator.levels}
    lines = [
        Contribution(
            phase=layer.name,
            name="mac",
            count=times,
            time_s=time_s if pace == "mac" else 0.0,
            energy_j=times * evaluation.mac_energy_pj / PJ_PER_J,
            flops=2.0 * times * layer.macs,
            bound="compute",
            level=LEVELS[DATASHEET],
            note=f"{evaluation.utilization:.0%} of the multipliers at work",
        )
    ]
    rest_pj = evaluation.energy_pj - evaluation.mac_energy_pj
    for line in evaluation.traffic:
        rest_pj -= line.energy_pj
        first = pace == line.level and not any(c.time_s for c in lines)
        lines.append(
            Contribution(
                phase=layer.name,
                name=f"{line.level} {line.tensor}",
                count=times,
                time_s=time_s if first else 0.0,
                energy_j=times * line.energy_pj / PJ_PER_J,
                moved_bytes=times * sum(line.totals) * bits[line.level] / 8,
                bound="memory",
                level=LEVELS[DATASHEET],
                note=why[line.level, line.tensor],
            )
        )
    lines.append(
        Contribution(
            phase=layer.name,
            name="leakage and network",
            count=times,
            energy_j=times * rest_pj / PJ_PER_J,
            level=LEVELS[DATASHEET],
            note="zero unless an accelerator states them",
        )
    )
    return lines


def reasons(
    mapping: LoopNest, layer: Layer, accelerator: Accelerator
) -> dict[tuple[str, str], str]:
    """Return for each level and tensor a description of the loop that sends its words."""
    loops, keep = encode(mapping, layer, accelerator)
    problem = problem_of(layer, accelerator)
    temporal = lay_out(problem, loops, keep)
    names = [level.name for level in accelerator.levels]
    found = {}
    for t, tensor in enumerate(TENSORS):
        kept = [k for k in range(keep.size) if int(keep[k]) >> t & 1]
        for level, child in zip(kept, [*kept[1:], keep.size], strict=True):
            placed = problem.placed[int(problem.first[child]) : temporal].tolist()
            if child == keep.size:
                why = "one word per cycle, no latch"
            else:
                walks = problem.home[t].tolist()
                tile = int(problem.tiles[child, t])
                why = _why(placed, walks, tile, layer, names)
                why += ", the last smaller" if problem.has_partial_tiles[0] else ""
            found[names[level], tensor] = why
    return found


def _why(
    placed: list[list[int]], walks: list[int], tile: int, layer: Layer, names: list[str]
) -> str:
    """Return a description of the words sent per step of the innermost indexing loop."""
    skipped = []
    for dim, bound, level, outer in placed:
        if walks[dim] < 0:
            skipped.append(f"{layer.dims[dim]} {bound}")
            continue
        reused = f", reused over {', '.join(skipped)}" if skipped else ""
        return (
            f"{outer:,} x (the tile of {tile:,} + {bound - 1} steps of {layer.dims[dim]} at "
            f"{names[level]}, of which only what is new{reused})"
        )
    reused = f", reused over {', '.join(skipped)}" if skipped else ""
    return f"the tile of {tile:,} once{reused}"
