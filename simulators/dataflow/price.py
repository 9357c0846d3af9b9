"""Prices of operators on an accelerator, for composition of a model as on a GPU.

Products and attention are mapped; other operators stream through the outermost level. Numbers have
the width of the accelerator's words, independent of the operator's dtype.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulators.catalog.accelerator import Accelerator, load_accelerator, sheet_name
from simulators.core.errors import UserError
from simulators.core.folder import ACCELERATORS
from simulators.core.jit import Floats
from simulators.dataflow.closed_form import tabulated
from simulators.dataflow.evaluation import PJ_PER_J, machine_of
from simulators.dataflow.search.map_space import constraints_of
from simulators.dataflow.search.mapper import find
from simulators.workload import operators as ops
from simulators.workload.loop_nest import Layer, bmm, matmul

EVALUATIONS = 20_000


@dataclass(frozen=True)
class Cost:
    """Time and energy of an operator."""

    latency_s: float
    energy_j: float


def price(
    operators: Sequence[ops.Compute], accelerator: str, *, evaluations: int = EVALUATIONS
) -> tuple[Cost, ...]:
    """Return the cost of each operator, repetitions included.

    Raises:
        UserError: a size is a column, or not a positive integer.
        Infeasible: a buffer of the accelerator is too small.
    """
    return tuple(_price(operator, accelerator, evaluations) for operator in operators)


def estimate(operator: ops.Compute, accelerator: str) -> tuple[Floats, Floats]:
    """Return seconds and joules of one run of an operator, without a search for mappings.

    Sizes and results may be columns; products are priced by `closed_form`.

    Raises:
        Infeasible: a buffer of the accelerator is too small.
    """
    found, version = load_accelerator(accelerator), _version(accelerator)
    if isinstance(operator, ops.Gemm):
        work = [tabulated(version, operator.batch, operator.m, operator.k, operator.n)]
    elif isinstance(operator, ops.GroupedGemm):
        rows = np.ceil(np.asarray(operator.tokens) * operator.top_k / operator.experts)
        work = [tabulated(version, operator.experts, rows, operator.k, operator.n)]
    elif isinstance(operator, ops.Attention | ops.EncoderAttention):
        requests = np.maximum(operator.requests, 1.0)
        if isinstance(operator, ops.EncoderAttention):
            new = seen = np.asarray(operator.tokens) / requests
        else:
            new = np.maximum(operator.query_tokens / requests, 1.0)
            seen = operator.pairs / requests / new
        times, size = requests * operator.heads, operator.head_dim
        scores = tabulated(version, times, new, size, seen, keys="M")
        work = [scores, tabulated(version, times, new, seen, size, keys="C")]
    else:
        work = [_streamed(found, *_moved(operator))]
    cycles, energy_pj = (np.sum(column, axis=0) for column in zip(*work, strict=True))
    return cycles / found.clock_hz, energy_pj / PJ_PER_J


def standing_w(accelerator: str) -> float:
    """Return the leakage power of storage and multipliers, as stated by the data sheet."""
    found = load_accelerator(accelerator)
    leaks_pj = [level.energy_pj.get("leak", 0.0) * level.instances for level in found.levels]
    leaks_pj.append(found.mac.leak_pj_per_cycle * found.mac.instances)
    return sum(leaks_pj) * found.clock_hz / PJ_PER_J


def _price(operator: ops.Compute, accelerator: str, evaluations: int) -> Cost:
    name = operator.name
    if isinstance(operator, ops.Gemm):
        sizes = (operator.batch, operator.m, operator.k, operator.n)
        b, n, c, m = (_whole(size, name) for size in sizes)
        layers = [(bmm(name, b=b, n=n, c=c, m=m) if b > 1 else matmul(name, n=n, c=c, m=m), 1)]
    elif isinstance(operator, ops.GroupedGemm):
        rows = math.ceil(_number(operator.tokens, name) * operator.top_k / operator.experts)
        n, k = _whole(operator.n, name), _whole(operator.k, name)
        layers = [(matmul(name, n=max(1, rows), c=k, m=n), operator.experts)]
    elif isinstance(operator, ops.Attention | ops.EncoderAttention):
        layers = _attention(operator)
    else:
        found = load_accelerator(accelerator)
        cycles, energy_pj = _streamed(found, *_moved(operator))
        seconds, joules = float(cycles) / found.clock_hz, float(energy_pj) / PJ_PER_J
        return Cost(operator.repeat * seconds, operator.repeat * joules)
    costs = [(times, _mapped(layer, _version(accelerator), evaluations)) for layer, times in layers]
    return Cost(
        operator.repeat * sum(times * cost.latency_s for times, cost in costs),
        operator.repeat * sum(times * cost.energy_j for times, cost in costs),
    )


def _attention(operator: ops.Attention | ops.EncoderAttention) -> list[tuple[Layer, int]]:
    """Return two chained batched products per request, with the mean sizes of the batch."""
    name = operator.name
    requests = _whole(operator.requests, name)
    if isinstance(operator, ops.EncoderAttention):
        new = seen = max(1, round(_number(operator.tokens, name) / requests))
    else:
        new = max(1, round(_number(operator.query_tokens, name) / requests))
        seen = max(1, round(_number(operator.pairs, name) / requests / new))
    heads, size = int(_number(operator.heads, name)), int(_number(operator.head_dim, name))
    return [
        (bmm("scores", b=heads, n=new, c=size, m=seen), requests),
        (bmm("context", b=heads, n=new, c=seen, m=size), requests),
    ]


def _streamed(
    accelerator: Accelerator, reads: ops.Column, writes: ops.Column
) -> tuple[Floats, Floats]:
    """Return cycles and picojoules of reading and writing through the outermost level."""
    machine, dram = machine_of(accelerator), accelerator.levels[0]
    read_rate, write_rate, shared_rate = (float(rate) for rate in machine.rates[0, :3])
    reads, writes = np.asarray(reads, np.float64), np.asarray(writes, np.float64)
    slower = np.maximum(reads / read_rate, writes / write_rate)
    cycles = np.maximum(slower, (reads + writes) / shared_rate)
    energy_pj = machine.energy_pj[0, 0] * reads + machine.energy_pj[0, 1] * writes
    return cycles, energy_pj / dram.block_words


def _moved(operator: ops.Compute) -> tuple[ops.Column, ops.Column]:
    """Return the numbers that an operator reads and writes; states move once per chunk or token."""
    if isinstance(operator, ops.Elementwise):
        elements = np.asarray(operator.elements)
        return elements * operator.reads, elements * operator.writes
    if isinstance(operator, ops.CausalConvolution):
        numbers = np.asarray(operator.tokens) * operator.channels
    elif isinstance(operator, ops.StateUpdate):
        tokens = np.asarray(operator.tokens)
        passes = tokens if operator.phase == "decode" else tokens / ops.STATE_CHUNK
        numbers = passes * operator.value_heads * operator.key_dim * operator.value_dim
    elif isinstance(operator, ops.StreamMixing):
        numbers = np.asarray(operator.tokens) * operator.hidden * (operator.streams + 0.5)
    elif isinstance(operator, ops.IndexScores | ops.IndexChoice):
        numbers = np.asarray(operator.pairs)
    else:
        assert isinstance(operator, ops.Norm | ops.Embedding | ops.Quantisation), (
            "products are mapped"
        )
        numbers = np.asarray(operator.rows) * operator.cols
    return numbers, numbers


def _version(accelerator: str) -> tuple[str, int]:
    return accelerator, ACCELERATORS.find(sheet_name(accelerator)).stat().st_mtime_ns


@functools.lru_cache(maxsize=4096)
def _mapped(layer: Layer, accelerator: tuple[str, int], evaluations: int) -> Cost:
    found = load_accelerator(accelerator[0])
    best = find(
        layer,
        found,
        evaluations=evaluations,
        remainders=True,
        constraints=constraints_of(found.dataflow, layer, found),
    ).evaluation
    return Cost(best.cycles / found.clock_hz, best.energy_pj / PJ_PER_J)


def _number(size: ops.Column, name: str) -> float:
    if isinstance(size, np.ndarray) and size.size != 1:
        raise UserError(
            f"operator '{name}' has columns of sizes; an accelerator maps one at a time"
        )
    return float(np.asarray(size).reshape(-1)[0])


def _whole(size: ops.Column, name: str) -> int:
    number = _number(size, name)
    if number != int(number) or number < 1:
        raise UserError(
            f"operator '{name}' has a size of {number:g}; it must be whole and positive"
        )
    return int(number)
