"""A named dataflow says which dimensions are spread over the array, and so which operand stays.

Weight stationary spreads filters and the reduction: each element holds its weights while outputs
stream past. Output stationary spreads pixels or filters, and reduces in time. Input stationary
spreads what indexes inputs. Row stationary (Chen et al., ISCA 2016) lays filter rows along Y and
output rows along X. What runs in time inside the array is left to the mapper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from simulators.catalog.accelerator import Accelerator
from simulators.core.errors import UnknownNameError, UserError, suggestion
from simulators.dataflow.search import ROWS, Constraints
from simulators.workload.loop_nest import Layer

ANY = "any"
_KEYS = (*ROWS, "order", "keep")
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
    if dataflow not in SPREAD:
        raise UnknownNameError("dataflow", dataflow, dataflows())
    columns, rows = SPREAD[dataflow]
    # A layer without M, such as a depthwise one, spreads its channels where filters would go.
    if "M" not in layer.dims:
        columns = (*columns, "C") if "M" in columns else columns
        rows = (*rows, "C") if "M" in rows else rows
    return dataclasses.replace(
        rules,
        allow={
            level.name: {
                "spatial_x": columns, "spatial_y": rows, **rules.allow.get(level.name, {})
            }
            for level in accelerator.levels
        },
    )  # fmt: skip


def hints_for(
    dataflow: str, layer: Layer, accelerator: Accelerator, rules: Constraints | None = None
) -> tuple[Constraints, ...]:
    """Return all named dataflows, to start from where any is allowed; else none."""
    if dataflow != ANY:
        return ()
    return tuple(constraints_of(name, layer, accelerator, rules) for name in SPREAD)


def read_constraints(table: Any) -> Constraints:
    """Return constraints written as a table by level, and a floor of utilization.

    Each level may have `temporal`, `spatial_x` and `spatial_y`: a list of the dimensions allowed
    there, or a table of the bounds that are fixed; `order`; and `keep`.

    Raises:
        UserError: a key or a value means nothing.
    """
    if not isinstance(table, Mapping):
        raise UserError("constraints: a table by level is needed, as in DRAM: {order: [M, C]}")
    allow: dict[str, dict[str, tuple[str, ...]]] = {}
    fixed: dict[str, dict[str, dict[str, int]]] = {}
    order, keep = {}, {}
    least = table.get("least_utilization", 0.0)
    if not isinstance(least, int | float) or not 0.0 <= least <= 1.0:
        raise UserError(f"constraints: least_utilization is {least!r}, not between 0 and 1")
    for level, rules in table.items():
        if level == "least_utilization":
            continue
        if not isinstance(rules, Mapping):
            raise UserError(f"constraints: {level}: {rules!r} is not a table")
        for key, value in rules.items():
            if key not in _KEYS:
                raise UserError(
                    f"constraints: {level}: '{key}' is not known{suggestion(key, _KEYS)}"
                )
            if isinstance(value, Mapping) and key in ROWS:
                if not all(isinstance(bound, int) for bound in value.values()):
                    raise UserError(f"constraints: {level}: {key}: a bound is no whole number")
                fixed.setdefault(level, {})[key] = {str(d): b for d, b in value.items()}
                continue
            if not isinstance(value, list):
                raise UserError(f"constraints: {level}: {key} is {value!r}, not a list")
            words = tuple(str(word) for word in value)
            if key == "order":
                order[level] = words
            elif key == "keep":
                keep[level] = words
            else:
                allow.setdefault(level, {})[key] = words
    return Constraints(
        allow=allow, fixed=fixed, order=order, keep=keep, least_utilization=float(least)
    )
