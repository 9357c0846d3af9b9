"""Normalises conditions and values of axes: `800ms`, `10k`, `gpu = 'H100'`.

Numbers with a unit become plain numbers, and aliases of catalog entries become their names.
"""

from __future__ import annotations

import re
from typing import Any

from simulators.core.folder import FOLDERS
from sweeper.words import number_in

_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
}
"""What may stand right behind a number in a condition, and what it is worth there."""
_WORDS = "|".join(sorted(_UNITS, key=len, reverse=True))
_NUMBER = re.compile(
    rf"('(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`)|(?<![\w.])(\d+(?:\.\d+)?|\.\d+)({_WORDS})\b"
)
_EQUAL = re.compile(r"\b(\w+)(\s*(?:=|<>|!=)\s*)'([^']*)'")
_AMONG = re.compile(r"\b(\w+)(\s+(?:NOT\s+)?IN\s*)\(([^()]*)\)", re.IGNORECASE)
_KINDS = {"prices": "price"}
"""The folder that a column names, where it is not called like that."""


def spelt(text: str) -> str:
    """Return a condition with plain numbers and with names in place of aliases.

    >>> spelt("ttft_p99_s <= 800ms AND gpu = 'H100'")
    "ttft_p99_s <= 0.8 AND gpu = 'h100_sxm'"
    """
    text = _NUMBER.sub(lambda m: m[1] or f"{float(m[2]) * _UNITS[m[3]]:.12g}", text)
    text = _EQUAL.sub(lambda m: f"{m[1]}{m[2]}'{named(_kind(m[1]), m[3])}'", text)
    return _AMONG.sub(lambda m: f"{m[1]}{m[2]}({_each_named(m[1], m[3])})", text)


def named(kind: str, word: str) -> str:
    """Return the name of what a word is an alias of, among things of a kind; else the word.

    >>> named("gpu", "h100"), named("gpu", "h100_sxm"), named("colour", "h100")
    ('h100_sxm', 'h100_sxm', 'h100')
    """
    folder = FOLDERS.get(kind)
    if folder is None or folder.suffix != ".toml" or word in folder.names():
        return word
    if not folder.has(word):
        return named(folder.besides.kind, word) if folder.besides else word
    return folder.find(word).stem


def number(written: Any, unit: str) -> Any:
    """Return what is written for a numeric axis, texts such as `10k` as numbers.

    >>> number(["800ms", 2], "s"), number("1..8", "")
    ([0.8, 2], '1..8')
    """
    if isinstance(written, list | tuple):
        return [number(item, unit) for item in written]
    found = number_in(written, unit) if isinstance(written, str) else None
    return written if found is None else found


def _kind(column: str) -> str:
    return _KINDS.get(column, column)


def _each_named(column: str, listed: str) -> str:
    kind = _kind(column)
    return re.sub(r"'([^']*)'", lambda m: f"'{named(kind, m[1])}'", listed)
