"""A bowl: cost grows with the square of the distance from (3, 4), gain with the product.

`n` = 13 cannot exist. The fact `area` is known without simulating.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from simulators.core.columns import EXTRAPOLATED, FITTED, numbers, outcome, schema_of, shares_of
from simulators.core.contract import choice, fact, metric


@dataclass(frozen=True)
class Point:
    """Where in the plane, and how many."""

    x: float = choice("first coordinate", unit="m")
    y: float = choice("second coordinate", unit="m", default=4.0)
    n: int = choice("how many", default=1)
    label: str = choice("a word that changes nothing", default="plain")
    bonus: float | None = choice("added to the gain", default=None)
    flipped: bool = choice("whether the gain counts backwards", default=False)


@dataclass(frozen=True)
class Metrics:
    """What it costs and brings."""

    cost_usd: float = metric("squared distance", unit="USD", better="min")
    gain: float = metric("product of the coordinates", better="max")
    whole: int = metric("cost rounded down")


@dataclass(frozen=True)
class Facts:
    """What is known beforehand."""

    area: float = fact("the product of the coordinates", unit="m2", needs=("x", "y"))


@dataclass(frozen=True)
class Quadratic:
    """A formula on columns."""

    name: str = "tests.toys.quadratic"
    version: int = 1
    point: type = Point
    metrics: type = Metrics
    facts: type = Facts

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        x, y, n = (numbers(batch, name) for name in ("x", "y", "n"))
        bonus = np.nan_to_num(numbers(batch, "bonus").astype(float))
        sign = np.where(numbers(batch, "flipped").astype(bool), -1.0, 1.0)
        cost = n * ((x - 3.0) ** 2 + (y - 4.0) ** 2)
        columns = {"cost_usd": cost, "gain": sign * (n * x * y + bonus), "whole": np.floor(cost)}
        return outcome(
            Metrics,
            {
                name: values.astype(np.int64 if name == "whole" else np.float64)
                for name, values in columns.items()
            },
            infeasible=["unlucky: 13" if count == 13 else "" for count in n],
            shares=shares_of(np.where(x > 100.0, EXTRAPOLATED, FITTED)),
        )

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        area = numbers(batch, "x") * numbers(batch, "y")
        return pa.RecordBatch.from_pydict({"area": area}, schema=schema_of(Facts))


SIMULATOR = Quadratic()
