"""Laws of the event loop for all requests and schedulers."""

from __future__ import annotations

import dataclasses
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.serving.answer.summary import kv_block_fill
from simulators.serving.demand.requests import Requests
from simulators.serving.engine.limits import ReplicaLimits
from simulators.serving.engine.replica import (
    ARRIVAL,
    BATCHED_TOKENS,
    BLOCK_SECONDS,
    BLOCKS,
    BUSY_S,
    COMPLETED,
    FIRST_TOKEN,
    FREE_BLOCKS,
    GAPS_S,
    IN_FLIGHT,
    ITERATIONS,
    LONGEST_GAP,
    MAX_USED_BLOCKS,
    NUM_COMPUTED,
    NUM_RECOMPUTES,
    NUM_RUNNING,
    NUM_SWAPPED,
    OUTPUT,
    PROMPT,
    RECOMPUTE_PREEMPTIONS,
    REPLICA,
    REQUEST_SECONDS,
    RUNNING,
    SCHEDULED,
    STALLED,
    SWAP_PREEMPTIONS,
    SWAPPED_BLOCKS,
    TOTAL_BLOCKS,
    WAITING,
)
from simulators.serving.engine.service import seen_by_clients
from tests.serving.cases import (
    ASKED_EACH_TIME,
    SCHEDULERS,
    asked,
    limits,
    pure_python,
    run,
)

schedulers = st.sampled_from(SCHEDULERS)


@st.composite
def workloads(draw: st.DrawFn, *, most: int = 40) -> Requests:
    """Return a few requests, some of them arriving together."""
    count = draw(st.integers(1, most))
    gaps = draw(
        st.lists(st.sampled_from([0.0, 1e-3, 0.02, 0.3, 3.0]), min_size=count, max_size=count)
    )
    lengths = st.lists(st.integers(1, 200), min_size=count, max_size=count)
    return asked(np.cumsum(gaps), np.array(draw(lengths)), np.array(draw(lengths)))


def tight(scheduler: str, **changes: object) -> ReplicaLimits:
    """Return limits under which the longest request just fits beside the watermark.

    What is taken back or given moves a block in a millisecond.
    """
    size = 1 if scheduler == "lightllm" else 16
    blocks = 420 if scheduler == "lightllm" else 30
    return limits(
        scheduler, blocks=blocks, block_size=size, max_model_len=400, move_s=1e-3, **changes
    )


hosts = st.sampled_from([0, 5, 1000])
stages_or_ranks = st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2), (1, 3)])
preemptions = st.one_of(
    hosts.map(lambda blocks: {"swap_capacity": blocks}),
    st.just({"swap_capacity": 0, "prefix_caching": True}),
    st.just({"swap_capacity": 0, "ignore_eos": True}),
)

drafts = st.sampled_from(
    [
        {},
        {"num_draft_tokens": 3, "acceptance": (0.7, 0.5, 0.1)},
        {"num_draft_tokens": 3, "acceptance": (1.0, 1.0, 1.0), "draft_max_running": (9, 3, 1)},
        {"num_draft_tokens": 12, "acceptance": (0.9, 0.6), "draft_max_running": (5, 5)},
        {"num_draft_tokens": 1, "acceptance": (0.8,)},
    ]
)
"""None, a chain, as many as the load allows, a tree, a single token."""


@settings(max_examples=200, deadline=None)
@given(
    workloads(),
    schedulers,
    stages_or_ranks,
    st.sampled_from([1, 3]),
    preemptions,
    drafts,
)
def test_blocks_never_leak_and_every_request_completes(
    requests: Requests,
    scheduler: str,
    layout: tuple[int, int],
    replicas: int,
    preempted: dict[str, int],
    drafted: dict[str, object],
) -> None:
    stages, ranks = layout
    stages = 1 if scheduler == "lightllm" or drafted else stages
    allowed = tight(scheduler, stages=stages, ranks=ranks, **preempted, **drafted)
    state = run(requests, scheduler, allowed=allowed, replicas=replicas)
    assert (state.pool[:, FREE_BLOCKS] == state.pool[:, TOTAL_BLOCKS]).all()
    assert (
        state.pool[:, [NUM_RUNNING, RUNNING, WAITING, IN_FLIGHT, NUM_SWAPPED, SWAPPED_BLOCKS]] == 0
    ).all()
    assert (state.pool[:, MAX_USED_BLOCKS] <= state.pool[:, TOTAL_BLOCKS]).all()
    assert (state.request[:, BLOCKS] == 0).all()
    times = state.times
    assert (times[:, COMPLETED] >= 0.0).all()
    lengths = state.request[:, [PROMPT, OUTPUT]].sum(axis=1)
    assert (state.request[:, NUM_COMPUTED] == lengths).all()
    assert (lengths == requests.prompt_tokens + requests.output_tokens).all()
    assert (times[:, ARRIVAL] <= times[:, SCHEDULED]).all()
    assert (times[:, SCHEDULED] < times[:, FIRST_TOKEN]).all()
    assert (times[:, FIRST_TOKEN] <= times[:, COMPLETED]).all()
    assert (state.request[:, REPLICA] >= 0).all()
    if preempted["swap_capacity"] == 0:
        assert state.pool[:, SWAP_PREEMPTIONS].sum() == 0


@settings(max_examples=100, deadline=None)
@given(workloads(), schedulers, st.sampled_from([1, 2]), hosts)
def test_littles_law_holds_in_every_run(
    requests: Requests, scheduler: str, replicas: int, host_blocks: int
) -> None:
    """The time integral of the requests inside is the sum of the times that each was inside."""
    allowed = tight(scheduler, swap_capacity=host_blocks)
    state = run(requests, scheduler, allowed=allowed, replicas=replicas)
    inside_s = (state.times[:, COMPLETED] - state.times[:, ARRIVAL]).sum()
    assert state.gauge[:, REQUEST_SECONDS].sum() == pytest.approx(inside_s, rel=1e-9, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(workloads(), schedulers)
def test_replica_is_busy_with_requests_in_the_system(requests: Requests, scheduler: str) -> None:
    state = run(requests, scheduler, allowed=tight(scheduler))
    inside_s, until = 0.0, 0.0
    for begin, end in state.times[:, [ARRIVAL, COMPLETED]]:
        inside_s += max(0.0, end - max(begin, until))
        until = max(until, end)
    assert state.gauge[0, BUSY_S] == pytest.approx(inside_s, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(workloads(), st.sampled_from([0.5, 0.9, 1.0]), st.sampled_from([1.0, 1.1, 3.0]))
def test_fcfs_latency_falls_with_speed_and_lower_rate(
    requests: Requests, price: float, gap: float
) -> None:
    """One at a time; batches of several know anomalies, as any list schedule does (Graham 1969)."""
    alone = limits(max_num_seqs=1)
    slow = run(requests, allowed=alone).times
    easy = dataclasses.replace(requests, arrival_s=requests.arrival_s * gap)
    prices = (0.01 * price, 1e-5 * price, 1e-7 * price)
    fast = run(easy, allowed=alone, prices=prices).times
    for end in (FIRST_TOKEN, COMPLETED):
        assert (fast[:, end] - fast[:, ARRIVAL] <= slow[:, end] - slow[:, ARRIVAL] + 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(workloads(), schedulers, st.sampled_from([1, 7, 200]))
def test_unused_memory_has_no_effect(requests: Requests, scheduler: str, more: int) -> None:
    size = 1 if scheduler == "lightllm" else 16
    enough = 40 * 400 // size + 200
    few, many = (
        run(
            requests,
            scheduler,
            allowed=limits(
                scheduler,
                blocks=blocks,
                block_size=size,
                max_model_len=400,
                watermark=0.0,
                max_num_seqs=40,
            ),
        )
        for blocks in (enough, enough + more)
    )
    assert np.array_equal(few.times, many.times)


@pytest.mark.parametrize("scheduler", ["vllm", "vllm_v1", "sarathi", "orca"])
@pytest.mark.parametrize("seed", range(3))
def test_mean_latency_falls_with_memory_speed_and_lower_rate(scheduler: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    count = 400
    arrival_s = np.cumsum(draw.exponential(0.06, count))
    requests = asked(arrival_s, draw.integers(1, 200, count), draw.integers(1, 200, count))

    def mean_s(requests: Requests, *, blocks: int = 90, price: float = 1.0) -> float:
        allowed = limits(scheduler, blocks=blocks, max_model_len=400)
        prices = (0.01 * price, 1e-5 * price, 1e-7 * price)
        times = run(requests, scheduler, allowed=allowed, prices=prices).times
        return float((times[:, COMPLETED] - times[:, ARRIVAL]).mean())

    usual_s = mean_s(requests)
    assert mean_s(requests, blocks=180) <= usual_s
    assert mean_s(requests, price=0.9) <= usual_s
    assert mean_s(dataclasses.replace(requests, arrival_s=1.2 * arrival_s)) <= usual_s


@settings(max_examples=60, deadline=None)
@given(workloads(), schedulers)
def test_every_token_is_computed_once_without_recompute(requests: Requests, scheduler: str) -> None:
    state = run(requests, scheduler)
    wanted = (requests.prompt_tokens + requests.output_tokens - 1).sum()
    assert state.pool[0, RECOMPUTE_PREEMPTIONS] == 0
    assert state.pool[0, BATCHED_TOKENS] == wanted
    assert state.gaps.sum() == (requests.output_tokens - 1).sum()
    assert state.gauge[0, GAPS_S] == pytest.approx(
        (state.times[:, COMPLETED] - state.times[:, FIRST_TOKEN]).sum(), abs=1e-9
    )


def crowd() -> Requests:
    """Return twenty requests at once, more than memory holds to their end."""
    return asked(np.zeros(20), np.full(20, 40), np.full(20, 100))


@pytest.mark.parametrize("scheduler", ["vllm", "vllm_v1", "sarathi"])
def test_swapped_tokens_are_not_recomputed(scheduler: str) -> None:
    requests = crowd()
    moved = run(requests, scheduler, allowed=tight(scheduler, swap_capacity=1000))
    again = run(requests, scheduler, allowed=tight(scheduler))
    wanted = (requests.prompt_tokens + requests.output_tokens - 1).sum()
    assert (moved.pool[0, RECOMPUTE_PREEMPTIONS], again.pool[0, SWAP_PREEMPTIONS]) == (0, 0)
    assert moved.pool[0, SWAP_PREEMPTIONS] > 0
    assert moved.pool[0, BATCHED_TOKENS] == wanted
    assert again.pool[0, BATCHED_TOKENS] > wanted


def test_three_stages_do_not_preempt_each_other_forever() -> None:
    """A stage without free blocks keeps its blocks while other stages are in flight."""
    requests = asked(np.zeros(3), np.array([178, 196, 161]), np.array([172, 186, 199]))
    allowed = tight("vllm_v1", stages=3, swap_capacity=5)
    with pure_python():  # in which a test that never ended would be stopped
        state = run(requests, "vllm_v1", allowed=allowed)
    assert (state.times[:, COMPLETED] > 0.0).all()


def test_block_swaps_take_time() -> None:
    """All blocks leave and return: two moves each, during which no iteration begins."""
    allowed = tight("vllm", swap_capacity=1000)
    runs = [
        run(crowd(), allowed=dataclasses.replace(allowed, move_s=move_s), log_rows=10_000)
        for move_s in (0.0, 1e-3)
    ]
    free, paid = (state.times[:, COMPLETED].max() for state in runs)
    assert runs[0].pool[0, SWAP_PREEMPTIONS] == runs[1].pool[0, SWAP_PREEMPTIONS]
    blocks = (paid - free) / 2e-3
    assert blocks == pytest.approx(round(blocks), abs=1e-6)
    assert blocks >= 3 * runs[0].pool[0, SWAP_PREEMPTIONS]


def test_small_host_cache_swaps_a_part() -> None:
    state = run(crowd(), allowed=tight("vllm", swap_capacity=6))
    assert state.pool[0, SWAP_PREEMPTIONS] > 0
    assert state.pool[0, RECOMPUTE_PREEMPTIONS] > 0


@settings(max_examples=80, deadline=None)
@given(
    workloads(),
    st.sampled_from(sorted(ASKED_EACH_TIME)),
    stages_or_ranks,
    st.sampled_from([1, 2, 10]),
    st.sampled_from(["round_robin", "least_outstanding"]),
    preemptions,
    drafts,
)
def test_batch_repetition_equals_scheduling_every_iteration(
    requests: Requests,
    scheduler: str,
    layout: tuple[int, int],
    patience: int,
    router: str,
    preempted: dict[str, int],
    drafts: dict[str, object],
) -> None:
    stages, ranks = layout
    stages = 1 if scheduler == "lightllm" else stages
    allowed = tight(
        scheduler, stages=stages, ranks=ranks, poll_interval=patience, **preempted, **drafts
    )
    lazy = run(requests, scheduler, allowed=allowed, router=router, replicas=2)
    eager = run(requests, ASKED_EACH_TIME[scheduler], allowed=allowed, router=router, replicas=2)
    exact = [ARRIVAL, SCHEDULED, FIRST_TOKEN, COMPLETED, LONGEST_GAP]
    assert np.array_equal(lazy.times[:, exact], eager.times[:, exact])
    assert np.array_equal(lazy.request, eager.request)
    assert np.array_equal(lazy.gaps, eager.gaps)
    counted = [ITERATIONS, BATCHED_TOKENS, RECOMPUTE_PREEMPTIONS, SWAP_PREEMPTIONS, MAX_USED_BLOCKS]
    assert np.array_equal(lazy.pool[:, counted], eager.pool[:, counted])
    assert np.allclose(lazy.times[:, STALLED], eager.times[:, STALLED], rtol=1e-9, atol=1e-12)
    assert np.allclose(lazy.gauge, eager.gauge, rtol=1e-9)


@pytest.mark.parametrize(
    ("stages", "patience", "gap_s"), [(2, 2, 1.0), (2, 10, 1.0), (4, 2, 0.4), (4, 10, 0.2)]
)
def test_polling_interval_counts_iterations_of_all_stages(
    stages: int, patience: int, gap_s: float
) -> None:
    draw = np.random.default_rng(1)
    requests = asked(
        np.cumsum(draw.exponential(gap_s, 200)),
        draw.integers(1, 200, 200),
        draw.integers(1, 200, 200),
    )
    allowed = tight("sglang", stages=stages, poll_interval=patience)
    lazy = run(requests, "sglang", allowed=allowed)
    eager = run(requests, ASKED_EACH_TIME["sglang"], allowed=allowed)
    assert np.array_equal(lazy.times[:, COMPLETED], eager.times[:, COMPLETED])


def test_polling_restarts_every_interval_while_memory_is_full() -> None:
    requests = asked(
        np.zeros(27), np.ones(27, int), np.array([1, 176, 1, 1, 1, 160, 1, 112] + [1] * 19)
    )
    allowed = tight("trtllm", poll_interval=10, prefix_caching=True)
    lazy = run(requests, "trtllm", allowed=allowed, replicas=2)
    eager = run(requests, ASKED_EACH_TIME["trtllm"], allowed=allowed, replicas=2)
    assert np.array_equal(lazy.times[:, COMPLETED], eager.times[:, COMPLETED])


def test_preemption_triggers_rescheduling_when_blocks_free_up() -> None:
    requests = asked(
        np.array([0.02, 0.02, 0.32, 0.321]),
        np.array([147, 1, 64, 98]),
        np.array([64, 30, 35, 33]),
    )
    allowed = tight("sarathi", swap_capacity=1000)
    lazy = run(requests, "sarathi", allowed=allowed)
    eager = run(requests, ASKED_EACH_TIME["sarathi"], allowed=allowed)
    assert lazy.pool[0, SWAP_PREEMPTIONS] > 0
    assert np.array_equal(lazy.times[:, COMPLETED], eager.times[:, COMPLETED])


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("host_blocks", [0, 40])
def test_compiled_loop_is_bit_equal_to_python(
    scheduler: str, stages: int, host_blocks: int
) -> None:
    stages = 1 if scheduler == "lightllm" else stages
    draw = np.random.default_rng(stages)
    requests = asked(
        np.cumsum(draw.exponential(0.05, 60)),
        draw.integers(1, 200, 60),
        draw.integers(1, 40, 60),
    )
    allowed = tight(scheduler, stages=stages, swap_capacity=host_blocks)
    settings = {"allowed": allowed, "replicas": 2, "router": "power_of_two"}
    compiled = run(requests, scheduler, **settings)
    with pure_python():
        python = run(requests, scheduler, **settings)
    for name in ("request", "times", "pool", "gauge", "gaps", "stages", "step"):
        assert np.array_equal(getattr(compiled, name), getattr(python, name)), name


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_optional_features_do_not_change_plain_runs(
    scheduler: str,
) -> None:
    draw = np.random.default_rng(3)
    requests = asked(
        np.cumsum(draw.exponential(0.05, 90)), draw.integers(1, 200, 90), draw.integers(1, 40, 90)
    )
    settings = {"allowed": tight(scheduler), "replicas": 2}
    plain = run(requests, scheduler, **settings)
    with mock.patch("simulators.serving.engine.service._has_optional_features", return_value=True):
        whole = run(requests, scheduler, **settings)
    for name in ("request", "times", "pool", "gauge", "gaps", "stages", "step"):
        assert np.array_equal(getattr(plain, name), getattr(whole, name)), name


def test_simultaneous_requests_share_a_batch() -> None:
    state = run(asked(np.zeros(3), np.full(3, 10), np.full(3, 5)))
    assert state.pool[0, ITERATIONS] == 5
    assert np.ptp(state.times[:, COMPLETED]) == 0.0


def test_single_request_takes_one_prefill_and_one_iteration_per_token() -> None:
    state = run(asked(np.array([2.0]), np.array([100]), np.array([4])), prices=(0.01, 0.001, 0.0))
    assert state.times[0, FIRST_TOKEN] == pytest.approx(2.0 + 0.01 + 0.1)
    assert state.times[0, COMPLETED] == pytest.approx(2.0 + 0.11 + 3 * 0.011)
    assert state.times[0, STALLED] == 0.0


def test_two_stages_run_two_batches_concurrently() -> None:
    requests = asked(np.zeros(2), np.full(2, 10), np.full(2, 1))
    allowed = limits(max_num_seqs=2, stages=2)
    state = run(requests, allowed=allowed, prices=(0.01, 0.0, 0.0))
    assert sorted(state.times[:, COMPLETED]) == pytest.approx([0.02, 0.03])


def test_chunked_prefill_keeps_decodes_running() -> None:
    requests = asked(np.array([0.0, 0.5]), np.array([10, 1000]), np.array([200, 1]))
    prices = (0.01, 0.0, 0.0)
    longest = {
        name: run(requests, name, prices=(0.01, 1e-4, 0.0)).times[0, LONGEST_GAP]
        for name in ("vllm", "sarathi")
    }
    assert longest["sarathi"] < 0.02 < 0.1 < longest["vllm"]
    assert run(requests, "sarathi", prices=prices).times[0, STALLED] == 0.0


@pytest.mark.parametrize(("overlap", "second_first_token_s"), [(False, 2.0), (True, 3.0)])
def test_overlap_scheduler_of_tensorrt_llm_forms_the_next_batch_ahead(
    overlap: bool, second_first_token_s: float
) -> None:
    """Iterations take a second; the second request comes while the first batch runs.

    Requests whose last token is in flight are not scheduled again: batches have 9 prompt tokens
    and 3 of one request, 9 and 2 of the other.
    """
    requests = asked(np.array([0.0, 0.5]), np.array([9, 9]), np.array([4, 3]))
    allowed = limits("trtllm", async_scheduling=overlap, poll_interval=1)
    state = run(requests, "trtllm", prices=(1.0, 0.0, 0.0), allowed=allowed)
    assert state.times[:, FIRST_TOKEN].tolist() == [1.0, second_first_token_s]
    assert state.times[:, COMPLETED].tolist() == [4.0, second_first_token_s + 2.0]
    assert state.pool[0, BATCHED_TOKENS] == 9 + 3 + 9 + 2


def test_tokens_reach_clients_later_by_the_streams_of_their_server() -> None:
    """Two requests run when the first tokens come, and each stream takes a quarter of a second."""
    requests = asked(np.zeros(2), np.array([9, 9]), np.array([4, 4]))
    streamed = dataclasses.replace(requests, stream_s=0.25)
    state = seen_by_clients(run(streamed, "trtllm", prices=(1.0, 0.0, 0.0)))
    assert state.times[:, FIRST_TOKEN].tolist() == [1.5, 1.5]
    assert state.times[:, COMPLETED].tolist() == [4.5, 4.5]


def test_preempted_request_recomputes_and_keeps_its_ttft() -> None:
    allowed = limits(blocks=14, watermark=0.0, max_model_len=300)
    state = run(asked(np.zeros(2), np.full(2, 100), np.full(2, 100)), allowed=allowed)
    assert state.pool[0, RECOMPUTE_PREEMPTIONS] > 0
    assert state.request[0, NUM_RECOMPUTES] == 0
    assert state.times[1, FIRST_TOKEN] == state.times[0, FIRST_TOKEN]
    assert state.times[1, COMPLETED] > state.times[0, COMPLETED]


@settings(max_examples=60, deadline=None)
@given(workloads(), st.integers(1, 4))
def test_more_memory_delays_a_request_by_at_most_one_iteration(
    requests: Requests, sets: int
) -> None:
    """Iterations begin at other moments then, and a request waits for the one under way."""
    iteration_s = 0.01
    ends = []
    for count in (sets, sets + 1):
        allowed = limits("orca", blocks=25 * count, max_model_len=400)
        ends.append(
            run(requests, "orca", allowed=allowed, prices=(iteration_s, 0.0, 0.0)).times[
                :, COMPLETED
            ]
        )
    assert (ends[1] <= ends[0] + iteration_s + 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(workloads(), st.sampled_from(["vllm", "sarathi"]))
def test_replica_is_never_idle_with_requests_in_the_system(
    requests: Requests, scheduler: str
) -> None:
    state = run(requests, scheduler, log_rows=20_000)
    rows = state.log[: state.pool[0, ITERATIONS]]
    pauses = np.flatnonzero(rows[1:, 1] > rows[:-1, 2])
    times = state.times
    for start, end in zip(rows[pauses, 2], rows[pauses + 1, 1], strict=True):
        inside = (times[:, ARRIVAL] < end) & (times[:, COMPLETED] > start)
        assert not inside.any()


@settings(max_examples=60, deadline=None)
@given(workloads())
def test_blocks_in_use_follow_littles_law(requests: Requests) -> None:
    requests = dataclasses.replace(requests, output_tokens=np.ones_like(requests.output_tokens))
    state = run(requests)
    held_s = state.times[:, COMPLETED] - state.times[:, SCHEDULED]
    blocks = -(-requests.prompt_tokens // 16)
    assert state.gauge[0, BLOCK_SECONDS] == pytest.approx((blocks * held_s).sum(), rel=1e-9)


def test_fill_of_blocks_follows_the_chunks_of_a_prompt() -> None:
    """Iterations of one second: three chunks, four decodes, whose slots are filled at their end."""
    requests = asked([0.0], [20], [5])
    state = run(
        requests, "vllm_v1", prices=(1.0, 0.0, 0.0), allowed=limits(block_size=1, token_budget=8)
    )
    filled, allocated = 8 + 16 + 20 + 20 + 21 + 22 + 23, 8 + 16 + 20 + 21 + 22 + 23 + 24
    assert kv_block_fill(state) == pytest.approx(filled / allocated, rel=1e-12)


def test_iterations_are_logged_in_scheduling_order() -> None:
    draw = np.random.default_rng(0)
    requests = asked(
        np.cumsum(draw.exponential(0.1, 50)), draw.integers(1, 99, 50), draw.integers(1, 99, 50)
    )
    state = run(requests, log_rows=100_000)
    rows = state.log[: state.pool[0, ITERATIONS]]
    assert (np.diff(rows[:, 1]) > 0).all()
    assert rows[:, 5].sum() == state.pool[0, BATCHED_TOKENS]
    assert (rows[:, 2] - rows[:, 1]).sum() == pytest.approx(state.gauge[0, BUSY_S])


def test_closed_loop_clients_send_after_each_response() -> None:
    """Four clients and a think time of a second; whoever is answered asks for the next request."""
    count, clients = 40, 4
    arrival = np.where(np.arange(count) < clients, 0.0, 1.0)
    requests = asked(arrival, np.full(count, 50), np.full(count, 20))
    requests = dataclasses.replace(requests, clients=clients)
    state = run(requests, replicas=2, router="least_outstanding")
    arrived, ended = np.sort(state.times[:, ARRIVAL]), np.sort(state.times[:, COMPLETED])
    assert np.allclose(arrived[clients:], ended[: count - clients] + 1.0)
    inside = [
        ((state.times[:, ARRIVAL] <= t) & (state.times[:, COMPLETED] > t)).sum() for t in arrived
    ]
    assert max(inside) <= clients


def test_routers_follow_their_policy() -> None:
    requests = asked(np.arange(600) * 1e-3, np.full(600, 50), np.full(600, 20))
    shares = {
        router: np.bincount(
            run(requests, replicas=4, router=router).request[:, REPLICA], minlength=4
        )
        for router in ("round_robin", "random", "least_outstanding", "power_of_two")
    }
    assert (shares["round_robin"] == 150).all()
    assert (abs(shares["least_outstanding"] - 150) < 15).all()
    assert np.ptp(shares["power_of_two"]) < np.ptp(shares["random"]) < 100
