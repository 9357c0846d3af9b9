"""Prices of a training step's kernels, summed by piece of the model, pass and kind of kernel.

Kernels of a kind are priced together: their sizes are stacked, one row per kernel, one column per
micro-batch size.
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
from simulators.training.job import (
    ACTIVATIONS,
    CORE_ATTN,
    LAYERNORM,
    MLA_UP,
    MLP,
    MOE,
    OPS,
    RINGS,
    Job,
)
from simulators.training.operators import (
    ACTIVATION,
    FORWARD,
    IN_FFN,
    IN_MLA_UP,
    KEPT_PRODUCTS,
    NORMS,
    OF_EXPERTS,
    PIECES,
    QUANTIZED_DTYPES,
    RECOMPUTATION_OF,
    PassKernel,
    pass_kernels,
)
from simulators.workload.operators import (
    Attention,
    Compute,
    Elementwise,
    Embedding,
    Gemm,
    Norm,
    positions_alike,
)

PRODUCTS = ("bf16", "fp16", "fp8", "fp4")
ATTENTION, SCORES, STREAMS = "attention", "scores", "streams"
"""Kinds of kernels, each with its pace in training: products by precision, fused attention, scores
of unfused attention, and pointwise kernels."""

SIZES: Mapping[type, tuple[str, ...]] = {
    Gemm: ("m", "n", "k", "batch"),
    Attention: ("requests", "query_tokens", "pairs", "kv_tokens"),
    Elementwise: ("elements",),
    Norm: ("rows",),
    Embedding: ("rows",),
}
"""Fields that may differ between kernels priced in one call; for other types, all columns."""

POSITIONS = np.arange(len(LEVELS))[:, None]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of a model: by pass and kind of kernel, columns over micro-batch sizes."""

    seconds: Mapping[tuple[str, str], Floats] = field(default_factory=dict)
    joules: Mapping[tuple[str, str], Floats] = field(default_factory=dict)
    launches: Mapping[str, float] = field(default_factory=dict)  # kernels, by pass
    flops: Floats  # of the forward pass, on one rank
    by_level: Floats  # seconds of all passes by evidence level


def pieces(job: Job, micro_batches: Floats) -> dict[str, Piece]:
    """Return the pieces that the model has, priced for a column of micro-batch sizes."""
    model = job.model
    names = [
        name
        for name in PIECES
        if (name != "experts" or model.expert_layers)
        and (name != "dense" or model.expert_layers < model.layers)
    ]
    asked = {name: pass_kernels(job, name, micro_batches) for name in names}
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
    """Return the kind of a kernel, which sets its pace."""
    kernel = task.kernel
    if isinstance(kernel, Gemm):
        return SCORES if kernel.name in ("scores", "weighted_values") else kernel.dtype
    if isinstance(kernel, Attention):
        return ATTENTION
    if isinstance(kernel, Norm | Elementwise):
        return SCORES if task.is_core else STREAMS
    return STREAMS


def _summed(mine: Sequence[PassKernel], columns: Sequence[Floats]) -> dict[tuple[str, str], Floats]:
    sums: dict[tuple[str, str], Floats] = {}
    for task, column in zip(mine, columns, strict=True):
        for phase, share in _pass_shares(task):
            key = (phase, kind_of(task))
            sums[key] = sums.get(key, 0.0) + share * column
    return sums


def _launches(job: Job, mine: Sequence[PassKernel]) -> dict[str, float]:
    """Return the number of kernel launches of each pass; a ring launches one per rank's keys."""
    rings = job.cp if job.context_exchange in RINGS else 1
    found: dict[str, float] = {}
    for task in mine:
        for phase, share in _pass_shares(task):
            often = rings if task.is_core else 1
            found[phase] = found.get(phase, 0.0) + share * often
    return found


def _pass_shares(task: PassKernel) -> Iterator[tuple[str, float]]:
    """Yield the passes of a kernel, each with the share of the kernel's work."""
    yield task.phase, 1.0
    if task.phase != FORWARD:
        return
    name, modules = task.kernel.name, modules_with(task)
    share = 0.5 if name in NORMS else 1.0  # one tensor in and one out, not two with the sum
    if modules:
        yield RECOMPUTATION_OF[modules], share
    if not task.is_core and not name.endswith("_down"):
        yield RECOMPUTATION_OF[OPS], KEPT_PRODUCTS.get(name, share)


def modules_with(task: PassKernel) -> int:
    """Return the bits of the modules that contain a kernel of a forward pass; 0: none."""
    name, is_of_experts = task.kernel.name, task.has_experts
    if name in IN_MLA_UP and task.is_latent:
        return MLA_UP
    if task.is_core:
        return CORE_ATTN
    if name in NORMS:  # the norm of a mixture is outside the module, as several kernels read it
        return LAYERNORM if name == NORMS[0] or is_of_experts else LAYERNORM | MLP
    if not name.startswith(IN_FFN):
        return 0
    block = MOE if is_of_experts else MLP
    return ACTIVATIONS | block if name.endswith(ACTIVATION) else block


def _priced(
    job: Job, kernels: Sequence[Compute], columns: int
) -> tuple[list[Floats], list[Floats], list[Ints]]:
    """Return seconds, joules and evidence level of each kernel.

    A product in fp8 or fp4 takes at most as long as in bf16.
    """
    replica = Replica(model=job.model, gpu=job.gpu, cluster=job.cluster, layout=job.layout)
    seconds: list[Floats] = [np.zeros(columns)] * len(kernels)
    joules, levels = list(seconds), [np.zeros(columns, np.int64)] * len(kernels)
    for where in positions_alike(kernels, _varying):
        stacked = _stacked([kernels[i] for i in where], columns)
        for row in compute_rows((stacked,), replica, "tokens"):  # empty if fused elsewhere
            shape = np.shape(row.seconds)
            columns_of = (np.broadcast_to(x, shape) for x in (row.seconds, row.joules, row.level))
            for i, second, joule, level in zip(where, *columns_of, strict=True):
                often = kernels[i].repeat  # a fraction if only some layers have the kernel
                if kernels[i].name in OF_EXPERTS:
                    often *= job.busiest  # ranks wait for the rank with the most tokens
                seconds[i], joules[i], levels[i] = often * second, often * joule, level
    gemms = {i: kernel for i, kernel in enumerate(kernels) if isinstance(kernel, Gemm)}
    quantized = {i: gemm for i, gemm in gemms.items() if gemm.dtype in QUANTIZED_DTYPES}
    if quantized:
        in_bf16 = [replace(gemm, dtype="bf16", weight_dtype="bf16") for gemm in quantized.values()]
        for i, second in zip(quantized, _priced(job, in_bf16, columns)[0], strict=True):
            seconds[i] = np.minimum(seconds[i], second)
    return seconds, joules, levels


def _varying(kernel: Compute) -> set[str]:
    """Return the fields that may differ within one price call; streams depend on bytes alone."""
    names = {"reads", "writes"} if isinstance(kernel, Elementwise) else set()
    return names.union(_sizes(kernel), ("name", "repeat"))


def _sizes(kernel: Compute) -> tuple[str, ...]:
    known = SIZES.get(type(kernel), ())
    return known or tuple(n for n, value in vars(kernel).items() if isinstance(value, np.ndarray))


def _stacked(kernels: Sequence[Compute], columns: int) -> Compute:
    """Return one operator with a row for each kernel; streams are stacked by bytes moved."""
    first = kernels[0]
    if isinstance(first, Elementwise):
        moved = np.empty((len(kernels), columns))
        for row, k in enumerate(kernels):
            assert isinstance(k, Elementwise)
            moved[row] = k.elements * (k.reads + k.writes) / 2.0
        return replace(first, name="stream", elements=moved, reads=1.0, writes=1.0, repeat=1)
    sizes: dict[str, Any] = {name: np.empty((len(kernels), columns)) for name in _sizes(first)}
    for name, stacked in sizes.items():
        for row, k in enumerate(kernels):
            stacked[row] = getattr(k, name)
    return replace(first, repeat=1, **sizes)
