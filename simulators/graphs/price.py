"""One pass over a graph: an inference of any model, or a training step with its optimizer.

Kernels run one after another. The host launches them in order and runs ahead of the GPU; the GPU
waits if the host falls behind or reads a result before the next launch. Host times, and the ratio
of backward to forward products, are fitted to whole models (`lab/fits/graphs.py`).

A training step runs forward and backward, all-reduces gradients over data-parallel GPUs in buckets
during the backward pass (Li et al., PyTorch Distributed, 2020), and runs the optimizer over all
weights and states.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.cluster import Cluster
from simulators.catalog.gpu import Gpu
from simulators.collectives.price import collective_time
from simulators.core.calibration import read_calibration
from simulators.core.columns import DATASHEET, EXTRAPOLATED, FITTED, LEVELS, MEASURED, Shares
from simulators.core.contract import Contribution
from simulators.core.errors import Infeasible
from simulators.core.folder import PACKAGE
from simulators.core.jit import Floats, Ints
from simulators.evidence.lookup import BEST
from simulators.graphs.launches import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    OPTIMIZER,
    KernelLaunch,
    backward_launches,
    forward_launches,
    stream,
)
from simulators.kernels.energy import energy_j, idle_w_of
from simulators.kernels.price import Level, flops, moved_bytes, price
from simulators.workload.graphs.families import draw, family_of
from simulators.workload.graphs.graph import (
    Footprint,
    Graph,
    Load,
    kept_bytes,
    peak_bytes,
    training_footprint,
)
from simulators.workload.operators import Attention, Compute, Elementwise, Gemm, positions_alike
from simulators.workload.precision import BYTES

CALIBRATION = PACKAGE / "graphs" / "calibration" / "pytorch.toml"
WHOLE_MODELS = PACKAGE / "graphs" / "calibration" / "whole_models.toml"

SCALARS = ("reads", "writes", "heads", "kv_heads", "head_dim", "top_k")
"""Fields that are one number for a whole column of operators."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Overheads of a framework in addition to kernel times."""

    launch_s: Mapping[str, float] = field(default_factory=dict)  # host time per kernel, by phase
    gradient: Mapping[str, float] = field(default_factory=dict)  # by vendor: see `gradient_of`
    pace: Mapping[str, float] = field(default_factory=dict)  # by kind: slowdown of streams
    synchronises: bool = True  # whether the host waits for results that it reads

    def gradient_of(self, gpu: Gpu) -> float:
        """Return the time of a backward product relative to a forward product of equal size."""
        return self.gradient.get(gpu.vendor, 1.0)


@dataclass(frozen=True)
class PricedLaunches:
    """Kernel launches of a graph with time and energy, all repetitions included."""

    launches: tuple[KernelLaunch, ...]
    seconds: Floats
    lo_s: Floats
    hi_s: Floats
    joules: Floats
    levels: Ints  # evidence levels

    def of(self, phase: str) -> NDArray[np.bool_]:
        """Return a mask of the launches of a phase."""
        return np.array([launch.phase == phase for launch in self.launches], bool)

    @property
    def repeats(self) -> Floats:
        """The number of repetitions of each launch."""
        return np.array([launch.repeat for launch in self.launches], np.float64)


@dataclass(frozen=True, kw_only=True)
class PhaseTime:
    """Seconds and joules of one phase of a pass: kernels and host launches."""

    busy_s: float
    launch_s: float
    lo_s: float
    hi_s: float
    energy_j: float

    @property
    def latency_s(self) -> float:
        """Seconds from its first launch to the end of its last kernel."""
        return self.busy_s + self.launch_s


def load_framework() -> Framework:
    """Return the overheads fitted to whole models under PyTorch."""
    table = read_calibration(CALIBRATION)["framework"]
    return Framework(**{name: table[name] for name in ("launch_s", "gradient", "pace")})


def price_launches(
    launches: Sequence[KernelLaunch], gpu: Gpu, level: Level = BEST
) -> PricedLaunches:
    """Return priced launches. Kernels of one kind are priced in one call."""
    count = len(launches)
    seconds, lo_s, hi_s, joules = (np.zeros(count) for _ in range(4))
    levels = np.zeros(count, np.int64)
    for where in positions_alike([launch.kernel for launch in launches], _varying):
        operator = _stacked([launches[i].kernel for i in where])
        priced = price(operator, gpu, level)
        seconds[where], lo_s[where], hi_s[where] = priced.latency_s, priced.lo_s, priced.hi_s
        joules[where] = energy_j(operator, gpu, np.asarray(priced.latency_s, np.float64))
        levels[where] = priced.level
    repeats = np.array([launch.repeat for launch in launches], np.float64)
    seconds, lo_s, hi_s, joules = (c * repeats for c in (seconds, lo_s, hi_s, joules))
    return PricedLaunches(tuple(launches), seconds, lo_s, hi_s, joules, levels)


def span(priced: PricedLaunches, gpu: Gpu, phase: str, framework: Framework) -> PhaseTime:
    """Return the time of one phase under a framework.

    Assumes fully correlated errors within a class of kernels and independent errors of classes.
    """
    mine = priced.of(phase)
    factor = slowdown(priced, gpu, framework)
    busy_s = float(np.sum((priced.seconds * factor)[mine]))
    launch_s = 0.0
    if host_s := framework.launch_s.get(phase, 0.0):
        repeats = priced.repeats[mine]
        waits = np.array([launch.waits for launch in priced.launches], bool)[mine]
        each_s = (priced.seconds * factor)[mine] / repeats
        end_s = finish_s(each_s, repeats, waits & framework.synchronises, host_s)
        launch_s = max(end_s - busy_s, 0.0)
    below, above = _spread(priced, factor, mine)
    return PhaseTime(
        busy_s=busy_s,
        launch_s=launch_s,
        lo_s=busy_s + launch_s - below,
        hi_s=busy_s + launch_s + above,
        energy_j=float(np.sum((priced.joules * factor)[mine])) + launch_s * idle_w_of(gpu),
    )


def finish_s(each_s: Floats, repeats: Floats, waits: NDArray[np.bool_], launch_s: float) -> float:
    """Return the end time of the last kernel, with one kernel launch after another.

    The host runs ahead of the GPU, and the GPU runs kernels in order. A launch waits for a result
    that the host reads first. Consecutive kernels with equal repetitions form a loop.

    >>> times, once = np.array([1.0, 5.0, 1.0]), np.ones(3)
    >>> finish_s(times, once, np.zeros(3, bool), launch_s=2.0)
    10.0
    >>> finish_s(times, once, np.array([False, True, False]), launch_s=2.0)
    12.0
    """
    order = _as_run(repeats)
    each_s, waits = each_s[order], waits[order]
    host_s = end_s = 0.0
    for part in np.split(np.arange(order.size), np.flatnonzero(waits) + 1):
        if part.size:
            launched_s = host_s + launch_s * np.arange(1, part.size + 1)
            done_s = np.cumsum(each_s[part])
            begins_s = np.maximum(launched_s, end_s) - (done_s - each_s[part])
            end_s = float(done_s[-1] + np.max(begins_s))
            host_s = end_s if waits[part[-1]] else float(launched_s[-1])
    return end_s


def _as_run(repeats: Floats) -> NDArray[np.int64]:
    """Return the positions of kernels in execution order."""
    changes = np.flatnonzero(np.diff(repeats)) + 1
    loops = np.split(np.arange(repeats.size), changes)
    return np.concatenate([np.tile(loop, int(repeats[loop[0]])) for loop in loops])


def slowdown(priced: PricedLaunches, gpu: Gpu, framework: Framework) -> Floats:
    """Return the slowdown of each kernel within a model, relative to the kernel alone."""
    gradient = framework.gradient_of(gpu)
    ordered = [
        gradient if launch.phase == BACKWARD and isinstance(launch.kernel, Gemm) else 1.0
        for launch in priced.launches
    ]
    return np.array(ordered) * [framework.pace.get(each.pace, 1.0) for each in priced.launches]


def _spread(priced: PricedLaunches, factor: Floats, mine: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the distances of both ends of the 90 % interval from the sum of kernels."""
    classes = np.array([type(launch.kernel).__name__ for launch in priced.launches])[mine]
    below = ((priced.seconds - priced.lo_s) * factor)[mine]
    above = ((priced.hi_s - priced.seconds) * factor)[mine]
    sums = [(below[classes == c].sum(), above[classes == c].sum()) for c in np.unique(classes)]
    lo, hi = (float(np.sqrt(np.sum(np.square(side)))) for side in zip(*sums, strict=True))
    return lo, hi


def _varying(kernel: Compute) -> set[str]:
    """Return the fields in which kernels of one call may differ; streams are grouped by name."""
    names = {"repeat"} if isinstance(kernel, Elementwise) else {"repeat", "name"}
    return names.union(_varying_columns(kernel))


def _varying_columns(kernel: Compute) -> list[str]:
    return [n for n, value in vars(kernel).items() if isinstance(value, float) and n not in SCALARS]


def _stacked(kernels: Sequence[Compute]) -> Compute:
    columns: dict[str, Any] = {
        name: np.array([getattr(kernel, name) for kernel in kernels], np.float64)
        for name in _varying_columns(kernels[0])
    }
    return dataclasses.replace(kernels[0], repeat=1, **columns)


BUCKET_BYTES = 25e6
"""Size of gradient buckets: the default of PyTorch's data parallelism."""

MOST_BUCKETS = 256
"""Largest number of buckets; more buckets hardly change the exposed time."""

READS = (CALIBRATION, WHOLE_MODELS)
"""Files that every pass depends on, besides the files of kernels and collectives."""

PASSES = 3.0
"""FLOPs of a training step over its forward pass: each product has two gradients."""


@dataclass(frozen=True, kw_only=True)
class GraphJob:
    """A pass over a graph: model, GPU, precision and load."""

    model: str
    gpu: Gpu
    cluster: Cluster
    dtype: str
    load: Load
    replicas: int = 1  # data-parallel GPUs of a training step
    is_compiled: bool = True  # a compiler fuses kernels between products
    is_launched: bool = False  # the host launches every kernel instead of replaying a CUDA graph
    synchronises: bool = True  # whether the host waits for results that it reads

    @property
    def graph(self) -> Graph:
        """The graph of the model on one GPU."""
        return _drawn(self.model, self.load)

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of the pass."""
        return (FORWARD, BACKWARD, OPTIMIZER) if self.load.training else (INFERENCE,)

    @property
    def framework(self) -> Framework:
        """The overheads of the framework."""
        fitted = load_framework()
        launch_s = fitted.launch_s if self.is_launched else {}
        return replace(fitted, launch_s=launch_s, synchronises=self.synchronises)


@dataclass(frozen=True)
class ModelGroup:
    """What measurements of whole models say about a group of families.

    `level` is the best evidence level of any of the group's times. Without an interval, `lo` and
    `hi` are 0 and the interval is that of the kernels.
    """

    factor: float = 1.0  # measured over predicted seconds
    lo: float = 0.0
    hi: float = 0.0
    level: int = DATASHEET


def model_group(job: GraphJob) -> ModelGroup:
    """Return the group of a pass; times of families without measured models are `datasheet`.

    Times on a GPU on which no model of the group was measured are `extrapolated`. A runtime without
    measured models takes the factor of the other one, so that compiled passes are not slower.
    """
    phase = "training" if job.load.training else INFERENCE
    bits = 8 * BYTES[job.dtype]
    family, other = family_of(job.model), ModelGroup()
    for one in read_calibration(WHOLE_MODELS)["whole_models"].values():
        if family not in one["families"] or (one["phase"], one["bits"]) != (phase, bits):
            continue
        factor = one["factor"] if one["is_known"] else 1.0
        if one["eager"] != job.is_launched:
            other = ModelGroup(factor)
        elif not one["is_known"]:
            return ModelGroup()
        else:
            is_measured = (job.gpu.measured_as or job.gpu.name) in one["gpus"]
            level = FITTED if is_measured and not job.gpu.is_what_if else EXTRAPOLATED
            return ModelGroup(factor, one["lo"], one["hi"], level)
    return other


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Time, energy and memory of one pass on each GPU."""

    spans: Mapping[str, PhaseTime]
    attention_s: float
    collective_s: float  # exposed time of collectives
    waiting_j: float  # during exposed collectives
    useful_flops: float
    memory: Footprint
    shares: Shares  # of time by evidence level
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


def price_pass(job: GraphJob, *, by_group: bool = True) -> Pass:
    """Return time, energy and memory of a pass.

    `by_group`: apply the factor, interval and evidence of the model's group of families.

    Raises:
        Infeasible: weights or activations do not fit into memory.
        UserError: the model has no graph, or has inconsistent sizes.
    """
    graph, training = job.graph, job.load.training
    memory = _memory(job, graph)
    fused = job.is_compiled and not training
    launches = forward_launches(graph, job.dtype, training=training, fused=fused)
    if training:
        launches += (*backward_launches(graph, job.dtype), _optimizer(graph, job.dtype))
    priced = price_launches(launches, job.gpu)
    group = model_group(job) if by_group else ModelGroup(level=MEASURED)
    priced = _scaled(priced, group)
    spans = {phase: span(priced, job.gpu, phase, job.framework) for phase in job.phases}
    if group.lo:
        spans = {phase: _within(one, group) for phase, one in spans.items()}
    exposed_s, exposed_level = 0.0, FITTED
    if training and job.replicas > 1:
        exposed_s, exposed_level = _exposed_s(job, graph.parameters, spans[BACKWARD].latency_s)
    seconds = priced.seconds * slowdown(priced, job.gpu, job.framework)
    by_level = np.bincount(priced.levels, seconds, minlength=len(LEVELS))
    by_level[max(FITTED, group.level)] += sum(part.launch_s for part in spans.values())
    by_level[exposed_level] += exposed_s
    attends = np.array([isinstance(launch.kernel, Attention) for launch in launches], bool)
    return Pass(
        spans=spans,
        attention_s=float(np.sum(priced.seconds[attends])),
        collective_s=exposed_s,
        waiting_j=exposed_s * idle_w_of(job.gpu),
        useful_flops=graph.flops * (PASSES if training else 1.0),
        memory=memory,
        shares=by_level / by_level.sum(),
        priced=priced,
    )


def _scaled(priced: PricedLaunches, group: ModelGroup) -> PricedLaunches:
    """Return launches with the factor of their group, and no better evidence than the group's."""
    names = ("seconds", "lo_s", "hi_s", "joules")
    columns = {name: group.factor * getattr(priced, name) for name in names}
    return replace(priced, levels=np.maximum(priced.levels, group.level), **columns)


def _within(one: PhaseTime, group: ModelGroup) -> PhaseTime:
    """Return the phase with the interval of its group."""
    return replace(one, lo_s=group.lo * one.latency_s, hi_s=group.hi * one.latency_s)


def explained_pass(job: GraphJob, one: Pass) -> list[Contribution]:
    """Return the contributions to a pass by operator name, waits included."""
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
    draw_w = idle_w_of(job.gpu)
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
    compute = work / job.gpu.peak(job.dtype)
    memory = moved / job.gpu.hbm_bytes_per_s
    return "compute" if compute > memory else "memory"


@functools.lru_cache(maxsize=256)
def _drawn(model: str, load: Load) -> Graph:
    return draw(model, load)


def _memory(job: GraphJob, graph: Graph) -> Footprint:
    """Return the memory footprint of one GPU.

    Raises:
        Infeasible: weights or activations do not fit into memory.
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
    """Return the launch of a fused Adam step over gradients, states and weights."""
    width = BYTES[dtype] / BYTES["fp32"]
    copy = width if width < 1.0 else 0.0  # the copy of the weights in the narrow precision
    kernel = stream(float(graph.parameters), (3.0 + width, 3.0 + copy), "fp32")
    return KernelLaunch(kernel, 1, "adam", OPTIMIZER)


def _exposed_s(job: GraphJob, parameters: float, backward_s: float) -> tuple[float, int]:
    """Return the exposed seconds of gradient all-reduce and their evidence level.

    Equal buckets become ready and are sent one after another. Either sending is slower, and all
    buckets are sent after the first one is computed, or computing is slower, and only the last
    bucket is exposed.
    """
    size = parameters * BYTES[job.dtype]
    count = min(MOST_BUCKETS, max(1, math.ceil(size / BUCKET_BYTES)))
    bucket = collective_time(
        "all_reduce", size / count, ranks=job.replicas, gpu=job.gpu, cluster=job.cluster
    )
    compute_s, send_s = backward_s / count, float(bucket.time_s)
    return max(count * send_s - (count - 1) * compute_s, send_s), int(bucket.level)
