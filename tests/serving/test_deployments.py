"""Public deployments as points: schedulers, frontends and corrections from measured rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.tables.deployments import (
    FACTS,
    NVIDIA,
    NVIDIA_TRTLLM,
    RecipeLoad,
    client_of,
    excluded,
    recipe_of,
)
from planning.calibrate.deployment import calibrate_deployment
from planning.load_tests.serving import LOAD_TESTS, UNCORRECTED
from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import updated, values_of
from simulators.serving.deployment import NO_SERVER, Frontend, load_frontend, load_process
from simulators.serving.engine.replica import (
    ARRIVAL,
    LOG_COLUMNS,
    LOG_ROWS,
    RECOMPUTE_PREEMPTIONS,
    SCHEDULED,
)
from simulators.serving.measured.corrections import DeploymentLoad, corrected, load_of
from simulators.serving.measured.deployments import INFERENCEX, Deployed, EngineLaunch, point_of
from simulators.serving.options import ArrivalsConfig, CacheConfig, ClientConfig, LengthsConfig
from simulators.serving.point import ServingPoint
from simulators.serving.run import RunCache, run_of
from simulators.serving.simulator import SIMULATOR, simulate
from simulators.workload.llm.parallelism import Parallelism

BASE = ServingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    arrivals=ArrivalsConfig(process="closed", clients=24),
    requests=96,
    cache=CacheConfig(watermark=0.0),
    prompt_tokens=600,
    output_tokens=80,
    lengths=LengthsConfig(spread=0.2),
    chunk_size=1024,
    max_batch=64,
    runtime="vllm",
    client=ClientConfig(frontend="none"),
)


def a_row(**changes: Any) -> dict[str, Any]:
    row = {
        "model": "meta-llama/Llama-3.1-70B",
        "gpu": "h100_sxm",
        "precision": "fp8",
        "framework": "vllm",
        "measured_date": "2025-10-29",
        "suspect_parallelism": False,
        "is_drafting": False,
        "concurrency": 16,
        "tp_size": 4,
        "attention_dp_size": 1,
        "moe_ep_size": 1,
        "ttft_ms": 100.0,
    }
    return row | changes


def a_deployment(**changes: Any) -> Deployed:
    fields: dict[str, Any] = {
        "framework": "trtllm",
        "model": "llama3_1_70b",
        "gpu": "h100_sxm",
        "layout": Parallelism(tp=4),
        "dtype": "fp8",
        "kv_dtype": "fp8",
        "clients": 16,
        "prompt": 1024,
        "output": 1024,
        "ttft_s": 0.1,
        "tpot_s": 0.01,
    }
    return Deployed(**(fields | changes))


def a_load(**changes: Any) -> DeploymentLoad:
    return load_of(a_deployment(**changes))


def test_rows_are_excluded_by_what_a_source_says_and_never_by_a_prediction() -> None:
    assert excluded(a_row()) == ""
    assert excluded(a_row(ttft_ms=1e6)) == ""
    assert excluded(a_row(suspect_parallelism=True)) == ""
    assert excluded(a_row(is_drafting=True)) == "speculation"
    assert excluded(a_row(gpu="gb200")) == ""
    assert excluded(a_row(gpu="gb200", measured_date="2025-11-17")) == "prefill and decode pools"
    assert all(rule["source"] for rule in FACTS.excluded)


def test_deployment_is_a_point_of_the_serving_simulator() -> None:
    point = point_of(a_deployment(prompt=8192))
    assert point.scheduler == "trtllm"
    assert point.runtime == "trtllm"
    assert point.chunk_size == 8192 + 256
    assert point.requests == 160


def test_one_client_above_max_num_seqs_waits() -> None:
    alone = simulate(replace(BASE, max_batch=24))
    crowded = simulate(replace(BASE, max_batch=24, arrivals=replace(BASE.arrivals, clients=25)))
    assert alone.ttft_mean_s is not None
    assert crowded.ttft_mean_s is not None
    assert crowded.ttft_mean_s > alone.ttft_mean_s + 0.01


def test_sglang_never_mixes_prompts_with_decodes() -> None:
    state = run_of(replace(BASE, scheduler="sglang"), log_rows=4000).state
    log = dict(zip(LOG_COLUMNS, state.log[: int(state.clock[LOG_ROWS])].T, strict=True))
    with_prompts = log["prompt_tokens"] > 0
    assert with_prompts.any()
    assert (log["tokens"][with_prompts] == log["prompt_tokens"][with_prompts]).all()


def test_vllm_and_trtllm_mix_prefills_with_decodes() -> None:
    for scheduler in ("vllm_v1", "trtllm"):
        state = run_of(replace(BASE, scheduler=scheduler), log_rows=4000).state
        log = dict(zip(LOG_COLUMNS, state.log[: int(state.clock[LOG_ROWS])].T, strict=True))
        mixed = (log["prompt_tokens"] > 0) & (log["tokens"] > log["prompt_tokens"])
        assert mixed.any()


def test_rare_request_polling_batches_prefills() -> None:
    batches: list[int] = []
    waits: list[float] = []
    for interval in (1, 10, 30):
        run = run_of(
            replace(
                BASE,
                scheduler="sglang",
                scheduling=replace(BASE.scheduling, poll_interval=interval),
            ),
            log_rows=8000,
        )
        log = dict(zip(LOG_COLUMNS, run.state.log[: int(run.state.clock[LOG_ROWS])].T, strict=True))
        batches.append(int((log["prompt_tokens"] > 0).sum()))
        waits.append(run.metrics().ttft_mean_s or 0.0)
    assert batches == sorted(batches, reverse=True)
    assert len(set(batches)) == 3
    assert waits == sorted(waits)


def test_engines_polling_every_iteration_have_no_polling_interval() -> None:
    with pytest.raises(Infeasible, match="vllm_v1_has_no_poll_interval"):
        run_of(
            replace(
                BASE, scheduling=replace(BASE.scheduling, poll_interval=10), scheduler="vllm_v1"
            )
        )


def a_launch(row: tuple[str, str, str, str], date: str | None, **load: Any) -> EngineLaunch:
    """Return how the script of a row's engine, model, GPU and precision starts it."""
    recipe = recipe_of(*row, date)
    assert recipe is not None
    usual = {"prompt": 1024, "output": 1024, "clients": 16, "tp": 4, "attention_dp": False}
    return recipe.launch(RecipeLoad(**(usual | load)))


def test_recipes_poll_less_often_with_many_clients() -> None:
    row = ("sglang", "deepseek_v3", "b200_sxm", "fp4")
    few, many = (a_launch(row, None, clients=n).poll_interval for n in (8, 16))
    assert 1 < few < many
    assert point_of(a_deployment(framework="vllm")).scheduling.poll_interval == 0


def test_recipe_follows_date_and_load_of_a_row() -> None:
    row = ("trtllm", "deepseek_v3", "b200_sxm", "fp8")
    assert a_launch(row, "2025-11-02").budget == 1152
    assert a_launch(row, "2026-01-29").budget == 8192
    assert a_launch(row, "2026-01-29", clients=64).poll_interval == 40
    row = ("trtllm", "llama3_1_70b", "b200_sxm", "fp4")
    assert a_launch(row, None).poll_interval == 20
    assert a_launch(row, None, tp=8).poll_interval == 0
    assert a_launch(row, None, output=8192).poll_interval == 0
    row = ("vllm", "minimax_m2_5", "b200_sxm", "fp8")
    assert a_launch(row, "2026-03-11").budget == 8192
    assert a_launch(row, "2026-04-22").budget == 2048
    assert recipe_of("vllm", "minimax_m2_5", "mi300x", "fp8", None) is None


def test_a_recipe_may_choose_kernels_by_a_runtime() -> None:
    older, newer = (
        recipe_of("vllm", "gpt_oss_120b", "h100_sxm", "fp4", d) for d in ("", "2026-03")
    )
    assert older is not None
    assert newer is not None
    assert (older.runtime, newer.runtime) == ("", "vllm_marlin")


def test_engines_without_a_recipe_use_documented_defaults() -> None:
    assert a_deployment(framework="sglang").budget == 8192
    assert a_deployment(framework="sglang", gpu="b200_sxm").budget == 16384
    assert a_deployment(launch=EngineLaunch(budget=4096)).budget == 4096
    assert a_deployment(client=NVIDIA_TRTLLM).budget == 1024 + 256

    def memory_fraction(**changes: Any) -> float:
        return point_of(a_deployment(**changes)).memory_fraction

    shares = [memory_fraction(framework="sglang", gpu=gpu) for gpu in ("h100_sxm", "b200_sxm")]
    assert shares == pytest.approx([0.86, 0.82], abs=0.02)
    assert memory_fraction(framework="vllm") == 0.9
    assert memory_fraction(framework="sglang", launch=EngineLaunch(memory_fraction=0.8)) == 0.8
    stated = a_deployment(framework="vllm", client=NVIDIA)
    assert stated.budget == stated.clients + 1024 + 1500


def test_prefill_batching_delay_is_bounded() -> None:
    """With few clients nothing fills the tokens, so each prompt waits about as long as it may."""
    few = replace(
        BASE,
        scheduler="trtllm",
        arrivals=replace(BASE.arrivals, clients=4),
        chunk_size=8192,
        output_tokens=400,
    )
    at_once, waiting = (
        simulate(replace(few, scheduling=replace(few.scheduling, poll_interval=n))) for n in (0, 20)
    )
    assert at_once.ttft_mean_s is not None
    assert waiting.ttft_mean_s is not None
    assert at_once.tpot_mean_s is not None
    later = (waiting.ttft_mean_s - at_once.ttft_mean_s) / at_once.tpot_mean_s
    assert 10.0 < later < 21.0
    filled = replace(few, chunk_size=512, scheduling=replace(few.scheduling, poll_interval=20))
    soon = simulate(filled)
    assert soon.ttft_mean_s is not None
    assert soon.ttft_mean_s < waiting.ttft_mean_s


def test_frontend_processes_prompts_sequentially() -> None:
    """The first clients ask at once: each waits for the prompts of those before it."""
    served = RunCache(server=lambda _: Frontend(token_s=1e-3))
    point = replace(
        BASE,
        client=replace(BASE.client, frontend="auto"),
        arrivals=replace(BASE.arrivals, clients=4),
        requests=4,
        lengths=replace(BASE.lengths, spread=0.0),
    )
    times = run_of(point, cache=served).state.times
    alone = run_of(
        replace(point, arrivals=replace(point.arrivals, clients=1), requests=1), cache=served
    ).state.times
    assert times[:, ARRIVAL].tolist() == [0.0] * 4
    waits = times[:, SCHEDULED] - alone[0, SCHEDULED]
    assert waits == pytest.approx([0.0, 0.6, 1.2, 1.8], abs=0.05)


@pytest.mark.parametrize("scheduler", ["sglang", "trtllm", "vllm_v1"])
def test_all_requests_complete_under_memory_pressure(scheduler: str) -> None:
    tight = replace(BASE, scheduler=scheduler, memory_fraction=0.24, output_tokens=900)
    run = run_of(tight)
    assert run.metrics().completed_requests == 96
    if scheduler == "trtllm":
        assert run.state.pool[:, RECOMPUTE_PREEMPTIONS].sum() == 0


def widths_of_waves(scheduler: str, spread: float) -> Any:
    """Return how long each of twelve waves takes to end, over the time between waves."""
    clients = 16
    point = replace(
        BASE,
        scheduler=scheduler,
        arrivals=replace(BASE.arrivals, clients=clients),
        requests=12 * clients,
        prompt_tokens=1024,
        output_tokens=256,
        lengths=replace(BASE.lengths, spread=spread),
        chunk_size=8192,
    )
    ends = SIMULATOR.records(values_of(point))["requests"]["completed_s"].to_numpy()
    waves = np.sort(ends).reshape(-1, clients)
    return np.ptp(waves, axis=1) / np.diff(waves[:, -1]).mean()


def test_fixed_lengths_keep_closed_loop_waves_with_prefill_priority() -> None:
    assert (widths_of_waves("sglang", 0.0)[:10] < 0.01).all()


@pytest.mark.parametrize("scheduler", ["sglang", "trtllm", "vllm_v1"])
def test_random_lengths_dissolve_waves_within_three_rounds(scheduler: str) -> None:
    assert (widths_of_waves(scheduler, 0.2)[2:10] > 0.4).all()


def test_arrival_process_follows_the_benchmark_client() -> None:
    nvidia, other = "source_file=data/h100_sxm/x.csv", "source_file=2026-04-06.csv"
    assert client_of(nvidia, "sglang") is client_of(nvidia, "vllm") is NVIDIA
    assert client_of(nvidia, "trtllm") is NVIDIA_TRTLLM
    assert client_of(other, "trtllm") is client_of(other, "sglang") is INFERENCEX
    fixed, drawn = (a_deployment(framework="vllm", client=c) for c in (NVIDIA, INFERENCEX))
    assert (NVIDIA.mean_length, INFERENCEX.mean_length) == (1.0, 0.9)
    assert (point_of(fixed).lengths.spread, point_of(drawn).lengths.spread) == (0.0, 0.2)
    assert point_of(fixed).chunk_size < point_of(drawn).chunk_size


def test_frontend_delay_affects_only_ttft() -> None:
    bare, served = simulate(BASE), simulate(updated(BASE, {"client.frontend": "auto"}))
    server = load_frontend("vllm")
    assert bare.ttft_mean_s is not None
    assert served.ttft_mean_s is not None
    assert served.tpot_mean_s == pytest.approx(bare.tpot_mean_s, rel=0.05)
    iteration_s = float(served.tpot_mean_s or 0)
    delay_s = server.request_s + server.token_s * 540 + server.stream_s * 24
    # A request that comes later than the end of an iteration also waits for the next one.
    added_s = served.ttft_mean_s - bare.ttft_mean_s
    assert 0.7 * delay_s < added_s < 1.3 * delay_s + 2.0 * iteration_s


def test_runtime_without_a_framework_has_no_frontend() -> None:
    assert load_frontend("graphs").request_s == 0.0


def test_separate_engine_process_adds_receive_latency() -> None:
    point = replace(
        BASE,
        runtime="trtllm_session",
        scheduler="trtllm",
        arrivals=replace(BASE.arrivals, process="even"),
        qps=0.1,
        requests=8,
    )
    at_once, handed_over = simulate(point, RunCache(process=lambda _: NO_SERVER)), simulate(point)
    assert at_once.ttft_mean_s is not None
    assert handed_over.ttft_mean_s is not None
    added_s = handed_over.ttft_mean_s - at_once.ttft_mean_s
    assert added_s == pytest.approx(load_process("trtllm_session").request_s)
    assert load_process("vllm") == load_process("graphs") == NO_SERVER


def test_unknown_frontend_is_refused() -> None:
    with pytest.raises(UserError, match="frontend"):
        simulate(replace(BASE, client=replace(BASE.client, frontend="nginx")))


def test_benchmark_lengths_are_uniform_below_the_stated_ones() -> None:
    asked = run_of(replace(BASE, requests=960)).asked
    assert asked.prompt_tokens.max() <= 600
    assert asked.prompt_tokens.min() >= 480
    assert asked.prompt_tokens.mean() == pytest.approx(540, rel=0.02)


def test_residual_correction_falls_with_distance() -> None:
    known = [(a_load(clients=n), 1.3) for n in (4, 16, 64)]
    near, far = corrected(known, [a_load(clients=16), a_load(clients=4096, prompt=128)], "TPOT")
    assert near == pytest.approx(1.3, rel=0.03)
    assert 1.05 < far < near
    assert np.all(corrected([(a_load(), 1.0)], [a_load(clients=8)], "TTFT") == 1.0)


def test_stalled_row_has_bounded_influence() -> None:
    usual = [(a_load(clients=n), 1.1) for n in (4, 16)]
    far, stalled = (
        corrected([*usual, (a_load(clients=256), ratio)], [a_load(clients=64)], "TTFT")
        for ratio in (4.0, 30.0)
    )
    assert stalled == pytest.approx(far, rel=0.05)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingPoint]:
    """Return a point under a runtime of measured rows, all slower at 64 clients than at 4."""
    folder = tmp_path_factory.mktemp("own")
    text = "model,gpu,framework,dtype,kv_dtype,clients,prompt_tokens,output_tokens,tpot_s,ttft_s\n"
    for clients, slower, later in ((4, 1.1, 1.5), (64, 1.4, 2.0)):
        row = a_deployment(
            framework="vllm",
            model="llama3_1_8b",
            layout=Parallelism(),
            clients=clients,
            prompt=600,
            output=80,
        )
        found = simulate(point_of(row))
        assert found.tpot_mean_s is not None
        assert found.ttft_mean_s is not None
        text += f"llama3_1_8b,h100_sxm,vllm,fp8,fp8,{clients},600,80,"
        text += f"{slower * found.tpot_mean_s},{later * found.ttft_mean_s}\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("mine.csv").write_text(text)
        calibrate_deployment("mine", Path("mine.csv"))
        yield point_of(row, "mine")


def test_user_measurements_correct_similar_loads(mine: ServingPoint) -> None:
    for clients, slower, later in ((4, 1.1, 1.5), (64, 1.4, 2.0)):
        here = replace(
            mine, arrivals=replace(mine.arrivals, clients=clients), requests=10 * clients
        )
        own, usual = simulate(here), simulate(replace(here, runtime="vllm"))
        assert own.tpot_mean_s == pytest.approx(slower * (usual.tpot_mean_s or 0.0), rel=0.05)
        assert own.ttft_mean_s == pytest.approx(later * (usual.ttft_mean_s or 0.0), rel=0.1)
        assert (own.tpot_mean_s_lo or 0.0) < (own.tpot_mean_s or 0.0)
        answered = clients / own.requests_per_s / (own.e2e_mean_s or 1.0)
        expected = clients / usual.requests_per_s / (usual.e2e_mean_s or 1.0)
        assert answered == pytest.approx(expected, rel=0.05)


def test_correction_uses_clients_per_replica(mine: ServingPoint) -> None:
    one = replace(mine, arrivals=replace(mine.arrivals, clients=4), requests=40)
    two = replace(one, replicas=2, arrivals=replace(one.arrivals, clients=8), requests=80)
    factors = [
        (simulate(point).tpot_mean_s or 0.0) / (run_of(point).metrics().tpot_mean_s or 1.0)
        for point in (one, two)
    ]
    assert factors[0] == pytest.approx(factors[1], rel=1e-12)


def test_bf16_and_fp16_are_one_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wide.csv").write_text(
        "model,gpu,framework,clients,prompt_tokens,output_tokens,tpot_s\n"
        "llama3_1_8b,h100_sxm,vllm,4,600,80,0.02\n"
    )
    calibrate_deployment("wide", Path("wide.csv"))
    base = replace(
        BASE,
        scheduler="vllm_v1",
        runtime="wide",
        arrivals=replace(BASE.arrivals, clients=4),
        requests=40,
    )
    for dtype in ("fp16", "bf16"):
        point = replace(base, dtype=dtype, kv_dtype=dtype)
        assert simulate(point).tpot_mean_s != run_of(point).metrics().tpot_mean_s


def test_measured_rows_correct_only_closed_loops_of_the_family(mine: ServingPoint) -> None:
    for other in (
        replace(mine, gpu="b200_sxm"),
        replace(mine, arrivals=replace(mine.arrivals, process="poisson"), qps=20.0),
    ):
        plain = run_of(other).metrics()
        assert simulate(other).tpot_p50_s == plain.tpot_p50_s
    assert simulate(mine).tpot_p50_s != run_of(mine).metrics().tpot_p50_s


def test_report_states_that_no_correction_applies(mine: ServingPoint) -> None:
    here, usual = (values_of(replace(mine, runtime=runtime)) for runtime in (mine.runtime, "vllm"))
    assert LOAD_TESTS.report(here).endswith(UNCORRECTED)
    assert UNCORRECTED not in LOAD_TESTS.report(usual)
