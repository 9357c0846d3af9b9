"""A task: measured rows, what names them in a file of predictions, and the choices among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lab.claims.decisions import Decisions
from lab.tables.rows import Bools
from simulators.core.jit import Floats

Key = tuple[str, ...]
"""What a row is called: its values in the columns that name it."""

Figures = Mapping[str, Floats]
"""A column for each figure, with an entry for each row; NaN where there is none."""


class Choices(NamedTuple):
    """Decisions among the rows of a task, and what decides."""

    about: str
    among: Sequence[Decisions]


@dataclass(frozen=True)
class Task:
    """Measured rows of one kind.

    Args:
        key: columns that name a row, in a measured table and in a file of predictions.
        names: what each row is called, in the order of these columns.
        measured: figures by the columns in which they are predicted.
        kinds: groups of rows that are scored; `all` are those without a known fault.
        choices: what is decided by the figures.
        decided_by: what decisions read, from the figures.
    """

    key: tuple[str, ...]
    names: Sequence[Key]
    measured: Figures
    kinds: Mapping[str, Bools]
    choices: Sequence[Choices] = ()
    decided_by: Callable[[Figures], Mapping[str, Floats]] = field(default=lambda figures: figures)


def key_of(values: Sequence[object]) -> Key:
    """Return what a row is called; whole numbers are written as such, however they are stored.

    >>> key_of(["H100", 4, 4.0, True])
    ('H100', '4', '4', 'true')
    """
    return tuple(_word(value) for value in values)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
