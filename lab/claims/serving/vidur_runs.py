"""Runs of VIDUR are replayed event by event; drawn lengths are held against traces nobody fitted.

The reference runs were made with the exact operator times in `serving/vidur_op_tables.parquet`, so
they test semantics: who is batched with whom, when, and who is restarted. Its Orca run used
operator times that are not in the tables, and is compared by its means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lab.claims.serving.deployments import deployment_checks
from lab.claims.serving.iteration_tables import table_checks
from lab.claims.serving.offline import offline_checks
from lab.claims.serving.online import online_checks
from lab.claims.serving.vllm_runs import measured_checks
from lab.fits.request_lengths import TRACES, held_out, held_out_error
from lab.parity.vidur import peer_checks
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.serving.demand.requests import Requests
from simulators.serving.demand.traces import load_trace
from simulators.serving.demand.workloads import load_workload
from simulators.serving.engine.limits import Limits
from simulators.serving.engine.policies import load_router, load_scheduler
from simulators.serving.engine.replica import (
    COMPLETED,
    FIRST_TOKEN,
    ITERATIONS,
    RESTARTED,
    SCHEDULED,
    STALLED,
)
from simulators.serving.engine.service import Engine, serve
from simulators.serving.engine.state import State
from simulators.serving.prices.operator_table import (
    OpTable,
    by_operator,
    layers_and_gqa,
    op_price,
    op_table,
)

OUTCOMES, REQUESTS, TABLES = (
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

DECILE_ERROR = 0.06
"""The raw rows that were fitted to differ by 4 to 5 % from those held out."""


@dataclass(frozen=True)
class Replay:
    """A reference run and ours on the same requests and operator times."""

    outcome: Mapping[str, Any]
    theirs: Mapping[str, Floats]  # by column of the reference
    state: State

    def error_s(self) -> float:
        """Return the largest difference between any two times of a request."""
        ours = self.state.times
        errors = [np.abs(ours[:, i] - self.theirs[name]).max() for name, i in TIMES.items()]
        return float(max(errors))

    def mean_error(self) -> float:
        """Return the largest relative error of the mean TTFT and E2E latency."""
        arrival = self.theirs["arrival_s"]
        ttft = (self.state.times[:, FIRST_TOKEN] - arrival).mean()
        e2e = (self.state.times[:, COMPLETED] - arrival).mean()
        pairs = ((ttft, self.outcome["ttft_s_mean"]), (e2e, self.outcome["e2e_s_mean"]))
        return float(max(abs(ours / theirs - 1.0) for ours, theirs in pairs))

    @property
    def counts(self) -> tuple[int, int]:
        """Our iterations and restarts."""
        pool = self.state.pool
        return int(pool[:, ITERATIONS].sum()), int(pool[:, RESTARTED].sum())

    @property
    def their_counts(self) -> tuple[int, int]:
        """The reference's iterations and restarts."""
        return int(self.outcome["num_iterations"]), int(self.outcome["restarts"])


def checks(reference: Path, rows: str) -> list[Check]:
    """Return every check of this room; what is absent from the reference folder is said to be.

    Args:
        reference: the folder of measured tables.
        rows: `test` for rows no calibration was fitted to, `all` for every row.
    """
    return [
        *engine_checks(reference, rows),
        *deployment_checks(reference, rows),
        *offline_checks(reference),
        *online_checks(reference),
    ]


def engine_checks(reference: Path, rows: str) -> list[Check]:
    """Return the checks of the event loop, its tables and its workloads; arguments as above."""
    return [
        *_parity_checks(reference),
        *peer_checks(reference),
        *measured_checks(reference),
        *table_checks(),
        *_workload_checks(reference, rows),
    ]


def replays(reference: Path) -> Iterator[Replay]:
    """Run every configuration of the reference.

    Raises:
        UserError: a model, a scheduler or a router is unknown, or an operator time is missing.
    """
    requests, tables = pq.read_table(reference / REQUESTS), pq.read_table(reference / TABLES)
    known: dict[str, OpTable] = {}
    for outcome in pq.read_table(reference / OUTCOMES).to_pylist():
        key = outcome["table_key"]
        if key not in known:
            known[key] = _op_table(tables.filter(pc.equal(tables["table_key"], key)), outcome)
        own = requests.filter(pc.equal(requests["config_id"], outcome["config_id"]))
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
    columns = {
        name: np.asarray(rows[name].to_numpy(), np.float64) for name in (*TIMES, "arrival_s")
    }
    asked = Requests(
        columns["arrival_s"],
        rows["prompt_tokens"].to_numpy().astype(np.int64),
        rows["output_tokens"].to_numpy().astype(np.int64),
        np.zeros((len(rows), 2)),
    )
    state = serve(
        Engine(scheduler, load_router(router), op_price),
        limits,
        asked,
        replicas=outcome["replicas"],
        shape=prices.shape,
        table=prices.table,
    )
    return Replay(outcome, columns, state)


def _op_table(rows: pa.Table, outcome: Mapping[str, Any]) -> OpTable:
    """Return the prices of one model, cut and GPU."""
    layers, grouped = layers_and_gqa(outcome["model"])
    times = by_operator(
        np.array(rows["op"].to_pylist()),
        rows["a"].to_numpy().astype(np.int64),
        rows["b"].to_numpy().astype(np.int64),
        rows["ms"].to_numpy().astype(np.float64),
    )
    return op_table(times, layers=layers // outcome["pp"], grouped=grouped, tp=outcome["tp"])


def _parity_checks(reference: Path) -> Iterator[Check]:
    """Yield a check for each reference run, and for each row of the survey's table."""
    if missing := [
        name for name in (OUTCOMES, REQUESTS, TABLES) if not (reference / name).is_file()
    ]:
        yield Check(name="vidur", value=None, note=f"absent: {', '.join(missing)}")
        return
    for replay in replays(reference):
        yield _parity_check(replay)
        if (name := replay.outcome["config_id"]) in SURVEY:
            yield _survey_check(name, replay)


def _parity_check(replay: Replay) -> Check:
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
    times = replay.state.times
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


def _workload_checks(reference: Path, rows: str) -> Iterator[Check]:
    """Yield the error of each fitted workload on rows of its trace."""
    for name, measured in TRACES.items():
        file = reference / measured
        if not file.is_file():
            yield Check(name=f"workload {name}", value=None, note=f"absent: {measured}")
            continue
        trace = load_trace(str(file))
        count = trace.prompt_tokens.size
        which = held_out(count) if rows == "test" else np.arange(count)
        error = held_out_error(
            load_workload(name), trace.prompt_tokens[which], trace.output_tokens[which]
        )
        yield Check(
            name=f"workload {name} deciles",
            value=error,
            limit=DECILE_ERROR,
            ok=error <= DECILE_ERROR,
            rows=which.size,
            note="mean relative error of prompt, output and total tokens",
        )
