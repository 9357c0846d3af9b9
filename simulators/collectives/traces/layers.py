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
class Layer:
    """One layer as a profile of one GPU knows it."""

    name: str
    forward_ns: int
    input_grad_ns: int
    weight_grad_ns: int
    all_reduce_bytes: int


def read_layers(path: Path) -> tuple[Layer, ...]:
    """Return the layers of a list: CSV with a header, or ASTRA-sim's older text format.

    Raises:
        UserError: the file is malformed; says where.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a list of layers: {error}") from error
    if lines and "," in lines[0]:
        rows = list(csv.reader(lines))
        if tuple(rows[0]) != COLUMNS:
            raise UserError(f"{path}: its header is not {', '.join(COLUMNS)}")
        fields = [(i + 1, row) for i, row in enumerate(rows[1:], 1)]
        return tuple(_layer(row, path, line, (0, 1, 2, 3, 4)) for line, row in fields)
    # Text: parallelism, number of layers, then per layer: name, reserved, forward time, kind and
    # bytes, input-gradient time, kind and bytes, weight-gradient time, kind and bytes, update.
    if len(lines) < 2 or not lines[1].strip().isdigit():
        raise UserError(f"{path}: line 2 must be the number of layers")
    body = [(i + 3, line.split()) for i, line in enumerate(lines[2:]) if line.strip()]
    if len(body) != int(lines[1]):
        raise UserError(f"{path}: says it has {lines[1].strip()} layers and lists {len(body)}")
    return tuple(_layer(row, path, line, (0, 2, 5, 8, 10)) for line, row in body)


def operators_of(layers: Sequence[Layer]) -> tuple[Operator, ...]:
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


def _layer(row: Sequence[str], path: Path, line: int, columns: Sequence[int]) -> Layer:
    try:
        name, *numbers = (row[column] for column in columns)
        forward, inputs, weights, size = (int(number) for number in numbers)
    except (IndexError, ValueError) as error:
        raise UserError(f"{path}, line {line}: is not a layer: {' '.join(row)}") from error
    return Layer(name, forward * NS_PER_US, inputs * NS_PER_US, weights * NS_PER_US, size)
