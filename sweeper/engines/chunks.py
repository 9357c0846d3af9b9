"""Cutting work into chunks by time: about a second each, with a tail that tapers off.

A round trip to a worker costs the same for one point and for thousands, so chunks are as large as
patience allows; towards the end they shrink, so that no worker sits idle while another finishes
(guided self-scheduling, Polychronopoulos and Kuck, 1987).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sweeper.space.spans import Batch, cut, width

PART = 200_000
"""Points in a part: this many rows make a good Parquet row group."""
LARGEST = 4 * PART
"""Points in a chunk: so many that the round trip is lost in the work, and few enough to watch."""
FIRST_S, LAST_S = 1.0, 8.0
"""A chunk aims at a second of work at first and at a few in a long sweep, to keep parts few."""
_TAPER = 16
"""The last chunks are this much smaller than full ones, not more: each is a trip and a file."""
_MEMORY = 0.5
"""Weight of the newest measurement in the running mean of seconds per point."""


@dataclass
class Chunks:
    """Cuts batches into chunks for `workers` workers, learning how long a point takes.

    Until the first one is back a point may take minutes, so first chunks are small.
    """

    batches: Iterable[Batch]
    total: int
    workers: int = 1
    point_s: float = FIRST_S / 64
    spent_s: float = 0.0
    _source: Iterator[Batch] = field(init=False)
    _rest: Batch | None = None

    def __post_init__(self) -> None:
        self._source = iter(self.batches)

    def learn(self, points: int, seconds: float) -> None:
        """Take note of how long a chunk took."""
        if points and seconds > 0:
            weight = _MEMORY if self.spent_s else 1.0
            self.point_s += weight * (seconds / points - self.point_s)
        self.spent_s += seconds

    def size(self) -> int:
        """Return how many points the next chunk should have."""
        aim_s = min(max(FIRST_S, self.spent_s / (20 * self.workers)), LAST_S)
        by_time = int(aim_s / max(self.point_s, 1e-12))
        full = min(by_time, LARGEST)
        tail = self.total // (4 * self.workers) if self.workers > 1 else self.total
        return max(1, min(full, max(tail, full // _TAPER)))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._rest is None:
            self._rest = next(self._source)
        batch, size = self._rest, self.size()
        self._rest = None
        if width(batch) > size:
            batch, self._rest = cut(batch, 0, size), cut(batch, size, width(batch))
        self.total = max(self.total - len(batch), 0)
        return batch
