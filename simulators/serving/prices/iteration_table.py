"""Tables of the iteration times of a replica, filled by composition and read by the event loop.

Composition prices a batch from a few sums over its requests, in parts that depend on few of them:
linear layers and messages on the tokens, the LM head on its rows, attention of decodes on their
number and mean context, attention of prefills on their number, mean chunk and mean past. The batch
of a mixed iteration is one batch: its weights are read once.

Tables have a fixed number of steps in each octave, so the position of a number on a grid is
computed from its exponent, without a search. Linear layers jump where a tile is full: each step
keeps both its first and its last number of tokens, so that a jump between steps stays a jump.
Attention of prefills is kept per token, which is smoother to interpolate. Unequal prompts of one
batch read other numbers of keys than equal prompts with the same number, tokens and pairs: three
tables, of fewer, as many and more keys, hold the difference.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, frexp, inf, ldexp

import numpy as np

from simulators.catalog.accelerator import SEARCHED, load_accelerator
from simulators.catalog.cluster import THROUGH_HOST
from simulators.composition.price import (
    PROBE,
    Iteration,
    launch_s,
    pass_interval,
    pipeline_iterations,
    stage_iteration,
    time_shares,
)
from simulators.composition.replica import Replica
from simulators.core.columns import Shares
from simulators.core.jit import Floats, Ints, arrays, f8, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import PRICE, kernel
from simulators.serving.prices.hardware import Hardware
from simulators.workload.llm.parallelism import stage_of
from simulators.workload.llm.step import Step, prefill_step
from simulators.workload.operators import Column

FINE, COARSE = (64, 32, 32, 8, 4, 2), (1, 1, 1, 1, 1, 1)
"""Steps per octave of tokens, rows, decodes, contexts, chunks and pasts: whole numbers up to these
are exact, larger ones are interpolated. The number of prompts has one step. COARSE is for
accelerators, where every size needs a mapping search."""

LEAST_KEYS, MOST_KEYS = 1.0 / 3.0, 3.0
"""Keys of unequal prompts over those of equal prompts: tabulated at these ratios and at 1."""

MIXED_FIRST = (1.0, 16.0, 64.0, 1.0, 64.0)
MIXED_STEPS = (0.5, 0.5, 0.5, 4.0, 1.0)
MIXED_NODES = (3, 6, 6, 41, 11)
"""Grid of fused prefill-decode attention over prompts, mean chunk, mean past, decodes and keys per
decode: first size, steps per octave and number of nodes of each axis."""

COLUMNS = 3  # seconds of other stages, seconds of the last stage, joules of the replica

# Entries of `shape`: where each table begins, its nodes along each side, and steps per octave.
(
    TOKEN_TABLE,
    ROW_TABLE,
    DECODE_TABLE,
    PREFILL_TABLE,
    TOKEN_NODES,
    ROW_NODES,
    DECODE_NODES,
    CONTEXT_NODES,
    PREFILL_NODES,
    CHUNK_NODES,
    PAST_NODES,
    MIXED_TABLE,  # 0: prefills and decodes have an attention kernel each
    EXPERT_TABLE,  # over the tokens of all ranks; 0: included in the token table
    MESSAGE_TABLE,  # over the tokens of all ranks and their imbalance
    TOKEN_STEPS,
    ROW_STEPS,
    DECODE_STEPS,
    CONTEXT_STEPS,
    CHUNK_STEPS,
    PAST_STEPS,
) = range(20)

# First entries of `table`: overheads of an iteration of a stage. ADDITIVE is 1 if a mixed batch is
# priced as a batch of prefills and a batch of decodes, UNEVEN if messages wait for the rank with
# the most tokens (0 if all ranks share one memory).
(
    SEQUENCE_S,
    GAPS_S,
    LAST_GAPS_S,
    LAUNCHING_S,
    LAST_LAUNCHING_S,
    ACTIVE_IDLE_W,
    SENDERS,
    ADDITIVE,
    PROMPT_LAUNCHING_S,
    LAST_PROMPT_LAUNCHING_S,
    UNEVEN,
) = range(11)
HEADER = 11


@kernel(f8(i8, i8))
def grid_value(index: int, steps: int) -> float:
    """Return the number at a position of a grid of `octaves`.

    >>> [grid_value(i, 2) for i in range(7)]
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0]
    """
    if index <= steps:
        return float(index)
    return ldexp(float(steps + index % steps), index // steps - 1)


ENDLESS = 64
"""Nodes of a grid of `octaves` that no number exceeds."""


@kernel(f8(f8, i8, i8))
def place(value: float, steps: int, nodes: int) -> float:
    """Return the position of a number on a grid of `octaves`; the last step is extrapolated.

    >>> place(5.0, 2, 7), grid_value(4, 2), grid_value(5, 2)
    (4.5, 4.0, 6.0)
    >>> place(12.0, 2, 7), grid_value(6, 2)
    (8.0, 8.0)
    """
    if value <= steps:
        return value
    fraction, exponent = frexp(value / steps)
    position = steps * (exponent + 2.0 * fraction - 1.0)
    if position <= nodes - 1:
        return position
    last = grid_value(nodes - 1, steps)
    return nodes - 1 + (value - last) / (last - grid_value(nodes - 2, steps))


@kernel(f8(f8, i8, *arrays(i8, 1), *arrays(f8, 2)))
def add_steps(tokens: float, start: int, shape: Ints, table: Floats, price: Floats) -> float:
    """Add the entry of a table over tokens to a price; return the last stage's seconds."""
    x = place(tokens, shape[TOKEN_STEPS], shape[TOKEN_NODES])
    i = min(ceil(x) - 1, shape[TOKEN_NODES] - 2)
    width = float(1 << max(i // shape[TOKEN_STEPS] - 1, 0))
    along = ((x - i) * width - 1.0) / (width - 1.0) if width > 1.0 else 0.0
    row = start + 2 * COLUMNS * i
    for column in range(COLUMNS):
        first, last = table[row + column], table[row + COLUMNS + column]
        price[column] += first + along * (last - first)
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]


@kernel(f8(f8, i8, i8, i8, *arrays(f8, 2)))
def add_line(
    value: float, steps: int, start: int, size: int, table: Floats, price: Floats
) -> float:
    """Add the entry of a one-dimensional table to a price; return the last stage's seconds."""
    x = place(value, steps, size)
    i = min(int(x), size - 2)
    right = x - i
    row = start + COLUMNS * i
    for column in range(COLUMNS):
        left_value, right_value = table[row + column], table[row + COLUMNS + column]
        price[column] += left_value + right * (right_value - left_value)
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]


@kernel(f8(f8, f8, f8, i8, i8, i8, *arrays(f8, 2)))
def add_plane(
    x: float,
    y: float,
    weight: float,
    start: int,
    rows: int,
    columns: int,
    table: Floats,
    price: Floats,
) -> float:
    """Add the weighted entry of a two-dimensional table; return the last stage's seconds."""
    i, j = min(int(x), rows - 2), min(int(y), columns - 2)
    u, v = x - i, y - j
    low = start + COLUMNS * (i * columns + j)
    high = low + COLUMNS * columns
    for column in range(COLUMNS):
        left, right = table[low + column], table[low + COLUMNS + column]
        near = left + v * (right - left)
        left, right = table[high + column], table[high + COLUMNS + column]
        price[column] += weight * (near + u * (left + v * (right - left) - near))
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]


@kernel(f8(f8, f8, f8, f8, *arrays(i8, 1), *arrays(f8, 2)))
def add_rows(
    tokens: float,
    everywhere: float,
    uneven: float,
    rows: float,
    shape: Ints,
    table: Floats,
    price: Floats,
) -> float:
    """Add linear layers, messages and the LM head; return the seconds of the last stage."""
    add_steps(tokens, shape[TOKEN_TABLE], shape, table, price)
    if shape[EXPERT_TABLE] > 0:
        add_steps(everywhere, shape[EXPERT_TABLE], shape, table, price)
        add_steps(everywhere * (1.0 + uneven), shape[MESSAGE_TABLE], shape, table, price)
    if rows > 0.0:
        add_head(rows, shape, table, price)
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]


@kernel(f8(f8, *arrays(i8, 1), *arrays(f8, 2)))
def add_head(rows: float, shape: Ints, table: Floats, price: Floats) -> float:
    """Add the LM head of a number of rows; return the last stage's seconds."""
    return add_line(rows, shape[ROW_STEPS], shape[ROW_TABLE], shape[ROW_NODES], table, price)


@kernel(f8(f8, f8, *arrays(i8, 1), *arrays(f8, 2)))
def add_decodes(decodes: float, keys: float, shape: Ints, table: Floats, price: Floats) -> float:
    """Add attention of decodes extrapolated to no keys, and write the slope over the keys.

    Returns the number of keys up to which the slope holds. Between two tabulated contexts time is
    linear in the keys, so a batch that is repeated while keys grow is priced by one product.
    """
    columns = shape[CONTEXT_NODES]
    x = place(decodes, shape[DECODE_STEPS], shape[DECODE_NODES])
    y = place(keys / decodes, shape[CONTEXT_STEPS], columns)
    i, j = min(int(x), shape[DECODE_NODES] - 2), min(int(y), columns - 2)
    near, far = grid_value(j, shape[CONTEXT_STEPS]), grid_value(j + 1, shape[CONTEXT_STEPS])
    low = shape[DECODE_TABLE] + COLUMNS * (i * columns + j)
    high = low + COLUMNS * columns
    u = x - i
    for column in range(COLUMNS):
        left = table[low + column]
        left += u * (table[high + column] - left)
        right = table[low + COLUMNS + column]
        right += u * (table[high + COLUMNS + column] - right)
        slope = (right - left) / (far - near)
        price[column] += left - slope * near
        price[at.STAGE_SLOPE_S + column] = slope / decodes
    return inf if j == columns - 2 else far * decodes


@kernel(f8(*arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 2)))
def join_attention(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Replace prefill and decode attention by the fused kernel; return the ratio of their times.

    The base columns hold the time without attention, the other columns with attention.
    """
    prefills, decodes = step[at.PREFILLS], step[at.DECODES]
    chunk = step[at.PREFILL_TOKENS] / prefills
    past = step[at.PREFILL_PAIRS] / step[at.PREFILL_TOKENS] - (chunk + 1.0) / 2.0
    sizes = (prefills, chunk, past, decodes, step[at.DECODE_KV] / decodes)
    sender, last, joules = 0.0, 0.0, 0.0
    for corner in range(1 << len(MIXED_NODES)):
        weight, node = 1.0, 0
        for axis in range(len(MIXED_NODES)):
            x = place(max(sizes[axis] / MIXED_FIRST[axis], 1.0), 1, ENDLESS) - 1.0
            x = min(x * MIXED_STEPS[axis], MIXED_NODES[axis] - 1.0)
            low = min(int(x), MIXED_NODES[axis] - 2)
            upper = corner >> axis & 1
            weight *= x - low if upper else 1.0 - (x - low)
            node = node * MIXED_NODES[axis] + low + upper
        row = shape[MIXED_TABLE] + COLUMNS * node
        sender += weight * table[row]
        last += weight * table[row + 1]
        joules += weight * table[row + 2]
    shares = (sender, last, joules)
    for column in range(COLUMNS):
        apart = price[column] - price[at.STAGE_BASE_S + column]
        apart += price[at.STAGE_SLOPE_S + column] * step[at.DECODE_KV]
        price[column] += (shares[column] - 1.0) * apart
    return last


@kernel(PRICE)
def table_price(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of the last stage of a batch, interpolated in the tables."""
    price[:] = 0.0
    tokens, everywhere, rows = step[at.TOKENS], step[at.ALL_RANK_TOKENS], step[at.LOGITS_ROWS]
    uneven = step[at.RANK_IMBALANCE] * table[UNEVEN]
    is_mixed = step[at.PREFILLS] > 0.0 and step[at.DECODES] > 0.0
    if is_mixed and table[ADDITIVE] > 0.0:
        checked = tokens - step[at.PREFILL_TOKENS]
        decodes = everywhere * checked / tokens
        add_rows(checked, decodes, uneven, checked, shape, table, price)
        tokens, rows = step[at.PREFILL_TOKENS], rows - checked
        everywhere -= decodes
    add_rows(tokens, everywhere, uneven, rows, shape, table, price)
    for column in range(COLUMNS):
        price[at.STAGE_BASE_S + column] = price[column]
    if step[at.PREFILLS] > 0.0:
        add_prefills(step, shape, table, price)
    keys = step[at.DECODE_KV]
    if step[at.DECODES] > 0.0:
        price[at.UNTIL_KV] = add_decodes(step[at.DECODES], keys, shape, table, price)
    if is_mixed and shape[MIXED_TABLE] > 0 and table[ADDITIVE] == 0.0:
        join_attention(step, shape, table, price)
    return add_waits(step, table, price)


@kernel(f8(*arrays(f8, 3)))
def add_waits(step: Floats, table: Floats, price: Floats) -> float:
    """Add launches, gaps and idle energy to the price; return the last stage's seconds."""
    keys = step[at.DECODE_KV]
    sequences_s = table[SEQUENCE_S] * (step[at.PREFILLS] + step[at.DECODES])
    price[at.WAITING_W] = table[ACTIVE_IDLE_W]
    waits_s = 0.0
    launching = PROMPT_LAUNCHING_S if step[at.PREFILLS] > 0.0 else LAUNCHING_S
    for stage in range(2):
        price[at.STAGE_BASE_S + stage] = price[stage]
        price[at.STAGE_MIN_S + stage] = table[launching + stage]
        price[at.STAGE_ADDED_S + stage] = table[GAPS_S + stage] + sequences_s
        busy_s = price[at.STAGE_BASE_S + stage] + price[at.STAGE_SLOPE_S + stage] * keys
        price[stage] = max(price[at.STAGE_MIN_S + stage], busy_s)
        price[stage] += price[at.STAGE_ADDED_S + stage]
        waits_s += (price[stage] - busy_s) * (1.0 if stage == at.LAST_STAGE_S else table[SENDERS])
    price[at.BASE_J] = price[at.ENERGY_J]
    price[at.ENERGY_J] = price[at.BASE_J] + price[at.SLOPE_J] * keys + price[at.WAITING_W] * waits_s
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]


@kernel(f8(*arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 2)))
def add_prefills(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Add attention of prefills; return the seconds of the last stage.

    The price is that of equal prompts with the same number, tokens and pairs, interpolated to the
    table of fewer or of more keys.
    """
    tokens, prefills = step[at.PREFILL_TOKENS], step[at.PREFILLS]
    chunk = tokens / prefills
    past = max(0.0, step[at.PREFILL_PAIRS] / tokens - (chunk + 1.0) / 2.0)
    rows, columns = shape[CHUNK_NODES], shape[PAST_NODES]
    x, y = place(chunk, shape[CHUNK_STEPS], rows), place(past, shape[PAST_STEPS], columns)
    z = place(prefills, 1, shape[PREFILL_NODES] + 1) - 1.0
    batch = min(int(z), shape[PREFILL_NODES] - 2)
    face = COLUMNS * rows * columns
    equal = shape[PREFILL_TABLE] + (shape[PREFILL_NODES] + batch) * face
    unequal, share = equal, 0.0
    keys = step[at.PREFILL_KV] / (prefills * (past + chunk)) if prefills > 1.0 else 1.0
    if keys < 1.0:
        unequal, share = equal - shape[PREFILL_NODES] * face, (1.0 - keys) / (1.0 - LEAST_KEYS)
    elif keys > 1.0:
        unequal, share = equal + shape[PREFILL_NODES] * face, (keys - 1.0) / (MOST_KEYS - 1.0)
    more = z - batch
    for weight, start in (
        ((1.0 - more) * (1.0 - share), equal),
        (more * (1.0 - share), equal + face),
        ((1.0 - more) * share, unequal),
        (more * share, unequal + face),
    ):
        if weight != 0.0:
            add_plane(x, y, weight * tokens, start, rows, columns, table, price)
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]


MOST_TOKENS, MOST_ROWS, MOST_PREFILLS = 1 << 17, 1 << 13, 1 << 8
"""Largest tabulated sizes; larger iterations are extrapolated along the last step."""

MOST_RANK_TOKENS, MOST_RANK_ROWS = 1 << 14, 1 << 10
"""Tabulated sizes of each data-parallel rank, where their sum is larger."""

LONG_S = 60.0
"""Upper bound of the launch time of an iteration."""

BY_RANK_TOKENS, BY_ALL_TOKENS, BY_IMBALANCE = ("tokens", "send_recv"), ("experts",), ("collective",)
"""Operators by their argument: tokens of a rank, tokens of all attention-dp ranks, and imbalance of
tokens between ranks."""

TYPICAL = ((1.0, prefill_step(1.0, 1024.0)), (256.0 / 64.0, PROBE))
"""Passes of a typical request: 1024 prompt tokens, and its share of the decodes of 256 tokens."""


Ends = tuple[float, float]
"""Low and high end of an interval, relative to the value."""


@dataclass(frozen=True)
class IterationTable:
    """The iteration times of one replica, in the layout of the price kernel."""

    shape: Ints
    table: Floats
    waiting_w: float | None  # power of an idle stage; None: energy is unknown
    shares: Shares  # of a typical request's time, by evidence
    reach: Mapping[str, Ends]  # 90 % intervals of typical passes, by metric


Pass = tuple[Iteration, ...]
"""An iteration of every stage."""


def pass_intervals(replica: Replica, passes: Sequence[Pass] = ()) -> dict[str, Ends]:
    """Return the relative 90 % intervals of typical passes, by metric; `passes` are priced ones."""
    passes = passes or [pipeline_iterations(replica, step) for _, step in TYPICAL]
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

    With `additive`, the prefills and the decodes of a mixed batch run one after the other, so
    linear layers, messages and the LM head are priced twice, and weights are read twice.

    Raises:
        Infeasible: the model cannot be partitioned in this way.
    """
    if additive:
        known = iteration_table(hardware)
        table = known.table.copy()
        table[ADDITIVE] = 1.0
        return replace(known, table=table)
    replica = hardware.replica
    ranks, steps = replica.layout.attention_dp, FINE
    most = max(MOST_TOKENS, replica.model.max_context)
    tokens_end = max(most, MOST_RANK_TOKENS * ranks)
    rows_end = max(MOST_ROWS, MOST_RANK_ROWS * ranks)
    if replica.accelerator and load_accelerator(replica.accelerator).mapping == SEARCHED:
        most = tokens_end = rows_end = replica.model.max_context
        steps = COARSE
    ends = (tokens_end, rows_end, rows_end, most, most, most)
    grids = [octaves(each, end) for each, end in zip(steps, ends, strict=True)]
    tokens, rows, decodes, contexts, chunks, pasts = grids
    batches = octaves(1, MOST_PREFILLS)[1:]
    passes = [pipeline_iterations(replica, step) for _, step in TYPICAL]
    stages = _Stages(replica, passes[-1])
    decode = passes[-1][-1]
    apart = ranks > 1  # experts process the tokens of all ranks
    parts = [
        _header(stages, decode.active_idle_w),
        _token_columns(
            stages,
            tokens,
            BY_RANK_TOKENS if apart else BY_RANK_TOKENS + BY_ALL_TOKENS + BY_IMBALANCE,
        ),
        _columns(stages, Step(logits_rows=rows), ("tokens",)),
        _decode_columns(stages, decodes, contexts),
        _prefill_columns(stages, batches, chunks, pasts),
    ]
    *starts, end = np.cumsum([part.size for part in parts])
    mixed = _mixed_shares(stages)
    of_all = [
        _token_columns(stages, tokens, parts) if apart else np.zeros(0)
        for parts in (BY_ALL_TOKENS, BY_IMBALANCE)
    ]
    experts, messages = (end + mixed.size, end + mixed.size + of_all[0].size) if apart else (0, 0)
    sides = [g.size for g in (tokens, rows, decodes, contexts, batches, chunks, pasts)]
    return IterationTable(
        shape=np.array(
            [*starts, *sides, end if mixed.size else 0, experts, messages, *steps], np.int64
        ),
        table=np.concatenate([part.ravel() for part in [*parts, mixed, *of_all]]),
        waiting_w=decode.waiting_w,
        shares=time_shares([(n, p) for (n, _), p in zip(TYPICAL, passes, strict=True)]).reshape(-1),
        reach=pass_intervals(replica, passes),
    )


class _Stages:
    """The two kinds of stage of a pipeline: the slowest stage before the last, and the last."""

    def __init__(self, replica: Replica, probed: Pass) -> None:
        self.replica = replica
        self.senders = replica.layout.pp - 1
        times = [_number(stage.latency_s) for stage in probed[:-1]]
        self.slowest = int(np.argmax(times)) if times else 0

        self.which = (self.slowest, self.senders) if self.senders else (0,)

    def kinds(self, step: Step, only: Sequence[str]) -> tuple[Iteration, Iteration]:
        """Return some parts of an iteration of both kinds."""
        found = [stage_iteration(self.replica, step, stage, only) for stage in self.which]
        return found[0], found[-1]

    def launch_s(self, step: Step, busy_s: float) -> tuple[float, float]:
        """Return the seconds that stages of both kinds wait for the host in an iteration."""
        parts = [stage_of(self.replica.model, self.replica.layout, stage) for stage in self.which]
        found = [_number(launch_s(self.replica, step, part, busy_s)) for part in parts]
        return found[0], found[-1]


def _header(stages: _Stages, active_idle_w: float) -> Floats:
    """Return the overheads of an iteration besides kernels and messages.

    Launches overlap with kernels: they are fully exposed in an iteration without work, and fully
    hidden by work of `LONG_S`.
    """
    header = np.zeros(HEADER)
    header[GAPS_S], header[LAST_GAPS_S] = stages.launch_s(Step(), LONG_S)
    shown = stages.launch_s(Step(), 0.0)
    header[LAUNCHING_S] = shown[0] - header[GAPS_S]
    header[LAST_LAUNCHING_S] = shown[1] - header[LAST_GAPS_S]
    one = stages.launch_s(Step(prefills=1.0), LONG_S)
    header[SEQUENCE_S] = one[1] - header[LAST_GAPS_S]
    launching = header[[LAUNCHING_S, LAST_LAUNCHING_S]]
    if stages.replica.launcher.runtime.prompt_layer_s:
        launching = np.subtract(stages.launch_s(Step(prefills=1.0), 0.0), one)
    header[[PROMPT_LAUNCHING_S, LAST_PROMPT_LAUNCHING_S]] = launching
    header[ACTIVE_IDLE_W] = active_idle_w
    header[SENDERS] = stages.senders
    replica = stages.replica  # messages through host memory do not wait for other ranks
    header[UNEVEN] = replica.cluster.fabric_of(replica.gpu) != THROUGH_HOST
    return header


def _columns(
    stages: _Stages, step: Step, parts: Sequence[str], shape: tuple[int, ...] = ()
) -> Floats:
    """Return seconds of both kinds of stage and joules of all stages, of some parts of a step.

    The last axis has `COLUMNS`; the other axes have at least `shape`, also without layers.
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
    keys = np.array([LEAST_KEYS, 1.0, MOST_KEYS])[:, None, None, None]
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
    axes = zip(MIXED_FIRST, MIXED_STEPS, MIXED_NODES, strict=True)
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
