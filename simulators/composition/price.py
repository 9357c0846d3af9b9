"""Time and energy of one iteration of a replica.

Kernels run one after another on one stream, so the time of a stage is a sum. Each part depends on a
few sums over the requests alone, so that callers can tabulate the parts one by one:

    tokens_s              the number of tokens of a group of ranks, and the rows of logits
    experts_s             the number of tokens of all groups
    prefill_attention_s   the four prefill sums
    decode_attention_s    decodes and the keys they read
    mixed_attention_s     all of these, in the place of both where one kernel runs both
    collective_s          the number of tokens of all groups
    send_recv_s           the number of tokens
    launch_s              sequences of a host; under a runtime without CUDA graphs, everything

Requests flow through all pipeline stages; the slowest stage sets the throughput. One layer of each
kind, the embedding and the LM head, priced for a step, add up to the stages of any pipeline of the
same tensor parallel degree, up to rounding.

Overlapped attention: attention of prompt chunks beside that of decodes on the same SMs. One is
bound by arithmetic and the other by memory, so together they take little longer than the longer of
the two (Kamath et al., "POD-Attention", ASPLOS 2025). The shorter kernel is hidden until both
together use up a rate:

    seconds = max(chunks, decodes, FLOPs of both / best FLOP/s, bytes of both / best bytes/s)

where the best of a rate is the higher of the two rates that the kernels reach alone. The time is
never more than one after the other. No measured rows have such a kernel: the time is bounded by
both ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from simulators.catalog.gpu import what_if
from simulators.collectives.library_models import EXCHANGE_SMS
from simulators.composition.adjustments import whole_lists
from simulators.composition.operator_prices import Row, compute_rows, is_one_launch, message_rows
from simulators.composition.replica import Replica, load_runtime
from simulators.composition.uncertainty import (
    HalfWidths,
    Seconds,
    add_up,
    half_widths_of,
    pass_interval_s,
    runtime_level,
    seconds_by_level,
    shares,
)
from simulators.core.columns import EXTRAPOLATED, Shares
from simulators.core.jit import Floats
from simulators.kernels.price import flops, moved_bytes, padded_flops
from simulators.workload.llm.attention import decode_operators, mixed_operators, prefill_operators
from simulators.workload.llm.parallelism import (
    HIGH_THROUGHPUT,
    MOST_FEW,
    Parallelism,
    Stage,
    check_layout,
    stage_of,
)
from simulators.workload.llm.step import (
    DECODE_SUMS,
    PREFILL_SUMS,
    Shard,
    Step,
    chunk_step,
    decode_step,
)
from simulators.workload.llm.transformer import (
    SEEN_BY_EXPERTS,
    collectives,
    forward,
    head_operators,
    logits_collectives,
    nucleus_operators,
    token_operators,
)
from simulators.workload.operators import (
    Attention,
    Collective,
    Column,
    ExpertExchange,
    Gemm,
    GroupedGemm,
)


def overlapped_rows(chunks: Sequence[Row], decodes: Sequence[Row], replica: Replica) -> list[Row]:
    """Return the rows of overlapped attention of a mixed batch; state updates stay separate."""
    rows: list[Row] = []
    for one, other in zip(chunks, decodes, strict=True):
        chunk, single = one.operator, other.operator
        if isinstance(chunk, Attention) and isinstance(single, Attention):
            shared_s = _shared_s(chunk, single, np.asarray(one.seconds), np.asarray(other.seconds))
            rows.append(_beside(one, other, shared_s, replica.active_idle_w))
        else:
            rows += [one, other]
    return rows


def _beside(one: Row, other: Row, shared_s: Floats, active_idle_w: float) -> Row:
    """Return two kernels side by side: equal work, and idle power over a shorter time."""
    in_turn_s = np.asarray(one.seconds + other.seconds, np.float64)
    seconds = np.clip(shared_s, np.maximum(one.seconds, other.seconds), in_turn_s)
    return replace(
        one,
        operator=replace(one.operator, name=one.operator.name.replace("prefill", "mixed")),
        seconds=seconds,
        joules=one.joules + other.joules - active_idle_w * (in_turn_s - seconds),
        lo_s=np.maximum(one.lo_s, other.lo_s),
        hi_s=one.hi_s + other.hi_s,
        level=np.maximum(np.maximum(one.level, other.level), EXTRAPOLATED),
    )


def _shared_s(one: Attention, other: Attention, one_s: Floats, other_s: Floats) -> Floats:
    """Return the seconds in which the higher of both rates completes FLOPs and bytes of both."""
    taken = []
    for of in (padded_flops, moved_bytes):
        mine, theirs = of(one), of(other)
        taken.append((mine + theirs) / np.maximum(mine / one_s, theirs / other_s))
    return np.asarray(np.maximum(*taken))


COMPUTED = ("tokens", "experts", "prefill_attention", "decode_attention", "mixed_attention")
PARTS = (*COMPUTED, "collective", "send_recv")
OF_LAYERS = (*(f"{name}_s" for name in PARTS[:-1]), *(f"{name}_j" for name in COMPUTED))
"""Fields that add up over layers; the send to the next stage and launches belong to the stage."""

NO_LAYERS = Stage(dense_layers=0, expert_layers=0, has_embedding=False, has_head=False)
DENSE, EXPERTS = replace(NO_LAYERS, dense_layers=1), replace(NO_LAYERS, expert_layers=1)
BARE = replace(NO_LAYERS, bare_layers=1)
EMBEDDING, HEAD = replace(NO_LAYERS, has_embedding=True), replace(NO_LAYERS, has_head=True)

LAUNCHED = "eager_tp"
"""Runtime of replicas without CUDA graphs: DeepEP's high-throughput kernels wait for the host,
which reads their sizes (DeepEP, README)."""

LEAST_S = 1e-12
"""Seconds below which exchanges count as none."""

PROBE = decode_step(64.0, 1024.0)
"""A typical decode batch, by which stages are compared."""


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """Seconds by part and joules of all GPUs, for one iteration of a pipeline stage."""

    tokens_s: Column
    experts_s: Column
    prefill_attention_s: Column
    decode_attention_s: Column
    mixed_attention_s: Column
    collective_s: Column
    send_recv_s: Column
    launch_s: Column
    tokens_j: Column  # the joules of the part of the same name
    experts_j: Column
    prefill_attention_j: Column
    decode_attention_j: Column
    mixed_attention_j: Column
    waiting_w: float  # idle power of all GPUs of the stage
    active_idle_w: float  # power of all GPUs during messages and launches
    waits_level: int  # evidence level of launches
    rows: Sequence[Row] = ()  # of all kernels and messages, if they were priced one by one
    parts_by_level: Seconds | None = None  # otherwise their seconds by evidence level

    @property
    def half_widths(self) -> HalfWidths:
        """Half-widths of the intervals of kernels and messages, by family."""
        return half_widths_of(self.rows)

    @functools.cached_property
    def busy_by_level(self) -> Seconds:
        """Seconds of kernels and messages by evidence level."""
        return seconds_by_level(self.rows) if self.parts_by_level is None else self.parts_by_level

    @property
    def seconds_by_level(self) -> Seconds:
        """Time of the whole iteration by evidence level."""
        return add_up([(1.0, self.busy_by_level), (1.0, {self.waits_level: self.launch_s})])

    @property
    def busy_s(self) -> Column:
        """Seconds with running kernels or messages."""
        busy_s: Column = sum((getattr(self, f"{name}_s") for name in PARTS), start=0.0)
        return busy_s

    @property
    def latency_s(self) -> Column:
        """Time of the whole iteration of this stage."""
        return self.busy_s + self.launch_s

    @property
    def energy_j(self) -> Column:
        """Energy of the stage's GPUs, with active idle power during messages and launches."""
        waiting_s = self.collective_s + self.send_recv_s + self.launch_s
        computing_j: Column = sum((getattr(self, f"{name}_j") for name in COMPUTED), start=0.0)
        return computing_j + self.active_idle_w * waiting_s


def iteration(replica: Replica, step: Step) -> Iteration:
    """Return one iteration of the pipeline's slowest stage, which is chosen for a typical batch.

    The stage is the same for every step, so that parts depend on the same sums.

    Raises:
        Infeasible: the parallelism does not fit the model.
    """
    times = [0.0]
    if replica.layout.pp > 1:
        times = [float(np.asarray(i.latency_s)) for i in pipeline_iterations(replica, PROBE)]
    return stage_iteration(replica, step, int(np.argmax(times)))


def stage_iteration(
    replica: Replica, step: Step, stage: int, only: Sequence[str] = ()
) -> Iteration:
    """Return one iteration of one pipeline stage.

    `only`: the parts of `PARTS` to price; empty: all.

    Raises:
        Infeasible: the parallelism does not fit the model.
    """
    check_layout(replica.model, replica.layout)
    return part_iteration(replica, step, stage_of(replica.model, replica.layout, stage), only)


def pipeline_iterations(replica: Replica, step: Step) -> tuple[Iteration, ...]:
    """Return one iteration of every stage, in pipeline order.

    Raises:
        Infeasible: the parallelism does not fit the model.
    """
    check_layout(replica.model, replica.layout)
    parts = [stage_of(replica.model, replica.layout, stage) for stage in range(replica.layout.pp)]
    priced = {part: part_iteration(replica, step, part) for part in dict.fromkeys(parts)}
    return tuple(priced[part] for part in parts)


def pass_s(replica: Replica, step: Step) -> Floats:
    """Return the seconds of passes through all stages, one stage after another.

    Raises:
        Infeasible: the parallelism does not fit the model.
    """
    stages = pipeline_iterations(replica, step)
    return np.asarray(sum(stage.latency_s for stage in stages), np.float64)


def time_shares(passes: Sequence[tuple[float, Sequence[Iteration]]]) -> Shares:
    """Return the shares of the time of weighted passes through all stages, by evidence level."""
    return shares(add_up((n, one.seconds_by_level) for n, stages in passes for one in stages))


def pass_interval(replica: Replica, stages: Sequence[Iteration]) -> tuple[float, float]:
    """Return the ends of the 90 % interval of a pass through all stages, as shares of its time."""
    latency_s = np.sum([stage.latency_s for stage in stages])
    lo_s, hi_s = pass_interval_s(latency_s, (stage.half_widths for stage in stages), replica)
    return float(lo_s / latency_s), float(hi_s / latency_s)


def part_iteration(
    replica: Replica, step: Step, part: Stage, only: Sequence[str] = ()
) -> Iteration:
    """Return one iteration of a part of the model: some layers, with or without the ends."""
    rows, width = part_rows(replica, step, part, only), replica.layout.width
    sums: dict[str, Any] = {f"{name}_s": _total(rows, name, "seconds") for name in PARTS}
    sums |= {f"{name}_j": width * _total(rows, name, "joules") for name in COMPUTED}
    busy = Iteration(
        **sums,
        launch_s=0.0,
        waiting_w=width * replica.resting_w,
        active_idle_w=width * replica.active_idle_w,
        waits_level=runtime_level(replica),
        rows=rows,
    )
    return replace(busy, launch_s=launch_s(replica, step, part, busy.busy_s))


def part_rows(replica: Replica, step: Step, part: Stage, only: Sequence[str] = ()) -> list[Row]:
    """Return the operators and messages of a part of the model, priced one by one."""
    if not replica.two_batch_overlap:
        return _batch_rows(replica, step, part, only)
    half = Step(**{f.name: getattr(step, f.name) / 2.0 for f in fields(step)})
    rows = _half_rows(replica, half, part, only)
    if any(isinstance(row.operator, ExpertExchange) for row in rows):
        kernels = _half_rows(replica, half, part, ("tokens", "experts"))
        rows = hide_exchanges(rows, kernels, part)
    return [row.scaled(lambda column: 2.0 * np.asarray(column)) for row in rows]


def _half_rows(replica: Replica, half: Step, part: Stage, only: Sequence[str]) -> list[Row]:
    """Return the rows of half a batch, on the SMs that exchanges for many tokens leave.

    Engines launch products on these SMs whether or not an exchange runs (SGLang's
    `deep_gemm_num_sms`, vLLM's `VLLM_DBO_COMM_SMS`). Attention of prompts has no others either, as
    exchanges wait on their SMs for the slowest rank. Other kernels are bound by memory.
    """
    gpu, rows = replica.gpu, _batch_rows(replica, half, part, only)
    most = MOST_FEW.get(replica.layout.routing.backend, np.inf)
    takes_sms = np.asarray(half.tokens) / replica.layout.attention_dp > most
    if not takes_sms.any():
        return rows
    share = 1.0 - EXCHANGE_SMS / gpu.sm_count
    fewer = replace(replica, gpu=what_if(gpu, sm_scale=share))

    def limit(row: Row, other: Row) -> Row:
        if isinstance(row.operator, Gemm | GroupedGemm):
            return row.select(takes_sms, other)
        if isinstance(row.operator, Attention) and row.operator.phase == "prefill":
            return row.scaled(lambda column: column * np.where(takes_sms, 1.0 / share, 1.0))
        return row

    return [limit(*pair) for pair in zip(rows, _batch_rows(fewer, half, part, only), strict=True)]


def hide_exchanges(rows: Sequence[Row], kernels: Sequence[Row], part: Stage) -> list[Row]:
    """Return the rows of half a batch: of exchanges, what exceeds the kernels remains.

    While one half's tokens travel to experts and back, kernels of the other half run (two-batch
    overlap; DeepSeek, "DeepSeek-V3/R1 inference system overview", 2025). `kernels` are those of the
    layers but for attention, so that times of layers add up.
    """
    repeats = {part.expert_layers: 1.0, part.layers: part.expert_layers / max(part.layers, 1)}
    hidden_s = sum(
        repeats.get(int(row.operator.repeat), 0.0) * np.asarray(row.seconds)
        for row in kernels
        if not row.operator.name.startswith("ffn_")
    )
    sent_s = sum(
        np.asarray(row.seconds) for row in rows if isinstance(row.operator, ExpertExchange)
    )
    remains = np.maximum(0.0, 1.0 - hidden_s / np.maximum(sent_s, LEAST_S))

    def hide(row: Row) -> Row:
        level = np.maximum(row.level, EXTRAPOLATED)
        return replace(row.scaled(lambda column: remains * column), level=level)

    return [hide(row) if isinstance(row.operator, ExpertExchange) else row for row in rows]


def _batch_rows(replica: Replica, step: Step, part: Stage, only: Sequence[str]) -> list[Row]:
    layout = replica.layout
    shard = Shard(replica.model, layout, part, replica.dtype, replica.kv_dtype)
    all_tokens = step.tokens
    shared = all_tokens / layout.attention_dp  # tokens are split evenly, requests stay whole
    step = busiest_group(step, layout.attention_dp)
    # Sizes of an empty part are raised to 1, and its time is dropped, so that no formula sees
    # empty matrices.
    some = Step(**{f.name: np.maximum(1.0, getattr(step, f.name)) for f in fields(step)})
    tokens, logits = np.maximum(1.0, shared), some.logits_rows
    sender = replica.messenger
    sent = replace(shard, layout=sender.layout, dtype=sender.dtype)
    between = collectives(sent, np.maximum(1.0, all_tokens / sender.layout.attention_dp))
    sums = [m for m in between if m.kind != "send_recv"]
    sends = [m for m in between if m.kind == "send_recv"]
    linear, head = token_operators(shard, tokens), head_operators(shard, logits)
    drawn = nucleus_operators(shard, logits) if replica.nucleus else ()
    ends = logits_collectives(sent, logits)
    chooses = not replica.kernel_choices.attends_to_all_in_short_prompts
    skips = replica.gpu.architecture in replica.kernel_choices.skips_empty_keys
    padded = functools.partial(whole_lists, model=replica.model, skips_empty_keys=skips)
    prefill = padded(prefill_operators(shard, some, chooses=chooses))
    as_pages = replica.gpu.architecture in replica.kernel_choices.lists_as_pages
    decode = padded(decode_operators(shard, some), as_pages=as_pages)
    chunks, decodes, both = step.prefill_tokens, step.decodes, np.zeros(())
    mixed = mixed_operators(shard, some) if replica.unified else ()
    is_beside = replica.overlapped and not replica.accelerator and not replica.model.is_latent
    if is_beside or is_one_launch(mixed, replica):
        both = np.minimum(chunks, decodes)
        chunks, decodes = (np.where(both > 0.0, 0.0, number) for number in (chunks, decodes))
    else:
        mixed = ()

    @functools.cache
    def token_rows() -> list[Row]:
        rows = compute_rows(linear, replica, "tokens")
        by_experts = {True: "experts", False: "tokens"}
        return [replace(r, part=by_experts[r.operator.name in SEEN_BY_EXPERTS]) for r in rows]

    def seen_by(name: str) -> list[Row]:
        return [row for row in token_rows() if row.part == name]

    def mixed_rows(name: str) -> list[Row]:
        if not is_beside:
            return compute_rows(mixed, replica, name)
        chunked, single = compute_rows(prefill, replica, name), compute_rows(decode, replica, name)
        return overlapped_rows(chunked, single, replica)

    work: tuple[tuple[str, Column, Callable[[str], list[Row]]], ...] = (
        ("tokens", step.tokens, seen_by),
        ("experts", step.tokens, seen_by),
        ("tokens", step.logits_rows, lambda name: compute_rows((*head, *drawn), replica, name)),
        ("tokens", step.logits_rows, lambda name: message_rows(ends, sender, name)),
        ("prefill_attention", chunks, lambda name: compute_rows(prefill, replica, name)),
        ("decode_attention", decodes, lambda name: compute_rows(decode, replica, name)),
        ("mixed_attention", both, mixed_rows),
        ("collective", step.tokens, lambda name: message_rows(sums, sender, name)),
        ("send_recv", step.tokens, lambda name: message_rows(sends, sender, name)),
    )
    return [
        row.mask(present).time_sliced(replica.time_share)
        for name, present, price in work
        if not only or (name in only and np.any(np.asarray(present) > 0.0))
        for row in price(name)
    ]


def launch_s(replica: Replica, step: Step, part: Stage, busy_s: Column) -> Column:
    """Return the seconds that a stage waits for the host."""
    replica = replica.launcher
    runtime = replica.runtime
    if replica.layout.routing.backend == HIGH_THROUGHPUT and not runtime.is_launching:
        runtime = replace(runtime, launch_layer_s=load_runtime(LAUNCHED).launch_layer_s)
    return runtime.launch_s(
        part.layers,
        replica.hosted(step.prefills + step.decodes),
        busy_s,
        replica.cluster,
        prefills=step.prefills,
        effects=replica.effects,
        extra_gaps_s=runtime.extra_gaps_s(replica.model, part),
    )


def busiest_group(step: Step, groups: int) -> Step:
    """Return the step of the busiest group of ranks, with requests split evenly over groups.

    >>> [float(busiest_group(decode_step(n, 100.0), 4).decodes) for n in (6.0, 2.0)]
    [1.5, 1.0]
    """
    if groups == 1:
        return step

    def share(requests: Column) -> Column:
        return 1.0 / np.clip(requests, 1.0, groups)

    prefills, decodes = share(step.prefills), share(step.decodes)
    shares = dict.fromkeys(PREFILL_SUMS, prefills) | dict.fromkeys(DECODE_SUMS, decodes)
    shares["logits_rows"] = share(step.logits_rows)
    return Step(**{name: getattr(step, name) * of_it for name, of_it in shares.items()})


@dataclass(frozen=True)
class Layers:
    """The parts of a model, priced for one step."""

    replica: Replica
    step: Step
    parts: dict[Stage, Iteration]

    @property
    def waiting_w(self) -> float:
        """Idle power of the GPUs of one stage."""
        return self.parts[HEAD].waiting_w

    def stage(self, pp: int, stage: int) -> Iteration:
        """Return one iteration of a stage of a pipeline of `pp`, as `stage_iteration` does.

        Raises:
            Infeasible: the parallelism does not fit the model.
        """
        replica, model = self.replica, self.replica.model
        layout = replace(replica.layout, pp=pp)
        check_layout(model, layout)
        part = stage_of(model, layout, stage)
        sent = [] if part.has_head else [self._send(layout)]
        send_s: Column = sent[0].seconds if sent else 0.0
        counts = {
            DENSE: part.dense_layers,
            EXPERTS: part.expert_layers,
            BARE: part.bare_layers,
            EMBEDDING: int(part.has_embedding),
            HEAD: int(part.has_head),
        }
        used = [(self.parts[one], count) for one, count in counts.items() if count]
        sums: dict[str, Any] = {
            name: sum((n * getattr(one, name) for one, n in used), start=0.0) for name in OF_LAYERS
        }
        busy_s = sum((sums[f"{name}_s"] for name in PARTS[:-1]), start=send_s)
        busy = [(float(n), one.busy_by_level) for one, n in used]
        return Iteration(
            **sums,
            send_recv_s=send_s,
            launch_s=launch_s(replica, self.step, part, busy_s),
            waiting_w=self.waiting_w,
            active_idle_w=self.parts[HEAD].active_idle_w,
            waits_level=runtime_level(replica),
            parts_by_level=add_up([*busy, (1.0, seconds_by_level(sent))]),
        )

    def _send(self, layout: Parallelism) -> Row:
        """Return the message to the next stage, priced."""
        replica, tokens = self.replica, np.maximum(1.0, self.step.tokens)
        sent = collectives(Shard(replica.model, layout, NO_LAYERS, replica.dtype), tokens)[-1]
        [row] = message_rows((sent,), replace(replica, layout=layout), "send_recv")
        return row.mask(self.step.tokens).time_sliced(self.replica.time_share)


def layers_of(replica: Replica, step: Step) -> Layers:
    """Return one layer of each kind and each end, priced; ignores `replica.layout.pp`."""
    model = replica.model
    kinds = [EMBEDDING, HEAD, *((BARE,) if model.bare_layers else ())]
    kinds += [DENSE] if model.expert_layers + model.bare_layers < model.layers else []
    kinds += [EXPERTS] if model.expert_layers else []
    only = (*COMPUTED, "collective")
    return Layers(replica, step, {one: part_iteration(replica, step, one, only) for one in kinds})


def _total(rows: Sequence[Row], part: str, column: str) -> Column:
    """Return the sum of a column over the rows of one part, in order."""
    mine = (getattr(row, column) for row in rows if row.part == part)
    return sum(mine, start=0.0)


def useful_flops(replica: Replica, step: Step) -> Floats:
    """Return the FLOPs of a step over all GPUs of a replica, without padding or copied heads."""
    total = np.zeros_like(np.asarray(step.tokens, np.float64))
    model, layout, dtypes = replica.model, replica.layout, (replica.dtype, replica.kv_dtype)
    for stage in range(layout.pp):
        for operator in forward(model, layout, step, *dtypes, stage):
            if not isinstance(operator, Collective):
                total = total + layout.tp * operator.repeat * flops(operator)
    return total


def prompt_flops_saved(replica: Replica, prompt: Floats, cached: Floats) -> float:
    """Return the share of all prompts' FLOPs that prefix cache hits save.

    A cached token is not computed, but later tokens still attend to it.
    """
    whole = useful_flops(replica, chunk_step(prompt, 0.0 * prompt, 1.0)).sum()
    rest = useful_flops(replica, chunk_step(prompt - cached, cached, 1.0)).sum()
    return float(1.0 - rest / whole)
