"""Metrics of training steps and whole runs, and the jobs and plans of a batch of points.

A run on `n` GPUs fails every `M = mtbf / n` hours, loses the work since the last checkpoint, and
takes `R` to restart. Failures are a Poisson process and also strike during checkpoints and
restarts, so an interval of work `I` and its checkpoint `C` take `M exp(R/M) (exp((I + C)/M) - 1)`
(Daly, A higher order estimate of the optimum checkpoint interval, 2006, eq. 20). The best interval
is `I = M (1 - u)` with `u - 1 - ln(u) = C/M`, near `sqrt(2 C M)` (Young, 1974) where `C` is short;
the goodput then is `u exp(-R/M)`.

The final loss follows from a scaling law, `L = E + A / N^a + B / D^b`, for dense models of up to
16e9 weights on web text (Hoffmann et al., 2022), with the constants of Besiroglu et al., Chinchilla
scaling: a replication attempt (2024). Other models are assumed to follow the same law.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.catalog.price import load_prices, usd_per_gpu_hours
from simulators.core.columns import mapped, numbers
from simulators.core.jit import Floats
from simulators.training.job import FULL, Constants, Job, Plans, recompute_of
from simulators.training.memory import RankMemory, host_bytes, oom_probability
from simulators.training.point import GRADIENTS, MOMENTS, TrainingMetrics, TrainingPoint
from simulators.training.schedule import DUALPIPE, DUALPIPE_V, SCHEDULES
from simulators.training.step import Steps
from simulators.training.stragglers import (
    PRODUCTION,
    least_gpus,
    production_mean,
    production_slowdown,
    slowest,
    slowest_mean,
)
from simulators.workload.precision import BYTES

HOUR_S = 3600.0

NEWTON_STEPS = 12
"""More than enough: the error is at the last bit after six."""

LEAST_SHARE = 1e-200
"""Goodput of a run that practically never ends; its time stays a number."""

LEAST_LOSS = 1.8172
OF_WEIGHTS, WEIGHTS_POWER = 482.01, 0.3478
OF_TOKENS, TOKENS_POWER = 2085.43, 0.3658
"""Of the scaling law: `E`, `A` and `a`, `B` and `b`."""


def goodput_share(
    gpus: Floats, *, gpu_mtbf_h: Floats, checkpoint_s: Floats, restart_s: Floats
) -> Floats:
    """Return the share of a run's time spent in steps that no failure undoes.

    >>> one = np.ones(1)
    >>> share = goodput_share(16384 * one, gpu_mtbf_h=50_700 * one, checkpoint_s=30 * one,
    ...                       restart_s=900 * one)
    >>> round(float(share[0]), 3)
    0.856
    """
    between_s = gpu_mtbf_h * HOUR_S / gpus
    kept = _kept_share(checkpoint_s / between_s)
    return np.asarray(np.maximum(kept * np.exp(-restart_s / between_s), LEAST_SHARE), np.float64)


def checkpoint_interval_s(gpus: Floats, *, gpu_mtbf_h: Floats, checkpoint_s: Floats) -> Floats:
    """Return the seconds of work between checkpoints that maximize the goodput."""
    between_s = gpu_mtbf_h * HOUR_S / gpus
    return np.asarray(between_s * (1.0 - _kept_share(checkpoint_s / between_s)), np.float64)


def _kept_share(pause: Floats) -> Floats:
    """Return the root `u` in (0, 1] of `u - 1 - ln(u) = pause`, by Newton's method for `ln(u)`.

    `pause` is a checkpoint over the mean time between failures. `exp(x) - 1 - x` falls and is
    convex for `x < 0`, so that iterations from the left end, `-pause - 1`, or its square root near
    0, approach the root from one side.

    >>> _kept_share(np.array([0.0, 0.5, 1e3])).round(4).tolist()
    [1.0, 0.3017, 0.0]
    """
    log = -np.minimum(pause + 1.0, np.sqrt(2.0 * pause) + pause)
    for _ in range(NEWTON_STEPS):
        slope = np.expm1(log)
        gap = slope - log - pause
        log = log - np.divide(gap, slope, out=np.zeros_like(log), where=slope < 0.0)
    return np.asarray(np.exp(np.minimum(log, 0.0)), np.float64)


def expected_loss(weights: float, tokens: Floats) -> Floats:
    """Return the expected loss of a model after a number of tokens, by the scaling law.

    >>> round(float(expected_loss(70e9, np.array(1.4e12))), 2)
    1.97
    """
    of_model = LEAST_LOSS + OF_WEIGHTS / weights**WEIGHTS_POWER
    return np.asarray(of_model + OF_TOKENS / tokens**TOKENS_POWER, np.float64)


def tokens_to_loss(weights: float, loss: Floats) -> Floats:
    """Return the tokens needed for an expected loss; infinite if the loss is never reached.

    >>> float(expected_loss(8e9, tokens_to_loss(8e9, np.array(2.1))))
    2.1
    """
    left = loss - LEAST_LOSS - OF_WEIGHTS / weights**WEIGHTS_POWER
    reached = (OF_TOKENS / np.where(left > 0, left, 1.0)) ** (1.0 / TOKENS_POWER)
    return np.asarray(np.where(left > 0, reached, np.inf), np.float64)


Columns = dict[str, Floats]

_AXES = {f.name for f in fields(TrainingPoint)}
JOB_FIELDS = (*(f.name for f in fields(Job) if f.name in _AXES), "prices")
"""Fields of a point that all rows of one job share."""

STEP_METRICS = [f.name for f in fields(TrainingMetrics) if f.name in Steps.__annotations__]
"""Columns of `Steps` that are metrics without conversion."""

PERCENTILES = (50, 95)


def job_of(group: Mapping[str, Any]) -> Job:
    """Return the job that a group of rows shares.

    Raises:
        UserError: a name is unknown.
    """
    gpu = load_gpu(group["gpu"])
    same = [name for name in JOB_FIELDS if name not in ("model", "gpu", "cluster", "prices")]
    return Job(
        model=load_model(group["model"]),
        gpu=gpu,
        cluster=cluster_for(group["cluster"], gpu),
        **{name: group[name] for name in same},
    )


def plans_of(batch: pa.RecordBatch) -> Plans:
    """Return the plan of each row.

    Raises:
        UserError: a model is unknown.
    """
    whole = {name: numbers(batch, name) for name in ("pp", "dp", "cp", "chunks", "zero")}
    micro_batch = numbers(batch, "micro_batch").astype(np.float64)
    shards, sequences = numbers(batch, "shard_ranks"), numbers(batch, "batch")
    each = sequences / (whole["dp"] * micro_batch)
    schedule = _codes(batch, "schedule", SCHEDULES)
    models = np.where(schedule == DUALPIPE, 2, 1)
    copies = whole["dp"] * whole["cp"] * models
    is_folded = (schedule == DUALPIPE_V) & (whole["chunks"] == 1)
    recompute = mapped(batch, "recompute", recompute_of).astype(np.int64)
    some = numbers(batch, "recompute_layers")
    layers = mapped(batch, "model", lambda name: load_model(name).layers)
    stage = np.ceil(layers / whole["pp"])
    again = np.where(some > 0, np.minimum(1.0, some / stage), 1.0)
    sent = np.array([BYTES[dtype] for dtype in GRADIENTS])
    moments = np.array([BYTES[dtype] for dtype in MOMENTS])
    return Plans(
        pp=whole["pp"],
        dp=whole["dp"],
        chunks=np.where(is_folded, 2, whole["chunks"]),
        micro_batch=micro_batch,
        micro_batches=np.maximum(1, np.floor(each)).astype(np.int64),
        schedule=schedule,
        recompute=recompute,
        again=np.where(recompute == FULL, again, 0.0),
        zero=whole["zero"],
        shards=np.where(shards > 0, np.minimum(shards, copies), copies),
        gradient_bytes=sent[_codes(batch, "gradient_dtype", GRADIENTS)],
        overlaps=numbers(batch, "overlap").astype(np.int64),
        tp_overlaps=(numbers(batch, "overlap") * numbers(batch, "tp_overlap")).astype(np.int64),
        offloads=numbers(batch, "offload").astype(np.int64),
        host_adam_per_s=numbers(batch, "host_adam_per_s").astype(np.float64),
        moment_bytes=moments[_codes(batch, "optimizer_dtype", MOMENTS)],
        offloaded=numbers(batch, "offload_layers").astype(np.float64),
        first=numbers(batch, "first_stage_layers").astype(np.int64),
        last=numbers(batch, "last_stage_layers").astype(np.int64),
    )


def _codes(batch: pa.RecordBatch, name: str, known: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the positions of words among the known ones; 1 past the end for others."""
    places = {word: place for place, word in enumerate(known)}
    found = mapped(batch, name, lambda word: places.get(word, len(known)))
    return found.astype(np.int64)


def step_metrics(job: Job, plans: Plans, done: Steps, constants: Constants) -> Columns:
    """Return the step metrics of each row."""
    gpus = (plans.pp * plans.dp * job.tp * job.cp).astype(np.float64)
    tokens = plans.dp * plans.micro_batch * plans.micro_batches * job.sequence
    rate = done.flops / done.step_s / gpus
    mfu = rate / job.gpu.peak(job.dtype)
    low, high = constants.band_on(job.gpu)
    return {name: getattr(done, name) for name in STEP_METRICS} | {
        "step_s_lo": done.step_s * np.maximum(low, mfu),  # no step exceeds the peak rate
        "step_s_hi": done.step_s * high,
        "tokens_per_s": tokens / done.step_s,
        "tokens_per_s_per_gpu": tokens / done.step_s / gpus,
        "flops_per_s_per_gpu": rate,
        "mfu": mfu,
        "bubble_share": done.bubble_s / done.pipeline_s,
        "trained_parameters": np.full(gpus.size, job.trained_share * job.model.parameters),
    }


def memory_metrics(job: Job, plans: Plans, memory: RankMemory) -> Columns:
    """Return the bytes in memory of the fullest rank, by use, and of a host."""
    return {
        "memory_bytes": memory.total,
        "oom_probability": oom_probability(memory.total, job.gpu.hbm_bytes),
        "host_bytes": host_bytes(job, plans),
        "weight_bytes": memory.weights,
        "gradient_bytes": memory.gradients,
        "optimizer_state_bytes": memory.states,
        "activation_bytes": memory.activations,
        "workspace_bytes": memory.workspace,
    }


def run_metrics(
    job: Job, plans: Plans, done: Columns, batch: pa.RecordBatch, where: NDArray[np.int64]
) -> Columns:
    """Return the metrics of whole runs; the cost is NaN without a price of the GPU."""
    gpus = (plans.pp * plans.dp * job.tp * job.cp).astype(np.float64)
    asked = {
        name: numbers(batch, name)[where].astype(np.float64)
        for name in ("gpu_mtbf_h", "checkpoint_s", "restart_s")
    }
    given_s = asked["checkpoint_s"]
    asked["checkpoint_s"] = np.where(
        given_s > 0, given_s, writing_s(job, plans, gpus, batch, where)
    )
    share = goodput_share(gpus, **asked)
    kinds = batch.column("stragglers").take(pa.array(where)).to_pylist()
    held_up = stretched_s(done, gpus, numbers(batch, "gpu_spread")[where], kinds)
    tokens = tokens_of(job, batch, where)
    made_s = tokens / done["tokens_per_s"]
    run_s = made_s / share
    energy_j = done["energy_j"] / done["step_s"] * run_s
    gpu, prices = (str(batch.column(name)[int(where[0])]) for name in ("gpu", "prices"))
    usd = np.full(len(gpus), usd_per_gpu_hours([gpu], prices)[0])
    every_s = checkpoint_interval_s(
        gpus, gpu_mtbf_h=asked["gpu_mtbf_h"], checkpoint_s=asked["checkpoint_s"]
    )
    return {
        "run_s": run_s,
        "run_tokens": tokens,
        "loss": expected_loss(job.model.active_parameters, tokens)
        if job.lora_rank == 0
        else np.full(tokens.size, np.nan),
        "goodput_share": share,
        "checkpoint_every_s": every_s,
        "checkpoint_pause_s": asked["checkpoint_s"],
        "run_energy_j": energy_j,
        **held_up,
        **costs_of(run_s, energy_j, gpus, usd, prices),
    }


def tokens_of(job: Job, batch: pa.RecordBatch, where: NDArray[np.int64]) -> Floats:
    """Return the tokens of runs: `tokens`, or enough for the target loss."""
    tokens = numbers(batch, "tokens")[where].astype(np.float64)
    target = numbers(batch, "target_loss")[where].astype(np.float64)
    needed = tokens_to_loss(job.model.active_parameters, target)
    return np.asarray(np.where(target > 0, needed, tokens), np.float64)


def writing_s(
    job: Job, plans: Plans, gpus: Floats, batch: pa.RecordBatch, where: NDArray[np.int64]
) -> Floats:
    """Return the seconds to write a checkpoint: trained weights and optimizer states."""
    each = numbers(batch, "storage_bytes_per_s")[where].astype(np.float64)
    size = (
        job.model.parameters
        * job.trained_share
        * (BYTES["bf16"] + BYTES["fp32"] + 2.0 * plans.moment_bytes)
    )
    return np.asarray(size / (np.ceil(gpus / job.cluster.gpus_per_node) * each), np.float64)


def loading_s(job: Job, plans: Plans, batch: pa.RecordBatch, where: NDArray[np.int64]) -> Floats:
    """Return the seconds to read a batch from storage; ranks of one replica read the same data."""
    names = ("token_bytes", "storage_bytes_per_s")
    size, rate = (numbers(batch, name)[where].astype(np.float64) for name in names)
    gpus = plans.pp * plans.dp * job.tp * job.cp
    readers = np.minimum(plans.dp, np.ceil(gpus / job.cluster.gpus_per_node))
    tokens = plans.dp * plans.micro_batch * plans.micro_batches * job.sequence
    return np.asarray(tokens * size / (readers * rate), np.float64)


def stretched_s(done: Columns, gpus: Floats, spread: Floats, kinds: Sequence[str]) -> Columns:
    """Return the mean and percentiles of the step time over draws of stragglers.

    The drawn delay replaces the fitted straggler wait: that of the slowest GPU while GPUs work, or
    the slowdown of a whole production job, NaN below the smallest of these jobs.
    """
    working_s = done["compute_s"] + done["bubble_s"]
    even_s = done["step_s"] - done["straggler_s"]
    known_s = np.where(gpus >= least_gpus(), even_s, np.nan)
    is_production = np.array([kind == PRODUCTION for kind in kinds], bool)
    found = {"step_mean_s": (slowest_mean(gpus, spread), production_mean())}
    for percent in PERCENTILES:
        slowdown = float(production_slowdown(np.array(percent / 100.0)))
        found[f"step_p{percent}_s"] = slowest(gpus, spread, percent / 100.0), slowdown
    return {
        name: np.where(is_production, known_s * slowdown, even_s + working_s * behind)
        for name, (behind, slowdown) in found.items()
    }


def costs_of(run_s: Floats, energy_j: Floats, gpus: Floats, usd: Floats, prices: str) -> Columns:
    """Return the cost of runs at `usd` per GPU-hour, and the CO2 of their energy."""
    return {
        "run_cost_usd": run_s / 3600.0 * gpus * usd,
        "run_carbon_g": load_prices(prices).carbon_g(energy_j),
    }
