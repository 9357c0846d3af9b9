"""Boxes that are rented by the hour: `usd` follows from the boxes, their speed and a price list.

The price list `dear` asks twice of what `fair` does, and nobody lets box `z` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.columns import categories, numbers, outcome
from simulators.core.contract import choice, metric

LISTS = {"fair": {"a": 1.0, "b": 3.0, "z": 2.0}, "dear": {"a": 2.0, "b": 6.0}}


@dataclass(frozen=True)
class Point:
    """How many of which box."""

    box: str = choice("which box", default="a")
    boxes: int = choice("how many", default=1)
    prices: str = choice("the price list", default="fair", given=True)


@dataclass(frozen=True)
class Metrics:
    """How fast they are together, and what work costs there."""

    speed: float = metric("work per hour", better="max")
    usd: float | None = metric("dollars per work", unit="$", better="min")


@dataclass(frozen=True)
class Rented:
    """A formula on columns."""

    name: str = "tests.toys.rented"
    version: int = 1
    point: type = Point
    metrics: type = Metrics
    priced: tuple[str, ...] = ("prices",)
    cost_needs: tuple[str, ...] = ("box", "boxes", "speed")
    cost_metrics: tuple[str, ...] = ("usd",)

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        boxes = numbers(batch, "boxes").astype(np.float64)
        codes, lists = categories(batch, "prices")
        speed = np.sqrt(boxes)
        columns = {"box": batch.column("box"), "boxes": pa.array(boxes), "speed": pa.array(speed)}
        rows = pa.RecordBatch.from_pydict(columns)
        usd = np.choose(codes, [self.costs(rows, {"prices": name})["usd"] for name in lists])
        table = outcome(Metrics, {"speed": speed, "usd": np.nan_to_num(usd, nan=-1.0)})
        known = pa.array(usd, mask=np.isnan(usd))
        return table.set_column(table.schema.get_field_index("usd"), "usd", known)

    def costs(
        self, rows: pa.RecordBatch, prices: Mapping[str, Any]
    ) -> Mapping[str, NDArray[np.float64]]:
        codes, names = categories(rows, "box")
        rates = np.array([LISTS[prices["prices"]].get(str(name), np.nan) for name in names])
        return {"usd": rates[codes] * numbers(rows, "boxes") / numbers(rows, "speed")}


SIMULATOR = Rented()
