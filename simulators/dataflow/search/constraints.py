"""What mappings must obey: dimensions, bounds and orders of loops by level, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulators.core.errors import UserError, suggestion
from simulators.dataflow.mapping.loop_nest import ROWS
from simulators.workload.loop_nest import Layer

_KEYS = (*ROWS, "order", "keep")


@dataclass(frozen=True)
class Constraints:
    """What a mapping must obey; whatever is not named is free.

    `allow` names the dimensions that may stand in a level's `temporal`, `spatial_x` or `spatial_y`
    loops; `fixed` the bounds that some of them have there; `order` the dimensions of a level's
    loops in time, outermost first; `keep` the tensors a level keeps, instead of the sets its
    accelerator allows.
    """

    allow: Mapping[str, Mapping[str, str | tuple[str, ...]]] = field(default_factory=dict)
    fixed: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keep: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    least_utilization: float = 0.0

    def left_free(self, layer: Layer, sizes: Sequence[int], levels: Sequence[str]) -> list[int]:
        """Return the part of each dimension that fixed loops leave to the mapper.

        Raises:
            UserError: a level, a loop or a bound is not one of the layer on these levels.
        """
        for name in (*self.allow, *self.keep, *self.fixed, *self.order):
            if name not in levels:
                raise UserError(f"constraint on level '{name}'{suggestion(name, levels)}")
        left = list(sizes)
        for name, rows in self.fixed.items():
            for row, bounds_of in rows.items():
                if row not in ROWS:
                    raise UserError(f"constraint on {name}: '{row}'{suggestion(row, ROWS)}")
                for dim, bound in bounds_of.items():
                    d = _dimension(name, dim, layer)
                    if bound < 1 or left[d] % bound:
                        raise UserError(
                            f"constraint on {name}: {dim} {bound} does not divide what is left of "
                            f"{dim}, {left[d]}; of {sizes[d]}"
                        )
                    left[d] //= bound
        for name, dims in self.order.items():
            for dim in dims:
                _dimension(name, dim, layer)
        return left


def read_constraints(table: Any) -> Constraints:
    """Return constraints written as a table by level, and a minimum utilization.

    Each level may have `temporal`, `spatial_x` and `spatial_y`: a list of the dimensions allowed
    there, or a table of the bounds that are fixed; `order`; and `keep`.

    Raises:
        UserError: a key or a value means nothing.
    """
    if not isinstance(table, Mapping):
        raise UserError("constraints: a table by level is needed, as in DRAM: {order: [M, C]}")
    allow: dict[str, dict[str, tuple[str, ...]]] = {}
    fixed: dict[str, dict[str, dict[str, int]]] = {}
    whole: dict[str, dict[str, tuple[str, ...]]] = {"order": {}, "keep": {}}
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
            if key in whole:
                whole[key][level] = words
            else:
                allow.setdefault(level, {})[key] = words
    return Constraints(allow=allow, fixed=fixed, **whole, least_utilization=float(least))


def _dimension(level: str, dim: str, layer: Layer) -> int:
    """Return the number of a dimension that a constraint names."""
    if dim not in layer.dims:
        raise UserError(f"constraint on {level}: no loop '{dim}'{suggestion(dim, layer.dims)}")
    return layer.dims.index(dim)
