"""What holds for every collective on every network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from simulators.collectives.algorithms import COLLECTIVES
from simulators.collectives.analytic import collectives_ns
from simulators.collectives.events import (
    DELIVERED,
    FINISH_NS,
    LINK_EVENTS,
    SENT_MESSAGES,
    UNFINISHED,
    run,
)
from simulators.collectives.plan import plan_of
from simulators.collectives.single import has_event_model, simulate

MEMORY = 3.35e12
TOPOLOGIES = ("switch:8", "ring:8", "full:8", "torus:4x4", "ring:4,switch:2", "fat_tree:16:4:2")
ALGORITHMS = ("ring", "direct", "halving_doubling")


def request(collective: str, size: int, splits: int = 4, active: int = 2, queues: int = 1) -> Any:
    op = COLLECTIVES.index(collective)
    return np.array([0, op, size, splits, active, queues, 10, 0], np.int64)


def analytic_ns(topology: str, algorithm: str, asked: Any, rate: float = 4e11) -> int:
    plan = plan_of(topology, algorithm, rate, 1e-6)
    out = np.zeros(1, np.int64)
    collectives_ns(asked[None], np.array([MEMORY]), plan.whole[None], plan.rates[None], out)
    return int(out[0])


@given(sampled_from(TOPOLOGIES), sampled_from(ALGORITHMS), integers(10, 26))
@settings(max_examples=60, deadline=None)
def test_reduce_scatter_then_all_gather_takes_as_long_as_all_reduce(
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


@given(
    sampled_from(TOPOLOGIES), sampled_from(ALGORITHMS), sampled_from(COLLECTIVES[:4]),
    integers(10, 24),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_doubling_all_bandwidths_never_slows(
    topology: str, algorithm: str, collective: str, power: int
) -> None:
    asked = request(collective, 1 << power)
    slow = analytic_ns(topology, algorithm, asked, 1e11)
    assert analytic_ns(topology, algorithm, asked, 2e11) <= slow
    plans = [plan_of(topology, algorithm, rate, 1e-6) for rate in (1e11, 2e11)]
    if has_event_model(plans[0], int(asked[1])):
        before, after = (int(simulate(p, asked, MEMORY)[FINISH_NS]) for p in plans)
        assert after <= before


@given(
    sampled_from(TOPOLOGIES[:5]), sampled_from(ALGORITHMS), sampled_from(COLLECTIVES[:4]),
    integers(8, 22), integers(1, 6), integers(1, 3), integers(1, 4),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_every_message_arrives_once(
    topology: str,
    algorithm: str,
    collective: str,
    power: int,
    splits: int,
    active: int,
    queues: int,
) -> None:
    plan = plan_of(topology, algorithm)
    asked = request(collective, 1 << power, splits, active, queues)
    if not has_event_model(plan, int(asked[1])):
        return
    report = simulate(plan, asked, MEMORY, every_rank=True)
    assert report[UNFINISHED] == 0
    assert report[SENT_MESSAGES] == report[DELIVERED] > 0


@given(
    sampled_from(("switch:8", "full:8", "ring:6", "torus:4x3", "ring:4,switch:2")),
    sampled_from(("ring", "direct", "direct:1")), sampled_from(COLLECTIVES[:4]), integers(8, 22),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_one_rank_stands_for_all_where_all_are_alike(
    topology: str, algorithm: str, collective: str, power: int
) -> None:
    plan = plan_of(topology, algorithm)
    asked = request(collective, 1 << power)
    one = simulate(plan, asked, MEMORY)
    everyone = simulate(plan, asked, MEMORY, every_rank=True)
    assert one[FINISH_NS] == everyone[FINISH_NS]
    assert one[SENT_MESSAGES] * plan.ranks == everyone[SENT_MESSAGES]


@given(sampled_from(("switch", "ring", "full")), integers(2, 5), integers(20, 28))
@settings(max_examples=40, deadline=None)
def test_a_ports_bandwidth_bounds_what_a_ring_all_reduce_moves(
    block: str, power: int, size_power: int
) -> None:
    ranks, rate = 1 << power, 1e11
    plan = plan_of(f"{block}:{ranks}", "ring", rate, 0.0)
    taken = int(simulate(plan, request("all_reduce", 1 << size_power, 4, 4), MEMORY)[FINISH_NS])
    busbw = 2 * (ranks - 1) / ranks * (1 << size_power) / (taken * 1e-9)
    # A message's time on a link is truncated to whole nanoseconds.
    serial_ns = (1 << size_power) / 4 / ranks / rate * 1e9
    assert busbw <= rate * serial_ns / int(serial_ns) * 1.0001


def test_contention_never_helps_a_ring() -> None:
    for topology in ("switch:8", "ring:8", "full:8"):
        asked = request("all_reduce", 1 << 22)
        plan = plan_of(topology, "ring", 4e11, 1e-6)
        assert simulate(plan, asked, MEMORY)[FINISH_NS] >= analytic_ns(topology, "ring", asked)


def test_compiled_events_are_those_of_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("torus:3x2", "direct")
    asked = request("all_reduce", 5_000, 3, 2, 2)
    compiled = simulate(plan, asked, MEMORY, every_rank=True)
    monkeypatch.setattr("simulators.collectives.single.run", run.py_func)
    assert simulate(plan, asked, MEMORY, every_rank=True).tolist() == compiled.tolist()


def test_compiled_formulas_are_those_of_plain_python() -> None:
    plan = plan_of("torus:4x2", "ring,halving_doubling", 1e11, 1e-6)
    asked = np.stack([request(c, 70_001, 5, 2, 2) for c in COLLECTIVES[:3]])
    results = []
    for function in (collectives_ns, collectives_ns.py_func):
        out = np.zeros(len(asked), np.int64)
        function(asked, np.full(3, MEMORY), plan.whole[None], plan.rates[None], out)
        results.append(out.tolist())
    assert results[0] == results[1]


def test_a_large_ring_costs_events_in_proportion_to_its_steps() -> None:
    report = simulate(plan_of("switch:1024", "ring"), request("all_reduce", 1 << 30), MEMORY)
    assert report[LINK_EVENTS] == 4 * 2 * 1023 * 2  # chunks, halves, steps, links of a hop
