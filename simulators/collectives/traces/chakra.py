"""A Chakra execution trace is metadata and nodes, each a length-prefixed protocol-buffer message.

Sridharan et al., "Chakra" (2023); schema 0.0.4 of mlcommons/chakra. The few fields that timing
needs are read and written here in the wire format itself; all others are passed over. Durations are
whole microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from simulators.collectives.traces.operators import Operator
from simulators.core.errors import UnknownNameError, UserError

NS_PER_US: Final = 1000

_COMP, _SEND, _RECV, _COLL = 4, 5, 6, 7
_CHAKRA_COLLECTIVES = {
    0: "all_reduce", 2: "all_gather", 5: "broadcast", 6: "all_to_all", 7: "reduce_scatter",
}  # fmt: skip
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ID, _NAME, _TYPE, _CTRL_DEPS, _DATA_DEPS, _DURATION, _ATTR = 1, 2, 3, 4, 5, 7, 10
_SIGNED_FIELDS, _PLAIN_FIELDS = (15, 17), (7, 9, 11, 13, 27)
_INT64_FIELD: Final = 9
_TOP_BIT, _WRAP = 1 << 63, 1 << 64


def read_chakra(path: Path) -> tuple[Operator, ...]:
    """Return the operators of one rank's Chakra trace.

    Raises:
        UserError: the file is cut off or is no such trace, or has a collective unknown here.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    try:
        messages = list(_delimited(content))
        return tuple(_node(dict_of, path) for dict_of in map(_fields, messages[1:]))
    except (IndexError, ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not a Chakra execution trace: {error}") from error


def write_chakra(path: Path, operators: Sequence[Operator]) -> None:
    """Write one rank's operators as a Chakra trace; durations are whole microseconds there.

    Raises:
        UserError: a duration is not a whole number of microseconds, or not all ranks take part.
    """
    out = bytearray(_prefixed(_text(1, "0.0.4")))
    for o in operators:
        if o.group:
            raise UserError(f"operator {o.id} is of ranks {list(o.group)}; a trace is of all ranks")
        if o.duration_ns % NS_PER_US:
            raise UserError(f"operator {o.id} takes {o.duration_ns} ns; a trace holds microseconds")
        kind = {"compute": _COMP, "send": _SEND, "recv": _RECV, "collective": _COLL}[o.kind]
        body = _number(_ID, o.id) + _text(_NAME, o.name) + _number(_TYPE, kind)
        if o.after:
            body += _block(_DATA_DEPS, b"".join(_varint(before) for before in o.after))
        if o.duration_ns:
            body += _number(_DURATION, o.duration_ns // NS_PER_US)
        attributes = {"comm_size": o.size_bytes} if o.kind != "compute" else {}
        if o.kind == "collective":
            codes = {name: code for code, name in _CHAKRA_COLLECTIVES.items()}
            if o.collective not in codes:
                raise UnknownNameError("collective of a Chakra trace", o.collective, codes)
            attributes["comm_type"] = codes[o.collective]
        if o.kind in ("send", "recv"):
            attributes["comm_dst" if o.kind == "send" else "comm_src"] = o.peer
            attributes["comm_tag"] = o.tag
        for name, value in attributes.items():
            body += _block(_ATTR, _text(1, name) + _number(_INT64_FIELD, value))
        out += _prefixed(body)
    path.write_bytes(bytes(out))


Fields = list[tuple[int, int | bytes]]


def _node(entries: Fields, path: Path) -> Operator:
    ident, name, kind, duration_us = 0, "", 0, 0
    after: list[int] = []
    attributes: dict[str, int] = {}
    for number, value in entries:
        if number == _ID and isinstance(value, int):
            ident = value
        elif number == _NAME and isinstance(value, bytes):
            name = value.decode()
        elif number == _TYPE and isinstance(value, int):
            kind = value
        elif number == _DURATION and isinstance(value, int):
            duration_us = value
        elif number in (_CTRL_DEPS, _DATA_DEPS):
            after += [value] if isinstance(value, int) else _packed(value)
        elif number == _ATTR and isinstance(value, bytes):
            attributes.update(_attribute(_fields(value)))
    common = {"id": ident, "name": name, "after": tuple(dict.fromkeys(after))}
    duration_ns = duration_us * NS_PER_US
    if kind == _COLL:
        code = attributes.get("comm_type", 0)
        if code not in _CHAKRA_COLLECTIVES:
            raise UserError(f"{path}: node {ident} '{name}' is a collective of unknown type {code}")
        return Operator(
            **common, kind="collective", duration_ns=duration_ns,  # type: ignore[arg-type]
            collective=_CHAKRA_COLLECTIVES[code], size_bytes=attributes.get("comm_size", 0),
        )  # fmt: skip
    if kind in (_SEND, _RECV):
        word, peer = ("send", "comm_dst") if kind == _SEND else ("recv", "comm_src")
        return Operator(
            **common, kind=word, duration_ns=duration_ns,  # type: ignore[arg-type]
            size_bytes=attributes.get("comm_size", 0), peer=attributes.get(peer, -1),
            tag=attributes.get("comm_tag", 0),
        )  # fmt: skip
    return Operator(**common, kind="compute", duration_ns=duration_ns)  # type: ignore[arg-type]


def _attribute(entries: Fields) -> dict[str, int]:
    """Return an attribute that is a whole number, or nothing."""
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
            raise ValueError(f"a message of {length} bytes is cut off at byte {at}")
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
            raise ValueError(f"field {number} is cut off at byte {at}")
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


def _varint(value: int) -> bytes:
    value %= _WRAP
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _block(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _text(field: int, value: str) -> bytes:
    return _block(field, value.encode())


def _prefixed(message: bytes) -> bytes:
    return _varint(len(message)) + message
