"""Read Chakra execution traces: length-prefixed protocol-buffer messages.

Sridharan et al., "Chakra" (2023); schema 0.0.4 of mlcommons/chakra. Only the fields
needed for timing are decoded. Durations are whole
microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulators.collectives.traces.operators import Operator
from simulators.core.errors import UserError

NS_PER_US: Final = 1000

_KINDS = {5: "send", 6: "recv", 7: "collective"}
_COLLECTIVES = {
    0: "all_reduce",
    2: "all_gather",
    5: "broadcast",
    6: "all_to_all",
    7: "reduce_scatter",
}
_ID, _NAME, _TYPE, _CTRL_DEPS, _DATA_DEPS, _DURATION, _ATTR = 1, 2, 3, 4, 5, 7, 10
"""Fields of a node; all kinds but `_KINDS` are compute."""
_SIGNED_FIELDS, _PLAIN_FIELDS = (15, 17), (7, 9, 11, 13, 27)
"""Fields of an attribute that hold one whole number, zigzag coded or plain."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types."""
_TOP_BIT, _WRAP = 1 << 63, 1 << 64


def read_chakra(path: Path) -> tuple[Operator, ...]:
    """Return the operators of one rank's Chakra trace.

    Raises:
        UserError: the file is truncated, is not a Chakra trace, or has an unknown collective.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    try:
        messages = list(_delimited(content))
        return tuple(_node(_fields(message), path) for message in messages[1:])
    except (IndexError, ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a Chakra execution trace: {error}") from error


Fields = list[tuple[int, int | bytes]]


def _node(entries: Fields, path: Path) -> Operator:
    plain = dict(entries)
    numbers = {field: value for field, value in plain.items() if isinstance(value, int)}
    name = plain.get(_NAME, b"")
    after: list[int] = []
    attributes: dict[str, int] = {}
    for field, value in entries:
        if field in (_CTRL_DEPS, _DATA_DEPS):
            after += [value] if isinstance(value, int) else _packed(value)
        elif field == _ATTR and isinstance(value, bytes):
            attributes.update(_attribute(_fields(value)))
    kind = _KINDS.get(numbers.get(_TYPE, 0), "compute")
    found = Operator(
        id=numbers.get(_ID, 0),
        name=name.decode() if isinstance(name, bytes) else "",
        kind=kind,
        after=tuple(dict.fromkeys(after)),
        duration_ns=numbers.get(_DURATION, 0) * NS_PER_US,
        size_bytes=0 if kind == "compute" else attributes.get("comm_size", 0),
    )
    if kind == "collective":
        code = attributes.get("comm_type", 0)
        if code not in _COLLECTIVES:
            raise UserError(
                f"{path}: node {found.id} '{found.name}' is a collective of unknown type {code}"
            )
        return replace(found, collective=_COLLECTIVES[code])
    if kind in ("send", "recv"):
        other = attributes.get("comm_dst" if kind == "send" else "comm_src", -1)
        return replace(found, peer=other, tag=attributes.get("comm_tag", 0))
    return found


def _attribute(entries: Fields) -> dict[str, int]:
    """Return an integer attribute, or None."""
    name, found = "", None
    for number, value in entries:
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif number in _PLAIN_FIELDS and isinstance(value, int):
            found = value - _WRAP if value >= _TOP_BIT else value
        elif number in _SIGNED_FIELDS and isinstance(value, int):
            found = (value >> 1) ^ -(value & 1)
    return {} if found is None else {name: found}


def _delimited(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        length, at = _read_varint(content, at)
        if at + length > len(content):
            raise ValueError(f"a message of {length} bytes is truncated at byte {at}")
        yield content[at : at + length]
        at += length


def _fields(message: bytes) -> Fields:
    found: Fields = []
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _read_varint(message, at)
            found.append((number, value))
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
        if wire == _BYTES:
            length, at = _read_varint(message, at)
        elif not length:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + length > len(message):
            raise ValueError(f"field {number} is truncated at byte {at}")
        found.append((number, message[at : at + length]))
        at += length
    return found


def _packed(block: bytes) -> list[int]:
    values, at = [], 0
    while at < len(block):
        value, at = _read_varint(block, at)
        values.append(value)
    return values


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError(f"a number of more than 64 bits at byte {at}")
