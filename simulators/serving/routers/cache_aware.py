"""The replica that has most of the prompt in its prefix cache, unless that one is too busy.

SGLang's router (`sgl-router`, policy `cache_aware`, with its default thresholds): where loads are
spread too unevenly, the replica with the fewest requests takes the next; else the one with the
longest match does, if that is more than a share of the prompt. Of a new prompt SGLang picks the
replica whose tree is smallest, here the one with the fewest requests does. SGLang keeps trees of
its own of what it has sent where; here it is known what replicas hold, as where engines publish it
(llm-d, Dynamo).
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.engine.replica import ROUTE, kernel

MATCHED = 300
"""Thousandths of a prompt above which a match counts."""

APART, TIMES = 64, 1.5
"""Requests by which, and times as many as the least busy replica has, make a spread uneven."""


@kernel(ROUTE)
def route(_arrivals: int, waiting: Ints, running: Ints, found: Ints, _draws: Floats) -> int:
    """Follow the longest match; of equal ones, and without one, the fewest requests."""
    least, most, best = 0, 0, 0
    for replica in range(1, waiting.size):
        load = waiting[replica] + running[replica]
        if load < waiting[least] + running[least]:
            least = replica
        if load > waiting[most] + running[most]:
            most = replica
        if found[replica] > found[best] or (
            found[replica] == found[best] and load < waiting[best] + running[best]
        ):
            best = replica
    fewest, highest = waiting[least] + running[least], waiting[most] + running[most]
    if highest - fewest > APART and highest > TIMES * fewest:
        return least
    return best if found[best] > MATCHED else least
