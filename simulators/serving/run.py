"""One run: a deployment is looked up, its requests are let in and served, its bill is kept."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from operator import attrgetter

from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.answer.neighbour_correction import Deviations
from simulators.serving.answer.summary import Bill, Window, metrics_of
from simulators.serving.demand.arrivals import Requests
from simulators.serving.demand.requests import demand_of, requests_for
from simulators.serving.deployment import DEPLOYED, Deployment, deployment_of
from simulators.serving.engine.frontend import (
    bands_of,
    behind,
    frontend_of,
    load_frontend,
    seen_by_clients,
)
from simulators.serving.engine.policies import Scheduler, load_router, load_scheduler
from simulators.serving.engine.replica import ITERATIONS
from simulators.serving.engine.service import Engine, Limits, kv_blocks, serve, swap_space
from simulators.serving.engine.state import World
from simulators.serving.measured_deployments import Deployed
from simulators.serving.point import CACHED, EVENT, MIXED_STEPS, PREEMPTIONS, SWAP, ServingPoint
from simulators.serving.prices.batch_price import prices_of
from simulators.serving.prices.iteration_table import Hardware

_deployed = attrgetter(*DEPLOYED)


class Shelf:
    """What the points of one batch have in common is looked up once."""

    def __init__(self) -> None:
        self.scheduler = functools.cache(load_scheduler)
        self.router = functools.cache(load_router)
        self.server = functools.cache(load_frontend)
        self.bands = functools.cache(bands_of)
        self.requests = functools.lru_cache(maxsize=32)(requests_for)
        self.measured: dict[str, tuple[Deployed, ...]] = {}  # by runtime, its own rows
        self.deviations: dict[str, Deviations] = {}  # and what they deviate by
        self._deployments: dict[tuple[object, ...], Deployment] = {}

    def deployment(self, point: ServingPoint) -> Deployment:
        """Return the deployment a point describes."""
        key = _deployed(point)
        if key not in self._deployments:
            self._deployments[key] = deployment_of(point)
        return self._deployments[key]


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
    if point.poll_interval and not scheduler.poll_interval:
        raise Infeasible(f"{point.scheduler}_has_no_poll_interval", "it looks in every iteration")
    if point.preemption == CACHED and not scheduler.keeps:
        raise Infeasible(f"{point.scheduler}_has_no_prefix_cache")
    asked = asked or shelf.requests(demand_of(point))
    limits = _limits(point, deployment, scheduler, asked)
    let_in, rejected = _admitted(asked, limits)
    table, price = prices_of(point, deployment.hardware)
    frontend = frontend_of(point, shelf.server)
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
        shares=table.shares,
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
    blocks = _blocks(
        deployment.hardware,
        point.memory_fraction,
        point.block_size,
        tokens,
        point.max_batch,
        scheduler.of_rest,
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
        keeps=point.preemption == CACHED,
        host_blocks=host_blocks,
        move_s=move_s,
        patience=max(1, point.poll_interval or scheduler.poll_interval),
    )


@functools.lru_cache(maxsize=1024)
def _blocks(
    hardware: Hardware,
    memory_fraction: float,
    block_size: int,
    tokens: int,
    rows: int,
    of_rest: bool,
) -> int:
    return kv_blocks(
        hardware.replica,
        memory_fraction=memory_fraction,
        block_size=block_size,
        tokens=tokens,
        rows=rows,
        of_rest=of_rest,
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
        "poll_interval",
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
