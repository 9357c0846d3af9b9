"""Mappings: which loops run at which level, in time or in space, and which tensors stay there.

At each level, outermost first: the tensors kept there, the loops that run in time, and the loops
spread over the columns (X) and rows (Y) of the next level's instances. Bounds over a dimension may
multiply to more than it has: the last iteration of each loop then ends where the dimension ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping as Table
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulators.catalog.accelerator import TENSORS, Accelerator
from simulators.core.errors import UserError, suggestion
from simulators.core.jit import Ints
from simulators.dataflow import access as at
from simulators.workload.loop_nest import Layer

Loop = tuple[str, int]
ROWS = ("temporal", "spatial_x", "spatial_y")
"""Loops of a level, as files name them."""
BOUNDS = (at.TEMPORAL, at.SPATIAL_X, at.SPATIAL_Y)
"""The same as rows of numbers."""
_KEYS = ("level", "keep", *ROWS)


@dataclass(frozen=True)
class LevelLoops:
    """One level of a mapping; loops are outermost first."""

    level: str
    keep: tuple[str, ...] = ()
    temporal: tuple[Loop, ...] = ()
    spatial_x: tuple[Loop, ...] = ()
    spatial_y: tuple[Loop, ...] = ()


@dataclass(frozen=True)
class Mapping:
    """A whole nest, outermost level first."""

    levels: tuple[LevelLoops, ...]


def read_mapping(levels: Sequence[Table[str, Any]]) -> Mapping:
    """Return a mapping written as tables with `level`, `keep`, `temporal`, `spatial_x`, `_y`.

    Raises:
        UserError: a key means nothing, or a loop is not `[dimension, bound]`.
    """
    read = []
    for table in levels:
        for key in table:
            if key not in _KEYS:
                raise UserError(f"mapping: '{key}' is not known{suggestion(key, _KEYS)}")
        if "level" not in table:
            raise UserError("mapping: each level needs its name, as in level: DRAM")
        read.append(
            LevelLoops(
                str(table["level"]),
                tuple(table.get("keep", ())),
                *(tuple(_loop(loop, table["level"]) for loop in table.get(k, ())) for k in ROWS),
            )
        )
    return Mapping(tuple(read))


def encode(mapping: Mapping, layer: Layer, accelerator: Accelerator) -> tuple[Ints, Ints]:
    """Return loops (levels x 4 x dims) and keep masks of a mapping.

    Raises:
        UserError: levels, tensors or dimensions are not those of accelerator and layer, a loop
            stands twice, bounds multiply to less than the layer's, or a loop never reaches its end.
    """
    names = [level.name for level in accelerator.levels]
    if (given := [level.level for level in mapping.levels]) != names:
        raise UserError(
            f"mapping has the levels {', '.join(given)}; {accelerator.name} has {', '.join(names)}"
        )
    loops = np.ones((len(names), 4, len(layer.dims)), np.int64)
    keep = np.zeros(len(names), np.int64)
    for k, level in enumerate(mapping.levels):
        for tensor in level.keep:
            if tensor not in TENSORS:
                raise UserError(f"mapping keeps '{tensor}'{suggestion(tensor, TENSORS)}")
            keep[k] |= 1 << TENSORS.index(tensor)
        found = (level.temporal, level.spatial_x, level.spatial_y)
        for row, inner in zip(BOUNDS, found, strict=True):
            _fill(loops[k, row], inner, layer, level.level)
        loops[k, at.ORDER] = ordered([dim for dim, _ in level.temporal], layer)
    if keep[0] != (1 << len(TENSORS)) - 1:
        raise UserError(f"mapping: the outermost level, {names[0]}, keeps every tensor")
    for d, (dim, bound) in enumerate(zip(layer.dims, layer.bounds, strict=True)):
        product = math.prod(int(x) for x in loops[:, BOUNDS, d].ravel())
        if product < bound:
            raise UserError(f"mapping: the loops over {dim} multiply to {product}, not to {bound}")
        _check_reach(loops[:, BOUNDS, d].ravel(), dim, bound)
    return loops, keep


def ordered(inner: Sequence[str], layer: Layer) -> list[int]:
    """Return all dimensions by number, those named last and in their order."""
    found = [layer.dims.index(dim) for dim in inner]
    return [d for d in range(len(layer.dims)) if d not in found] + found


def decode(loops: Ints, keep: Ints, layer: Layer, accelerator: Accelerator) -> Mapping:
    """Return the mapping of loops and keep masks; loops past the end of a dimension stop."""
    loops = loops.copy()
    for d, size in enumerate(layer.bounds):
        _stop_at_end(loops, d, size)

    def found(row: Ints, order: Sequence[int]) -> tuple[Loop, ...]:
        return tuple((layer.dims[d], int(row[d])) for d in order if row[d] > 1)

    plain = range(len(layer.dims))
    return Mapping(
        tuple(
            LevelLoops(
                level.name,
                tuple(t for b, t in enumerate(TENSORS) if int(mask) >> b & 1),
                found(table[at.TEMPORAL], [int(d) for d in table[at.ORDER]]),
                found(table[at.SPATIAL_X], plain),
                found(table[at.SPATIAL_Y], plain),
            )
            for level, table, mask in zip(accelerator.levels, loops, keep, strict=True)
        )
    )


def _check_reach(bounds: Ints, dim: str, size: int) -> None:
    """Refuse loops, outermost first, of which the outermost that iterates goes past the end."""
    inner = math.prod(int(b) for b in bounds)
    for bound in (int(b) for b in bounds):
        inner //= bound
        if bound > 1:
            if (needed := -(-size // inner)) != bound:
                raise UserError(
                    f"mapping: the outermost loop over {dim} runs {bound} times; {needed} of "
                    f"{inner} reach {size}"
                )
            return


def _stop_at_end(loops: Ints, dim: int, size: int) -> None:
    """Shorten the outermost loops over a dimension to the iterations that reach into it."""
    inner = math.prod(int(b) for b in loops[:, BOUNDS, dim].ravel())
    for level in range(len(loops)):
        for row in BOUNDS:
            inner //= int(loops[level, row, dim])
            loops[level, row, dim] = min(int(loops[level, row, dim]), -(-size // inner))
            if loops[level, row, dim] > 1:
                return


def _loop(loop: Any, level: str) -> Loop:
    """Read `[dim, bound]`; of `[dim, bound, last]` the last follows from the layer's bound."""
    if not (
        isinstance(loop, list | tuple)
        and len(loop) in (2, 3)
        and all(isinstance(bound, int) for bound in loop[1:])
    ):
        raise UserError(f"mapping: {level}: {loop!r} is not a loop such as [P, 8] or [P, 8, 3]")
    return (str(loop[0]), loop[1])


def _fill(row: Ints, loops: tuple[Loop, ...], layer: Layer, level: str) -> None:
    for dim, bound in loops:
        if dim not in layer.dims:
            raise UserError(f"mapping: {level}: no loop '{dim}'{suggestion(dim, layer.dims)}")
        d = layer.dims.index(dim)
        if bound < 1 or row[d] != 1:
            raise UserError(
                f"mapping: {level}: the loop over {dim} is not positive, or there twice"
            )
        row[d] = bound
