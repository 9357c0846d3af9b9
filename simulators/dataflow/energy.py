"""Energy is accesses times the energy of one; area is bits times the area of one.

An accelerator gives picojoules per access, or names a kind of storage, and the technology table
answers. Each zero is a statement: leakage is zero unless given, the network unless
`hop_pj_per_word` is given, address generation and adders outside the multipliers always.
Wu et al., "Accelergy" (ICCAD 2019).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator, Level
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import read_toml
from simulators.core.jit import Ints
from simulators.dataflow.access import (
    FAN_X,
    FAN_Y,
    FEASIBLE,
    FILLS,
    HOP,
    READS,
    TOO_LARGE,
    UPDATES,
    USED,
    Machine,
    Work,
    lay_out,
    work_for,
)
from simulators.dataflow.costs import (
    COMPUTE_CYCLES,
    CYCLES,
    ENERGY_PJ,
    MACS_USED,
    RESULTS,
    evaluate,
)
from simulators.dataflow.mapping import Mapping as LoopNest
from simulators.dataflow.mapping import encode, nest_of
from simulators.workload.loop_nest import Layer

TECHNOLOGY = Path(__file__).parent / "calibration" / "technology.toml"
UNLIMITED = 1 << 62
ACTIONS = ("read", "write", "update")
VERDICTS = {
    TOO_LARGE: "tiles_exceed_buffer",
    2: "loops_exceed_array",
}
UM2_PER_MM2 = 1e6


@dataclass(frozen=True)
class Traffic:
    """What one tensor does at one level; words are those of the first instance.

    The other instances have as many, unless the last tile of a dimension is smaller.
    """

    level: str
    tensor: str
    reads: int
    fills: int
    updates: int
    instances: int
    totals: tuple[int, int, int]  # reads, fills and updates of all instances
    energy_pj: float  # over all instances


@dataclass(frozen=True)
class Evaluation:
    """One mapping, counted and charged."""

    energy_pj: float
    cycles: int
    compute_cycles: int
    macs: int
    macs_used: int
    utilization: float
    traffic: tuple[Traffic, ...]
    mac_energy_pj: float

    @property
    def edp(self) -> float:
        """Energy times cycles, in pJ."""
        return self.energy_pj * self.cycles

    def level_energy_pj(self) -> dict[str, float]:
        """Return the energy of accesses by level, and of the multipliers as `mac`."""
        shares: dict[str, float] = {}
        for line in self.traffic:
            shares[line.level] = shares.get(line.level, 0.0) + line.energy_pj
        return {**shares, "mac": self.mac_energy_pj}


def machine_of(accelerator: Accelerator) -> Machine:
    """Return an accelerator as the numbers the kernels read."""
    levels = accelerator.levels
    meshes = [*(level.mesh for level in levels), accelerator.mac.mesh]
    blocks = [level.block_words for level in levels]
    capacity = [level.capacity_words for level in levels]
    stated_nm = accelerator.energy_node_nm or accelerator.node_nm
    energy = [level_energy_pj(level, accelerator.node_nm, stated_nm) for level in levels]
    mac = [mac_energy_pj(accelerator), 0.0, 0.0]
    leak = [
        *(level.energy_pj.get("leak", 0.0) for level in levels),
        accelerator.mac.leak_pj_per_cycle,
    ]
    speeds = [
        (level.read_words_per_cycle, level.write_words_per_cycle, level.shared_words_per_cycle)
        for level in levels
    ]
    infinite = [np.inf if s is None else s for row in speeds for s in row]
    rates = np.array(infinite, np.float64).reshape(len(levels), 3)
    hops = np.array([[level.hop_pj_per_word] for level in levels], np.float64)
    fans = [(b[0] // a[0], b[1] // a[1]) for a, b in itertools.pairwise(meshes)]
    sizes = [
        (UNLIMITED if c is None else c, block, _log2(block), *fan, int(level.staged))
        for level, c, block, fan in zip(levels, capacity, blocks, fans, strict=True)
    ]
    costs = [[*row, idle] for row, idle in zip([*energy, mac], leak, strict=True)]
    return Machine(
        sizes=np.array(sizes, np.int64),
        energy_pj=np.array(costs, np.float64),
        rates=np.hstack([rates, hops]),
    )


def level_energy_pj(level: Level, node_nm: float, stated_nm: float) -> list[float]:
    """Return the picojoules of one physical read, write and update.

    Energies that were stated for another depth or node are scaled as the technology table scales.

    Raises:
        UserError: only some actions are given.
    """
    given = level.energy_pj
    if not any(action in given for action in ACTIONS):
        return _table_pj(level, level.depth, node_nm)
    if missing := [action for action in ACTIONS if action not in given]:
        raise UserError(f"level {level.name}: energy_pj lacks {', '.join(missing)}")
    stated = [given[action] for action in ACTIONS]
    depth = level.energy_depth or level.depth
    if (depth, stated_nm) == (level.depth, node_nm):
        return stated
    now, then = _table_pj(level, level.depth, node_nm), _table_pj(level, depth, stated_nm)
    return [pj * a / b for pj, a, b in zip(stated, now, then, strict=True)]


def mac_energy_pj(accelerator: Accelerator) -> float:
    """Return the picojoules of one multiply-accumulate."""
    table = read_toml(TECHNOLOGY)
    given, base_nm = accelerator.mac.energy_pj, table["node_nm"]
    if given is not None:
        base_nm = accelerator.energy_node_nm or accelerator.node_nm
    else:
        given = _by_precision(table["mac"]["pj"], accelerator.mac.word_bits)
    return float(given * (accelerator.node_nm / base_nm) ** table["energy_exponent"])


def area_mm2(accelerator: Accelerator) -> float:
    """Return the silicon of buffers, registers and multipliers; DRAM, wires and control are not.

    It follows the technology table even where energies are given.
    """
    table = read_toml(TECHNOLOGY)
    scale = (accelerator.node_nm / table["node_nm"]) ** table["area_exponent"]
    mac = accelerator.mac
    um2 = mac.instances * _by_precision(table["mac"]["um2"], mac.word_bits)
    for level in accelerator.levels:
        if level.kind != "dram" and level.depth is not None:
            bits = level.depth * level.width_bits * level.instances
            um2 += bits * table[level.kind]["um2_per_bit"]
    return float(um2 * scale / UM2_PER_MM2)


def evaluated(loops: Ints, keep: Ints, layer: Layer, accelerator: Accelerator) -> Evaluation | str:
    """Return one mapping counted and charged, or the word for why it is infeasible."""
    machine = machine_of(accelerator)
    work = work_for(keep.size, len(layer.dims))
    counts = np.zeros((keep.size, len(TENSORS), 3), np.int64)
    result = np.zeros(RESULTS)
    verdict = evaluate(nest_of(layer), machine, loops, keep, work, counts, result)
    if verdict != FEASIBLE:
        return VERDICTS[verdict]
    traffic = _traffic(accelerator, machine, keep, counts, work)
    mac_pj = float(machine.energy_pj[-1, 0]) * layer.macs
    ideal = layer.macs / accelerator.mac.instances
    return Evaluation(
        energy_pj=float(result[ENERGY_PJ]),
        cycles=int(result[CYCLES]),
        compute_cycles=int(result[COMPUTE_CYCLES]),
        macs=layer.macs,
        macs_used=int(result[MACS_USED]),
        utilization=ideal / float(result[CYCLES]),
        traffic=traffic,
        mac_energy_pj=mac_pj,
    )


def level_cycles(level: int, lines: Iterable[Traffic], accelerator: Accelerator) -> int:
    """Return the cycles that the words of one level take at its bandwidths."""
    mine = [line for line in lines if line.level == accelerator.levels[level].name]
    reads = sum(line.reads for line in mine)
    writes = sum(line.fills + line.updates for line in mine)
    read, write, shared = (float(rate) for rate in machine_of(accelerator).rates[level, :HOP])
    return math.ceil(max(reads / read, writes / write, (reads + writes) / shared))


def totalled(
    dense: Evaluation, lines: Sequence[Traffic], accelerator: Accelerator, *,
    multiplies: float = 1.0, steps: float = 1.0,
) -> Evaluation:  # fmt: skip
    """Return an evaluation with other words moved, and a share of its multiplies and steps."""
    compute = math.ceil(dense.compute_cycles * steps)
    levels = range(len(accelerator.levels))
    cycles = max(compute, *(level_cycles(k, lines, accelerator) for k in levels))
    moved_pj = sum(line.energy_pj for line in dense.traffic) + dense.mac_energy_pj
    leak_pj = dense.energy_pj - moved_pj - _network_pj(dense.traffic, accelerator)
    mac_pj = dense.mac_energy_pj * multiplies
    return dataclasses.replace(
        dense,
        energy_pj=sum(line.energy_pj for line in lines)
        + mac_pj
        + _network_pj(lines, accelerator)
        + leak_pj * cycles / dense.cycles,
        cycles=cycles,
        compute_cycles=compute,
        utilization=dense.macs * steps / accelerator.mac.instances / cycles,
        traffic=tuple(lines),
        mac_energy_pj=mac_pj,
    )


def _network_pj(lines: Iterable[Traffic], accelerator: Accelerator) -> float:
    """Return the energy of wires, as `charge` has it."""
    machine = machine_of(accelerator)
    spent = 0.0
    for line in lines:
        k = next(k for k, one in enumerate(accelerator.levels) if one.name == line.level)
        hops = 0.5 * float(machine.sizes[k, FAN_X] + machine.sizes[k, FAN_Y])
        spent += float(machine.rates[k, HOP]) * hops * line.totals[READS]
    return spent


def scaled(line: Traffic, scale: Sequence[float], accelerator: Accelerator) -> Traffic:
    """Return a line with shares of its reads, fills and updates, rounded up."""
    level = next(k for k, one in enumerate(accelerator.levels) if one.name == line.level)
    energy, block = machine_of(accelerator).energy_pj, accelerator.levels[level].block_words
    before = (line.reads, line.fills, line.updates)
    words = [math.ceil(n * share) for n, share in zip(before, scale, strict=True)]
    totals = [math.ceil(n * share) for n, share in zip(line.totals, scale, strict=True)]
    energy_pj = sum(
        float(energy[level, k]) * -(-words[k] // block) * line.totals[k] / before[k]
        for k in (READS, FILLS, UPDATES)
        if before[k]
    )
    return dataclasses.replace(
        line, reads=words[READS], fills=words[FILLS], updates=words[UPDATES],
        totals=(totals[READS], totals[FILLS], totals[UPDATES]), energy_pj=energy_pj,
    )  # fmt: skip


def tile_words_by_level(
    mapping: LoopNest, layer: Layer, accelerator: Accelerator
) -> dict[tuple[str, str], int]:
    """Return the words of the tile of each tensor at each level that keeps it."""
    loops, keep = encode(mapping, layer, accelerator)
    work = work_for(keep.size, len(layer.dims))
    lay_out(nest_of(layer), machine_of(accelerator), loops, keep, work)
    return {
        (level.name, tensor): int(work.tiles[k, t])
        for k, level in enumerate(accelerator.levels)
        for t, tensor in enumerate(TENSORS)
        if int(keep[k]) >> t & 1
    }


def _traffic(
    accelerator: Accelerator, machine: Machine, keep: Ints, counts: Ints, work: Work
) -> tuple[Traffic, ...]:
    """Return the lines of every level and tensor kept there."""
    if not work.cut[0]:
        work.totals[:] = counts * work.places[: keep.size, USED, None, None]
    lines = []
    for k, level in enumerate(accelerator.levels):
        for t, tensor in enumerate(TENSORS):
            if int(keep[k]) >> t & 1:
                words = [int(n) for n in counts[k, t]]
                totals = [int(n) for n in work.totals[k, t]]
                spent = sum(
                    float(machine.energy_pj[k, action])
                    * -(-words[action] // level.block_words)
                    * (totals[action] / words[action] if words[action] else 0.0)
                    for action in (READS, FILLS, UPDATES)
                )
                lines.append(
                    Traffic(
                        level=level.name,
                        tensor=tensor,
                        reads=words[READS],
                        fills=words[FILLS],
                        updates=words[UPDATES],
                        instances=int(work.places[k, USED]),
                        totals=(totals[READS], totals[FILLS], totals[UPDATES]),
                        energy_pj=spent,
                    )
                )
    return tuple(lines)


def _table_pj(level: Level, rows: int | None, node_nm: float) -> list[float]:
    """Return what the technology table says of one read, write and update."""
    table = read_toml(TECHNOLOGY)
    if level.kind == "dram":
        by_type = table["dram_pj_per_bit"]
        kind = level.dram_type or "lpddr4"
        if kind not in by_type:
            raise UnknownNameError("dram type", kind, by_type)
        return [by_type[kind] * level.width_bits] * 3
    rates = table[level.kind]
    scale = (node_nm / table["node_nm"]) ** table["energy_exponent"]
    read = level.width_bits * scale * _pj_per_bit(level, rows or 1, rates)
    return [read, read * rates["write_ratio"], read * rates["write_ratio"]]


def _pj_per_bit(level: Level, depth: int, rates: Mapping[str, Any]) -> float:
    if level.kind == "register":
        return float(rates["pj_per_bit"] + rates["pj_per_bit_and_row"] * depth)
    size = depth * level.width_bits / 8 / rates["reference_bytes"]
    share = size ** rates["capacity_exponent"] * level.banks ** rates["bank_exponent"]
    return float(rates["pj_per_bit"] * share)


def _by_precision(table: Mapping[str, float], bits: int) -> float:
    """Return the entry of the narrowest multiplier that is wide enough, else of the widest."""
    widths = sorted(int(width) for width in table)
    return table[str(next((w for w in widths if w >= bits), widths[-1]))]


def _log2(block: int) -> int:
    return block.bit_length() - 1 if block & (block - 1) == 0 else -1
