"""Three layers on a device whose clock and memory can be scaled: it explains itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulators.core.columns import evaluate_pointwise
from simulators.core.contract import Contribution, choice, metric


@dataclass(frozen=True)
class Point:
    """How much work, on what."""

    work: float = choice("operations", default=1e9)
    data: float = choice("bytes", unit="B", default=1e6)
    clock_scale: float = choice("clock", default=1.0)
    bandwidth_scale: float = choice("bandwidth", default=1.0)


@dataclass(frozen=True)
class Metrics:
    """What it takes."""

    latency_s: float = metric("all layers", unit="s", better="min")
    energy_j: float = metric("all layers", unit="J", better="min")


@dataclass(frozen=True)
class Layered:
    """A sum."""

    name: str = "tests.toys.layered"
    version: int = 1
    point: type = Point
    metrics: type = Metrics

    def evaluate(self, batch: Any) -> Any:
        return evaluate_pointwise(Point, Metrics, _simulate, batch)

    def explain(self, point: Mapping[str, Any]) -> Sequence[Contribution]:
        return _rows(Point(**point))


def _rows(point: Point) -> list[Contribution]:
    work_s = point.work / (1e12 * point.clock_scale)
    data_s = point.data / (1e9 * point.bandwidth_scale)
    return [
        Contribution(
            phase="forward",
            name="multiply",
            count=3,
            time_s=work_s,
            energy_j=work_s * 100,
            flops=point.work,
            moved_bytes=point.data / 10,
            devices=4,
            bound="compute",
            level="measured",
        ),
        Contribution(
            phase="forward",
            name="copy",
            time_s=data_s,
            energy_j=data_s * 30,
            moved_bytes=point.data,
            bound="memory",
        ),
        Contribution(phase="update", name="wait", time_s=1e-6, level="datasheet"),
        Contribution(phase="update", name="weights", memory_bytes=point.data),
    ]


def _simulate(point: Point) -> Metrics:
    rows = _rows(point)
    return Metrics(sum(c.time_s for c in rows), sum(c.energy_j for c in rows))


SIMULATOR = Layered()
