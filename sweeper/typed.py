"""Parse input into typed values; errors name the key, the value and the place."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}
_MISTAKE = re.compile(r"(?s)(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`)?$")


class MistypedError(ValueError):
    """A value of another type than must be there: where, and what is wanted."""

    def __init__(self, path: str, wanted: str) -> None:
        super().__init__(f"`{path}` must be {wanted}" if path else wanted)
        self.path, self.wanted = path, wanted


def typed(value: Any, kind: type[T]) -> T:
    """Return plain values as a type: a dataclass, a `TypedDict`, a mapping of lists ...

    Raises:
        MistypedError: they are of another.

    >>> typed({"a": [1, "b"]}, dict[str, list[int]])
    Traceback (most recent call last):
        ...
    sweeper.typed.MistypedError: `[...][1]` must be a whole number
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _mistyped(error) from error


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Return what JSON says, as a type.

    Raises:
        MistypedError: it says something else.
        ValueError: it is no JSON, with the place.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _mistyped(error) from error
    except msgspec.DecodeError as error:
        raise ValueError(f"no JSON: {error}") from error


def _mistyped(error: Exception) -> MistypedError:
    """Return a mistake in the words of who wrote it."""
    match = _MISTAKE.fullmatch(str(error))
    if isinstance(error, RecursionError) or match is None:
        return MistypedError("", "it nests too deep")
    if expected := re.match(r"Expected `([\w| ]+)`, got", match["what"]):
        words = [_WORDS.get(word, word) for word in expected[1].split(" | ")]
        wanted = " or ".join(words) + (", as a key" if match["key"] else "")
    else:
        wanted = match["what"].replace("Object missing required field", "something under")
    return MistypedError(match["path"] or "", wanted)
