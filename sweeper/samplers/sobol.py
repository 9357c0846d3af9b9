"""The sobol sampler: a scrambled Sobol sequence, every prefix of which fills the space evenly.

Sobol (1967), scrambled as by Owen (1998). Needs the extra `search`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sweeper.extras import load_extra
from sweeper.samplers.random import Random, allowed, first_distinct
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, number_of


@dataclass(frozen=True)
class Sobol(Random):
    """An evenly spread sample.

    Args:
        points: number of points; powers of two are spread best.
        seed: seed of the scrambling.
    """

    points: int = 1024

    def draw(self, space: DesignSpace) -> Index:
        """Return point numbers in the order of the sequence.

        Raises:
            UserError: scipy is not installed.
        """
        qmc = load_extra("scipy.stats.qmc", "sampler=sobol", instead="use sampler=lhs")
        if self.points >= len(space):
            return allowed(space, np.arange(len(space)))
        sizes = space.sizes[space.sizes > 1]
        sequence = qmc.Sobol(len(sizes), rng=np.random.default_rng(self.seed))

        def numbers(count: int) -> Index:
            codes = (sequence.random(1 << (count - 1).bit_length()) * sizes).astype(np.int64)
            return number_of(codes.T, sizes)

        return first_distinct(space, self.points, numbers)


SAMPLER = Sobol
