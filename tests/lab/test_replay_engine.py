"""Workloads of engine replays, and the comparison of two records of one run."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from lab.claims.engine_oracle import STORED_RUNS, TIMES, differences, replay
from lab.parity.replay_engine import TICK_S, workloads
from simulators.serving.engine import replica as at

JOBS = workloads(seed=3)


def served(job: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, pl.Series]]:
    """Return a run, its requests and its iterations as a driver records them, served by us."""
    requests = job["requests"]
    state = replay({**job, "iterations": 20_000}, requests, "vllm")
    log = pl.DataFrame(state.log[: state.clock[at.LOG_ROWS]], schema=list(at.LOG_COLUMNS))
    times = {name: state.times[:, column] for name, column in TIMES.items()}
    counts = {
        "preemptions": state.request[:, at.NUM_RECOMPUTES],
        "cached_tokens": state.request[:, at.NUM_CACHED],
    }
    iterations = {name: log[ours] for name, ours in STORED_RUNS["compared"].items()}
    return {**job, "iterations": log.height}, {**requests, **times, **counts}, iterations


@pytest.mark.parametrize("name", JOBS)
def test_every_request_of_a_workload_is_served(name: str) -> None:
    asked = JOBS[name]["requests"]
    run, requests, iterations = served(JOBS[name])
    assert (requests["last_token_s"] >= requests["first_token_s"]).all()
    assert (requests["first_token_s"] > requests["scheduled_s"]).all()
    assert iterations["prefill_tokens"].sum() >= (asked["prompt_tokens"] > 0).sum()
    assert not any(differences(run, requests, iterations))


def test_workloads_stress_memory_and_the_prefix_cache() -> None:
    assert served(JOBS["memory pressure"])[1]["preemptions"].sum() > 0
    assert served(JOBS["conversations"])[1]["cached_tokens"].sum() > 0


def test_first_differing_iteration_is_named() -> None:
    run, requests, iterations = served(JOBS["chat"])
    tokens = iterations["tokens"].to_numpy().copy()
    tokens[7] += 1
    found = list(differences(run, requests, {**iterations, "tokens": pl.Series(tokens)}))
    assert found[0].startswith("iteration 7: tokens")


def test_arrivals_are_odd_ticks() -> None:
    ticks = JOBS["chat"]["requests"]["given_s"] / TICK_S
    assert (ticks == np.round(ticks)).all()
    assert (ticks % 2 == 1).all()
