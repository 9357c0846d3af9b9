"""The Sobol sampler: points that fill the space evenly, as every prefix of the sequence does.

Sobol (1967), in Gray-code order (Antonov and Saleev, 1979), with the direction numbers of Joe and
Kuo, "Constructing Sobol sequences with better two-dimensional projections" (2008), and a random
digital shift, which keeps the evenness and makes seeds differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.core.errors import UserError
from sweeper.samplers.random import Random, allowed, first_distinct
from sweeper.space.design_space import DesignSpace
from sweeper.space.spans import Index

_BITS = 31

# Joe and Kuo (2008), file new-joe-kuo-6: per dimension from the second on, the coefficients of a
# primitive polynomial (without its ends, as a number) and the first direction numbers.
_JOE_KUO: tuple[tuple[int, tuple[int, ...]], ...] = (
    (0, (1,)),
    (1, (1, 3)),
    (1, (1, 3, 1)),
    (2, (1, 1, 1)),
    (1, (1, 1, 3, 3)),
    (4, (1, 3, 5, 13)),
    (2, (1, 1, 5, 5, 17)),
    (4, (1, 1, 5, 5, 5)),
    (7, (1, 1, 7, 11, 19)),
    (11, (1, 1, 5, 1, 1)),
    (13, (1, 1, 1, 3, 11)),
    (14, (1, 3, 5, 5, 31)),
    (1, (1, 3, 3, 9, 7, 49)),
    (13, (1, 1, 1, 15, 21, 21)),
    (16, (1, 3, 1, 13, 27, 49)),
    (19, (1, 1, 1, 15, 7, 5)),
    (22, (1, 3, 1, 15, 13, 25)),
    (25, (1, 1, 5, 5, 19, 61)),
    (1, (1, 3, 7, 11, 23, 15, 103)),
    (4, (1, 3, 7, 13, 13, 15, 69)),
)


@dataclass(frozen=True)
class Sobol(Random):
    """An evenly spread sample.

    Args:
        points: how many; powers of two are spread best.
        seed: of the shift.
    """

    points: int = 1024

    def draw(self, space: DesignSpace) -> Index:
        """Return the numbers of the points, in the order of the sequence."""
        if self.points >= len(space):
            return allowed(space, np.arange(len(space)))
        sizes = [len(factor) for factor in space.factors if len(factor) > 1]
        start = 0

        def numbers(count: int) -> Index:
            nonlocal start
            unit = sequence(len(sizes), start, count, self.seed)
            start += count
            index = np.zeros(count, np.int64)
            for j, size in enumerate(sizes):
                index = index * size + (unit[:, j] * size).astype(np.int64)
            return index

        return first_distinct(space, self.points, numbers)


def sequence(dimensions: int, start: int, count: int, seed: int | None) -> NDArray[np.float64]:
    """Return rows `start` to `start + count` of the sequence, each number in [0, 1).

    Without a seed of the digital shift it is the plain sequence, which begins with a row of zeros.

    >>> sequence(2, 0, 4, None).tolist()
    [[0.0, 0.0], [0.5, 0.5], [0.75, 0.25], [0.25, 0.75]]
    """
    if dimensions > len(_JOE_KUO) + 1:
        raise UserError(
            f"sampler=sobol spreads points over at most {len(_JOE_KUO) + 1} varied axes, not "
            f"{dimensions}; use sampler=random"
        )
    numbers = np.arange(start, start + count, dtype=np.int64)
    gray = numbers ^ (numbers >> 1)
    result = np.zeros((count, dimensions), np.int64)
    shift = np.zeros(dimensions, np.int64)
    if seed is not None:
        shift = np.random.default_rng(seed).integers(1 << _BITS, size=dimensions)
    for j in range(dimensions):
        for bit, direction in enumerate(_directions(j)):
            result[:, j] ^= ((gray >> bit) & 1) * direction
    return (result ^ shift) / float(1 << _BITS)


def _directions(dimension: int) -> list[int]:
    if dimension == 0:
        return [1 << (_BITS - 1 - i) for i in range(_BITS)]
    polynomial, first = _JOE_KUO[dimension - 1]
    degree = len(first)
    v = [m << (_BITS - 1 - i) for i, m in enumerate(first)]
    for i in range(degree, _BITS):
        value = v[i - degree] ^ (v[i - degree] >> degree)
        for k in range(1, degree):
            if (polynomial >> (degree - 1 - k)) & 1:
                value ^= v[i - k]
        v.append(value)
    return v


SAMPLER = Sobol
