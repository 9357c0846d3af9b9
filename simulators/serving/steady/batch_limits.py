"""Limits of a replica in the steady state: running requests, tokens per iteration, KV memory.

A running request reserves KV memory for its prompt and output. If `max_batch` is given and does not
fit, the row is infeasible; with a given arrival rate, memory limits the running requests.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.composition.replica import Replica
from simulators.core.columns import categories, mapped, numbers, which
from simulators.core.fields import columns_of
from simulators.core.jit import Floats, Ints
from simulators.serving.deployment import Deployment
from simulators.serving.engine.policies import load_scheduler
from simulators.serving.point import CLOSED, EVEN, MODULATED, POISSON, ServingPoint
from simulators.serving.speculation.acceptance import last_step_excess, mean_acceptance_length
from simulators.serving.speculation.drafter import NO_DRAFTER
from simulators.serving.steady.columns import Lengths, Station, SteadyDesign
from simulators.serving.steady.iteration_times import Pipeline, ReplicaFamily
from simulators.serving.steady.mean_lengths import lengths_of
from simulators.workload.llm.memory import activation_bytes, weight_bytes

GAP_SCV = {POISSON: 1.0, EVEN: 0.0}
"""Squared coefficient of variation of the gaps between arrivals."""

EVENT_ONLY = {
    column.name: column.default
    for column in columns_of(ServingPoint)
    if column.name
    in (
        "sessions.turns",
        "sessions.turn_tokens",
        "scheduling.mixed_step",
        "ep",
        "attention_dp",
        "moe.backend",
        "moe.redundant_experts",
        "moe.routing_skew",
        "moe.routing_histogram",
        "lengths.spread",
        "lengths.shape",
        "lengths.max_output_tokens",
        "client.frontend_s",
        "cache.preemption",
        "iteration_table",
        "measurement.warmup",
        "without",
        "scheduling.poll_interval",
        "speculation.disable_batch",
        "speculation.rule",
        "cache.prefix_host_bytes",
        "lora.adapters",
        "autoscaling.min_replicas",
        "dynamic.exit_depth",
        "dynamic.mod_capacity",
        "dynamic.prune_keep_ratio",
    )
}
"""Fields that the analytic fidelity supports only at their default values."""


class Verdicts:
    """The first infeasibility reason of each row."""

    def __init__(self, rows: int) -> None:
        self.codes = np.zeros(rows, np.int32)
        self.texts: list[str | None] = [None]

    def add(self, condemned: NDArray[np.bool_] | Ints, reason: str) -> None:
        """Mark rows, by mask or row numbers, as infeasible; keep the first reason of a row."""
        rows = np.arange(self.codes.size)[condemned]
        rows = rows[self.codes[rows] == 0]
        if rows.size:
            self.codes[rows] = self._code(reason)

    def _code(self, reason: str) -> int:
        if reason not in self.texts:
            self.texts.append(reason)
        return self.texts.index(reason)


def design_of(
    batch: pa.RecordBatch, families: list[ReplicaFamily], verdicts: Verdicts
) -> SteadyDesign:
    """Return the replica and load of every row; mark infeasible rows in `verdicts`."""
    column = {name: numbers(batch, name).astype(np.float64) for name in _NUMBERS}
    _need_events(batch, verdicts)
    shared = _shared(families, batch.num_rows, verdicts)
    chunked = _schedulers(batch, column, verdicts)
    verdicts.add(column["pp"] > column["max_batch"], "batch_smaller_than_pipeline")
    asked = column["max_context"]
    context = np.where(asked > 0.0, asked, shared.context)
    lengths, kind = lengths_of(batch, context)
    verdicts.add(np.isnan(lengths.prompt), "no_request_fits")
    free = shared.hbm * column["memory_fraction"] - shared.weights
    verdicts.add(free < 0.0, "weights_exceed_hbm")
    batch_tokens = np.maximum(column["scheduling.max_batch_tokens"], lengths.longest)
    most_tokens = np.where(chunked, column["chunk_size"], batch_tokens)
    free -= most_tokens * shared.per_token + column["max_batch"] * shared.per_row
    blocks = np.floor(free / (column["cache.block_size"] * shared.per_kv_token))
    verdicts.add(blocks < 1.0, "no_kv_memory")
    usable = blocks - np.floor(column["cache.watermark"] * blocks)
    once = (
        column["sessions.system_prompt_tokens"] * column["cache.prefix_caching"]
    )  # held by all together
    usable -= np.floor(once / column["cache.block_size"])
    held = np.ceil(
        (lengths.prompt + lengths.found - once + lengths.output) / column["cache.block_size"]
    )
    fit = np.floor(usable / held / column["pp"])
    closed = which(batch, "arrivals.process", CLOSED.__eq__)
    gap_scv = mapped(batch, "arrivals.process", lambda name: GAP_SCV.get(name, 1.0))
    rate = np.where(closed, np.nan, column["qps"] * lengths.fitting / column["replicas"])
    clients = np.where(closed, column["arrivals.clients"] / column["replicas"], np.inf)
    seats = np.floor(column["max_batch"] / column["pp"])
    chosen = np.isnan(rate) & ~closed
    verdicts.add((fit < 1.0) | (chosen & (fit < seats)), "kv_exceeds_hbm")
    usd = column["usd_per_gpu_hour"]
    return SteadyDesign(
        station=Station(
            stages=column["pp"],
            checked=shared.checked,
            decodes=_decodes(lengths, shared),
            seats=np.minimum(seats, fit),
            chunked=chunked,
            tokens=np.where(chunked, column["chunk_size"], column["scheduling.max_batch_tokens"]),
            rate=rate,
            arrival_scv=gap_scv,
            clients=clients,
            think_s=np.where(closed, column["client.think_s"], 0.0),
        ),
        lengths=lengths,
        kind=kind,
        kv_tokens=blocks * column["cache.block_size"],
        kv_blocks=blocks,
        gpus=column["tp"] * column["pp"],
        replicas=column["replicas"],
        usd_per_gpu_hour=np.where(np.isnan(usd), shared.usd, usd),
        flops_per_token=shared.flops_per_token,
        peak_flops=shared.peak,
    )


_NUMBERS = (
    "tp",
    "pp",
    "replicas",
    "chunk_size",
    "max_batch",
    "scheduling.max_batch_tokens",
    "cache.block_size",
    "arrivals.clients",
    "qps",
    "client.think_s",
    "memory_fraction",
    "cache.watermark",
    "max_context",
    "usd_per_gpu_hour",
    "sessions.system_prompt_tokens",
    "cache.prefix_caching",
)


def _need_events(batch: pa.RecordBatch, verdicts: Verdicts) -> None:
    """Mark rows with options that need `fidelity: event`."""
    for name in MODULATED:
        wrong = which(batch, "arrivals.process", name.__eq__)
        verdicts.add(wrong, f"{name}_needs_fidelity_event")
    verdicts.add(numbers(batch, "pools.prefill_gpus") > 0, "separate_pools_need_fidelity_event")
    for name, only in EVENT_ONLY.items():
        wrong = which(batch, name, partial(operator.ne, only))
        verdicts.add(wrong, f"{name.rpartition('.')[2]}_needs_fidelity_event")


def _schedulers(
    batch: pa.RecordBatch, column: dict[str, Floats], verdicts: Verdicts
) -> NDArray[np.bool_]:
    """Return which rows use chunked prefill; mark policies without a closed form."""
    codes, names = categories(batch, "scheduler")
    chunked = np.zeros(len(names), bool)
    for code, name in enumerate(names):
        policy = load_scheduler(str(name))
        chunked[code] = policy.chunked
        if not policy.caches_prefixes:
            wrong = (codes == code) & numbers(batch, "cache.prefix_caching").astype(bool)
            verdicts.add(wrong, f"{name}_has_no_prefix_cache")
        if not policy.chunked and not policy.prefill_first:
            verdicts.add(codes == code, f"{name}_needs_fidelity_event")
        for field, needed in policy.requires.items():
            wrong = (codes == code) & (column[field] != needed)
            verdicts.add(wrong, f"{name}_needs_{field.rpartition('.')[2]}_{needed}")
    return chunked[codes]


class Shared(NamedTuple):
    """Properties of the replica of each row, as columns."""

    hbm: Floats
    weights: Floats
    per_kv_token: Floats
    per_token: Floats
    per_row: Floats
    context: Floats
    usd: Floats
    flops_per_token: Floats
    peak: Floats
    checked: Floats
    gained: Floats  # acceptance length: tokens per decode
    excess: Floats  # tokens of the last decode beyond the output


def _decodes(lengths: Lengths, shared: Shared) -> Floats:
    """Return the decode iterations of a request."""
    later = lengths.output - 1.0
    return np.clip((later + shared.excess) / shared.gained, np.minimum(later, 1.0), later)


def _shared(families: list[ReplicaFamily], rows: int, verdicts: Verdicts) -> Shared:
    """Return the properties of the replica of each row, as columns."""
    number = np.empty(rows, np.int64)
    table: list[tuple[float, ...]] = []
    for family in families:
        for pipeline in family.pipelines:
            number[pipeline.rows] = len(table)
            if pipeline.replica is None or family.deployment is None:
                verdicts.add(pipeline.rows, pipeline.verdict)
                table.append((np.nan,) * len(Shared._fields))
            else:
                table.append(_facts(pipeline, pipeline.replica, family.deployment))
    columns = np.array(table, np.float64).reshape(-1, len(Shared._fields))
    return Shared(*(columns[number, i] for i in range(len(Shared._fields))))


def _facts(pipeline: Pipeline, replica: Replica, deployment: Deployment) -> tuple[float, ...]:
    """Return the properties of a replica, in the order of `Shared`."""
    model, cut, dtype = replica.model, replica.cut, replica.dtype
    drafter = pipeline.drafter or NO_DRAFTER
    usd = deployment.usd_per_gpu_hour
    return (
        float(replica.gpu.hbm_bytes),
        weight_bytes(model, cut, dtype) + drafter.weight_bytes,
        replica.kv_token_bytes + drafter.kv_bytes_per_token,
        float(activation_bytes(model, cut, dtype, 1.0, 0.0)),
        float(activation_bytes(model, cut, dtype, 0.0, 1.0)),
        float(model.max_context),
        np.nan if usd is None else usd,
        deployment.flops_per_token,
        deployment.peak_flops,
        1.0 + drafter.drafted,
        mean_acceptance_length(drafter.survival),
        last_step_excess(drafter.survival),
    )
