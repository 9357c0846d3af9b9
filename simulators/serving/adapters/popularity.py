"""Which of many adapters requests want, by means: how many a batch has, how often one is there.

A request wants adapter `i` with probability `p_i`, as `1 / i ** zipf`. A batch of `B` requests has
`sum(1 - (1 - p_i) ** B)` of them on average. Of those kept, the least recently used is dropped; an
adapter is found with `1 - exp(-p_i T)`, where `T` is such that so many are kept (Che et al.,
"Hierarchical web caching systems", 2002).
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Floats

HALVINGS = 80
"""Of the interval in which `T` lies: more than a double can tell apart."""


def popularity(adapters: int, zipf: float) -> Floats:
    """Return the share of requests that want each adapter, the most wanted first.

    >>> popularity(2, 1.0).round(3).tolist()
    [0.667, 0.333]
    """
    weights = 1.0 / np.arange(1.0, adapters + 1.0) ** zipf
    shares: Floats = weights / weights.sum()
    return shares


def distinct(shares: Floats, requests: Floats) -> Floats:
    """Return how many adapters some requests want, on average.

    >>> distinct(popularity(2, 0.0), np.array([1.0, 2.0])).tolist()
    [1.0, 1.5]
    """
    return np.asarray((1.0 - (1.0 - shares) ** requests[..., None]).sum(axis=-1))


def missing_share(shares: Floats, kept: int) -> float:
    """Return the share of requests whose adapter is not cached on the GPU.

    >>> missing_share(popularity(4, 0.0), 4), round(missing_share(popularity(4, 0.0), 1), 3)
    (0.0, 0.75)
    """
    if kept >= shares.size:
        return 0.0
    low, high = 0.0, 1.0 / float(shares.min()) * shares.size * 64.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if float((1.0 - np.exp(-shares * middle)).sum()) < kept:
            low = middle
        else:
            high = middle
    return float((shares * np.exp(-shares * low)).sum())
