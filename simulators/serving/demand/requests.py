"""What is asked of a deployment: the requests that a design point describes."""

from __future__ import annotations

import functools
from dataclasses import fields, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.columns import categories
from simulators.core.errors import UserError
from simulators.core.jit import Ints
from simulators.serving.demand.arrivals import Requests, requests_of, stream
from simulators.serving.demand.rate_modulation import MODULATED, Pattern
from simulators.serving.demand.sessions import in_sessions
from simulators.serving.demand.traces import is_trace
from simulators.serving.point import ServingPoint

EVENT_ONLY = {
    f.name: f.default
    for f in fields(ServingPoint)
    if f.name
    in (
        "turns", "seeds", "mixed_step", "ep", "attention_dp", "length_spread", "frontend_s",
        "patience_s", "preemption", "iteration_table", "warmup", "cooldown",
        "without", "poll_interval",
    )
}  # fmt: skip
"""Fields, and their only values, of which a steady state knows."""


class Demand(NamedTuple):
    """The fields of a point that say what is asked; points of one demand answer the same."""

    workload: str
    qps: float | None
    prompt_tokens: int
    output_tokens: int
    length_spread: float
    requests: int
    seed: int
    arrivals: str
    burstiness: float
    clients: int
    think_s: float
    patience_s: float | None
    turns: int
    burst_ratio: float
    burst_s: float
    calm_s: float
    swing: float
    period_s: float


_demanded = attrgetter(*Demand._fields)


def demand_of(point: ServingPoint) -> Demand:
    """Return what is asked of a point."""
    return Demand._make(_demanded(point))


def requests_for(demand: Demand) -> Requests:
    """Return the requests of a workload, with the lengths that the demand fixes."""
    asked = requests_of(
        workload=demand.workload,
        qps=None if demand.qps is None else demand.qps / max(demand.turns, 1),
        requests=demand.requests,
        seed=demand.seed,
        process=demand.arrivals,
        burstiness=demand.burstiness,
        clients=demand.clients,
        think_s=demand.think_s,
        pattern=Pattern(
            burst_ratio=demand.burst_ratio,
            burst_s=demand.burst_s,
            calm_s=demand.calm_s,
            swing=demand.swing,
            period_s=demand.period_s,
        ),
    )
    if demand.patience_s is not None:
        asked = replace(asked, patience_s=float(demand.patience_s))
    count = asked.arrival_s.size
    if demand.prompt_tokens:
        asked = replace(asked, prompt_tokens=_lengths(demand, "prompt_tokens", count))
    if demand.output_tokens:
        asked = replace(asked, output_tokens=_lengths(demand, "output_tokens", count))
    if demand.turns == 1:
        return asked
    if asked.clients or is_trace(demand.workload):
        raise UserError(
            f"turns is {demand.turns}; sessions are drawn, so neither closed arrivals nor a trace "
            "can have them"
        )
    return in_sessions(asked, demand.turns, demand.think_s)


def _lengths(demand: Demand, name: str, count: int) -> Ints:
    """Return equal lengths, or lengths drawn evenly below the stated one.

    Raises:
        UserError: the spread is no share.
    """
    most, spread = getattr(demand, name), demand.length_spread
    if not 0.0 <= spread < 1.0:
        raise UserError(f"length_spread is {spread:g}; it must be at least 0 and below 1")
    if spread == 0.0:
        return np.full(count, most)
    return _drawn(demand.seed, name, count, most, spread)


@functools.lru_cache(maxsize=256)
def _drawn(seed: int, name: str, count: int, most: int, spread: float) -> Ints:
    drawn = stream(seed, name).random(count)
    lengths: Ints = np.maximum(1, np.rint(most * (1.0 - spread * drawn))).astype(np.int64)
    lengths.flags.writeable = False
    return lengths


def event_rows(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return which rows ask for what only events can answer."""
    found = np.zeros(batch.num_rows, bool)
    for name, only in EVENT_ONLY.items():
        codes, values = categories(batch, name)
        found |= np.array([value != only for value in values], bool)[codes]
    codes, values = categories(batch, "arrivals")
    found |= np.array([value in MODULATED for value in values], bool)[codes]
    return found


def beyond_analytic(point: ServingPoint) -> str:
    """Return what of a point only events can answer, or nothing."""
    if point.arrivals in MODULATED:
        return point.arrivals
    return next((name for name, only in EVENT_ONLY.items() if getattr(point, name) != only), "")
