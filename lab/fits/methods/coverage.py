"""The value that covers a share of what was seen, where rows come in groups that err together.

A split-conformal quantile (Vovk, Gammerman and Shafer, 2005): errors of what no fit has seen say
how far the next one may lie. Rows of a group are alike, so groups count alike, however many rows
each has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from simulators.core.jit import Floats

COVERED = 0.9
"""Of measurements, by an interval."""


def covering(values: Floats, groups: Sequence[Hashable], share: float = COVERED) -> float:
    """Return the least value that covers a share of all, groups counted alike.

    >>> covering(np.array([1.0, 2.0, 3.0, 4.0, 9.0]), ["a", "a", "a", "a", "b"], 0.5)
    4.0
    """
    rows = Counter(groups)
    weights = np.array([1.0 / rows[group] for group in groups])
    return float(weighted_quantiles(values, weights, share))


def weighted_quantiles(values: Floats, weights: Floats, shares: float | Sequence[float]) -> Floats:
    """Return the least values that such shares of all weights lie at or below.

    >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.ones(3), (0.3, 0.9)).tolist()
    [1.0, 3.0]
    """
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    place = np.minimum(np.searchsorted(reached, shares), values.size - 1)
    found: Floats = values[order][place]
    return found
