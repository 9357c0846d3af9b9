"""Tables as text: printed in columns, or written as CSV, Parquet, Markdown or JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl

from simulators.core.errors import UserError
from sweeper.report.layout import blocks, shared, wrapped
from sweeper.store.parquet import new_file
from sweeper.text import printable

_NARROWEST = 40
_LONGEST = 100_000_000
"""Bytes of a text that is read."""
_FORMULA = r"^[=+\-@\t\r]"
"""Start of a cell that a spreadsheet would evaluate."""


def print_table(
    title: str, header: list[str], lines: list[list[str]], *, differing: bool = False
) -> None:
    """Print a table for the terminal's width; headers are faint, lines marked `*` bold.

    Args:
        title: a line above the table; may be empty.
        header: column names.
        lines: cells of each row.
        differing: print columns with a single value once, in a line above the table.
    """
    lines = [[printable(cell) for cell in line] for line in lines]
    said = ""
    if differing:
        said, kept = shared(header, lines)
        header, lines = [header[i] for i in kept], [[line[i] for i in kept] for line in lines]
    if title:
        print_words(title)
    if said:
        print_words(f"Same for every row: {said}")
    for number, block in enumerate(blocks(header, lines, width())):
        if number:
            print()
        print("\n".join(_styled(line, "2") for line in block.header))
        for line, row in zip(lines, block.rows, strict=True):
            print("\n".join(_styled(part, "1" if line[0] == "*" else "") for part in row))


def print_words(text: str, indent: str = "  ") -> None:
    """Print a paragraph wrapped to the terminal's width."""
    print(wrapped(printable(text), width(), indent))


def width() -> int | None:
    """Return the width of the terminal, or `COLUMNS`; None for piped output (not wrapped)."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return max(shutil.get_terminal_size().columns, _NARROWEST)
    return None


def _styled(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if code and sys.stdout.isatty() else text


def read_text(file: Path) -> str:
    """Return the text of a file."""
    try:
        if (size := file.stat().st_size) > _LONGEST:
            raise UserError(f"{file} has {size:,} bytes; texts of {_LONGEST:,} are read at most")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{file} cannot be read: {reason}") from error


def write_text(file: Path, text: str) -> None:
    """Write a file atomically; creates the folder."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not file.is_file():  # a pipe, or a terminal
            file.write_text(text, encoding="utf-8")
            return
        temporary = file.with_name(f".{os.getpid()}.tmp")
        try:
            with new_file(temporary) as stream:
                stream.write(text.encode())
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from error


def write_table(table: pl.DataFrame, file: Path) -> None:
    """Write a table in the format that the file's suffix names."""
    if file.suffix not in _WRITERS:
        raise UserError(
            f"{file}: unknown format; use a file name that ends in {', '.join(_WRITERS)}"
        )
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
    rows = (map(_cell, row) for row in table.iter_rows())
    lines = [map(_cell, table.columns), marks, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_json(table: pl.DataFrame) -> str:
    """Return a table as a list of JSON objects."""
    return json.dumps(table.to_dicts(), indent=1, default=str)


def _cell(value: object) -> str:
    """Return a value as an escaped Markdown cell."""
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    text = " ".join(printable(text).split())
    return re.sub(r"[\\|`*\[\]<>&~]", lambda sign: f"&#{ord(sign[0])};", text)


def as_csv(table: pl.DataFrame) -> str:
    """Return a table as CSV; text that a spreadsheet would read as a formula is quoted.

    >>> print(as_csv(pl.DataFrame({"name": ["=1+1", "l4"], "n": [-1, 2]})))
    name,n
    '=1+1,-1
    l4,2
    <BLANKLINE>
    """
    texts = [name for name, kind in table.schema.items() if kind in (pl.String, pl.Categorical)]
    text = pl.col(texts).cast(pl.String)
    quoted = pl.when(text.str.contains(_FORMULA)).then("'" + text).otherwise(text)
    named = {name: f"'{name}" for name in table.columns if re.match(_FORMULA, name)}
    return table.with_columns(quoted.name.keep()).rename(named).write_csv()


_WRITERS: dict[str, Callable[[pl.DataFrame, Path], object]] = {
    ".csv": lambda table, file: file.write_text(as_csv(table), encoding="utf-8"),
    ".parquet": lambda table, file: table.write_parquet(file),
    ".md": lambda table, file: file.write_text(as_markdown(table) + "\n", encoding="utf-8"),
    ".json": lambda table, file: file.write_text(as_json(table) + "\n", encoding="utf-8"),
}
