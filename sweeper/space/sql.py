"""Conditions and derived columns are polars SQL: which columns they name, and whether those exist.

SQL expressions are vectorised, cannot run code, and can be asked which columns they need.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import polars as pl

from simulators.core.errors import UserError, unknown


@functools.lru_cache(maxsize=1024)
def names_in(text: str, what: str) -> tuple[str, ...]:
    """Return the columns an SQL expression names; `what` is what messages call it."""
    try:
        return tuple(dict.fromkeys(pl.sql_expr(text).meta.root_names()))
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{what} is not an SQL expression: {error}") from error


def condition(where: str, columns: Sequence[str]) -> pl.Expr:
    """Return an SQL condition over columns as an expression."""
    check_columns(names_in(where, f"where '{where}'"), columns, f"where '{where}'")
    return pl.sql_expr(where)


def joined(*conditions: str | None) -> str | None:
    """Return the condition that all of these hold; None if there is none.

    >>> joined("tp > 1", None), joined("tp > 1", "pp = 1 OR tp = 2")
    ('tp > 1', '(tp > 1) AND (pp = 1 OR tp = 2)')
    """
    kept = [c for c in conditions if c]
    return " AND ".join(f"({c})" for c in kept) if len(kept) > 1 else next(iter(kept), None)


def check_columns(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Raise `UserError` for the first name that is no column, with the nearest that is."""
    for name in names:
        if name not in known:
            raise unknown(f"{what}: there is no column '{name}'", name, known)
