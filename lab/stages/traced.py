"""A step on several GPUs from the operators that one GPU was timed at: a trace in, other cuts out.

Nothing of the kernel model is asked. Every replica runs all operators one after another, and its
gradients are summed in buckets while the backward pass goes on (Li et al., PyTorch distributed,
2020). Tensor ranks run a share of each operator that can be cut, and gather what it gives. Pipeline
ranks run neighbouring operators of about the same time, for micro-batches that take a share of an
operator's time each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.stages.profiled import TimedStage, timed_step_s
from simulators.catalog.cluster import Cluster
from simulators.catalog.gpu import Gpu
from simulators.collectives.price import collective_time
from simulators.core.errors import UserError

PHASES = ("forward", "backward", "optimizer")
FORWARD, BACKWARD, UPDATE = PHASES
BUCKET_BYTES = 25 * 2.0**20
"""Of gradients that PyTorch sums at once, by default."""


@dataclass(frozen=True, kw_only=True)
class TimedOperator:
    """One operator of a trace, in the order it ran."""

    phase: str  # forward, backward or optimizer
    seconds: float
    output_bytes: float = 0.0
    gradient_bytes: float = 0.0  # of weights that it ends the gradients of
    is_cut: bool = False  # by tensor ranks


@dataclass(frozen=True)
class TracedStep:
    """A step in seconds; parts are those of one rank."""

    step_s: float
    compute_s: float
    messages_s: float  # of tensor and data ranks, hidden or not
    exposed_s: float  # of gradients that the backward pass does not hide


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Over which ranks a traced step is cut."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    micro_batches: int = 1


def traced_step(
    operators: Sequence[TimedOperator], cut: Cut, *, gpu: Gpu, cluster: Cluster
) -> TracedStep:
    """Return the step of a cut whose replicas have the trace's batch each.

    Raises:
        UserError: there is no operator, a degree below one, or more stages than operators.

    >>> from simulators.catalog.cluster import load_cluster
    >>> from simulators.catalog.gpu import load_gpu
    >>> trace = [TimedOperator(phase=FORWARD, seconds=1.0),
    ...          TimedOperator(phase=BACKWARD, seconds=2.0)]
    >>> traced_step(trace, Cut(), gpu=load_gpu("h100_sxm"), cluster=load_cluster("dgx_h100")).step_s
    3.0
    """
    if not operators or min(vars(cut).values()) < 1:
        raise UserError("a traced step needs operators, and degrees of at least 1")

    def message_s(kind: str, size_bytes: float, ranks: int, span: int) -> float:
        if ranks == 1 or not size_bytes:
            return 0.0
        took = collective_time(
            kind, size_bytes, ranks=ranks, gpu=gpu, cluster=cluster, span=span, dtype="fp32"
        )
        return float(took.time_s)

    gathers_s = [
        message_s("all_gather", one.output_bytes, cut.tp, cut.tp) if one.is_cut else 0.0
        for one in operators
    ]
    shares = [
        replace(one, seconds=one.seconds / (cut.tp if one.is_cut else 1)) for one in operators
    ]
    running = [
        replace(one, seconds=one.seconds + gather_s)
        for one, gather_s in zip(shares, gathers_s, strict=True)
    ]
    phases = {phase: [one for one in running if one.phase == phase] for phase in PHASES}
    forwards, backwards = _parts(phases[FORWARD], cut.pp), _parts(phases[BACKWARD], cut.pp)[::-1]
    if not all(forwards):
        raise UserError(f"{len(phases[FORWARD])} operators do not make {cut.pp} stages")
    stages, summed_s = [], 0.0
    for forward, backward in zip(forwards, backwards, strict=True):
        sums = [
            (ready_s, message_s("all_reduce", size / cut.tp, cut.dp, cut.dp * cut.tp))
            for ready_s, size in _buckets(backward)
        ]
        summed_s += sum(took for _, took in sums) / cut.pp
        stages.append(
            TimedStage(
                forward_s=_seconds(forward) / cut.micro_batches,
                backward_s=_seconds(backward) / cut.micro_batches,
                update_s=_seconds(phases[UPDATE]) / cut.pp,
                sync_s=_left_s(sums, _seconds(backward)),
            )
        )
    crossing = max((stage[-1].output_bytes for stage in forwards[:-1]), default=0.0)
    each = crossing / cut.micro_batches
    send_s = message_s("send_recv", each, 2, 2 * cut.dp * cut.tp) if cut.pp > 1 else 0.0
    return TracedStep(
        step_s=timed_step_s(stages, cut.micro_batches, send_s=send_s),
        compute_s=_seconds(shares) / cut.pp,
        messages_s=sum(gathers_s) / cut.pp + summed_s,
        exposed_s=max(stage.sync_s for stage in stages),
    )


def _seconds(operators: Sequence[TimedOperator]) -> float:
    return sum(one.seconds for one in operators)


def _parts(operators: Sequence[TimedOperator], parts: int) -> list[list[TimedOperator]]:
    """Return neighbouring operators in parts of about the same time, in the order they ran."""
    ends = np.cumsum([one.seconds for one in operators])
    middles = ends - 0.5 * np.diff(ends, prepend=0.0)
    where = np.minimum(parts - 1, middles / max(ends[-1:], default=1.0) * parts).astype(int)
    return [
        [one for one, place in zip(operators, where, strict=True) if place == part]
        for part in range(parts)
    ]


def _buckets(backward: Sequence[TimedOperator]) -> Iterator[tuple[float, float]]:
    """Yield (seconds until it is full, bytes) of the buckets of gradients, as they fill."""
    passed_s, held = 0.0, 0.0
    for one in backward:
        passed_s, held = passed_s + one.seconds, held + one.gradient_bytes
        if held >= BUCKET_BYTES:
            yield passed_s, held
            held = 0.0
    if held:
        yield passed_s, held


def _left_s(sums: Sequence[tuple[float, float]], backward_s: float) -> float:
    """Return what sums that follow one another leave after a backward pass."""
    end_s = 0.0
    for ready_s, took_s in sums:
        end_s = max(end_s, ready_s) + took_s
    return max(0.0, end_s - backward_s)
