"""Search of one number on a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simulators.core.jit import Floats


def best_share(shares: Floats, errors: Sequence[Callable[[float], Floats]]) -> float:
    """Return the share at which the mean of the rows' errors is least.

    >>> best_share(np.array([0.2, 0.4, 0.6]), [lambda share: np.array([abs(share - 0.5)])])
    0.4
    """

    def mean(share: float) -> float:
        return float(np.mean(np.concatenate([error(share) for error in errors])))

    return float(min(shares.tolist(), key=mean))
