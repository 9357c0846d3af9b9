"""Cuts work into chunks by time: one to eight seconds each, smaller towards the end.

A round trip to a worker costs the same for one point and for thousands, so chunks are large; the
last ones shrink, so that no worker is idle while another finishes (guided self-scheduling,
Polychronopoulos and Kuck, 1987).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sweeper.space.spans import Batch, Span, cut, split, spread, width
from sweeper.store.store import Part, merged

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
_STRETCHES = 64
"""Stretches of a range that are evaluated in turn, so that early results sample all of it."""
_MEMORY = 0.5
"""Weight of the newest measurement in the running mean of seconds per point."""


@dataclass
class Chunks:
    """Cuts batches into chunks for `workers` workers, learning how long a point takes.

    First chunks are small. Once one is back, a range is cut into stretches, and chunks are
    taken from the stretches in the order of van der Corput (1935), so that any number of them
    samples the range. Batches of numbers keep their order. Chunks of at least half of `together`
    points end at multiples of `together`.
    """

    batches: Iterable[Batch]
    total: int
    workers: int = 1
    point_s: float = 0.0  # expected time of a point; 0: unknown
    spent_s: float = 0.0
    part_s: float = 0.0  # time to write a part
    together: int = 1  # consecutive points that are cheaper in one chunk
    _source: Iterator[Batch] = field(init=False)
    _waiting: deque[Batch] = field(default_factory=deque)
    _in_turn: bool = False
    _stretched_at_s: float = 0.0  # time of a point when stretches were cut
    is_known: bool = field(init=False)  # whether the time of a point was measured

    def __post_init__(self) -> None:
        self.is_known = self.point_s > 0.0
        self.point_s = self.point_s or UNTRIED_S
        ranges = isinstance(self.batches, list) and all(isinstance(b, Span) for b in self.batches)
        self._source = iter(spread(list(self.batches)) if ranges else self.batches)

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
        if not self._waiting:
            self._waiting.append(next(self._source))
            self._in_turn = False
        if self.spent_s and not self._in_turn and isinstance(self._waiting[0], Span):
            self._stretch()
        size = self.size()
        batch = self._joined(self._waiting.popleft(), size)
        size = self._whole(batch, size)
        most = min(size + size // 2, LARGEST, int(LAST_S / max(self.point_s, 1e-12)))
        if width(batch) > max(size, most):  # else the rest would be tiny
            rest = cut(batch, size, width(batch))
            (self._waiting.append if self._in_turn else self._waiting.appendleft)(rest)
            batch = cut(batch, 0, size)
        self.total = max(self.total - len(batch), 0)
        return batch

    def _joined(self, batch: Batch, size: int) -> Batch:
        """Return a stretch joined with those that follow it, if points are far cheaper by now.

        A stretch is then shorter than a chunk should be; points of vectorised simulators are.
        """
        if not self._in_turn or 2 * self.point_s > self._stretched_at_s:
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
        """Return a size near `size` that ends the chunk at a multiple of `together`."""
        whole = self._kept_together(size)
        if not isinstance(batch, Span) or whole == 1:
            return size
        ends = (batch.lo + size + whole // 2) // whole * whole
        return ends - batch.lo if ends > batch.lo else size

    def _kept_together(self, size: int) -> int:
        """Return how many consecutive points chunks of a size keep together."""
        return self.together if 2 * size >= self.together else 1

    def _stretch(self) -> None:
        """Cut the current range into stretches of several chunks, if it is long enough."""
        whole = self._waiting.popleft()
        size = self.size()
        pieces = min(_STRETCHES, -(-width(whole) // size))
        parts = split(whole, pieces, self._kept_together(size)) if pieces > 1 else [whole]
        self._waiting.extend(spread(parts) or [whole])
        self._in_turn, self._stretched_at_s = True, self.point_s


def learn(chunks: Chunks, parts: Sequence[Part]) -> None:
    """Record the parts of one chunk."""
    points, seconds = sum(p.points for p in parts), sum(p.seconds for p in parts)
    chunks.learn(points, seconds, sum(p.written_s for p in parts) / max(len(parts), 1))
