"""Training steps of data-parallel CNNs from a list of layers: compute times and gradient bytes.

The forward pass is a chain. The backward pass walks the layers in reverse: a layer's weight
gradient is all-reduced while its input gradient, and then the layers before it, are computed.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulators.collectives.traces.operators import Operator
from simulators.core.errors import UserError

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
        UserError: the file is malformed; says where.
    """
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as a list of layers: {error}") from error
    if not rows or tuple(rows[0]) != COLUMNS:
        raise UserError(f"{path}: its header is not {', '.join(COLUMNS)}")
    return tuple(_layer(row, path, line) for line, row in enumerate(rows[1:], start=2))


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


def _layer(row: Sequence[str], path: Path, line: int) -> TraceLayer:
    try:
        name, *numbers = row
        forward, inputs, weights, size = map(int, numbers)
    except ValueError as error:
        raise UserError(f"{path}, line {line}: is not a layer: {' '.join(row)}") from error
    return TraceLayer(name, forward * NS_PER_US, inputs * NS_PER_US, weights * NS_PER_US, size)
