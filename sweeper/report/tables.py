"""Tables as text: printed in columns, or written as CSV, Parquet, Markdown or JSON.

Printed headers wrap after underscores, sentences between words; numbers, names and keys are never
broken. Columns that do not fit continue in further blocks, which repeat the columns that name the
row.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import shutil
import sys
import textwrap
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from simulators.core.errors import UserError
from sweeper.store.parquet import write_atomically
from sweeper.text import printable

_NARROWEST = 40
_LONGEST = 100_000_000
"""Size limit of a text file, in bytes."""
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
    """Return the text of a file; one whose name ends in `.gz` is decompressed.

    Raises:
        UserError: the file cannot be read, is not text, or is too long.
    """
    try:
        if (size := file.stat().st_size) > _LONGEST:
            raise UserError(f"{file} has {size:,} bytes; the limit is {_LONGEST:,}")
        if file.suffix != ".gz":
            return file.read_text(encoding="utf-8")
        with gzip.open(file, "rt", encoding="utf-8") as text:
            found = text.read(_LONGEST + 1)
        if len(found) > _LONGEST:
            raise UserError(f"{file} has more than {_LONGEST:,} characters, the limit")
        return found
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UserError(f"{file} cannot be read: {reason}") from error


def write_text(file: Path, text: str) -> None:
    """Write a file atomically; creates the folder."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not file.is_file():  # a pipe, or a terminal
            file.write_text(text, encoding="utf-8")
            return
        write_atomically(file, [text.encode()])
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


NAMES = ("", "design", "key")
"""Headers of columns that name the row."""

_GAP = "  "
_PIECE, _WORD = re.compile(r"[^_ ]*(?:_[a-z]$)?[_ ]?"), re.compile(r"\S+\s?")
_FIGURE = re.compile(r"[$+\-−]?[\d.]")
MOST_WORDS = 10
"""Most words of a cell that counts as a number with its unit."""
MOST_LINES = 4
"""Lines of a cell beyond which its column goes to another block."""


@dataclass(frozen=True)
class TableBlock:
    """Printed lines of adjacent columns: the header, and each row."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def shared(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str, list[int]]:
    """Return the columns with one value as text, and the indices of the other columns.

    >>> shared(["key", "gpu", "tp"], [["a", "l4", "1"], ["b", "l4", "2"]])
    ('gpu l4', [0, 2])
    """
    columns = [{row[i] for row in rows} for i in range(len(header))]
    alike = [(len(rows) > 1 and len(cells) == 1) or cells == {""} for cells in columns]
    kept = [i for i, name in enumerate(header) if name in NAMES or not alike[i]]
    left = (i for i in range(len(header)) if i not in kept and rows and rows[0][i])
    return ", ".join(f"{header[i]} {rows[0][i]}" for i in left), kept


def blocks(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None
) -> list[TableBlock]:
    """Return a table in blocks at most `width` wide; one block if `width` is None."""
    columns = [list(column) for column in zip(header, *rows, strict=True)]
    if width is None:
        return [_block(columns, [max(map(len, column)) for column in columns])]
    least = [_least(column) for column in columns]
    return [
        _block([columns[i] for i in group], _widths(columns, least, group, width))
        for group in _groups(header, least, width)
    ]


def wrapped(text: str, width: int | None, indent: str = "") -> str:
    """Return a paragraph wrapped to a width; later lines are indented, long words stay whole.

    >>> print(wrapped("words of a sentence", 10, "  "))
    words of a
      sentence
    """
    if width is None or len(text) <= width:
        return text
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _least(column: Sequence[str]) -> int:
    """Return the least width of a column: its longest word, or a few lines of its longest cell."""
    pieces = [piece.rstrip() for piece in _PIECE.findall(column[0])]
    sentences = [cell for cell in column[1:] if not _is_figure(cell)]
    pieces += [*(cell for cell in column[1:] if _is_figure(cell)), *" ".join(sentences).split()]
    return max([*map(len, pieces), *(len(cell) // MOST_LINES for cell in sentences)], default=0)


def _groups(header: Sequence[str], least: Sequence[int], width: int) -> list[list[int]]:
    """Return the column indices of each block; every block starts with the row's name."""
    names = list(range(_named(header)))
    groups: list[list[int]] = []
    left = -1
    for i in range(len(header)):
        if i in names:
            continue
        if left < least[i]:
            groups.append([*names])
            left = width - sum(least[n] + len(_GAP) for n in names)
        groups[-1].append(i)
        left -= least[i] + len(_GAP)
    return groups or [names]


def _named(header: Sequence[str]) -> int:
    """Return the number of columns that name the row: the first, or a mark and a name."""
    return 2 if header[0] == "" else 1


def _widths(
    columns: Sequence[Sequence[str]], least: Sequence[int], group: Sequence[int], width: int
) -> list[int]:
    """Return the column widths of a block; the widest column shrinks first, down to a word."""
    widths = {i: max(map(len, columns[i])) for i in group}
    left = width - len(_GAP) * (len(group) - 1)
    while sum(widths.values()) > left:
        giving = [i for i in group if widths[i] > least[i]]
        if not giving:
            break
        widths[max(giving, key=widths.__getitem__)] -= 1
    return list(widths.values())


def _block(columns: Sequence[Sequence[str]], widths: Sequence[int]) -> TableBlock:
    """Return columns of these widths side by side, with figures aligned to the right."""
    broken = [
        [_broken(cell, width, _WORD if row else _PIECE) for row, cell in enumerate(column)]
        for column, width in zip(columns, widths, strict=True)
    ]
    named = _named([column[0] for column in columns])
    is_left = [i < named or any(len(cell) > 1 for cell in c[1:]) for i, c in enumerate(broken)]
    widths = [max(len(part) for cell in column for part in cell) for column in broken]
    rows = []
    for cells in zip(*broken, strict=True):
        lines = [
            _GAP.join(
                part.ljust(width) if left else part.rjust(width)
                for part, width, left in zip(parts, widths, is_left, strict=True)
            ).rstrip()
            for parts in itertools.zip_longest(*cells, fillvalue="")
        ]
        rows.append(tuple(lines))
    return TableBlock(rows[0], tuple(rows[1:]))


def _is_figure(cell: str) -> bool:
    """Return whether a cell is a number with its unit, not a sentence.

    >>> _is_figure("7.5 of 10 ms"), _is_figure("8 " + "words " * 20)
    (True, False)
    """
    return bool(_FIGURE.match(cell)) and len(cell.split()) <= MOST_WORDS


def _broken(text: str, width: int, pieces: re.Pattern[str]) -> list[str]:
    """Return a cell split into lines of at most `width` characters."""
    if len(text) <= width or (pieces is _WORD and _is_figure(text)):
        return [text]
    parts = [""]
    for piece in pieces.findall(text):
        if parts[-1] and len((parts[-1] + piece).rstrip()) > width:
            parts.append("")
        parts[-1] += piece
    return [part.rstrip() for part in parts]
