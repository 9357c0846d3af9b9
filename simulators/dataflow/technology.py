"""Picojoules of an access and of a multiply, and the area they need.

An accelerator gives picojoules per access, or names a kind of storage, and the technology table
answers. Each zero is a statement: leakage is zero unless given, the network unless
`hop_pj_per_word` is given, address generation and adders outside the multipliers always. Wu et al.,
"Accelergy" (ICCAD 2019).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from simulators.catalog.accelerator import Accelerator, Level
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import PACKAGE, read_toml
from simulators.core.jit import Floats, Ints

TECHNOLOGY = PACKAGE / "dataflow" / "calibration" / "technology.toml"
UNLIMITED = 1 << 62
ACTIONS = ("read", "write", "update")
UM2_PER_MM2, PJ_PER_J = 1e6, 1e12


class Machine(NamedTuple):
    """An accelerator in numbers by level, columns as of `arrays.Problem`."""

    sizes: Ints
    energy_pj: Floats
    rates: Floats


def machine_of(accelerator: Accelerator) -> Machine:
    """Return an accelerator as the numbers the kernels read; nobody may change them."""
    return _machine_of(accelerator, TECHNOLOGY.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
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
