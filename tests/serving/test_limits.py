"""Memory and batch limits of a replica, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import updated
from simulators.core.folder import SCHEDULERS
from simulators.serving.deployment import deployment_of
from simulators.serving.engine import limits as limits_module
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import (
    ReplicaLimits,
    kv_blocks,
    limits_of,
    load_scheduler,
    ranks_of,
)
from simulators.serving.engine.tier_limits import swap_space, tiers_of
from simulators.serving.options import HOST, PEER, CacheConfig
from simulators.serving.point import ServingPoint
from simulators.serving.prices.hardware import Hardware
from simulators.serving.speculation import Drafter

LLAMA = ServingPoint(model="llama2_7b", gpu="h100_sxm", scheduler="vllm_v1", runtime="vllm")
WEIGHTS = 2 * 6_738_415_616
BLOCK = 16 * 2 * 32 * 128 * 32 * 2  # tokens, keys and values, heads, their size, layers, bytes
HBM = 80 * 2**30
LENGTHS = (np.array([100, 5000]), np.array([10, 10]))

BASE = ReplicaLimits(
    blocks=100,
    block_size=16,
    watermark=0.019,
    max_num_seqs=12,
    max_prefill_tokens=4096,
    token_budget=512,
    max_model_len=330,
    stages=5,
    swap_capacity=7,
    move_s=1.5e-6,
    ranks=3,
    poll_interval=4,
)


def hardware(point: ServingPoint = LLAMA) -> Hardware:
    return deployment_of(point).hardware


def working(tokens: int, rows: int) -> int:
    """Bytes: twice the stream and a gated block's three widths; logits in 16 and 32 bits."""
    return tokens * (2 * 4096 + 3 * 11_008) * 2 + rows * 32_000 * (2 + 4)


def test_compiled_kernels_read_limits_as_integers() -> None:
    vector = replace(
        BASE,
        num_draft_tokens=2,
        acceptance=(0.5, 0.25),
        draft_max_running=(9, 7),
        draft_counts_waiting=True,
        reserve_full_isl=True,
        long_prefill_token_threshold=256,
        num_lookahead_tokens=2,
        drafts_beyond_end=True,
        ignore_eos=True,
        schedule_conservativeness=0.3,
    ).vector()
    names = {
        at.BLOCK: 16,
        at.WATERMARK: 1,
        at.MAX_NUM_SEQS: 12,
        at.MAX_BATCH_SEQS: 2,
        at.MAX_PREFILL_TOKENS: 4096,
        at.TOKEN_BUDGET: 512,
        at.RESERVED: 20,
        at.STAGES: 5,
        at.POLL_INTERVAL: 4,
        at.SWAP_CAPACITY: 7,
        at.MOVE_NS: 1500,
        at.PREFIX_CACHING: 0,
        at.NUM_TIERS: 0,
        at.RANKS: 3,
        at.NUM_DRAFT_TOKENS: 2,
        at.SEED: 0,
        at.PREFILL_REPLICAS: 0,
        at.RESERVES_OUTPUT: 0,
        at.OVERLAP_SCHEDULE: 0,
        at.DRAFT_COUNTS_WAITING: 1,
        at.MAX_CONCURRENT_BATCHES: 5,
        at.ASYNC_SCHEDULING: 0,
        at.RESERVE_FULL_ISL: 1,
        at.LONG_PREFILL_TOKEN_THRESHOLD: 256,
        at.NUM_LOOKAHEAD_TOKENS: 2,
        at.SLOTS_BEYOND_END: at.ALL_DECODES,
        at.DROPS_CACHED_BLOCK: 0,
        at.CACHES_AT_END: 0,
        at.IGNORE_EOS: 1,
        at.CONSERVATIVENESS: 300_000,
        at.PREFILLS_ONLY: 0,
        at.STREAM_NS: 0,
        at.ACCEPT_CYCLE: 0,
        at.ACCEPTANCE: at.CERTAIN // 2,
        at.ACCEPTANCE + 1: at.CERTAIN // 4,
        at.DRAFT_DEPTH: 2,
        at.DRAFT_MAX_RUNNING: 9,
        at.DRAFT_MAX_RUNNING + 1: 7,
    }
    assert {name: int(vector[name]) for name in names} == names
    assert len(names) - 4 + 2 * at.MOST_DRAFTED == at.TIER_CAPACITY
    assert vector.size == at.LIMITS
    assert not vector[at.TIER_CAPACITY :].any()
    assert int(replace(BASE, move_s=1.5).vector()[at.MOVE_NS]) == 1_500_000_000


@pytest.mark.parametrize(
    ("changes", "seats"),
    [
        ({"stages": 12}, 1),
        ({"stages": 13}, 1),  # never none
        ({"reserves": True}, 5),  # 100 // 20
        ({"reserves": True, "blocks": 1000}, 12),
        ({"reserves": True, "max_model_len": 15}, 12),  # no whole block each
        ({"reserves": True, "max_model_len": 15, "blocks": 9}, 9),  # counts as one
    ],
)
def test_batch_limit_is_the_stage_share_of_max_num_seqs(
    changes: dict[str, Any], seats: int
) -> None:
    assert int(updated(BASE, changes).vector()[at.MAX_BATCH_SEQS]) == seats


def test_request_too_large_for_memory_is_rejected() -> None:
    prompt, output = np.array([300, 300, 301]), np.array([29, 30, 30])
    assert BASE.admits(prompt, output).tolist() == [0, 1]  # 330 is the longest life
    small = replace(BASE, blocks=20, watermark=0.0)  # one block stays free: 19 * 16 = 304
    assert small.admits(np.array([300, 300]), np.array([4, 5])).tolist() == [0]
    kept = replace(BASE, blocks=20, watermark=0.15)  # three: 17 * 16 = 272
    assert kept.admits(np.array([200, 200]), np.array([72, 73])).tolist() == [0]


@pytest.mark.parametrize("fraction_of_free", [False, True])
def test_kv_blocks_fill_memory_left_by_weights_and_activations(fraction_of_free: bool) -> None:
    usable = 0.9 * (HBM - WEIGHTS) + WEIGHTS if fraction_of_free else 0.9 * HBM
    blocks = kv_blocks(
        hardware(),
        memory_fraction=0.9,
        block_size=16,
        tokens=512,
        rows=7,
        fraction_of_free=fraction_of_free,
    )
    assert blocks == int((usable - WEIGHTS - working(512, 7)) / BLOCK)


@pytest.mark.parametrize(("sequences", "held"), [(10, 10), (10_000, None)])
def test_states_of_sequences_take_memory_of_kv_blocks(sequences: int, held: int | None) -> None:
    """By hand: 36 layers with 32 heads of 128 x 128 in fp32, and 3 inputs of 8,192 in bf16."""
    one = hardware(replace(LLAMA, model="qwen3_next_80b", gpu="h200_sxm", tp=4))
    state = 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2) / 4

    def blocks(**more: Any) -> int:
        return kv_blocks(one, memory_fraction=0.9, block_size=16, tokens=512, rows=8, **more)

    token = one.replica.kv_token_bytes
    memory = (blocks() + 0.5) * 16 * token
    held = held or int(memory / (state + 1000.0 * token))
    found = blocks(sequences=sequences, mean_tokens=1000.0)
    assert found == pytest.approx((memory - held * state) / (16 * token), rel=1e-3)


def test_draft_models_and_adapters_reduce_kv_memory() -> None:
    def blocks(**more: Any) -> int:
        return kv_blocks(hardware(), memory_fraction=0.9, block_size=16, tokens=512, rows=7, **more)

    assert blocks(adapter_bytes=10.0 * BLOCK) == blocks() - 10
    drafter = Drafter(2, (0.5, 0.25), None, weight_bytes=7.0 * BLOCK)
    assert blocks(drafter=drafter) == blocks() - 7


@pytest.mark.parametrize(("pp", "overlap_schedule"), [(1, True), (2, False)])
def test_host_overlap_applies_only_to_one_stage(pp: int, overlap_schedule: bool) -> None:
    known = {name: load_scheduler(name) for name in SCHEDULERS.names()}
    name, scheduler = next((name, one) for name, one in known.items() if one.overlap_schedule)
    point = replace(LLAMA, pp=pp, scheduler=name)
    assert (
        limits_of(point, hardware(point), scheduler, LENGTHS).overlap_schedule == overlap_schedule
    )


def test_trtllm_sampler_workspace_holds_six_values_per_logit() -> None:
    def blocks(runtime: str, rows: int, tp: int = 1) -> int:
        replica = hardware(replace(LLAMA, runtime=runtime, tp=tp))
        return kv_blocks(replica, memory_fraction=0.9, block_size=16, tokens=512, rows=rows)

    held = 6 * 32_000 * 4  # of each request; every GPU holds all logits
    assert blocks("trtllm_session", 0) == blocks("trtllm", 0)
    for tp in (1, 2):
        fewer = blocks("trtllm", 1000, tp) - blocks("trtllm_session", 1000, tp)
        assert fewer == pytest.approx(1000 * held / (BLOCK / tp), abs=1)


def test_one_kv_block_is_the_minimum() -> None:
    least = (WEIGHTS + working(1, 1) + BLOCK) / HBM

    def blocks(fraction: float) -> int:
        return kv_blocks(hardware(), memory_fraction=fraction, block_size=16, tokens=1, rows=1)

    assert blocks(least + 1e-9) == 1
    with pytest.raises(Infeasible, match=r"no_kv_memory: needs 13\.5 GB, has 13\.5 GB"):
        blocks(least - 1e-9)
    with pytest.raises(Infeasible, match=r"no_kv_memory: needs 13\.5 GB"):
        blocks(WEIGHTS / HBM)  # they just fit
    with pytest.raises(Infeasible, match=r"weights_exceed_hbm: needs 13\.5 GB, has 12\.9 GB"):
        blocks(0.15)


def test_host_cache_holds_whole_blocks_and_uses_the_host_link() -> None:
    replica = hardware().replica
    link = replica.gpu.pcie_bytes_per_s
    assert swap_space(replica, HOST, 3.9 * BLOCK, 16) == (3, BLOCK / link)
    unknown = replace(replica, gpu=replace(replica.gpu, pcie_bytes_per_s=0.0))
    with pytest.raises(UserError, match="has no pcie_bytes_per_s"):
        swap_space(unknown, HOST, 1e9, 16)


def test_peer_block_transfer_time_scales_with_link_bandwidth() -> None:
    replica = hardware().replica
    gpu = replica.gpu
    (_, host_s), (_, peer_s) = (swap_space(replica, to, 1e9, 16) for to in (HOST, PEER))
    assert host_s / peer_s == pytest.approx(gpu.link_bytes_per_s / gpu.pcie_bytes_per_s)
    alone = replace(replica, gpu=replace(gpu, link_bytes_per_s=0.0))
    with pytest.raises(UserError, match="has no link_bytes_per_s, which moving KV caches to the p"):
        swap_space(alone, PEER, 1e9, 16)


SHARED_SEATS = replace(
    LLAMA,
    model="qwen3_30b",
    attention_dp=4,
    ep=4,
    max_batch=10,
    scheduling=replace(LLAMA.scheduling, max_batch_tokens=4096),
    chunk_size=512,
)


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({}, 4),
        ({"pp": 2}, 1),
        ({"scheduler": "trtllm"}, 1),  # which deals out
    ],
)
def test_dp_ranks_have_separate_or_shared_queues(changes: dict[str, Any], ranks: int) -> None:
    point = updated(SHARED_SEATS, changes)
    assert ranks_of(point, load_scheduler(point.scheduler)) == ranks


@pytest.mark.parametrize(("shared_rank_queue", "groups"), [(False, 1), (True, 4)])
def test_groups_sharing_a_queue_sum_slots_and_budgets(shared_rank_queue: bool, groups: int) -> None:
    point = SHARED_SEATS
    scheduler = replace(load_scheduler("vllm_v1"), shared_rank_queue=shared_rank_queue)
    got = limits_of(point, hardware(point), scheduler, LENGTHS)
    assert (got.max_num_seqs, got.max_prefill_tokens, got.token_budget) == (
        10 * groups,
        4096 * groups,
        512 * groups,
    )
    # Tokens of all four are in the account of a replica; a queue of its own has a quarter.
    whole = kv_blocks(hardware(point), memory_fraction=0.9, block_size=16, tokens=512, rows=10)
    assert got.blocks == whole * groups // 4


@pytest.mark.parametrize(
    ("longest", "budget", "tokens"), [(5000, 4096, 5000), (5000, 8192, 8192), (80, 50, 50)]
)
def test_workspace_covers_the_longest_prompt_or_the_token_budget(
    longest: int, budget: int, tokens: int
) -> None:
    # A context of 5,010 tokens: a prompt that leaves no space for ten output tokens does not count.
    point = replace(
        LLAMA,
        scheduler="vllm",
        scheduling=replace(LLAMA.scheduling, max_batch_tokens=budget),
        max_context=longest + 10,
        max_batch=3,
    )
    scheduler = load_scheduler("vllm")
    got = limits_of(point, hardware(), scheduler, (np.array([100, 5000, 5005]), np.full(3, 10)))
    fits = kv_blocks(hardware(), memory_fraction=0.9, block_size=16, tokens=tokens, rows=3)
    assert got.blocks == fits
    assert got.max_model_len == longest + 10


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scheduler": "lightllm"}, "lightllm_needs_block_size_1"),
        ({"scheduler": "vllm", "scheduling.poll_interval": 2}, "vllm_has_no_poll_interval"),
        ({"scheduler": "orca", "cache.preemption": "cached"}, "orca_has_no_prefix_cache"),
        (
            {"scheduler": "vllm_v1", "cache.prefix_caching": True, "cache.preemption": "swap"},
            "swap_has_no_prefix_cache",
        ),
    ],
)
def test_unsupported_scheduler_option_is_infeasible(changes: dict[str, Any], reason: str) -> None:
    point = updated(LLAMA, changes)
    with pytest.raises(Infeasible, match=reason):
        limits_of(point, hardware(), load_scheduler(point.scheduler), LENGTHS)


def test_operator_options_reach_the_limits() -> None:
    def got(**changes: Any) -> ReplicaLimits:
        point = updated(LLAMA, changes)
        return limits_of(point, hardware(), load_scheduler(point.scheduler), LENGTHS)

    plain, cached, swapped = (
        got(**{"cache.preemption": how, "cache.prefix_caching": False})
        for how in ("recompute", "cached", "swap")
    )
    assert [one.prefix_caching for one in (plain, cached, swapped)] == [False, True, False]
    assert [one.swap_capacity for one in (plain, cached)] == [0, 0]
    assert swapped.swap_capacity == int(4e9 // BLOCK)
    assert (plain.max_model_len, plain.move_s, plain.poll_interval) == (4096, 0.0, 1)
    assert swapped.move_s > 0.0
    sglang = {"scheduler": "sglang"}
    assert [got(**sglang, **{"scheduling.poll_interval": n}).poll_interval for n in (0, 7)] == [
        1,
        7,
    ]
    assert got(scheduler="lightllm", **{"cache.block_size": 1}).poll_interval == 10


def test_prefix_is_loaded_from_storage_if_faster_than_recompute() -> None:
    wide = ServingPoint(
        model="llama3_1_70b",
        gpu="h100_sxm",
        tp=8,
        scheduler="vllm_v1",
        chunk_size=2048,
        cache=CacheConfig(prefix_caching=True, prefix_host_bytes=1e12, offload_to="ssd"),
    )
    small = replace(wide, model="llama3_2_1b", tp=1)
    [tier], none = (tiers_of(one, deployment_of(one).hardware.replica) for one in (wide, small))
    block_bytes = 16 * 80 * 2 * 128 * 2  # of one of eight heads
    assert (tier.capacity, none) == (int(1e12 // block_bytes), ())
    assert tier.read_s == pytest.approx(block_bytes / 6.9e9)
    swapped = replace(LLAMA, cache=replace(LLAMA.cache, preemption="swap", offload_to="ssd"))
    with pytest.raises(Infeasible, match="swap_goes_to_memory"):
        limits_of(swapped, hardware(), load_scheduler("vllm"), LENGTHS)


@pytest.mark.parametrize(("blocks", "each"), [(11, 2), (4, 1), (3, 1)])
def test_every_separate_queue_has_at_least_one_block(
    monkeypatch: pytest.MonkeyPatch, blocks: int, each: int
) -> None:
    monkeypatch.setattr(limits_module, "kv_blocks", lambda *_args, **_more: blocks)
    got = limits_of(SHARED_SEATS, hardware(SHARED_SEATS), load_scheduler("vllm_v1"), LENGTHS)
    assert got.blocks == each
