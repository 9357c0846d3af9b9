"""How many tokens the busiest of expert ranks gets, where tokens prefer some experts."""

from __future__ import annotations

import math


def busiest_share(
    experts: int, top_k: int, ranks: int, skew: float, capacity_factor: float = 0.0
) -> float:
    """Return the tokens of the busiest rank over those of a mean one; 1 or more.

    A token prefers the experts by Zipf's law of exponent `skew` and takes `top_k` of them: an
    expert of popularity p is taken with 1 - exp(-rate * p), the rate such that these sum to
    `top_k`. Experts are dealt to the ranks one by one, the most popular first. A capacity factor
    drops what an expert gets beyond that many times the mean (Fedus et al., Switch Transformers,
    2022); 0: nothing is dropped.

    >>> busiest_share(8, 2, 8, 0.0), round(busiest_share(8, 2, 8, 1.0), 2)
    (1.0, 2.42)
    >>> busiest_share(8, 2, 8, 1.0, capacity_factor=1.25), busiest_share(8, 2, 1, 1.0)
    (1.25, 1.0)
    """
    if not skew or ranks == 1:
        return 1.0
    weights = [float(i) ** -skew for i in range(1, experts + 1)]
    popular = [weight / sum(weights) for weight in weights]
    mean = top_k / experts
    taken = _taken(popular, top_k)
    if capacity_factor:
        taken = [min(share, capacity_factor * mean) for share in taken]
    return max(sum(taken[rank::ranks]) for rank in range(ranks)) / (top_k / ranks)


def _taken(popular: list[float], top_k: int) -> list[float]:
    """Return with which chance a token takes each expert."""
    if top_k >= len(popular):
        return [1.0] * len(popular)
    low, high = 0.0, 1.0
    while _sum(popular, high) < top_k:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _sum(popular, middle) < top_k else (low, middle)
    return [-math.expm1(-high * p) for p in popular]


def _sum(popular: list[float], rate: float) -> float:
    return -sum(math.expm1(-rate * p) for p in popular)
