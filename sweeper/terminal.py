"""Output to terminals: control characters in text from files become `?`."""

from __future__ import annotations

import re
from typing import Any, TextIO

_OURS = re.compile(r"(\x1b\[[0-9;]*m)")
"""Bold and faint, the only escape sequences that we write."""


def printable(text: str) -> str:
    r"""Return text with control characters replaced; line breaks stay.

    >>> printable("a\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else "?" for c in text)


class Quoting:
    """A stream to a terminal that passes text, bold and faint only."""

    def __init__(self, stream: TextIO) -> None:
        self.unquoted = stream

    def write(self, text: str) -> int:
        """Write text with control characters replaced."""
        pieces = _OURS.split(text)
        pieces[::2] = map(printable, pieces[::2])
        return self.unquoted.write("".join(pieces))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unquoted, name)


def quoting(stream: TextIO) -> TextIO:
    """Return a stream that replaces control characters if it is a terminal."""
    return Quoting(stream) if stream.isatty() else stream  # type: ignore[return-value]
