"""Boxes of designs: the initial ones of a space, and their parts.

A box is one value of most factors and a range of those that a simulator can bound. Every design
lies in one initial box, and every design of a box in one of its parts, so the boxes that are never
cut cover the space. `Cuts` names them by one bit per box.
"""

from __future__ import annotations

import base64
import functools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Ints
from sweeper.questions import Bounds, Ignores
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, Mask, number_of

_MOST = 2_000_000  # largest number of boxes of the initial partition


@dataclass(frozen=True)
class Partition:
    """The boxes of a space, given by the rows of its factors that vary.

    Args:
        space: the space.
        simulator: states the fields in which designs of a box may differ.
        given: axes whose values are scenarios; no box holds several of them.
        parts: number of parts that a box is cut into.
    """

    space: DesignSpace
    simulator: Bounds
    given: tuple[str, ...]
    parts: int

    @functools.cached_property
    def varied(self) -> Ints:
        """Numbers of the factors that vary."""
        return np.flatnonzero(self.space.sizes > 1)

    @property
    def initial(self) -> tuple[Ints, Ints]:
        """The first and last rows of the factors in each initial box."""
        factors = [self.space.factors[i] for i in self.varied]
        parts = [_parts_of(f.columns, self.simulator.ranged, self.given) for f in factors]
        return self._without_ignored(*_combined(parts))

    def _without_ignored(self, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """Reduce boxes to a single value of axes without effect on metrics or constraints."""
        if not isinstance(self.simulator, Ignores):
            return low, high
        high, asked = high.copy(), {root for rule in self.space.rules for root in rule.roots}
        ignored = self.simulator.ignored(self.space.batch(self.number(low)))
        for side, factor in enumerate(self.varied.tolist()):
            name, *others = self.space.factors[factor].columns
            if name in ignored and not others and factor not in asked:
                high[:, side] = np.where(ignored[name], low[:, side], high[:, side])
        return low, high

    def number(self, codes: Ints) -> Index:
        """Return the numbers of designs, given by rows of the factors that vary."""
        sizes = self.space.sizes[self.varied]
        return np.zeros(len(codes), np.int64) + number_of(codes.T, sizes)

    def cut(self, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """Return the ends of the parts of boxes, each cut along its longest side."""
        width = high - low + 1
        rows, axis = np.arange(len(width)), width.argmax(axis=1)
        most = width[rows, axis]
        parts = np.minimum(most, self.parts)
        each = np.repeat(rows, parts)
        part = np.arange(len(each)) - np.repeat(np.cumsum(parts) - parts, parts)
        firsts, lasts = low[each], high[each]
        start, side = low[rows, axis][each], axis[each]
        lasts[np.arange(len(each)), side] = start + most[each] * (part + 1) // parts[each] - 1
        firsts[np.arange(len(each)), side] = start + most[each] * part // parts[each]
        return firsts, lasts


@dataclass(frozen=True)
class Cuts:
    """Which boxes of a partition were cut, level by level: the initial boxes, their parts ..."""

    masks: Sequence[Mask]

    @classmethod
    def of(cls, partition: Partition, low: Ints, high: Ints) -> Cuts:
        """Return the cuts of a search that cut these boxes."""
        ends = partition.number(low), partition.number(high)
        cut = np.stack(ends, axis=1) if len(low) else np.empty((0, 2), np.int64)
        known = {(first, last) for first, last in cut.tolist()}
        masks, boxes = [], partition.initial
        while len(boxes[0]):
            numbers = zip(*(partition.number(one).tolist() for one in boxes), strict=True)
            mask = np.fromiter((pair in known for pair in numbers), bool, len(boxes[0]))
            masks.append(mask)
            boxes = partition.cut(boxes[0][mask], boxes[1][mask])
        return cls(masks)

    def leaves(self, partition: Partition) -> tuple[Ints, Ints]:
        """Return the boxes that were not cut; they cover the space.

        Raises:
            UserError: these are not cuts of this partition.
        """
        found, boxes = [], partition.initial
        for mask in self.masks:
            if len(mask) != len(boxes[0]):
                raise UserError("the boxes of the certificate are not those of its space")
            found.append((boxes[0][~mask], boxes[1][~mask]))
            boxes = partition.cut(boxes[0][mask], boxes[1][mask])
        if len(boxes[0]):
            raise UserError("the boxes of the certificate do not cover its space")
        low, high = (np.concatenate(ends) for ends in zip(*found, strict=True))
        return low, high

    def to_dict(self) -> dict[str, object]:
        """Return the masks as compressed text."""
        texts = [
            base64.b64encode(zlib.compress(np.packbits(mask).tobytes(), 9)).decode()
            for mask in self.masks
        ]
        return {"boxes": [len(mask) for mask in self.masks], "cut": texts}

    @classmethod
    def from_dict(cls, stated: Mapping[str, object]) -> Cuts:
        """Return the cuts in a certificate.

        Raises:
            UserError: the text is damaged.
        """
        try:
            return cls(list(_masks(stated)))
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise UserError(f"the certificate states no boxes: {error}") from None


def _masks(stated: Mapping[str, object]) -> Iterator[Mask]:
    counts, texts = stated["boxes"], stated["cut"]
    assert isinstance(counts, Sequence)
    assert isinstance(texts, Sequence)
    for count, text in zip(counts, texts, strict=True):
        packed = zlib.decompress(base64.b64decode(text))
        mask = np.unpackbits(np.frombuffer(packed, np.uint8), count=count)
        yield mask.astype(bool)


def _parts_of(
    columns: Mapping[str, Sequence[object]], ranged: Sequence[str], given: Sequence[str]
) -> tuple[Ints, Ints]:
    """Return the first and last rows of the parts of a factor that a box may span.

    Within a part only columns that a box may span differ, and their values ascend.
    """
    rows = list(zip(*columns.values(), strict=True))
    free = [name in ranged and name not in given for name in columns]

    def is_continued(row: tuple[object, ...], after: tuple[object, ...]) -> bool:
        return all(
            a == b or (may and isinstance(a, int | float) and isinstance(b, int | float) and a < b)
            for a, b, may in zip(row, after, free, strict=True)
        )

    starts = [0] + [i for i in range(1, len(rows)) if not is_continued(rows[i - 1], rows[i])]
    return np.array(starts, np.int64), np.array([*starts[1:], len(rows)], np.int64) - 1


def _combined(parts: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Return the ends of a box for every combination of parts of the factors."""
    left = math.prod(len(starts) for starts, _ in parts)
    if left > _MOST:
        raise UserError(
            f"sampler=bounds would begin with {left:,} boxes, more than {_MOST:,}: give other "
            "axes fewer values than those that a box may span"
        )
    picked = np.unravel_index(np.arange(left), [len(starts) for starts, _ in parts] or [1])
    low = np.zeros((left, len(parts)), np.int64)
    high = low.copy()
    for side, ((starts, lasts), rows) in enumerate(zip(parts, picked, strict=False)):
        low[:, side], high[:, side] = starts[rows], lasts[rows]
    return low, high
