"""What each operator and message of a stage takes among the others, and what that rests on.

A kernel among others differs from one timed alone. Products that quantise their activations first
were timed with that; in an engine the norm or activation before them writes the narrow numbers.
Engines have paces of their own (`overhead.py`), and boards lower their clocks (`clocks.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.composition.accelerated import accelerated
from simulators.composition.clocks import slowdown, throttled_s
from simulators.composition.fusion import unfused
from simulators.composition.network import fabric_of, price_collective
from simulators.composition.replica import Replica
from simulators.kernels.energy import energy_j, resting_w
from simulators.kernels.families.experts import is_timed_as_layer
from simulators.kernels.families.gemm import tensor_rates_of
from simulators.kernels.families.tensor_cores import PLAIN
from simulators.kernels.levels import BEST, profile_of
from simulators.kernels.price import Priced, price, roofline_s
from simulators.kernels.profile import Profile
from simulators.workload.operators import (
    Attention,
    Collective,
    Column,
    Compute,
    Gemm,
    GroupedGemm,
    Operator,
)

Flags = bool | NDArray[np.bool_]

NARROW = ("fp8", "fp8_block", "fp4", "int8")
"""Formats of multiplication whose activations are quantised from 16 bits."""


@dataclass(frozen=True)
class Row:
    """One operator or message of a stage: all its repetitions on one GPU."""

    operator: Operator
    part: str  # of an iteration: tokens, prefill_attention, decode_attention, collective, send_recv
    seconds: Column
    joules: Column
    lo_s: Column  # the 90 % interval
    hi_s: Column
    calibrated: bool
    extrapolated: Flags

    def where(self, present: Column) -> Row:
        """Return the row where there is something to do, and nothing where there is not."""
        there = np.asarray(present) > 0
        return dataclasses.replace(
            self,
            seconds=np.where(there, self.seconds, 0.0),
            joules=np.where(there, self.joules, 0.0),
            lo_s=np.where(there, self.lo_s, 0.0),
            hi_s=np.where(there, self.hi_s, 0.0),
        )


def compute_rows(operators: Sequence[Compute], replica: Replica, part: str) -> list[Row]:
    """Return the prices of operators that run in sequence, as often as they repeat."""
    if not (replica.effects.fusion and replica.runtime.is_fused):
        operators = unfused(operators, replica.model)
    if replica.accelerator:
        return [_mapped_row(operator, replica, part) for operator in operators if operator.repeat]
    inside = _inside_experts(operators, replica)
    return [
        _compute_row(operator, replica, part)
        for operator in operators
        if operator.repeat and operator.name not in inside
    ]


def _mapped_row(operator: Compute, replica: Replica, part: str) -> Row:
    """Return the price of an operator on an accelerator: a model, never measured."""
    seconds, joules = accelerated(operator, replica.accelerator)
    seconds, joules = seconds * operator.repeat, joules * operator.repeat
    lo_s, hi_s = seconds / UNMEASURED_BAND, seconds * UNMEASURED_BAND
    return Row(operator, part, seconds, joules, lo_s, hi_s, False, False)


def _inside_experts(operators: Sequence[Compute], replica: Replica) -> Sequence[str]:
    """Return the names of operators that the time of experts has in it already."""
    experts = next((one for one in operators if isinstance(one, GroupedGemm)), None)
    if experts is None:
        return ()
    profile = profile_of(replica.gpu, BEST, replica.library)
    return AROUND_EXPERTS if is_timed_as_layer(experts, replica.gpu, profile) else ()


AROUND_EXPERTS = ("gather_by_expert", "experts_activation", "weighted_sum")
"""What frameworks run, and what was timed, in one call with the products of experts."""


def message_rows(messages: Sequence[Collective], replica: Replica, part: str) -> list[Row]:
    """Return the prices of messages: among the ranks of a stage, or the slowest hand-over."""
    pace = replica.runtime.pace(fabric_of(replica.cluster, replica.gpu), "messages")
    rows = []
    for message in messages:
        if message.repeat == 0:
            continue
        span = replica.cut.gpus if message.kind == "send_recv" else message.ranks
        once_s, measured = price_collective(
            message, replica.cluster, replica.gpu, span, replica.library
        )
        hidden = replica.overlap if message.kind == "all_reduce" else 0.0
        seconds = once_s * (pace * (1.0 - hidden) * message.repeat)
        wide = MESSAGE_BAND if measured else UNMEASURED_BAND
        rows.append(
            Row(
                message,
                part,
                seconds,
                seconds * resting_w(replica.gpu),  # ring kernels leave most SMs idle
                seconds / wide,
                seconds * wide,
                measured,
                False,
            )
        )
    return rows


MESSAGE_BAND, UNMEASURED_BAND = 1.25, 2.0
"""Nine of ten are within these factors: messages over measured links, and what nobody measured."""


def family_of(operator: Compute) -> str:
    """Return the name under which a runtime knows kernels of a kind."""
    if isinstance(operator, Attention):
        return operator.phase
    if isinstance(operator, Gemm | GroupedGemm):
        return "gemm" if isinstance(operator, Gemm) else "experts"
    return "vector"


def quantising_s(operator: Compute, gpu: Gpu, profile: Profile) -> float:
    """Return what a measured product spends on quantising its activations before it starts.

    It is what the product starts later than one of 16-bit numbers by the same framework.
    """
    if not isinstance(operator, Gemm) or operator.dtype not in NARROW:
        return 0.0
    if np.any(np.asarray(operator.batch) > 1.0):  # heads' products were timed without it
        return 0.0
    rates, plain = tensor_rates_of(operator, gpu, profile), profile.tensor.get(PLAIN)
    if rates is None or plain is None or rates.kind == PLAIN:
        return 0.0
    return max(0.0, rates.start_s - plain.start_s)


def _compute_row(operator: Compute, replica: Replica, part: str) -> Row:
    gpu, repeat = replica.gpu, operator.repeat
    alone, seconds = _fastest(operator, replica)
    ratio = seconds / alone.latency_s
    return Row(
        operator,
        part,
        seconds * repeat,
        energy_j(operator, gpu, seconds) * repeat,
        alone.lo_s * (ratio * repeat),
        alone.hi_s * (ratio * repeat),
        alone.calibrated,
        alone.extrapolated,
    )


def _fastest(operator: Compute, replica: Replica) -> tuple[Priced, NDArray[np.float64]]:
    """Return the fastest of the kernels an engine may run: alone, and its seconds among others."""
    own = (replica.library,)
    allowed = own if replica.framework else replica.runtime.kernels.get(family_of(operator), own)
    best: tuple[Priced, NDArray[np.float64]] | None = None
    for framework in allowed:
        profile = profile_of(replica.gpu, BEST, framework)
        alone = price(operator, replica.gpu, profile)
        seconds = _among_others(operator, replica, alone, profile)
        best = (alone, seconds) if best is None else _faster(best, (alone, seconds))
    assert best is not None, "a runtime names whose kernels compete"
    return best


def _faster(
    one: tuple[Priced, NDArray[np.float64]], other: tuple[Priced, NDArray[np.float64]]
) -> tuple[Priced, NDArray[np.float64]]:
    """Return the faster of two kernels at every size."""
    (a, a_s), (b, b_s) = one, other
    first = a_s <= b_s
    priced = Priced(
        np.where(first, a.latency_s, b.latency_s),
        np.where(first, a.lo_s, b.lo_s),
        np.where(first, a.hi_s, b.hi_s),
        a.calibrated and b.calibrated,
        np.where(first, a.extrapolated, b.extrapolated),
    )
    return priced, np.where(first, a_s, b_s)


def _among_others(
    operator: Compute, replica: Replica, alone: Priced, profile: Profile
) -> NDArray[np.float64]:
    """Return the seconds of one launch among those of the rest of the model."""
    gpu, effects = replica.gpu, replica.effects
    family = family_of(operator)
    pace = replica.runtime.pace(gpu.architecture, family, is_own=alone.calibrated)
    seconds = alone.latency_s
    if effects.fusion and replica.runtime.is_fused:
        quantised_s = quantising_s(operator, gpu, profile)
        if quantised_s:
            seconds = np.maximum(seconds - quantised_s, roofline_s(operator, gpu))
    seconds = pace * seconds
    if effects.clocks and (share := slowdown(gpu)):
        seconds = seconds + throttled_s(operator, gpu, share)
    return np.asarray(seconds, np.float64)
