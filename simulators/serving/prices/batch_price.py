"""Selects the price tables of iterations: composition, or operator times from a file."""

from __future__ import annotations

from dataclasses import replace

from simulators.core.columns import MEASURED, shares_of
from simulators.core.jit import Kernel
from simulators.serving.adapters.fleet import fleet_of
from simulators.serving.adapters.price import adapted_price, with_adapters
from simulators.serving.deployment import Hardware
from simulators.serving.point import ADDITIVE, ServingPoint
from simulators.serving.prices.iteration_table import IterationTable, iteration_table
from simulators.serving.prices.lookup import table_price
from simulators.serving.prices.skipped_layers import skipping_price, skips_layers, with_segments
from simulators.serving.prices.user_operator_times import load_op_table, op_price
from simulators.serving.speculation.drafter import Drafter
from simulators.serving.speculation.price import drafted_price, with_drafts


def prices_of(
    point: ServingPoint, hardware: Hardware, drafter: Drafter | None = None
) -> tuple[IterationTable, Kernel[..., float]]:
    """Return the price tables of a point and of its drafter, and the kernel for both."""
    if point.iteration_table and not point.lora.adapters and not skips_layers(point):
        layers = hardware.replica.model.layers // point.pp
        known = load_op_table(point.iteration_table, layers=layers, tp=point.tp)
        measured = shares_of(MEASURED).reshape(-1)
        table = IterationTable(known.shape, known.table, None, shares=measured, reach={})
        return table, op_price
    additive = point.scheduling.mixed_step == ADDITIVE
    found = iteration_table(hardware, additive=additive)
    if skips_layers(point):
        shape, numbers = with_segments(found, point, hardware.replica.model.layers)
        return replace(found, shape=shape, table=numbers), skipping_price
    if fleet := fleet_of(point, hardware):
        shape, numbers = with_adapters(found, hardware, fleet)
        return replace(found, shape=shape, table=numbers), adapted_price
    if drafter is None:
        return found, table_price
    shape, numbers = with_drafts(found, drafter, additive=additive)
    return replace(found, shape=shape, table=numbers), drafted_price
