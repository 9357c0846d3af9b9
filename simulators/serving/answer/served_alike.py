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
from simulators.serving.begun_runs import run_out
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import Limits
from simulators.serving.engine.state import State
from simulators.serving.point import ServingPoint
from simulators.serving.ready import Ready


class Answers:
    """Metrics of deployments, whose runs may have begun; those that are served alike run once."""

    def __init__(self) -> None:
        self._known: dict[ServingPoint, list[Answer]] = {}

    def metrics(self, ready: Ready) -> ServingMetrics:
        """Return the metrics of a run of a deployment.

        Raises:
            Infeasible: no request of the window is answered.
            UserError: a request never ends.
        """
        if not may_share(ready):
            return run_out(ready).metrics()
        design = any_batch(ready.point)
        known = self._known.setdefault(design, [])
        for answer in known:
            if answer.likeness.holds_for(ready):
                return answer.metrics_within(ready.limits)
        run = run_out(ready)
        found, held = run.judged()
        known.append(Answer(Likeness.of(ready, run.state), found, held))
        if design in WATCHED:
            WATCHED[design].append(known[-1])
        return found


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
    def of(cls, ready: Ready, state: State) -> Likeness:
        """Return that of a run which left a state behind."""
        return cls(ready.limits, ready.rejected, _Reached.of(state))

    @classmethod
    def of_none(cls, ready: Ready) -> Likeness:
        """Return that of a run that has not begun."""
        return cls(ready.limits, ready.rejected, _Reached(0, 0, 0, preempted=False))

    def holds_for(self, ready: Ready) -> bool:
        """Return whether a run within other limits is the same: neither reaches its own."""
        limits = ready.limits
        if replace(self.limits, seats=limits.seats, blocks=limits.blocks) != limits:
            return False
        below = self.reached.is_below(self.limits) and self.reached.is_below(limits)
        return (below or limits == self.limits) and self.rejected == ready.rejected


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


def may_share(ready: Ready) -> bool:
    """Return whether a limit that is not reached changes nothing.

    A cache of prefixes fills what memory is free, what drafts is told how many may run, and so
    many adapters are kept as a full batch wants.
    """
    limits = ready.limits
    plain = not (limits.caches or limits.drafted or limits.host_blocks or ready.point.adapters)
    plain = plain and limits.ranks == 1 and not ready.has_pools
    return plain and ready.scheduler.only_compares
