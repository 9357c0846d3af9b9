"""What an iteration takes is tabulated once per design, and looked up in the loop.

Composition prices a batch from a few sums over its requests, in parts that depend on few of them:
linear layers and messages on the tokens, the LM head on its rows, attention of decodes on their
number and mean context, attention of prefills on their number, mean chunk and mean past. The batch
of a mixed iteration is one batch: its weights are read once.

Tables have a fixed number of steps in each octave. Linear layers jump where a tile is full: each
step keeps both its first and its last number of tokens, so that a jump between steps stays a jump.
Attention of prefills is kept per token, so that interpolation only meets what bends; unequal
prompts of one batch count as equal ones with the same number, tokens and pairs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, frexp, inf, ldexp

import numpy as np

from simulators.composition.iteration import Iteration, Replica, stage_iteration
from simulators.core.jit import Floats, Ints, arrays, f8, i8
from simulators.serving.batch import (
    BASE_J,
    DECODE_KV,
    DECODES,
    ENERGY_J,
    LAST_STAGE_S,
    LOGITS_ROWS,
    PREFILL_PAIRS,
    PREFILL_TOKENS,
    PREFILLS,
    PRICE,
    SLOPE_J,
    STAGE_ADDED_S,
    STAGE_BASE_S,
    STAGE_FLOOR_S,
    STAGE_SLOPE_S,
    TOKENS,
    UNTIL_KV,
    WAITING_W,
)
from simulators.serving.kernel import kernel
from simulators.workload.operators import Column
from simulators.workload.step import Step, decode_step

TOKEN_STEPS, ROW_STEPS, DECODE_STEPS, CONTEXT_STEPS = 64, 32, 32, 4
PREFILL_STEPS, CHUNK_STEPS, PAST_STEPS = 1, 4, 2
"""Steps per octave: whole numbers up to here are exact, larger ones are interpolated."""

MOST_TOKENS, MOST_ROWS, MOST_PREFILLS = 1 << 17, 1 << 10, 1 << 8
"""The tables' ends; an iteration beyond them is extrapolated along the last step."""

PROBE = decode_step(64.0, 1024.0)
"""An everyday batch: says whether a design's figures are measured or extrapolated."""

_COLUMNS = 3  # seconds on a stage that sends on, on the last one, joules of the replica

# Entries of `shape`: where each table begins, and its sides.
(_LINEAR, _HEAD, _DECODE, _PREFILL, _LINEARS, _HEADS, _DECODED, _CONTEXTS, _BATCHES, _CHUNKS,
 _PASTS) = range(11)  # fmt: skip

# The first entries of `table`: what is added to each iteration of a stage.
_SEQUENCE_S, _GAPS_S, _LAST_GAPS_S, _LAUNCHING_S, _LAST_LAUNCHING_S, _WAITING_W, _SENDERS = range(7)
_HEADER = 7


@dataclass(frozen=True)
class Hardware:
    """A replica, known by its description: equal descriptions share their tables."""

    description: str
    replica: Replica = field(compare=False, repr=False)


@dataclass(frozen=True)
class IterationTable:
    """The iteration times of one replica, as the price kernel reads them."""

    shape: Ints
    table: Floats
    waiting_w: float  # of all GPUs of one stage
    calibrated: bool
    extrapolated: bool


def octaves(steps: int, most: int) -> Floats:
    """Return a grid of whole numbers up to `steps`, then `steps` to each octave.

    >>> octaves(2, 8)
    array([0., 1., 2., 3., 4., 6., 8.])
    """
    count = max(0, int(most / steps - 1e-9).bit_length())
    octave, step = np.divmod(np.arange(steps * count), steps)
    above = np.ldexp(steps + step.astype(np.float64), octave)
    return np.concatenate([np.arange(steps), above, [steps * 2.0**count]])


@functools.lru_cache(maxsize=64)
def iteration_table(hardware: Hardware) -> IterationTable:
    """Return the tables of a replica.

    Raises:
        Infeasible: the model cannot be cut this way.
    """
    replica = hardware.replica
    most = max(MOST_TOKENS, replica.model.max_context)
    tokens, rows = octaves(TOKEN_STEPS, most), octaves(ROW_STEPS, MOST_ROWS)
    decodes, contexts = octaves(DECODE_STEPS, MOST_ROWS), octaves(CONTEXT_STEPS, most)
    batches, chunks = octaves(PREFILL_STEPS, MOST_PREFILLS), octaves(CHUNK_STEPS, most)
    pasts = octaves(PAST_STEPS, most)
    stages = _Stages(replica)
    everyday = stages.last(PROBE)
    parts = [
        _header(stages),
        _token_columns(stages, tokens),
        _columns(stages, Step(logits_rows=rows), ("tokens",)),
        _decode_columns(stages, decodes, contexts),
        _prefill_columns(stages, batches, chunks, pasts),
    ]
    starts = np.cumsum([part.size for part in parts])[:-1]
    sides = [g.size for g in (tokens, rows, decodes, contexts, batches, chunks, pasts)]
    return IterationTable(
        shape=np.array([*starts, *sides], np.int64),
        table=np.concatenate([part.ravel() for part in parts]),
        waiting_w=everyday.waiting_w,
        calibrated=everyday.calibrated,
        extrapolated=bool(np.any(everyday.extrapolated)),
    )


class _Stages:
    """The two kinds of stage of a pipeline: the slowest of those that send on, and the last."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.senders = replica.cut.pp - 1
        self.slowest = 0
        if self.senders > 1:
            times = [_number(self._at(PROBE, stage).latency_s) for stage in range(self.senders)]
            self.slowest = int(np.argmax(times))

    def _at(self, step: Step, stage: int) -> Iteration:
        return stage_iteration(self.replica, step, stage)

    def sender(self, step: Step) -> Iteration:
        return self._at(step, self.slowest)

    def last(self, step: Step) -> Iteration:
        return self._at(step, self.senders)

    def kinds(self, step: Step) -> tuple[Iteration, Iteration]:
        last = self.last(step)
        return (self.sender(step), last) if self.senders else (last, last)


def _header(stages: _Stages) -> Floats:
    """Return what is added to an iteration besides kernels and messages.

    Launching is hidden behind work: asked with no work at all it shows whole, and with a batch that
    takes longer than any launch, not at all.
    """
    header = np.zeros(_HEADER)
    work = Step(prefill_tokens=float(MOST_TOKENS))
    busy = stages.kinds(work)
    idle = stages.kinds(Step())
    one = stages.last(Step(prefill_tokens=float(MOST_TOKENS), prefills=1.0))
    header[_GAPS_S], header[_LAST_GAPS_S] = (_number(i.launch_s) for i in busy)
    shown = [_number(i.launch_s) for i in idle]
    header[_LAUNCHING_S] = shown[0] - header[_GAPS_S]
    header[_LAST_LAUNCHING_S] = shown[1] - header[_LAST_GAPS_S]
    header[_SEQUENCE_S] = _number(one.launch_s) - header[_LAST_GAPS_S]
    header[_WAITING_W] = busy[1].waiting_w
    header[_SENDERS] = stages.senders
    return header


def _columns(stages: _Stages, step: Step, parts: Sequence[str]) -> Floats:
    """Return seconds of both kinds of stage, and joules of all stages, of some parts of a step."""
    sender, last = stages.kinds(step)
    seconds, joules = zip(*(_sum(kind, parts) for kind in (sender, last)), strict=True)
    columns = np.broadcast_arrays(*seconds, stages.senders * joules[0] + joules[1])
    table: Floats = np.stack(columns, axis=-1)
    return table


def _sum(iteration: Iteration, parts: Sequence[str]) -> tuple[Floats, Floats]:
    """Return the seconds and joules of parts; messages draw what waiting draws."""
    seconds, joules = np.zeros(1), np.zeros(1)
    for part in parts:
        spent = np.asarray(getattr(iteration, f"{part}_s"), np.float64)
        drawn = getattr(iteration, f"{part}_j", iteration.waiting_w * spent)
        seconds, joules = seconds + spent, joules + drawn
    return seconds, joules


def _token_columns(stages: _Stages, tokens: Floats) -> Floats:
    """Return linear layers and messages at the first and the last number of tokens of each step."""
    ends = np.stack([tokens[:-1] + 1.0, tokens[1:]], axis=-1)
    return _columns(stages, Step(prefill_tokens=ends), ("tokens", "collective", "send_recv"))


def _decode_columns(stages: _Stages, decodes: Floats, contexts: Floats) -> Floats:
    """Return attention of decodes over their number and mean context."""
    number = decodes[:, None]
    step = Step(decodes=number, decode_kv_tokens=number * contexts)
    return _columns(stages, step, ("decode_attention",))


def _prefill_columns(stages: _Stages, batches: Floats, chunks: Floats, pasts: Floats) -> Floats:
    """Return attention of prefills per token, over their number, mean chunk and mean past."""
    number, chunk = np.maximum(batches, 1.0)[:, None, None], np.maximum(chunks, 1.0)[:, None]
    tokens = number * chunk
    step = Step(
        prefills=number,
        prefill_tokens=tokens,
        prefill_pairs=tokens * (pasts + (chunk + 1.0) / 2.0),
        prefill_kv_tokens=number * (pasts + chunk),
    )
    table: Floats = _columns(stages, step, ("prefill_attention",)) / tokens[..., None]
    return table


def _number(column: Column) -> float:
    return float(np.asarray(column).reshape(-1)[0])


@kernel(f8(f8, i8))
def place(value: float, steps: int) -> float:
    """Return where on the grid of `octaves` a number lies.

    >>> place(5.0, 2), octaves(2, 8)[4:6]
    (4.5, array([4., 6.]))
    """
    if value <= steps:
        return value
    fraction, exponent = frexp(value / steps)
    return steps * (exponent + 2.0 * fraction - 1.0)


@kernel(f8(i8, i8))
def grid_value(index: int, steps: int) -> float:
    """Return the number at a place of the grid of `octaves`.

    >>> grid_value(5, 2), octaves(2, 8)[5]
    (6.0, np.float64(6.0))
    """
    if index <= steps:
        return float(index)
    return ldexp(float(steps + index % steps), index // steps - 1)


@kernel(f8(f8, i8, i8, *arrays(f8, 2)))
def add_steps(tokens: float, start: int, steps: int, table: Floats, price: Floats) -> float:
    """Add what the table over tokens says to a price; return the seconds of the last stage."""
    x = place(tokens, TOKEN_STEPS)
    i = min(ceil(x) - 1, steps - 1)
    width = float(1 << max(i // TOKEN_STEPS - 1, 0))
    along = ((x - i) * width - 1.0) / (width - 1.0) if width > 1.0 else 0.0
    row = start + 2 * _COLUMNS * i
    for column in range(_COLUMNS):
        first, last = table[row + column], table[row + _COLUMNS + column]
        price[column] += first + along * (last - first)
    return price[LAST_STAGE_S]  # type: ignore[no-any-return]


@kernel(f8(f8, i8, i8, i8, *arrays(f8, 2)))
def add_line(
    value: float, steps: int, start: int, size: int, table: Floats, price: Floats
) -> float:
    """Add what a table over one number says to a price; return the seconds of the last stage."""
    x = place(value, steps)
    i = min(int(x), size - 2)
    right = x - i
    row = start + _COLUMNS * i
    for column in range(_COLUMNS):
        left_value, right_value = table[row + column], table[row + _COLUMNS + column]
        price[column] += left_value + right * (right_value - left_value)
    return price[LAST_STAGE_S]  # type: ignore[no-any-return]


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
    """Add what a table over two places says, times a weight; return the last stage's seconds."""
    i, j = min(int(x), rows - 2), min(int(y), columns - 2)
    u, v = x - i, y - j
    low = start + _COLUMNS * (i * columns + j)
    high = low + _COLUMNS * columns
    for column in range(_COLUMNS):
        left, right = table[low + column], table[low + _COLUMNS + column]
        near = left + v * (right - left)
        left, right = table[high + column], table[high + _COLUMNS + column]
        price[column] += weight * (near + u * (left + v * (right - left) - near))
    return price[LAST_STAGE_S]  # type: ignore[no-any-return]


@kernel(f8(f8, f8, *arrays(i8, 1), *arrays(f8, 2)))
def add_decodes(decodes: float, keys: float, shape: Ints, table: Floats, price: Floats) -> float:
    """Add attention of decodes at no keys at all, and write its slope; return where that holds.

    Between two tabulated contexts time is linear in the keys, so a batch that is repeated while
    they grow is priced by one product.
    """
    x, y = place(decodes, DECODE_STEPS), place(keys / decodes, CONTEXT_STEPS)
    columns = shape[_CONTEXTS]
    i, j = min(int(x), shape[_DECODED] - 2), min(int(y), columns - 2)
    near, far = grid_value(j, CONTEXT_STEPS), grid_value(j + 1, CONTEXT_STEPS)
    low = shape[_DECODE] + _COLUMNS * (i * columns + j)
    high = low + _COLUMNS * columns
    u = x - i
    for column in range(_COLUMNS):
        left = table[low + column]
        left += u * (table[high + column] - left)
        right = table[low + _COLUMNS + column]
        right += u * (table[high + _COLUMNS + column] - right)
        slope = (right - left) / (far - near)
        price[column] += left - slope * near
        price[STAGE_SLOPE_S + column] = slope / decodes
    return inf if j == columns - 2 else far * decodes


@kernel(PRICE)
def table_price(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of the last stage of a batch, interpolated between tabulated ones."""
    price[:] = 0.0
    add_steps(step[TOKENS], shape[_LINEAR], shape[_LINEARS] - 1, table, price)
    if step[LOGITS_ROWS] > 0.0:
        add_line(step[LOGITS_ROWS], ROW_STEPS, shape[_HEAD], shape[_HEADS], table, price)
    if step[PREFILLS] > 0.0:
        add_prefills(step, shape, table, price)
    keys = step[DECODE_KV]
    if step[DECODES] > 0.0:
        price[UNTIL_KV] = add_decodes(step[DECODES], keys, shape, table, price)
    sequences_s = table[_SEQUENCE_S] * (step[PREFILLS] + step[DECODES])
    price[WAITING_W] = table[_WAITING_W]
    waits_s = 0.0
    for stage in range(2):
        price[STAGE_BASE_S + stage] = price[stage]
        price[STAGE_FLOOR_S + stage] = table[_LAUNCHING_S + stage]
        price[STAGE_ADDED_S + stage] = table[_GAPS_S + stage] + sequences_s
        busy_s = price[STAGE_BASE_S + stage] + price[STAGE_SLOPE_S + stage] * keys
        price[stage] = max(price[STAGE_FLOOR_S + stage], busy_s) + price[STAGE_ADDED_S + stage]
        waits_s += (price[stage] - busy_s) * (1.0 if stage == LAST_STAGE_S else table[_SENDERS])
    price[BASE_J] = price[ENERGY_J]
    price[ENERGY_J] = price[BASE_J] + price[SLOPE_J] * keys + price[WAITING_W] * waits_s
    return price[LAST_STAGE_S]  # type: ignore[no-any-return]


@kernel(f8(*arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 2)))
def add_prefills(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Add attention of prefills, as of equal ones; return the seconds of the last stage."""
    tokens = step[PREFILL_TOKENS]
    chunk = tokens / step[PREFILLS]
    past = max(0.0, step[PREFILL_PAIRS] / tokens - (chunk + 1.0) / 2.0)
    x, y = place(chunk, CHUNK_STEPS), place(past, PAST_STEPS)
    z = place(step[PREFILLS], PREFILL_STEPS)
    batch = min(int(z), shape[_BATCHES] - 2)
    more = z - batch
    rows, columns = shape[_CHUNKS], shape[_PASTS]
    face = _COLUMNS * rows * columns
    fewer = shape[_PREFILL] + batch * face
    add_plane(x, y, tokens * (1.0 - more), fewer, rows, columns, table, price)
    return add_plane(x, y, tokens * more, fewer + face, rows, columns, table, price)
