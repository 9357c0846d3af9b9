"""The steady state of one replica, by its number of running requests: no events, all rows at once.

`fidelity: analytic` answers what an endless run tends to, from means alone. Where `qps` is null, a
new request takes each freed seat, so `max_batch` requests always run; closed clients run as many as
they are, less those who think. Where `qps` is given, as many run as it takes to serve them, and
rates beyond the capacity are `saturated`, without latencies of the first token. The equations are
those of `analytic_steady` and `analytic_queue`; iterations are priced by composition.

    TTFT = wait for a seat, for earlier prompts and the iteration under way + own prefill
    TPOT = (turn of a seat - time to its first token) / (output tokens - 1)
    cost = GPUs * $/h / output tokens/h        energy = work of a turn + waiting of idle stages

Every running request has KV memory for its whole life, so nothing is ever restarted; a batch that
does not fit is infeasible. A mean knows no percentiles: those columns, and all that counts the
requests of one run, are null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.composition.replica import Replica
from simulators.core.columns import OUTCOME, STATUSES, categories, schema_of
from simulators.core.errors import Infeasible, UnknownNameError
from simulators.core.jit import Floats, Ints
from simulators.core.levels import SHARES
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.point import ANALYTIC, FIDELITIES, ServingPoint
from simulators.serving.steady.batch_cycle import Turn, turn_of
from simulators.serving.steady.batch_limits import Design, Verdicts, design_of
from simulators.serving.steady.iteration_times import Prices, families_of, no_prices, put_prices
from simulators.serving.steady.queueing import (
    Crowd,
    State,
    crowd_of,
    is_known,
    known_crowd,
    seats_looked_at,
    seats_of,
    state_of,
)

Living = list[list[tuple[Replica, Ints]]]
"""For each family its replicas, and the rows of each that can be."""

ROWS_AT_ONCE = 1024
"""Rows with arrivals of their own that are looked at together: each has a column per request."""


def evaluate_analytic(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return one row of metrics per row of `batch`; rows of one replica are priced together.

    Raises:
        UserError: a choice means nothing.
    """
    verdicts = Verdicts(batch.num_rows)
    families = families_of(batch)
    everything = design_of(batch, families, verdicts)
    is_alive = verdicts.codes == 0
    alive, place = np.flatnonzero(is_alive), np.cumsum(is_alive) - 1
    design = everything if alive.size == batch.num_rows else everything.at(alive)
    living: Living = []
    for family in families:
        found = [(p.replica, place[p.rows[is_alive[p.rows]]]) for p in family.pipelines]
        if parts := [(replica, rows) for replica, rows in found if replica and rows.size]:
            living.append(parts)
    crowd = _crowd(design, living)
    seats = seats_of(design.engine, crowd)
    turn = turn_of(design.engine, design.lengths, design.kind, seats)
    prices = no_prices(alive.size)
    for parts in living:
        members = [(replica.cut.pp, rows) for replica, rows in parts]
        put_prices(prices, parts[0][0], turn.iterations, members)
    state = state_of(design.engine, design.lengths, turn, prices, seats, crowd)
    columns = _columns(design, turn, prices, state, seats)
    return _outcome(columns, alive, verdicts)


def analytic_rows(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return which rows ask for the steady state.

    Raises:
        UnknownNameError: a row asks for a fidelity that is none.
    """
    codes, names = categories(batch, "fidelity")
    for name in names:
        if name not in FIDELITIES:
            raise UnknownNameError("fidelity", str(name), FIDELITIES)
    return np.array([name == ANALYTIC for name in names], bool)[codes]


def evaluate_apart(
    evaluate: Callable[[pa.RecordBatch], pa.RecordBatch],
    batch: pa.RecordBatch,
    chosen: NDArray[np.bool_],
) -> pa.RecordBatch:
    """Return all rows in order, those chosen and the others evaluated in batches of their own."""
    parts = [evaluate(batch.filter(pa.array(which))) for which in (chosen, ~chosen)]
    place = np.argsort(np.concatenate([np.flatnonzero(chosen), np.flatnonzero(~chosen)]))
    table = pa.Table.from_batches(parts).combine_chunks().take(pa.array(place))
    return table.combine_chunks().to_batches()[0]


def simulate_analytic(point: ServingPoint) -> ServingMetrics:
    """Return the metrics of one point.

    Raises:
        Infeasible: it cannot be built.
        UserError: a choice means nothing.
    """
    row = evaluate_analytic(
        pa.RecordBatch.from_pylist([asdict(point)], schema=schema_of(ServingPoint))
    ).to_pylist()[0]
    if row["status"] == "infeasible":
        raise Infeasible(row["reason"])
    return ServingMetrics(**{name: row[name] for name in schema_of(ServingMetrics).names})


def _crowd(design: Design, living: Living) -> Crowd:
    """Return how many requests a replica has where that depends on its pace."""
    engine, known = design.engine, is_known(design.engine)
    crowd = known_crowd(engine)
    for replica, rows in (part for parts in living for part in parts):
        unknown = rows[~known[rows]]
        for start in range(0, unknown.size, ROWS_AT_ONCE):
            some = unknown[start : start + ROWS_AT_ONCE]
            looked_at = seats_looked_at(float(engine.seats[some].max()))
            tried = np.minimum(looked_at, engine.seats[some][:, None])
            each = np.repeat(some, looked_at.size - 1)
            part, taken = engine.at(each), np.ascontiguousarray(tried[:, 1:]).reshape(-1)
            turn = turn_of(part, design.lengths.at(each), design.kind[each], taken)
            prices = no_prices(each.size)
            put_prices(prices, replica, turn.iterations, [(replica.cut.pp, np.arange(each.size))])
            pace_s = turn.pace_s(prices)
            per_s = np.zeros(tried.shape)
            per_s[:, 1:] = (taken / pace_s).reshape(some.size, -1)
            crowd.put(some, crowd_of(engine.at(some), tried, per_s))
    return crowd


def _columns(
    design: Design, turn: Turn, prices: Prices, state: State, seats: Floats
) -> dict[str, Any]:
    """Return the metrics that a steady state has."""
    engine, lengths = design.engine, design.lengths
    per_s, tokens = state.requests_per_s * design.replicas, lengths.output
    gpus = design.gpus * design.replicas
    tokens_per_s = per_s * tokens
    # While there is work, stages other than the slowest wait for it.
    busy = state.busy * turn.busy_s(prices) / (engine.stages * turn.pace_s(prices))
    waiting_s = (1.0 - busy) * engine.stages / state.requests_per_s
    joules = turn.joules(prices) / seats + prices.waiting_w * waiting_s
    iterations = turn.decodes_n + turn.prompts_n
    members = turn.decodes_n * turn.iterations.decodes + turn.prompts_n * (
        turn.iterations.prompt_decodes + turn.iterations.prompts
    )
    whole = np.full(seats.size, 0, np.int64)
    return {
        "ttft_mean_s": state.ttft_s,
        "tpot_mean_s": state.tpot_s,
        "itl_mean_s": state.tpot_s,
        "e2e_mean_s": state.ttft_s + np.where(turn.later > 0.0, turn.later * state.tpot_s, 0.0),
        "queue_mean_s": state.queue_s,
        "requests_per_s": per_s,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": tokens_per_s / gpus,
        "cost_usd_per_mtok": design.usd_per_gpu_hour * gpus / 3600.0 / tokens_per_s * 1e6,
        "energy_j_per_token": joules / tokens,
        "kv_use_mean": state.running * (lengths.prompt + tokens / 2.0) / design.kv_tokens,
        "mean_batch": members / iterations,
        "busy": busy,
        "mfu": design.flops_per_token
        * (lengths.prompt + tokens)
        * per_s
        / (gpus * design.peak_flops),
        "restarts": whole,
        "saturated": state.saturated,
        "gpus": gpus.astype(np.int64),
        "kv_blocks": design.kv_blocks.astype(np.int64),
        **dict(zip(SHARES, turn.shares(prices), strict=True)),
    }


def _outcome(columns: dict[str, Any], alive: Ints, verdicts: Verdicts) -> pa.RecordBatch:
    """Return all rows; columns without a value, and rows that cannot be, are null."""
    rows = verdicts.codes.size
    dead = None if alive.size == rows else verdicts.codes > 0
    schema = schema_of(ServingMetrics)
    kept = [f for f in schema if f.name not in OUTCOME.names]
    arrays = []
    for f in kept:
        column = columns.get(f.name)
        if column is None:
            arrays.append(pa.nulls(rows, f.type))
            continue
        whole = _spread(column, alive, rows)
        empty = dead
        if column.dtype == np.float64 and np.isnan(column).any():
            empty = np.isnan(whole) if dead is None else dead | np.isnan(whole)
        arrays.append(pa.array(whole, f.type, mask=empty))
    status = pa.array((verdicts.codes > 0).astype(np.int8))
    texts = pa.array(verdicts.texts, pa.string())
    return pa.RecordBatch.from_arrays(
        [
            *arrays,
            pa.DictionaryArray.from_arrays(status, pa.array(STATUSES)),
            texts.take(pa.array(verdicts.codes)),
            *(pa.array(_spread(columns[n], alive, rows), mask=dead) for n in SHARES),
        ],
        schema=pa.schema([*kept, *OUTCOME]),
    )


def _spread(column: Any, alive: Ints, rows: int) -> Any:
    """Return a column of the rows alive in the place of all rows."""
    if alive.size == rows:
        return column
    whole = np.zeros(rows, column.dtype)
    whole[alive] = column
    return whole
