"""What a space file may hold: the type of each key, and what it is called when it is another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from simulators.core.errors import UserError
from sweeper.typed import MistypedError, typed

Sql = str | int | float | bool


class Space(TypedDict, total=False):
    """A space as it is written; an axis has a notation of its own."""

    simulator: str
    axes: dict[str, Any]
    zip: list[str | list[str]]
    union: list[dict[str, Any]]
    derived: dict[str, Sql]
    constraints: str | list[Sql]
    when: dict[str, Sql]
    slo: str | None
    where: str | None
    objectives: dict[str, Literal["min", "max"]]
    given: list[str] | None
    scenario: dict[str, Any]


KEYS = tuple(Space.__annotations__)
_MEANT = {
    "simulator": "the name of a simulator",
    "axes": "a mapping from names to values",
    "zip": "a list of lists of axes that move together, as in [[tp, pp]]",
    "union": "a list of small grids, as in [{x: 1, y: [4, 8]}]",
    "derived": "a mapping from names to SQL",
    "constraints": "a list of SQL conditions",
    "when": "a mapping from axes to the SQL condition under which they count",
    "slo": "one SQL condition over the results",
    "where": "one SQL condition over the results",
    "objectives": "a mapping from metrics to min or max",
    "given": "a list of axes that are not chosen, as in [model, qps]",
    "scenario": "a mapping with `targets:`",
}


def check_shape(space: Mapping[str, Any], file: str, lines: Mapping[str, int]) -> None:
    """Raise `UserError` for the first key that holds another kind of thing than it must.

    Args:
        space: what is written.
        file: where, for what is said.
        lines: of its keys, as far as they are known.
    """
    try:
        typed({key: value for key, value in space.items() if value is not None}, Space)
    except MistypedError as error:
        key = re.split(r"\W", error.path)[0]
        shown = repr(space.get(key))
        shown = shown if len(shown) < 80 else f"{shown[:77]}..."
        place = f"{file}, line {lines[key]}" if key in lines else file
        raise UserError(f"{place}: `{key}` is {_MEANT.get(key, error)}, not {shown}") from error
