"""A table leaves as CSV, Parquet, Markdown or JSON, by the suffix of the file it goes to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl

from simulators.core.errors import UserError


def write_table(table: pl.DataFrame, file: Path) -> None:
    """Write a table in the format that the file's suffix names.

    Raises:
        UserError: the suffix names none, or the file cannot be written.
    """
    if file.suffix not in _WRITERS:
        raise UserError(f"{file}: write a file that ends in {', '.join(_WRITERS)}")
    try:
        _WRITERS[file.suffix](table, file)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from error


def as_markdown(table: pl.DataFrame) -> str:
    """Return a table as Markdown, numbers to the right.

    >>> print(as_markdown(pl.DataFrame({"gpu": ["h100"], "tp": [4]})))
    | gpu | tp |
    | --- | ---: |
    | h100 | 4 |
    """
    marks = ["---:" if kind.is_numeric() else "---" for kind in table.dtypes]
    lines = [table.columns, marks, *(map(_cell, row) for row in table.iter_rows())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_json(table: pl.DataFrame) -> str:
    """Return a table as a list of JSON objects."""
    return json.dumps(table.to_dicts(), indent=1, default=str)


def _cell(value: object) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")


_WRITERS: dict[str, Callable[[pl.DataFrame, Path], object]] = {
    ".csv": lambda table, file: table.write_csv(file),
    ".parquet": lambda table, file: table.write_parquet(file),
    ".md": lambda table, file: file.write_text(as_markdown(table) + "\n", encoding="utf-8"),
    ".json": lambda table, file: file.write_text(as_json(table) + "\n", encoding="utf-8"),
}
