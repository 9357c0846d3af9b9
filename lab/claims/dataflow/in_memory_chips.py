"""Area and energy of in-memory computing chips beside silicon, each chip by itself.

Nothing is fitted to them: gates and cells are those of the technology table. A chip that computes
by charge is listed, and so is one whose paper states no sparsity, without which energy means
little.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lab.claims.lines import absent, mean_error
from lab.parity.in_memory_chips import area_mm2, operations_per_joule
from lab.tables.edge.in_memory_chips import CHIPS, measured_chips
from simulators.core.contract import Check

NEEDS = (CHIPS,)
LIMIT = 25.0
"""Percent of error that is allowed for a chip whose cells and node are stated."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the error of each chip's area and of its operations per joule."""
    for one in measured_chips(reference):
        name = f"dataflow/silicon, {one.name}"
        if one.chip is None:
            yield absent(name, "computes by charge; converters are not modelled")
            continue
        area, per_j = area_mm2(one.chip), operations_per_joule(one.chip)
        said = f"{area:.3f} of {one.area_mm2:.3f} mm2"
        yield mean_error(f"{name}, area", [area / one.area_mm2 - 1.0], LIMIT, said)
        said = f"{per_j / 1e12:.1f} of {one.operations_per_joule / 1e12:.1f} TOPS/W"
        if not one.states_sparsity:
            said += "; its paper states no sparsity"
        limit = LIMIT if one.states_sparsity else None
        error = [one.operations_per_joule / per_j - 1.0]
        yield mean_error(f"{name}, joules an operation", error, limit, said)
