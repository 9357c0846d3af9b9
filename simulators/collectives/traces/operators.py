"""Operators of a rank from a file: compute, messages, and their dependencies.

The JSON schema, version 1, is an object: `{"schema": "sweeper-operator-graph", "version": 1,
"operators": [...]}`, one file per rank. An operator has an `id`, a `name`, a `kind` (`compute`,
`collective`, `send`, `recv`), the ids it waits for in `after`, `duration_ns` (compute), and
`collective`, `size_bytes`, `peer`, `tag` and `group` (communication; the group lists the
participating ranks, and is empty for all ranks). Ids are unique and issue order is by id.

A CSV file lists the layers of a data-parallel CNN: compute times and gradient bytes. The forward
pass is a chain. The backward pass walks the layers in reverse: a layer's weight gradient is
all-reduced while its input gradient, and then the layers before it, are computed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simulators.catalog.sheet import fill
from simulators.collectives.algorithms import COLLECTIVES
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.fields import ValueRule

SCHEMA: Final = "sweeper-operator-graph"
VERSION: Final = 1
KINDS = ("compute", "collective", "send", "recv")


@dataclass(frozen=True)
class Operator:
    """One node of an operator graph."""

    id: int
    name: str
    kind: str
    after: tuple[int, ...] = ()
    duration_ns: int = 0
    collective: str = ""
    size_bytes: int = 0
    peer: int = field(default=-1, metadata={"rule": ValueRule(at_least=-1)})  # -1: none
    tag: int = 0
    group: tuple[int, ...] = ()


@dataclass(frozen=True)
class Message:
    """A collective or a send among some ranks."""

    kind: str
    size_bytes: int
    ranks: tuple[int, ...]


def read_graph(path: Path) -> tuple[Operator, ...]:
    """Return the operators of a file in the project's schema.

    Raises:
        UserError: the file has another schema or version, or a malformed operator.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as an operator graph: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UserError(f"{path}: is not an operator graph; its schema is not '{SCHEMA}'")
    if content.get("version") != VERSION:
        raise UserError(f"{path}: has version {content.get('version')}; version {VERSION} is read")
    entries = content.get("operators")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path}: its operators are not a list of objects")
    operators = tuple(fill(Operator, entry, path, "[operators]") for entry in entries)
    for one in operators:
        if one.kind not in KINDS:
            raise UnknownNameError(f"kind of an operator in {path}:", one.kind, KINDS)
        if one.kind == "collective" and one.collective not in COLLECTIVES:
            raise UnknownNameError(f"collective in {path}:", one.collective, COLLECTIVES)
    return operators


NS_PER_US = 1000
COLUMNS = (
    "layer",
    "forward_us",
    "input_grad_us",
    "weight_grad_us",
    "weight_grad_all_reduce_bytes",
)


@dataclass(frozen=True)
class TraceLayer:
    """A layer of a model, profiled on a single GPU."""

    name: str
    forward_ns: int
    input_grad_ns: int
    weight_grad_ns: int
    all_reduce_bytes: int


def read_layers(path: Path) -> tuple[TraceLayer, ...]:
    """Return the layers of a CSV file with the header `COLUMNS`.

    Raises:
        UserError: the file is malformed; names the line.
    """
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as a list of layers: {error}") from error
    if not rows or tuple(rows[0]) != COLUMNS:
        raise UserError(f"{path}: its header is not {', '.join(COLUMNS)}")
    layers = []
    for line, row in enumerate(rows[1:], start=2):
        try:
            name, *numbers, size = row
            forward_ns, inputs_ns, weights_ns = (NS_PER_US * int(us) for us in numbers)
            layers.append(TraceLayer(name, forward_ns, inputs_ns, weights_ns, int(size)))
        except ValueError as error:
            raise UserError(f"{path}, line {line}: is not a layer: {' '.join(row)}") from error
    return tuple(layers)


def operators_of(layers: Sequence[TraceLayer]) -> tuple[Operator, ...]:
    """Return a training step as operators, first to last layer and back, in order of issue."""
    operators: list[Operator] = []

    def compute(name: str, duration_ns: int, after: tuple[int, ...]) -> tuple[int, ...]:
        ident = len(operators)
        operators.append(Operator(ident, name, "compute", after, duration_ns))
        return (ident,)

    last: tuple[int, ...] = ()
    for layer in layers:
        last = compute(f"{layer.name} forward", layer.forward_ns, last)
    for i, layer in reversed(list(enumerate(layers))):
        last = compute(f"{layer.name} weight gradient", layer.weight_grad_ns, last)
        if layer.all_reduce_bytes > 0:
            operators.append(
                Operator(
                    len(operators),
                    f"{layer.name} all_reduce",
                    "collective",
                    last,
                    collective="all_reduce",
                    size_bytes=layer.all_reduce_bytes,
                )
            )
        if i > 0:
            last = compute(f"{layer.name} input gradient", layer.input_grad_ns, last)
    return tuple(operators)
