"""What a digital in-memory computing chip draws and occupies, from its gates.

Each of a macro's weights stands in 6T cells and is multiplied where it stands: one gate for a bit
of a weight and of an input, trees of ripple-carry adders over the inputs, and an accumulator that
adds what the bits of an input give one after the other. A tree may take in whole weights or a few
of their bits, whose sums are then put together by their places. Several groups of cells may share
that logic.

    area  = cells + gates + adders + registers
    joule = voltage^2 x (switched capacitance of gates and adders + clocked registers), a cycle

Leakage and what drives clocks and word lines is left out, as elsewhere in the technology table. Sun
et al., "Analog or digital in-memory computing?" (ICCAD 2023), whose counts these are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulators.core.folder import read_toml
from simulators.dataflow.evaluation import TECHNOLOGY, UM2_PER_MM2

J_PER_FJ = 1e-15
OPERATIONS_PER_MAC = 2


@dataclass(frozen=True, kw_only=True)
class InMemoryChip:
    """The array of a chip; `macros` work side by side, each with the cells of `groups` weights."""

    inputs: int
    outputs: int
    macros: int
    groups: int
    weight_bits: int
    input_bits: int
    bits_per_cycle: int  # of each input
    tree_bits: int = 0  # of a product that enter one tree; 0: those of a whole weight
    booth: bool = False  # whether two bits of an input go through one tree, recoded
    voltage: float = 0.9
    toggle: float = 0.5  # share of input bits that differ from those before
    density: float = 0.5  # share of weight bits that are ones
    node_nm: float = 28.0


@dataclass(frozen=True)
class _Counts:
    """Single-bit parts of a whole chip."""

    cells: float
    gates: float
    adders: float
    registers: float


def area_mm2(chip: InMemoryChip) -> float:
    """Return the silicon of cells and logic; pads, clocks and wires are not in it."""
    table, parts = read_toml(TECHNOLOGY), _counts(chip)
    gate, by_node = table["gates"], chip.node_nm / table["node_nm"]
    um2 = parts.gates + _full_adder(gate["xor_um2"]) * parts.adders
    um2 = gate["nand_um2"] * (um2 + gate["register_um2"] * parts.registers)
    um2 *= (chip.node_nm / gate["node_nm"]) ** table["area_exponent"]
    um2 += parts.cells * table["sram"]["um2_per_bit"] * by_node ** table["area_exponent"]
    return float(um2 / UM2_PER_MM2)


def joules_per_cycle(chip: InMemoryChip) -> float:
    """Return what a cycle draws with all weights in use.

    An adder switches with the product bits it adds, which are ones where both factors are.
    """
    gate, parts = read_toml(TECHNOLOGY)["gates"], _counts(chip)
    at_gates = 0.5 * chip.toggle * parts.gates  # the weight's half of a gate stays
    at_adders = chip.toggle * chip.density * _full_adder(gate["xor_ff"]) * parts.adders
    switched = at_gates + at_adders + gate["register_ff"] * parts.registers
    femtofarads = gate["nand_ff"] * switched * chip.node_nm / gate["node_nm"]
    return float(J_PER_FJ * femtofarads * chip.voltage**2)


def operations_per_joule(chip: InMemoryChip) -> float:
    """Return multiplies and additions per joule, as papers state TOPS/W."""
    macs = chip.inputs * chip.outputs * chip.macros * chip.bits_per_cycle / chip.input_bits
    return OPERATIONS_PER_MAC * macs / joules_per_cycle(chip)


def _full_adder(xor: float) -> float:
    """Return a full adder, two XORs and three NANDs, in NANDs."""
    return 3.0 + 2.0 * xor


def _counts(chip: InMemoryChip) -> _Counts:
    """Return the single-bit cells, multiplier gates, full adders and registers of a chip."""
    words = chip.inputs * chip.outputs * chip.macros
    sums, depth = chip.outputs * chip.macros, math.log2(chip.inputs)
    width = min(chip.tree_bits or chip.weight_bits, chip.weight_bits)
    trees = 1.0 if chip.booth else chip.bits_per_cycle * chip.weight_bits / width
    summed = width + chip.booth
    in_tree = sum(
        chip.inputs / 2**level * (summed + level - 1) for level in range(1, math.ceil(depth) + 1)
    )
    accumulated = sums * (chip.input_bits + chip.weight_bits + depth)
    joined = sums * (trees - 1.0) * (summed + depth)  # trees, each some places higher
    return _Counts(
        cells=words * chip.weight_bits * chip.groups,
        gates=words * chip.weight_bits * chip.bits_per_cycle,
        adders=in_tree * sums * trees + joined + accumulated,
        registers=accumulated + chip.inputs * chip.bits_per_cycle * chip.macros,
    )
