"""Runs of VIDUR replayed event by event: batches, times and preempted requests.

The reference runs were made with the exact operator times of a table, so they test the scheduler
alone. Runs whose operator times are not in the table are compared by their means.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from lab.parity.vidur import layers_and_gqa, vidur_price, vidur_table
from lab.tables.rows import numbers, read_records, read_table, words
from simulators.core.jit import Floats
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import ReplicaLimits
from simulators.serving.engine.policies import load_router, load_scheduler
from simulators.serving.engine.service import EngineKernels, serve
from simulators.serving.engine.state import ReplicaState
from simulators.serving.prices.user_operator_times import OpTable, by_operator

OUTCOMES, REQUESTS, TABLES = (
    "serving/vidur_outcomes.parquet",
    "serving/vidur_requests.parquet",
    "serving/vidur_op_tables.parquet",
)
EXACT_S, CLOSE = 1e-5, 0.01
"""Times of requests agree to so many seconds; means of runs that cannot be exact, to this share."""

BY_MEANS = ("orca", "faster_transformer", "lightllm")
POLICIES = "lab.parity.vidur_policies"
SCHEDULERS, ROUTERS = {"vllm": POLICIES}, {"lor": POLICIES}
"""VIDUR's policies that differ from ours of the same name."""

TIMES = {
    "first_scheduled_s": at.SCHEDULED,
    "first_token_s": at.FIRST_TOKEN,
    "completed_s": at.COMPLETED,
    "stalled_s": at.STALLED,
}
Columns = Mapping[str, Floats]
"""Requests of the reference, by column."""


def replays(reference: Path) -> pl.DataFrame:
    """Return whether each reference run is reproduced, with its largest error.

    Raises:
        UserError: a model, a scheduler or a router is unknown, or an operator time is missing.
    """
    prices: dict[str, OpTable] = {}
    found = []
    for outcome in read_records(reference / OUTCOMES):
        name, key = outcome["config_id"], outcome["table_key"]
        if key not in prices:
            prices[key] = _op_table(read_table(reference / TABLES, table_key=key), outcome)
        rows = read_table(reference / REQUESTS, ("request_id",), config_id=name)
        theirs = numbers(
            rows.sort_by("request_id"), (*TIMES, "arrival_s", "prompt_tokens", "output_tokens")
        )
        state = _replayed(outcome, theirs, prices[key])
        found.append({"label": name, "predicted": _is_equal(outcome, theirs, state)})
    return pl.DataFrame(found)


def _op_table(rows: pa.Table, outcome: Mapping[str, Any]) -> OpTable:
    """Return the prices of one model, cut and GPU."""
    layers, grouped = layers_and_gqa(outcome["model"])
    a, b, ms = numbers(rows, ("a", "b", "ms")).values()
    times = by_operator(words(rows, "op"), a.astype(np.int64), b.astype(np.int64), ms)
    return vidur_table(times, layers=layers // outcome["pp"], grouped=grouped, tp=outcome["tp"])


def _replayed(outcome: Mapping[str, Any], theirs: Columns, prices: OpTable) -> ReplicaState:
    """Run one configuration of the reference."""
    scheduler = load_scheduler(SCHEDULERS.get(outcome["scheduler"], outcome["scheduler"]))
    router = ROUTERS.get(outcome["global_scheduler"], outcome["global_scheduler"])
    limits = ReplicaLimits(
        blocks=outcome["num_blocks_per_replica"],
        block_size=outcome["block_size"],
        watermark=0.01,
        max_num_seqs=outcome["batch_size_cap"],
        max_prefill_tokens=4096,
        token_budget=outcome["chunk_size"],
        max_model_len=outcome["max_request_tokens"],
        stages=outcome["pp"],
        reserves=scheduler.reserves,
    )
    prompt, output = (theirs[f"{n}_tokens"].astype(np.int64) for n in ("prompt", "output"))
    arrival_s = theirs["arrival_s"]
    return serve(
        EngineKernels(scheduler, load_router(router), vidur_price),
        limits,
        Requests(arrival_s, prompt, output, np.zeros((arrival_s.size, 2))),
        replicas=outcome["replicas"],
        shape=prices.shape,
        table=prices.table,
    )


def _is_equal(outcome: Mapping[str, Any], theirs: Columns, state: ReplicaState) -> bool:
    """Return whether all times and counts of a run are equal, or its means where they are not."""
    if outcome["scheduler"] in BY_MEANS:
        latency_s = state.times[:, [at.FIRST_TOKEN, at.COMPLETED]] - theirs["arrival_s"][:, None]
        means = np.array([outcome["ttft_s_mean"], outcome["e2e_s_mean"]])
        return bool(np.abs(latency_s.mean(axis=0) / means - 1.0).max() <= CLOSE)
    ours = (
        int(state.pool[:, at.ITERATIONS].sum()),
        int(state.pool[:, at.RECOMPUTE_PREEMPTIONS].sum()),
    )
    counts = int(outcome["num_iterations"]), int(outcome["restarts"])
    error_s = max(np.abs(state.times[:, i] - theirs[name]).max() for name, i in TIMES.items())
    return bool(error_s <= EXACT_S and ours == counts)
