"""A named dataflow says which dimensions are spread over the array, and so which operand stays.

Weight stationary spreads filters and the reduction: each element holds its weights while outputs
stream past. Output stationary spreads pixels or filters, and reduces in time. Input stationary
spreads what indexes inputs. Row stationary (Chen et al., ISCA 2016) lays filter rows along Y and
output rows along X. What runs in time inside the array is left to the mapper.
"""

from __future__ import annotations

from simulators.catalog.accelerator import Accelerator
from simulators.core.errors import UnknownNameError
from simulators.dataflow.search import Constraints
from simulators.workload.convolution import Layer

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


def constraints_of(dataflow: str, layer: Layer, accelerator: Accelerator) -> Constraints:
    """Return what a named dataflow asks of every fan-out of an accelerator.

    Raises:
        UnknownNameError: no dataflow has that name.
    """
    if dataflow == ANY:
        return Constraints()
    if dataflow not in SPREAD:
        raise UnknownNameError("dataflow", dataflow, dataflows())
    columns, rows = SPREAD[dataflow]
    # A layer without M, such as a depthwise one, spreads its channels where filters would go.
    if "M" not in layer.dims:
        columns = (*columns, "C") if "M" in columns else columns
        rows = (*rows, "C") if "M" in rows else rows
    return Constraints(
        allow={
            level.name: {"spatial_x": columns, "spatial_y": rows} for level in accelerator.levels
        }
    )
