"""Areas and energies of chips beside silicon: GPU dies left out of the fit, in-memory computing.

Nothing is fitted to in-memory chips: gates and cells are those of the technology table. A chip that
computes by charge is skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from lab.claims.predictions import predict
from lab.parity.in_memory_chips import area_mm2, operations_per_joule
from lab.tables.edge.in_memory_chips import measured_chips
from simulators.catalog.die import dies
from simulators.codesign.die_area import fitted
from simulators.core.errors import UserError


def gpu_dies(_reference: Path) -> pl.DataFrame:
    """Return the area of each die, left out of the fit; the only die of its node is left aside."""
    known = dies()
    rows = []
    for die in known:
        others = [one for one in known if one is not die]
        if any(die.node == one.node for one in others):
            predicted = fitted(others).mm2(die)
            rows.append({"label": die.name, "predicted": predicted, "measured": die.mm2})
    return pl.DataFrame(rows)


def in_memory_chips(reference: Path) -> pl.DataFrame:
    """Return area, and joules an operation, of each chip."""

    def answer(one: Any) -> list[dict[str, Any]]:
        if one.chip is None:
            raise UserError("computes by charge; converters are not modelled")
        cells = {"states_sparsity": one.states_sparsity}
        ours_j, theirs_j = 1.0 / operations_per_joule(one.chip), 1.0 / one.operations_per_joule
        area = {"figure": "area", "predicted": area_mm2(one.chip), "measured": one.area_mm2}
        joules = {"figure": "joules an operation", "predicted": ours_j, "measured": theirs_j}
        return [{**cells, **area}, {**cells, **joules}]

    return predict(measured_chips(reference), answer, lambda one: {"chip": one.name})
