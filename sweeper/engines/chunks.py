"""Cutting work into chunks by time: about a second each, with a tail that tapers off.

A round trip to a worker costs the same for one point and for thousands, so chunks are as large as
patience allows; towards the end they shrink, so that no worker sits idle while another finishes
(guided self-scheduling, Polychronopoulos and Kuck, 1987).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sweeper.space.spans import Batch, Span, cut, split, spread, width
from sweeper.store.store import Part, merged

PART = 200_000
"""Points in a part: this many rows make a good Parquet row group."""
LARGEST = 4 * PART
"""Points in a chunk: so many that the round trip is lost in the work, and few enough to watch."""
FIRST_S, LAST_S = 1.0, 8.0
"""A chunk aims at a second of work at first and at a few in a long sweep, to keep parts few."""
UNTRIED_S = FIRST_S / 8
"""What a point is taken to take where nobody knows: a few points tell, and may take minutes."""
_WORTH = 10.0
"""A chunk aims at so many times the seconds that writing a part takes: some stores are slow."""
_TAPER = 16
"""The last chunks are this much smaller than full ones, not more: each is a trip and a file."""
_STRETCHES = 64
"""Stretches of a range that are worked on by turns, so that early results sample all of it."""
_MEMORY = 0.5
"""Weight of the newest measurement in the running mean of seconds per point."""


@dataclass
class Chunks:
    """Cuts batches into chunks for `workers` workers, learning how long a point takes.

    Until the first one is back a point may take minutes, so first chunks are small. Then a range is
    cut into stretches, and chunks are taken from one after the other, in the order of van der
    Corput (1935): any number of them samples the range. Batches of numbers keep their order. A
    chunk of half as many points as belong `together`, or more, ends where such points do.
    """

    batches: Iterable[Batch]
    total: int
    workers: int = 1
    point_s: float = 0.0  # that a point is expected to take; 0: nothing is known
    spent_s: float = 0.0
    part_s: float = 0.0  # that writing a part takes, whatever its points
    together: int = 1  # points in a row that are answered more cheaply in one chunk
    _source: Iterator[Batch] = field(init=False)
    _waiting: deque[Batch] = field(default_factory=deque)
    _by_turns: bool = False
    _stretched_at_s: float = 0.0  # what a point took when stretches were cut
    is_known: bool = field(init=False)  # whether a point's time is more than a guess

    def __post_init__(self) -> None:
        self.is_known = self.point_s > 0.0
        self.point_s = self.point_s or UNTRIED_S
        ranges = isinstance(self.batches, list) and all(isinstance(b, Span) for b in self.batches)
        self._source = iter(spread(list(self.batches)) if ranges else self.batches)

    def learn(self, points: int, seconds: float, written_s: float = 0.0) -> None:
        """Take note of how long a chunk took, and writing it."""
        weight = _MEMORY if self.spent_s else 1.0
        if points and seconds > 0:
            self.point_s += weight * (seconds / points - self.point_s)
            self.is_known = True
        self.part_s += weight * (written_s - self.part_s)
        self.spent_s += seconds

    def size(self) -> int:
        """Return how many points the next chunk should have."""
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
        if not self._waiting:
            self._waiting.append(next(self._source))
            self._by_turns = False
        if self.spent_s and not self._by_turns and isinstance(self._waiting[0], Span):
            self._stretch()
        size = self.size()
        batch = self._joined(self._waiting.popleft(), size)
        size = self._whole(batch, size)
        most = min(size + size // 2, LARGEST, int(LAST_S / max(self.point_s, 1e-12)))
        if width(batch) > max(size, most):  # else what is left would be a crumb
            rest = cut(batch, size, width(batch))
            (self._waiting.append if self._by_turns else self._waiting.appendleft)(rest)
            batch = cut(batch, 0, size)
        self.total = max(self.total - len(batch), 0)
        return batch

    def _joined(self, batch: Batch, size: int) -> Batch:
        """Return a stretch with those that follow it, where its points prove far cheaper by now.

        Those that are answered by whole columns do: it is then shorter than a chunk should be.
        """
        if not self._by_turns or 2 * self.point_s > self._stretched_at_s:
            return batch
        while isinstance(batch, Span) and 3 * width(batch) <= 2 * size:
            end = batch.hi
            after = next((b for b in self._waiting if isinstance(b, Span) and b.lo == end), None)
            if after is None:
                break
            self._waiting.remove(after)
            batch = merged([batch, after])[0]
        return batch

    def _whole(self, batch: Batch, size: int) -> int:
        """Return about as many points, up to where those end that belong together."""
        whole = self._kept_together(size)
        if not isinstance(batch, Span) or whole == 1:
            return size
        ends = (batch.lo + size + whole // 2) // whole * whole
        return ends - batch.lo if ends > batch.lo else size

    def _kept_together(self, size: int) -> int:
        """Return how many points in a row chunks of such a size keep together."""
        return self.together if 2 * size >= self.together else 1

    def _stretch(self) -> None:
        """Cut the range in hand into stretches of several chunks, as far as it is so long."""
        whole = self._waiting.popleft()
        size = self.size()
        pieces = min(_STRETCHES, -(-width(whole) // size))
        parts = split(whole, pieces, self._kept_together(size)) if pieces > 1 else [whole]
        self._waiting.extend(spread(parts) or [whole])
        self._by_turns, self._stretched_at_s = True, self.point_s


def learn(chunks: Chunks, parts: Sequence[Part]) -> None:
    """Take note of the parts of one chunk."""
    points, seconds = sum(p.points for p in parts), sum(p.seconds for p in parts)
    chunks.learn(points, seconds, sum(p.written_s for p in parts) / max(len(parts), 1))
