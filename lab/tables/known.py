"""Tables of measurements may hold rows of devices and models that nobody described yet."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

LOG = logging.getLogger("sweeper")

NAMED = 5
"""Unknown names that a warning spells out."""


def known_rows(
    rows: Iterable[Mapping[str, Any]], table: str, **known: Callable[[Any], object]
) -> list[Mapping[str, Any]]:
    """Return the rows whose columns hold known values, and warn once of the others.

    Args:
        rows: of a table of measurements.
        table: its name, for the warning.
        known: by column, what is true of a value that is known; a set's or a mapping's
            `__contains__` will do.

    >>> rows = [{"gpu": "a"}, {"gpu": "b"}]
    >>> known_rows(rows, "runs.parquet", gpu={"a", "b"}.__contains__) == rows
    True
    """
    kept: list[Mapping[str, Any]] = []
    unknown: dict[tuple[str, str], int] = {}
    for row in rows:
        foreign = [
            (name, str(row[name])) for name, is_known in known.items() if not is_known(row[name])
        ]
        if foreign:
            unknown[foreign[0]] = unknown.get(foreign[0], 0) + 1
        else:
            kept.append(row)
    if unknown:
        _warn(f"{table}: left out {_said(unknown)}")
    return kept


@functools.cache
def _warn(said: str) -> None:
    LOG.warning(said)


def _said(unknown: Mapping[tuple[str, str], int]) -> str:
    names: Sequence[tuple[str, str]] = sorted(unknown)
    said = [f"{unknown[key]:,} of the unknown {key[0]} '{key[1]}'" for key in names[:NAMED]]
    more = len(names) - NAMED
    return ", ".join(said) + (f" and {more} other names" if more > 0 else "")
