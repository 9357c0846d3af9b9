"""Analytic fidelity: the steady state of one replica by its number of running requests.

The metrics are the limits of an endless run, computed from means for all rows at once. If `qps` is
null, a new request takes each freed slot, so `max_batch` requests always run; in a closed loop all
clients run that do not think. If `qps` is given, the number of running requests follows from
queueing; rates above capacity are `saturated` and have no TTFT. `batch_cycle` and `queueing` hold
the equations; composition prices iterations.

    TTFT = wait for a slot, for earlier prompts and the iteration under way + own prefill
           + delay of the API server
    TPOT = (cycle of a slot - time to its first token) / (output tokens - 1)
    cost = GPUs * $/h / output tokens/h        energy = work of a cycle + waiting of idle stages

KV memory is reserved for prompt and output, so requests are never preempted; a batch that does not
fit is infeasible. Percentiles and counts of one run are null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from simulators.catalog.price import usd_per_mtok
from simulators.composition.replica import Replica
from simulators.core.columns import SHARES, batch_of, outcome, schema_of
from simulators.core.errors import Infeasible
from simulators.core.fields import check_batch, values_of
from simulators.core.jit import Floats, Ints
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.point import ServingPoint
from simulators.serving.row_defaults import with_engine_defaults
from simulators.serving.row_groups import rows_of
from simulators.serving.speculation import Drafter
from simulators.serving.steady.design import SteadyDesign, Verdicts, design_of
from simulators.serving.steady.iteration_times import (
    Prices,
    empty_prices,
    families_of,
    write_prices,
)
from simulators.serving.steady.queueing import (
    Cycle,
    QueueState,
    SteadyState,
    closed_population,
    cycle_of,
    frontend_s,
    has_fixed_population,
    priced_batch_sizes,
    queue_state_of,
    state_of,
)

FeasibleReplicas = list[list[tuple[Replica, Drafter | None, Ints]]]
"""Per family: replicas, their drafters, and the feasible rows of each."""

ROWS_AT_ONCE = 1024
"""Open-loop rows per batch, because each row has a column per request."""


def evaluate_analytic(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return one row of metrics per row of `batch`, in order."""
    check_batch(ServingPoint, batch)
    verdicts = Verdicts(batch.num_rows)
    families = families_of(batch)
    everything = design_of(batch, families, verdicts)
    is_feasible = verdicts.codes == 0
    rows, place = np.flatnonzero(is_feasible), np.cumsum(is_feasible) - 1
    design = everything if rows.size == batch.num_rows else rows_of(everything, rows)
    feasible: FeasibleReplicas = []
    for family in families:
        found = [
            (p.replica, p.drafter, place[p.rows[is_feasible[p.rows]]])
            for p in family.pipelines
            if p.replica
        ]
        if parts := [part for part in found if part[2].size]:
            feasible.append(parts)
    queue = _queue_state(design, feasible)
    station = design.station
    at_work = queue.running / queue.busy / station.stages  # per batch, while there is work
    batch_size = np.clip(at_work, 1.0, station.max_batch_size)
    cycle = cycle_of(station, design.lengths, design.kind, batch_size)
    prices = empty_prices(rows.size)
    for parts in feasible:
        members = [(replica.layout.pp, some) for replica, _, some in parts]
        replica, drafter, _ = parts[0]
        write_prices(prices, replica, cycle.iterations, members, drafter)
    state = state_of(design.station, design.lengths, cycle, prices, batch_size, queue)
    columns = _columns(design, cycle, prices, state, batch_size)
    return _outcome(columns, rows, verdicts)


def simulate_analytic(point: ServingPoint) -> ServingMetrics:
    """Return the steady-state metrics of one point.

    Raises:
        Infeasible: the point has no steady state or cannot be built.
    """
    batch = with_engine_defaults(batch_of(ServingPoint, values_of(point)))
    [row] = evaluate_analytic(batch).to_pylist()
    if row["status"] == "infeasible":
        raise Infeasible(row["reason"])
    return ServingMetrics(**{name: row[name] for name in schema_of(ServingMetrics).names})


def _queue_state(design: SteadyDesign, feasible: FeasibleReplicas) -> QueueState:
    """Return the numbers of running requests; pipelines of a family are priced together."""
    known = has_fixed_population(design.station)
    queue = closed_population(design.station)
    for parts in feasible:
        left = [(replica, drafter, rows[~known[rows]]) for replica, drafter, rows in parts]
        while left := [part for part in left if part[2].size]:
            _put_queues(design, queue, [(a, b, rows[:ROWS_AT_ONCE]) for a, b, rows in left])
            left = [(a, b, rows[ROWS_AT_ONCE:]) for a, b, rows in left]
    return queue


def _put_queues(
    design: SteadyDesign, queue: QueueState, parts: Sequence[tuple[Replica, Drafter | None, Ints]]
) -> None:
    """Write the numbers of running requests of some rows of each pipeline of a family."""
    station, tries = design.station, []
    members: list[tuple[int, Ints]] = []
    for replica, _, some in parts:
        looked_at = priced_batch_sizes(float(station.max_batch_size[some].max()))
        tried = np.minimum(looked_at, station.max_batch_size[some][:, None])
        start, each = sum(a.size for _, a in members), np.repeat(some, looked_at.size - 1)
        members.append((replica.layout.pp, start + np.arange(each.size)))
        tries.append((some, tried, each))
    each = np.concatenate([one for _, _, one in tries])
    taken = np.concatenate([tried[:, 1:].reshape(-1) for _, tried, _ in tries])
    part = rows_of(station, each)
    cycle = cycle_of(part, rows_of(design.lengths, each), design.kind[each], taken)
    prices = empty_prices(each.size)
    write_prices(prices, parts[0][0], cycle.iterations, members, parts[0][1])
    busy, waiting = np.ones(each.size), np.zeros(each.size)
    full = QueueState(busy=busy, running=taken * part.stages, waiting=waiting)
    state = state_of(part, rows_of(design.lengths, each), cycle, prices, taken, full)
    away = part.think_s + frontend_s(part, state.running) + state.formed_s
    rates = taken / cycle.pace_s(prices)
    for (some, tried, _), (_, mine) in zip(tries, members, strict=True):
        per_s, away_s = np.zeros(tried.shape), np.zeros(tried.shape)
        per_s[:, 1:] = rates[mine].reshape(some.size, -1)
        away_s[:, 1:] = away[mine].reshape(some.size, -1)
        queue.put(some, queue_state_of(rows_of(station, some), tried, per_s, away_s))


def _columns(
    design: SteadyDesign, cycle: Cycle, prices: Prices, state: SteadyState, batch_size: Floats
) -> dict[str, Any]:
    station, lengths = design.station, design.lengths
    per_s, tokens = state.requests_per_s * design.replicas, lengths.output
    gpus = design.gpus * design.replicas
    tokens_per_s, ttft_s = per_s * tokens, state.ttft_s + frontend_s(station, state.running)
    # While there is work, the other stages wait for the slowest stage.
    busy = state.busy * cycle.busy_s(prices) / (station.stages * cycle.pace_s(prices))
    waiting_s = (1.0 - busy) * station.stages / state.requests_per_s
    joules = cycle.joules(prices) / batch_size + prices.waiting_w * waiting_s
    flops = design.flops_per_token * (lengths.prompt + tokens)
    iterations = cycle.decodes_n + cycle.prompts_n
    members = cycle.decodes_n * cycle.iterations.decodes + cycle.prompts_n * (
        cycle.iterations.prompt_decodes + cycle.iterations.prompts
    )
    whole = np.full(batch_size.size, 0, np.int64)
    return {
        "ttft_mean_s": ttft_s,
        "tpot_mean_s": state.tpot_s,
        "itl_mean_s": state.tpot_s / cycle.per_token,
        "e2e_mean_s": ttft_s + np.where(cycle.later > 0.0, cycle.later * state.tpot_s, 0.0),
        "queue_mean_s": state.queue_s,
        "requests_per_s": per_s,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": tokens_per_s / gpus,
        "cost_usd_per_mtok": usd_per_mtok(design.usd_per_gpu_hour, gpus, tokens_per_s),
        "cost_usd_per_hour": design.usd_per_gpu_hour * gpus,
        "energy_j_per_token": joules / tokens,
        "kv_use_mean": state.running * (lengths.prompt + tokens / 2.0) / design.kv_tokens,
        "mean_batch": members / iterations,
        "mean_acceptance_length": 1.0 / cycle.per_token,
        "utilization": busy,
        "mfu": flops * per_s / (gpus * design.peak_flops),
        "preemptions_recompute": whole,
        "saturated": state.saturated,
        "gpus": gpus.astype(np.int64),
        "replicas_mean": design.replicas.astype(np.float64),
        "kv_blocks": design.kv_blocks.astype(np.int64),
        "token_budget": design.token_budget.astype(np.int64),
        "max_num_seqs": design.max_num_seqs.astype(np.int64),
        **dict(zip(SHARES, cycle.shares(prices), strict=True)),
    }


def _outcome(columns: dict[str, Any], rows: Ints, verdicts: Verdicts) -> pa.RecordBatch:
    """Return all rows of a batch, given the columns of the feasible `rows`; others are null."""
    count = verdicts.codes.size
    reasons = None
    if rows.size < count:
        reasons = np.array(["", *verdicts.texts[1:]], object)[verdicts.codes].tolist()
        for name, column in columns.items():
            columns[name] = np.zeros(count, column.dtype)
            columns[name][rows] = column
    shares = np.stack([columns.pop(name) for name in SHARES])
    return outcome(ServingMetrics, columns, infeasible=reasons, shares=shares, sparse=True)
