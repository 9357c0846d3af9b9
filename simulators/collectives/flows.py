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
from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, void

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
    share_links(
        np.array([f.size_bytes for f in flows], np.float64),
        np.array([f.start_s for f in flows], np.float64),
        np.concatenate(([0], np.cumsum([len(f.links) for f in flows]))).astype(np.int64),
        np.array([link for f in flows for link in f.links], np.int64),
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


@kernel(void(array(f8), array(i8), array(i8), array(f8), array(f8), array(i8)))
def fair_rates(
    left: Floats, first: Ints, links: Ints, capacity: Floats, rate: Floats, is_on: Ints
) -> None:
    """Write the max-min fair rate of every flow that is on: fill the tightest link, and repeat."""
    room = capacity.copy()
    count = np.zeros(capacity.size, np.int64)
    open_flows = 0
    rate[:] = 0.0
    pending = is_on.copy()
    for f in range(left.size):
        if pending[f]:
            open_flows += 1
            for k in range(first[f], first[f + 1]):
                count[links[k]] += 1
    while open_flows > 0:
        tightest, share = -1, np.inf
        for link in range(capacity.size):
            if count[link] > 0 and room[link] / count[link] < share:
                tightest, share = link, room[link] / count[link]
        for f in range(left.size):
            if not pending[f]:
                continue
            crosses = False
            for k in range(first[f], first[f + 1]):
                crosses = crosses or links[k] == tightest
            if crosses:
                rate[f], pending[f] = share, 0
                open_flows -= 1
                for k in range(first[f], first[f + 1]):
                    room[links[k]] = max(0.0, room[links[k]] - share)
                    count[links[k]] -= 1


@kernel(void(array(f8), array(f8), array(i8), array(i8), array(f8), array(f8)))
def share_links(
    size: Floats, start_s: Floats, first: Ints, links: Ints, capacity: Floats, end_s: Floats
) -> None:
    """Write when every flow ends: between two changes all rates stand still."""
    left, rate = size.copy(), np.zeros(size.size)
    is_on = np.zeros(size.size, np.int64)
    now, ended = 0.0, 0
    while ended < size.size:
        following = np.inf
        for f in range(size.size):
            if is_on[f] == 0 and left[f] > 0.0:
                if start_s[f] <= now:
                    is_on[f] = 1
                else:
                    following = min(following, start_s[f])
        fair_rates(left, first, links, capacity, rate, is_on)
        for f in range(size.size):
            if is_on[f]:
                following = min(following, now + left[f] / rate[f])
        for f in range(size.size):
            if is_on[f]:
                left[f] -= rate[f] * (following - now)
                if left[f] <= DONE * size[f]:
                    left[f], is_on[f], end_s[f] = 0.0, 0, following
                    ended += 1
        now = following
