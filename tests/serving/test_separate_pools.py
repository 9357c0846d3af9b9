"""Disaggregated prefill and decode pools, and the KV transfer between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from simulators.core.columns import batch_of
from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import updated, values_of
from simulators.serving.answer.explain import LATER
from simulators.serving.deployment import describe, pools_of
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_transfer import INSTANT_LINK, KVLink, link_of
from simulators.serving.engine.limits import load_router, load_scheduler
from simulators.serving.engine.replica import ReplicaState
from simulators.serving.engine.service import Decoders, EngineKernels, serve
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of
from simulators.serving.simulator import SIMULATOR, simulate
from tests.serving.cases import SCHEDULERS, asked, limits, linear_price, pure_python

TAKE_UP = [name for name in SCHEDULERS if load_scheduler(name).kv_transfer]

PRICES = np.array([0.01, 1e-5, 1e-7])
PLAIN = ServingPoint("llama3_1_8b", "h100_sxm", scheduler="vllm_v1", requests=200, qps=6.0)
APART = replace(PLAIN, pools=replace(PLAIN.pools, prefill_gpus=1, decode_gpus=1))


def pooled(
    count: int = 80,
    scheduler: str = "vllm_v1",
    *,
    gap_s: float = 0.02,
    link: KVLink = INSTANT_LINK,
    readers: int = 2,
    decoders: int = 2,
    decode_blocks: int = 10_000,
    router: str = "round_robin",
    prompt: int = 100,
    output: int = 20,
    **more: Any,
) -> ReplicaState:
    """Serve requests that come evenly, by readers and decoders with so many blocks."""
    shape = np.zeros(1, np.int64)
    lengths = prompt + np.arange(count) % 7, output + np.arange(count) % 5
    return serve(
        EngineKernels(load_scheduler(scheduler), load_router(router), linear_price),
        limits(scheduler, **more),
        asked(gap_s * np.arange(count), *lengths),
        replicas=readers,
        shape=shape,
        table=PRICES,
        decoders=Decoders(
            limits=limits(scheduler, **{**more, "blocks": decode_blocks}),
            replicas=decoders,
            shape=shape,
            table=PRICES,
            link=link,
        ),
    )


@pytest.mark.parametrize("scheduler", TAKE_UP)
def test_sequential_requests_over_a_free_link_match_one_pool(scheduler: str) -> None:
    apart = pooled(20, scheduler, gap_s=10.0)
    together = serve(
        EngineKernels(load_scheduler(scheduler), load_router("round_robin"), linear_price),
        limits(scheduler),
        asked(10.0 * np.arange(20), 100 + np.arange(20) % 7, 20 + np.arange(20) % 5),
        replicas=1,
        shape=np.zeros(1, np.int64),
        table=PRICES,
    )
    for column in (at.SCHEDULED, at.FIRST_TOKEN, at.LAST_TOKEN, at.COMPLETED, at.STALLED):
        assert apart.times[:, column].tolist() == together.times[:, column].tolist()


@pytest.mark.parametrize("scheduler", TAKE_UP)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"decode_blocks": 24},
        {"blocks": 30, "decode_blocks": 24},
        {"prefix_caching": True, "decode_blocks": 24},
        {"stages": 2},
    ],
    ids=["large", "full", "tight", "cached", "pipeline"],
)
def test_completed_requests_free_all_blocks(scheduler: str, more: dict[str, Any]) -> None:
    if "prefix_caching" in more and not load_scheduler(scheduler).caches_prefixes:
        pytest.skip("it has no prefix cache")
    state = pooled(scheduler=scheduler, link=KVLink(setup_s=1e-3, token_s=1e-5), **more)
    times, pool = state.times, state.pool
    assert (times[:, at.COMPLETED] >= 0.0).all()
    assert pool[:, at.FREE_BLOCKS].tolist() == pool[:, at.TOTAL_BLOCKS].tolist()
    for left in (at.WAITING, at.WAITING_KV, at.RUNNING, at.NUM_RUNNING, at.IN_FLIGHT):
        assert not pool[:, left].any()
    steps = (
        at.ARRIVAL,
        at.SCHEDULED,
        at.PREFILL_END,
        at.TRANSFER_START,
        at.FIRST_TOKEN,
        at.COMPLETED,
    )
    assert (np.diff(times[:, steps], axis=1) >= 0.0).all()
    inside_s = (times[:, at.COMPLETED] - times[:, at.ARRIVAL]).sum()
    sent_s = (times[:, at.FIRST_TOKEN] - times[:, at.PREFILL_END]).sum()
    counted = state.gauge[:, at.REQUEST_SECONDS].sum()
    assert counted == pytest.approx(inside_s, rel=1e-9)  # Little
    assert sent_s > 0.0


def test_compiled_and_python_pools_are_bit_equal() -> None:
    more: dict[str, Any] = {
        "count": 24,
        "decode_blocks": 24,
        "link": KVLink(setup_s=1e-3, token_s=1e-5),
    }
    compiled = pooled(**more)
    with pure_python():
        written = pooled(**more)
    assert compiled.times.tolist() == written.times.tolist()
    assert compiled.request.tolist() == written.request.tolist()


def test_prefill_replicas_only_prefill_and_decode_replicas_only_decode() -> None:
    state = pooled(readers=1, decoders=2)
    iterations = state.pool[:, at.ITERATIONS]
    assert state.pool[:, at.BATCHED_TOKENS].tolist()[0] == state.request[:, at.PROMPT].sum()
    assert set(state.request[:, at.REPLICA].tolist()) == {1, 2}
    assert (iterations > 0).all()


def test_full_decode_pool_keeps_blocks_on_prefill_replicas() -> None:
    large, full = (
        pooled(gap_s=0.0, readers=1, decoders=1, decode_blocks=decode_blocks)
        for decode_blocks in (10_000, 24)
    )
    waits = [
        (s.times[:, at.TRANSFER_START] - s.times[:, at.PREFILL_END]).max() for s in (large, full)
    ]
    assert waits[0] == 0.0 < waits[1]
    held = [state.gauge[0, at.BLOCK_SECONDS] for state in (large, full)]
    assert held[1] > 10.0 * held[0]


def test_full_prefill_replicas_wait_for_the_decode_pool() -> None:
    free, kept = (
        pooled(gap_s=0.0, readers=1, decoders=1, decode_blocks=24, blocks=blocks)
        for blocks in (10_000, 30)
    )
    assert kept.times[:, at.PREFILL_END].max() > 2.0 * free.times[:, at.PREFILL_END].max()


def test_kv_transfers_serialize_on_the_link() -> None:
    link = KVLink(setup_s=0.5, token_s=0.01)
    state = pooled(2, gap_s=0.0, link=link, readers=1, decoders=1, prompt=95, token_budget=4096)
    read = state.times[0, at.PREFILL_END]
    moved_s = np.sort(state.times[:, at.FIRST_TOKEN]) - read
    assert moved_s.tolist() == pytest.approx([0.5 + 0.96, 0.5 + 2 * 0.96])


@pytest.mark.parametrize(("token_s", "left_s"), [(1e-6, 1e-6 * 96 / 4), (1.0, 96 - 0.75 * 0.01095)])
def test_layerwise_transfer_overlaps_prefill(token_s: float, left_s: float) -> None:
    link = KVLink(setup_s=0.0, token_s=token_s, parts=4)
    state = pooled(1, link=link, readers=1, decoders=1, prompt=95, token_budget=4096)
    after_s = state.times[0, at.FIRST_TOKEN] - state.times[0, at.PREFILL_END]
    assert after_s == pytest.approx(left_s)


@pytest.mark.parametrize("scheduler", TAKE_UP)
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_prefill_replica_never_holds_more_blocks_than_it_has(
    scheduler: str, prefix_caching: bool
) -> None:
    """Blocks stay allocated until the cache has been sent, although nothing runs meanwhile."""
    caches = prefix_caching and load_scheduler(scheduler).caches_prefixes
    memory = {"blocks": 180, "token_budget": 16_384, "max_prefill_tokens": 16_384}
    link = KVLink(setup_s=0.01, token_s=1e-5)
    more = {"prompt": 2_000, "output": 100, "prefix_caching": caches, **memory}
    state = pooled(20, scheduler, link=link, readers=1, decoders=1, gap_s=0.001, **more)
    assert (state.times[:, at.COMPLETED] > 0.0).all()
    assert state.pool[0, at.MAX_USED_BLOCKS] <= 180


def test_pools_may_differ_in_data_parallel_attention() -> None:
    """Pools with options of their own equal a deployment that sets them for both."""
    both = updated(
        APART,
        {"pools.prefill_gpus": 4, "pools.decode_gpus": 4, "attention_dp": 4, "requests": 60},
    )
    own = {"attention_dp": 1, "pools.prefill_attention_dp": 4, "pools.decode_attention_dp": 4}
    assert simulate(updated(both, own)) == simulate(both)
    for pool, ranks in (("prefill", (4, 1)), ("decode", (1, 4))):
        changes = {"attention_dp": 1, f"pools.{pool}_attention_dp": 4}
        point = updated(both, {**changes, "pools.prefill_tp": 1, "scheduler": "sglang"})
        run = run_of(point)
        assert tuple(run.state.own[:, at.RANKS]) == ranks
        assert run.metrics().completed_requests == 60
        later = [r for r in SIMULATOR.explain(values_of(point)) if r.phase == LATER]
        passes = {r.count for r in later if r.name == "embedding"}
        assert passes == {float((run.state.request[:, at.OUTPUT] - 1).mean())}


def test_pools_may_differ_in_parallelism_and_gpu() -> None:
    point = replace(
        APART,
        pools=replace(
            APART.pools, prefill_gpus=2, decode_gpus=4, prefill_tp=2, decode_gpu="h200_sxm"
        ),
    )
    reader, decoder = pools_of(point)
    assert (reader.tp, reader.replicas, reader.gpu) == (2, 1, "h100_sxm")
    assert (decoder.tp, decoder.replicas, decoder.gpu) == (1, 4, "h200_sxm")
    found = simulate(point)
    assert found.gpus == 6
    assert found.completed_requests == 200


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pools.decode_gpus": 0}, "one_pool_without_the_other"),
        ({"pools.decode_gpus": 3, "pools.decode_tp": 2}, "decode_pool_is_no_whole_replicas"),
        ({"scheduler": "orca"}, "orca_has_no_separate_pools"),
        ({"pools.decode_gpus": 8, "pools.kv_link": "nvlink"}, "no_nvlink_between_pools"),
        ({"colocation.models": "llama2_7b"}, "shared_gpus_have_no_separate_pools"),
        ({"fidelity": "analytic"}, "separate_pools_need_fidelity_event"),
    ],
)
def test_infeasible_pools_have_a_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Infeasible, match=reason):
        simulate(updated(APART, changes))


def test_mixed_gpu_pools_cost_the_sum() -> None:
    point = replace(
        APART, requests=50, pools=replace(APART.pools, decode_gpus=3, decode_gpu="a100_sxm")
    )
    found = simulate(point)
    listed = {n: values_of(point)[n] for n in SIMULATOR.priced}
    rows = {n: [values_of(point).get(n, getattr(found, n, None))] for n in SIMULATOR.cost_needs}
    again = SIMULATOR.costs(pa.RecordBatch.from_pydict(rows), listed)
    alone = {
        gpu: simulate(replace(PLAIN, requests=50, gpu=gpu)) for gpu in ("h100_sxm", "a100_sxm")
    }
    hours = (alone["h100_sxm"].cost_usd_per_hour or 0.0, alone["a100_sxm"].cost_usd_per_hour or 0.0)
    assert found.cost_usd_per_hour == pytest.approx(hours[0] + 3 * hours[1])
    assert again["cost_usd_per_hour"].tolist() == pytest.approx([found.cost_usd_per_hour])
    assert again["cost_usd_per_mtok"].tolist() == pytest.approx([found.cost_usd_per_mtok])


def test_ethernet_transfer_requires_a_bandwidth() -> None:
    with pytest.raises(UserError, match="kv_link_bytes_per_s"):
        simulate(replace(APART, pools=replace(APART.pools, kv_link="ethernet")))


def test_kv_link_bandwidth_is_the_minimum_of_both_ends() -> None:
    deployed = run_of(replace(APART, requests=2)).deployment
    one = deployed.pools[0].hardware.replica
    wide = replace(one, layout=replace(one.layout, tp=8))
    rdma = replace(APART, pools=replace(APART.pools, kv_link="rdma"))
    same, mixed = [(one, 1), (one, 1)], [(one, 1), (wide, 1)]
    assert link_of(rdma, mixed) == link_of(rdma, mixed[::-1]) == link_of(rdma, same)
    assert link_of(rdma, same).token_s > 5.0 * link_of(APART, same).token_s  # NVLink
    own = replace(rdma, pools=replace(rdma.pools, kv_link_bytes_per_s=2.0**30))
    assert link_of(own, same).token_s == 2 * 32 * 8 * 128 * 2 / 2.0**30
    ranks = replace(one, layout=replace(one.layout, attention_dp=8))
    assert link_of(own, [(ranks, 8), (ranks, 8)]) == link_of(own, same)


def test_memory_facts_describe_the_fuller_pool() -> None:
    point = replace(
        APART,
        model="llama3_1_70b",
        pools=replace(APART.pools, prefill_gpus=8, prefill_tp=8, decode_gpus=4, decode_tp=4),
        replicas=2,
    )
    both = describe(batch_of(ServingPoint, values_of(point))).to_pylist()[0]
    alone = describe(batch_of(ServingPoint, values_of(replace(PLAIN, model="llama3_1_70b", tp=4))))
    assert both["gpus"] == 24
    assert both["weight_bytes_per_gpu"] == alone.to_pylist()[0]["weight_bytes_per_gpu"]


def test_kv_transfer_time_is_part_of_ttft() -> None:
    free, near, far = (
        simulate(replace(APART, pools=replace(APART.pools, kv_link=link)))
        for link in ("infinite", "nvlink", "rdma")
    )
    assert free.kv_transfer_share == pytest.approx(0.0, abs=1e-12)
    assert near.kv_transfer_share is not None
    assert far.kv_transfer_share is not None
    assert 0.0 < near.kv_transfer_share < far.kv_transfer_share
    assert simulate(PLAIN).kv_transfer_share is None
    by_layer = simulate(
        replace(APART, pools=replace(APART.pools, kv_link="rdma", kv_transfer="by_layer"))
    )
    assert (by_layer.ttft_mean_s or 0.0) < (far.ttft_mean_s or 0.0)


def best_split(slo_ttft_s: float, slo_tpot_s: float) -> int:
    """Return the readers, of four GPUs, by which most requests meet both deadlines."""
    point = replace(
        PLAIN,
        qps=24.0,
        prompt_tokens=3000,
        output_tokens=200,
        lengths=replace(PLAIN.lengths, spread=0.5),
        requests=300,
        max_batch=256,
        chunk_size=8192,
        slo_ttft_s=slo_ttft_s,
        slo_tpot_s=slo_tpot_s,
    )
    goodput = {
        readers: simulate(
            replace(
                point, pools=replace(point.pools, prefill_gpus=readers, decode_gpus=4 - readers)
            )
        ).goodput_per_s
        or 0.0
        for readers in (1, 2, 3)
    }
    return max(goodput, key=lambda readers: goodput[readers])


def test_prefill_replicas_lower_ttft_and_decode_replicas_lower_tpot() -> None:
    readers = [best_split(slo_ttft_s, 1.0) for slo_ttft_s in (1.0, 0.5, 0.25)]
    assert readers == sorted(readers)
    assert readers[-1] > best_split(10.0, 0.012)
