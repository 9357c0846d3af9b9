"""Energy and area of digital in-memory computing chips: by hand, and of published chips."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.parity.chip_table import measured_chips
from tests.parity.in_memory_chips import (
    InMemoryChip,
    area_mm2,
    joules_per_cycle,
    operations_per_joule,
)

CHIP = InMemoryChip(
    inputs=2,
    outputs=1,
    macros=1,
    groups=1,
    weight_bits=1,
    input_bits=1,
    bits_per_cycle=1,
    voltage=1.0,
    toggle=1.0,
    density=1.0,
)


def test_chip_with_two_weights_matches_hand_calculation() -> None:
    # Two gates; one adder in the tree and three to accumulate (1 + 1 + log2 of 2 bits), each of six
    # NANDs; three registers of sums and two of inputs, of three NANDs each: 0.7 fF a NAND.
    femtofarads = 0.7 * (0.5 * 2 + 6 * 4 + 3 * 5)
    assert joules_per_cycle(CHIP) == pytest.approx(femtofarads * 1e-15)
    assert operations_per_joule(CHIP) == pytest.approx(4 / (femtofarads * 1e-15))
    cells = 2 * 0.692 * (28 / 45) ** 2
    assert area_mm2(CHIP) == pytest.approx(1e-6 * (0.614 * (2 + (3 + 2 * 2.4) * 4 + 6 * 5) + cells))


def test_inactive_inputs_and_zeros_draw_less_energy() -> None:
    assert joules_per_cycle(replace(CHIP, density=0.5)) < joules_per_cycle(CHIP)
    assert joules_per_cycle(replace(CHIP, toggle=0.5)) < joules_per_cycle(CHIP)
    assert joules_per_cycle(replace(CHIP, voltage=0.5)) == pytest.approx(joules_per_cycle(CHIP) / 4)
    deeper = replace(CHIP, groups=8)
    assert joules_per_cycle(deeper) == joules_per_cycle(CHIP)
    assert area_mm2(deeper) > area_mm2(CHIP)


def test_booth_recoded_pair_needs_one_adder_tree() -> None:
    pair = replace(CHIP, inputs=32, weight_bits=8, input_bits=8, bits_per_cycle=2)
    assert area_mm2(replace(pair, booth=True)) < area_mm2(pair)


def test_bitwise_adder_trees_are_combined_by_shift() -> None:
    """Two bits of two weights: a tree of two bits, or two of one and two adders for their sums."""
    whole = replace(CHIP, weight_bits=2)
    apart = replace(whole, tree_bits=1)
    assert joules_per_cycle(apart) - joules_per_cycle(whole) == pytest.approx(0.7e-15 * 6 * 2)
    assert joules_per_cycle(replace(whole, tree_bits=16)) == joules_per_cycle(whole)


def test_areas_and_energies_of_published_chips(reference: Path) -> None:
    digital = [one for one in measured_chips(reference) if one.chip is not None]
    assert len(digital) == 4
    areas = [abs(area_mm2(one.chip) / one.area_mm2 - 1.0) for one in digital]
    assert sum(areas) / len(areas) <= 0.25
    for one in digital:
        if one.states_sparsity:
            joules = one.operations_per_joule / operations_per_joule(one.chip)
            assert abs(joules - 1.0) <= 0.09, one.name
