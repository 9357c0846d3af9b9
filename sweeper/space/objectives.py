"""The objectives and conditions of a space, and which of its axes are given.

Given axes are scenarios (a model, a load) and are not chosen: designs of different scenarios are
not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl
import pyarrow as pa

from simulators.core.columns import OUTCOME, schema_of
from simulators.core.contract import Direction, given_of, load_simulator, objectives_of
from simulators.core.errors import UserError, unknown
from sweeper.space.design_space import DesignSpace
from sweeper.space.space_config import SpaceConfig
from sweeper.space.sql import condition, joined

Objectives = Mapping[str, Direction]
"""What is wanted: a column to `min` or `max`."""
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)


def objectives(written: SpaceConfig, space: DesignSpace) -> dict[str, Direction]:
    """Return what the space wants small or large: its `objectives`, else all the simulator has."""
    simulator = load_simulator(space.simulator)
    wanted: dict[str, Direction] = dict(written.objectives) or objectives_of(simulator)
    metrics, point = schema_of(simulator.metrics), space.schema
    known = [*metrics.names, *space.derived, *point.names]
    if not wanted:
        raise UserError(
            f"the space names no `objectives:` and the simulator '{space.simulator}' has none "
            f"of its own; write e.g. objectives: {{{known[0]}: min}}"
        )
    for name in wanted:
        if name not in known:
            what = f"neither a metric nor an axis of the simulator '{space.simulator}'"
            raise unknown(f"objective '{name}' is {what}", name, known)
        kinds = metrics if name in metrics.names else point
        kind = space.derived_type(name) if name in space.derived else kinds.field(name).type
        if not any(is_one(kind) for is_one in _NUMBERS):
            raise UserError(f"objective '{name}' is not a number, but {kind}")
    return wanted


def given(written: SpaceConfig, space: DesignSpace, wanted: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the varying axes that are given: named by `given:`, else by the simulator.

    Objectives (`wanted`) are chosen, not given.
    """
    usual = given_of(load_simulator(space.simulator).point)
    named = usual if written.given is None else written.given
    for name in named:
        if name not in space.axes:
            raise unknown(f"`given` names '{name}', which is no axis", name, list(space.axes))
    return tuple(n for n in space.varied if n in named and n not in wanted)


def where(written: SpaceConfig, space: DesignSpace) -> str | None:
    """Return the condition results must meet to be on the front, if the space has one."""
    return joined(*(checked(text, space) for text in (written.slo, written.where)))


def checked(text: str | None, space: DesignSpace) -> str | None:
    """Return a condition on the results of a space; raise `UserError` if it is not one."""
    if text is not None:
        condition(text, _types_of(space))
    return text


def _types_of(space: DesignSpace) -> dict[str, pl.DataType]:
    """Return the type of each column of the answers to a space."""
    derived = [pa.field(name, space.derived_type(name)) for name in space.derived]
    answer = [*schema_of(load_simulator(space.simulator).metrics), *OUTCOME]
    known = {f.name: f for f in [*space.schema, *derived, *answer]}
    frame = pl.DataFrame(pl.from_arrow(pa.schema(list(known.values())).empty_table()))
    words = [n for n, kind in frame.schema.items() if kind == pl.Categorical]
    return dict(frame.with_columns(pl.col(words).cast(pl.String)).schema)


def columns_of(space: DesignSpace) -> list[str]:
    """Return the columns of the answers to a space."""
    metrics = schema_of(load_simulator(space.simulator).metrics).names
    return [*space.axes, *space.derived, *dict.fromkeys([*metrics, *OUTCOME.names])]
