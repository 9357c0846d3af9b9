"""A dataflow by name is a cluster of elements, what it spreads, and how long a step takes.

Kwon et al., "MAESTRO" (MICRO 2019). Elements form clusters; one dimension is spread over clusters,
another inside them, the rest runs in time. A step lasts as long as its window of multiplies and one
cycle to hand sums on, or as long as the network needs for the different words the step asks for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulators.core.errors import UnknownNameError, UserError

NOC_WORDS_PER_CYCLE = 50.0
"""Read off the peer's cycles where its network sets the pace; its hardware files also say 64."""

NAMED = ("kc_p", "ck_p", "yx_p")
CLUSTER = {"kc_p": 64, "ck_p": 64, "yx_p": 8}
"""Elements of one cluster in MAESTRO's own mapping files of those names."""


@dataclass(frozen=True)
class Window:
    """A convolution as MAESTRO sees it; `k` is 0 for a depthwise one."""

    k: int
    c: int
    r: int
    s: int
    p: int
    q: int
    stride: int = 1


def named_cycles(
    dataflow: str,
    layer: Window,
    *,
    elements: int,
    noc_words_per_cycle: float = NOC_WORDS_PER_CYCLE,
    vector_width: int = 1,
) -> int:
    """Return the cycles of a layer under a named dataflow.

    Args:
        dataflow: `kc_p` spreads filters over clusters and channels inside them (weight
            stationary), `ck_p` the other way round, `yx_p` rows and columns of the output
            (output stationary).
        layer: the convolution.
        elements: processing elements.
        noc_words_per_cycle: different words the network hands out per cycle.
        vector_width: multiplies of one element per cycle.

    >>> named_cycles("kc_p", Window(k=64, c=64, r=1, s=1, p=56, q=56), elements=256)
    301056
    """
    if dataflow not in NAMED:
        raise UnknownNameError("named dataflow", dataflow, NAMED)
    clusters, inside = elements // CLUSTER[dataflow], CLUSTER[dataflow]
    if clusters < 1:
        raise UserError(f"{dataflow} needs {inside} elements or more, there are {elements}")
    window = layer.r * layer.s
    compute = math.ceil(window / vector_width)
    if dataflow == "yx_p":
        rows, columns = min(layer.p, clusters), min(layer.q, inside)
        across = (columns - 1) * layer.stride + layer.s
        words = rows * layer.r * across + window
        steps = math.ceil(layer.p / clusters) * math.ceil(layer.q / inside)
        return steps * max(layer.k, 1) * layer.c * _step(compute + 1, words, noc_words_per_cycle)
    pixels = layer.p * layer.q
    if layer.k == 0:  # channels are all there is to spread
        words = 2 * min(layer.c, elements) * window
        steps = math.ceil(layer.c / elements) * pixels
        return steps * _step(compute, words, noc_words_per_cycle)
    outer, inner = (layer.k, layer.c) if dataflow == "kc_p" else (layer.c, layer.k)
    wide, deep = min(outer, clusters), min(inner, inside)
    inputs = deep if dataflow == "kc_p" else wide
    words = (wide * deep + inputs) * window
    steps = math.ceil(outer / clusters) * math.ceil(inner / inside) * pixels
    return steps * _step(compute + 1, words, noc_words_per_cycle)


def _step(compute: int, words: int, noc_words_per_cycle: float) -> int:
    return max(compute, math.floor(words / noc_words_per_cycle))
