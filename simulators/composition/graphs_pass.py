"""One pass over a graph: an inference of any model, or a training step with its optimiser.

A training step runs forward and backward, sums gradients over data-parallel GPUs in buckets while
the backward pass still runs (Li et al., PyTorch Distributed, 2020), and lets the optimiser walk
once over all weights and its states. What of the sums is exposed is read off a timeline of
computing and sending, bucket by bucket.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.cluster import Cluster, cluster_for
from simulators.catalog.gpu import Gpu, load_gpu, what_if
from simulators.collectives.traces.timeline import COMMUNICATION, Node, graph_of, timeline
from simulators.composition.effects import Effects, effects_without
from simulators.composition.graphs import (
    Framework,
    PricedLaunches,
    Span,
    load_framework,
    price_launches,
    slowdown,
    span,
)
from simulators.composition.graphs_gradients import backward_launches
from simulators.composition.graphs_kernels import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    OPTIMIZER,
    Launch,
    forward_launches,
    stream,
)
from simulators.composition.network import price_collective
from simulators.composition.overhead import DEFAULT
from simulators.core.contract import Contribution, categories
from simulators.core.errors import Infeasible, UserError
from simulators.kernels.energy import resting_w
from simulators.kernels.price import flops, moved_bytes
from simulators.workload.families import draw, is_graph_model
from simulators.workload.footprint import Footprint, kept_bytes, peak_bytes, training_footprint
from simulators.workload.graph import Graph, Load
from simulators.workload.operators import BYTES, Attention, Collective

TRAINING = "training"
PHASES = (TRAINING, INFERENCE)

BUCKET_BYTES = 25e6
"""Gradients are summed in buckets of this size: the default of PyTorch's data parallelism."""

MOST_BUCKETS = 256
"""Larger models are cut into fewer, larger buckets: the exposed part hardly depends on it."""

NS = 1e9


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is asked of a graph."""

    model: str
    gpu: Gpu
    cluster: Cluster
    dtype: str
    load: Load
    replicas: int = 1  # data-parallel GPUs of a training step
    compiled: bool = True  # a compiler joins kernels, and a graph of launches is replayed
    framework: Framework

    @property
    def graph(self) -> Graph:
        """The model as one GPU runs it."""
        return _drawn(self.model, self.load)

    @property
    def items(self) -> float:
        """Tokens of a language model, else inputs, over all replicas."""
        each = 1 if is_graph_model(self.model) else self.load.length
        return float(self.load.batch * self.replicas * each)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Where the time, the energy and the memory of one pass go, on each of its GPUs."""

    spans: Mapping[str, Span]
    attention_s: float
    collective_s: float  # of sums that computing does not hide
    waiting_j: float  # while they go on
    useful_flops: float
    memory: Footprint
    calibrated: bool
    extrapolated: bool
    priced: PricedLaunches

    @property
    def latency_s(self) -> float:
        """Seconds of the whole pass."""
        return sum(part.latency_s for part in self.spans.values()) + self.collective_s

    @property
    def energy_j(self) -> float:
        """Joules of one GPU."""
        return sum(part.energy_j for part in self.spans.values()) + self.waiting_j


def drawn_rows(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return which points are passes over a graph: by their model, or by their phase."""
    phases, names = categories(batch, "phase")
    by_phase = np.array([name in PHASES for name in names], bool)[phases]
    models, names = categories(batch, "model")
    by_model = np.array([is_graph_model(str(name)) for name in names], bool)[models]
    return np.asarray(by_phase | by_model, bool)


def job_of(point: Mapping[str, Any]) -> Job:
    """Return what a design point asks for; of a graph model, any phase but training is inference.

    Raises:
        Infeasible: the GPU has no such precision, or the model would have to be cut.
        UserError: a name nothing answers to, or a size that cannot be.
    """
    scales = ("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")
    gpu = what_if(load_gpu(point["gpu"]), **{scale: point[scale] for scale in scales})
    dtype = point["dtype"]
    if dtype not in gpu.peak_flops or BYTES.get(dtype, 0.0) < BYTES["fp16"]:
        raise Infeasible("dtype_unsupported", f"graphs on '{gpu.name}' are not run in {dtype}")
    if point["tp"] * point["pp"] != 1:
        raise Infeasible("cut_unsupported", "a graph runs whole on each GPU; dp has replicas")
    if min(point["batch"], point["dp"]) < 1 or point["size"] < 0:
        raise UserError("batch and dp must be at least 1, and size at least 0")
    effects = effects_without(point["without"])
    compiled = point["runtime"] == DEFAULT
    size = point["size"] if is_graph_model(point["model"]) else point["size"] or point["context"]
    return Job(
        model=point["model"],
        gpu=gpu,
        cluster=cluster_for(point["cluster"], gpu),
        dtype=dtype,
        load=Load(
            batch=int(point["batch"]),
            length=int(size),
            training=point["phase"] == TRAINING,
        ),
        replicas=int(point["dp"]),
        compiled=compiled and effects.fusion,
        framework=_framework(effects, compiled=compiled),
    )


def run(job: Job) -> Pass:
    """Return the pass.

    Raises:
        Infeasible: weights, or what is kept beside them, do not fit.
    """
    graph = job.graph
    memory = _memory(job, graph)
    launches = forward_launches(
        graph, job.dtype, training=job.load.training,
        fused=job.compiled and not job.load.training,
    )  # fmt: skip
    if job.load.training:
        launches += (*backward_launches(graph, job.dtype), _optimizer(graph, job.dtype))
    priced = price_launches(launches, job.gpu)
    phases = (FORWARD, BACKWARD, OPTIMIZER) if job.load.training else (INFERENCE,)
    spans = {phase: span(priced, job.gpu, phase, job.framework) for phase in phases}
    exposed_s, measured = 0.0, True
    if job.load.training and job.replicas > 1:
        exposed_s, measured = _exposed_s(job, graph.parameters, spans[BACKWARD].latency_s)
    attends = np.array([isinstance(launch.kernel, Attention) for launch in launches], bool)
    return Pass(
        spans=spans,
        attention_s=float(np.sum(priced.seconds[attends])),
        collective_s=exposed_s,
        waiting_j=exposed_s * resting_w(job.gpu),
        useful_flops=graph.flops * (3.0 if job.load.training else 1.0),
        memory=memory,
        calibrated=priced.calibrated and measured,
        extrapolated=priced.extrapolated,
        priced=priced,
    )


def metrics_of(job: Job, one: Pass) -> dict[str, float]:
    """Return the metrics of the composition simulator that a graph has."""
    items = job.items
    energy_j = one.energy_j * job.replicas
    parts = one.spans.values()
    lo_s, hi_s = (
        one.collective_s + sum(getattr(part, end) for part in parts) for end in ("lo_s", "hi_s")
    )
    busy_s = sum(part.busy_s for part in parts)
    return {
        "latency_s": one.latency_s,
        "tokens_per_s": items / one.latency_s,
        "energy_j": energy_j,
        "energy_per_token_j": energy_j / items,
        "mfu": one.useful_flops / (job.gpu.peak(job.dtype) * one.latency_s),
        "linear_s": busy_s - one.attention_s,
        "prefill_attention_s": one.attention_s,
        "decode_attention_s": 0.0,
        "collective_s": one.collective_s,
        "send_recv_s": 0.0,
        "launch_s": sum(part.launch_s for part in parts),
        "prompt_s": 0.0,
        "latency_s_lo": lo_s,
        "latency_s_hi": hi_s,
        "energy_j_lo": energy_j * lo_s / one.latency_s,
        "energy_j_hi": energy_j * hi_s / one.latency_s,
        "weight_bytes": one.memory.weights + one.memory.gradients + one.memory.states,
        "kv_bytes": 0.0,
        "activation_bytes": one.memory.activations,
    }


def explained_pass(job: Job, one: Pass) -> list[Contribution]:
    """Return what each operator and wait takes, summed over operators of one name."""
    factor = slowdown(one.priced, job.gpu, job.framework)
    columns = (one.priced.repeats, one.priced.seconds * factor, one.priced.joules * factor)
    rows: dict[tuple[str, str], list[float]] = {}
    for launch, *numbers in zip(one.priced.launches, *columns, strict=True):
        row = rows.setdefault((launch.phase, launch.node), [0.0] * 5)
        work = (float(f(launch.kernel)) * launch.repeat for f in (flops, moved_bytes))
        for place, value in enumerate((*numbers, *work)):
            row[place] += value
    level = "fitted" if one.calibrated else "unmodelled"
    found = [
        Contribution(
            phase=phase,
            name=name,
            count=count,
            time_s=seconds,
            energy_j=job.replicas * joules,
            flops=job.replicas * work,
            moved_bytes=job.replicas * moved,
            devices=job.replicas,
            bound=_bound(job, work, moved),
            level=level,
        )
        for (phase, name), (count, seconds, joules, work, moved) in rows.items()
    ]
    found += [
        Contribution(
            phase=phase,
            name="launches",
            time_s=part.launch_s,
            energy_j=job.replicas * part.launch_s * resting_w(job.gpu),
            bound="host",
        )
        for phase, part in one.spans.items()
        if part.launch_s
    ]
    if one.collective_s:
        found.append(
            Contribution(
                phase=BACKWARD,
                name="sums of gradients",
                time_s=one.collective_s,
                bound="link",
                energy_j=job.replicas * one.waiting_j,
            )
        )
    kept = {
        "weights": one.memory.weights,
        "gradients": one.memory.gradients,
        "optimiser states": one.memory.states,
        "activations": one.memory.activations,
    }
    phase = TRAINING if job.load.training else INFERENCE
    found += [Contribution(phase=phase, name=n, memory_bytes=b) for n, b in kept.items() if b]
    return found


def _bound(job: Job, work: float, moved: float) -> str:
    """Return which rate of the data sheet would take longer."""
    compute = work / job.gpu.peak(job.dtype)
    memory = moved / job.gpu.hbm_bytes_per_s
    return "compute" if compute > memory else "memory"


@functools.lru_cache(maxsize=256)
def _drawn(model: str, load: Load) -> Graph:
    return draw(model, load)


def _framework(effects: Effects, *, compiled: bool) -> Framework:
    """Return what running adds, without the effects that are left out."""
    fitted = load_framework()
    return Framework(
        launch_s=fitted.launch_s if effects.launch and not compiled else {},
        gradient=fitted.gradient,
        pace=fitted.pace,
        synchronises=effects.synchronisation,
    )


def _memory(job: Job, graph: Graph) -> Footprint:
    """Return what one GPU holds.

    Raises:
        Infeasible: it cannot.
    """
    if job.load.training:
        fixed = training_footprint(graph.parameters, job.dtype)
        kept = kept_bytes(graph, job.dtype)
    else:
        fixed = Footprint(weights=graph.parameters * BYTES[job.dtype])
        kept = peak_bytes(graph, job.dtype)
    has = job.gpu.hbm_bytes
    if fixed.total > has:
        raise Infeasible("weights_exceed_hbm", _needs(fixed.total, has))
    if fixed.total + kept > has:
        raise Infeasible("batch_exceeds_hbm", _needs(fixed.total + kept, has))
    return Footprint(
        weights=fixed.weights, gradients=fixed.gradients, states=fixed.states, activations=kept
    )


def _needs(needed: float, has: float) -> str:
    return f"needs {needed / 1e9:.1f} GB, has {has / 1e9:.1f} GB"


def _optimizer(graph: Graph, dtype: str) -> Launch:
    """Return Adam's walk over gradients, states and weights, all in one kernel."""
    width = BYTES[dtype] / BYTES["fp32"]
    copy = width if width < 1.0 else 0.0  # the narrow weights, written besides
    kernel = stream(float(graph.parameters), (3.0 + width, 3.0 + copy), "fp32")
    return Launch(kernel, 1, "adam", OPTIMIZER)


def _exposed_s(job: Job, parameters: float, backward_s: float) -> tuple[float, bool]:
    """Return the part of summing gradients that the backward pass does not cover."""
    size = parameters * BYTES[job.dtype]
    count = min(MOST_BUCKETS, max(1, math.ceil(size / BUCKET_BYTES)))
    bucket = Collective(
        name="gradients", kind="all_reduce", size_bytes=size / count, ranks=job.replicas
    )
    seconds, measured = price_collective(bucket, job.cluster, job.gpu, span=job.replicas)
    compute_ns = round(backward_s * NS / count)
    send_ns = round(float(np.asarray(seconds)) * NS)
    nodes = []
    for step in range(count):
        nodes.append(Node("backward", compute_ns, (2 * step - 2,) if step else ()))
        nodes.append(Node("sum", send_ns, (2 * step,), COMMUNICATION))
    return timeline(graph_of(nodes)).comm_exposed_ns / NS, measured
