"""Where the time and energy of a mapping go, by level and tensor, and why its counts are so."""

from __future__ import annotations

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.columns import LEVELS, UNMODELLED
from simulators.core.contract import Contribution
from simulators.dataflow.access.exact_counts import lay_out
from simulators.dataflow.energy.evaluation import Evaluation, level_cycles, problem_of
from simulators.dataflow.energy.technology import PJ_PER_J
from simulators.dataflow.mapping.loop_nest import Mapping, encode
from simulators.workload.loop_nest import Layer


def contributions(
    layer: Layer, times: int, mapping: Mapping, evaluation: Evaluation, accelerator: Accelerator
) -> list[Contribution]:
    """Return a line per level and tensor, one for multiplies, and one for all other energy.

    The time of the layer stands at what sets its pace: the multipliers, or the slowest level.
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
            level=LEVELS[UNMODELLED],
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
                level=LEVELS[UNMODELLED],
                note=why[line.level, line.tensor],
            )
        )
    lines.append(
        Contribution(
            phase=layer.name,
            name="leakage and network",
            count=times,
            energy_j=times * rest_pj / PJ_PER_J,
            level=LEVELS[UNMODELLED],
            note="zero unless an accelerator states them",
        )
    )
    return lines


def reasons(mapping: Mapping, layer: Layer, accelerator: Accelerator) -> dict[tuple[str, str], str]:
    """Return why a level sends as many words of a tensor to each child: the loop that moves them.

    The same rules as the closed form, in words.
    """
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
                why += ", the last smaller" if problem.cut[0] else ""
            found[names[level], tensor] = why
    return found


def _why(
    placed: list[list[int]], walks: list[int], tile: int, layer: Layer, names: list[str]
) -> str:
    """Return what is sent at each step of the innermost loop that walks a tensor."""
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
