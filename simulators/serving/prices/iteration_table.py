"""Tabulates iteration times of a replica once per design, for lookup by the event loop.

Composition prices a batch from a few sums over its requests, in parts that depend on few of them:
linear layers and messages on the tokens, the LM head on its rows, attention of decodes on their
number and mean context, attention of prefills on their number, mean chunk and mean past. The batch
of a mixed iteration is one batch: its weights are read once.

Tables have a fixed number of steps in each octave. Linear layers jump where a tile is full: each
step keeps both its first and its last number of tokens, so that a jump between steps stays a jump.
Attention of prefills is kept per token, so that interpolation only meets what bends. Unequal
prompts of one batch read other numbers of keys than equal ones with the same number, tokens and
pairs: three tables, of fewer, as many and more keys, tell what that costs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulators.catalog.accelerator import SEARCHED, load_accelerator
from simulators.catalog.cluster import THROUGH_HOST
from simulators.composition.price import (
    Iteration,
    launch_s,
    pass_interval,
    pipeline_iterations,
    stage_iteration,
    time_shares,
)
from simulators.composition.replica import Replica
from simulators.core.columns import Shares
from simulators.core.jit import Floats, Ints
from simulators.serving.deployment import Hardware
from simulators.serving.prices import lookup
from simulators.workload.llm.parallelism import stage_of
from simulators.workload.llm.step import Step, decode_step, prefill_step
from simulators.workload.operators import Column

MOST_TOKENS, MOST_ROWS, MOST_PREFILLS = 1 << 17, 1 << 13, 1 << 8
"""Sizes of the tables; larger iterations are extrapolated along the last step."""

LONG_S = 60.0
"""Upper bound of the launch time of an iteration."""

PROBE = decode_step(64.0, 1024.0)
"""A typical batch, by which stages are compared."""

BY_RANK_TOKENS, BY_ALL_TOKENS, BY_SKEW = ("tokens", "send_recv"), ("experts",), ("collective",)
"""Operators by their argument: tokens of a rank, tokens of all attention-dp ranks, and
imbalance of tokens between ranks."""

EVERYDAY = ((1.0, prefill_step(1.0, 1024.0)), (256.0 / 64.0, PROBE))
"""A request of 1024 prompt tokens, and its share of the decode batches of 256 output tokens."""


Ends = tuple[float, float]
"""Ends of an interval, relative to the value."""


@dataclass(frozen=True)
class IterationTable:
    """The iteration times of one replica, in the layout of the price kernel."""

    shape: Ints
    table: Floats
    waiting_w: float | None  # of all GPUs of one stage; None: energy is unknown
    shares: Shares  # of a typical request's time, by evidence
    reach: Mapping[str, Ends]  # intervals of typical passes, by metric


Pass = tuple[Iteration, ...]
"""An iteration of every stage."""


def everyday_reach(replica: Replica) -> dict[str, Ends]:
    """Return the relative 90 % intervals of typical passes, by metric."""
    return _reach(replica, _everyday_passes(replica))


def _everyday_passes(replica: Replica) -> list[Pass]:
    return [pipeline_iterations(replica, step) for _, step in EVERYDAY]


def _reach(replica: Replica, passes: Sequence[Pass]) -> dict[str, Ends]:
    metrics = zip(("ttft", "tpot"), passes, strict=True)
    return {metric: pass_interval(replica, stages) for metric, stages in metrics}


def octaves(steps: int, most: int) -> Floats:
    """Return a grid of whole numbers up to `steps`, then `steps` to each octave.

    >>> octaves(2, 8)
    array([0., 1., 2., 3., 4., 6., 8.])
    """
    count = max(0, int(most / steps - 1e-9).bit_length())
    octave, step = np.divmod(np.arange(steps * count), steps)
    above = np.ldexp(steps + step.astype(np.float64), octave)
    return np.concatenate([np.arange(steps), above, [steps * 2.0**count]])


@functools.lru_cache(maxsize=32)
def iteration_table(hardware: Hardware, *, additive: bool = False) -> IterationTable:
    """Return the tables of a replica.

    `additive`: it runs the prefills and the decodes of a batch in turn, so that linear layers,
    messages and the LM head are paid for each, and weights are read twice.

    Raises:
        Infeasible: the model cannot be cut this way.
    """
    if additive:
        known = iteration_table(hardware)
        table = known.table.copy()
        table[lookup.ADDITIVE] = 1.0
        return replace(known, table=table)
    replica = hardware.replica
    most, rows_end, steps = max(MOST_TOKENS, replica.model.max_context), MOST_ROWS, lookup.FINE
    if replica.accelerator and load_accelerator(replica.accelerator).mapping == SEARCHED:
        most = rows_end = replica.model.max_context
        steps = lookup.COARSE
    ends = (most, rows_end, rows_end, most, most, most)
    grids = [octaves(each, end) for each, end in zip(steps, ends, strict=True)]
    tokens, rows, decodes, contexts, chunks, pasts = grids
    batches = octaves(1, MOST_PREFILLS)[1:]
    passes = _everyday_passes(replica)
    stages = _Stages(replica, passes[-1])
    everyday = passes[-1][-1]
    apart = replica.cut.attention_dp > 1  # ranks may have other tokens than the experts see
    parts = [
        _header(stages, everyday.active_idle_w),
        _token_columns(
            stages,
            tokens,
            BY_RANK_TOKENS if apart else BY_RANK_TOKENS + BY_ALL_TOKENS + BY_SKEW,
        ),
        _columns(stages, Step(logits_rows=rows), ("tokens",)),
        _decode_columns(stages, decodes, contexts),
        _prefill_columns(stages, batches, chunks, pasts),
    ]
    *starts, end = np.cumsum([part.size for part in parts])
    mixed = _mixed_shares(stages)
    of_all = [
        _token_columns(stages, tokens, parts) if apart else np.zeros(0)
        for parts in (BY_ALL_TOKENS, BY_SKEW)
    ]
    experts, messages = (end + mixed.size, end + mixed.size + of_all[0].size) if apart else (0, 0)
    sides = [g.size for g in (tokens, rows, decodes, contexts, batches, chunks, pasts)]
    return IterationTable(
        shape=np.array(
            [*starts, *sides, end if mixed.size else 0, experts, messages, *steps], np.int64
        ),
        table=np.concatenate([part.ravel() for part in [*parts, mixed, *of_all]]),
        waiting_w=everyday.waiting_w,
        shares=time_shares([(n, p) for (n, _), p in zip(EVERYDAY, passes, strict=True)]).reshape(
            -1
        ),
        reach=_reach(replica, passes),
    )


class _Stages:
    """The two kinds of stage of a pipeline: the slowest stage before the last, and the last."""

    def __init__(self, replica: Replica, probed: Pass) -> None:
        self.replica = replica
        self.senders = replica.cut.pp - 1
        times = [_number(stage.latency_s) for stage in probed[:-1]]
        self.slowest = int(np.argmax(times)) if times else 0

    def _at(self, step: Step, stage: int, only: Sequence[str] = ()) -> Iteration:
        return stage_iteration(self.replica, step, stage, only)

    def kinds(self, step: Step, only: Sequence[str]) -> tuple[Iteration, Iteration]:
        """Return some parts of an iteration of both kinds."""
        last = self._at(step, self.senders, only)
        return (self._at(step, self.slowest, only), last) if self.senders else (last, last)

    def launch_s(self, step: Step, busy_s: float) -> tuple[float, float]:
        """Return how long stages of both kinds wait for the host in an iteration."""
        replica = self.replica
        last, sender = (
            _number(launch_s(replica, step, stage_of(replica.model, replica.cut, stage), busy_s))
            for stage in (self.senders, self.slowest)
        )
        return (sender, last) if self.senders else (last, last)


def _header(stages: _Stages, active_idle_w: float) -> Floats:
    """Return the overhead of an iteration besides kernels and messages.

    Launching is hidden behind work: asked with no work at all it shows whole, and with work that
    takes longer than any launch, not at all.
    """
    header = np.zeros(lookup.HEADER)
    header[lookup.GAPS_S], header[lookup.LAST_GAPS_S] = stages.launch_s(Step(), LONG_S)
    shown = stages.launch_s(Step(), 0.0)
    header[lookup.LAUNCHING_S] = shown[0] - header[lookup.GAPS_S]
    header[lookup.LAST_LAUNCHING_S] = shown[1] - header[lookup.LAST_GAPS_S]
    one = stages.launch_s(Step(prefills=1.0), LONG_S)
    header[lookup.SEQUENCE_S] = one[1] - header[lookup.LAST_GAPS_S]
    launching = header[[lookup.LAUNCHING_S, lookup.LAST_LAUNCHING_S]]
    if stages.replica.runtime.prompt_layer_s:
        launching = np.subtract(stages.launch_s(Step(prefills=1.0), 0.0), one)
    header[[lookup.PROMPT_LAUNCHING_S, lookup.LAST_PROMPT_LAUNCHING_S]] = launching
    header[lookup.ACTIVE_IDLE_W] = active_idle_w
    header[lookup.SENDERS] = stages.senders
    replica = stages.replica  # what one rank sends has the host's memory for itself
    header[lookup.UNEVEN] = replica.cluster.fabric_of(replica.gpu) != THROUGH_HOST
    return header


def _columns(
    stages: _Stages, step: Step, parts: Sequence[str], shape: tuple[int, ...] = ()
) -> Floats:
    """Return seconds of both kinds of stage, and joules of all stages, of some parts of a step.

    They have at least that shape, also where there are no layers to take any time.
    """
    sender, last = stages.kinds(step, parts)
    seconds, joules = zip(*(_sum(kind, parts) for kind in (sender, last)), strict=True)
    whole = np.zeros(shape)
    _, *columns = np.broadcast_arrays(whole, *seconds, stages.senders * joules[0] + joules[1])
    table: Floats = np.stack(columns, axis=-1)
    return table


def _sum(iteration: Iteration, parts: Sequence[str]) -> tuple[Floats, Floats]:
    """Return the seconds and joules of parts; messages draw active idle power."""
    seconds, joules = np.zeros(1), np.zeros(1)
    for part in parts:
        spent = np.asarray(getattr(iteration, f"{part}_s"), np.float64)
        drawn = getattr(iteration, f"{part}_j", iteration.active_idle_w * spent)
        seconds, joules = seconds + spent, joules + drawn
    return seconds, joules


def _token_columns(stages: _Stages, tokens: Floats, parts: Sequence[str]) -> Floats:
    """Return the token-dependent price at the first and last number of each step."""
    ends = np.stack([tokens[:-1] + 1.0, tokens[1:]], axis=-1)
    return _columns(stages, Step(prefill_tokens=ends), parts, ends.shape)


def _decode_columns(stages: _Stages, decodes: Floats, contexts: Floats) -> Floats:
    """Return attention of decodes over their number and mean context."""
    number = decodes[:, None]
    keys = number * contexts
    step = Step(decodes=number, decode_kv_tokens=keys)
    return _columns(stages, step, ("decode_attention",), keys.shape)


def _prefill_columns(stages: _Stages, batches: Floats, chunks: Floats, pasts: Floats) -> Floats:
    """Return attention of prefills per token, over keys, number, mean chunk and mean past."""
    keys = np.array([lookup.LEAST_KEYS, 1.0, lookup.MOST_KEYS])[:, None, None, None]
    number, chunk = batches[:, None, None], np.maximum(chunks, 1.0)[:, None]
    tokens = number * chunk
    read = keys * number * (pasts + chunk)
    step = Step(
        prefills=number,
        prefill_tokens=tokens,
        prefill_pairs=tokens * (pasts + (chunk + 1.0) / 2.0),
        prefill_kv_tokens=read,
    )
    table: Floats = _columns(stages, step, ("prefill_attention",), read.shape)
    return table / tokens[..., None]


def _mixed_shares(stages: _Stages) -> Floats:
    """Return the time of fused prefill-decode attention over two kernels; empty without fusion."""
    sizes = []
    axes = zip(lookup.MIXED_FIRST, lookup.MIXED_STEPS, lookup.MIXED_NODES, strict=True)
    for first, steps, nodes in axes:
        part, octave = np.modf(np.arange(nodes) / steps)
        sizes.append(first * np.ldexp(1.0 + part, octave.astype(np.int64)))
    prefills, chunk, past, decodes, keys = np.meshgrid(*sizes, indexing="ij")
    tokens = prefills * chunk
    prompts = Step(
        prefills=prefills,
        prefill_tokens=tokens,
        prefill_pairs=tokens * (past + (chunk + 1.0) / 2.0),
        prefill_kv_tokens=prefills * (past + chunk),
    )
    singles = {"decodes": decodes, "decode_kv_tokens": decodes * keys}
    together = _columns(stages, replace(prompts, **singles), ("mixed_attention",))
    if together.shape[:-1] != tokens.shape:
        return np.zeros(0)
    apart = _columns(stages, prompts, ("prefill_attention",))
    apart = apart + _columns(stages, Step(**singles), ("decode_attention",))
    shares: Floats = together / np.where(apart > 0.0, apart, 1.0)
    return shares


def _number(column: Column) -> float:
    return float(np.asarray(column).reshape(-1)[0])
