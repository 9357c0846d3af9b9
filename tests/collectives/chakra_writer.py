"""Chakra traces for tests, in the wire format of schema 0.0.4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulators.collectives.traces.operators import Operator

COLLECTIVES = {
    "all_reduce": 0,
    "all_gather": 2,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
}


def write_chakra(path: Path, operators: Sequence[Operator]) -> None:
    out = bytearray(_prefixed(_text(1, "0.0.4")))
    for o in operators:
        kind = {"compute": 4, "send": 5, "recv": 6, "collective": 7}[o.kind]
        body = _number(1, o.id) + _text(2, o.name) + _number(3, kind)
        if o.after:
            body += _block(5, b"".join(_varint(before) for before in o.after))
        if o.duration_ns:
            body += _number(7, o.duration_ns // 1000)
        attributes = {"comm_size": o.size_bytes} if o.kind != "compute" else {}
        if o.kind == "collective":
            attributes["comm_type"] = COLLECTIVES[o.collective]
        if o.kind in ("send", "recv"):
            attributes["comm_dst" if o.kind == "send" else "comm_src"] = o.peer
            attributes["comm_tag"] = o.tag
        for name, value in attributes.items():
            body += _block(10, _text(1, name) + _number(9, value))
        out += _prefixed(body)
    path.write_bytes(bytes(out))


def _varint(value: int) -> bytes:
    value %= 1 << 64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | 0) + _varint(value)


def _block(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, value: str) -> bytes:
    return _block(field, value.encode())


def _prefixed(message: bytes) -> bytes:
    return _varint(len(message)) + message
