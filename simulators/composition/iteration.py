"""One iteration of a replica is its operators, its messages, and the waits between them.

Kernels run one after another on one stream, so a stage's time is a sum. It is kept in parts, each
of which depends on a few sums over the requests and on nothing else, so that a floor above may
tabulate them one by one:

    tokens_s              the number of tokens, and the rows of logits
    prefill_attention_s   the four prefill sums
    decode_attention_s    decodes and the keys they read
    collective_s          the number of tokens
    send_recv_s           the number of tokens
    launch_s              sequences; under a runtime without CUDA graphs, everything

A pipeline stage is the unit: requests flow through all stages, and the slowest one sets the pace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.cluster import Cluster
from simulators.catalog.gpu import Gpu
from simulators.catalog.model import LanguageModel
from simulators.composition.network import price_collective
from simulators.composition.overhead import Runtime, load_runtime
from simulators.kernels.energy import IDLE_SHARE, energy_j
from simulators.kernels.latency import price, roofline_s
from simulators.kernels.tensor_levels import DEFAULT_FRAMEWORK
from simulators.workload.attention import decode_operators, prefill_operators
from simulators.workload.cut import Parallelism, Stage, check_cut, stage_of
from simulators.workload.operators import (
    Attention,
    Collective,
    Column,
    Compute,
    Gemm,
    GroupedGemm,
)
from simulators.workload.step import Step, decode_step
from simulators.workload.transformer import (
    collectives,
    head_operators,
    logits_collectives,
    token_operators,
)

Flags = bool | NDArray[np.bool_]


@dataclass(frozen=True)
class Replica:
    """A model on the GPUs that hold one copy of it."""

    model: LanguageModel
    gpu: Gpu
    cluster: Cluster
    cut: Parallelism = dataclasses.field(default_factory=Parallelism)
    dtype: str = "fp16"
    kv_dtype: str = "fp16"
    runtime: Runtime = dataclasses.field(default_factory=load_runtime)


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """Seconds of one iteration of one pipeline stage by part, and joules of all its GPUs."""

    tokens_s: Column
    prefill_attention_s: Column
    decode_attention_s: Column
    collective_s: Column
    send_recv_s: Column
    launch_s: Column
    tokens_j: Column  # the joules of the part of the same name
    prefill_attention_j: Column
    decode_attention_j: Column
    waiting_w: float  # of all GPUs of the stage during messages and launches
    calibrated: bool
    extrapolated: Flags

    @property
    def busy_s(self) -> Column:
        """Time with kernels or messages under way."""
        return (
            self.tokens_s
            + self.prefill_attention_s
            + self.decode_attention_s
            + self.collective_s
            + self.send_recv_s
        )

    @property
    def latency_s(self) -> Column:
        """Time of the whole iteration of this stage."""
        return self.busy_s + self.launch_s

    @property
    def energy_j(self) -> Column:
        """Energy of the stage's GPUs; while they wait they draw what they draw at rest."""
        waiting_s = self.collective_s + self.send_recv_s + self.launch_s
        computing_j = self.tokens_j + self.prefill_attention_j + self.decode_attention_j
        return computing_j + self.waiting_w * waiting_s


def iteration(replica: Replica, step: Step) -> Iteration:
    """Return one iteration of the slowest stage; of a replica without pipeline, of all of it.

    Raises:
        Infeasible: the model cannot be cut this way.
    """
    return stage_iteration(replica, step, slowest_stage(replica))


def stage_iteration(replica: Replica, step: Step, stage: int) -> Iteration:
    """Return one iteration of one pipeline stage.

    Raises:
        Infeasible: the model cannot be cut this way.
    """
    check_cut(replica.model, replica.cut)
    return part_iteration(replica, step, stage_of(replica.model, replica.cut, stage))


def pipeline_iterations(replica: Replica, step: Step) -> tuple[Iteration, ...]:
    """Return one iteration of every stage, in the order in which a batch passes them.

    Raises:
        Infeasible: the model cannot be cut this way.
    """
    check_cut(replica.model, replica.cut)
    parts = [stage_of(replica.model, replica.cut, stage) for stage in range(replica.cut.pp)]
    priced = {part: part_iteration(replica, step, part) for part in dict.fromkeys(parts)}
    return tuple(priced[part] for part in parts)


PROBE = decode_step(64.0, 1024.0)
"""What stages are compared by: an everyday decode batch."""


def slowest_stage(replica: Replica) -> int:
    """Return the stage that sets the pace: the slowest in an everyday decode batch.

    It is one stage for every step, so that the parts keep their dependences.
    """
    if replica.cut.pp == 1:
        return 0
    times = [float(np.asarray(i.latency_s)) for i in pipeline_iterations(replica, PROBE)]
    return int(np.argmax(times))


@dataclass(frozen=True)
class _Part:
    """Seconds and joules of one GPU for a list of operators, and what the prices rest on."""

    seconds: Column = 0.0
    joules: Column = 0.0
    calibrated: bool = True
    extrapolated: Flags = False

    def __add__(self, other: _Part) -> _Part:
        return _Part(
            self.seconds + other.seconds,
            self.joules + other.joules,
            self.calibrated and other.calibrated,
            np.logical_or(self.extrapolated, other.extrapolated),
        )


def part_iteration(replica: Replica, step: Step, part: Stage) -> Iteration:
    """Return one iteration of any part of the model: some layers, with or without the ends."""
    model, cut, dtype, kv = replica.model, replica.cut, replica.dtype, replica.kv_dtype
    asked, step = step, busiest_group(step, cut.attention_dp)
    # Sizes of a part with nothing to do are lifted to 1, and its time dropped, so that no formula
    # is asked about empty matrices.
    some = _at_least_one(step)
    tokens, rows = np.maximum(1.0, step.tokens), some.logits_rows
    linear = _compute(token_operators(model, cut, part, tokens, dtype), replica)
    head = _compute(head_operators(model, cut, part, rows, dtype), replica)
    prefill = _compute(prefill_operators(model, cut, part, some, dtype, kv), replica)
    decode = _compute(decode_operators(model, cut, part, some, dtype, kv), replica)
    ends = _messages(logits_collectives(model, cut, part, rows, dtype), replica)
    between = collectives(model, cut, part, tokens, dtype)
    sums = _messages([m for m in between if m.kind != "send_recv"], replica)
    sends = _messages([m for m in between if m.kind == "send_recv"], replica)
    sums, sends = _only(sums, step.tokens), _only(sends, step.tokens)
    head, ends = _only(head, step.logits_rows), _only(ends, step.logits_rows)
    token_part = _only(linear, step.tokens) + head
    prefill, decode = _only(prefill, step.prefill_tokens), _only(decode, step.decodes)
    parts = (token_part, prefill, decode, ends, sums, sends)
    without_launch = Iteration(
        tokens_s=token_part.seconds + ends.seconds,
        prefill_attention_s=prefill.seconds,
        decode_attention_s=decode.seconds,
        collective_s=sums.seconds,
        send_recv_s=sends.seconds,
        launch_s=0.0,
        tokens_j=cut.width * token_part.joules,
        prefill_attention_j=cut.width * prefill.joules,
        decode_attention_j=cut.width * decode.joules,
        waiting_w=cut.width * _idle_w(replica.gpu),
        calibrated=all(p.calibrated for p in parts),
        extrapolated=np.logical_or.reduce(np.broadcast_arrays(*[p.extrapolated for p in parts])),
    )
    launch_s = replica.runtime.launch_s(
        part.layers, asked.prefills + asked.decodes, without_launch.busy_s, replica.cluster
    )
    launch_s = launch_s + replica.runtime.extra_gaps_s(model, part)
    return dataclasses.replace(without_launch, launch_s=launch_s)


def busiest_group(step: Step, groups: int) -> Step:
    """Return what the busiest of several groups of ranks attends to, requests shared out evenly.

    >>> [float(busiest_group(decode_step(n, 100.0), 4).decodes) for n in (6.0, 2.0)]
    [1.5, 1.0]
    """
    if groups == 1:
        return step

    def share(requests: Column) -> Column:
        return 1.0 / np.clip(requests, 1.0, groups)

    prefills, decodes, rows = share(step.prefills), share(step.decodes), share(step.logits_rows)
    return Step(
        prefills=step.prefills * prefills,
        prefill_tokens=step.prefill_tokens * prefills,
        prefill_pairs=step.prefill_pairs * prefills,
        prefill_kv_tokens=step.prefill_kv_tokens * prefills,
        decodes=step.decodes * decodes,
        decode_kv_tokens=step.decode_kv_tokens * decodes,
        logits_rows=step.logits_rows * rows,
    )


def _compute(operators: Sequence[Compute], replica: Replica) -> _Part:
    """Return the time and energy of operators that run in sequence, as often as they repeat."""
    gpu, runtime = replica.gpu, replica.runtime
    framework = runtime.framework or DEFAULT_FRAMEWORK
    total = _Part()
    for operator in operators:
        if operator.repeat == 0:
            continue
        priced = price(operator, gpu, framework=framework)
        pace = runtime.pace(gpu.architecture, family_of(operator))
        seconds = pace.alone * priced.latency_s
        if pace.least:
            seconds = seconds + pace.least * roofline_s(operator, gpu)
        total += _Part(
            seconds * operator.repeat,
            energy_j(operator, gpu, seconds) * operator.repeat,
            priced.calibrated,
            priced.extrapolated,
        )
    return total


def family_of(operator: Compute) -> str:
    """Return the name under which a runtime knows kernels of a kind."""
    if isinstance(operator, Attention):
        return operator.phase
    if isinstance(operator, Gemm | GroupedGemm):
        return "gemm" if isinstance(operator, Gemm) else "experts"
    return "vector"


def _messages(messages: Sequence[Collective], replica: Replica) -> _Part:
    """Return the time of messages: among the ranks of a stage, or the slowest hand-over."""
    total = _Part()
    for message in messages:
        if message.repeat == 0:
            continue
        span = replica.cut.gpus if message.kind == "send_recv" else message.ranks
        seconds, measured = price_collective(
            message, replica.cluster, replica.gpu, span, replica.runtime.library
        )
        seconds = seconds * replica.runtime.pace(replica.gpu.architecture, "messages").alone
        total += _Part(seconds * message.repeat, 0.0, measured)
    return total


def _only(part: _Part, present: Column) -> _Part:
    """Return the part where there is something to do, and nothing where there is not."""
    there = np.asarray(present) > 0
    return dataclasses.replace(
        part, seconds=np.where(there, part.seconds, 0.0), joules=np.where(there, part.joules, 0.0)
    )


def _at_least_one(step: Step) -> Step:
    """Return the step with every sum at least 1."""
    sums = {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
    return Step(**{name: np.maximum(1.0, value) for name, value in sums.items()})


def _idle_w(gpu: Gpu) -> float:
    return IDLE_SHARE * gpu.tdp_w if gpu.idle_w is None else gpu.idle_w
