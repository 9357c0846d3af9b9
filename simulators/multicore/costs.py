"""Cycles, energy and DRAM traffic of a tile of a layer on a core, under the best mapping found.

The core is mapped behind an outermost level of unlimited bandwidth, since transfers are scheduled
by the event loop. Words that cross this level count where a tensor does not stay in the core; the
energy on chip is that of all levels inside.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.dataflow.evaluation import PJ_PER_J, level_cycles
from simulators.dataflow.schedule.mapped import with_rows
from simulators.dataflow.search.map_space import constraints_of
from simulators.dataflow.search.mapper import find
from simulators.workload.loop_nest import Layer


@dataclass(frozen=True)
class TileCost:
    """Cost of a tile on a core, DRAM excluded. `moved` are words from and to the outside."""

    compute_s: float
    energy_j: float
    moved: tuple[int, int, int]  # weights and inputs that are read, outputs written or read again


def machine_of_core(core: Accelerator) -> Accelerator:
    """Return a core whose outermost level has unlimited bandwidth."""
    outside = dataclasses.replace(
        core.levels[0],
        read_words_per_cycle=None,
        write_words_per_cycle=None,
        shared_words_per_cycle=None,
    )
    return dataclasses.replace(core, levels=(outside, *core.levels[1:]))


@functools.lru_cache(maxsize=8192)
def tile_cost(
    layer: Layer, core: Accelerator, dataflow: str, goal: str, evaluations: int, seed: int
) -> TileCost:
    """Return the cost of a tile under the best mapping found. Names of layers must be empty.

    Raises:
        Infeasible: a level holds fewer words than the tensors it must keep.
    """
    machine = machine_of_core(core)
    found = find(
        layer,
        machine,
        goal=goal,
        evaluations=evaluations,
        seed=seed,
        constraints=constraints_of(dataflow, layer, machine),
        remainders=False,
    ).evaluation
    outer = machine.levels[0].name
    inner = (level_cycles(k, found.traffic, machine) for k in range(1, len(machine.levels)))
    words = dict.fromkeys(TENSORS, 0)
    outside_pj = 0.0
    for line in found.traffic:
        if line.level == outer:
            words[line.tensor] += line.reads + line.fills + line.updates
            outside_pj += line.energy_pj
    return TileCost(
        compute_s=max(found.compute_cycles, *inner) / core.clock_hz,
        energy_j=(found.energy_pj - outside_pj) / PJ_PER_J,
        moved=(words["Weights"], words["Inputs"], words["Outputs"]),
    )


def part_of(layer: Layer, rows: int, parts: int) -> Layer:
    """Return some rows of a layer, and one of several equal parts of its output channels."""
    tile = with_rows(layer, rows)
    bounds = list(tile.bounds)
    if parts > 1:
        at = tile.dims.index(channel_dim(layer))
        bounds[at] = -(-bounds[at] // parts)
    return dataclasses.replace(tile, name="", bounds=tuple(bounds))


def channel_dim(layer: Layer) -> str:
    """Return the dimension of a layer's output channels."""
    return "M" if "M" in layer.dims else "C"
