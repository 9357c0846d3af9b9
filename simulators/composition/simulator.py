"""The simulator of one forward pass of a language model's replica, or of a whole graph.

A replica's pass is a prefill of whole prompts, or one decode iteration. A batch passes all pipeline
stages, one after another, without other batches in flight. The serving simulator models the
interaction of requests. `simulators/graphs` prices passes over whole graphs: only this module
imports both packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.cluster import AUTO, cluster_for
from simulators.catalog.engine import engine_runtimes, resolve_runtime
from simulators.catalog.gpu import GPU_SCALES, Gpu, load_gpu, what_if
from simulators.catalog.model import load_model
from simulators.collectives.price import READS, curves_behind
from simulators.composition.adjustments import CLOCKS_CALIBRATION
from simulators.composition.explain import explained
from simulators.composition.operator_prices import least_products_s
from simulators.composition.point import (
    GRAPH_PHASES,
    PER_ROW,
    TRAINING,
    CompositionFacts,
    CompositionMetrics,
    CompositionPoint,
)
from simulators.composition.price import Iteration, pipeline_iterations, useful_flops
from simulators.composition.replica import (
    DEFAULT_RUNTIME,
    HOST,
    NOTHING,
    Replica,
    effects_without,
    load_runtime,
    runtime_across,
)
from simulators.composition.uncertainty import (
    INTERVALS_CALIBRATION,
    add_up,
    pass_interval_s,
    runtime_level,
    shares,
)
from simulators.core.columns import (
    LEVELS,
    Shares,
    batch_of,
    categories,
    equal_row_groups,
    mapped,
    numbers,
    outcome,
    table_of,
    which,
)
from simulators.core.contract import Contribution, weakest_of
from simulators.core.errors import Infeasible
from simulators.core.fields import check_batch
from simulators.core.folder import CLUSTERS, GPUS, MODELS, RUNTIMES
from simulators.dataflow.simulator import SIMULATOR as DATAFLOW
from simulators.evidence.lookup import files_behind, notes_on
from simulators.graphs import price as graphs
from simulators.kernels import price as kernels
from simulators.workload.graphs.families import draw, is_graph_model
from simulators.workload.graphs.graph import Load
from simulators.workload.llm.memory import activation_bytes, weight_bytes
from simulators.workload.llm.parallelism import Parallelism, check_blocks, check_layout
from simulators.workload.llm.step import Step, decode_step, prefill_step
from simulators.workload.operators import Column
from simulators.workload.precision import BYTES, precision

Columns = dict[str, NDArray[np.float64]]

GB = 1e9
WATTS_SHARE = 0.25
"""Half-width of the 90 % interval of a kernel's mean power, as a share."""


def gpu_of(point: Mapping[str, Any]) -> Gpu:
    """Return the GPU of a point, with its what-if scales."""
    return what_if(load_gpu(point["gpu"]), **{scale: point[scale] for scale in GPU_SCALES})


def replica_of(group: Mapping[str, Any]) -> Replica:
    """Return the replica that a group of rows shares.

    Raises:
        Infeasible: the parallelism does not fit the model, or the GPU lacks the precision.
        UserError: a value is unknown.
    """
    gpu, model, how = gpu_of(group), load_model(group["model"]), precision(group["dtype"])
    layout = Parallelism(tp=int(group["tp"]), pp=int(group["pp"]))
    check_layout(model, layout)
    check_blocks(model, layout, group["dtype"])
    for dtype in (how.compute, how.activations):
        if dtype not in gpu.peak_flops:
            has = ", ".join(gpu.peak_flops)
            raise Infeasible(
                "dtype_not_supported", f"gpu '{gpu.name}' has no {dtype} rate, it has {has}"
            )
    runtime = resolve_runtime(group["runtime"], release=group["release"])
    return Replica(
        model=model,
        gpu=gpu,
        cluster=cluster_for(group["cluster"], gpu),
        layout=layout,
        dtype=group["dtype"],
        kv_dtype=group["kv_dtype"],
        runtime=runtime_across(load_runtime(runtime), layout.width),
        framework="" if group["framework"] == AUTO else group["framework"],
        overlap=group["overlap"],
        effects=effects_without(group["without"]),
        accelerator="" if group["accelerator"] == NOTHING else group["accelerator"],
    )


def step_of(batch: pa.RecordBatch, where: NDArray[np.int64]) -> Step:
    """Return the step of each row: the sums of its phase, zeros for the other phase."""
    codes, phases = categories(batch, "phase")
    is_prefill = (codes[where] == phases.index("prefill")) if "prefill" in phases else False
    requests, context = (
        numbers(batch, name)[where].astype(np.float64) for name in ("batch", "context")
    )
    prompts = np.where(is_prefill, requests, 0.0)
    prefill, decode = prefill_step(prompts, context), decode_step(requests - prompts, context)
    return Step(**{name: column + vars(decode)[name] for name, column in vars(prefill).items()})


def memory_of(
    replica: Replica, step: Step, batch: pa.RecordBatch, where: NDArray[np.int64]
) -> Columns:
    """Return the memory of the fullest GPU by use.

    Raises:
        Infeasible: the weights exceed the GPU's memory.
    """
    model, layout = replica.model, replica.layout
    weights = weight_bytes(model, layout, replica.dtype)
    if weights > replica.gpu.hbm_bytes:
        raise Infeasible("weights_exceed_hbm", _needs(weights, replica.gpu.hbm_bytes))
    sequences, context = (numbers(batch, name)[where] for name in ("batch", "context"))
    return {
        "weight_bytes": np.full(where.size, weights),
        "kv_bytes": sequences * replica.sequence_bytes(context.astype(np.float64)),
        "activation_bytes": np.asarray(
            activation_bytes(model, layout, replica.dtype, step.tokens, step.logits_rows)
        ),
    }


def why_not(replica: Replica, memory: Columns, context: NDArray[Any]) -> NDArray[Any]:
    """Return for each row the reason that its batch cannot exist, or an empty string.

    The context is above the model's, or the batch exceeds the GPU's memory.
    """
    needed = memory["weight_bytes"] + memory["kv_bytes"] + memory["activation_bytes"]
    has, longest = replica.gpu.hbm_bytes, replica.model.max_context
    reasons = np.full(needed.shape, "", object)
    for row in np.flatnonzero(needed > has):
        reasons[row] = f"batch_exceeds_hbm: {_needs(float(needed[row]), has)}"
    reasons[context > longest] = f"context_exceeds_model: {replica.model.name} has {longest:,}"
    return reasons


def _needs(needed: float, has: float) -> str:
    return f"needs {needed / GB:.1f} GB, has {has / GB:.1f} GB"


def pass_metrics(replica: Replica, step: Step, stages: Sequence[Iteration]) -> Columns:
    """Return the metrics of a pass through all stages."""
    host_s = prompt_s(replica, step)
    latency_s = _total([stage.latency_s for stage in stages]) + host_s
    # While one stage works, the other stages are idle.
    energy_j = _total(
        [stage.energy_j + stage.waiting_w * (latency_s - stage.latency_s) for stage in stages]
    )
    lo_s, hi_s = pass_interval_s(latency_s, (stage.half_widths for stage in stages), replica)
    if not replica.accelerator:
        least_s = [least_products_s(stage.rows, replica.gpu) for stage in stages]
        lo_s = np.maximum(lo_s, _total(least_s))
    tokens = np.asarray(step.tokens)
    peak = replica.gpu.peak(precision(replica.dtype).compute) * replica.layout.gpus
    same = ("prefill_attention_s", "decode_attention_s", "collective_s", "send_recv_s", "launch_s")
    columns = {name: _total([getattr(stage, name) for stage in stages]) for name in same}
    columns["linear_s"] = _total([stage.tokens_s + stage.experts_s for stage in stages])
    below = np.hypot(1.0 - lo_s / latency_s, WATTS_SHARE)
    above = np.hypot(hi_s / latency_s - 1, WATTS_SHARE)
    return columns | {
        "latency_s": latency_s,
        "latency_s_lo": lo_s,
        "latency_s_hi": hi_s,
        "prompt_s": host_s,
        "tokens_per_s": tokens / latency_s,
        "energy_j": energy_j,
        "energy_j_lo": energy_j * np.maximum(0.0, 1.0 - below),
        "energy_j_hi": energy_j * (1.0 + above),
        "energy_per_token_j": energy_j / tokens,
        "mfu": useful_flops(replica, step) / (peak * latency_s),
    }


def evidence(replica: Replica, step: Step, stages: Sequence[Iteration]) -> Shares:
    """Return the shares of the pass's time by evidence level."""
    host = {runtime_level(replica): prompt_s(replica, step)}
    return shares(add_up((1.0, part) for part in (host, *(s.seconds_by_level for s in stages))))


def prompt_s(replica: Replica, step: Step) -> NDArray[np.float64]:
    """Return the host's seconds to tokenize the prompts of each row."""
    prompts, tokens = np.asarray(step.prefills), np.asarray(step.prefill_tokens)
    host_s = replica.runtime.prompt_s(tokens, prompts, replica.cluster)
    return np.asarray(host_s * replica.effects.prompt, np.float64)


def _total(columns: Sequence[Column]) -> NDArray[np.float64]:
    """Return the sum over stages in a fixed order, so that rows do not depend on the batch."""
    total = np.zeros(())
    for column in columns:
        total = total + column
    return total


SHARED = tuple(f.name for f in fields(CompositionPoint) if f.name not in PER_ROW)
"""Fields that rows of one replica share."""


@dataclass(frozen=True)
class Composition:
    """The simulator of this package."""

    name: str = "composition"
    version: int = 30
    point: type = CompositionPoint
    metrics: type = CompositionMetrics
    facts: type = CompositionFacts

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the metrics of every row; rows of one replica are priced together.

        Raises:
            UserError: a value is unknown.
        """
        check_batch(CompositionPoint, batch)
        rows = batch.num_rows
        out = {f.name: np.full(rows, np.nan) for f in fields(CompositionMetrics)}
        reasons = np.full(rows, "", object)
        shares = np.zeros((len(LEVELS), rows))
        is_graph = _graph_rows(batch)
        for row in np.flatnonzero(is_graph):
            try:
                job = _job_of(batch.slice(row, 1).to_pylist()[0])
                done = graphs.price_pass(job)
            except Infeasible as verdict:
                reasons[row] = str(verdict)
                continue
            for name, value in _graph_metrics(job, done).items():
                out[name][row] = value
            shares[:, row] = done.shares
        for every, group in equal_row_groups(batch, SHARED):
            where = every[~is_graph[every]]
            if not where.size:
                continue
            try:
                replica = replica_of(group)
                step = step_of(batch, where)
                found = memory_of(replica, step, batch, where)
            except Infeasible as verdict:
                reasons[where] = str(verdict)
                continue
            reasons[where] = why_not(replica, found, numbers(batch, "context")[where])
            stages = pipeline_iterations(replica, step)
            for name, column in (found | pass_metrics(replica, step, stages)).items():
                out[name][where] = column
            shares[:, where] = evidence(replica, step, stages)
        return outcome(CompositionMetrics, out, infeasible=list(reasons), shares=shares)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the files behind an axis value; for an empty name, the files of all points."""
        if name == "":
            own = (CLOCKS_CALIBRATION, INTERVALS_CALIBRATION, HOST)
            return (*own, *READS, *graphs.READS)
        if name == "model":
            return (MODELS.find(str(value)),)
        if name == "gpu":
            gpu = load_gpu(str(value))
            sheets = (GPUS.find(name) for name in (str(value), gpu.like) if name)
            files = (*sheets, *files_behind(gpu), *curves_behind(gpu))
            return (*files, CLUSTERS.find(gpu.cluster))
        if name == "cluster" and value != AUTO:
            return (CLUSTERS.find(str(value)),)
        if name == "runtime":
            runtime = load_runtime(str(value))
            names = (str(value), runtime.across, runtime.like)
            return tuple(RUNTIMES.find(one) for one in names if one)
        if name == "release" and value:
            return tuple(map(RUNTIMES.find, engine_runtimes()))
        if name == "accelerator" and value != NOTHING:
            return DATAFLOW.reads(name, value)
        return ()

    def explain(self, point: Mapping[str, Any]) -> list[Contribution]:
        """Return the contributions to time, energy and memory of a design.

        Raises:
            Infeasible: the design is infeasible.
            UserError: a value is unknown.
        """
        batch = batch_of(CompositionPoint, point)
        check_batch(CompositionPoint, batch)
        if _graph_rows(batch)[0]:
            job = _job_of(batch.to_pylist()[0])
            return graphs.explained_pass(job, graphs.price_pass(job))
        [(where, group)] = equal_row_groups(batch, SHARED)
        replica, step = replica_of(group), step_of(batch, where)
        memory, context = memory_of(replica, step, batch, where), numbers(batch, "context")
        if reason := why_not(replica, memory, context)[0]:
            name, _, words = reason.partition(": ")
            raise Infeasible(name, words)
        host_s = float(prompt_s(replica, step)[0])
        return explained(replica, step, str(categories(batch, "phase")[1][0]), host_s)

    def weakest(self, point: Mapping[str, Any]) -> Contribution | None:
        """Return the contribution of a design with the weakest evidence."""
        return weakest_of(self.explain(point))

    def describe(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the facts of every row."""
        columns = [
            numbers(batch, "tp") * numbers(batch, "pp") * numbers(batch, "dp"),
            mapped(batch, "model", _parameters),
            mapped(batch, "gpu", lambda name: load_gpu(name).hbm_bytes),
        ]
        return table_of(CompositionFacts, columns)

    def notes(self, axes: Mapping[str, Sequence[Any]]) -> Sequence[str]:
        """Return notes on GPUs without measurements."""
        return notes_on(axes["gpu"])

    def warm_up(self) -> None:
        """Compile the functions of `kernels`."""
        kernels.warm_up()


SIMULATOR = Composition()


def _graph_rows(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return a mask of the points that are passes over a graph, by model or phase."""
    by_phase = which(batch, "phase", GRAPH_PHASES.__contains__)
    return by_phase | which(batch, "model", is_graph_model)


def _job_of(point: Mapping[str, Any]) -> graphs.GraphJob:
    """Return the graph job of a point; any phase other than training is inference.

    Raises:
        Infeasible: the GPU lacks the precision, or the graph would need model parallelism.
        UserError: a name is unknown.
    """
    gpu, dtype = gpu_of(point), point["dtype"]
    if dtype not in gpu.peak_flops or BYTES.get(dtype, 0.0) < BYTES["fp16"]:
        raise Infeasible("dtype_not_supported", f"graphs on '{gpu.name}' are not run in {dtype}")
    if point["tp"] * point["pp"] != 1:
        raise Infeasible("cut_unsupported", "a graph runs whole on each GPU; dp has replicas")
    resolve_runtime(point["runtime"], release=point["release"])
    effects = effects_without(point["without"])
    replayed = point["runtime"] == DEFAULT_RUNTIME
    size = point["size"]
    if not is_graph_model(point["model"]):
        size, longest = size or point["context"], load_model(point["model"]).max_context
        if size > longest:
            raise Infeasible("context_exceeds_model", f"{point['model']} has {longest:,}")
    training = point["phase"] == TRAINING
    return graphs.GraphJob(
        model=point["model"],
        gpu=gpu,
        cluster=cluster_for(point["cluster"], gpu),
        dtype=dtype,
        load=Load(batch=int(point["batch"]), length=int(size), training=training),
        replicas=int(point["dp"]),
        is_compiled=replayed and effects.fusion,
        is_launched=effects.launch and not replayed,
        synchronises=effects.synchronisation,
    )


def _graph_metrics(job: graphs.GraphJob, one: graphs.Pass) -> Mapping[str, float]:
    """Return the metrics of a pass over a graph; tokens are inputs of a graph model."""
    each = 1 if is_graph_model(job.model) else job.load.length
    items = float(job.load.batch * job.replicas * each)
    latency_s, energy_j = one.latency_s, one.energy_j * job.replicas
    lo_s, hi_s = one.collective_s + one.total("lo_s"), one.collective_s + one.total("hi_s")
    return {
        "latency_s": latency_s,
        "tokens_per_s": items / latency_s,
        "energy_j": energy_j,
        "energy_per_token_j": energy_j / items,
        "mfu": one.useful_flops / (job.gpu.peak(job.dtype) * latency_s),
        "linear_s": one.total("busy_s") - one.attention_s,
        "prefill_attention_s": one.attention_s,
        "collective_s": one.collective_s,
        "launch_s": one.total("launch_s"),
        "latency_s_lo": lo_s,
        "latency_s_hi": hi_s,
        "energy_j_lo": energy_j * lo_s / latency_s,
        "energy_j_hi": energy_j * hi_s / latency_s,
        "weight_bytes": one.memory.weights + one.memory.gradients + one.memory.states,
        "activation_bytes": one.memory.activations,
        **dict.fromkeys(("decode_attention_s", "send_recv_s", "prompt_s", "kv_bytes"), 0.0),
    }


def _parameters(model: str) -> int:
    is_graph = is_graph_model(model)
    return draw(model, Load(batch=1)).parameters if is_graph else load_model(model).parameters
