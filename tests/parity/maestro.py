"""Cycles of convolutions under named dataflows, as MAESTRO counts them.

Kwon et al., "MAESTRO" (MICRO 2019). Elements form clusters; one dimension is spread over clusters,
another inside them, the rest runs in time. A step lasts as long as its window of multiplies and one
cycle to hand sums on, or as long as the network needs for the different words the step asks for.
"""

from __future__ import annotations

import math
from typing import NamedTuple

NOC_WORDS_PER_CYCLE = 50.0
"""From cycles of MAESTRO where the network is the bottleneck; hardware files also say 64."""

CLUSTER = {"kc_p": 64, "ck_p": 64, "yx_p": 8}
"""Elements of one cluster in MAESTRO's own mapping files of those names."""


class Window(NamedTuple):
    """A convolution of stride 1 as MAESTRO sees it; `k` is 0 for a depthwise one."""

    k: int
    c: int
    r: int
    s: int
    p: int
    q: int


def named_cycles(dataflow: str, layer: Window, *, elements: int) -> int:
    """Return the cycles of a layer under a named dataflow.

    `kc_p` spreads filters over clusters and channels inside them (weight stationary), `ck_p` the
    other way round, `yx_p` rows and columns of the output (output stationary).

    >>> named_cycles("kc_p", Window(k=64, c=64, r=1, s=1, p=56, q=56), elements=256)
    301056
    """
    inside = CLUSTER[dataflow]
    clusters, window, pixels = elements // inside, layer.r * layer.s, layer.p * layer.q
    if dataflow == "yx_p":
        rows, columns = min(layer.p, clusters), min(layer.q, inside)
        words = rows * layer.r * (columns - 1 + layer.s) + window
        steps = math.ceil(layer.p / clusters) * math.ceil(layer.q / inside)
        return steps * max(layer.k, 1) * layer.c * _step(window + 1, words)
    if layer.k == 0:  # channels are all there is to spread
        words = 2 * min(layer.c, elements) * window
        return math.ceil(layer.c / elements) * pixels * _step(window, words)
    outer, inner = (layer.k, layer.c) if dataflow == "kc_p" else (layer.c, layer.k)
    wide, deep = min(outer, clusters), min(inner, inside)
    words = (wide * deep + (deep if dataflow == "kc_p" else wide)) * window
    steps = math.ceil(outer / clusters) * math.ceil(inner / inside) * pixels
    return steps * _step(window + 1, words)


def _step(compute: int, words: int) -> int:
    return max(compute, math.floor(words / NOC_WORDS_PER_CYCLE))
