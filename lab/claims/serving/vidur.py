"""Runs of VIDUR replayed event by event: who is batched with whom, when, and who is restarted.

The reference runs were made with the exact operator times of a table, so they test semantics alone.
Its Orca run used operator times that are not in the table, and is compared by its means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lab.parity.vidur import layers_and_gqa, vidur_price, vidur_table
from lab.tables.rows import numbers, read_table, words
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.serving.demand.arrivals import Requests
from simulators.serving.engine.policies import load_router, load_scheduler
from simulators.serving.engine.replica import (
    COMPLETED,
    FIRST_TOKEN,
    ITERATIONS,
    RESTARTED,
    SCHEDULED,
    STALLED,
)
from simulators.serving.engine.service import Engine, Limits, serve
from simulators.serving.engine.state import World
from simulators.serving.prices.operator_table import OpTable, by_operator

NEEDS = OUTCOMES, REQUESTS, TABLES = (
    "serving/vidur_outcomes.parquet",
    "serving/vidur_requests.parquet",
    "serving/vidur_op_tables.parquet",
)
EXACT_S, CLOSE = 1e-5, 0.01
"""Times of requests agree to so many seconds; means of runs that cannot be exact, to this share."""

BY_MEANS = ("orca", "faster_transformer", "lightllm")
ROUTERS = {"lor": "lor_vidur"}
"""The reference's routers whose names stand for something else here."""

TIMES = {
    "first_scheduled_s": SCHEDULED,
    "first_token_s": FIRST_TOKEN,
    "completed_s": COMPLETED,
    "stalled_s": STALLED,
}
SURVEY = {
    "7b_t8_vllm200": (0.1799, 55),
    "7b_t8_sarathi200": (0.1770, 0),
    "7b_t8_sarathi50": (0.1605, 0),
}
"""Mean E2E latency to four digits and stalled requests of the survey's workload, with the attention
times the reference set has."""


@dataclass(frozen=True)
class Replay:
    """A reference run and ours on the same requests and operator times."""

    outcome: Mapping[str, Any]
    theirs: Mapping[str, Floats]  # by column of the reference
    world: World

    def error_s(self) -> float:
        """Return the largest difference between any two times of a request."""
        ours = self.world.times
        errors = [np.abs(ours[:, i] - self.theirs[name]).max() for name, i in TIMES.items()]
        return float(max(errors))

    def mean_error(self) -> float:
        """Return the largest relative error of the mean TTFT and E2E latency."""
        arrival = self.theirs["arrival_s"]
        ttft = (self.world.times[:, FIRST_TOKEN] - arrival).mean()
        e2e = (self.world.times[:, COMPLETED] - arrival).mean()
        pairs = ((ttft, self.outcome["ttft_s_mean"]), (e2e, self.outcome["e2e_s_mean"]))
        return float(max(abs(ours / theirs - 1.0) for ours, theirs in pairs))

    @property
    def counts(self) -> tuple[int, int]:
        """Our iterations and restarts."""
        pool = self.world.pool
        return int(pool[:, ITERATIONS].sum()), int(pool[:, RESTARTED].sum())

    @property
    def their_counts(self) -> tuple[int, int]:
        """The reference's iterations and restarts."""
        return int(self.outcome["num_iterations"]), int(self.outcome["restarts"])


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield a check for each reference run, and for each row of the survey's table."""
    for replay in replays(reference):
        yield _run_check(replay)
        if (name := replay.outcome["config_id"]) in SURVEY:
            yield _survey_check(name, replay)


def replays(reference: Path) -> Iterator[Replay]:
    """Run every configuration of the reference.

    Raises:
        UserError: a model, a scheduler or a router is unknown, or an operator time is missing.
    """
    known: dict[str, OpTable] = {}
    for outcome in read_table(reference / OUTCOMES).to_pylist():
        key = outcome["table_key"]
        if key not in known:
            known[key] = _op_table(read_table(reference / TABLES, table_key=key), outcome)
        own = read_table(reference / REQUESTS, config_id=outcome["config_id"])
        yield _replay(outcome, own.sort_by("request_id"), known[key])


def _replay(outcome: Mapping[str, Any], rows: pa.Table, prices: OpTable) -> Replay:
    """Run one configuration of the reference."""
    scheduler = load_scheduler(outcome["scheduler"])
    router = ROUTERS.get(outcome["global_scheduler"], outcome["global_scheduler"])
    seats = outcome["batch_size_cap"]
    limits = Limits(
        blocks=outcome["num_blocks_per_replica"],
        block_size=outcome["block_size"],
        watermark=0.01,
        seats=seats,
        batch_tokens=4096,
        chunk=outcome["chunk_size"],
        most_tokens=outcome["max_request_tokens"],
        stages=outcome["pp"],
        reserves=scheduler.reserves,
        parity=True,
    )
    columns = numbers(rows, (*TIMES, "arrival_s"))
    asked = Requests(
        columns["arrival_s"],
        rows["prompt_tokens"].to_numpy().astype(np.int64),
        rows["output_tokens"].to_numpy().astype(np.int64),
        np.zeros((len(rows), 2)),
    )
    world = serve(
        Engine(scheduler, load_router(router), vidur_price),
        limits,
        asked,
        replicas=outcome["replicas"],
        shape=prices.shape,
        table=prices.table,
    )
    return Replay(outcome, columns, world)


def _op_table(rows: pa.Table, outcome: Mapping[str, Any]) -> OpTable:
    """Return the prices of one model, cut and GPU."""
    layers, grouped = layers_and_gqa(outcome["model"])
    a, b, ms = numbers(rows, ("a", "b", "ms")).values()
    times = by_operator(words(rows, "op"), a.astype(np.int64), b.astype(np.int64), ms)
    return vidur_table(times, layers=layers // outcome["pp"], grouped=grouped, tp=outcome["tp"])


def _run_check(replay: Replay) -> Check:
    ours, theirs = replay.counts, replay.their_counts
    exact = replay.outcome["scheduler"] not in BY_MEANS
    error, limit = (replay.error_s(), EXACT_S) if exact else (replay.mean_error(), CLOSE)
    return Check(
        name=f"vidur {replay.outcome['config_id']}",
        value=error,
        unit="s" if exact else "",
        limit=limit,
        ok=error <= limit and (ours == theirs or not exact),
        rows=len(replay.theirs["arrival_s"]),
        note=f"iterations {ours[0]} of {theirs[0]}, restarts {ours[1]} of {theirs[1]}",
    )


def _survey_check(name: str, replay: Replay) -> Check:
    expected_s, stalled = SURVEY[name]
    times = replay.world.times
    e2e_s = float((times[:, COMPLETED] - replay.theirs["arrival_s"]).mean())
    waited = int(np.count_nonzero(times[:, STALLED] > 0.0))
    return Check(
        name=f"survey {name} mean E2E",
        value=e2e_s,
        unit="s",
        limit=expected_s,
        ok=round(e2e_s, 4) == expected_s and waited == stalled,
        rows=len(times),
        note=f"stalled {waited} of {stalled}, restarts {replay.counts[1]}",
    )
