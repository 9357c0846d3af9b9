"""Postponed repeats of decode batches: the same bits as without, and bounds worked out by hand."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.serving.demand.requests import Requests, behind_system_prompt
from simulators.serving.engine import replica as at
from simulators.serving.engine.lookahead import earliest_finish, may_hold
from simulators.serving.engine.replica import ReplicaState
from tests.serving.cases import asked, limits, run

SLACK = 1e-6


def requests_of_clients(seed: int, clients: int, system_tokens: int) -> Requests:
    """Return 60 requests of a closed loop, behind a system prompt."""
    draw = np.random.default_rng(seed)
    think_s, prompt, output = (
        draw.random(60) / 4,
        draw.integers(1, 300, 60),
        draw.integers(1, 200, 60),
    )
    found = dataclasses.replace(asked(think_s, prompt, output), clients=clients)
    return behind_system_prompt(found, system_tokens)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    clients=st.integers(1, 30),
    system_tokens=st.sampled_from([0, 40]),
    scheduler=st.sampled_from(["vllm", "vllm_v1", "sglang"]),
    ranks=st.integers(1, 2),
    blocks=st.sampled_from([60, 10_000]),
)
def test_postponed_repeats_change_no_bit(
    seed: int, clients: int, system_tokens: int, scheduler: str, ranks: int, blocks: int
) -> None:
    requests = requests_of_clients(seed, clients, system_tokens)
    allowed = limits(scheduler, ranks=ranks, blocks=blocks, prefix_caching=system_tokens > 0)

    def served(log_rows: int) -> ReplicaState:
        return run(
            requests,
            scheduler,
            allowed=allowed,
            router="cache_aware",
            replicas=3,
            log_rows=log_rows,
        )

    # A log is in the order of iterations, so nothing is postponed for it.
    postponed, in_order = served(0), served(1)
    assert postponed.finishes.size == 3 * ranks
    assert in_order.finishes.size == 0
    for name in ("times", "request", "gauge", "gaps"):
        np.testing.assert_array_equal(getattr(postponed, name), getattr(in_order, name))


def decoding(**changes: Any) -> Any:
    """Return a replica whose batch of 2 ends at 5 s and repeats 9 times, 1 s each with 20 keys."""
    rounds = {at.REPEATS: 9, at.KEYS_PER_REPEAT: 2}
    price = {at.BASE_S: 0.8, at.SLOPE_S: 0.01, at.UNTIL_KV: np.inf}
    state = SimpleNamespace(
        limits=limits(block_size=4).vector(),
        pool=np.zeros((1, at.POOL_COLUMNS), np.int64),
        rounds=np.zeros((1, at.ROUND_COLUMNS), np.int64),
        price=np.zeros((1, at.PRICE_COLUMNS)),
        priced=np.zeros((1, at.STEP_COLUMNS)),
        ends=np.array([[5.0]]),
        sizes=np.array([2]),
    )
    state.pool[0, [at.IN_FLIGHT, at.FREE_BLOCKS]] = 1, changes.get("free", 100)
    for column, value in {**rounds, **changes.get("rounds", {})}.items():
        state.rounds[0, column] = value
    for column, value in {**price, **changes.get("price", {})}.items():
        state.price[0, column] = value
    state.priced[0, at.DECODE_KV] = 20.0
    return state


@pytest.mark.parametrize(
    ("changes", "repeats"),
    [
        ({}, 9),
        ({"rounds": {at.REPEATS: 0}}, 0),
        ({"free": 5}, 8),  # two rounds of a block each, of four iterations; one block stays free
        ({"free": 1}, 0),
        ({"price": {at.UNTIL_KV: 30.0}}, 4),  # the fifth repeat has the next price
        ({"price": {at.SLOPE_S: -0.01}}, 0),  # later iterations would be faster
    ],
)
def test_batch_cannot_finish_before_its_repeats(changes: dict[str, Any], repeats: int) -> None:
    found = earliest_finish.py_func(decoding(**changes), 0)
    assert found == pytest.approx(5.0 + repeats * (1.0 - SLACK), abs=1e-12)


def test_idle_replica_never_finishes() -> None:
    state = decoding()
    state.pool[0, at.IN_FLIGHT] = 0
    assert earliest_finish.py_func(state, 0) == np.inf


def test_prefix_is_looked_up_where_its_first_node_was_routed() -> None:
    request = np.zeros((2, at.REQUEST_COLUMNS), np.int64)
    request[1, at.PATH] = 1
    tree = np.array([[7, 0, 0, 1], [9, 0, 0, 0]])
    state: Any = SimpleNamespace(request=request, tree=tree, holders=np.zeros((2, 2), np.int64))
    state.holders[1, 1] = 1 << 3
    assert may_hold.py_func(state, 0, 35)
    assert not may_hold.py_func(state, 0, 34)
    assert not may_hold.py_func(state, 1, 35)
    state.holders = np.zeros((0, 2), np.int64)
    assert may_hold.py_func(state, 1, 35)
