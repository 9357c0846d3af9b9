"""The answer stands in a file that the point names, times another that every point reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from simulators.core.columns import evaluate_pointwise
from simulators.core.contract import choice, metric
from simulators.core.errors import UserError

SHARED = "TOY_READER_SHARED"
"""The environment variable that names the file every point reads, if there is one."""


@dataclass(frozen=True)
class Point:
    """Which sheet, and how often."""

    sheet: str = choice("a file that holds a number")
    times: int = choice("a factor", default=1)


@dataclass(frozen=True)
class Metrics:
    """What was read."""

    total: float = metric("the sheet's number times the factor", better="min")
    times_back: int = metric("the factor", better="max")


def read(point: Point) -> Metrics:
    """Multiply what the sheet says."""
    return Metrics(float(Path(point.sheet).read_text()) * point.times, point.times)


@dataclass(frozen=True)
class Reader:
    """A simulator whose answers depend on files."""

    name: str = "tests.toys.reader"
    version: int = 1
    point: type = Point
    metrics: type = Metrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return evaluate_pointwise(Point, Metrics, read, batch)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        if name == "sheet":
            if not Path(str(value)).is_file():
                raise UserError(f"sheet '{value}': there is no such file")
            return (Path(str(value)),)
        if name == "" and SHARED in os.environ:
            return (Path(os.environ[SHARED]),)
        return ()


SIMULATOR = Reader()
