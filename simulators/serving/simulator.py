"""A stream of requests through replicas of an LLM engine: latency, throughput, cost, energy.

Iteration times come from composition, decisions from a scheduler and a router, lengths and arrivals
from a workload; the loop between them is exact. Designs of one seed and workload answer the same
requests.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.price import priced_by
from simulators.composition.simulator import SIMULATOR as COMPOSITION
from simulators.core.contract import Contribution, evaluate_pointwise, numbers
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.folder import PRICES, ROUTERS, SCHEDULERS, WORKLOADS
from simulators.serving.analytic import (
    analytic_rows,
    evaluate_analytic,
    evaluate_apart,
    simulate_analytic,
)
from simulators.serving.arrivals import Requests
from simulators.serving.demand import (
    beyond_analytic,
    event_rows,
    requests_for,
)
from simulators.serving.deployment import (
    DEPLOYED,
    Deployment,
    Facts,
    deployment_of,
    describe,
)
from simulators.serving.frontend import behind, frontend_of, seen_by_clients
from simulators.serving.launch import TARGETS, deployment
from simulators.serving.lookup import table_price
from simulators.serving.loop import run
from simulators.serving.metrics import ServingMetrics
from simulators.serving.order import evaluate_together
from simulators.serving.point import ANALYTIC, EVENT, MIXED_STEPS, PREEMPTIONS, SWAP, ServingPoint
from simulators.serving.policies import Scheduler, load_router, load_scheduler, policy_file
from simulators.serving.pricing import prices_of
from simulators.serving.records import batch_table, request_table
from simulators.serving.replica import ITERATIONS
from simulators.serving.report import report_of
from simulators.serving.seeds import averaged
from simulators.serving.service import Engine, Limits, kv_blocks, serve, swap_space
from simulators.serving.summary import Bill, Window, metrics_of
from simulators.serving.traces import is_trace
from simulators.serving.world import World


@dataclass(frozen=True)
class Serving:
    """The simulator of this room."""

    name: str = "serving"
    version: int = 1
    point: type = ServingPoint
    metrics: type = ServingMetrics
    facts: type = Facts
    targets: tuple[str, ...] = TARGETS

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Simulate every row on its own; steady states are answered together."""
        fidelities = analytic_rows(batch) & ~event_rows(batch)
        if fidelities.all():
            return evaluate_analytic(batch)
        if fidelities.any():
            return evaluate_apart(self.evaluate, batch, fidelities)
        shelf = Shelf()

        def one_by_one(rows: pa.RecordBatch) -> pa.RecordBatch:
            return evaluate_pointwise(
                ServingPoint, ServingMetrics, lambda point: simulate(point, shelf), rows
            )

        return evaluate_together(one_by_one, batch, DEPLOYED)

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return sizes and counts that need no simulation."""
        return describe(batch)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """A point depends on data sheets, policies, workloads and what was calibrated."""
        text = str(value)
        if name == "workload":
            return (Path(text) if is_trace(text) else WORKLOADS.find(text),)
        if name in ("scheduler", "router"):
            file = policy_file(SCHEDULERS if name == "scheduler" else ROUTERS, text)
            return () if file is None else (file,)
        if name == "iteration_table":
            return (Path(text),) if text else ()
        if name == "prices":
            return (PRICES.find(text),)
        return COMPOSITION.reads(name, value)

    def report(self, point: Mapping[str, Any]) -> str:
        """Return the run of a design as a load test would print it; of a steady state, nothing."""
        design = ServingPoint(**point)
        if design.fidelity != EVENT:
            return ""
        logged = logged_run(design)
        title = f"{design.model} on {logged.bill.gpus} {design.gpu}, {design.scheduler}"
        return report_of(title, logged.metrics(), logged.world)

    def records(self, point: Mapping[str, Any]) -> Mapping[str, pa.Table]:
        """Return every request and every iteration of a design."""
        world = logged_run(ServingPoint(**point)).world
        return {"requests": request_table(world), "iterations": batch_table(world)}

    def warm_up(self) -> None:
        """Compile the loop, the price of an iteration and the policies most points name.

        Others take half a second when they are first met.
        """
        _ = run.compiled, table_price.compiled
        for scheduler in USUAL_SCHEDULERS:
            _ = load_scheduler(scheduler).schedule.compiled
        _ = load_router(USUAL_ROUTER).compiled

    def deployment(self, point: Mapping[str, Any], target: str, name: str) -> str:
        """Return the command or manifest that deploys a design."""
        return deployment(ServingPoint(**point), target, name)

    def explain(self, point: Mapping[str, Any]) -> Sequence[Contribution]:
        """Return what the mean request's time and energy went into, operator by operator."""
        from simulators.serving.explain import explained_request

        return explained_request(ServingPoint(**point))

    def notes(self, axes: Mapping[str, Sequence[Any]]) -> Sequence[str]:
        """Say when and by whom the prices were quoted."""
        if any(usd is not None for usd in axes["usd_per_gpu_hour"]):
            return ("GPU-hours cost what usd_per_gpu_hour says.",)
        return priced_by(axes["prices"], axes["gpu"])

    def cost_hint_s(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Guess: time goes with the requests; every design asks for about the same iterations."""
        counts = numbers(batch, "requests").astype(np.float64)
        event_s = (
            PER_REQUEST_S * numbers(batch, "seeds") * np.where(counts > 0.0, counts, TYPICAL_TRACE)
        )
        return np.where(analytic_rows(batch), STEADY_STATE_S, event_s)


USUAL_SCHEDULERS, USUAL_ROUTER = ("vllm", "vllm_v1", "sarathi"), "round_robin"

PER_REQUEST_S = 4e-6
"""Typical CPU time of one request of 200 output tokens, all in."""

STEADY_STATE_S = 5e-6
"""Typical CPU time of one row of the analytic fidelity, among many."""

TYPICAL_TRACE = 20_000.0
"""Requests of a trace whose length was not asked for."""

SIMULATOR = Serving()


class Shelf:
    """What the points of one batch have in common is looked up once."""

    def __init__(self) -> None:
        self.scheduler = functools.cache(load_scheduler)
        self.router = functools.cache(load_router)
        self._deployments: dict[tuple[object, ...], Deployment] = {}

    def deployment(self, point: ServingPoint) -> Deployment:
        """Return the deployment a point describes."""
        key = tuple(getattr(point, name) for name in DEPLOYED)
        if key not in self._deployments:
            self._deployments[key] = deployment_of(point)
        return self._deployments[key]


def simulate(point: ServingPoint, shelf: Shelf | None = None) -> ServingMetrics:
    """Return the metrics of one deployment under one load.

    Args:
        point: the deployment and the load.
        shelf: what other points have looked up already.

    Raises:
        Infeasible: it cannot be built, or no request fits into it.
        UserError: a choice means nothing.

    >>> simulate(ServingPoint(model="llama3_1_8b", gpu="h100_sxm", requests=50)).completed_requests
    50
    """
    if point.fidelity == ANALYTIC:
        if name := beyond_analytic(point):
            raise Infeasible(f"{name}_needs_fidelity_event")
        return simulate_analytic(point)
    if point.seeds < 1:
        raise UserError(f"seeds is {point.seeds}; it must be at least 1")
    if point.seeds == 1:
        return run_of(point, shelf=shelf).metrics()
    seeds = range(point.seed, point.seed + point.seeds)
    return averaged([run_of(replace(point, seed=s), shelf=shelf).metrics() for s in seeds])


@dataclass(frozen=True)
class Run:
    """A run that has ended: what every request and every replica went through."""

    world: World
    asked: Requests  # those let in
    rejected: int
    bill: Bill
    window: Window

    def metrics(self) -> ServingMetrics:
        """Return what an operator of the service would put on a dashboard."""
        return metrics_of(
            self.world, self.asked.output_tokens, self.rejected, self.bill, self.window
        )


def run_of(
    point: ServingPoint,
    asked: Requests | None = None,
    *,
    shelf: Shelf | None = None,
    log_rows: int = 0,
) -> Run:
    """Return a run of one deployment.

    Args:
        point: the deployment and the load.
        asked: other requests than those of the point's workload.
        shelf: what other points have looked up already.
        log_rows: batches to log.

    Raises:
        Infeasible: it cannot be built, or no request fits into it.
        UserError: a choice means nothing.
    """
    _check(point)
    shelf = shelf or Shelf()
    deployment, scheduler = shelf.deployment(point), shelf.scheduler(point.scheduler)
    for name, needed in scheduler.requires.items():
        if getattr(point, name) != needed:
            raise Infeasible(f"{point.scheduler}_needs_{name}_{needed}")
    asked = asked or requests_for(point)
    limits = _limits(point, deployment, scheduler, asked)
    let_in, rejected = _admitted(asked, limits)
    table, price = prices_of(point, deployment.hardware)
    frontend = frontend_of(point)
    delay_s = frontend.delay_s(let_in.prompt_tokens)
    world = serve(
        Engine(scheduler, shelf.router(point.router), price),
        limits,
        behind(let_in, delay_s),
        replicas=point.replicas,
        shape=table.shape,
        table=table.table,
        log_rows=log_rows,
    )
    if delay_s.any() or frontend.iterations:
        world = seen_by_clients(world, frontend, delay_s, let_in.output_tokens)
    bill = Bill(
        gpus=deployment.gpus,
        gpus_per_stage=deployment.hardware.replica.cut.width,
        usd_per_gpu_hour=deployment.usd_per_gpu_hour,
        waiting_w_per_stage=table.waiting_w,
        flops_per_token=deployment.flops_per_token,
        peak_flops_per_gpu=deployment.peak_flops,
        slo_ttft_s=point.slo_ttft_s,
        slo_tpot_s=point.slo_tpot_s,
        calibrated=table.calibrated,
        extrapolated=table.extrapolated,
    )
    return Run(world, let_in, rejected, bill, Window(point.warmup, point.cooldown))


def logged_run(point: ServingPoint) -> Run:
    """Return a run of the first seed of a point, with every iteration logged.

    Raises:
        Infeasible: it cannot be built, or no request fits into it.
        UserError: a choice means nothing, or the point asks for a steady state.
    """
    if point.fidelity != EVENT:
        raise UserError(f"fidelity '{point.fidelity}' has no events to report; ask for '{EVENT}'")
    iterations = int(run_of(point).world.pool[:, ITERATIONS].sum())
    return run_of(point, log_rows=iterations)


def _limits(
    point: ServingPoint, deployment: Deployment, scheduler: Scheduler, asked: Requests
) -> Limits:
    """Return what a replica may hold and batch.

    Room is kept for the activations of the largest batch: a chunk, or a batch of whole prompts, of
    which the longest may be alone.
    """
    context = point.max_context or deployment.hardware.replica.model.max_context
    tokens = point.chunk_size
    if not scheduler.chunked:
        short = asked.prompt_tokens[asked.prompt_tokens + asked.output_tokens <= context]
        tokens = max(point.max_batch_tokens, int(short.max(initial=1)))
    groups = point.attention_dp  # each has seats and a budget of its own
    blocks = kv_blocks(
        deployment.hardware.replica,
        memory_fraction=point.memory_fraction,
        block_size=point.block_size,
        tokens=tokens,
        rows=point.max_batch,
        of_rest=scheduler.of_rest,
    )
    host_blocks, move_s = 0, 0.0
    if point.preemption == SWAP:
        host_blocks, move_s = swap_space(
            deployment.hardware.replica, swap_bytes=point.swap_bytes, block_size=point.block_size
        )
    return Limits(
        blocks=blocks,
        block_size=point.block_size,
        watermark=point.watermark,
        seats=point.max_batch * groups,
        batch_tokens=point.max_batch_tokens * groups,
        chunk=point.chunk_size * groups,
        most_tokens=context,
        stages=point.pp,
        reserves=scheduler.reserves,
        host_blocks=host_blocks,
        move_s=move_s,
    )


def _admitted(asked: Requests, limits: Limits) -> tuple[Requests, int]:
    """Return the requests that could ever run, and how many could not."""
    fit = limits.admits(asked.prompt_tokens, asked.output_tokens)
    rejected = asked.prompt_tokens.size - fit.size
    if fit.size == 0:
        raise Infeasible(
            "no_request_fits",
            f"{rejected} requests, {limits.blocks * limits.block_size} tokens of KV memory, "
            f"{limits.most_tokens} of context",
        )
    if rejected == 0:
        return asked, 0
    return asked.take(fit), rejected


def _check(point: ServingPoint) -> None:
    """Raise `UserError` for a choice that no engine could be given."""
    for name in (
        "tp",
        "pp",
        "ep",
        "attention_dp",
        "replicas",
        "chunk_size",
        "max_batch",
        "max_batch_tokens",
        "block_size",
    ):
        if getattr(point, name) < 1:
            raise UserError(f"{name} is {getattr(point, name)}; it must be at least 1")
    if not 0.0 < point.memory_fraction <= 1.0:
        raise UserError(f"memory_fraction is {point.memory_fraction:g}; it must be within 0..1")
    if not 0.0 <= point.watermark < 1.0:
        raise UserError(f"watermark is {point.watermark:g}; it must be within 0..1")
    for name in (
        "max_context",
        "prompt_tokens",
        "output_tokens",
        "warmup",
        "cooldown",
        "swap_bytes",
    ):
        if getattr(point, name) < 0:
            raise UserError(f"{name} is {getattr(point, name):g}; it must not be negative")
    if point.mixed_step not in MIXED_STEPS:
        raise UnknownNameError("mixed_step", point.mixed_step, MIXED_STEPS)
    if point.preemption not in PREEMPTIONS:
        raise UnknownNameError("preemption", point.preemption, PREEMPTIONS)
    if point.patience_s is not None and not point.patience_s > 0.0:
        raise UserError(f"patience_s is {point.patience_s:g}; it must be positive")
    if point.pp > point.max_batch:
        raise Infeasible(
            "batch_smaller_than_pipeline", f"max_batch {point.max_batch}, pp {point.pp}"
        )
