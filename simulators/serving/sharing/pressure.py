"""Load of a model on its partition of a GPU: busy share, memory traffic and KV bytes.

Traffic is the minimum bytes of the mean request's operators over their time: its prefill alone, and
its share of the decode batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from simulators.catalog.gpu import load_gpu
from simulators.composition.price import Iteration, iteration
from simulators.core.columns import batch_of
from simulators.core.fields import updated, values_of
from simulators.kernels.price import moved_bytes
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.deployment import deployment_of
from simulators.serving.engine.policies import load_scheduler
from simulators.serving.point import ANALYTIC, DEFAULT_SCHEDULER, MODULATED, POISSON, ServingPoint
from simulators.serving.sharing.partition import Pressure
from simulators.serving.steady.batch_limits import EVENT_ONLY
from simulators.serving.steady.mean_lengths import lengths_of
from simulators.workload.llm.step import decode_step, prefill_step
from simulators.workload.operators import Collective

SteadyState = Callable[[ServingPoint], ServingMetrics]
"""Function from a design to its steady-state metrics."""


def steady(point: ServingPoint) -> ServingPoint:
    """Return the nearest design with a steady state.

    Bursts become Poisson arrivals, and schedulers without a closed form the default.
    """
    usual = {name: value for name, value in EVENT_ONLY.items() if name != "ep"}
    known = updated(point, {**usual, "fidelity": ANALYTIC, "usd_per_gpu_hour": None, "seed": 0})
    if known.arrivals.process in MODULATED:
        known = replace(known, arrivals=replace(known.arrivals, process=POISSON))
    policy = load_scheduler(known.scheduler)
    has_closed_form = policy.chunked or policy.prefill_first
    return known if has_closed_form else replace(known, scheduler=DEFAULT_SCHEDULER)


def pressure_of(point: ServingPoint, answer: SteadyState) -> Pressure:
    """Return the load of a model on its partition of the GPU.

    Raises:
        Infeasible: the design has no steady state.
    """
    state = answer(point)
    replica = deployment_of(point).hardware.replica
    held = state.kv_use_mean * state.kv_blocks * point.cache.block_size
    context = float(point.max_context or replica.model.max_context)
    lengths, _ = lengths_of(batch_of(ServingPoint, values_of(point)), np.array([context]))
    prompt, output, keys = (float(x[0]) for x in (lengths.prompt, lengths.output, lengths.keys))
    batch = max(1.0, state.mean_batch)
    passes = (
        (1.0, iteration(replica, prefill_step(1.0, prompt))),
        (max(output - 1.0, 0.0) / batch, iteration(replica, decode_step(batch, keys))),
    )
    seconds = sum(count * float(np.asarray(one.latency_s)) for count, one in passes)
    moved = sum(count * _moved_bytes(one) for count, one in passes)
    return Pressure(
        busy=1.0 if state.saturated else min(1.0, state.utilization),
        traffic=min(1.0, moved / (seconds * load_gpu(point.gpu).hbm_bytes_per_s)),
        kv_bytes=held * replica.kv_token_bytes,
    )


def _moved_bytes(one: Iteration) -> float:
    """Return the minimum bytes moved by the kernels of a pass."""
    return sum(
        float(np.asarray(moved_bytes(row.operator))) * row.operator.repeat
        for row in one.rows
        if not isinstance(row.operator, Collective) and np.any(row.seconds)
    )
