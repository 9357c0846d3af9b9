"""Tiers of the KV cache behave like caches of blocks, and their loads like queues on links."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.core.errors import Infeasible
from simulators.core.fields import point_from
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_tiers import LFU_STEP
from simulators.serving.engine.limits import ReplicaLimits
from simulators.serving.engine.replica import ReplicaState
from simulators.serving.engine.tier_limits import KVTier
from simulators.serving.options import EVICTIONS, WRITE_POLICIES
from simulators.serving.point import ServingPoint
from simulators.serving.run import prepare
from tests.serving.cases import limits, pure_python, run
from tests.serving.plain_tiers import Hierarchy, Tier
from tests.serving.test_prefix_account import assert_settled, hashed

NAMES = ("host", "nvme", "remote")


def tiered(
    capacities: list[int], *, shared: int = 3, blocks: int = 20, **more: Any
) -> ReplicaLimits:
    """Return limits with tiers of some blocks; those from number `shared` on are shared."""
    read_s = more.pop("read_s", 1e-4)
    tiers = tuple(
        KVTier(name=name, capacity=n, read_s=read_s, is_shared=place >= shared)
        for place, (name, n) in enumerate(zip(NAMES, capacities, strict=False))
    )
    known = {"watermark": 0.0, "token_budget": 4096, "prefix_caching": True, "tiers": tiers}
    return limits("vllm_v1", blocks=blocks, **(known | more))


@st.composite
def trees(draw: st.DrawFn) -> list[list[int]]:
    """Return paths of requests through a few trees whose branches part at some depth."""
    count = draw(st.integers(5, 40))
    paths = []
    for _ in range(count):
        tree, depth = draw(st.integers(0, 4)), draw(st.integers(1, 8))
        parts, branch = draw(st.integers(1, 8)), draw(st.integers(0, 2))
        own = 1000 * branch + 100 * parts
        paths.append([10_000 * tree + k + own * (branch > 0 and k >= parts) for k in range(depth)])
    return paths


def found(state: ReplicaState, tiers: int) -> list[list[int]]:
    """Return, for each request, the blocks found in GPU memory and in each tier."""
    loaded = state.request[:, at.NUM_LOADED : at.NUM_LOADED + tiers]
    near = state.request[:, at.NUM_CACHED] - loaded.sum(axis=1)
    return (np.column_stack([near, loaded]) // 16).tolist()  # type: ignore[no-any-return]


@settings(max_examples=80, deadline=None)
@given(
    trees(),
    st.lists(st.integers(1, 25), min_size=1, max_size=3),
    st.integers(0, 3),
    st.sampled_from(WRITE_POLICIES),
    st.sampled_from(EVICTIONS),
    st.integers(1, 2),
    st.sampled_from([0, 0, 2, 3]),
    st.booleans(),
)
def test_hits_of_every_tier_are_those_of_a_plain_replay(
    paths: list[list[int]],
    capacities: list[int],
    shared: int,
    policy: str,
    eviction: str,
    replicas: int,
    page: int,
    loads_request: bool,
) -> None:
    together = [Tier(n, eviction) for n in capacities]
    plain = Hierarchy(
        gpu_blocks=12,
        tiers=[
            [one if t >= shared else Tier(one.capacity, eviction) for t, one in enumerate(together)]
            for _ in range(replicas)
        ],
        policy=policy,
        page=page,
        paths=paths,
    )
    allowed = tiered(
        capacities,
        shared=shared,
        blocks=12,
        write_policy=policy,
        eviction=eviction,
        page_blocks=page,
        loads_request=loads_request,
    )
    state = run(hashed(paths, 100.0), "vllm_v1", allowed=allowed, replicas=replicas)
    assert found(state, len(capacities)) == plain.replay()
    assert_settled(state)


def evicted_first(last: list[list[int]]) -> list[list[int]]:
    """Return paths of which the first two leave GPU memory of 40 blocks before the `last` come."""
    return [list(range(10)), list(range(100, 110)), list(range(200, 236)), *last]


@pytest.mark.parametrize(
    ("loads_request", "store_s", "starts"),
    [
        (True, 0.0, [1005.2, 1010.2, 1000.0]),
        (False, 0.0, [1000.0] * 3),
        (True, 1.0, [1010.2, 1020.2, 1000.0]),
    ],
)
def test_loads_queue_on_the_link_and_delay_their_request_or_the_batch(
    loads_request: bool, store_s: float, starts: list[float]
) -> None:
    paths = evicted_first([list(range(10)), list(range(100, 110)), [300]])
    requests = hashed(paths, 100.0)
    arrival_s = np.array([0.0, 100.0, 200.0, 1000.0, 1000.0, 1000.0])
    requests = dataclasses.replace(requests, arrival_s=arrival_s)
    allowed = tiered([200], blocks=40, read_s=0.5, loads_request=loads_request)
    [tier] = allowed.tiers
    tier = dataclasses.replace(tier, latency_s=0.2, store_s=store_s)
    state = run(
        requests,
        "vllm_v1",
        prices=(1.0, 0.0, 0.0),
        allowed=dataclasses.replace(allowed, tiers=(tier,)),
    )
    assert found(state, 1)[3:] == [[0, 10], [0, 10], [0, 0]]
    assert state.times[3:, at.SCHEDULED] == pytest.approx(starts, abs=1.0 + 1e-6)
    first_token_s = state.times[3:, at.FIRST_TOKEN]
    if loads_request:
        assert (first_token_s >= np.array(starts) + 1.0 - 1e-6).all()
    else:
        assert first_token_s == pytest.approx([1011.2] * 3)
    assert_settled(state)


def test_writes_delay_the_loads_behind_them() -> None:
    paths = evicted_first([list(range(10))])
    requests = dataclasses.replace(
        hashed(paths, 100.0), arrival_s=np.array([0.0, 100.0, 200.0, 300.0])
    )
    allowed = tiered([200], blocks=40, read_s=0.5)
    [tier] = allowed.tiers
    slow = dataclasses.replace(allowed, tiers=(dataclasses.replace(tier, write_s=10.0),))
    waits = [
        run(requests, "vllm_v1", prices=(1.0, 0.0, 0.0), allowed=one).times[3, at.FIRST_TOKEN]
        - 300.0
        for one in (allowed, slow)
    ]
    assert waits[0] == pytest.approx(6.0)
    assert waits[1] == pytest.approx(waits[0] + 361.0 - 100.0)  # 36 blocks from 201 s on


def test_belady_finds_most_and_an_endless_tier_finds_all() -> None:
    rng = np.random.default_rng(3)
    paths = [
        [100 * tree + k for k in range(1 + int(rng.integers(4)))]
        for tree in rng.zipf(1.3, 400) % 40
    ]
    hits = {
        name: run(hashed(paths, 100.0), "vllm_v1", allowed=tiered([30], blocks=6, eviction=name))
        .request[:, at.NUM_CACHED]
        .sum()
        for name in EVICTIONS
    }
    endless = hashed(paths, 100.0).prefixes
    assert endless is not None
    state = run(hashed(paths, 100.0), "vllm_v1", allowed=tiered([10_000], blocks=6))
    assert max(hits["lru"], hits["lfu"]) < hits["belady"] < state.request[:, at.NUM_CACHED].sum()
    assert state.request[:, at.NUM_CACHED].tolist() == endless.max_prefix_hits().tolist()


def test_belady_forgets_a_prefix_whose_last_user_ended_first() -> None:
    first, one, other = list(range(10)), list(range(100, 110)), list(range(200, 210))
    requests = hashed([first, first, *[one, other] * 4], 100.0)
    arrival_s, output = requests.arrival_s.copy(), requests.output_tokens.copy()
    arrival_s[1], output[0] = 5.0, 14
    requests = dataclasses.replace(requests, arrival_s=arrival_s, output_tokens=output)
    allowed = tiered([20], blocks=16, eviction="belady")
    state = run(requests, "vllm_v1", prices=(1.0, 0.0, 0.0), allowed=allowed)
    assert state.times[1, at.COMPLETED] < state.times[0, at.COMPLETED] < 100.0
    assert [sum(hits) for hits in found(state, 1)[4:]] == [10] * 6


def test_eviction_block_by_block_is_one_use_of_a_prefix() -> None:
    paths = [list(range(10)), *([200 + k] for k in range(20))]
    allowed = tiered([100], blocks=14, write_policy="write_back", eviction="lfu")
    requests = dataclasses.replace(hashed(paths, 100.0), prefixes=None)  # a node per request
    state = run(requests, "vllm_v1", allowed=allowed)
    nodes = state.tree[state.pool[0, at.TREE_ROOT] + 1 :]
    assert nodes[:, at.TREE_COLUMNS + at.TIER_BLOCKS].max() == 10
    assert nodes[:, at.TREE_COLUMNS + at.TIER_KEY].max() // LFU_STEP == 1


@pytest.mark.parametrize(("policy", "eviction"), [("write_back", "lfu"), ("write_through", "lru")])
def test_compiled_and_python_tiers_match(policy: str, eviction: str) -> None:
    rng = np.random.default_rng(5)
    paths = [
        [50 * int(tree) + k for k in range(1 + int(rng.integers(8)))]
        for tree in rng.integers(6, size=25)
    ]
    allowed = tiered(
        [8, 20], shared=1, blocks=14, write_policy=policy, eviction=eviction, loads_request=True
    )
    asked = (hashed(paths, 0.02, output=3), "vllm_v1")
    compiled = run(*asked, allowed=allowed, replicas=2, router="cache_aware")
    with pure_python():
        plain = run(*asked, allowed=allowed, replicas=2, router="cache_aware")
    assert compiled.pool[:, at.TIER_FETCHED : at.TIER_LOAD].sum() > 0
    for name in ("request", "times", "pool", "gauge", "tree"):
        assert np.array_equal(getattr(compiled, name), getattr(plain, name)), name


@pytest.mark.parametrize(("age_s", "replica"), [(0.0, 1), (50.0, 1), (1e6, 0)])
def test_router_follows_a_prefix_once_its_view_is_renewed(age_s: float, replica: int) -> None:
    requests = dataclasses.replace(
        hashed([[1, 2], [11, 12], [11, 12]], 0.0), arrival_s=np.array([0.0, 0.0, 100.0])
    )
    allowed = tiered([], blocks=100, view_refresh_s=age_s)
    state = run(requests, "vllm_v1", allowed=allowed, replicas=2, router="cache_aware")
    assert state.request[:, at.REPLICA].tolist() == [0, 1, replica]


def test_session_affine_router_keeps_sessions_on_one_replica() -> None:
    session = np.repeat(np.arange(20), 3)
    requests = dataclasses.replace(hashed([[n, n + 100] for n in range(60)], 0.1), session=session)
    state = run(requests, "vllm_v1", allowed=tiered([]), replicas=4, router="session_affine")
    routed = state.request[:, at.REPLICA].reshape(20, 3)
    assert (routed == routed[:, :1]).all()
    assert set(routed[:, 0].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("load", [{"workload": "agentic"}, {"sessions.turns": 3}])
def test_belady_needs_an_order_that_answers_do_not_decide(load: dict[str, object]) -> None:
    options = {
        "model": "llama3_8b",
        "gpu": "h100_sxm",
        "cache.prefix_caching": True,
        "cache.prefix_host_bytes": 64e9,
        "kv_tiers.eviction": "belady",
        **load,
    }
    point = point_from(ServingPoint, options)
    with pytest.raises(Infeasible, match="belady_needs_order"):
        prepare(point)


@pytest.mark.parametrize("rate", [2e9, 3e10])
def test_decode_replicas_have_the_tiers_that_prefill_replicas_load_from(rate: float) -> None:
    options = {
        "model": "llama3_2_1b",
        "gpu": "h100_sxm",
        "requests": 20,
        "cache.prefix_caching": True,
        "kv_tiers.remote_bytes": 1e12,
        "kv_tiers.remote_read_bytes_per_s": rate,
        "pools.prefill_gpus": 1,
        "pools.decode_gpus": 1,
        "pools.decode_gpu": "l4",
    }
    prefill, decode = (pool.limits for pool in prepare(point_from(ServingPoint, options)).pools)
    assert [tier.name for tier in prefill.tiers] == ["remote"] * (rate > 1e10)
    assert [(tier.name, tier.capacity) for tier in decode.tiers] == [
        (tier.name, tier.capacity) for tier in prefill.tiers
    ]


def test_endless_stores_and_endless_transfers_fit_the_integers_of_the_engine() -> None:
    tier = KVTier(name="remote", capacity=10**24, read_s=1e-4, write_s=1e12, store_s=1e12)
    limits_of_tier = dataclasses.replace(tiered([1]), tiers=(tier,)).vector()
    assert limits_of_tier.min() >= 0
    assert (limits_of_tier[[at.TIER_WRITE_PS, at.TIER_STORE_PS]] * 10_000 > 0).all()
