"""A terminal shows what files say of themselves, and obeys none of it: control signs become `?`."""

from __future__ import annotations

import re
from typing import Any, TextIO

_OURS = re.compile(r"(\x1b\[[0-9;]*m)")
"""Bold and faint, which is all that is written here besides text."""


def printable(text: str) -> str:
    r"""Return text without what a terminal would obey; line breaks stay.

    >>> printable("a\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else "?" for c in text)


class Quoting:
    """A stream to a terminal that lets through text and weights of type, whoever writes there."""

    def __init__(self, stream: TextIO) -> None:
        self.unquoted = stream

    def write(self, text: str) -> int:
        """Write text; what it may not hold is shown as `?`."""
        pieces = _OURS.split(text)
        pieces[::2] = map(printable, pieces[::2])
        return self.unquoted.write("".join(pieces))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unquoted, name)


def quoting(stream: TextIO) -> TextIO:
    """Return a stream that quotes where it ends at a terminal; to others goes what is meant."""
    return Quoting(stream) if stream.isatty() else stream  # type: ignore[return-value]
