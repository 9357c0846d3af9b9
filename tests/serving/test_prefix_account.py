"""Shared prefix blocks are counted once and stay cached until eviction."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.core.errors import Infeasible
from simulators.core.jit import Ints
from simulators.serving.demand.prefixes import Prefixes, of_hashes, of_sessions, own
from simulators.serving.demand.requests import Requests, behind_system_prompt
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import ReplicaLimits
from simulators.serving.engine.replica import ReplicaState
from simulators.serving.engine.tier_limits import KVTier
from simulators.serving.options import CacheConfig
from simulators.serving.point import ServingPoint
from simulators.serving.routers import cache_aware
from simulators.serving.run import run_of
from tests.serving.cases import asked, limits, pure_python, run

CACHING = ("sarathi", "sglang", "trtllm", "vllm_v1")
SURE = (0.8, 0.5)
"""Shares of iterations that accept at least one, and two, of two drafts."""


def host(blocks: int) -> dict[str, Any]:
    """Return limits with a tier of some blocks, loaded before the batch."""
    tiers = (KVTier(name="host", capacity=blocks, read_s=1e-4),) if blocks else ()
    return {"tiers": tiers, "inline_tiers": len(tiers)}


def hashed(paths: list[list[int]], gap_s: float, block: int = 16, output: int = 1) -> Requests:
    """Return requests whose prompts are so many blocks and a token, so far apart."""
    counts = np.array([len(path) for path in paths])
    prompt, answer = block * counts + 1, np.full(counts.size, output)
    found = of_hashes(
        np.concatenate([np.array(path, np.int64) for path in paths]),
        np.cumsum(counts),
        block,
        prompt,
        answer,
    )
    requests = asked(gap_s * np.arange(counts.size), prompt, answer)
    return dataclasses.replace(requests, prefixes=found)


def in_a_dictionary(paths: list[list[int]], capacity: int) -> list[int]:
    """Return how many blocks each prompt finds if the end of a prompt is forgotten first."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for path in paths:
        hits.append(next((k for k, block in enumerate(path) if block not in held), len(path)))
        for block in reversed(path):
            held.pop(block, None)
            held[block] = None
        while len(held) > capacity:
            held.popitem(last=False)
    return hits


@pytest.mark.parametrize("capacity", [12, 17, 40, 1000])
def test_sequential_requests_hit_like_a_dictionary(capacity: int) -> None:
    rng = np.random.default_rng(7)
    paths = [
        [100 * tree + k for k in range(1 + int(rng.integers(11)))]
        for tree in rng.integers(6, size=300)
    ]
    allowed = limits(
        "vllm_v1", blocks=capacity + 1, watermark=0.0, token_budget=4096, prefix_caching=True
    )
    state = run(hashed(paths, 100.0), "vllm_v1", allowed=allowed)
    assert (state.request[:, at.NUM_CACHED] // 16).tolist() == in_a_dictionary(paths, capacity)


def in_two_dictionaries(
    paths: list[list[int]], capacity: int, on_host: int
) -> tuple[list[int], list[int]]:
    """Return numbers of blocks by prompt: found ones, and those of them from the host.

    Blocks behind the first one that the GPU lacks come from the host, which gets a copy of every
    block when its request ends.
    """
    gpu: OrderedDict[int, None] = OrderedDict()
    host: OrderedDict[int, None] = OrderedDict()
    hits, fetched = [], []
    for path in paths:
        held = ((k, block) for k, block in enumerate(path))
        found = next((k for k, block in held if block not in gpu and block not in host), len(path))
        near = next((k for k, block in enumerate(path) if block not in gpu), len(path))
        hits.append(found)
        fetched.append(max(0, found - near))
        for block in reversed(path):
            for tier, most in ((gpu, None), (host, on_host)):
                tier.pop(block, None)
                tier[block] = None
                while most is not None and len(tier) > most:
                    tier.popitem(last=False)
        while len(gpu) > capacity:
            gpu.popitem(last=False)
    return hits, fetched


@pytest.mark.parametrize(("capacity", "on_host"), [(12, 20), (17, 25), (17, 40), (25, 1000)])
def test_hits_of_both_tiers_are_those_of_two_dictionaries(capacity: int, on_host: int) -> None:
    rng = np.random.default_rng(11)
    paths = [
        [100 * tree + k for k in range(1 + int(rng.integers(11)))]
        for tree in rng.integers(6, size=300)
    ]
    allowed = limits(
        "vllm_v1",
        blocks=capacity + 1,
        watermark=0.0,
        token_budget=4096,
        prefix_caching=True,
        **host(on_host),
        move_s=1e-4,
    )
    state = run(hashed(paths, 100.0), "vllm_v1", allowed=allowed)
    hits, fetched = in_two_dictionaries(paths, capacity, on_host)
    assert (state.request[:, at.NUM_CACHED] // 16).tolist() == hits
    assert state.pool[0, at.TIER_FETCHED] == sum(fetched) > 0


def test_concurrent_request_hits_completed_blocks() -> None:
    # Chunks of 64 tokens: 128 in two batches of a second each; the second request comes between.
    requests = hashed([list(range(8))] * 3, 0.0)
    requests = dataclasses.replace(requests, arrival_s=np.array([0.0, 1.5, 9.0]))
    allowed = limits("vllm_v1", prefix_caching=True)
    state = run(requests, "vllm_v1", prices=(1.0, 0.0, 0.0), allowed=allowed)
    assert state.request[:, at.NUM_CACHED].tolist() == [0, 128, 128]
    assert state.pool[0, at.MAX_USED_BLOCKS] == 10  # the eight they share, and one each


def test_duplicate_block_is_freed() -> None:
    # While the first's chunk is in one stage, the second begins the same 64 tokens in the other.
    requests = dataclasses.replace(
        asked([0.0, 0.0], [100, 100], [9, 9]),
        prefixes=Prefixes(np.array([5, 0, 5, 1]), np.array([64, 108, 64, 108]), np.array([2, 4])),
    )
    allowed = limits("vllm_v1", prefix_caching=True, token_budget=48, stages=2)
    state = run(requests, "vllm_v1", allowed=allowed)
    assert state.request[:, at.NUM_CACHED].tolist() == [0, 0]
    assert_settled(state)


def test_preempted_request_hits_its_cached_blocks() -> None:
    requests = asked(np.zeros(3), np.full(3, 120), np.full(3, 120))
    plain = limits("vllm_v1", blocks=30, watermark=0.0, max_model_len=400)
    without = run(requests, "vllm_v1", allowed=plain)
    found = run(requests, "vllm_v1", allowed=dataclasses.replace(plain, prefix_caching=True))
    restarts = [state.pool[0, at.RECOMPUTE_PREEMPTIONS] for state in (without, found)]
    assert min(restarts) > 0
    assert found.pool[0, at.BATCHED_TOKENS] < without.pool[0, at.BATCHED_TOKENS]


def test_shared_system_prompt_is_stored_once() -> None:
    requests = behind_system_prompt(asked(np.zeros(8), np.full(8, 20), np.full(8, 30)), 1600)
    roomy = limits("vllm_v1", token_budget=4096, prefix_caching=True)
    enough = dataclasses.replace(roomy, blocks=100 + 8 * 4 + 1, watermark=0.0)
    for allowed in (roomy, enough):
        state = run(requests, "vllm_v1", allowed=allowed)
        # 100 blocks together, and at the end four of each one's own: 49 tokens behind them.
        assert state.request[:, at.NUM_CACHED].tolist() == [0] + [1600] * 7
        assert state.pool[0, at.MAX_USED_BLOCKS] == 100 + 8 * 4


def test_evicted_blocks_are_restored_from_the_host() -> None:
    # Three prompts of ten blocks and one token take turns in memory for 21 blocks.
    paths = [[100 * (i % 3) + k for k in range(10)] for i in range(9)]
    tight = limits(
        "vllm_v1", blocks=21, watermark=0.0, token_budget=4096, prefix_caching=True, move_s=0.5
    )
    forgets, keeps, small = (
        run(
            hashed(paths, 100.0),
            "vllm_v1",
            allowed=dataclasses.replace(tight, **host(blocks)),
        )
        for blocks in (0, 30, 15)
    )
    assert forgets.request[:, at.NUM_CACHED].sum() < keeps.request[:, at.NUM_CACHED].sum()
    assert keeps.request[3:, at.NUM_CACHED].tolist() == [160] * 6
    moved = keeps.pool[0, at.TIER_FETCHED]
    assert 0 < moved <= 60
    waited = keeps.times[:, at.FIRST_TOKEN] - keeps.times[:, at.SCHEDULED]
    assert waited[3:].sum() > 0.5 * moved
    assert small.tree[small.pool[0, at.TIER_ROOT], at.TREE_COLUMNS] <= 15
    assert_settled(keeps)


def assert_settled(state: ReplicaState) -> None:
    """Nobody holds anything, and what is kept is what stands in the rings."""
    pool, tree = state.pool, state.tree
    assert (pool[:, at.FREE_BLOCKS] == pool[:, at.TOTAL_BLOCKS]).all()
    assert (pool[:, at.MAX_USED_BLOCKS] <= pool[:, at.TOTAL_BLOCKS]).all()
    assert (state.request[:, [at.BLOCKS, at.HELD_NODES]] == 0).all()
    assert (pool[:, at.CACHED_FREE_BLOCKS] <= pool[:, at.TOTAL_BLOCKS]).all()
    rows = np.append(pool[:, at.TREE_ROOT], len(tree))
    for replica in range(len(pool)):
        nodes = tree[rows[replica] + 1 : rows[replica + 1]]
        assert (nodes[:, at.REF_COUNT] == 0).all()
        assert ((nodes[:, at.NEWER] > 0) == (nodes[:, at.CACHED_BLOCKS] > 0)).all()
        assert nodes[:, at.CACHED_BLOCKS].sum() == pool[replica, at.CACHED_FREE_BLOCKS]
        for tier in range(state.limits[at.NUM_TIERS]):
            root, column = pool[replica, at.TIER_ROOT + tier], at.TREE_COLUMNS + 4 * tier
            size = rows[replica + 1] - rows[replica]
            held = tree[root + 1 : root + size, column]
            assert held.sum() == tree[root, column] <= state.limits[at.TIER_CAPACITY + tier]
            linked = tree[root + 1 : root + size, column + at.TIER_NEWER]
            assert ((linked > 0) == (held > 0)).all()


@st.composite
def alike(draw: st.DrawFn) -> Requests:
    """Return a few requests that begin alike in one of three ways."""
    count = draw(st.integers(1, 24))
    lengths = st.lists(st.integers(1, 150), min_size=count, max_size=count)
    prompt, output = np.array(draw(lengths)), np.array(draw(lengths))
    gaps = draw(st.lists(st.sampled_from([0.0, 1e-3, 0.1]), min_size=count, max_size=count))
    how = draw(st.sampled_from(["sessions", "hashes", "own"]))
    prefixes = own(prompt + output)
    if how == "hashes":
        hashed = draw(st.sampled_from([8, 16, 40]))
        counts = -(-prompt // hashed)
        trees = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
        ids = [1000 * tree + k for tree, n in zip(trees, counts, strict=True) for k in range(n)]
        ends = np.cumsum(counts)
        full = hashed * counts  # equal hashes have equal token counts
        prompt, prefixes = full, of_hashes(np.array(ids), ends, hashed, full, output)
    elif how == "sessions":
        turn = np.arange(count) % 3
        said = np.array([(prompt + output)[i - turn[i] : i].sum() for i in range(count)])
        prompt, output = prompt // 3 + said // 3 + 1, output // 3 + 1
        total: Ints = np.zeros(count, np.int64)
        for i in range(count):
            prompt[i] = prompt[i] % 40 + 1 + (total[i - 1] if turn[i] else 0)
            output[i] = output[i] % 20 + 1
            total[i] = prompt[i] + output[i]
        prefixes = of_sessions(turn, total)
    requests = asked(np.cumsum(gaps), prompt, output)
    behind = draw(st.sampled_from([0, 0, 50]))
    return behind_system_prompt(dataclasses.replace(requests, prefixes=prefixes), behind)


def caching(scheduler: str, **changes: Any) -> ReplicaLimits:
    """Return limits under which the longest request just fits."""
    settled = {
        "blocks": 26,
        "watermark": 0.01,
        "max_model_len": 400,
        "prefix_caching": True,
    } | changes
    return limits(scheduler, **settled)


@settings(max_examples=100, deadline=None)
@given(
    alike(),
    st.sampled_from(CACHING),
    st.sampled_from([1, 2]),
    st.sampled_from([0, 2]),
    st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    st.sampled_from([0, 0, 7, 100]),
)
def test_tokens_and_blocks_are_conserved_with_prefix_cache_drafts_and_preemption(
    requests: Requests,
    scheduler: str,
    replicas: int,
    drafted: int,
    layout: tuple[int, int],
    on_host: int,
) -> None:
    stages, ranks = layout
    allowed = caching(
        scheduler,
        num_draft_tokens=drafted,
        acceptance=SURE[:drafted],
        stages=stages,
        ranks=ranks,
        **host(on_host),
        move_s=1e-4,
    )
    state = run(requests, scheduler, allowed=allowed, replicas=replicas)
    assert (state.times[:, at.COMPLETED] >= 0.0).all()
    assert_settled(state)
    total = state.request[:, at.PROMPT] + state.request[:, at.OUTPUT]
    assert (total == requests.prompt_tokens + requests.output_tokens).all()
    cached = state.request[:, at.NUM_CACHED]
    assert ((cached >= 0) & (cached < requests.prompt_tokens)).all()
    if drafted == 0 and state.pool[:, at.RECOMPUTE_PREEMPTIONS].sum() == 0:
        computed = requests.prompt_tokens - cached + requests.output_tokens - 1
        assert state.pool[:, at.BATCHED_TOKENS].sum() == computed.sum()


@settings(max_examples=40, deadline=None)
@given(alike(), st.sampled_from(CACHING), st.sampled_from([0, 2]))
def test_prefix_cache_has_no_effect_without_shared_prefixes(
    requests: Requests, scheduler: str, drafted: int
) -> None:
    alone = dataclasses.replace(requests, prefixes=None)
    roomy = caching(scheduler, blocks=1000, num_draft_tokens=drafted, acceptance=SURE[:drafted])
    with_cache = run(alone, scheduler, allowed=roomy)
    without = run(requests, scheduler, allowed=dataclasses.replace(roomy, prefix_caching=False))
    assert (with_cache.times == without.times).all()
    assert (with_cache.gauge == without.gauge).all()


@settings(max_examples=3, deadline=None)
@given(alike(), st.sampled_from(CACHING))
def test_compiled_and_python_accounting_match(requests: Requests, scheduler: str) -> None:
    compiled = run(requests, scheduler, allowed=caching(scheduler), replicas=2)
    with pure_python():
        plain = run(requests, scheduler, allowed=caching(scheduler), replicas=2)
    for name in ("request", "times", "pool", "gauge", "tree"):
        assert np.array_equal(getattr(compiled, name), getattr(plain, name)), name


def test_scheduler_without_a_prefix_cache_is_refused() -> None:
    point = ServingPoint(
        model="llama3_1_8b",
        gpu="h100_sxm",
        scheduler="vllm",
        cache=CacheConfig(prefix_caching=True),
        requests=2,
    )
    with pytest.raises(Infeasible, match="vllm_has_no_prefix_cache"):
        run_of(point)


def routed_with(*, waiting: list[int], running: list[int], found: list[int]) -> int:
    """Return where a request goes that finds so many thousandths of its prompt."""
    load = [np.array(row, np.int64) for row in (waiting, running, found)]
    return cache_aware.route(0, *load, np.zeros(2))


@pytest.mark.parametrize(
    ("running", "found", "replica"),
    [
        ([5, 9, 2], [400, 900, 0], 1),
        ([5, 9, 2], [900, 900, 0], 0),  # of equal ones the less busy
        ([5, 9, 2], [300, 0, 0], 2),  # too little to follow
        ([5, 66, 2], [0, 900, 0], 1),
        ([5, 67, 2], [0, 900, 0], 2),  # too far apart
        ([130, 190, 140], [0, 900, 0], 1),  # 60 apart
        ([130, 195, 140], [0, 900, 0], 1),  # 65 apart, but not half as many again
    ],
)
def test_cache_aware_router_follows_the_longest_match_within_load_limits(
    running: list[int], found: list[int], replica: int
) -> None:
    assert routed_with(waiting=[0, 0, 0], running=running, found=found) == replica


def test_cache_aware_routing_raises_session_hit_rates() -> None:
    turns = 4
    prompt = np.arange(80) % turns * 170 + 70
    requests = asked(np.arange(80) * 0.05, prompt, np.full(80, 100))
    requests = dataclasses.replace(
        requests, prefixes=of_sessions(np.arange(80) % turns, prompt + 100)
    )
    roomy = limits("vllm_v1", prefix_caching=True, token_budget=2048)
    states = {
        router: run(requests, "vllm_v1", router=router, replicas=3, allowed=roomy)
        for router in ("cache_aware", "round_robin")
    }
    cached = {router: state.request[:, at.NUM_CACHED].sum() for router, state in states.items()}
    assert cached["cache_aware"] > 1.5 * cached["round_robin"]
