"""Every evaluation adds a line to a log, so that a test can count what was done twice.

Points take no time once the folder of the log has a file `hurry`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from simulators.core.columns import Pointwise
from simulators.core.contract import choice, metric

HURRY = "hurry"


@dataclass(frozen=True)
class Point:
    """Point number `n`, logged in `log`."""

    n: int = choice("which")
    log: str = choice("the file to add a line to")
    pause_s: float = choice("how long it takes", unit="s", default=0.0)


@dataclass(frozen=True)
class Metrics:
    """Something to compare."""

    hashed: float = metric("a function of n", better="min")
    half: int = metric("n // 2", better="max")


def simulate(point: Point) -> Metrics:
    """Write the line in one system call, so that lines of several workers do not mix."""
    log = os.open(point.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{point.n}\n".encode())
    os.close(log)
    if not Path(point.log).with_name(HURRY).exists():
        time.sleep(point.pause_s)
    return Metrics((point.n * 2654435761 % 2**32) / 7.0, point.n // 2)


SIMULATOR = Pointwise("tests.toys.counting", 1, Point, Metrics, simulate)
