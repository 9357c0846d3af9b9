"""What holds for every collective on every network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from simulators.collectives.algorithms import COLLECTIVES
from simulators.collectives.events.loop import run
from simulators.collectives.events.run import has_event_model, simulate, state_of
from simulators.collectives.events.state import IN_TURN, SHARED
from simulators.collectives.measured import busbw_factor
from simulators.collectives.phase_model import collectives_ns
from simulators.collectives.topologies.plan import Dimension, Plan, Topology, plan_for, plan_of
from tests.parity import astra_sim

MEMORY = 3.35e12
TOPOLOGIES = (
    "switch:8",
    "ring:8",
    "full:8",
    "torus:4x4",
    "ring:4,switch:2",
    "fat_tree:16:4:2",
    "switch:2,fat_tree:8:4:3",
)
ALGORITHMS = ("ring", "direct", "direct:2", "halving_doubling", "double_binary_tree", "in_network")
MODES = (IN_TURN, SHARED)


def request(collective: str, size: int, splits: int = 4, active: int = 2, queues: int = 1) -> Any:
    return astra_sim.request(collective, size, splits=splits, active=active, queues=queues)


def analytic_ns(topology: str, algorithm: str, asked: Any, rate: float = 4e11) -> int:
    plan = plan_of(topology, algorithm, rate, 1e-6)
    out = np.zeros(1, np.int64)
    collectives_ns(asked[None], np.array([MEMORY]), plan.whole[None], plan.rates[None], out)
    return int(out[0])


@given(
    sampled_from(TOPOLOGIES[:6]),
    sampled_from(("ring", "direct", "halving_doubling")),
    integers(10, 26),
)
@settings(max_examples=60, deadline=None)
def test_all_reduce_time_equals_reduce_scatter_plus_all_gather(
    topology: str, algorithm: str, power: int
) -> None:
    ranks = plan_of(topology, algorithm).ranks
    size = 1 << power
    parts = analytic_ns(topology, algorithm, request("reduce_scatter", size, 1, 1)) + analytic_ns(
        topology, algorithm, request("all_gather", size // ranks, 1, 1)
    )
    whole = analytic_ns(topology, algorithm, request("all_reduce", size, 1, 1))
    # The two halves of one all-reduce share an endpoint delay of 10 ns in each dimension; rounding
    # costs a nanosecond per step. Direct exchanges on rings answer near peers before far ones.
    assert parts == pytest.approx(whole, abs=200, rel=0.1 if algorithm == "direct" else 0.0)


def event_ns(plan: Plan, asked: Any, *, mode: int = IN_TURN, every_rank: bool = False) -> int:
    report = simulate(plan, asked, MEMORY, mode=mode, every_rank=every_rank)
    assert report.unfinished == 0
    return int(report.finish_ns)


@given(
    sampled_from(TOPOLOGIES),
    sampled_from(ALGORITHMS),
    sampled_from(COLLECTIVES),
    integers(10, 24),
)
@settings(max_examples=100, deadline=None)
def test_doubling_bandwidths_never_increases_time(
    topology: str, algorithm: str, collective: str, power: int
) -> None:
    asked = request(collective, 1 << power)
    slow = analytic_ns(topology, algorithm, asked, 1e11)
    assert analytic_ns(topology, algorithm, asked, 2e11) <= slow
    plans = [plan_of(topology, algorithm, rate, 1e-6) for rate in (1e11, 2e11)]
    if has_event_model(plans[0], int(asked[1])):
        for mode in MODES:
            before, after = (event_ns(p, asked, mode=mode) for p in plans)
            assert after <= before


@given(
    sampled_from(TOPOLOGIES),
    sampled_from(ALGORITHMS),
    sampled_from(COLLECTIVES),
    integers(8, 22),
    integers(1, 6),
    integers(1, 3),
    integers(1, 4),
    sampled_from(MODES),
)
@settings(max_examples=150, deadline=None)
def test_every_message_arrives_exactly_once(
    topology: str,
    algorithm: str,
    collective: str,
    power: int,
    splits: int,
    active: int,
    queues: int,
    mode: int,
) -> None:
    plan = plan_of(topology, algorithm)
    asked = request(collective, 1 << power, splits, active, queues)
    if not has_event_model(plan, int(asked[1])):
        return
    report = simulate(plan, asked, MEMORY, every_rank=True, mode=mode)
    assert report.unfinished == 0
    assert report.sent == report.delivered > 0
    assert max(report.busy_ns) <= report.finish_ns


@given(
    sampled_from(("switch:8", "full:8", "ring:6", "torus:4x3", "ring:4,switch:2", "ring:4,full:3")),
    sampled_from(("ring", "direct", "direct:1", "direct:3")),
    sampled_from(COLLECTIVES[:4]),
    integers(8, 22),
    integers(1, 3),
    sampled_from(MODES),
)
@settings(max_examples=60, deadline=None)
def test_one_simulated_rank_represents_symmetric_ranks(
    topology: str, algorithm: str, collective: str, power: int, queues: int, mode: int
) -> None:
    plan = plan_of(topology, algorithm)
    asked = request(collective, 1 << power, queues=queues)
    one = simulate(plan, asked, MEMORY, mode=mode)
    everyone = simulate(plan, asked, MEMORY, mode=mode, every_rank=True)
    # With several queues, messages of different queues that tie may go in another order.
    assert one.finish_ns == pytest.approx(everyone.finish_ns, rel=0.0 if queues == 1 else 0.05)
    assert one.sent * plan.ranks == everyone.sent


@given(
    sampled_from(("full:8", "full:4,full:4", "full:2,full:2,full:2")),
    sampled_from(("ring", "direct", "direct:1", "direct:2", "halving_doubling")),
    sampled_from(COLLECTIVES),
    integers(8, 26),
)
@settings(max_examples=60, deadline=None)
def test_models_agree_without_contention(
    topology: str, algorithm: str, collective: str, power: int
) -> None:
    asked = request(collective, 1 << power, 1, 1)
    plan = plan_of(topology, algorithm, 4e11, 1e-6)
    if not has_event_model(plan, int(asked[1])):
        return
    alone = analytic_ns(topology, algorithm, asked)
    for mode in MODES:
        assert event_ns(plan, asked, mode=mode, every_rank=True) == alone


@given(sampled_from((2, 4, 8, 16)), integers(8, 26))
@settings(max_examples=30, deadline=None)
def test_double_binary_tree_time_is_the_longest_path(ranks: int, power: int) -> None:
    asked = request("all_reduce", 1 << power, 1, 1)
    plan = plan_of(f"full:{ranks}", "double_binary_tree", 4e11, 1e-6)
    alone = analytic_ns(f"full:{ranks}", "double_binary_tree", asked)
    assert event_ns(plan, asked) == event_ns(plan, asked, mode=SHARED) == alone


@given(
    sampled_from(("switch:8", "switch:4,switch:2")),
    sampled_from(("ring", "halving_doubling")),
    sampled_from(COLLECTIVES[:4]),
    integers(8, 26),
)
@settings(max_examples=30, deadline=None)
def test_fair_switch_does_not_delay_uncontended_messages(
    topology: str, algorithm: str, collective: str, power: int
) -> None:
    asked = request(collective, 1 << power, 1, 1)
    plan = plan_of(topology, algorithm, 4e11, 1e-6)
    if has_event_model(plan, int(asked[1])):
        alone = analytic_ns(topology, algorithm, asked)
        assert event_ns(plan, asked, mode=SHARED) == alone


@given(
    sampled_from(("switch", "full", "ring", "fat_tree")),
    sampled_from(("ring", "direct", "halving_doubling", "double_binary_tree")),
    integers(2, 4),
    integers(20, 28),
    sampled_from(MODES),
)
@settings(max_examples=60, deadline=None)
def test_bisection_bandwidth_bounds_bus_bandwidth(
    block: str, algorithm: str, power: int, size_power: int, mode: int
) -> None:
    ranks, rate, over = 1 << power, 1e11, 2.0
    topology = f"fat_tree:{ranks}:2:{over:g}" if block == "fat_tree" else f"{block}:{ranks}"
    plan = plan_of(topology, algorithm, rate, 0.0)
    size = 1 << size_power
    taken_s = event_ns(plan, request("all_reduce", size, 4, 4), mode=mode) * 1e-9
    busbw = busbw_factor("all_reduce", ranks) * size / taken_s
    # Out of any one rank: its ports. Out of half the ranks, of which each sum needs a buffer
    # outwards: the links between the halves.
    ports = {"switch": 1, "full": ranks - 1, "ring": 2, "fat_tree": 1}[block]
    links = {"switch": ranks / 2, "full": (ranks / 2) ** 2, "ring": 2}
    cut = links.get(block, ranks / 2 / over if ranks > 2 else ranks / 2)
    bounds = (ports, busbw_factor("all_reduce", ranks) * cut)
    assert busbw <= min(bounds) * rate * 1.001


@given(
    sampled_from(("switch:4,full:2", "full:4,switch:2", "torus:4x2")),
    sampled_from(COLLECTIVES[:4]),
    sampled_from(MODES),
    integers(10, 24),
)
@settings(max_examples=30, deadline=None)
def test_dimension_of_one_rank_has_no_effect(
    topology: str, collective: str, mode: int, power: int
) -> None:
    plan, asked = plan_of(topology, "direct"), request(collective, 1 << power)
    first, second = plan.topology.dimensions
    one = Dimension(block="switch", ranks=1, bytes_per_s=1e9, latency_s=0.0)
    wider = plan_for(Topology(name="wider", dimensions=(one, first, one, second)), "direct")
    assert event_ns(wider, asked, mode=mode) == event_ns(plan, asked, mode=mode)


@given(sampled_from(("switch:8", "ring:8", "full:8")), integers(0, 7), sampled_from(MODES))
@settings(max_examples=20, deadline=None)
def test_rank_order_does_not_matter_on_symmetric_networks(
    topology: str, shift: int, mode: int
) -> None:
    """A rank's chunks wait, send and hear at the same times whichever number it has."""
    asked = request("all_reduce", 1 << 20, 3, 2, 2)
    state = state_of(
        plan_of(topology, "direct:2"), asked, MEMORY, every_rank=True, mode=mode, slack=4
    )
    run(state, 1 << 20)
    by_rank = state.busy_ns.reshape(8, -1)
    assert by_rank[shift] == pytest.approx(by_rank[0], rel=1e-12)


def test_ranks_of_a_leaf_share_fat_tree_uplinks() -> None:
    asked = request("all_to_all", 1 << 26, 1, 1)
    for mode in MODES:
        full, halved = (
            event_ns(plan_of(f"fat_tree:16:1:{over}", "direct", 1e11, 0.0), asked, mode=mode)
            for over in (1, 2)
        )
        assert halved == pytest.approx(2 * full, rel=0.1)


def test_tree_incast_shares_the_port_of_the_parent() -> None:
    # Four ranks, one chunk: both children of rank 2 send to it at once, then it sends to the root.
    size, rate = 10**6, 1e9
    plan = plan_of("switch:4", "double_binary_tree", rate, 0.0)
    taken = simulate(plan, request("all_reduce", size, 1, 1), 1e30, mode=SHARED).finish_ns
    up, down = 2 * size + size, size + 2 * size
    assert taken == pytest.approx(up + down, abs=200)


def test_chain_forwards_chunks_in_a_pipeline() -> None:
    chunks, ranks, size = 16, 4, 16 * 10**6
    plan = plan_of(f"full:{ranks}", "ring", 1e9, 0.0)
    taken = simulate(plan, request("broadcast", size, chunks, 1), MEMORY).finish_ns
    assert taken == pytest.approx((chunks + ranks - 2) * size / chunks, rel=0.001)


def test_contention_never_speeds_up_a_ring() -> None:
    for topology in ("switch:8", "ring:8", "full:8"):
        asked = request("all_reduce", 1 << 22)
        plan = plan_of(topology, "ring", 4e11, 1e-6)
        assert simulate(plan, asked, MEMORY).finish_ns >= analytic_ns(topology, "ring", asked)


def test_compiled_events_match_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("torus:3x2", "direct")
    asked = request("all_reduce", 5_000, 3, 2, 2)
    compiled = simulate(plan, asked, MEMORY, every_rank=True)
    monkeypatch.setattr("simulators.collectives.events.run.run", run.py_func)
    assert simulate(plan, asked, MEMORY, every_rank=True) == compiled


def test_compiled_formulas_match_plain_python() -> None:
    plan = plan_of("torus:4x2", "ring,halving_doubling", 1e11, 1e-6)
    asked = np.stack([request(c, 70_001, 5, 2, 2) for c in COLLECTIVES[:3]])
    results = []
    for function in (collectives_ns, collectives_ns.py_func):
        out = np.zeros(len(asked), np.int64)
        function(asked, np.full(3, MEMORY), plan.whole[None], plan.rates[None], out)
        results.append(out.tolist())
    assert results[0] == results[1]


def test_event_count_of_a_large_ring_grows_with_steps() -> None:
    report = simulate(plan_of("switch:1024", "ring"), request("all_reduce", 1 << 30), MEMORY)
    assert report.link_events == 4 * 2 * 1023 * 2  # chunks, halves, steps, links of a hop
