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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulators.composition.bands import Doubts, doubts_of
from simulators.composition.pricing import Flags, Row, compute_rows, message_rows
from simulators.composition.replica import Replica as Replica
from simulators.kernels.energy import resting_w
from simulators.workload.attention import decode_operators, prefill_operators
from simulators.workload.cut import Stage, check_cut, stage_of
from simulators.workload.operators import Column
from simulators.workload.step import Step, decode_step
from simulators.workload.transformer import (
    collectives,
    head_operators,
    logits_collectives,
    token_operators,
)


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
    doubts: Doubts = dataclasses.field(default_factory=dict)  # of kernels and messages, by family

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


def stage_iteration(
    replica: Replica, step: Step, stage: int, only: Sequence[str] = ()
) -> Iteration:
    """Return one iteration of one pipeline stage.

    Args:
        replica: who runs it.
        step: its batch.
        stage: which stage.
        only: the parts of `PARTS` to price, where the batch has them; empty: all, which also says
            of parts that the batch lacks whether they are calibrated.

    Raises:
        Infeasible: the model cannot be cut this way.
    """
    check_cut(replica.model, replica.cut)
    return part_iteration(replica, step, stage_of(replica.model, replica.cut, stage), only)


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


def part_iteration(
    replica: Replica, step: Step, part: Stage, only: Sequence[str] = ()
) -> Iteration:
    """Return one iteration of any part of the model: some layers, with or without the ends."""
    rows = part_rows(replica, step, part, only)
    seconds = {name: _total(rows, name, "seconds") for name in PARTS}
    joules = {name: replica.cut.width * _total(rows, name, "joules") for name in COMPUTED}
    without_launch = Iteration(
        **{f"{name}_s": column for name, column in seconds.items()},
        **{f"{name}_j": column for name, column in joules.items()},
        launch_s=0.0,
        waiting_w=replica.cut.width * resting_w(replica.gpu),
        calibrated=all(row.calibrated for row in rows),
        extrapolated=np.logical_or.reduce(
            np.broadcast_arrays(*[row.extrapolated for row in rows], False)
        ),
        doubts=doubts_of(rows),
    )
    waits_s = launch_s(replica, step, part, without_launch.busy_s)
    return dataclasses.replace(without_launch, launch_s=waits_s)


COMPUTED = ("tokens", "prefill_attention", "decode_attention")
PARTS = (*COMPUTED, "collective", "send_recv")


def part_rows(replica: Replica, step: Step, part: Stage, only: Sequence[str] = ()) -> list[Row]:
    """Return the operators and messages of any part of the model, priced one by one."""
    model, cut, dtype, kv = replica.model, replica.cut, replica.dtype, replica.kv_dtype
    shared = step.tokens / cut.attention_dp  # tokens are dealt out evenly, requests stay whole
    step = busiest_group(step, cut.attention_dp)
    # Sizes of a part with nothing to do are lifted to 1, and its time dropped, so that no formula
    # is asked about empty matrices.
    some = _at_least_one(step)
    tokens, logits = np.maximum(1.0, shared), some.logits_rows
    between = collectives(model, cut, part, tokens, dtype)
    sums = [m for m in between if m.kind != "send_recv"]
    sends = [m for m in between if m.kind == "send_recv"]
    linear = token_operators(model, cut, part, tokens, dtype)
    head = head_operators(model, cut, part, logits, dtype)
    ends = logits_collectives(model, cut, part, logits, dtype)
    prefill = prefill_operators(model, cut, part, some, dtype, kv)
    decode = decode_operators(model, cut, part, some, dtype, kv)
    work: tuple[tuple[str, Column, Callable[[str], list[Row]]], ...] = (
        ("tokens", step.tokens, lambda name: compute_rows(linear, replica, name)),
        ("tokens", step.logits_rows, lambda name: compute_rows(head, replica, name)),
        ("tokens", step.logits_rows, lambda name: message_rows(ends, replica, name)),
        ("prefill_attention", step.prefill_tokens, lambda n: compute_rows(prefill, replica, n)),
        ("decode_attention", step.decodes, lambda name: compute_rows(decode, replica, name)),
        ("collective", step.tokens, lambda name: message_rows(sums, replica, name)),
        ("send_recv", step.tokens, lambda name: message_rows(sends, replica, name)),
    )
    return [
        row.where(present)
        for name, present, price in work
        if not only or (name in only and np.any(np.asarray(present) > 0.0))
        for row in price(name)
    ]


def launch_s(replica: Replica, step: Step, part: Stage, busy_s: Column) -> Column:
    """Return the seconds that a stage waits for the host, in which nothing else goes on."""
    return replica.runtime.launch_s(
        part.layers,
        step.prefills + step.decodes,
        busy_s,
        replica.cluster,
        prefills=step.prefills,
        effects=replica.effects,
        extra_gaps_s=replica.runtime.extra_gaps_s(replica.model, part),
    )


def _total(rows: Sequence[Row], part: str, column: str) -> Column:
    """Return the sum of a column over the rows of one part, in their order."""
    total: Column = 0.0
    for row in rows:
        if row.part == part:
            total = total + getattr(row, column)
    return total


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


def _at_least_one(step: Step) -> Step:
    """Return the step with every sum at least 1."""
    sums = {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
    return Step(**{name: np.maximum(1.0, value) for name, value in sums.items()})
