"""Phases of collectives over three dimensions: order, bytes and time."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.collectives.algorithms import COLLECTIVES
from simulators.collectives.events.run import simulate, uncontended_ns
from simulators.collectives.phase_model import (
    ANY_QUEUE,
    FIRST_HALF,
    SECOND_HALF,
    chunk_bytes,
    chunks_of,
    phases_of,
    queue_of,
)
from simulators.collectives.topologies.plan import Dimension, Plan, Topology, plan_for, plan_of
from tests.parity.astra_sim import request

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


def test_hierarchical_all_reduce_shrinks_outwards_and_grows_back() -> None:
    assert legs(AR) == [
        (0, RS, 24_000),
        (1, RS, 12_000),
        (2, AR, 4_000),
        (1, AG, 4_000),
        (0, AG, 12_000),
    ]


def test_baseline_order_reduces_the_whole_buffer_in_each_dimension() -> None:
    assert legs(AR, baseline=True) == [(0, AR, 24_000), (1, AR, 24_000), (2, AR, 24_000)]


def test_all_gather_runs_inwards_and_reduce_scatter_outwards() -> None:
    assert legs(AG) == [(2, AG, 1_000), (1, AG, 4_000), (0, AG, 12_000)]
    assert legs(RS) == [(0, RS, 24_000), (1, RS, 12_000), (2, RS, 4_000)]
    assert legs(A2A) == [(0, A2A, 24_000), (1, A2A, 24_000), (2, A2A, 24_000)]


def test_point_to_point_message_crosses_one_dimension() -> None:
    assert legs("send_recv") == [(0, "send_recv", 24_000)]


@pytest.mark.parametrize("collective", [AR, AG, RS, A2A])
def test_dimensions_of_one_rank_have_no_phases(collective: str) -> None:
    op, plan = COLLECTIVES.index(collective), plan_of("full:1,full:2,full:1,full:4", "ring")
    order = {AR: [1, 3, 1], AG: [3, 1], RS: [1, 3], A2A: [1, 3]}[collective]
    assert phases_of(plan.whole, op, 8_000, baseline=False)[:, 0].tolist() == order
    nobody = plan_of("full:1,full:1", "ring")
    assert len(phases_of(nobody.whole, op, 8_000, baseline=False)) == 0


def test_four_dimensions_have_seven_phases() -> None:
    plan = plan_of("full:2,full:2,full:2,full:2", "ring")
    phases = phases_of(plan.whole, COLLECTIVES.index(AR), 8_000, baseline=False)
    assert phases[:, 0].tolist() == [0, 1, 2, 3, 2, 1, 0]
    assert phases[:, 2].tolist() == [8_000, 4_000, 2_000, 1_000, 1_000, 2_000, 4_000]
    gathered = phases_of(plan.whole, COLLECTIVES.index(AG), 1_000, baseline=False)
    assert gathered[:, 0].tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("collective", "size", "splits", "chunks", "each"),
    [
        (AR, 4_000, 4, 4, 1_000),
        (AR, 4_002, 4, 5, 1_000),  # what does not divide adds a whole one
        (AR, 97, 4, 5, 24),
        (AR, 96, 4, 4, 24),
        (AR, 95, 4, 4, 24),  # among 24 ranks no chunk is smaller
        (AG, 97, 4, 5, 24),
        (AG, 3, 4, 3, 1),
    ],
)
def test_buffer_is_split_into_chunks(
    collective: str, size: int, splits: int, chunks: int, each: int
) -> None:
    asked = request(collective, size, splits=splits)
    assert (chunks_of(asked, 24), chunk_bytes(asked, 24)) == (chunks, each)


@pytest.mark.parametrize(
    ("half", "queues", "turns"),
    [
        (ANY_QUEUE, 3, [0, 1, 2, 0, 1]),
        (FIRST_HALF, 1, [0, 0, 0, 0, 0]),
        (FIRST_HALF, 4, [0, 1, 0, 1, 0]),
        (FIRST_HALF, 5, [0, 1, 0, 1, 0]),
        (SECOND_HALF, 1, [0, 0, 0, 0, 0]),
        (SECOND_HALF, 4, [2, 3, 2, 3, 2]),
        (SECOND_HALF, 5, [2, 3, 4, 2, 3]),
    ],
)
def test_chunks_are_assigned_to_queues_round_robin(
    half: int, queues: int, turns: list[int]
) -> None:
    assert [queue_of(half, queues, turn) for turn in range(5)] == turns


def test_tree_phases_carry_the_whole_buffer() -> None:
    plan = plan_of("ring:2,switch:4,ring:2", "ring,double_binary_tree,ring")
    phases = phases_of(plan.whole, COLLECTIVES.index(AR), 8_000, baseline=False)
    assert [(d, COLLECTIVES[part], size) for d, part, size, _ in phases.tolist()] == [
        (0, RS, 8_000),
        (1, AR, 4_000),
        (2, AR, 4_000),
        (1, AR, 4_000),
        (0, AG, 4_000),
    ]


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
def test_phase_time_follows_phase_bytes(chunks: int, baseline: bool, wanted: int) -> None:
    plan = uneven()
    asked = request(AR, 24_000 * chunks, splits=chunks, active=1, baseline=baseline)
    assert uncontended_ns([plan], asked[None], np.array([NEVER]))[0] == wanted
    assert simulate(plan, asked, NEVER, every_rank=True).finish_ns == wanted
