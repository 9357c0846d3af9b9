"""Copies of a server share a load: a queue whose answer is known for every number of copies."""

from __future__ import annotations

from dataclasses import dataclass

from simulators.core.columns import Pointwise
from simulators.core.contract import choice, metric
from simulators.core.errors import Infeasible


@dataclass(frozen=True)
class Point:
    """Servers of a speed, some of them in a group that counts as one copy."""

    site: str = choice("where", default="here")
    speed: float = choice("requests per second of a server", default=1.0)
    group: int = choice("servers of a copy", default=1)
    copies: int = choice("how many", default=1)
    load: float = choice("requests per second", default=10.0)
    luck: float = choice("by how much even numbers of copies do better", default=0.0)


@dataclass(frozen=True)
class Metrics:
    """How long it takes."""

    wait_s: float = metric("mean time in the system", better="min")
    servers: int = metric("of all copies", better="min")


def simulate(point: Point) -> Metrics:
    """Return the time in an M/M/1 queue of the speed of a group, with its share of the load."""
    if point.speed * point.group > 64:
        raise Infeasible("too_fast", f"{point.speed * point.group:g} a second")
    spare = point.speed * point.group**0.9 - point.load / point.copies
    wait_s = 1.0 / spare if spare > 0 else 1000.0 * (1.0 - spare)
    wait_s *= 1.0 - point.luck * (point.copies % 2 == 0)
    return Metrics(wait_s, point.group * point.copies)


SIMULATOR = Pointwise("tests.toys.fleet", 1, Point, Metrics, simulate)
