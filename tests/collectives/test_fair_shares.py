"""Shares of links, worked out on paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers

from simulators.collectives.events.links import fair_rates
from simulators.collectives.events.state import Flows

Flow = tuple[float, tuple[int, ...]]  # size, links it crosses


def rates_of(
    flows: Sequence[Flow], capacity: Sequence[float], kernel: Callable[..., None] = fair_rates
) -> list[float]:
    routes = np.full((len(flows), max(len(links) for _, links in flows)), -1, np.int64)
    for route, (_, links) in zip(routes, flows, strict=True):
        route[: len(links)] = links
    shares, links = np.zeros((len(flows), 2)), len(capacity)
    scratch = np.zeros(links), np.zeros(links, np.int64), np.zeros(links, np.int64)
    all_flows = Flows(np.arange(len(flows)), routes, shares, np.array(capacity, float), *scratch)
    kernel(all_flows, len(flows))
    return list(shares[:, 1])


def ends_of(flows: Sequence[Flow], capacity: Sequence[float]) -> list[float]:
    """Between two ends all rates stand still."""
    left, ends, now = dict(enumerate(flows)), [0.0] * len(flows), 0.0
    while left:
        rates = dict(zip(left, rates_of(list(left.values()), capacity), strict=True))
        first = min(left[i][0] / rates[i] for i in left)
        now += first
        left = {i: (size - rates[i] * first, links) for i, (size, links) in left.items()}
        for i in [i for i in left if left[i][0] < 1e-9]:
            ends[i] = now
            del left[i]
    return ends


@given(integers(1, 40))
def test_incast_shares_bandwidth_equally_among_senders(senders: int) -> None:
    flows = [(1e6, (i, senders)) for i in range(senders)]
    assert ends_of(flows, [1e9] * (senders + 1)) == pytest.approx([senders * 1e-3] * senders)


def test_unused_bandwidth_goes_to_the_remaining_flows() -> None:
    # Flow 0 is held to 1 by its own link; flow 1 gets the other 9 of the shared link's 10.
    assert rates_of([(1.0, (0, 1)), (9.0, (1,))], [1.0, 10.0]) == [1.0, 9.0]


def test_independent_links_do_not_limit_each_other() -> None:
    assert rates_of([(1.0, (0,)), (1.0, (1,))], [1.0, 1.5]) == [1.0, 1.5]


def test_flow_speeds_up_when_another_flow_ends() -> None:
    assert ends_of([(1.0, (0,)), (3.0, (0,))], [1.0]) == pytest.approx([2.0, 4.0])


def test_flow_crossing_a_link_twice_counts_twice() -> None:
    assert rates_of([(1.0, (0, 0)), (1.0, (0,))], [9.0]) == [3.0, 3.0]


def test_compiled_rates_match_plain_python() -> None:
    random = np.random.default_rng(0)
    flows = [(1.0, tuple(random.integers(0, 9, 3).tolist())) for _ in range(20)]
    capacity = random.uniform(1.0, 9.0, 9).tolist()
    assert rates_of(flows, capacity) == rates_of(flows, capacity, fair_rates.py_func)
