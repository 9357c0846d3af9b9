"""Tables of several scenarios as one."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from sweeper.report.answers import Answers


def stacked(tables: Sequence[tuple[Answers, pl.DataFrame]]) -> pl.DataFrame:
    """Return the tables below each other, with the columns of all.

    A scenario may leave an axis a single value, and its table out: it has that value there.
    """
    kinds = {name: kind for _, table in tables for name, kind in table.schema.items()}
    whole = []
    for one, table in tables:
        fixed = [
            pl.lit(one.space.axes[name][0] if name in one.space.axes else None)
            .cast(kind)
            .alias(name)
            for name, kind in kinds.items()
            if name not in table.columns
        ]
        whole.append(table.with_columns(fixed).select(list(kinds)))
    return pl.concat(whole, how="vertical_relaxed")
