"""Words, energy and cycles of a mapping, by level and tensor.

A level's time is its words over its bandwidth, and the slowest of levels and multipliers sets the
pace: filling and draining overlap with work. The kernels are the compiled core of the mapper.

An accelerator states picojoules per access, or a kind of storage of the technology table. Leakage
is zero unless stated, the network unless `hop_pj_per_word` is stated; address generation and adders
outside the multipliers are always zero. Wu et al.,
"Accelergy" (ICCAD 2019).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simulators.catalog.accelerator import FLOAT, TENSORS, Accelerator, Level
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import PACKAGE, read_toml
from simulators.core.jit import Floats, Ints, array, f8, i8, kernel
from simulators.dataflow import access as at
from simulators.dataflow.access import Problem, count, count_partial, drop_held, lay_out
from simulators.dataflow.mapping import LoopNest, encode
from simulators.workload.loop_nest import Layer

TECHNOLOGY = PACKAGE / "dataflow" / "calibration" / "technology.toml"
UNLIMITED = 1 << 62
ACTIONS = ("read", "write", "update")
UM2_PER_MM2, PJ_PER_J = 1e6, 1e12


class Machine(NamedTuple):
    """Arrays of an accelerator by level, with the columns of `access.Problem`."""

    sizes: Ints
    energy_pj: Floats
    rates: Floats


def machine_of(accelerator: Accelerator) -> Machine:
    """Return the read-only arrays of an accelerator."""
    return _machine_of(accelerator, TECHNOLOGY.stat().st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _machine_of(accelerator: Accelerator, _version: int) -> Machine:
    levels = accelerator.levels
    meshes = [*(level.mesh for level in levels), accelerator.mac.mesh]
    stated_nm = accelerator.energy_node_nm or accelerator.node_nm
    sizes, energy_pj, rates = [], [], []
    for level, inner in zip(levels, meshes[1:], strict=True):
        capacity, block = level.capacity_words, level.block_words
        shift = block.bit_length() - 1 if block & (block - 1) == 0 else -1
        fan_out = inner[0] // level.mesh[0], inner[1] // level.mesh[1]
        words = UNLIMITED if capacity is None else capacity
        sizes.append((words, block, shift, *fan_out, int(level.staged)))
        accesses_pj = level_energy_pj(level, accelerator.node_nm, stated_nm)
        energy_pj.append((*accesses_pj, level.energy_pj.get("leak", 0.0)))
        speeds = (
            level.read_words_per_cycle,
            level.write_words_per_cycle,
            level.shared_words_per_cycle,
        )
        rates.append((*(np.inf if s is None else s for s in speeds), level.hop_pj_per_word))
    energy_pj.append((mac_energy_pj(accelerator), 0.0, 0.0, accelerator.mac.leak_pj_per_cycle))
    return Machine(
        np.array(sizes, np.int64), np.array(energy_pj, np.float64), np.array(rates, np.float64)
    )


def level_energy_pj(level: Level, node_nm: float, stated_nm: float) -> list[float]:
    """Return the picojoules of one physical read, write and update.

    Energies stated for another depth or node are scaled by the technology table.

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
        mac = accelerator.mac
        by_width = table["mac"] if mac.arithmetic == FLOAT else table["mac"][mac.arithmetic]
        given = _by_precision(by_width["pj"], mac.word_bits)
    return float(given * (accelerator.node_nm / base_nm) ** table["energy_exponent"])


def area_mm2(accelerator: Accelerator) -> float:
    """Return the area of buffers, registers and multipliers, without DRAM, wires and control.

    The area follows the technology table even where energies are given.
    """
    table, mac = read_toml(TECHNOLOGY), accelerator.mac
    version = TECHNOLOGY.stat().st_mtime_ns
    cells = _shrunk(accelerator.node_nm, "cell_um2", version)
    gates = _shrunk(accelerator.node_nm, "nand2_um2", version)
    um2 = gates * mac.instances * _by_precision(table["mac"]["um2"], mac.word_bits)
    for level in accelerator.levels:
        if level.kind != "dram" and level.depth is not None:
            bits = level.depth * level.width_bits * level.instances
            scale = cells if level.kind == "sram" else gates
            um2 += scale * bits * table[level.kind]["um2_per_bit"]
    return float(um2 / UM2_PER_MM2)


@functools.lru_cache(maxsize=256)
def _shrunk(node_nm: float, part: str, _version: int) -> float:
    """Return the area of a part at a node, relative to the technology table's node."""
    table = read_toml(TECHNOLOGY)
    known = table["area_by_node"]
    nodes = np.log([node_nm, table["node_nm"]])
    here, base = np.interp(nodes, np.log(known["nm"]), np.log(known[part]))
    below = min(0.0, float(nodes[0] - np.log(known["nm"][0])))  # beyond the table, the square
    above = max(0.0, float(nodes[0] - np.log(known["nm"][-1])))
    return math.exp(here - base + table["area_exponent"] * (below + above))


def _table_pj(level: Level, rows: int | None, node_nm: float) -> list[float]:
    """Return the technology table's picojoules of one read, write and update."""
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
    """Return the entry of the narrowest sufficient multiplier, else of the widest."""
    widths = sorted(int(width) for width in table)
    return table[str(next((w for w in widths if w >= bits), widths[-1]))]


ENERGY_PJ, CYCLES, COMPUTE_CYCLES, MACS_USED = range(4)
RESULTS = 4


@kernel(i8(at.PROBLEM, at.KEEP, at.COUNTS, i8, array(f8)), no_refcount=True)
def charge(problem: Problem, keep: Ints, counts: Ints, compute: int, out: Floats) -> int:
    """Fill in energy and cycles from the counts; return the cycles.

    The energy of instances with partial tiles is proportional to their accesses.
    """
    sizes, energy, rates = problem.sizes, problem.energy_pj, problem.rates
    instances, levels, is_partial = problem.instances, keep.size, problem.has_partial_tiles[0]
    macs = 1
    for d in range(problem.bounds.size):
        macs *= problem.bounds[d]
    cycles = float(compute)
    energy_pj = energy[levels, at.READS] * macs
    for level in range(levels):
        reads = writes = 0
        spent_pj = 0.0
        shift, block = sizes[level, at.SHIFT], sizes[level, at.BLOCK]
        for tensor in range(at.TENSORS):
            if not keep[level] >> tensor & 1:
                continue
            reads += counts[level, tensor, at.READS]
            writes += counts[level, tensor, at.FILLS] + counts[level, tensor, at.UPDATES]
            for action in range(3):
                words = counts[level, tensor, action] + block - 1
                blocks = words >> shift if shift >= 0 else words // block
                share = 1.0
                if is_partial and counts[level, tensor, action] > 0:
                    whole = counts[level, tensor, action] * instances[level, at.USED]
                    share = problem.totals[level, tensor, action] / whole
                spent_pj += energy[level, action] * blocks * share
        # Words leave by a wire along the columns and one along the rows, half of each on average.
        hops = 0.5 * (sizes[level, at.FAN_X] + sizes[level, at.FAN_Y])
        spent_pj += rates[level, at.HOP] * hops * reads
        energy_pj += spent_pj * instances[level, at.USED]
        cycles = max(cycles, np.ceil(reads / rates[level, 0]))
        cycles = max(cycles, np.ceil(writes / rates[level, 1]))
        cycles = max(cycles, np.ceil((reads + writes) / rates[level, 2]))
    for level in range(levels + 1):
        energy_pj += energy[level, at.LEAK] * cycles * instances[level, at.USED]
    out[ENERGY_PJ] = energy_pj
    out[CYCLES] = cycles
    out[COMPUTE_CYCLES] = compute
    out[MACS_USED] = instances[levels, at.USED]
    return int(cycles)


@kernel(i8(at.PROBLEM, at.LOOPS, at.KEEP, at.COUNTS, array(f8)), no_refcount=True)
def evaluate(problem: Problem, loops: Ints, keep: Ints, counts: Ints, out: Floats) -> int:
    """Compute accesses, energy and cycles of a mapping; return the code of infeasibility, or 0."""
    temporal = lay_out(problem, loops, keep)
    if temporal < 0:
        return -temporal
    if problem.has_partial_tiles[0]:
        compute = count_partial(problem, loops, keep, counts)
    else:
        compute = count(problem, loops, keep, temporal, counts)
    if problem.held[at.MASK]:
        drop_held(problem, counts)
    charge(problem, keep, counts, compute, out)
    return at.FEASIBLE


@dataclass(frozen=True)
class Traffic:
    """Accesses of one tensor at one level, in words of the level's first instance.

    Other instances have equally many accesses, unless tiles are partial.
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
    """Accesses, energy and cycles of one mapping."""

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
        """Return the energy of accesses by level, and that of the multipliers as `mac`."""
        shares: dict[str, float] = {}
        for line in self.traffic:
            shares[line.level] = shares.get(line.level, 0.0) + line.energy_pj
        return {**shares, "mac": self.mac_energy_pj}


def layer_terms(layer: Layer) -> tuple[Ints, Ints, Ints]:
    """Return `terms`, `home` and `coef` of a `Problem`.

    Raises:
        UserError: the output is not last, or two loops share one of its ranks.
    """
    if not layer.tensors[-1].output or any(len(r) != 1 for r in layer.tensors[-1].ranks):
        raise UserError(f"layer '{layer.name}': the output comes last, and each rank is one loop")
    dims, tensors = len(layer.dims), len(layer.tensors)
    terms = np.full((at.RANKS * tensors, 4), -1, np.int64)
    home, coef = np.full((tensors, dims), -1, np.int64), np.zeros((tensors, dims), np.int64)
    for t, tensor in enumerate(layer.tensors):
        for r, rank in enumerate(tensor.ranks):
            for k, (dim, c) in enumerate(rank):
                d = layer.dims.index(dim)
                terms[at.RANKS * t + r, 2 * k : 2 * k + 2] = d, c
                home[t, d], coef[t, d] = r, c
    return terms, home, coef


def problem_of(layer: Layer, accelerator: Accelerator) -> Problem:
    """Return the arrays of a layer on an accelerator."""
    terms, home, coef = layer_terms(layer)
    levels, dims, tensors = len(accelerator.levels), len(layer.dims), len(layer.tensors)
    machine = machine_of(accelerator)
    return Problem(
        np.array(layer.bounds, np.int64),
        terms,
        home,
        coef,
        np.array([tensor.words(layer.extents) for tensor in layer.tensors], np.int64),
        sizes=machine.sizes.copy(),
        energy_pj=machine.energy_pj.copy(),
        rates=machine.rates.copy(),
        extents=np.ones((levels + 1, dims), np.int64),
        spread=np.ones((levels + 1, dims), np.int64),
        tiles=np.ones((levels + 1, tensors), np.int64),
        placed=np.ones((levels * dims + 1, 4), np.int64),
        instances=np.ones((levels + 1, 3), np.int64),
        first=np.zeros(levels + 1, np.int64),
        totals=np.zeros((levels, tensors, 3), np.int64),
        sums=np.zeros((2, 4), np.int64),
        rank=np.zeros(4, np.int64),
        has_partial_tiles=np.zeros(1, np.int64),
        held=held_tensors(accelerator),
    )


def held_tensors(accelerator: Accelerator) -> Ints:
    """Return the mask of the tensors that a level holds as a whole, and the level's position."""
    for k, level in enumerate(accelerator.levels):
        if level.holds:
            return np.array([sum(1 << TENSORS.index(t) for t in level.holds), k], np.int64)
    return np.array([0, -1], np.int64)


def evaluated(mapping: LoopNest, layer: Layer, accelerator: Accelerator) -> Evaluation | str:
    """Return the evaluation of a mapping, or the reason it is infeasible.

    Raises:
        UserError: the mapping does not match the layer or the accelerator.
    """
    loops, keep = encode(mapping, layer, accelerator)
    problem = problem_of(layer, accelerator)
    counts, result = np.zeros_like(problem.totals), np.zeros(RESULTS)
    if verdict := evaluate(problem, loops, keep, counts, result):
        return at.VERDICTS[verdict]
    return Evaluation(
        energy_pj=float(result[ENERGY_PJ]),
        cycles=int(result[CYCLES]),
        compute_cycles=int(result[COMPUTE_CYCLES]),
        macs=layer.macs,
        macs_used=int(result[MACS_USED]),
        utilization=layer.macs / accelerator.mac.instances / float(result[CYCLES]),
        traffic=_traffic(accelerator, problem, keep, counts),
        mac_energy_pj=float(problem.energy_pj[-1, 0]) * layer.macs,
    )


def level_cycles(level: int, lines: Iterable[Traffic], accelerator: Accelerator) -> int:
    """Return the cycles that a level needs to move its words at the level's bandwidths."""
    mine = [line for line in lines if line.level == accelerator.levels[level].name]
    reads = sum(line.reads for line in mine)
    writes = sum(line.fills + line.updates for line in mine)
    read, write, shared = (float(rate) for rate in machine_of(accelerator).rates[level, : at.HOP])
    return math.ceil(max(reads / read, writes / write, (reads + writes) / shared))


def totalled(
    dense: Evaluation,
    lines: Sequence[Traffic],
    accelerator: Accelerator,
    *,
    multiplies: float = 1.0,
    steps: float = 1.0,
) -> Evaluation:
    """Return an evaluation with other traffic, and a share of its multiplies and steps."""
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
    """Return the energy of the network's wires, as in `charge`."""
    machine = machine_of(accelerator)
    names = [level.name for level in accelerator.levels]
    spent = 0.0
    for line in lines:
        k = names.index(line.level)
        hops = 0.5 * float(machine.sizes[k, at.FAN_X] + machine.sizes[k, at.FAN_Y])
        spent += float(machine.rates[k, at.HOP]) * hops * line.totals[at.READS]
    return spent


def scaled(line: Traffic, scale: Sequence[float], accelerator: Accelerator) -> Traffic:
    """Return a line of traffic with reads, fills and updates scaled and rounded up."""
    level = [one.name for one in accelerator.levels].index(line.level)
    energy, block = machine_of(accelerator).energy_pj, accelerator.levels[level].block_words
    before = (line.reads, line.fills, line.updates)
    words = [math.ceil(n * share) for n, share in zip(before, scale, strict=True)]
    totals = [math.ceil(n * share) for n, share in zip(line.totals, scale, strict=True)]
    energy_pj = sum(
        float(energy[level, k]) * -(-words[k] // block) * line.totals[k] / before[k]
        for k in (at.READS, at.FILLS, at.UPDATES)
        if before[k]
    )
    return dataclasses.replace(
        line,
        reads=words[at.READS],
        fills=words[at.FILLS],
        updates=words[at.UPDATES],
        totals=(totals[at.READS], totals[at.FILLS], totals[at.UPDATES]),
        energy_pj=energy_pj,
    )


def tile_words_by_level(
    mapping: LoopNest, layer: Layer, accelerator: Accelerator
) -> dict[tuple[str, str], int]:
    """Return the words of the tile of each tensor at each level that keeps it."""
    loops, keep = encode(mapping, layer, accelerator)
    problem = problem_of(layer, accelerator)
    lay_out(problem, loops, keep)
    return {
        (level.name, tensor): int(problem.tiles[k, t])
        for k, level in enumerate(accelerator.levels)
        for t, tensor in enumerate(TENSORS)
        if int(keep[k]) >> t & 1
    }


def _traffic(
    accelerator: Accelerator, problem: Problem, keep: Ints, counts: Ints
) -> tuple[Traffic, ...]:
    if not problem.has_partial_tiles[0]:
        problem.totals[:] = counts * problem.instances[: keep.size, at.USED, None, None]
    lines = []
    for k, level in enumerate(accelerator.levels):
        for t, tensor in enumerate(TENSORS):
            if not int(keep[k]) >> t & 1:
                continue
            reads, fills, updates = words = counts[k, t].tolist()
            totals = problem.totals[k, t].tolist()
            spent_pj = sum(
                float(problem.energy_pj[k, action])
                * -(-words[action] // level.block_words)
                * (totals[action] / words[action] if words[action] else 0.0)
                for action in (at.READS, at.FILLS, at.UPDATES)
            )
            lines.append(
                Traffic(
                    level=level.name,
                    tensor=tensor,
                    reads=reads,
                    fills=fills,
                    updates=updates,
                    instances=int(problem.instances[k, at.USED]),
                    totals=(totals[at.READS], totals[at.FILLS], totals[at.UPDATES]),
                    energy_pj=spent_pj,
                )
            )
    return tuple(lines)
