"""Metrics of training steps and whole runs, and the jobs and plans of a batch of points.

A run on `n` GPUs fails every `mtbf / n` hours, loses the work since the last checkpoint, and takes
`R` to restart. Checkpoints use the best interval, `I = sqrt(2 C M)` (Young, 1974); the goodput is
Daly's first order, `1 / (1 + C/I + (I/2 + R)/M)`, with checkpoint time `C` and mean time between
failures `M`.

The final loss is an assumption: a scaling law of dense models of up to 16e9 weights on web text, `L
= E + A / N^a + B / D^b` (Hoffmann et al., 2022), with the constants of Besiroglu et al., Chinchilla
scaling: a replication attempt (2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from statistics import NormalDist
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
from simulators.training.memory import RankMemory, host_bytes, oom_probability, stage_name
from simulators.training.point import GRADIENTS, MOMENTS, TrainingMetrics, TrainingPoint
from simulators.training.schedule import DUALPIPE, DUALPIPE_V, INTERLEAVED, PAIRING, SCHEDULES
from simulators.training.stages import layout_error
from simulators.training.step import Steps
from simulators.workload.precision import BYTES

HOUR_S = 3600.0

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
    0.866
    """
    between_s = gpu_mtbf_h * HOUR_S / gpus
    interval_s = checkpoint_interval_s(gpus, gpu_mtbf_h=gpu_mtbf_h, checkpoint_s=checkpoint_s)
    lost_s = (interval_s / 2.0 + restart_s) / between_s
    writing = checkpoint_s / np.maximum(interval_s, 1e-9)
    return np.asarray(1.0 / (1.0 + writing + lost_s), np.float64)


def slowest(gpus: Floats, spread: Floats, quantile: float) -> Floats:
    """Return the relative delay of the slowest GPU behind the mean, at a quantile.

    Speeds are normally distributed, with one draw per GPU. The largest of `n` draws is below `x`
    with probability `F(x)^n` (Gumbel, Statistics of extremes, 1958), so no draw is needed.

    >>> one = np.ones(1)
    >>> float(slowest(one, 0.02 * one, 0.5)[0])
    0.0
    >>> round(float(slowest(1024 * one, 0.02 * one, 0.5)[0]), 4)
    0.0641
    """
    normal, (numbers, which) = NormalDist(), np.unique(gpus, return_inverse=True)
    behind = [normal.inv_cdf(quantile ** (1.0 / float(number))) for number in numbers]
    return np.asarray(spread * np.array(behind)[which.reshape(-1)], np.float64)


def checkpoint_interval_s(gpus: Floats, *, gpu_mtbf_h: Floats, checkpoint_s: Floats) -> Floats:
    """Return the seconds between checkpoints that minimize lost time."""
    between_s = gpu_mtbf_h * HOUR_S / gpus
    return np.asarray(np.sqrt(2.0 * checkpoint_s * between_s), np.float64)


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

GB = 1e9
PERCENTILES = (50, 95)
SHARDED_WEIGHTS = 3
"""ZeRO stage that shards weights."""


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


def too_full(job: Job, plans: Plans, memory: RankMemory, limits: Floats) -> list[str]:
    """Return for each row the reason it exceeds the GPU's memory, or an empty string.

    `limits` are the largest accepted probabilities of running out of memory.
    """
    has = job.gpu.hbm_bytes
    risks = oom_probability(memory.total, has)
    return [
        f"memory_exceeds_hbm: needs {size / GB:.1f} GB on the {stage_name(rank, pp)}, "
        f"has {has / GB:.1f} GB"
        + (f", a risk of {100 * risk:.0f} % of running out" if size <= has else "")
        if risk > limit
        else ""
        for size, rank, pp, risk, limit in zip(
            *(column.tolist() for column in (memory.total, memory.rank, plans.pp, risks, limits)),
            strict=True,
        )
    ]


def why_not(job: Job, plans: Plans, batch: NDArray[Any], targets: Floats) -> list[str]:
    """Return for each row the reason it is infeasible, or an empty string.

    `targets` are target losses; 0: none.
    """
    reasons = [""] * plans.size

    def note(broken: NDArray[np.bool_], words: str, *columns: Any) -> None:
        values = [np.broadcast_to(column, plans.size) for column in columns]
        for row in np.flatnonzero(broken):
            reasons[row] = reasons[row] or words.format(*(value[row] for value in values))

    model, pp, m = job.model, plans.pp, plans.micro_batches
    schedules = np.array([*SCHEDULES, ""])[plans.schedule]
    is_interleaved, is_folded = plans.schedule == INTERLEAVED, plans.schedule == DUALPIPE_V
    is_pairing, twice = np.isin(plans.schedule, PAIRING), plans.models > 1
    note(
        batch != plans.dp * plans.micro_batch * m,
        "batch_not_divisible: {} sequences over dp {} x micro_batch {:g}",
        *(batch, plans.dp, plans.micro_batch),
    )
    first, last, layout = plans.first, plans.last, job.pipeline_layout
    is_uneven, between = (first > 0) | (last > 0), pp - (first > 0) - (last > 0)
    rest = model.layers - first - last
    note(
        is_uneven & ((pp == 1) | is_pairing | (layout != "")),
        "uneven_stages: first_stage_layers {} and last_stage_layers {} need pp > 1, no "
        "pipeline_layout, and another schedule than dualpipe; pp {}, {}",
        *(first, last, pp, schedules),
    )
    note(
        is_uneven
        & (
            ((first % plans.chunks) + (last % plans.chunks) > 0)
            | (rest < between)
            | (rest % np.maximum(1, between * plans.chunks) > 0)
            | ((between == 0) & (rest > 0))
        ),
        "uneven_stages_do_not_divide: {} layers, {} on the first and {} on the last rank (0: as "
        "many as others), over pp {} x chunks {}",
        *(model.layers, first, last, pp, plans.chunks),
    )
    note(
        (is_uneven | (layout != "")) & (plans.zero >= SHARDED_WEIGHTS),
        "uneven_stages_under_zero_3: zero 3 is modelled for even stages only; write zero 0, 1 or 2",
    )
    if layout:
        note(is_pairing, "pipeline_layout_under_dualpipe: {} needs even stages", schedules)
        for ranks, chunks in sorted(set(zip(pp.tolist(), plans.chunks.tolist(), strict=True))):
            if wrong := layout_error(job.pipelined, ranks, chunks):
                note((pp == ranks) & (plans.chunks == chunks), wrong)
    note(
        (layout == "")
        & (pp * plans.chunks > model.layers + np.where(pp > 1, 2, 0)),  # embedding and head alone
        "pp_exceeds_layers: pp {} x chunks {}, {} layers",
        *(pp, plans.chunks, model.layers),
    )
    note(
        np.where(is_folded, plans.chunks != 2, (plans.chunks > 1) & ~is_interleaved),
        "chunks_need_interleaving: {} under {}",
        *(plans.chunks, schedules),
    )
    note(
        is_interleaved & (pp > 1) & (m % pp > 0),
        "micro_batches_not_multiple_of_pp: {} micro-batches, pp {}, interleaved",
        *(m, pp),
    )
    note(
        is_pairing & ((m < 2 * pp) | (twice & ((pp % 2 > 0) | (m % 2 > 0)))),
        "micro_batches_too_few_to_pair: {} micro-batches, pp {}, {}",
        *(m, pp, schedules),
    )
    copies = plans.dp * job.cp * plans.models
    note(
        copies % plans.shards > 0,
        "shard_ranks_do_not_divide: {} of {} copies",
        *(plans.shards, copies),
    )
    ranks = plans.dp * job.cp * job.tp
    note(
        ranks % (job.ep * job.expert_tp) > 0,
        "experts_exceed_ranks: ep {} x expert_tp {} of {} ranks of a stage",
        *(job.ep, job.expert_tp, ranks),
    )
    note(
        plans.offloaded > np.ceil(model.layers / pp),
        "offload_exceeds_stage: offload_layers {:g}, a rank has {:g} layers",
        *(plans.offloaded, np.ceil(model.layers / pp)),
    )
    note(
        ((plans.offloads > 0) | (plans.offloaded > 0)) & (job.gpu.pcie_bytes_per_s <= 0.0),
        "no_host_link: gpu '{}' states no pcie_bytes_per_s",
        job.gpu.name,
    )
    weights = model.active_parameters
    note(
        (targets > 0) & (job.lora_rank > 0),
        "loss_of_adapters: the scaling law describes models trained from scratch; set tokens, "
        "not target_loss",
    )
    note(
        (targets > 0) & np.isinf(tokens_to_loss(weights, targets)),
        "loss_out_of_reach: {:g}; a scaling law expects {} to stay above {:.3g}",
        *(targets, model.name, expected_loss(weights, np.array(np.inf))),
    )
    return reasons


def step_metrics(job: Job, plans: Plans, done: Steps, constants: Constants) -> Columns:
    """Return the step metrics of each row."""
    gpus = (plans.pp * plans.dp * job.tp * job.cp).astype(np.float64)
    tokens = plans.dp * plans.micro_batch * plans.micro_batches * job.sequence
    rate = done.flops / done.step_s / gpus
    return {name: getattr(done, name) for name in STEP_METRICS} | {
        "step_s_lo": done.step_s * constants.band[0],
        "step_s_hi": done.step_s * constants.band[1],
        "tokens_per_s": tokens / done.step_s,
        "tokens_per_s_per_gpu": tokens / done.step_s / gpus,
        "flops_per_s_per_gpu": rate,
        "mfu": rate / job.gpu.peak(job.dtype),
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
    held_up = stretched_s(done, gpus, numbers(batch, "gpu_spread")[where])
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


def stretched_s(done: Columns, gpus: Floats, spread: Floats) -> Columns:
    """Return percentiles of the step time over draws of the slowest GPU's speed.

    The drawn delay replaces the fitted straggler wait.
    """
    working_s = done["compute_s"] + done["bubble_s"]
    even_s = done["step_s"] - done["straggler_s"]
    return {
        f"step_p{percent}_s": even_s + working_s * slowest(gpus, spread, percent / 100.0)
        for percent in PERCENTILES
    }


def costs_of(run_s: Floats, energy_j: Floats, gpus: Floats, usd: Floats, prices: str) -> Columns:
    """Return the cost of runs at `usd` per GPU-hour, and the CO2 of their energy."""
    return {
        "run_cost_usd": run_s / 3600.0 * gpus * usd,
        "run_carbon_g": load_prices(prices).carbon_g(energy_j),
    }
