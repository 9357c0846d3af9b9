"""Time, energy and evidence of each operator and message of a pipeline stage.

A kernel inside a model differs from a kernel timed alone: products that were timed with
quantization get quantized inputs from the norm before, runtimes have paces (`replica.py`), clocks
drop (`adjustments.py`), and without fusion each step between two products is a kernel. An
accelerator may compute in place of the GPU; memory, links and host stay those of the GPU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.accelerator import SEARCHED, load_accelerator
from simulators.catalog.gpu import Gpu, at_full_clock, with_clock_share
from simulators.collectives.library_models import HIGH_THROUGHPUT as FOR_MANY
from simulators.collectives.library_models import LOW_LATENCY as FOR_FEW
from simulators.collectives.library_models import Routed
from simulators.collectives.measured import CollectiveTime
from simulators.collectives.price import collective_time, expert_exchange_time
from simulators.composition.adjustments import inside_others, launched, slowdown, throttled_s
from simulators.composition.replica import (
    BLOCKS,
    FRAMEWORKS,
    LATENT,
    NARROW,
    WIDENED,
    Replica,
)
from simulators.core.columns import DATASHEET
from simulators.core.jit import Floats
from simulators.dataflow import price as dataflow
from simulators.kernels.energy import energy_j, idle_w_of
from simulators.kernels.price import is_fitted, price, roofline_s
from simulators.workload import operators as ops
from simulators.workload.llm.parallelism import (
    AUTO,
    FEW_TOKENS,
    GATHERED,
    HIGH_THROUGHPUT,
    LOW_LATENCY,
)
from simulators.workload.operators import Attention, Collective, Column, Compute, Operator

Levels = int | NDArray[np.int64]

LIBRARIES = ("nccl", "oneccl")
"""Vendor libraries: used where frameworks call them, and for unmeasured collectives."""

MODES_OF = {
    HIGH_THROUGHPUT: (FOR_MANY, FOR_MANY),
    LOW_LATENCY: (FOR_FEW, FOR_FEW),
    AUTO: (FOR_FEW, FOR_MANY),
}
"""DeepEP's kernels for few tokens per rank, and for many, by backend."""

CLOCKS = tuple(1.0 - step / 20.0 for step in range(1, 17))
"""Clock shares that are tried in order until a GPU keeps its power limit."""

ALIKE = 1.5
"""Kernels with an interval of at most this multiple of the narrowest count as equally known."""

MESSAGE_BAND, UNMEASURED_BAND = 1.25, 2.0
"""90 % intervals as factors: of messages inside a model over messages timed alone, and of
unmeasured operators."""


COLUMNS = ("seconds", "joules", "lo_s", "hi_s")
"""Columns of a row that grow with its repetitions."""


@dataclass(frozen=True)
class Row:
    """All repetitions of an operator or a message of a stage, on one GPU."""

    operator: Operator
    part: str  # of an iteration, as in `price.py`: tokens, prefill_attention, ...
    seconds: Column
    joules: Column
    lo_s: Column  # the 90 % interval
    hi_s: Column
    level: Levels  # positions in `core.columns.LEVELS`
    is_own: bool = True  # measured on the GPU itself
    is_foreign: bool = False  # experts in a format without measurements on the architecture

    def mask(self, present: Column) -> Row:
        """Return the row with zeros where `present` is 0."""
        there = np.asarray(present) > 0
        return self.scaled(lambda column: np.where(there, column, 0.0))

    def select(self, is_other: Any, other: Row) -> Row:
        """Return the row with the columns of another kernel where `is_other` is true."""
        columns: dict[str, Any] = {
            name: np.where(is_other, getattr(other, name), getattr(self, name))
            for name in (*COLUMNS, "level")
        }
        return replace(self, **columns, is_own=self.is_own and other.is_own)

    def time_sliced(self, time_share: float) -> Row:
        """Return the row under time slicing with other processes; joules do not change."""
        if time_share == 1.0:
            return self
        longer = self.scaled(lambda column: np.asarray(column) / time_share)
        return replace(longer, joules=self.joules)

    def scaled(self, change: Callable[[Column], Column]) -> Row:
        """Return the row with a function applied to all of `COLUMNS`."""
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in COLUMNS}
        return replace(self, **changed)


def least_products_s(rows: Iterable[Row], gpu: Gpu) -> Floats:
    """Return the least seconds that a GPU's data sheet allows for the products among some rows.

    Zero where a prediction is faster, as with memory that computes. Weights of a model do not fit
    into a cache; other operators may find their inputs there.
    """
    least_s, seconds = np.zeros(1), np.zeros(1)
    for row in rows:
        if isinstance(row.operator, ops.Gemm | ops.GroupedGemm):
            least_s = least_s + row.operator.repeat * roofline_s(row.operator, gpu)
            seconds = seconds + row.seconds
    return np.where(least_s <= seconds, least_s, 0.0)


def compute_rows(operators: Sequence[Compute], replica: Replica, part: str) -> list[Row]:
    """Return the prices of operators that run in sequence, repetitions included.

    Raises:
        Infeasible: a buffer of the replica's accelerator is too small.
        UnknownNameError: there is no such accelerator.
    """
    operators = launched(operators, replica)
    inside: Sequence[str] = () if replica.accelerator else inside_others(operators, replica)
    price_one = _kernel_row
    if replica.accelerator:
        is_searched = load_accelerator(replica.accelerator).mapping == SEARCHED
        price_one = _mapped_row if is_searched else _estimated_row
    return [
        price_one(operator, replica, part)
        for operator in operators
        if operator.repeat and operator.name not in inside
    ]


def is_one_launch(operators: Sequence[Compute], replica: Replica) -> bool:
    """Return whether the replica's library has one kernel for mixed attention."""
    mixed = [o for o in operators if isinstance(o, Attention) and o.phase == "mixed"]
    if replica.accelerator or not mixed:
        return False
    return all(is_fitted(one, replica.gpu, replica.library, replica.level) for one in mixed)


def message_rows(messages: Sequence[Collective], replica: Replica, part: str) -> list[Row]:
    """Return the prices of messages among the ranks of a stage, or between stages."""
    gpu = replica.gpu
    rows = []
    for message in (one for one in messages if one.repeat):
        once = message_time(message, replica)
        pace = 1.0  # no fitted deployment ran DeepEP's kernels
        if not isinstance(message, ops.ExpertExchange):
            pace = replica.runtime.pace(replica.cluster.fabric_of(gpu), "messages")
            once = delayed(once, replica.runtime.message_s.get(gpu.architecture, 0.0) / pace)
        hidden = replica.overlap if message.kind == "all_reduce" else 0.0
        factor = pace * (1.0 - hidden) * message.repeat
        seconds = once.time_s * factor
        joules = seconds * replica.active_idle_w  # ring kernels use few SMs
        lo_s = np.minimum(once.lo_s, once.time_s / MESSAGE_BAND) * factor
        hi_s = np.maximum(once.hi_s, once.time_s * MESSAGE_BAND) * factor
        rows.append(Row(message, part, seconds, joules, lo_s, hi_s, once.level))
    return rows


def delayed(message: CollectiveTime, start_s: float) -> CollectiveTime:
    """Return the price of a message with an added start time; without bytes it takes no time."""
    if not start_s:
        return message
    added_s = np.where(np.asarray(message.time_s) > 0.0, start_s, 0.0)
    times = {name: getattr(message, name) + added_s for name in ("time_s", "lo_s", "hi_s")}
    return replace(message, **times)


def message_time(message: Collective, replica: Replica) -> CollectiveTime:
    """Return the price of one message."""
    where: Any = {"ranks": message.ranks, "gpu": replica.gpu, "cluster": replica.cluster}
    if isinstance(message, ops.ExpertExchange):
        routed = Routed(message.experts, message.top_k, message.groups, message.chosen)
        few, many = (
            expert_exchange_time(mode, message.size_bytes, routed, **where)
            for mode in MODES_OF[message.kind]
        )
        is_few = np.asarray(message.tokens) <= FEW_TOKENS
        return CollectiveTime(
            **{n: np.where(is_few, column, vars(many)[n]) for n, column in vars(few).items()}
        )
    return collective_time(
        message.kind,
        message.size_bytes,
        **where,
        span=replica.layout.gpus if message.kind == "send_recv" else message.ranks,
        libraries=(replica.library, *FRAMEWORKS, *LIBRARIES),
    )


def family_of(operator: Operator) -> str:
    """Return the family of an operator in a runtime's tables."""
    if isinstance(operator, Attention):
        return operator.phase
    named = {Collective: "messages", ops.Gemm: "gemm", ops.GroupedGemm: "experts"}
    return named.get(type(operator), "vector")


def kernels_of(operator: Operator) -> str:
    """Return the family; block-scaled products, narrow experts and latents have their own."""
    family = family_of(operator)
    if isinstance(operator, Attention) and operator.latent:
        return f"{LATENT}{family}"
    if isinstance(operator, ops.Gemm | ops.GroupedGemm) and operator.weight_dtype == "fp8_block":
        return f"{BLOCKS}{family}"
    if not (isinstance(operator, ops.GroupedGemm) and operator.has_narrow_weights):
        return family
    return f"{WIDENED if operator.has_widened_weights else NARROW}{family}"


def tokens_of(operator: Operator) -> Column:
    """Return the tokens of a product; 1 for other operators."""
    if isinstance(operator, ops.Gemm):
        return operator.m
    return operator.tokens if isinstance(operator, ops.GroupedGemm) else 1.0


def rows_of(operator: Operator) -> Column:
    """Return the mean tokens per activated expert; 1 for other operators."""
    if not isinstance(operator, ops.GroupedGemm):
        return 1.0
    return np.asarray(operator.tokens, np.float64) * operator.top_k / ops.active_experts(operator)


def _kernel_row(operator: Compute, replica: Replica, part: str) -> Row:
    """Return the price of a kernel at the highest clock within the GPU's power limit.

    At the lowest clock the kernel is throttled further: the energy above idle is spent over a
    longer time.
    """
    row = _held_row(operator, replica, part)
    if not replica.power_limit_w:
        return row
    for clock_share in CLOCKS:
        is_over = np.asarray(row.joules) > replica.power_limit_w * np.asarray(row.seconds)
        if not is_over.any():
            return row
        slower = replace(replica, gpu=with_clock_share(replica.gpu, clock_share))
        lower = _held_row(operator, slower, part)
        row = row.select(is_over, lower)
    return _throttled(row, replica.power_limit_w, idle_w_of(replica.gpu))


def _throttled(row: Row, limit_w: float, idle_w: float) -> Row:
    """Return the row with a mean power of at most `limit_w`, at unchanged energy above idle."""
    seconds = np.asarray(row.seconds)
    least_s = (np.asarray(row.joules) - idle_w * seconds) / (limit_w - idle_w)
    factor = np.maximum(1.0, least_s / np.maximum(seconds, np.finfo(np.float64).tiny))
    slower = row.scaled(lambda column: column * factor)
    return replace(slower, joules=np.minimum(slower.joules, limit_w * slower.seconds))


def _held_row(operator: Compute, replica: Replica, part: str) -> Row:
    """Return the price of a kernel at a GPU's clock; at least the time at full clock."""
    row, gpu = _row_at_clock(operator, replica, part), replica.gpu
    if gpu.clock_share == 1.0:
        return row
    free = _row_at_clock(operator, replace(replica, gpu=at_full_clock(gpu)), part)
    factor = np.maximum(1.0, free.seconds / np.maximum(row.seconds, np.finfo(np.float64).tiny))
    return row.scaled(lambda column: column * factor)


def _row_at_clock(operator: Compute, replica: Replica, part: str) -> Row:
    """Return the price of the fastest kernel that an engine may run."""
    repeat, own = operator.repeat, (replica.library,)
    architecture = "" if replica.layout.routing.backend != GATHERED else replica.gpu.architecture
    competing = replica.runtime.competing(kernels_of(operator), architecture)  # DeepEP has GEMMs
    allowed = own if replica.framework or not competing else competing
    kernels = [_among_others(operator, replica, framework, part) for framework in allowed]
    best = _fastest(kernels)
    best = replace(best, joules=energy_j(operator, replica.gpu, np.asarray(best.seconds)))
    return best.scaled(lambda column: column * repeat)


def _fastest(kernels: Sequence[Row]) -> Row:
    """Return the fastest kernel measured on the GPU, else of those with about the least interval.

    The minimum of several predictions is biased low, more so for wide intervals. Each row is
    decided by itself.
    """
    own = [one for one in kernels if one.is_own]
    best, *others = own or kernels
    if not others:
        return best
    spread = [np.log(one.hi_s / one.lo_s) for one in (best, *others)]
    widest = np.inf if own else ALIKE * functools.reduce(np.minimum, spread)
    best_s = np.where(spread[0] > widest, np.inf, best.seconds)
    for other, its_spread in zip(others, spread[1:], strict=True):
        is_faster = (best_s > other.seconds) & ~(its_spread > widest)
        best_s = np.where(is_faster, other.seconds, best_s)
        best = best.select(is_faster, other)
    return best


def _among_others(operator: Compute, replica: Replica, framework: str, part: str) -> Row:
    """Return the price of one run of a framework's kernel inside a model, without joules."""
    gpu = replica.gpu
    alone = price(operator, gpu, replica.level, framework)
    pace: Column = 1.0  # no fitted deployment ran DeepEP's experts
    if not (isinstance(operator, ops.GroupedGemm) and operator.received is not None):
        pace = replica.runtime.pace_of(
            gpu.architecture,
            kernels_of(operator),
            tokens_of(operator),
            rows=rows_of(operator),
            is_own=alone.calibrated,
            is_foreign=alone.is_foreign,
        )
    seconds = alone.latency_s
    if replica.is_fused and alone.quantising_s:
        seconds = np.maximum(seconds - alone.quantising_s, roofline_s(operator, gpu))
    seconds = pace * seconds
    if replica.effects.clocks and (share := slowdown(gpu)):
        seconds = seconds + throttled_s(operator, gpu, share)
    seconds = np.asarray(seconds, np.float64)
    ratio = seconds / alone.latency_s
    lo_s, hi_s = alone.lo_s * ratio, alone.hi_s * ratio
    own, foreign = alone.calibrated, alone.is_foreign
    return Row(operator, part, seconds, 0.0, lo_s, hi_s, alone.level, own, foreign)


def _mapped_row(operator: Compute, replica: Replica, part: str) -> Row:
    """Return the price of an operator on an accelerator, mapped once per distinct size."""
    names, columns = _columns_of(operator)
    table = np.stack([column.reshape(-1) for column in columns], axis=1)
    distinct, which = np.unique(table, axis=0, return_inverse=True)
    costs = np.array([_mapped(operator, names, row, replica.accelerator) for row in distinct])
    seconds, joules = (costs[which.reshape(-1), i].reshape(columns[0].shape) for i in range(2))
    return _unmeasured_row(operator, part, seconds, joules)


def _estimated_row(operator: Compute, replica: Replica, part: str) -> Row:
    """Return the price of an operator on an accelerator, without a search for mappings."""
    shape = _columns_of(operator)[1][0].shape
    once = dataflow.estimate(operator, replica.accelerator)
    seconds, joules = (np.broadcast_to(column, shape) for column in once)
    return _unmeasured_row(operator, part, seconds, joules)


def _columns_of(operator: Compute) -> tuple[list[str], list[Floats]]:
    """Return the column sizes of an operator, broadcast to one shape; a scalar without columns."""
    sizes = {
        f.name: value
        for f in dataclasses.fields(operator)
        if isinstance(value := getattr(operator, f.name), np.ndarray)
    }
    return list(sizes), list(np.broadcast_arrays(*sizes.values())) if sizes else [np.zeros(())]


def _unmeasured_row(operator: Compute, part: str, seconds: Floats, joules: Floats) -> Row:
    """Return the row of an unmeasured operator, from the seconds of one run."""
    seconds, joules = seconds * operator.repeat, joules * operator.repeat
    lo_s, hi_s = seconds / UNMEASURED_BAND, seconds * UNMEASURED_BAND
    return Row(operator, part, seconds, joules, lo_s, hi_s, DATASHEET, is_own=False)


def _mapped(
    operator: Compute, names: list[str], sizes: Floats, accelerator: str
) -> tuple[float, float]:
    """Return the seconds and joules of one run for one set of sizes."""
    whole: dict[str, Any] = {
        name: max(1.0, float(np.rint(size))) for name, size in zip(names, sizes, strict=False)
    }
    [cost] = dataflow.price((replace(operator, repeat=1, **whole),), accelerator)
    return cost.latency_s, cost.energy_j
