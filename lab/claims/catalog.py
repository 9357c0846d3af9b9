"""Rows of measured deployments that name a model or a GPU that the catalog lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from lab.tables.records import is_gpu, is_model
from lab.tables.rows import read_records


def unknown_names(
    reference: Path, tables: Mapping[str, Sequence[str]], language_models: Sequence[str]
) -> pl.DataFrame:
    """Return a row per measured deployment: whether its model or its GPU is unknown."""
    names = [
        [record[column] or "unnamed" for column in columns]
        for table, columns in tables.items()
        for record in read_records(reference / table, columns)
        if not table.startswith("mlperf/")
        or (record[columns[0]] or "").startswith(tuple(language_models))
    ]
    return pl.DataFrame({"predicted": [not (is_model(m) and is_gpu(g)) for m, g in names]})
