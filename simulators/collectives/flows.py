"""Flows that share links share them max-min fairly, and each change of the set changes all rates.

Every flow gets as much as it can without taking from a flow that has less: the links fill up one
after another, the tightest first (Bertsekas and Gallager, "Data Networks", 1992, section 6.5). It
is what long-lived transport on a lossless fabric tends to, and what a queue per message cannot
show: incast of n senders, and uplinks of a leaf that are fewer than its ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simulators.collectives.topology import Dimension
from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix, void

DONE: Final = 1e-12
"""Bytes of a flow over its size below which it has ended: rounding, not data."""


@dataclass(frozen=True)
class Flow:
    """Bytes that cross some links from some time on."""

    size_bytes: float
    links: tuple[int, ...]
    start_s: float = 0.0


def flow_times(flows: Sequence[Flow], link_bytes_per_s: Sequence[float]) -> Floats:
    """Return when each flow ends, in seconds.

    Raises:
        UserError: a flow crosses no link or one that does not exist, or a link carries nothing.

    >>> flow_times([Flow(1e9, (0, 2)), Flow(1e9, (1, 2))], [1e9, 1e9, 1e9]).tolist()
    [2.0, 2.0]
    """
    rates = np.array(link_bytes_per_s, np.float64)
    if rates.size and not np.all(rates > 0.0):
        raise UserError(
            f"link {int(np.argmin(rates))} carries {rates.min():g} bytes/s: the network is "
            "disconnected; a bandwidth must be positive"
        )
    for i, flow in enumerate(flows):
        if not flow.links or not all(0 <= link < rates.size for link in flow.links):
            raise UserError(f"flow {i} crosses links {flow.links}; there are {rates.size}")
        if not flow.size_bytes > 0.0:
            raise UserError(f"flow {i} has {flow.size_bytes:g} bytes; it needs some")
    ends = np.zeros(len(flows))
    routes = np.full((len(flows), max((len(f.links) for f in flows), default=1)), -1, np.int64)
    for route, flow in zip(routes, flows, strict=True):
        route[: len(flow.links)] = flow.links
    share_links(
        np.array([f.size_bytes for f in flows], np.float64),
        np.array([f.start_s for f in flows], np.float64),
        routes,
        rates,
        ends,
    )
    return ends


def all_to_all_flows(dimension: Dimension, size_bytes: float) -> tuple[list[Flow], list[float]]:
    """Return every pair's flow of an all-to-all on a switch or fat tree, and the links' rates.

    Each rank has a port up and one down; each leaf has one trunk each way.
    """
    n, port = dimension.ranks, dimension.bytes_per_s
    leaf = dimension.leaf or n
    leaves = n // leaf
    trunk = leaf * port / dimension.oversubscription
    rates = [port] * (2 * n) + [trunk] * (2 * leaves)
    flows = []
    for source in range(n):
        for target in range(n):
            if source == target:
                continue
            links = [source, n + target]
            if source // leaf != target // leaf:
                links += [2 * n + source // leaf, 2 * n + leaves + target // leaf]
            flows.append(Flow(size_bytes / n, tuple(links)))
    return flows, rates


@kernel(
    void(
        array(i8), i8, matrix(i8), array(f8), matrix(f8), array(f8), array(i8), array(i8),
    ),
    borrows=True,
)  # fmt: skip
def fair_rates(
    flying: Ints,
    count: int,
    routes: Ints,
    capacity: Floats,
    shares: Floats,
    room: Floats,
    load: Ints,
    used: Ints,
) -> None:
    """Write the max-min fair rate of every flow: fill the tightest links, and repeat.

    Args:
        flying: which flows share.
        count: how many of them.
        routes: per flow the links it crosses, filled up with -1; one crossed twice counts twice.
        capacity: per link.
        shares: per flow: bytes left, rate; the rate is filled in.
        room: scratch, per link.
        load: scratch, per link; zeros, and left as zeros.
        used: scratch, per link.
    """
    links = 0
    for i in range(count):
        shares[flying[i], 1] = 0.0
        for link in routes[flying[i]]:
            if link < 0:
                break
            if load[link] == 0:
                used[links], room[link] = link, capacity[link]
                links += 1
            load[link] += 1
    pending = count
    while pending > 0:
        tightest = np.inf
        for k in range(links):
            if load[used[k]] > 0:
                tightest = min(tightest, room[used[k]] / load[used[k]])
        for i in range(count):
            flow = flying[i]
            if shares[flow, 1] > 0.0:
                continue
            is_held = False
            for link in routes[flow]:
                if link >= 0 and room[link] <= tightest * load[link] * (1.0 + DONE):
                    is_held = True
            if is_held:
                shares[flow, 1] = tightest
                pending -= 1
        _fill(flying, count, routes, shares, capacity, room, load)


@kernel(void(array(i8), i8, matrix(i8), matrix(f8), array(f8), array(f8), array(i8)), borrows=True)
def _fill(
    flying: Ints,
    count: int,
    routes: Ints,
    shares: Floats,
    capacity: Floats,
    room: Floats,
    load: Ints,
) -> None:
    """Write what every link has left for the flows that have no rate yet, and how many they are."""
    for i in range(count):
        for link in routes[flying[i]]:
            if link >= 0:
                room[link], load[link] = capacity[link], 0
    for i in range(count):
        rate = shares[flying[i], 1]
        for link in routes[flying[i]]:
            if link < 0:
                break
            room[link] -= rate
            load[link] += int(rate == 0.0)


@kernel(void(array(f8), array(f8), matrix(i8), array(f8), array(f8)))
def share_links(
    size: Floats, start_s: Floats, routes: Ints, capacity: Floats, end_s: Floats
) -> None:
    """Write when every flow ends: between two changes all rates stand still."""
    shares = np.zeros((size.size, 2))
    shares[:, 0] = size
    room, load = np.zeros(capacity.size), np.zeros(capacity.size, np.int64)
    used, flying = np.zeros(capacity.size, np.int64), np.zeros(size.size, np.int64)
    now, ended = 0.0, 0
    while ended < size.size:
        following, count = np.inf, 0
        for f in range(size.size):
            if shares[f, 0] > 0.0 and start_s[f] <= now:
                flying[count] = f
                count += 1
            elif shares[f, 0] > 0.0:
                following = min(following, start_s[f])
        fair_rates(flying, count, routes, capacity, shares, room, load, used)
        for i in range(count):
            following = min(following, now + shares[flying[i], 0] / shares[flying[i], 1])
        for i in range(count):
            f = flying[i]
            shares[f, 0] -= shares[f, 1] * (following - now)
            if shares[f, 0] <= DONE * size[f]:
                shares[f, 0], end_s[f] = 0.0, following
                ended += 1
        now = following
