"""Lay out tables for a terminal width: headers wrap after underscores, sentences between words.

Numbers, names and keys are never broken. Columns that do not fit continue in further blocks, which
repeat the columns that name the row.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

NAMES = ("", "design", "key")
"""Headers of columns that name the row."""

_GAP = "  "
_PIECE, _WORD = re.compile(r"[^_ ]*(?:_[a-z]$)?[_ ]?"), re.compile(r"\S+\s?")
_FIGURE = re.compile(r"[$+\-−]?[\d.]")
MOST_WORDS = 10
"""Most words of a cell that counts as a number with its unit."""


@dataclass(frozen=True)
class TableBlock:
    """Printed lines of adjacent columns: the header, and each row."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def shared(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str, list[int]]:
    """Return the common cells of all rows as text, and the columns that differ.

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
    """Return a paragraph in lines of that width, later ones indented; long words stay whole.

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
    """Return the least width of a column."""
    pieces = [piece.rstrip() for piece in _PIECE.findall(column[0])]
    for cell in column[1:]:
        pieces += [cell] if _is_figure(cell) else cell.split()
    return max(map(len, pieces), default=0)


def _groups(header: Sequence[str], least: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns of each block: as many as fit after those that name the row."""
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
    """Return how many columns name the row: the first, or a mark and the next."""
    return 2 if header[0] == "" else 1


def _widths(
    columns: Sequence[Sequence[str]], least: Sequence[int], group: Sequence[int], width: int
) -> list[int]:
    """Return the widths of the columns of a block: the widest shrink first, down to a word."""
    widths = {i: max(map(len, columns[i])) for i in group}
    left = width - len(_GAP) * (len(group) - 1)
    while sum(widths.values()) > left:
        giving = [i for i in group if widths[i] > least[i]]
        if not giving:
            break
        widths[max(giving, key=widths.__getitem__)] -= 1
    return list(widths.values())


def _block(columns: Sequence[Sequence[str]], widths: Sequence[int]) -> TableBlock:
    """Return columns of these widths side by side, figures to the right."""
    broken = [
        [_broken(cell, width, _WORD if row else _PIECE) for row, cell in enumerate(column)]
        for column, width in zip(columns, widths, strict=True)
    ]
    named = _named([column[0] for column in columns])
    left = [i < named or any(len(cell) > 1 for cell in c[1:]) for i, c in enumerate(broken)]
    widths = [max(len(part) for cell in column for part in cell) for column in broken]
    rows = [_lines(cells, widths, left) for cells in zip(*broken, strict=True)]
    return TableBlock(rows[0], tuple(rows[1:]))


def _lines(
    cells: Sequence[Sequence[str]], widths: Sequence[int], left: Sequence[bool]
) -> tuple[str, ...]:
    """Return the printed lines of one row, as many as its highest cell has parts."""
    high = max(map(len, cells))
    padded = [[*cell, *[""] * (high - len(cell))] for cell in cells]
    return tuple(
        _GAP.join(
            part.ljust(width) if to_left else part.rjust(width)
            for part, width, to_left in zip(parts, widths, left, strict=True)
        ).rstrip()
        for parts in zip(*padded, strict=True)
    )


def _is_figure(cell: str) -> bool:
    """Return whether a cell is a number with its unit, not a sentence.

    >>> _is_figure("7.5 of 10 ms"), _is_figure("8 " + "words " * 20)
    (True, False)
    """
    return bool(_FIGURE.match(cell)) and len(cell.split()) <= MOST_WORDS


def _broken(text: str, width: int, pieces: re.Pattern[str]) -> list[str]:
    """Return a cell in parts no longer than `width`, each as long as it can be."""
    if len(text) <= width or (pieces is _WORD and _is_figure(text)):
        return [text]
    parts = [""]
    for piece in pieces.findall(text):
        if parts[-1] and len((parts[-1] + piece).rstrip()) > width:
            parts.append("")
        parts[-1] += piece
    return [part.rstrip() for part in parts]
