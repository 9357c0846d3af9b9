"""Cuts work into chunks by time: one to eight seconds each, smaller towards the end.

A round trip to a worker costs the same for one point and for thousands, so chunks are large; the
last ones shrink, so that no worker is idle while another finishes (guided self-scheduling,
Polychronopoulos and Kuck, 1987).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sweeper.space.points import Batch, Span, cut, width
from sweeper.store.store import Part

PART = 200_000
"""Most points of a part, which is one Parquet row group."""
LARGEST = 4 * PART
"""Most points of a chunk."""
FIRST_S, LAST_S = 1.0, 8.0
"""Target duration of a chunk, at first and in a long sweep, where it keeps parts few."""
UNTRIED_S = FIRST_S / 8
"""Assumed time of a point when nothing is known; it keeps first chunks small."""
_WORTH = 10.0
"""Least duration of a chunk, in multiples of the time to write a part."""
_TAPER = 16
"""Largest ratio of a full chunk to a last one: each chunk costs a round trip and a file."""
_MEMORY = 0.5
"""Weight of the newest measurement in the running mean of seconds per point."""


@dataclass
class Chunks:
    """Cuts batches into chunks for `workers` workers, learning how long a point takes.

    First chunks are small. Once one is back, the next chunk is taken from the middle of the longest
    piece of the ranges that is left, so that any number of chunks samples all of them. Batches of
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
        """Record how long a chunk took, and how long writing its parts took."""
        weight = _MEMORY if self.spent_s else 1.0
        if points and seconds > 0:
            self.point_s += weight * (seconds / points - self.point_s)
            self.is_known = True
        self.part_s += weight * (written_s - self.part_s)
        self.spent_s += seconds

    def size(self) -> int:
        """Return the number of points of the next chunk."""
        aim_s = min(max(FIRST_S, self.spent_s / (20 * self.workers)), LAST_S)
        aim_s = max(aim_s, _WORTH * self.part_s)
        by_time = int(aim_s / max(self.point_s, 1e-12))
        full = min(by_time, LARGEST)
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
        size, whole = self.size(), width(batch)
        most = min(size + size // 2, LARGEST, int(LAST_S / max(self.point_s, 1e-12)))
        if whole <= max(size, most):  # else the rest would be tiny
            return 0, whole
        if not isinstance(batch, Span):
            return 0, size
        together, lo = self._kept_together(size), batch.lo

        def aligned(position: int) -> int:
            return (lo + position + together // 2) // together * together - lo

        first = max(aligned(whole // 2), 0) if self.spent_s and whole > 3 * size else 0
        last = aligned(first + size)
        return first, min(last if last > first else first + size, whole)

    def _kept_together(self, size: int) -> int:
        """Return how many consecutive points chunks of a size keep together."""
        return self.together if 2 * size >= self.together else 1


def learn(chunks: Chunks, parts: Sequence[Part]) -> None:
    """Record the parts of one chunk."""
    points, seconds = sum(p.points for p in parts), sum(p.seconds for p in parts)
    chunks.learn(points, seconds, sum(p.written_s for p in parts) / max(len(parts), 1))
