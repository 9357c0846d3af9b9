"""The serving simulator: points in; metrics or infeasibility reasons out."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from simulators.core.columns import schema_of
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.fields import updated, values_of
from simulators.serving.answer.explain import request_table
from simulators.serving.answer.window import steady_window
from simulators.serving.engine import replica as at
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of
from simulators.serving.simulator import SIMULATOR, simulate
from tests.contracts import check_simulator

BASE = ServingPoint(model="llama3_1_8b", gpu="h100_sxm", requests=60, qps=4.0)


RISING = ("p50", "p90", "p95", "p99", "max")


def point(**changes: object) -> ServingPoint:
    return updated(BASE, changes)


def batch(*points: ServingPoint) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [values_of(p) for p in points], schema=schema_of(ServingPoint)
    )


def test_serving_simulator_fulfils_the_contract() -> None:
    check_simulator(
        SIMULATOR,
        batch(
            point(),
            point(scheduler="sarathi", tp=2, pp=2, replicas=2),
            point(model="llama2_70b"),
            point(gpu="a100_sxm", router="power_of_two", replicas=3, seed=4),
            point(scheduler="lightllm"),
            point(
                **{"sessions.turns": 3, "client.think_s": 1.0},
            ),
            point(**{"cache.preemption": "swap"}, memory_fraction=0.235, qps=40.0),
            point(
                **{"measurement.warmup": 5},
                qps=40.0,
            ),
            point(
                **{"arrivals.process": "mmpp", "scheduling.mixed_step": "additive"},
                scheduler="vllm_v1",
            ),
            point(fidelity="analytic"),
            point(fidelity="analytic", **{"arrivals.process": "diurnal"}),
            point(tp=3),
            point(max_context=16),
        ),
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "llama2_70b"}, "weights_exceed_hbm"),
        ({"model": "llama2_70b", "tp": 2, "memory_fraction": 0.804}, "no_kv_memory"),
        ({"tp": 3}, "tp_does_not_divide_heads"),
        ({"scheduler": "lightllm"}, "lightllm_needs_block_size_1"),
        ({"max_context": 16}, "no_request_fits"),
        ({"gpu": "a100_sxm", "dtype": "fp8"}, "dtype_not_supported"),
        (
            {"gpu": "a100_sxm", "model": "gpt_oss_20b", "dtype": "bf16+w4a16", "runtime": "trtllm"},
            "no_attention_sinks",
        ),
        ({"pp": 2, "max_batch": 1}, "batch_smaller_than_pipeline"),
    ],
)
def test_infeasible_design_has_a_reason(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(Infeasible) as verdict:
        simulate(point(**changes))
    assert verdict.value.reason == reason


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"scheduler": "vlm"}, UnknownNameError, "did you mean 'vllm'"),
        ({"router": "robin"}, UnknownNameError, "Known: cache_aware, least_outstanding"),
        ({"model": "llama9"}, UnknownNameError, "unknown model"),
        ({"cache.preemption": "swop"}, UnknownNameError, "did you mean 'swap'"),
        ({"iteration_table": "none.csv"}, UserError, "No such file"),
        ({"scheduling.mixed_step": "add"}, UnknownNameError, "did you mean 'additive'"),
        ({"tp": 0}, UserError, "tp is 0"),
        ({"cache.watermark": 1.0}, UserError, "watermark is 1"),
        ({"memory_fraction": 1.2}, UserError, "memory_fraction is 1.2"),
        ({"kv_dtype": "fp17"}, UnknownNameError, "unknown kv_dtype"),
    ],
)
def test_invalid_serving_option_raises_a_user_error(
    changes: dict[str, object], error: type[UserError], message: str
) -> None:
    with pytest.raises(error, match=message):
        simulate(point(**changes))


def test_prompts_beyond_the_context_are_rejected_and_counted(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,9000,10\n2,100,10\n")
    metrics = simulate(point(workload=str(trace), requests=0, qps=None, max_context=8192))
    assert (metrics.completed_requests, metrics.rejected_requests) == (2, 1)


def test_light_load_meets_slos_and_overload_saturates() -> None:
    light, heavy = simulate(point(qps=0.5)), simulate(point(qps=500.0, requests=2000))
    assert not light.saturated
    assert light.goodput_per_s == light.requests_per_s
    assert heavy.saturated
    assert heavy.ttft_p99_s > 10 * light.ttft_p99_s


def test_more_replicas_lower_latency_at_constant_price_per_gpu_hour() -> None:
    one, four = simulate(point(qps=40.0)), simulate(point(qps=40.0, replicas=4))
    assert four.ttft_mean_s < one.ttft_mean_s
    assert four.tpot_mean_s < one.tpot_mean_s
    assert four.gpus == 4 * one.gpus
    hourly = [m.cost_usd_per_mtok * m.tokens_per_s / m.gpus for m in (one, four)]
    assert hourly[0] == pytest.approx(hourly[1])


def test_higher_memory_bandwidth_shortens_decodes() -> None:
    slow, fast = simulate(point()), simulate(point(bandwidth_scale=1.5))
    assert fast.tpot_mean_s < slow.tpot_mean_s
    assert fast.extrapolated_share > slow.extrapolated_share


def test_metrics_are_consistent() -> None:
    m = simulate(point(scheduler="sarathi", requests=300))
    for name in ("ttft", "tpot", "e2e", "queue", "itl"):
        rising = [getattr(m, f"{name}_{which}_s") for which in RISING]
        assert rising == sorted(rising)
        assert rising[0] <= rising[-1]
        assert getattr(m, f"{name}_mean_s") <= rising[-1]
    assert 0.0 < m.kv_use_mean < m.kv_use_max <= 1.0
    assert 0.0 < m.utilization <= 1.0 + 1e-12
    assert 0.0 < m.mfu < 1.0
    assert m.tokens_per_s_per_gpu == m.tokens_per_s / m.gpus
    whole = simulate(point(scheduler="sarathi", requests=300, **{"measurement.window": "whole"}))
    assert whole.requests_per_s == pytest.approx(300 / whole.makespan_s)
    assert whole.window_s == whole.makespan_s == m.makespan_s > m.window_s
    assert whole.ttft_p99_s == m.ttft_p99_s
    assert m.cost_usd_per_hour == 3.99 * m.gpus
    watts = m.energy_j_per_token * m.tokens_per_s / m.gpus
    assert 60.0 < watts < 700.0


def test_rates_of_the_steady_window_are_independent_of_run_length() -> None:
    """A short run of the same load is as dear by the token as a long one, but for chance."""
    runs = {
        n: simulate(point(qps=6.0, **{"arrivals.process": "even"}, requests=n)) for n in (400, 3200)
    }
    whole = simulate(
        point(qps=6.0, **{"arrivals.process": "even", "measurement.window": "whole"}, requests=400)
    )
    assert runs[400].requests_per_s == pytest.approx(6.0, rel=0.02)
    assert runs[3200].requests_per_s == pytest.approx(6.0, rel=0.01)
    assert whole.requests_per_s < 0.97 * 6.0
    assert runs[400].requests_in_system_mean == pytest.approx(
        runs[3200].requests_in_system_mean, rel=0.05
    )
    energy_j = [runs[n].energy_j_per_token for n in (400, 3200)]
    assert energy_j[0] == pytest.approx(energy_j[1], rel=0.05)
    assert runs[400].mean_batch == pytest.approx(runs[3200].mean_batch, rel=0.05)
    assert whole.mean_batch < 0.97 * runs[400].mean_batch
    assert runs[400].measured_requests == 400


def test_closed_loop_wave_rates_use_whole_waves() -> None:
    """Each asks half a second before it is said to be answered: the host was late to hand it on."""
    times = np.zeros((24, at.TIME_COLUMNS))
    wave = np.repeat(np.arange(6.0), 4)
    times[:, at.ARRIVAL], times[:, at.COMPLETED] = np.maximum(10 * wave - 0.5, 0), 10 * (wave + 1)
    window = steady_window(times, clients=4)
    assert window == (10.0, 50.0)
    assert np.count_nonzero(window.holds(times[:, at.COMPLETED])) == 16
    assert steady_window(times) == (10.5, 49.5)  # which holds three waves
    assert steady_window(times[:8], clients=4) is None


def test_percentiles_match_numpy_over_request_records() -> None:
    run = run_of(point(requests=300))
    table, m = request_table(run.state), run.metrics()
    arrival, first, end = (
        table[name].to_numpy() for name in ("arrival_s", "first_token_s", "completed_s")
    )
    for name, values in (("ttft", first - arrival), ("e2e", end - arrival)):
        assert getattr(m, f"{name}_p95_s") == pytest.approx(np.percentile(values, 95))
        assert getattr(m, f"{name}_max_s") == values.max()
    assert m.stalled_mean_s == pytest.approx(table["stalled_s"].to_numpy().mean())


def test_gpu_without_a_price_has_null_cost_unless_a_price_is_given(tmp_path: Path) -> None:
    from simulators.core.folder import GPUS

    sheet = tmp_path / "own_card.toml"
    sheet.write_text(
        GPUS.find("h100_sxm").read_text().replace('aliases = ["h100"', 'aliases = ["x"')
    )
    assert simulate(point(gpu=str(sheet))).cost_usd_per_mtok is None
    assert simulate(point(gpu=str(sheet), usd_per_gpu_hour=2.0)).cost_usd_per_mtok > 0.0


def test_separate_weight_reads_slow_only_mixed_batches() -> None:
    for scheduler, slower in (("sarathi", True), ("vllm", False)):
        batch_s, added_s = (
            simulate(point(scheduler=scheduler, **{"scheduling.mixed_step": how})).e2e_mean_s
            for how in ("batch", "additive")
        )
        assert (added_s > batch_s) is slower
        assert slower or added_s == batch_s


def test_swapped_requests_are_counted_separately() -> None:
    crowded = {"scheduler": "vllm", "memory_fraction": 0.235, "qps": 40.0, "requests": 200}
    again = simulate(point(**crowded))
    moved = simulate(point(**{"cache.preemption": "swap"}, **crowded))
    assert again.preemptions_recompute > 0
    assert (again.preemptions_swap, moved.preemptions_recompute) == (0, 0)
    assert moved.preemptions_swap > 0
    nowhere = simulate(point(**{"cache.preemption": "swap", "cache.swap_bytes": 0.0}, **crowded))
    assert nowhere == again


def test_peer_gpu_swap_is_faster_than_host_swap() -> None:
    def tokens_per_s(offload_to: str, **load: float) -> float:
        return simulate(
            point(**{"cache.preemption": "swap", "cache.offload_to": offload_to}, **load)
        ).tokens_per_s

    crowded = {"scheduler": "vllm", "memory_fraction": 0.235, "qps": 40.0, "requests": 200}
    assert tokens_per_s("peer", **crowded) > tokens_per_s("host", **crowded)
    assert tokens_per_s("peer", qps=1.0) == tokens_per_s("host", qps=1.0)


def test_measurement_window_excludes_the_first_requests() -> None:
    """Of clients that all ask at once, the first wave waits longest."""
    closed = {"arrivals.process": "closed", "arrivals.clients": 32, "requests": 400}
    whole, steady = (
        simulate(point(**closed)),
        simulate(point(**{"measurement.warmup": 64}, **closed)),
    )
    assert steady.ttft_max_s < whole.ttft_max_s
    assert steady.requests_per_s == pytest.approx(whole.requests_per_s, rel=0.2)
    assert steady.completed_requests == whole.completed_requests == 400
    with pytest.raises(Infeasible, match="window_too_small"):
        simulate(point(**{"measurement.warmup": 59}))


def test_disabled_effects_take_no_time() -> None:
    whole, less = (simulate(point(without=w)).tpot_mean_s for w in ("nothing", "launch+clocks"))
    assert less < whole
    with pytest.raises(UnknownNameError, match="did you mean 'clocks'"):
        simulate(point(without="clock"))


def test_facts_are_computed_per_row() -> None:
    facts = SIMULATOR.describe(batch(point(), point(model="llama2_70b", tp=4, pp=2, replicas=3)))
    assert facts["gpus"].to_pylist() == [1, 24]
    assert facts["model_parameters"].to_pylist() == [8030261248.0, 68976648192.0]
    weights = facts["weight_bytes_per_gpu"].to_pylist()
    assert weights[0] == pytest.approx(2 * 8030261248.0)
    assert weights[1] == pytest.approx(2 * 68976648192.0 / 8, rel=0.02)


def test_dependencies_list_every_file_of_a_point() -> None:
    named = {
        field: [file.name for file in SIMULATOR.reads(field, value)]
        for field, value in values_of(BASE).items()
    }
    assert named["scheduler"] == []  # what is shipped is part of the simulator's version
    assert named["workload"] == ["chat.toml"]
    assert named["prices"] == []  # costs follow from rows, in whatever list
    assert named["model"] == ["llama3_1_8b.toml"]
    assert {"h100_sxm.toml", "dgx_h100.toml"} <= set(named["gpu"])
    assert SIMULATOR.reads("workload", "/a/trace.csv") == (Path("/a/trace.csv"),)


def test_custom_scheduler_is_a_file(workplace: Path) -> None:
    folder = workplace / "catalog" / "schedulers"
    folder.mkdir(parents=True)
    schedulers = Path(__file__).parents[2] / "simulators" / "serving" / "schedulers"
    (folder / "mine.py").write_text((schedulers / "vllm.py").read_text())
    theirs, ours = simulate(point(scheduler="mine")), simulate(point(scheduler="vllm"))
    assert theirs == ours
    again = (
        "from simulators.serving.engine.limits import load_scheduler\n"
        "load_scheduler('mine').schedule.compiled"
    )
    subprocess.run([sys.executable, "-c", again], check=True)  # from what the first one compiled


def test_points_of_one_deployment_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that varies fastest would otherwise have every table built again and again."""
    points = [
        point(gpu=gpu, qps=qps) for qps in (1.0, 2.0, 3.0) for gpu in ("h100_sxm", "a100_sxm")
    ]
    met: list[str] = []
    module = importlib.import_module("simulators.serving.simulator")

    alone = module._simulated_alone

    def noted(one: ServingPoint, cache: object) -> object:
        met.append(one.gpu)
        return alone(one, cache)

    monkeypatch.setattr(module, "_simulated_alone", noted)
    rows = SIMULATOR.evaluate(batch(*points)).to_pylist()
    assert met == 3 * ["h100_sxm"] + 3 * ["a100_sxm"]
    assert [row["ttft_mean_s"] for row in rows] == [simulate(p).ttft_mean_s for p in points]


def test_cost_hints_grow_with_requests() -> None:
    hints = SIMULATOR.cost_hint_s(batch(point(requests=100), point(requests=200)))
    assert np.all(np.diff(hints) > 0)


def test_closed_loop_keeps_the_concurrency_in_the_system() -> None:
    metrics = simulate(
        point(**{"arrivals.process": "closed", "arrivals.clients": 16}, requests=400)
    )
    assert not metrics.saturated
    assert 12.0 < metrics.mean_batch <= 16.0
    inside = metrics.requests_per_s * metrics.e2e_mean_s
    assert inside == pytest.approx(metrics.requests_in_system_mean, rel=0.03)
    assert metrics.requests_in_system_mean == pytest.approx(16.0, rel=0.03)


def test_think_time_lowers_the_request_rate() -> None:
    busy, slow = (
        simulate(
            point(
                **{"arrivals.process": "closed", "arrivals.clients": 8, "client.think_s": think_s},
                requests=200,
            )
        )
        for think_s in (0.0, 5.0)
    )
    assert slow.requests_per_s < 0.6 * busy.requests_per_s
    assert slow.tpot_mean_s < busy.tpot_mean_s


def test_max_utilization_policy_runs_more_requests_and_preempts_some() -> None:
    crowded: dict[str, object] = {
        "qps": 60.0,
        "requests": 400,
        "prompt_tokens": 100,
        "output_tokens": 900,
        "lengths.spread": 0.9,
        "memory_fraction": 0.04,
        "chunk_size": 2048,
    }
    kept = simulate(point(scheduler="trtllm", **crowded))
    filled = simulate(point(scheduler="trtllm_max_utilization", **crowded))
    assert kept.preemptions_recompute == 0 < filled.preemptions_recompute
    assert filled.queue_mean_s is not None
    assert kept.queue_mean_s is not None
    assert filled.queue_mean_s < kept.queue_mean_s
    assert filled.tokens_per_s > kept.tokens_per_s


@pytest.mark.parametrize(
    ("scheduler", "runtime"),
    [
        ("vllm", "vllm"),
        ("vllm_v1", "vllm"),
        ("sglang", "sglang"),
        ("trtllm", "trtllm"),
        ("trtllm_max_utilization", "trtllm"),
        ("orca", "vllm"),
    ],
)
def test_default_runtime_follows_the_scheduler(scheduler: str, runtime: str) -> None:
    left = point(scheduler=scheduler, runtime="auto")
    said = point(scheduler=scheduler, runtime=runtime)
    assert left == said
    assert point(scheduler=scheduler, runtime="graphs").runtime == "graphs"
    words = [values_of(said) | {"runtime": word} for word in ("auto", runtime)]
    for fidelity in ("event", "analytic"):
        rows = [word | {"fidelity": fidelity} for word in words]
        table = pa.RecordBatch.from_pylist(rows, schema=schema_of(ServingPoint))
        one, other = SIMULATOR.evaluate(table).to_pylist()
        assert one == other
