"""The replica with the longest cached prefix of the prompt, unless the load is too unbalanced.

SGLang's router (`sgl-router`, policy `cache_aware`, with its default thresholds): with unbalanced
loads, the replica with the fewest requests takes the next; else the replica with the longest match,
if that exceeds a share of the prompt. For a new prompt SGLang picks the replica with the smallest
tree, here the one with the fewest requests. SGLang estimates the caches from what it has routed;
here the router knows them, as where engines publish their KV events (llm-d, Dynamo).
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.engine.replica import ROUTE, kernel

MATCHED = 300
"""Thousandths of a prompt above which a match counts."""

APART, TIMES = 64, 1.5
"""Difference and ratio of the requests of two replicas above which the load is unbalanced."""


@kernel(ROUTE)
def route(_arrivals: int, waiting: Ints, running: Ints, found: Ints, _draws: Floats) -> int:
    """Return the replica with the longest match, or with the fewest requests."""
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
