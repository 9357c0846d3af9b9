"""Histogram of the gaps between tokens (inter-token latency), in bins of equal relative width."""

from __future__ import annotations

import functools
from math import frexp, ldexp

import numpy as np

from simulators.core.jit import Floats, f8, i8
from simulators.serving.engine.replica import kernel

BINS_PER_OCTAVE = 256
"""Gaps between tokens are counted in bins 0.27 to 0.39 % wide."""
LOWEST_OCTAVE, HIGHEST_OCTAVE = -20, 14
"""From 1 us to 4.5 h; gaps outside are counted in the first or the last bin."""
GAP_BINS = BINS_PER_OCTAVE * (HIGHEST_OCTAVE - LOWEST_OCTAVE)


@kernel(i8(f8))
def gap_bin(gap_s: float) -> int:
    """Return the histogram bin of a gap between two tokens."""
    fraction, exponent = frexp(gap_s)  # the fraction lies in [1/2, 1)
    place = int((2.0 * fraction - 1.0) * BINS_PER_OCTAVE)
    return min(max((exponent - 1 - LOWEST_OCTAVE) * BINS_PER_OCTAVE + place, 0), GAP_BINS - 1)


@kernel(f8(i8))
def gap_edge(place: int) -> float:
    """Return the lower edge of a bin, in seconds.

    >>> gap_edge(gap_bin(0.25))
    0.25
    """
    octave, step = place // BINS_PER_OCTAVE, place % BINS_PER_OCTAVE
    return ldexp(1.0 + step / BINS_PER_OCTAVE, octave + LOWEST_OCTAVE)


@functools.cache
def gap_edges_s() -> Floats:
    """Return the lower edges of the histogram's bins, and the upper edge of the last."""
    return np.array([gap_edge.py_func(place) for place in range(GAP_BINS + 1)])
