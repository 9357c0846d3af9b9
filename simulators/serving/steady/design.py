"""Inputs of the steady state per row: request lengths, queueing station, limits of the replica.

Lengths. Drawn lengths and traces are averaged over the requests that an event simulation of the
same point serves, without requests longer than the context. A system prompt is computed for every
request, or is a prefix cache hit for every request: the first computation is neglected. With hashes
of a trace, every earlier block is a prefix cache hit: evictions are not modelled.

Limits. A running request reserves KV memory for its prompt and output. If `max_batch` is given and
does not fit, the row is infeasible; with a given arrival rate, or with the engine's default of
`max_batch`, memory limits the running requests.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.composition.replica import Replica
from simulators.core.columns import categories, mapped, numbers, which
from simulators.core.errors import UserError
from simulators.core.fields import columns_of
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.requests import max_prefix_hits, token_counts
from simulators.serving.demand.sessions import has_sessions
from simulators.serving.deployment import NUMBERS, Deployment, load_frontend, load_process
from simulators.serving.engine.limits import fixed_bytes, load_scheduler, schedules_async
from simulators.serving.options import CLOSED, EVEN, MODULATED, NONE, POISSON
from simulators.serving.point import ServingPoint
from simulators.serving.row_defaults import default_max_batch
from simulators.serving.speculation import NO_DRAFTER, last_step_excess, mean_acceptance_length
from simulators.serving.steady.iteration_times import Pipeline, ReplicaFamily
from simulators.workload.llm.memory import activation_bytes, weight_bytes


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Mean request lengths of each row; NaN where no request fits into the context."""

    prompt: Floats  # computed prompt tokens
    output: Floats
    found: Floats  # cached prefix tokens
    pairs: Floats  # query-key pairs of a prompt
    keys: Floats  # keys read by a decode
    prompt_scv: Floats  # squared coefficient of variation: variance over squared mean
    output_scv: Floats
    longest: Floats  # longest prompt, in tokens
    fitting: Floats  # share of the requests that fit into the context


@dataclass(frozen=True, kw_only=True)
class Station:
    """Limits and arrivals of one replica, per row."""

    stages: Floats
    formed_ahead: Floats  # batches that are formed before the one that starts next
    checked: Floats  # tokens per decode: one and its draft tokens
    decodes: Floats  # decode iterations per request; with drafts, fewer than output tokens
    max_batch_size: Floats  # maximum of running requests per batch in flight
    chunked: NDArray[np.bool_]
    tokens: Floats  # token limit of an iteration with prompts
    rate: Floats  # arrivals per second and replica; NaN: closed loop
    arrival_scv: Floats  # squared coefficient of variation of the gaps
    clients: Floats  # of a closed loop, per replica; inf: the batch is always full
    think_s: Floats  # think time of closed-loop clients
    server_s: Floats  # time of a request at the API server
    stream_s: Floats  # by which clients receive tokens later, per running request


@dataclass(frozen=True, kw_only=True)
class SteadyDesign:
    """The replica and the load of each row."""

    station: Station
    lengths: Lengths
    kind: Ints  # group number; equal for equal lengths
    kv_tokens: Floats  # capacity of the KV cache
    kv_blocks: Floats
    token_budget: Floats
    max_num_seqs: Floats
    gpus: Floats  # of one replica
    replicas: Floats
    usd_per_gpu_hour: Floats  # NaN: unknown
    flops_per_token: Floats
    peak_flops: Floats  # of one GPU


LENGTHS = tuple(f.name for f in fields(Lengths))


def lengths_of(batch: pa.RecordBatch, context: Floats) -> tuple[Lengths, Ints]:
    """Return the lengths of every row, and a group number that is equal for equal lengths.

    `context` is each row's limit of prompt and output together.
    """
    system = numbers(batch, "sessions.system_prompt_tokens").astype(np.float64)
    context = context - system
    prompts, prompt_values = categories(batch, "prompt_tokens")
    outputs, output_values = categories(batch, "output_tokens")
    prompt = np.array(prompt_values, np.float64)[prompts]
    output = np.array(output_values, np.float64)[outputs]
    code = prompts * len(output_values) + outputs
    total = prompt + output
    total[total > context] = np.nan
    prompt, output = prompt + 0.0 * total, output + 0.0 * total
    columns = {
        "prompt": prompt,
        "output": output,
        "found": 0.0 * total,
        "pairs": prompt * (prompt + 1.0) / 2.0,
        "keys": prompt + output / 2.0,
        "prompt_scv": 0.0 * total,
        "output_scv": 0.0 * total,
        "longest": prompt.copy(),
        "fitting": 1.0 + 0.0 * total,
    }
    drawn = np.flatnonzero((prompt == 0.0) | (output == 0.0))
    if drawn.size:
        drawn_kind = _fill(columns, batch, drawn, context)
        code = code + len(prompt_values) * len(output_values) * drawn_kind
    if system.any():
        cached = numbers(batch, "cache.prefix_caching").astype(bool)
        _precede(columns, computed=np.where(cached, 0.0, system), found=system * cached)
        kinds = np.unique(np.stack((system, cached)), axis=1, return_inverse=True)[1].reshape(-1)
        code = code * batch.num_rows + kinds
    return Lengths(**columns), code


def _precede(columns: dict[str, Floats], *, computed: Floats, found: Floats) -> None:
    """Prepend a system prompt of computed and cached tokens to every prompt, in place."""
    prompt = columns["prompt"]
    longer = prompt + computed
    columns["pairs"] += computed * prompt + computed * (computed + 1.0) / 2.0 + found * longer
    columns["prompt_scv"] *= (prompt / longer) ** 2
    columns["keys"] += computed + found
    columns["longest"] += computed
    columns["found"] += found
    columns["prompt"] = longer


def _fill(columns: dict[str, Floats], batch: pa.RecordBatch, drawn: Ints, context: Floats) -> Ints:
    """Write the mean lengths of rows with drawn lengths; return group numbers, 0 for other rows."""
    workloads, names = categories(batch, "workload")
    keys = [workloads.astype(np.float64), context]
    keys += [
        numbers(batch, name).astype(np.float64)
        for name in ("requests", "seed", "prompt_tokens", "output_tokens", "cache.prefix_caching")
    ]
    chosen = np.stack([key[drawn] for key in keys], axis=1)
    distinct, member = np.unique(chosen, axis=0, return_inverse=True)
    means = np.empty((len(distinct), len(LENGTHS)))
    for row, (name, most, *numbers_of) in enumerate(distinct):
        means[row] = _means(str(names[int(name)]), most, *map(int, numbers_of))
    kind = np.zeros(batch.num_rows, np.int64)
    kind[drawn] = member.reshape(-1) + 1
    for column, name in enumerate(LENGTHS):
        columns[name][drawn] = means[member.reshape(-1), column]
    return kind


def _means(
    workload: str, context: float, requests: int, seed: int, prompt: int, output: int, cached: int
) -> NDArray[np.float64]:
    """Return the mean lengths of the requests of a workload, in the order of `LENGTHS`."""
    if has_sessions(workload):
        raise UserError(
            f"workload '{workload}' has sessions of agents, which have no steady state; use "
            "fidelity=event"
        )
    prompts, outputs = token_counts(workload, seed, requests)
    prompts = np.full(prompts.size, prompt) if prompt else prompts
    outputs = np.full(prompts.size, output) if output else outputs
    found = np.zeros(prompts.size)
    if cached and not prompt:
        found = max_prefix_hits(workload, prompts, outputs).astype(np.float64)
    fits = prompts + outputs <= context
    if not fits.any():
        return np.full(len(LENGTHS), np.nan)
    p, d, f = prompts[fits].astype(np.float64), outputs[fits].astype(np.float64), found[fits]
    later = d - 1.0
    keys = float((later * (p + d / 2.0)).sum() / later.sum()) if later.any() else float(p.mean())
    new = p - f
    spread = [float(x.var() / x.mean() ** 2) for x in (new, d)]
    pairs = new * (new + 1.0) / 2.0 + f * new
    return np.array(
        [new.mean(), d.mean(), f.mean(), pairs.mean(), keys, *spread, new.max(), fits.mean()]
    )


def _servers(batch: pa.RecordBatch, lengths: Lengths) -> tuple[Floats, Floats]:
    """Return each request's seconds at the API server, and its seconds per running request."""
    runtimes, names = categories(batch, "runtime")
    choices, words = categories(batch, "client.frontend")
    known = [(load_process(str(name)), load_frontend(str(name))) for name in names]
    has_server = np.array([int(word != NONE) for word in words])[choices]
    request_s, token_s, stream_s = (
        np.array([[getattr(one, number) for one in both] for both in known])[runtimes, has_server]
        for number in NUMBERS
    )
    return request_s + token_s * (lengths.prompt + lengths.found), stream_s


def _formed_ahead(batch: pa.RecordBatch) -> Floats:
    """Return 1.0 for rows with asynchronous scheduling, and 0.0 for others."""
    names = ("scheduler", "runtime", "scheduling.async_scheduling", "speculation.method")
    codes, values = zip(
        *(categories(batch, name) for name in (*names, "cache.preemption")), strict=True
    )
    sizes = [len(known) for known in values]
    distinct, row = np.unique(np.ravel_multi_index(codes, sizes), return_inverse=True)
    options = zip(*np.unravel_index(distinct, sizes), strict=True)
    found = [
        schedules_async(*(str(known[i]) for known, i in zip(values, chosen, strict=True)))
        for chosen in options
    ]
    return np.array(found, np.float64)[row]


GAP_SCV = {POISSON: 1.0, EVEN: 0.0}
"""Squared coefficient of variation of the gaps between arrivals."""

_EVENT_OPTIONS = (
    "sessions.turns",
    "sessions.turn_tokens",
    "scheduling.mixed_step",
    "ep",
    "attention_dp",
    "moe.backend",
    "moe.redundant_experts",
    "moe.two_batch_overlap",
    "moe.routing_skew",
    "moe.routing_histogram",
    "lengths.spread",
    "lengths.shape",
    "lengths.max_output_tokens",
    "client.frontend_s",
    "cache.preemption",
    "iteration_table",
    "measurement.warmup",
    "measurement.server",
    "without",
    "scheduling.poll_interval",
    "scheduling.long_prefill_token_threshold",
    "speculation.disable_batch",
    "speculation.rule",
    "cache.prefix_host_bytes",
    "kv_tiers.nvme_bytes",
    "kv_tiers.remote_bytes",
    "lora.adapters",
    "autoscaling.min_replicas",
    "dynamic.exit_depth",
    "dynamic.mod_capacity",
    "dynamic.prune_keep_ratio",
)
EVENT_ONLY = {c.name: c.default for c in columns_of(ServingPoint) if c.name in _EVENT_OPTIONS}
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
            if reason not in self.texts:
                self.texts.append(reason)
            self.codes[rows] = self.texts.index(reason)


def design_of(
    batch: pa.RecordBatch, families: list[ReplicaFamily], verdicts: Verdicts
) -> SteadyDesign:
    """Return the replica and load of every row; mark infeasible rows in `verdicts`."""
    column = {name: numbers(batch, name).astype(np.float64) for name in _NUMBERS}
    _need_events(batch, verdicts)
    shared = _shared(families, batch.num_rows, verdicts)
    chunked = _schedulers(batch, column, verdicts)
    is_stated = ~np.isnan(column["max_batch"])
    column["max_batch"] = np.where(is_stated, column["max_batch"], default_max_batch(batch))
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
    grown = (lengths.prompt + lengths.found + lengths.output) * shared.per_kv_token
    free -= fixed_bytes(free, shared.per_sequence, grown, column["max_batch"])
    block = column["cache.block_size"]
    blocks = np.floor(free / (block * shared.per_kv_token))
    verdicts.add(blocks < 1.0, "no_kv_memory")
    watermark = mapped(batch, "scheduler", lambda name: load_scheduler(str(name)).watermark)
    watermark = np.where(np.isnan(column["cache.watermark"]), watermark, column["cache.watermark"])
    usable = blocks - np.floor(watermark * blocks)
    # Requests hold the system prompt together.
    once = column["sessions.system_prompt_tokens"] * column["cache.prefix_caching"]
    usable -= np.floor(once / block)
    held = np.ceil((lengths.prompt + lengths.found - once + lengths.output) / block)
    fit = np.floor(usable / held / column["pp"])
    closed = which(batch, "arrivals.process", CLOSED.__eq__)
    gap_scv = mapped(batch, "arrivals.process", lambda name: GAP_SCV.get(name, 1.0))
    rate = np.where(closed, np.nan, column["qps"] * lengths.fitting / column["replicas"])
    clients = np.where(closed, column["arrivals.clients"] / column["replicas"], np.inf)
    max_batch_size = np.floor(column["max_batch"] / column["pp"])
    chosen = np.isnan(rate) & ~closed
    verdicts.add((fit < 1.0) | (chosen & is_stated & (fit < max_batch_size)), "kv_exceeds_hbm")
    usd = column["usd_per_gpu_hour"]
    server_s, stream_s = _servers(batch, lengths)
    return SteadyDesign(
        station=Station(
            stages=column["pp"],
            formed_ahead=_formed_ahead(batch) * (column["pp"] == 1.0),
            checked=shared.checked,
            decodes=_decodes(lengths, shared),
            max_batch_size=np.minimum(max_batch_size, fit),
            chunked=chunked,
            tokens=np.where(chunked, column["chunk_size"], column["scheduling.max_batch_tokens"]),
            rate=rate,
            arrival_scv=gap_scv,
            clients=clients,
            think_s=np.where(closed, column["client.think_s"], 0.0),
            server_s=server_s,
            stream_s=stream_s,
        ),
        lengths=lengths,
        kind=kind,
        kv_tokens=blocks * block,
        kv_blocks=blocks,
        token_budget=column["chunk_size"],
        max_num_seqs=column["max_batch"],
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
    """Mark rows with options that need `fidelity: event` as infeasible."""
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
    """Return a mask of rows with chunked prefill; mark schedulers without a closed form."""
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
    per_sequence: Floats  # bytes that do not grow with its tokens
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
    later = lengths.output - 1.0
    return np.clip((later + shared.excess) / shared.gained, np.minimum(later, 1.0), later)


def _shared(families: list[ReplicaFamily], rows: int, verdicts: Verdicts) -> Shared:
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
    model, layout, dtype = replica.model, replica.layout, replica.dtype
    drafter = pipeline.drafter or NO_DRAFTER
    usd = deployment.usd_per_gpu_hour
    return (
        float(replica.gpu.hbm_bytes),
        weight_bytes(model, layout, dtype) + drafter.weight_bytes,
        replica.kv_token_bytes + drafter.kv_bytes_per_token,
        replica.fixed_sequence_bytes,
        float(activation_bytes(model, layout, dtype, 1.0, 0.0)),
        float(activation_bytes(model, layout, dtype, 0.0, 1.0)),
        float(model.max_context),
        np.nan if usd is None else usd,
        deployment.flops_per_token,
        deployment.peak_flops,
        1.0 + drafter.drafted,
        mean_acceptance_length(drafter.survival),
        last_step_excess(drafter.survival),
    )
