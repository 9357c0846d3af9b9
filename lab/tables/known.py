"""Rows of measured tables whose devices and models are described in the catalog."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
    kept, unknown = [], Counter[str]()
    for row in rows:
        foreign = [name for name, is_known in known.items() if not is_known(row[name])]
        if foreign:
            unknown[f"the unknown {foreign[0]} '{row[foreign[0]]}'"] += 1
        else:
            kept.append(row)
    if unknown:
        names = sorted(unknown)
        more = f" and {len(names) - NAMED} other names" if len(names) > NAMED else ""
        said = ", ".join(f"{unknown[name]:,} of {name}" for name in names[:NAMED])
        _warn(f"{table}: left out {said}{more}")
    return kept


@functools.cache
def _warn(said: str) -> None:
    LOG.warning(said)
