"""Analytic fidelity against the event simulation and against queues with known results."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from simulators.core.columns import schema_of
from simulators.core.errors import UserError
from simulators.core.fields import updated, values_of
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.deployment import load_frontend
from simulators.serving.options import ClientConfig, SchedulingConfig
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import SIMULATOR, simulate
from simulators.serving.steady.design import Station
from simulators.serving.steady.queueing import queue_state_of

PLAIN = ServingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    fidelity="analytic",
    client=ClientConfig(frontend="none"),
    qps=None,
    max_batch=32,
    prompt_tokens=1024,
    output_tokens=256,
)
CHAT = replace(
    PLAIN, prompt_tokens=0, output_tokens=0, requests=2000, chunk_size=1024, max_batch=64
)


def batch_of(points: list[ServingPoint]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([values_of(p) for p in points], schema_of(ServingPoint))


def rows_of(points: list[ServingPoint]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = SIMULATOR.evaluate(batch_of(points)).to_pylist()
    return rows


def verdict(point: ServingPoint) -> str:
    (row,) = rows_of([point])
    return str(row["reason"]).split(":")[0]


def within(share: float, steady: float | None, event: float | None) -> bool:
    assert steady is not None
    assert event is not None
    return abs(steady / event - 1.0) <= share


SETTINGS = [
    ("llama3_1_8b", "h100_sxm", 1, 1),
    ("llama2_70b", "h100_sxm", 4, 1),
    ("llama2_70b", "a100_sxm", 4, 2),
]


@pytest.mark.parametrize("scheduler", ["vllm", "sarathi"])
@pytest.mark.parametrize(("model", "gpu", "tp", "pp"), SETTINGS)
def test_closed_loop_analytic_results_match_event_results(
    model: str, gpu: str, tp: int, pp: int, scheduler: str
) -> None:
    steady = replace(
        CHAT,
        model=model,
        gpu=gpu,
        tp=tp,
        pp=pp,
        scheduler=scheduler,
        arrivals=replace(CHAT.arrivals, process="closed", clients=48),
    )
    a, e = simulate(steady), simulate(replace(steady, fidelity="event"))
    assert within(0.1, a.requests_per_s, e.requests_per_s)
    assert within(0.1, a.tpot_mean_s, e.tpot_mean_s)
    assert within(0.1, a.energy_j_per_token, e.energy_j_per_token)
    assert within(0.1, a.utilization, e.utilization)


@pytest.mark.parametrize("scheduler", ["vllm", "sarathi"])
@pytest.mark.parametrize(("model", "gpu", "tp", "pp"), SETTINGS)
def test_open_loop_analytic_results_match_event_results(
    model: str, gpu: str, tp: int, pp: int, scheduler: str
) -> None:
    steady = replace(CHAT, model=model, gpu=gpu, tp=tp, pp=pp, scheduler=scheduler)
    rate = 0.6 * simulate(steady).requests_per_s
    a = simulate(replace(steady, qps=rate))
    e = simulate(replace(steady, qps=rate, fidelity="event"))
    assert not a.saturated
    assert within(0.1, a.tpot_mean_s, e.tpot_mean_s)
    assert within(0.25, a.ttft_mean_s, e.ttft_mean_s)
    assert within(0.1, a.energy_j_per_token, e.energy_j_per_token)


@pytest.mark.parametrize("scheduler", ["vllm", "sarathi"])
@pytest.mark.parametrize(
    "load", [{"arrivals.process": "closed", "arrivals.clients": 48}, {"qps": 6.0}]
)
def test_analytic_speculative_decoding_matches_event_results(
    scheduler: str, load: dict[str, Any]
) -> None:
    drafted = replace(
        updated(CHAT, load),
        requests=800,
        scheduler=scheduler,
        speculation=replace(CHAT.speculation, method="eagle3"),
    )
    a, e = simulate(drafted), simulate(replace(drafted, fidelity="event"))
    plain = simulate(replace(drafted, speculation=replace(drafted.speculation, num_draft_tokens=0)))
    assert a.kv_blocks == e.kv_blocks < plain.kv_blocks
    assert within(0.1, a.requests_per_s, e.requests_per_s)
    assert within(0.1, a.tpot_mean_s, e.tpot_mean_s)
    assert within(0.1, a.itl_mean_s, e.itl_mean_s)
    assert within(0.1, a.energy_j_per_token, e.energy_j_per_token)
    assert plain == simulate(
        replace(drafted, speculation=replace(drafted.speculation, method="nothing"))
    )


@pytest.mark.parametrize("scheduler", ["vllm", "sarathi"])
def test_fixed_lengths_match_saturated_event_throughput(scheduler: str) -> None:
    steady = replace(PLAIN, scheduler=scheduler)
    a = simulate(steady)
    e = simulate(replace(steady, fidelity="event", qps=1e3, requests=800))
    assert within(0.1, a.requests_per_s, e.requests_per_s)
    assert a.kv_blocks == e.kv_blocks
    assert a.cost_usd_per_mtok == pytest.approx(
        3.99 / 3600.0 / (a.requests_per_s * 256) * 1e6, rel=1e-9
    )


def test_rate_above_capacity_is_saturated_without_ttft() -> None:
    most = simulate(PLAIN).requests_per_s
    above, below = (simulate(replace(PLAIN, qps=most * f)) for f in (1.05, 0.95))
    assert above.saturated
    assert above.ttft_mean_s is None
    assert above.requests_per_s == pytest.approx(most)
    assert not below.saturated
    assert below.ttft_mean_s is not None
    assert below.requests_per_s == pytest.approx(0.95 * most)


def test_analytic_percentiles_are_null() -> None:
    metrics = simulate(PLAIN)
    known = {f.name for f in fields(ServingMetrics) if getattr(metrics, f.name) is not None}
    unknown = {f.name for f in fields(ServingMetrics)} - known
    spread = {n for n in known | unknown if re.search("(_(p50|p90|p95|p99|max)_s|_(lo|hi))$", n)}
    assert unknown - spread == {
        "goodput_per_s",
        "kv_use_max",
        "stalled_mean_s",
        "stalled_requests",
        "completed_requests",
        "rejected_requests",
        "iterations",
        "makespan_s",
        "prefill_mean_s",
        "tokens_per_s_per_user",
        "requests_in_system_mean",
        "preemptions_swap",
        "window_s",
        "measured_requests",
        "backlog_growth",
        "prefix_hit_ratio",
        "cached_tokens",
        "kv_fetched_tokens",
        "hbm_hit_ratio",
        "host_hit_ratio",
        "nvme_hit_ratio",
        "remote_hit_ratio",
        "kv_block_fill",
        "prompt_flops_saved",
        "kv_wait_mean_s",
        "kv_transfer_mean_s",
        "kv_transfer_share",
        "prefill_utilization",
        "decode_utilization",
        "pool_imbalance",
        "session_mean_s",
        "cost_usd_per_session",
        "computed_prompt_tokens_per_s",
        "prompt_tokens_per_s",
        "ttft_p50_long_s",
        "ttft_p50_medium_s",
        "ttft_p50_short_s",
    }
    assert spread
    assert not spread & known


def test_infeasible_rows_have_a_reason() -> None:
    assert verdict(replace(PLAIN, max_batch=4096)) == "kv_exceeds_hbm"
    assert verdict(replace(PLAIN, model="llama2_70b")) == "weights_exceed_hbm"
    assert verdict(replace(PLAIN, gpu="v100_sxm", dtype="fp8")) == "dtype_not_supported"
    assert verdict(replace(PLAIN, model="gpt2", tp=8)) == "tp_does_not_divide_heads"
    assert verdict(replace(PLAIN, pp=64, max_batch=64)) == "pp_exceeds_layers"
    assert verdict(replace(PLAIN, pp=8, max_batch=4)) == "batch_smaller_than_pipeline"
    assert verdict(replace(PLAIN, max_context=512)) == "no_request_fits"
    assert verdict(replace(PLAIN, scheduler="orca")) == "orca_needs_fidelity_event"
    short = SchedulingConfig(long_prefill_token_threshold=64)
    reason = "long_prefill_token_threshold_needs_fidelity_event"
    assert verdict(replace(PLAIN, scheduling=short)) == reason
    with pytest.raises(UserError, match="max_batch is 0"):
        rows_of([replace(PLAIN, max_batch=0)])
    with pytest.raises(UserError, match="fidelity"):
        rows_of([replace(PLAIN, fidelity="analytical")])


def test_gpu_without_a_price_has_no_cost() -> None:
    (row,) = rows_of([replace(PLAIN, gpu="mi250")])
    assert row["status"] == "ok"
    assert row["cost_usd_per_mtok"] is None
    (row,) = rows_of([replace(PLAIN, gpu="mi250", usd_per_gpu_hour=2.0)])
    assert row["cost_usd_per_mtok"] > 0.0


def many() -> list[ServingPoint]:
    """Points of all kinds: tables and single rows, open and closed, dead and alive."""
    points = [
        replace(PLAIN, model=model, gpu=gpu, tp=tp, pp=pp, max_batch=b, prompt_tokens=p)
        for model in ("mixtral_8x7b", "llama3_1_8b")
        for gpu in ("h100_sxm", "t4")
        for tp in (1, 4)
        for pp in (1, 2)
        for b in (1, 8, 64)
        for p in (128, 2048)
    ]
    points += [replace(p, scheduler="sarathi") for p in points[::5]]
    points += [replace(p, qps=0.7, prompt_tokens=0, output_tokens=0) for p in points[::7]]
    points += [
        replace(
            p,
            arrivals=replace(p.arrivals, process="closed", clients=20),
            client=replace(p.client, think_s=3.0),
        )
        for p in points[::9]
    ]
    points += [replace(p, fidelity="event", qps=1.0, requests=20) for p in points[::40]]
    return points


def test_row_is_bit_equal_alone_and_in_any_order() -> None:
    points = many()
    together = rows_of(points)
    assert {row["status"] for row in together} == {"ok", "infeasible"}
    order = np.random.default_rng(1).permutation(len(points))
    shuffled = rows_of([points[i] for i in order])
    assert [together[i] for i in order] == shuffled
    for i in order[:40]:
        assert rows_of([points[i]])[0] == together[i]


@settings(max_examples=30, deadline=None)
@given(
    clients=integers(1, 96),
    prompt=integers(1, 4000),
    output=integers(1, 2000),
    pp=sampled_from([1, 2, 4]),
    scheduler=sampled_from(["vllm", "sarathi"]),
)
def test_littles_law_holds_in_analytic_results(
    clients: int, prompt: int, output: int, pp: int, scheduler: str
) -> None:
    m = simulate(
        replace(
            PLAIN,
            arrivals=replace(PLAIN.arrivals, process="closed", clients=clients),
            prompt_tokens=prompt,
            output_tokens=output,
            pp=pp,
            scheduler=scheduler,
        )
    )
    assert m.e2e_mean_s is not None
    if output > 1:
        assert m.requests_per_s * m.e2e_mean_s == pytest.approx(clients, rel=1e-9)
    assert 0.0 < m.utilization <= 1.0 + 1e-9
    assert 0.0 < m.mfu < 1.0


@settings(max_examples=20, deadline=None)
@given(seats=integers(1, 63), scheduler=sampled_from(["vllm", "sarathi"]))
def test_larger_concurrency_raises_throughput_and_tpot(seats: int, scheduler: str) -> None:
    few = simulate(replace(PLAIN, scheduler=scheduler, max_batch=seats))
    more = simulate(replace(PLAIN, scheduler=scheduler, max_batch=2 * seats))
    assert more.requests_per_s > few.requests_per_s
    assert more.tpot_mean_s > few.tpot_mean_s  # type: ignore[operator]


def engine(rate: float, seats: float) -> Station:
    one = np.ones(1)
    return Station(
        stages=one,
        formed_ahead=0.0 * one,
        checked=one,
        decodes=one,
        max_batch_size=seats * one,
        chunked=np.zeros(1, bool),
        tokens=one,
        rate=rate * one,
        arrival_scv=one,
        clients=np.inf * one,
        think_s=0.0 * one,
        server_s=0.0 * one,
        stream_s=0.0 * one,
    )


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_constant_service_rate_is_an_m_m_1_queue(load: float) -> None:
    seats = np.arange(0.0, 401.0)[None, :]
    queue = queue_state_of(engine(load, 400.0), seats, np.minimum(seats, 1.0), 0.0 * seats)
    assert queue.running[0] == pytest.approx(load / (1.0 - load), rel=1e-6)
    assert queue.busy[0] == pytest.approx(load)


@pytest.mark.parametrize(("servers", "offered"), [(1, 0.5), (4, 3.0), (32, 28.0)])
def test_parallel_servers_are_an_erlang_c_queue(servers: int, offered: float) -> None:
    blocked = 1.0  # Erlang's B by its recursion, and C from it
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    waits = blocked / (1.0 - offered / servers * (1.0 - blocked))
    seats = np.arange(0.0, servers + 1.0)[None, :]
    queue = queue_state_of(engine(offered, float(servers)), seats, seats, 0.0 * seats)
    assert queue.running[0] == pytest.approx(offered, rel=1e-9)
    assert queue.waiting[0] == pytest.approx(waits * offered / (servers - offered), rel=1e-9)


def test_analytic_and_event_spaces_have_equal_facts() -> None:
    points = [PLAIN, replace(PLAIN, fidelity="event", qps=1.0)]
    first, second = SIMULATOR.describe(batch_of(points)).to_pylist()
    assert first == second


def test_analytic_latency_includes_the_frontend() -> None:
    """A seat that is always taken: the first token comes later by what the server adds."""
    changes = {"client.frontend": "auto", "runtime": "vllm"}
    behind, plain = simulate(updated(PLAIN, changes)), simulate(replace(PLAIN, runtime="vllm"))
    server = load_frontend("vllm")
    added_s = server.request_s + server.token_s * 1024 + server.stream_s * PLAIN.max_batch
    assert behind.ttft_mean_s - plain.ttft_mean_s == pytest.approx(added_s)
    assert behind.e2e_mean_s - plain.e2e_mean_s == pytest.approx(added_s)
    assert behind.tokens_per_s == plain.tokens_per_s


@pytest.mark.parametrize("cached", [False, True])
def test_analytic_system_prompt_matches_event_results(cached: bool) -> None:
    loaded = replace(
        PLAIN,
        scheduler="vllm_v1",
        chunk_size=2048,
        sessions=replace(PLAIN.sessions, system_prompt_tokens=2000),
        cache=replace(PLAIN.cache, prefix_caching=cached),
        qps=4.0,
        requests=1500,
    )
    means, events = simulate(loaded), simulate(replace(loaded, fidelity="event"))
    assert means.ttft_mean_s == pytest.approx(events.ttft_mean_s, rel=0.2)
    assert means.tpot_mean_s == pytest.approx(events.tpot_mean_s, rel=0.1)
    assert means.utilization == pytest.approx(events.utilization, rel=0.05)
