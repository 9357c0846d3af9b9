"""Concatenate the tables of scenarios."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from sweeper.report.answers import Answers


def stacked(tables: Sequence[tuple[Answers, pl.DataFrame]]) -> pl.DataFrame:
    """Concatenate tables; axes fixed by a scenario become columns."""
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
