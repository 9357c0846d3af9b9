"""`ask --traffic day.csv`: the replicas of the best design over a day, and their cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulators.core.errors import UserError
from sweeper.commands.ask.answer import Answer
from sweeper.commands.ask.probability import SloProbability
from sweeper.query.day_plan import MINUTES, by_minute, running
from sweeper.questions import Day
from sweeper.report.answers import point_of
from sweeper.report.certificate import rows_at
from sweeper.report.tables import print_table, print_words
from sweeper.space.design_space import DesignSpace
from sweeper.text import human


@dataclass(frozen=True)
class DayPlan:
    """Replicas of a design over a day."""

    day: Day
    needed: tuple[int, ...]  # of each load
    minutes: tuple[int, ...]  # replicas that run in each minute
    devices: float  # of a replica
    usd_per_hour: float | None  # of a replica

    @property
    def device_hours(self) -> float:
        """Device-hours a day."""
        return self.devices * sum(self.minutes) / 60.0

    @property
    def static_device_hours(self) -> float:
        """Device-hours a day with the replicas of the peak all day."""
        return self.devices * max(self.minutes) * 24.0

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for programs."""
        scale = (self.usd_per_hour or 0.0) / self.devices
        return {
            "hours": [
                {"from_h": h, "load": load, "replicas": n}
                for h, load, n in zip(self.day.starts_h, self.day.loads, self.needed, strict=True)
            ],
            "device_hours_per_day": self.device_hours,
            "static_device_hours_per_day": self.static_device_hours,
            "usd_per_day": scale * self.device_hours if scale else None,
            "static_usd_per_day": scale * self.static_device_hours if scale else None,
        }

    def print(self, unit: str) -> None:
        """Print the replicas of each load, and the cost of the day."""
        day, found = self.day, self.to_dict()
        lines = [
            [_clock(h), human(load), str(n), str(max(self.minutes[round(60 * h)], n))]
            for h, load, n in zip(day.starts_h, day.loads, self.needed, strict=True)
        ]
        header = ["from", day.axis, "replicas needed", "running then"]
        print()
        print_table("Replicas over the day", header, lines)
        saved = 1.0 - self.device_hours / self.static_device_hours
        cost = ""
        if found["usd_per_day"] is not None:
            cost = (
                f", {human(found['usd_per_day'], '$')} a day; "
                f"all day: {human(found['static_usd_per_day'], '$')}"
            )
        print_words(
            f"{self.device_hours:,.1f} {unit}-hours a day ({self.static_device_hours:,.1f} with "
            f"the replicas of the peak all day, {-100 * saved:+.0f} %){cost}. Start-up "
            f"{day.startup_s:g} s ahead, cool-down {day.cool_down_s:g} s."
        )


def _clock(hour: float) -> str:
    return f"{int(hour):02d}:{round(60 * (hour % 1)):02d}"


def day_plan_of(answer: Answer) -> DayPlan | None:
    """Return the plan of the best design; None without a day or an answer.

    Raises:
        UserError: the peak needs more replicas than the limit.
    """
    question, best = answer.question, answer.design
    if question.day is None or best is None:
        return None
    day, most = question.day, int(best[question.copies])
    if day.max_replicas and most > day.max_replicas:
        raise UserError(
            f"the peak of {max(day.loads):g} {day.axis} needs {most} replicas, more than "
            f"--max-replicas {day.max_replicas}"
        )
    needs = _needs(answer, best, sorted(set(day.loads), reverse=True), most)
    least = max(day.min_replicas, 1)
    needed = tuple(max(needs[load], least) for load in day.loads)
    minutes = running(by_minute(day.starts_h, needed), day.startup_s, day.cool_down_s)
    assert len(minutes) == MINUTES
    each = float(best[question.without_price]) / most
    usd = best["cost"] / most if best["cost"] else None
    return DayPlan(day, needed, tuple(minutes.tolist()), each, usd)


def _needs(
    answer: Answer, best: Mapping[str, Any], loads: list[float], most: int
) -> dict[float, int]:
    """Return the fewest replicas with which the design meets the SLO at each load, by bisection.

    A load needs at most as many replicas as a higher load.
    """
    question, space = answer.question, answer.last.space
    slo = SloProbability(question, answer.chosen.confidence, answer.chosen.band)
    assert question.day is not None
    point = point_of(answer.last.simulator, best)
    found, high = {}, most
    for load in loads:
        axes = {**point, question.day.axis: load, question.copies: f"1..{high}"}
        at = DesignSpace.of(space.simulator, **axes)
        low = 1
        while low < high:
            middle = (low + high) // 2
            row = rows_at(at, np.array([middle - 1])).row(0, named=True)
            is_met = row["status"] == "ok" and slo.miss(row) <= 1.0
            low, high = (low, middle) if is_met else (middle + 1, high)
        found[load] = high
    return found
