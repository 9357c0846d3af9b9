"""What is asked of a deployment: the requests that a design point describes."""

from __future__ import annotations

import functools
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.contract import categories
from simulators.core.errors import UserError
from simulators.core.jit import Ints
from simulators.serving.arrivals import Requests, requests_of, stream
from simulators.serving.modulation import MODULATED, Pattern
from simulators.serving.point import ServingPoint
from simulators.serving.sessions import in_sessions
from simulators.serving.traces import is_trace

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


def requests_for(point: ServingPoint) -> Requests:
    """Return the requests of a point's workload, with the lengths that the point fixes."""
    asked = requests_of(
        workload=point.workload,
        qps=None if point.qps is None else point.qps / max(point.turns, 1),
        requests=point.requests,
        seed=point.seed,
        process=point.arrivals,
        burstiness=point.burstiness,
        clients=point.clients,
        think_s=point.think_s,
        pattern=Pattern(
            burst_ratio=point.burst_ratio,
            burst_s=point.burst_s,
            calm_s=point.calm_s,
            swing=point.swing,
            period_s=point.period_s,
        ),
    )
    if point.patience_s is not None:
        asked = replace(asked, patience_s=float(point.patience_s))
    count = asked.arrival_s.size
    if point.prompt_tokens:
        asked = replace(asked, prompt_tokens=_lengths(point, "prompt_tokens", count))
    if point.output_tokens:
        asked = replace(asked, output_tokens=_lengths(point, "output_tokens", count))
    if point.turns == 1:
        return asked
    if asked.clients or is_trace(point.workload):
        raise UserError(
            f"turns is {point.turns}; sessions are drawn, so neither closed arrivals nor a trace "
            "can have them"
        )
    return in_sessions(asked, point.turns, point.think_s)


def _lengths(point: ServingPoint, name: str, count: int) -> Ints:
    """Return equal lengths, or lengths drawn evenly below the stated one.

    Raises:
        UserError: the spread is no share.
    """
    most, spread = getattr(point, name), point.length_spread
    if not 0.0 <= spread < 1.0:
        raise UserError(f"length_spread is {spread:g}; it must be at least 0 and below 1")
    if spread == 0.0:
        return np.full(count, most)
    return _drawn(point.seed, name, count, most, spread)


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
