"""Max-min fair rates of messages that share links.

Every flow gets as much as it can without taking from a flow that has less: the links fill up one
after another, the tightest first (Bertsekas and Gallager, "Data Networks", 1992, section 6.5). It
is what long-lived transport on a lossless fabric tends to, and what a queue per message cannot
show: incast of n senders, and uplinks of a leaf that are fewer than its ports.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix, void

DONE: Final = 1e-12
"""Bytes of a flow over its size below which it has ended: rounding, not data."""


@kernel(
    void(
        array(i8),
        i8,
        matrix(i8),
        array(f8),
        matrix(f8),
        array(f8),
        array(i8),
        array(i8),
    ),
    no_refcount=True,
)
def fair_rates(
    flying: Ints,
    count: int,
    routes: Ints,
    capacity: Floats,
    shares: Floats,
    free_bandwidth: Floats,
    load: Ints,
    used: Ints,
) -> None:
    """Write the max-min fair rate of every flow: fill the tightest links, and repeat.

    Routes are the links that a flow crosses, filled up with -1; one crossed twice counts twice.
    `shares` are bytes left and the rate, which is filled in. The last three are scratch per link;
    `load` is left as it comes, zeros.
    """
    links = 0
    for i in range(count):
        shares[flying[i], 1] = 0.0
        for link in routes[flying[i]]:
            if link < 0:
                break
            if load[link] == 0:
                used[links], free_bandwidth[link] = link, capacity[link]
                links += 1
            load[link] += 1
    pending = count
    while pending > 0:
        tightest = np.inf
        for k in range(links):
            if load[used[k]] > 0:
                tightest = min(tightest, free_bandwidth[used[k]] / load[used[k]])
        for i in range(count):
            flow = flying[i]
            if shares[flow, 1] > 0.0:
                continue
            is_held = False
            for link in routes[flow]:
                if link >= 0 and free_bandwidth[link] <= tightest * load[link] * (1.0 + DONE):
                    is_held = True
            if is_held:
                shares[flow, 1] = tightest
                pending -= 1
        _fill(flying, count, routes, shares, capacity, free_bandwidth, load)


@kernel(
    void(array(i8), i8, matrix(i8), matrix(f8), array(f8), array(f8), array(i8)), no_refcount=True
)
def _fill(
    flying: Ints,
    count: int,
    routes: Ints,
    shares: Floats,
    capacity: Floats,
    free_bandwidth: Floats,
    load: Ints,
) -> None:
    """Write what every link has left for the flows that have no rate yet, and how many they are."""
    for i in range(count):
        for link in routes[flying[i]]:
            if link >= 0:
                free_bandwidth[link], load[link] = capacity[link], 0
    for i in range(count):
        rate = shares[flying[i], 1]
        for link in routes[flying[i]]:
            if link < 0:
                break
            free_bandwidth[link] -= rate
            load[link] += int(rate == 0.0)
