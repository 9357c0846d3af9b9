"""Read Chakra execution traces: length-prefixed protocol-buffer messages.

Sridharan et al., "Chakra" (2023); schema 0.0.4 of mlcommons/chakra. Only the fields of
`chakra.textproto` are decoded. Durations are whole microseconds.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simulators.collectives.traces.operators import Operator
from simulators.core.errors import UserError

NS_PER_US: Final = 1000

_KINDS = {5: "send", 6: "recv", 7: "collective"}
"""Kind of an operator by the type of a node; all other types are compute."""
_COLLECTIVES = {
    0: "all_reduce",
    2: "all_gather",
    5: "broadcast",
    6: "all_to_all",
    7: "reduce_scatter",
}
SCHEMA = Path(__file__).with_suffix(".textproto")


def read_chakra(path: Path) -> tuple[Operator, ...]:
    """Return the operators of one rank's Chakra trace.

    Raises:
        UserError: the file is truncated, is not a Chakra trace, or has an unknown collective.
    """
    from google.protobuf.message import DecodeError

    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    try:
        nodes = list(_nodes(content))
    except (DecodeError, ValueError) as error:
        raise UserError(f"{path}: not a Chakra execution trace, or truncated: {error}") from error
    return tuple(_operator(node, path) for node in nodes)


@functools.cache
def _message_classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, message_factory, text_format

    text = SCHEMA.read_text(encoding="utf-8")
    schema = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    return dict(message_factory.GetMessages([schema]))


def _nodes(content: bytes) -> Iterator[Any]:
    from google.protobuf.proto import parse_length_prefixed

    classes, stream = _message_classes(), io.BytesIO(content)
    parse_length_prefixed(classes["chakra.Metadata"], stream)
    while (node := parse_length_prefixed(classes["chakra.Node"], stream)) is not None:
        yield node


def _operator(node: Any, path: Path) -> Operator:
    """Return the operator of a node. Raises UserError for an unknown collective."""
    numbers = {
        attribute.name: value
        for attribute in node.attr
        for field, value in attribute.ListFields()
        if field.name != "name"
    }
    kind = _KINDS.get(node.type, "compute")
    found = Operator(
        id=node.id,
        name=node.name,
        kind=kind,
        after=tuple(dict.fromkeys((*node.ctrl_deps, *node.data_deps))),
        duration_ns=node.duration_us * NS_PER_US,
        size_bytes=0 if kind == "compute" else numbers.get("comm_size", 0),
    )
    if kind == "collective":
        code = numbers.get("comm_type", 0)
        if code not in _COLLECTIVES:
            raise UserError(
                f"{path}: node {found.id} '{found.name}' is a collective of unknown type {code}"
            )
        return replace(found, collective=_COLLECTIVES[code])
    if kind in ("send", "recv"):
        peer = numbers.get("comm_dst" if kind == "send" else "comm_src", -1)
        return replace(found, peer=peer, tag=numbers.get("comm_tag", 0))
    return found
