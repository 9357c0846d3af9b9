"""Parse input into typed values; errors name the key, the value and the place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from simulators.core.folder import read_toml

T = TypeVar("T")

_WORDS = read_toml(Path(__file__).with_name("text.toml"))["types"]
_MISTAKE = re.compile(r"(?s)(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`)?$")


class MistypedError(ValueError):
    """A value has the wrong type: the path of the value, and the expected type."""

    def __init__(self, path: str, wanted: str) -> None:
        super().__init__(f"`{path}` must be {wanted}" if path else wanted)
        self.path, self.wanted = path, wanted


def typed(value: Any, kind: type[T]) -> T:
    """Convert plain values to a type: a dataclass, a `TypedDict`, a mapping of lists ...

    Raises:
        MistypedError: a value has the wrong type.

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
    """Parse JSON text into a type.

    Raises:
        MistypedError: a value has the wrong type.
        ValueError: the text is not JSON; the message states the position.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _mistyped(error) from error
    except msgspec.DecodeError as error:
        raise ValueError(f"no JSON: {error}") from error


def _mistyped(error: Exception) -> MistypedError:
    match = _MISTAKE.fullmatch(str(error))
    if isinstance(error, RecursionError) or match is None:
        return MistypedError("", "it nests too deep")
    if expected := re.match(r"Expected `([\w| ]+)`, got", match["what"]):
        words = [_WORDS.get(word, word) for word in expected[1].split(" | ")]
        wanted = " or ".join(words) + (", as a key" if match["key"] else "")
    else:
        wanted = match["what"].replace("Object missing required field", "something under")
    return MistypedError(match["path"] or "", wanted)
