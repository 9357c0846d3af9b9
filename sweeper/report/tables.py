"""Tables as text: printed in columns, or written as CSV, Parquet, Markdown or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl

from simulators.core.errors import UserError


def printable(text: str) -> str:
    r"""Return text without what a terminal would obey; line breaks stay.

    >>> printable("a\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def print_table(title: str, header: list[str], lines: list[list[str]]) -> None:
    """Print a table; on a terminal in colour, piped as plain columns."""
    lines = [[printable(cell) for cell in line] for line in lines]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for name in header:
            table.add_column(
                name, justify="left" if name in ("", "design") else "right", no_wrap=True
            )
        for line in lines:
            table.add_row(*line, style="bold" if line[0] == "*" else None)
        Console().print(table)
        return
    widths = [max(len(x) for x in column) for column in zip(header, *lines, strict=True)]
    if title:
        print(title)
    for line in (header, *lines):
        print(
            "  ".join(
                x.ljust(w) if i < 2 else x.rjust(w)
                for i, (x, w) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
        )


def read_text(file: Path) -> str:
    """Return the text of a file."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{file} cannot be read: {reason}") from error


def write_text(file: Path, text: str) -> None:
    """Write a file whole or not at all, and the folder it is in."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not file.is_file():  # a pipe, or a terminal
            file.write_text(text, encoding="utf-8")
            return
        temporary = file.with_name(f".{os.getpid()}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from error


def write_table(table: pl.DataFrame, file: Path) -> None:
    """Write a table in the format that the file's suffix names."""
    if file.suffix not in _WRITERS:
        raise UserError(f"{file}: write a file that ends in {', '.join(_WRITERS)}")
    try:
        _WRITERS[file.suffix](table, file)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from error


def as_markdown(table: pl.DataFrame) -> str:
    """Return a table as Markdown, numbers to the right.

    >>> print(as_markdown(pl.DataFrame({"name": ["a"], "n": [4]})))
    | name | n |
    | --- | ---: |
    | a | 4 |
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
