"""The legs of collectives over three dimensions: their order, what they carry, what that takes."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.collectives.algorithms import COLLECTIVES
from simulators.collectives.closed.phases import phases_of, request
from simulators.collectives.events.run import simulate, uncontended_ns
from simulators.collectives.topologies.plan import Plan, plan_for, plan_of
from simulators.collectives.topologies.topology import Dimension, Topology

RS, AR, AG, A2A = "reduce_scatter", "all_reduce", "all_gather", "all_to_all"
NEVER = 1e30  # bytes per second of a memory that costs no time


def uneven() -> Plan:
    """Return two by three by four ranks, each dimension slower than the one inside it."""
    links = ((2, 10e9, 100e-9), (3, 5e9, 1e-6), (4, 1e9, 10e-6))
    dimensions = tuple(
        Dimension(block="fully_connected", ranks=n, bytes_per_s=rate, latency_s=latency)
        for n, rate, latency in links
    )
    return plan_for(Topology(name="uneven", dimensions=dimensions), "ring")


def legs(collective: str, *, baseline: bool = False) -> list[tuple[int, str, int]]:
    """Return dimension, part and bytes of the phases of 24,000 bytes, or of a shard of 1,000."""
    op, size = COLLECTIVES.index(collective), 1_000 if collective == AG else 24_000
    phases = phases_of(uneven().whole, op, size, baseline=baseline)
    return [(d, COLLECTIVES[part], payload) for d, part, payload, _ in phases.tolist()]


def test_an_all_reduce_goes_outwards_in_shrinking_shares_and_comes_back() -> None:
    assert legs(AR) == [
        (0, RS, 24_000), (1, RS, 12_000), (2, AR, 4_000), (1, AG, 4_000), (0, AG, 12_000),
    ]  # fmt: skip


def test_in_the_baseline_order_each_dimension_sums_the_whole() -> None:
    assert legs(AR, baseline=True) == [(0, AR, 24_000), (1, AR, 24_000), (2, AR, 24_000)]


def test_gathers_come_inwards_and_scatters_go_outwards() -> None:
    assert legs(AG) == [(2, AG, 1_000), (1, AG, 4_000), (0, AG, 12_000)]
    assert legs(RS) == [(0, RS, 24_000), (1, RS, 12_000), (2, RS, 4_000)]
    assert legs(A2A) == [(0, A2A, 24_000), (1, A2A, 24_000), (2, A2A, 24_000)]


def test_trees_take_both_of_their_legs_with_the_whole() -> None:
    plan = plan_of("ring:2,switch:4,ring:2", "ring,double_binary_tree,ring")
    phases = phases_of(plan.whole, COLLECTIVES.index(AR), 8_000, baseline=False)
    assert [(d, COLLECTIVES[part], size) for d, part, size, _ in phases.tolist()] == [
        (0, RS, 8_000), (1, AR, 4_000), (2, AR, 4_000), (1, AR, 4_000), (0, AG, 4_000),
    ]  # fmt: skip


# A ring's step takes the link's latency, its message and an endpoint delay of 10, which comes once
# more before the first:
#   reduce-scatter, inner   10 + 1 * (100 + 1,200 + 10)        =  1,320
#   reduce-scatter, middle  10 + 2 * (1,000 + 800 + 10)        =  3,630
#   all-reduce, outer       10 + 6 * (10,000 + 1,000 + 10)     = 66,070
# and the gathers as the scatters. A second chunk waits for the first in front of the outer
# dimension, from 8,580 to 71,020. In the baseline order the parts are all-reduces of 24,000 bytes:
#   10 + 2 * 1,310 = 2,630, 10 + 4 * 2,610 = 10,450 and 10 + 6 * 16,010 = 96,070.
# Were the gathers exchanged, they would carry 4,000 bytes inside and 8,000 in the middle, and take
# 1,320 - 800 and 3,630 + 1,600.
@pytest.mark.parametrize(
    ("chunks", "baseline", "wanted"),
    [
        (1, False, 2 * (1_320 + 3_630) + 66_070),
        (2, False, 1_320 + 3_630 + 2 * 66_070 + 3_630 + 1_320),
        (1, True, 2_630 + 10_450 + 96_070),
        (2, True, 2_630 + 10_450 + 2 * 96_070),
    ],
)
def test_legs_take_what_they_carry(chunks: int, baseline: bool, wanted: int) -> None:
    plan = uneven()
    asked = request(AR, 24_000 * chunks, splits=chunks, active=1, baseline=baseline)
    assert uncontended_ns([plan], asked[None], np.array([NEVER]))[0] == wanted
    assert simulate(plan, asked, NEVER, every_rank=True).finish_ns == wanted
