"""Changes to a file as typing errors, broken copies and bad will make them."""

from __future__ import annotations

import random
import re

NASTY = [
    b"",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e400",
    b"1" + b"0" * 400,
    b"nan",
    b"inf",
    b"1.2.3",
    b"[]",
    b"{}",
    b"[[1]]",
    b'"x"',
    b"''",
    b"12",
    b"capacity 1e-300..1e300",
    b"1..9999999",
    b"os.path",
    b"&a [*a]",
    b"*a",
    b"[" * 200,
    b"[" * 3000,
    b'{"a":' * 3000,
    b"{a: " * 60,
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"'" + b"y" * 5000 + b"'",
    b"2020-01-01",
    b"!!python/name:os.system",
    b"${x}",
    b"../../etc/passwd",
    b"AVG(x)",
    b"LPAD('x', 2000000000, 'x')",
    b" OR x > 1" * 500,
    b"<<<<<<<",
    b"9223372036854775808",
    b"-0.0",
    b"1_000",
]
_TOKEN = re.compile(rb"[A-Za-z_][\w.]*|\d[\w.+-]*|'[^']*'|\"[^\"]*\"")
_SIGNS = b"[]{}():,&*!\"'\n\t-%@#=<>|\\"


def mutated(content: bytes, dice: random.Random) -> bytes:
    """Return a file with one to four changes."""
    for _ in range(dice.choice((1, 1, 1, 2, 2, 4))):
        content = dice.choice(_CHANGES)(content, dice)
    return content


def _replaced(content: bytes, dice: random.Random) -> bytes:
    """A word or number becomes something nasty."""
    tokens = list(_TOKEN.finditer(content))
    if not tokens:
        return dice.choice(NASTY)
    token = dice.choice(tokens)
    return content[: token.start()] + dice.choice(NASTY) + content[token.end() :]


def _swapped(content: bytes, dice: random.Random) -> bytes:
    """A word or number becomes another of the file."""
    tokens = list(_TOKEN.finditer(content))
    if not tokens:
        return content
    token, other = dice.choice(tokens), dice.choice(tokens)
    return content[: token.start()] + other.group() + content[token.end() :]


def _typed(content: bytes, dice: random.Random) -> bytes:
    """A sign is typed somewhere."""
    at, sign = dice.randrange(len(content) + 1), dice.choice(_SIGNS)
    return content[:at] + bytes([sign]) + content[at + dice.randrange(2) :]


def _flipped(content: bytes, dice: random.Random) -> bytes:
    """A bit flips."""
    if not content:
        return content
    at = dice.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << dice.randrange(8))]) + content[at + 1 :]


def _truncated(content: bytes, dice: random.Random) -> bytes:
    """The file ends half-way."""
    return content[: dice.randrange(len(content) + 1)]


def _line_lost(content: bytes, dice: random.Random) -> bytes:
    """A line is lost, or stands twice."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    at = dice.randrange(len(lines))
    lines[at : at + 1] = [lines[at]] * dice.choice((0, 2))
    return b"".join(lines)


def _appended(content: bytes, dice: random.Random) -> bytes:
    """Something follows that does not belong there."""
    return content + b"\n" + dice.choice(NASTY)


_CHANGES = (
    _replaced,
    _replaced,
    _replaced,
    _swapped,
    _typed,
    _flipped,
    _truncated,
    _line_lost,
    _appended,
)
