"""One pass over a graph: an inference of any model, or a training step with its optimiser.

A training step runs forward and backward, sums gradients over data-parallel GPUs in buckets while
the backward pass still runs (Li et al., PyTorch Distributed, 2020), and lets the optimiser walk
once over all weights and its states.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from simulators.catalog.cluster import Cluster
from simulators.catalog.gpu import Gpu
from simulators.collectives.price import collective_time
from simulators.core.columns import FITTED, LEVELS, Shares
from simulators.core.contract import Contribution
from simulators.core.errors import Infeasible
from simulators.graphs import timeline
from simulators.graphs.backward import backward_launches
from simulators.graphs.forward import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    OPTIMIZER,
    KernelLaunch,
    forward_launches,
    stream,
)
from simulators.graphs.timeline import (
    Framework,
    PhaseTime,
    PricedLaunches,
    price_launches,
    slowdown,
)
from simulators.kernels.energy import resting_w
from simulators.kernels.price import flops, moved_bytes
from simulators.workload.graphs.families import draw
from simulators.workload.graphs.footprint import (
    Footprint,
    kept_bytes,
    peak_bytes,
    training_footprint,
)
from simulators.workload.graphs.graph import Graph, Load
from simulators.workload.operators import Attention
from simulators.workload.precision import BYTES

BUCKET_BYTES = 25e6
"""Gradients are summed in buckets of this size: the default of PyTorch's data parallelism."""

MOST_BUCKETS = 256
"""Larger models are cut into fewer, larger buckets: the exposed part hardly depends on it."""

READS = (timeline.CALIBRATION,)
"""Files that every pass depends on, besides those of kernels and messages."""

NS = 1e9
PASSES = 3.0
"""Products of a training step over those of its forward pass: each has two gradients."""


@dataclass(frozen=True, kw_only=True)
class GraphJob:
    """What is asked of a graph."""

    model: str
    gpu: Gpu
    cluster: Cluster
    dtype: str
    load: Load
    replicas: int = 1  # data-parallel GPUs of a training step
    is_compiled: bool = True  # a compiler joins kernels between products
    is_launched: bool = False  # a host launches every kernel, where no graph of them is replayed
    synchronises: bool = True  # whether waits of the host are counted

    @property
    def graph(self) -> Graph:
        """The model as one GPU runs it."""
        return _drawn(self.model, self.load)

    @property
    def phases(self) -> tuple[str, ...]:
        """What the pass consists of."""
        return (FORWARD, BACKWARD, OPTIMIZER) if self.load.training else (INFERENCE,)

    @property
    def framework(self) -> Framework:
        """What running adds to the kernels."""
        fitted = timeline.load_framework()
        launch_s = fitted.launch_s if self.is_launched else {}
        return replace(fitted, launch_s=launch_s, synchronises=self.synchronises)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Where the time, the energy and the memory of one pass go, on each of its GPUs."""

    spans: Mapping[str, PhaseTime]
    attention_s: float
    collective_s: float  # of sums that computing does not hide
    waiting_j: float  # during exposed collectives
    useful_flops: float
    memory: Footprint
    shares: Shares  # of its time, by what it rests on
    priced: PricedLaunches

    @property
    def latency_s(self) -> float:
        """Seconds of the whole pass."""
        return self.total("latency_s") + self.collective_s

    @property
    def energy_j(self) -> float:
        """Joules of one GPU."""
        return self.total("energy_j") + self.waiting_j

    def total(self, name: str) -> float:
        """Return the sum of a number over all spans."""
        return float(sum(getattr(part, name) for part in self.spans.values()))


def price_pass(job: GraphJob) -> Pass:
    """Return the pass.

    Raises:
        Infeasible: weights, or what is kept beside them, do not fit.
        UserError: the model cannot be drawn, or has sizes that do not fit together.
    """
    graph, training = job.graph, job.load.training
    memory = _memory(job, graph)
    fused = job.is_compiled and not training
    launches = forward_launches(graph, job.dtype, training=training, fused=fused)
    if training:
        launches += (*backward_launches(graph, job.dtype), _optimizer(graph, job.dtype))
    priced = price_launches(launches, job.gpu)
    spans = {phase: timeline.span(priced, job.gpu, phase, job.framework) for phase in job.phases}
    exposed_s, exposed_level = 0.0, FITTED
    if training and job.replicas > 1:
        exposed_s, exposed_level = _exposed_s(job, graph.parameters, spans[BACKWARD].latency_s)
    seconds = priced.seconds * slowdown(priced, job.gpu, job.framework)
    by_level = np.bincount(priced.levels, seconds, minlength=len(LEVELS))
    by_level[FITTED] += sum(part.launch_s for part in spans.values())
    by_level[exposed_level] += exposed_s
    attends = np.array([isinstance(launch.kernel, Attention) for launch in launches], bool)
    return Pass(
        spans=spans,
        attention_s=float(np.sum(priced.seconds[attends])),
        collective_s=exposed_s,
        waiting_j=exposed_s * resting_w(job.gpu),
        useful_flops=graph.flops * (PASSES if training else 1.0),
        memory=memory,
        shares=by_level / by_level.sum(),
        priced=priced,
    )


def explained_pass(job: GraphJob, one: Pass) -> list[Contribution]:
    """Return time and energy per operator name, waits included."""
    factor = slowdown(one.priced, job.gpu, job.framework)
    columns = (one.priced.repeats, one.priced.seconds * factor, one.priced.joules * factor)
    rows: dict[tuple[str, str], list[float]] = {}
    levels: dict[tuple[str, str], int] = {}
    launches = zip(one.priced.launches, one.priced.levels.tolist(), *columns, strict=True)
    for launch, level, *numbers in launches:
        named = (launch.phase, launch.node)
        levels[named] = max(levels.get(named, 0), level)
        row = rows.setdefault(named, [0.0] * 5)
        work = (float(f(launch.kernel)) * launch.repeat for f in (flops, moved_bytes))
        for place, value in enumerate((*numbers, *work)):
            row[place] += value
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
            level=LEVELS[levels[phase, name]],
            on=job.gpu.name,
        )
        for (phase, name), (count, seconds, joules, work, moved) in rows.items()
    ]
    draw_w = resting_w(job.gpu)
    waits = [
        (phase, "launches", part.launch_s, job.replicas * part.launch_s * draw_w, "host")
        for phase, part in one.spans.items()
    ]
    summing_j = job.replicas * one.waiting_j
    waits.append((BACKWARD, "sums of gradients", one.collective_s, summing_j, "link"))
    found += [
        Contribution(phase=phase, name=name, time_s=time_s, energy_j=joules, bound=bound)
        for phase, name, time_s, joules, bound in waits
        if time_s
    ]
    kept = {
        "weights": one.memory.weights,
        "gradients": one.memory.gradients,
        "optimiser states": one.memory.states,
        "activations": one.memory.activations,
    }
    phase = "training" if job.load.training else INFERENCE
    found += [Contribution(phase=phase, name=n, memory_bytes=b) for n, b in kept.items() if b]
    return found


def _bound(job: GraphJob, work: float, moved: float) -> str:
    """Return which rate of the data sheet would take longer."""
    compute = work / job.gpu.peak(job.dtype)
    memory = moved / job.gpu.hbm_bytes_per_s
    return "compute" if compute > memory else "memory"


@functools.lru_cache(maxsize=256)
def _drawn(model: str, load: Load) -> Graph:
    return draw(model, load)


def _memory(job: GraphJob, graph: Graph) -> Footprint:
    """Return the memory footprint of one GPU.

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
    for needed, verdict in (
        (fixed.total, "weights_exceed_hbm"),
        (fixed.total + kept, "batch_exceeds_hbm"),
    ):
        if needed > has:
            raise Infeasible(verdict, f"needs {needed / 1e9:.1f} GB, has {has / 1e9:.1f} GB")
    return replace(fixed, activations=kept)


def _optimizer(graph: Graph, dtype: str) -> KernelLaunch:
    """Return Adam's walk over gradients, states and weights, all in one kernel."""
    width = BYTES[dtype] / BYTES["fp32"]
    copy = width if width < 1.0 else 0.0  # the narrow weights, written besides
    kernel = stream(float(graph.parameters), (3.0 + width, 3.0 + copy), "fp32")
    return KernelLaunch(kernel, 1, "adam", OPTIMIZER)


def _exposed_s(job: GraphJob, parameters: float, backward_s: float) -> tuple[float, int]:
    """Return the exposed seconds of gradient all-reduce and their evidence level.

    Equal buckets become ready one after another and are sent one after another, so either the
    first waits for computing and all others for sending, or the last for computing.
    """
    size = parameters * BYTES[job.dtype]
    count = min(MOST_BUCKETS, max(1, math.ceil(size / BUCKET_BYTES)))
    bucket = collective_time(
        "all_reduce", size / count, ranks=job.replicas, gpu=job.gpu, cluster=job.cluster
    )
    compute_ns = round(backward_s * NS / count)
    send_ns = round(float(bucket.time_s) * NS)
    end_ns = max(compute_ns + count * send_ns, count * compute_ns + send_ns)
    return (end_ns - count * compute_ns) / NS, int(bucket.level)
