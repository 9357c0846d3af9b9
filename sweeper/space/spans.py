"""Ranges of point numbers: what is sent to workers, and what finished work settles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Span:
    """A range of point numbers, without those in `without` (sorted; answered elsewhere)."""

    lo: int
    hi: int
    without: Index = field(default_factory=lambda: np.empty(0, np.int64), compare=False)

    def __len__(self) -> int:
        return self.hi - self.lo - len(self.without)

    def index(self) -> Index:
        """Return the numbers themselves."""
        numbers = np.arange(self.lo, self.hi, dtype=np.int64)
        return np.delete(numbers, self.without - self.lo) if len(self.without) else numbers

    def cut(self, lo: int, hi: int) -> Span:
        """Return the part of the range from `lo` to `hi`."""
        first, last = np.searchsorted(self.without, (lo, hi))
        return Span(lo, hi, self.without[first:last])


Batch = Span | Index
"""What is sent to a worker: a range of point numbers, or the numbers themselves."""


def numbers(batch: Batch) -> Index:
    """Return the point numbers of a batch."""
    return batch.index() if isinstance(batch, Span) else batch


def width(batch: Batch) -> int:
    """Return how many numbers lie between the ends of a batch, those it leaves out included."""
    return batch.hi - batch.lo if isinstance(batch, Span) else len(batch)


def cut(batch: Batch, first: int, last: int) -> Batch:
    """Return the part of a batch between two positions, counted from its beginning."""
    if isinstance(batch, Span):
        return batch.cut(batch.lo + first, min(batch.lo + last, batch.hi))
    return batch[first:last]


def split(batch: Batch, pieces: int, together: int = 1) -> list[Batch]:
    """Return a batch in up to `pieces` parts of nearly equal size, none empty.

    Those of a range end at multiples of `together`.

    >>> [(b.lo, b.hi) for b in split(Span(3, 20), 3, together=5)]
    [(3, 10), (10, 20)]
    """
    size = -(-width(batch) // (pieces * together)) * together
    offset = batch.lo % together if isinstance(batch, Span) else 0
    starts = [0, *range(size - offset, width(batch), size)]
    parts = [cut(batch, *both) for both in pairwise([*starts, width(batch)])]
    return [part for part in parts if len(part)]


def covered(index: Index, done: Sequence[Span]) -> Mask:
    """Return which numbers one of the spans settles (they are in order and apart)."""
    if not done:
        return np.zeros(len(index), bool)
    home = np.searchsorted(np.array([span.lo for span in done]), index, side="right") - 1
    inside = (home >= 0) & (index < np.array([span.hi for span in done])[home])
    holes = np.concatenate([span.without for span in done])
    return inside & ~np.isin(index, holes) if len(holes) else inside


def subtract(span: Span, done: Sequence[Span], answered: Index) -> Iterator[Span]:
    """Yield what of a span neither finished spans nor single answers (sorted) settle."""
    lo = span.lo
    for other in [*done, Span(span.hi, span.hi)]:
        hi = min(max(other.lo, lo), span.hi)
        if hi > lo:
            gone = answered[np.searchsorted(answered, lo) : np.searchsorted(answered, hi)]
            if len(gone) < hi - lo:
                yield Span(lo, hi, gone)
        lo = max(lo, min(other.hi, span.hi))
