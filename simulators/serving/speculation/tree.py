"""Drafts that branch: how many of a tree's levels the model agrees with, in one iteration.

A drafter's second, third ... guess at a place may be what the model would say where its first is
not. A level counts if the model's token is among its nodes, so with a share of path probabilities
an iteration brings `1 + their sum over all nodes` (Cai et al., Medusa, 2024). The tree grows by its
likeliest next node, and as in EAGLE-2 (Li et al., 2024) at most `topk` nodes of a level have
children, at most so many each. EAGLE-2 grows another tree in every iteration, by what its drafter
is sure of; here all are the mean one, so its trees bring 15 % fewer tokens than published.

That one of the first `r` guesses is right has the odds of the first times `r^growth`: so do
Medusa's heads, each as far as it was measured (`calibration/acceptance.toml`).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise


def tree_survival(
    rates: Sequence[float], growth: float, topk: int, nodes: int
) -> tuple[tuple[float, ...], int]:
    """Return the shares of iterations that accept at least 1, 2 ... levels, and the nodes grown.

    Args:
        rates: with which the first guess of each level is right, given the levels before.
        growth: by which power of their number guesses gain odds.
        topk: children of a node, and nodes of a level that have any.
        nodes: of the tree, at most; its root is the model's own token and none.

    >>> tree_survival((0.5, 0.5), 1.0, 1, 2)
    ((0.5, 0.25), 2)
    >>> [round(share, 3) for share in tree_survival((0.5, 0.5), 1.0, 2, 3)[0]]
    [0.667, 0.25]
    """
    guesses = [ranked(rate, growth, topk) for rate in rates]
    shares, parents, count = [0.0] * len(rates), [0] * len(rates), 0
    heap: list[tuple[float, int, int, float]] = []  # less its path's probability; place in tree

    def offer(level: int, rank: int, above: float) -> None:
        if level < len(rates) and rank < topk:
            heappush(heap, (-above * guesses[level][rank], level, rank, above))

    offer(0, 0, 1.0)
    while heap and count < nodes:
        less, level, rank, above = heappop(heap)
        count += 1
        shares[level] -= less
        offer(level, rank + 1, above)
        if parents[level] < topk:
            parents[level] += 1
            offer(level + 1, 0, -less)
    return tuple(shares), count


def ranked(rate: float, growth: float, topk: int) -> list[float]:
    """Return how often the first, second ... guess is the right one.

    >>> [round(share, 3) for share in ranked(0.5, 1.0, 3)]
    [0.5, 0.167, 0.083]
    """
    if rate in (0.0, 1.0):
        return [rate, *[0.0] * (topk - 1)]
    odds = rate / (1.0 - rate)
    among = [0.0, *(odds * r**growth / (1.0 + odds * r**growth) for r in range(1, topk + 1))]
    return [after - before for before, after in pairwise(among)]
