"""A simulator whose options are grouped: what drafting saves, less what a cache costs."""

from __future__ import annotations

from dataclasses import dataclass

from simulators.core.columns import Pointwise
from simulators.core.contract import choice, group, metric


@dataclass(frozen=True)
class Drafting:
    """How tokens are drafted."""

    method: str = choice("what drafts", known=("none", "eagle", "mtp"), default="none")
    num_tokens: int = choice("tokens drafted at a time", at_least=0, default=3)


@dataclass(frozen=True)
class GroupedPoint:
    """A design with a group of options."""

    tp: int = choice("tensor parallel degree", default=1)
    drafting: Drafting = group(Drafting)


@dataclass(frozen=True)
class GroupedMetrics:
    """What it takes."""

    time_s: float = metric("time of a step", unit="s", better="min")


def simulate(point: GroupedPoint) -> GroupedMetrics:
    """Return the time of a step."""
    drafted = 0 if point.drafting.method == "none" else point.drafting.num_tokens
    return GroupedMetrics(time_s=1.0 / point.tp / (1 + drafted))


SIMULATOR = Pointwise("tests.toys.grouped", 1, GroupedPoint, GroupedMetrics, simulate)
