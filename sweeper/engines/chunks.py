"""Chunks of work, sized by time: one to eight seconds each, smaller towards the end.

A round trip to a worker costs the same for one point and for thousands, so chunks are large; the
last ones shrink, so that no worker is idle while another finishes (guided self-scheduling,
Polychronopoulos and Kuck, 1987). The time of a point is first estimated from the simulator's own
guess or from a few points, for `plan` and for the engine `auto`.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simulators.core.contract import EstimatesCost, Simulator, load_simulator
from sweeper.engines.task import PART, evaluate
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Batch, Index, Span, cut, width
from sweeper.store.store import Part

LARGEST = 4 * PART  # most points of a chunk
FIRST_S, LAST_S = 1.0, 8.0
"""Target duration of a chunk, at first and in a long sweep, where it keeps parts few."""
UNTRIED_S = FIRST_S / 8
"""Assumed time of a point when nothing is known; it keeps first chunks small."""
_WORTH = 10.0  # least duration of a chunk, in multiples of the time to write a part
_TAPER = 16  # largest ratio of a full chunk to a last one: each chunk costs a round trip and a file
_MEMORY = 0.5  # weight of the newest measurement in the running mean of seconds per point
_PROBES, PROBE_S = 64, 1.0
"""Points evaluated to estimate a sweep, and the time after which fewer suffice."""
_STRETCHES, _NEIGHBOURS = 16, 1024
"""Number and length of the stretches for which a simulator guesses its cost."""
_GROWTH, _LONGEST = 8, 1 << 16
"""Growth of the stretches of neighbours that are probed, and the length of the longest."""
_SHARE, _REPEATS = 0.05, 6
"""Share of a long sweep that is probed, and the stretches for which this time suffices."""


@dataclass
class Chunks:
    """Cuts batches into chunks for `workers` workers, learning how long a point takes.

    First chunks are small. Once one is back, the next chunk is taken from the middle of the longest
    remaining piece of the ranges, so that any number of chunks samples all of them. Batches of
    numbers keep their order. Chunks of at least half of `together` points end at multiples of
    `together`.
    """

    batches: Iterable[Batch]
    total: int
    workers: int = 1
    point_s: float = 0.0  # expected time of a point; 0: unknown
    spent_s: float = 0.0
    part_s: float = 0.0  # time to write a part
    together: int = 1  # consecutive points that are cheaper in one chunk
    is_known: bool = field(init=False)  # whether the time of a point was measured
    _source: Iterator[Batch] = field(init=False)
    _pieces: list[tuple[int, int, Batch]] = field(default_factory=list)  # a heap, longest first

    def __post_init__(self) -> None:
        self.is_known = self.point_s > 0.0
        self.point_s = self.point_s or UNTRIED_S
        self._source = iter(self.batches)
        if isinstance(self.batches, list) and all(isinstance(b, Span) for b in self.batches):
            for span in self._source:
                self._keep(span)

    def learn(self, points: int, seconds: float, written_s: float = 0.0) -> None:
        """Record the time of a chunk, and the time to write one of its parts."""
        weight = _MEMORY if self.spent_s else 1.0
        if points and seconds > 0:
            self.point_s += weight * (seconds / points - self.point_s)
            self.is_known = True
        self.part_s += weight * (written_s - self.part_s)
        self.spent_s += seconds

    def learn_from(self, parts: Sequence[Part]) -> None:
        """Record the times of the parts of one chunk."""
        points, seconds = sum(p.points for p in parts), sum(p.seconds for p in parts)
        self.learn(points, seconds, sum(p.written_s for p in parts) / max(len(parts), 1))

    def size(self) -> int:
        """Return the number of points of the next chunk."""
        aim_s = min(max(FIRST_S, self.spent_s / (20 * self.workers)), LAST_S)
        aim_s = max(aim_s, _WORTH * self.part_s)
        full = min(int(aim_s / max(self.point_s, 1e-12)), LARGEST)
        tail = self.total // (3 * self.workers) if self.workers > 1 else self.total
        least = max(full // _TAPER, self._kept_together(full) // 2)
        return max(1, min(full, max(tail, least)))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if not self._pieces:
            self._keep(next(self._source))
        *_, batch = heapq.heappop(self._pieces)
        first, last = self._ends(batch)
        self._keep(cut(batch, 0, first))
        self._keep(cut(batch, last, width(batch)))
        chunk = cut(batch, first, last)
        self.total = max(self.total - len(chunk), 0)
        return chunk

    def _keep(self, batch: Batch) -> None:
        """Keep a piece for later chunks, unless it is empty."""
        if width(batch):
            start = batch.lo if isinstance(batch, Span) else 0
            heapq.heappush(self._pieces, (-width(batch), start, batch))

    def _ends(self, batch: Batch) -> tuple[int, int]:
        """Return the positions in a piece between which the next chunk lies."""
        together = self._kept_together(self.size())
        size, whole = max(self.size(), together), width(batch)
        most = min(size + size // 2, LARGEST, int(LAST_S / max(self.point_s, 1e-12)))
        if whole <= max(size, most):  # else the rest would be tiny
            return 0, whole
        if not isinstance(batch, Span):
            return 0, size
        lo = batch.lo

        def aligned(position: int) -> int:
            return (lo + position + together // 2) // together * together - lo

        first = max(aligned(whole // 2), 0) if self.spent_s and whole > 3 * size else 0
        last = aligned(first + size)
        return first, min(last if last > first else first + size, whole)

    def _kept_together(self, size: int) -> int:
        return self.together if 4 * size >= self.together else 1


@dataclass(frozen=True)
class Estimate:
    """The time of one point; `probes` is 0 where the simulator guessed it."""

    probes: int
    point_s: float
    stopped: str = ""  # why the probe ended early


def hinted(space: DesignSpace, asked: int | None = None) -> Estimate | None:
    """Return the simulator's own guess for `asked` points of a space; None if it has none.

    Neighbours may share expensive preparation, so a whole space is represented by stretches.
    """
    simulator = load_simulator(space.simulator)
    if not isinstance(simulator, EstimatesCost):
        return None
    wanted = max(1, min(asked or len(space), len(space)))
    if 4 * wanted > len(space):
        starts = _spread(space, _STRETCHES)[:, None]
        where = np.unique((starts + np.arange(_NEIGHBOURS)) % len(space))
    else:
        where = _spread(space, min(wanted, _STRETCHES * _NEIGHBOURS))
    batch = space.batch(where, space.kept(where))
    guesses = simulator.cost_hint_s(batch).sum() if batch.num_rows else 0.0
    return Estimate(0, float(guesses) / len(where))


def measured(
    space: DesignSpace, asked: int, patience_s: float = PROBE_S, most_s: float = 0.0
) -> Estimate:
    """Return the time of a point in a sweep of `asked` points, measured; no row is kept.

    First points spread over the space are evaluated, then growing stretches of neighbours, as in a
    chunk of work: neighbours share preparation, and whole columns cost little more than a row.
    Stretches near the longest one give the estimate. The first point of the space and of each
    stretch only loads what the sweep loads once. Points and stretches each take `patience_s`, or a
    share of the sweep up to `most_s`, and the last of them.
    """
    simulator = load_simulator(space.simulator)
    order = np.random.default_rng(0).permutation(_spread(space, _PROBES))
    allowed = space.kept(order)
    first = order[:1] if allowed is None else order[allowed][:1]
    share = 1.0 if allowed is None else float(allowed.mean())
    evaluate(simulator, space.batch(first))
    wanted = min(asked, len(space))
    spent, done, rows, budget_s = 0.0, 0, 1, patience_s
    while done < len(order) and spent < budget_s:
        where = np.sort(order[done : done + rows])
        spent += _timed(simulator, space, where)[0]
        done += len(where)
        rows *= 2
        if wanted <= len(order):
            budget_s = max(patience_s, min(most_s, _SHARE * wanted * spent / done))
    point_s, spent, rows = spent / max(done, 1), 0.0, 1
    budget_s = max(patience_s, min(most_s, _SHARE * wanted * point_s))
    stretches: list[tuple[int, float]] = []  # number of evaluated points, and their time
    while len(order) < wanted > done and spent < budget_s and rows < _LONGEST:
        affordable = int(budget_s / _REPEATS / max(point_s, 1e-9))
        rows = max(1, min(_GROWTH * rows, affordable, wanted - 1))
        stride = max(1, len(space) // wanted)
        start = int(order[done % len(order)]) % max(1, len(space) - stride * (rows + 1))
        where = start + stride * np.arange(rows + 1)
        loading_s, _ = _timed(simulator, space, where[:1])
        taken, answered = _timed(simulator, space, where[1:])
        spent, done = spent + loading_s + taken, done + rows
        if answered:
            stretches.append((answered, taken))
            long = [one for one in stretches if 2 * one[0] >= max(stretches)[0]]
            point_s = share * sum(taken for _, taken in long) / sum(points for points, _ in long)
    return Estimate(done, point_s)


def _timed(simulator: Simulator, space: DesignSpace, where: Index) -> tuple[float, int]:
    """Return the seconds that points take, and the number of points that constraints allow."""
    started = _seconds()
    batch = space.batch(where, space.kept(where))
    evaluate(simulator, batch)
    return _seconds() - started, batch.num_rows


def _seconds() -> float:
    """Return the wall time in seconds less the time for which this thread waited for a CPU."""
    waited_ns = 0
    with contextlib.suppress(OSError, ValueError, IndexError):  # a system without /proc
        waited_ns = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.perf_counter() - 1e-9 * waited_ns


def _spread(space: DesignSpace, count: int) -> Index:
    """Return point numbers, one at a random place of each of `count` equal stretches of the space.

    Evenly spaced numbers could all share one value of the fastest axis.
    """
    count = min(count, len(space))
    places = np.arange(count) + np.random.default_rng(0).random(count)
    return np.unique((places / count * len(space)).astype(np.int64))
