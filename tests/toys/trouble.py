"""Points that go wrong in every way there is: `how` says in which."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from simulators.core.columns import Pointwise
from simulators.core.contract import choice, metric
from simulators.core.errors import Infeasible, UserError


@dataclass(frozen=True)
class Point:
    """Point number `n` fails if a fault names `n`."""

    n: int = choice("which")
    raises: int = choice("the one that raises", default=-1)
    exits: int = choice("the one that takes its process along", default=-1)
    hangs: int = choice("the one that never ends", default=-1)
    hoards: int = choice("the one that wants eight gigabytes", default=-1)
    dies: int = choice("the one that cannot exist", default=-1)
    refuses: int = choice("the one nobody should have asked for", default=-1)
    healed: str = choice("a file; while it is there nothing raises", default="")


@dataclass(frozen=True)
class Metrics:
    """The number back."""

    square: int = metric("n squared", better="min")


def simulate(point: Point) -> Metrics:
    """Square `n`, or go wrong."""
    if point.n == point.raises and not os.path.exists(point.healed):  # noqa: PTH110 - the shortest
        raise ValueError(f"cannot square {point.n}")
    if point.n == point.exits:
        os._exit(7)
    if point.n == point.hoards:
        return Metrics(len(bytearray(8_000_000_000)))
    while point.n == point.hangs:
        time.sleep(0.05)
    if point.n == point.dies:
        raise Infeasible("too_large", "on paper")
    if point.n == point.refuses:
        raise UserError(f"n={point.n} means nothing")
    return Metrics(point.n**2)


SIMULATOR = Pointwise("tests.toys.trouble", 1, Point, Metrics, simulate)
