"""Seconds and joules of each pass of a layer, of the embedding and of the head, by micro-batch.

Kernels of a kind are priced together: their sizes are stacked, one row per kernel, one column per
micro-batch size.

The passes are forward, input gradients and weight gradients. Recomputed kernels run with the input
gradients, sums over micro-batches with the weight gradients. A host that launches kernels one by
one runs ahead of its GPU until launching a pass takes longer than its kernels; MLPerf Training v4.1
and later submissions avoid that by CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simulators.composition.operator_prices import compute_rows
from simulators.composition.replica import Replica
from simulators.core.columns import LEVELS
from simulators.core.jit import Floats, Ints
from simulators.kernels.price import flops
from simulators.training.communication import LAYERS, Messages
from simulators.training.job import (
    ELEMENTWISE,
    RINGS,
    SELECTIVE,
    SHARED_GRADIENTS,
    Constants,
    Job,
    Plans,
)
from simulators.training.operators import (
    ACTIVATION,
    AGAIN,
    AGAIN_ELEMENTWISE,
    FORWARD,
    INPUTS,
    NARROW,
    NORMS,
    PIECES,
    SUMS,
    WEIGHTS,
    PassKernel,
    tasks,
)
from simulators.workload.operators import (
    Attention,
    Compute,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Norm,
    positions_alike,
)

RUNS_AGAIN = {AGAIN: SELECTIVE, AGAIN_ELEMENTWISE: ELEMENTWISE}
"""Recomputation that runs parts of a forward pass again, by those parts."""
PHASES = (FORWARD, INPUTS, WEIGHTS, SUMS, *RUNS_AGAIN)


def in_passes(sums: dict[str, Floats], plans: Plans, *, is_layer: bool) -> dict[str, Floats]:
    """Return sums of all phases as those of three passes, recomputation with the gradients."""
    again = {phase: sums.pop(phase) for phase in RUNS_AGAIN}
    sums[WEIGHTS] += runs(SUMS, plans) * sums.pop(SUMS)
    if is_layer:
        for phase, seconds in again.items():
            sums[INPUTS] += runs(phase, plans) * seconds
        sums[INPUTS] += plans.again * sums[FORWARD]
    return sums


def runs(phase: str, plans: Plans) -> Floats:
    """Return how often a layer runs the kernels of a phase, for each row.

    Gradients that data ranks share out are scattered after each micro-batch, and summed in shares.
    """
    often = np.ones(plans.size)
    if phase == FORWARD:
        often += plans.again
    elif phase in RUNS_AGAIN:
        often *= plans.recompute == RUNS_AGAIN[phase]
    elif phase == SUMS:
        often *= plans.zero < SHARED_GRADIENTS
    return often


def is_launched(piece: str, job: Job) -> bool:
    """Return whether the host launches the kernels of a piece separately, without CUDA graphs."""
    return piece in LAYERS and not (job.cuda_graphs or job.layer_graphs)


def launch_waits_s(
    launches: Mapping[str, float], sent: Messages, shown: Floats, constants: Constants, plans: Plans
) -> Floats:
    """Return the launch waits of a layer's forward and backward pass in seconds.

    `shown` are the seconds of a layer's passes forward, to gradients of inputs and of weights, for
    each row.
    """
    kernels = {phase: np.full(plans.size, launches.get(phase, 0.0)) for phase in PHASES}
    often = in_passes(kernels, plans, is_layer=True)
    kernels_of = np.stack([often[FORWARD], often[INPUTS] + often[WEIGHTS]], axis=1)
    forward, backward = sent.launches
    messages = np.stack([np.full(plans.size, forward), backward + plans.again * forward], axis=1)
    taken = np.stack([shown[:, 0], shown[:, 1] + shown[:, 2]], axis=1)
    waits_s = np.maximum(0.0, constants.launch_s * (kernels_of + messages) - taken)
    return np.asarray(waits_s, np.float64)


PRODUCTS = ("bf16", "fp16", "fp8", "fp4")
ATTENTION, SCORES, STREAMS, EXPERTS = "attention", "scores", "streams", "experts_"
"""Kinds of kernels, each with a pace of its own in training: products by their precision, fused
attention, its scores where it is not fused, streams over memory, grouped products by precision."""

SIZES: Mapping[type, tuple[str, ...]] = {
    Gemm: ("m", "n", "k", "batch"),
    GroupedGemm: ("tokens", "n", "k"),
    Attention: ("requests", "query_tokens", "pairs", "kv_tokens"),
    Elementwise: ("elements",),
    Norm: ("rows",),
    Embedding: ("rows",),
}
"""Fields in which kernels that one call prices may differ; of other types, all that are columns."""

POSITIONS = np.arange(len(LEVELS))[:, None]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of a model: by pass and kind of kernel, columns over micro-batch sizes."""

    seconds: Mapping[tuple[str, str], Floats] = field(default_factory=dict)
    joules: Mapping[tuple[str, str], Floats] = field(default_factory=dict)
    launches: Mapping[str, float] = field(default_factory=dict)  # kernels, by pass
    flops: Floats  # of the forward pass, on one rank
    by_level: Floats  # seconds of all passes that rest on numbers of each level


def pieces(job: Job, micro_batches: Floats) -> dict[str, Piece]:
    """Return the pieces that the model has, priced for a column of micro-batch sizes."""
    model = job.model
    names = [
        name
        for name in PIECES
        if (name != "experts" or model.expert_layers)
        and (name != "dense" or model.expert_layers < model.layers)
    ]
    asked = {name: tasks(job, name, micro_batches) for name in names}
    every = [task for one in asked.values() for task in one]
    seconds, joules, levels = _priced(job, [task.kernel for task in every], micro_batches.size)
    found, start = {}, 0
    for name, mine in asked.items():
        where = range(start, start + len(mine))
        start += len(mine)
        found[name] = Piece(
            seconds=_summed(mine, [seconds[i] for i in where]),
            joules=_summed(mine, [joules[i] for i in where]),
            launches=_launches(job, mine),
            flops=np.asarray(
                sum(
                    (flops(t.kernel) * t.kernel.repeat for t in mine if t.phase == FORWARD),
                    start=np.zeros(micro_batches.size),
                )
            ),
            by_level=sum(
                (seconds[i] * (levels[i] == POSITIONS) for i in where),
                start=np.zeros((len(LEVELS), micro_batches.size)),
            ),
        )
    return found


def kind_of(task: PassKernel) -> str:
    """Return the kind of a kernel, by which it has a pace."""
    kernel = task.kernel
    if isinstance(kernel, Gemm):
        return SCORES if kernel.name in ("scores", "weighted_values") else kernel.dtype
    if isinstance(kernel, Attention):
        return ATTENTION
    if isinstance(kernel, Norm | Elementwise):
        return SCORES if task.is_core else STREAMS
    return EXPERTS + kernel.dtype if isinstance(kernel, GroupedGemm) else STREAMS


def _summed(mine: Sequence[PassKernel], columns: Sequence[Floats]) -> dict[tuple[str, str], Floats]:
    """Return the sums by pass and kind; what recomputation runs again are passes too."""
    sums: dict[tuple[str, str], Floats] = {}
    for task, column in zip(mine, columns, strict=True):
        for phase, share in _phases(task):
            key = (phase, kind_of(task))
            sums[key] = sums.get(key, 0.0) + share * column
    return sums


def _launches(job: Job, mine: Sequence[PassKernel]) -> dict[str, float]:
    """Return the kernels of each pass; a ring attends to the keys of one rank at a time."""
    rings = job.cp if job.context_exchange in RINGS else 1
    found: dict[str, float] = {}
    for task in mine:
        for phase, share in _phases(task):
            often = rings if task.is_core else 1
            found[phase] = found.get(phase, 0.0) + share * often
    return found


def _phases(task: PassKernel) -> Iterator[tuple[str, float]]:
    """Yield the passes of a kernel, each with the share of the kernel's work."""
    yield task.phase, 1.0
    if task.phase != FORWARD:
        return
    if task.is_core:
        yield AGAIN, 1.0
    elif task.kernel.name.endswith(ACTIVATION):
        yield AGAIN_ELEMENTWISE, 1.0
    elif task.kernel.name in NORMS:
        yield AGAIN_ELEMENTWISE, 0.5  # one tensor in and one out, for two with the residual sum


def _priced(
    job: Job, kernels: Sequence[Compute], columns: int
) -> tuple[list[Floats], list[Floats], list[Ints]]:
    """Return seconds and joules of each kernel, and the level of what each rests on.

    No product takes longer for narrower operands: they are half the bytes, at twice the rate.
    """
    replica = Replica(model=job.model, gpu=job.gpu, cluster=job.cluster, cut=job.cut)
    seconds: list[Floats] = [np.zeros(columns)] * len(kernels)
    joules, levels = list(seconds), [np.zeros(columns, np.int64)] * len(kernels)
    for where in positions_alike(kernels, _varying):
        stacked = _stacked([kernels[i] for i in where], columns)
        for row in compute_rows((stacked,), replica, "tokens"):  # none if another kernel has it
            shape = np.shape(row.seconds)
            columns_of = (np.broadcast_to(x, shape) for x in (row.seconds, row.joules, row.level))
            for i, second, joule, level in zip(where, *columns_of, strict=True):
                often = kernels[i].repeat  # of some layers, a share has a kernel
                if isinstance(kernels[i], GroupedGemm):
                    often *= job.busiest  # others wait for the rank whose experts are preferred
                seconds[i], joules[i], levels[i] = often * second, often * joule, level
    narrow = {i: k for i, k in enumerate(kernels) if isinstance(k, Gemm) and k.dtype in NARROW}
    if narrow:
        wide = [replace(k, dtype="bf16", weight_dtype="bf16") for k in narrow.values()]
        for i, second in zip(narrow, _priced(job, wide, columns)[0], strict=True):
            seconds[i] = np.minimum(seconds[i], second)
    return seconds, joules, levels


def _varying(kernel: Compute) -> set[str]:
    """Return the fields that do not matter for pricing together: streams go by bytes moved."""
    names = {"reads", "writes"} if isinstance(kernel, Elementwise) else set()
    return names.union(_sizes(kernel), ("name", "repeat"))


def _sizes(kernel: Compute) -> tuple[str, ...]:
    """Return the fields that may differ between kernels priced in the same call."""
    known = SIZES.get(type(kernel), ())
    return known or tuple(n for n, value in vars(kernel).items() if isinstance(value, np.ndarray))


def _stacked(kernels: Sequence[Compute], columns: int) -> Compute:
    """Return one operator with a row for each kernel; streams by the bytes they move."""
    first = kernels[0]
    if isinstance(first, Elementwise):
        moved = [
            np.broadcast_to(k.elements * (k.reads + k.writes) / 2.0, columns)
            for k in kernels
            if isinstance(k, Elementwise)
        ]
        return replace(
            first, name="stream", elements=np.stack(moved), reads=1.0, writes=1.0, repeat=1
        )
    sizes: dict[str, Any] = {
        name: np.stack(
            [np.broadcast_to(np.asarray(getattr(k, name), np.float64), columns) for k in kernels]
        )
        for name in _sizes(first)
    }
    return replace(first, repeat=1, **sizes)
