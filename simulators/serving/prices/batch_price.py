"""What an iteration is priced by: composition's tables, or operator times from a file."""

from __future__ import annotations

from simulators.core.jit import Kernel
from simulators.core.levels import MEASURED, shares_of
from simulators.serving.deployment import Hardware
from simulators.serving.point import ADDITIVE, ServingPoint
from simulators.serving.prices.iteration_table import (
    IterationTable,
    iteration_table,
)
from simulators.serving.prices.lookup import table_price
from simulators.serving.prices.operator_table import op_price
from simulators.serving.prices.user_operator_times import load_op_table


def prices_of(point: ServingPoint, hardware: Hardware) -> tuple[IterationTable, Kernel[..., float]]:
    """Return the tables of a point, and the kernel that reads them."""
    if point.iteration_table:
        layers = hardware.replica.model.layers // point.pp
        known = load_op_table(point.iteration_table, layers=layers, tp=point.tp)
        measured = shares_of(MEASURED).reshape(-1)
        table = IterationTable(known.shape, known.table, None, shares=measured, reach={})
        return table, op_price
    return iteration_table(hardware, additive=point.mixed_step == ADDITIVE), table_price
