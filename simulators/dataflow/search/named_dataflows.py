"""Dataflows by name: which dimensions are spread over the array, and so which operand stays.

Weight stationary spreads filters and the reduction: each element holds its weights while outputs
stream past. Output stationary spreads pixels or filters, and reduces in time. Input stationary
spreads what indexes inputs. Row stationary (Chen et al., ISCA 2016) lays filter rows along Y and
output rows along X. What runs in time inside the array is left to the mapper.
"""

from __future__ import annotations

import dataclasses

from simulators.catalog.accelerator import Accelerator
from simulators.core.errors import UnknownNameError
from simulators.dataflow.search.constraints import Constraints
from simulators.workload.loop_nest import Layer

ANY = "any"
SPREAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "weight_stationary": (("M", "B"), ("C", "R", "S")),
    "output_stationary": (("M", "Q", "B", "N"), ("P", "N", "M")),
    "input_stationary": (("C", "Q", "N", "B"), ("C", "P", "R", "S")),
    "row_stationary": (("P", "Q", "M"), ("R", "S", "C", "M")),
}
"""Dimensions that a dataflow spreads over columns and over rows."""


def dataflows() -> tuple[str, ...]:
    """Return the names a design point may use."""
    return (ANY, *SPREAD)


def spread_of(dataflow: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return what a dataflow may spread over columns and over rows; of `any`, of each.

    Raises:
        UnknownNameError: no dataflow has that name.
    """
    if dataflow == ANY:
        return list(SPREAD.values())
    if dataflow not in SPREAD:
        raise UnknownNameError("dataflow", dataflow, dataflows())
    return [SPREAD[dataflow]]


def constraints_of(
    dataflow: str, layer: Layer, accelerator: Accelerator, rules: Constraints | None = None
) -> Constraints:
    """Return what a named dataflow asks of every fan-out of an accelerator, and `rules` besides.

    Raises:
        UnknownNameError: no dataflow has that name.
    """
    rules = rules or Constraints()
    if dataflow == ANY:
        return rules
    [(columns, rows)] = spread_of(dataflow)
    # A layer without M, such as a depthwise one, spreads its channels where filters would go.
    if "M" not in layer.dims:
        columns = (*columns, "C") if "M" in columns else columns
        rows = (*rows, "C") if "M" in rows else rows
    return dataclasses.replace(
        rules,
        allow={
            level.name: {"spatial_x": columns, "spatial_y": rows, **rules.allow.get(level.name, {})}
            for level in accelerator.levels
        },
    )
