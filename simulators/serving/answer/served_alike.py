"""Answers that serve several designs.

Designs that differ only in how many requests may run at once are served alike, request by request
and bit by bit, as long as neither reaches its limit: then the run of one answers for the other. A
search that has seen how a run begins is also told how it ended, where it ended in this process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.answer.summary import Held
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import Limits
from simulators.serving.engine.state import State
from simulators.serving.point import ServingPoint


def any_batch(point: ServingPoint) -> ServingPoint:
    """Return what is equal of designs that differ only in how many requests may run at once."""
    return replace(point, max_batch=1)


@dataclass(frozen=True)
class _Reached:
    """What a run needed of its limits; one more would have been asked for at most."""

    seats: int
    batch: int  # requests
    blocks: int  # in use, and those of one more request
    preempted: bool

    @classmethod
    def of(cls, state: State) -> _Reached:
        most = state.pool.max(axis=0)
        tokens = state.request[:, at.PROMPT] + state.request[:, at.OUTPUT]
        longest = -(-int(tokens.max()) // int(state.limits[at.BLOCK]))
        return cls(
            seats=int(most[at.MOST_HELD]),
            batch=int(most[at.MOST_BATCHED]),
            blocks=int(most[at.MOST_USED]) + longest,
            preempted=bool(most[at.RESTARTED] or most[at.SWAPS]),
        )

    def is_below(self, limits: Limits) -> bool:
        """Return whether every question for a seat or for blocks was answered with yes."""
        return (
            not self.preempted
            and self.seats < limits.seats
            and self.batch < limits.batch_seats
            and self.blocks + limits.kept_free < limits.blocks
        )


@dataclass(frozen=True)
class Likeness:
    """What a run within some limits needed of them, by which others are known to be the same."""

    limits: Limits
    rejected: int  # the longest, so as many are the same
    reached: _Reached

    @classmethod
    def of(cls, limits: Limits, rejected: int, state: State | None) -> Likeness:
        """Return that of a run which left a state behind, or has not begun."""
        reached = _Reached(0, 0, 0, preempted=False) if state is None else _Reached.of(state)
        return cls(limits, rejected, reached)

    def holds_for(self, limits: Limits, rejected: int) -> bool:
        """Return whether a run within other limits is the same: neither reaches its own."""
        if replace(self.limits, seats=limits.seats, blocks=limits.blocks) != limits:
            return False
        below = self.reached.is_below(self.limits) and self.reached.is_below(limits)
        return (below or limits == self.limits) and self.rejected == rejected


@dataclass(frozen=True)
class Answer:
    """The metrics of a run, and whose they are."""

    likeness: Likeness
    metrics: ServingMetrics
    held: Held

    def metrics_within(self, limits: Limits) -> ServingMetrics:
        """Return the metrics of that run."""
        memory: dict[str, Any] = self.held.columns(limits.blocks, limits.ranks)
        return replace(self.metrics, **memory)


WATCHED: dict[ServingPoint, list[Answer]] = {}
"""The runs of designs of which a search has seen beginnings; `any_batch` says of which."""
