"""One design of a sweep, found by the first digits of its key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from simulators.core.contract import Simulator
from simulators.core.errors import UserError
from sweeper.commands.record import Answered
from sweeper.keys import SHOWN, keys
from sweeper.query import knee, pareto_front

KNEE = "knee"
"""The word that stands for the key of the front's knee."""


def design(last: Answered, prefix: str) -> tuple[str, dict[str, Any]]:
    """Return a design's whole key and its row.

    Raises:
        UserError: no design, or more than one, has a key that begins so.
    """
    if prefix == KNEE:
        front = pareto_front(last.store.scan(), last.objectives, where=last.where)
        if front.is_empty():
            raise UserError("no design qualifies, so there is no knee")
        best = front[[knee(front, last.objectives)]].drop("equivalents")
        return keys(last.store.definition, best)[0], best.row(0, named=True)
    rows = last.store.scan().collect()
    named = keys(last.store.definition, rows)
    found = named.str.starts_with(prefix.lower()).arg_true()
    if len(found) != 1:
        what = "several keys begin with" if len(found) else "no design has a key that begins with"
        near = ", ".join(
            named.filter(named.str.starts_with(prefix[:2].lower()))[:5].str.head(SHOWN)
        )
        raise UserError(f"{what} '{prefix}'" + (f"\nNear it: {near}" if near else ""))
    return named[found[0]], rows.row(found[0], named=True)


def point_of(simulator: Simulator, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a row that the simulator asks for."""
    return {f.name: row[f.name] for f in dataclasses.fields(simulator.point) if f.name in row}
