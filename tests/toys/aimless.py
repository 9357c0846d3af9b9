"""A simulator that wants nothing: none of its metrics has a direction."""

from __future__ import annotations

from dataclasses import dataclass

from simulators.core.columns import Pointwise
from simulators.core.contract import choice, metric


@dataclass(frozen=True)
class Point:
    """A number."""

    n: int = choice("which")


@dataclass(frozen=True)
class Metrics:
    """The number back, and its name."""

    same: int = metric("n")
    word: str = metric("n in words")


SIMULATOR = Pointwise(
    "tests.toys.aimless", 1, Point, Metrics, lambda p: Metrics(p.n, f"number {p.n}")
)
