"""In-memory computing chips as papers state them, collected by ZigZag-IMC.

Records give cells, logic, voltage, area and TOPS/W. How many groups of cells share a macro's logic
is stated beside them; macros follow from the cells. Records state half of all bits where a paper
states no sparsity, which leaves nothing to compare energy with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lab.tables.rows import Record, read_records
from tests.parity.in_memory_chips import InMemoryChip

CHIPS = "dataflow/imc_chips_silicon.parquet"

GROUPS = {
    "dimc_ISSCC2022_15_5": 1,
    "dimc_ISSCC2022_11_7": 16,
    "dimc_ISSCC2023_7_2": 8,
    "dimc_ISSCC2023_16_3": 2,
}
"""Of cells that share one macro's logic: imc_model_validation/README.md of ZigZag-IMC."""

WITHOUT_SPARSITY = ("aimc2", "dimc_ISSCC2022_11_7", "dimc_ISSCC2023_16_3")
"""Chips whose papers state no sparsity, by the same page."""


@dataclass(frozen=True)
class MeasuredChip:
    """A published chip; `chip` is None for computation by charge or current."""

    name: str
    chip: InMemoryChip | None
    area_mm2: float
    operations_per_joule: float
    states_sparsity: bool


def measured_chips(reference: Path) -> list[MeasuredChip]:
    """Return all chips, in the order of the table."""
    return [
        MeasuredChip(
            name=row.chip,
            chip=None if row.adc_bits else _digital(row),
            area_mm2=row.area_mm2,
            operations_per_joule=1e12 * row.TOPS_per_W,
            states_sparsity=row.chip not in WITHOUT_SPARSITY,
        )
        for row in read_records(reference / CHIPS)
    ]


def _digital(row: Record) -> InMemoryChip:
    inputs, outputs, bits = int(row.input_channels), int(row.output_channels), int(row.weight_bits)
    groups, raw = GROUPS[row.chip], json.loads(row.raw)
    booth = raw["booth_encoding"] == "True"
    return InMemoryChip(
        inputs=inputs,
        outputs=outputs,
        macros=int(row.rows * row.cols * row.banks) // (inputs * outputs * bits * groups),
        groups=groups,
        weight_bits=bits,
        input_bits=int(row.activation_bits),
        bits_per_cycle=int(row.input_bits_per_cycle),
        tree_bits=0 if booth else int(raw["adder_input_precision"]),
        booth=booth,
        voltage=row.vdd_V,
        toggle=row.input_toggle_rate,
        density=1.0 - row.weight_sparsity,
    )
