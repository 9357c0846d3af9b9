"""Looks up the time and energy of a batch in tables over sums of the batch, in compiled code.

`iteration_table` fills the tables. The position of a number on a grid is computed from its
exponent, without a search.
"""

from __future__ import annotations

from math import ceil, frexp, inf, ldexp

from simulators.core.jit import Floats, Ints, arrays, f8, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import PRICE, kernel

FINE, COARSE = (64, 32, 32, 8, 4, 2), (1, 1, 1, 1, 1, 1)
"""Steps per octave of tokens, rows, decodes, contexts, chunks and pasts: whole numbers up to here
are exact, larger ones are interpolated. Prompts of a batch have one. A kernel's time is a formula;
on an accelerator each size is a search of its own, and few can be had."""

LEAST_KEYS, MOST_KEYS = 1.0 / 3.0, 3.0
"""Keys that unequal prompts read, over those of equal ones, are tabulated here and at 1."""

MIXED_FIRST = (1.0, 16.0, 64.0, 1.0, 64.0)
MIXED_STEPS = (0.5, 0.5, 0.5, 4.0, 1.0)
MIXED_NODES = (3, 6, 6, 41, 11)
"""One attention kernel for chunks and decodes is tabulated over prompts, mean chunk, mean past,
decodes and their mean keys: from these sizes on, so many steps to the octave, so many in all."""

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
    MIXED_TABLE,  # 0: chunks and decodes have a kernel each
    EXPERT_TABLE,  # of the tokens of all ranks; 0: those of the token table are of all
    MESSAGE_TABLE,  # of the same, and of how unevenly they lie
    TOKEN_STEPS,
    ROW_STEPS,
    DECODE_STEPS,
    CONTEXT_STEPS,
    CHUNK_STEPS,
    PAST_STEPS,
) = range(20)

# The first entries of `table`: what is added to each iteration of a stage.
# ADDITIVE is 1 where a mixed batch is priced as two, one of prefills and one of decodes, UNEVEN
# where messages wait for the rank with the most tokens: 0 where all ranks share one memory.
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


@kernel(f8(f8, i8))
def place(value: float, steps: int) -> float:
    """Return where on a grid of `octaves` a number lies.

    >>> place(5.0, 2), grid_value(4, 2), grid_value(5, 2)
    (4.5, 4.0, 6.0)
    """
    if value <= steps:
        return value
    fraction, exponent = frexp(value / steps)
    return steps * (exponent + 2.0 * fraction - 1.0)


@kernel(f8(i8, i8))
def grid_value(index: int, steps: int) -> float:
    """Return the number at a place of a grid of `octaves`.

    >>> [grid_value(i, 2) for i in range(7)]
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0]
    """
    if index <= steps:
        return float(index)
    return ldexp(float(steps + index % steps), index // steps - 1)


@kernel(f8(f8, i8, *arrays(i8, 1), *arrays(f8, 2)))
def add_steps(tokens: float, start: int, shape: Ints, table: Floats, price: Floats) -> float:
    """Add the entry of a table over tokens to a price; return the last stage's seconds."""
    x = place(tokens, shape[TOKEN_STEPS])
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
    x = place(value, steps)
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
    """Add attention of decodes at no keys at all, and write its slope; return where that holds.

    Between two tabulated contexts time is linear in the keys, so a batch that is repeated while
    they grow is priced by one product.
    """
    x, y = place(decodes, shape[DECODE_STEPS]), place(keys / decodes, shape[CONTEXT_STEPS])
    columns = shape[CONTEXT_NODES]
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

    The base columns hold the time without attention; attention has been added since.
    """
    prefills, decodes = step[at.PREFILLS], step[at.DECODES]
    chunk = step[at.PREFILL_TOKENS] / prefills
    past = step[at.PREFILL_PAIRS] / step[at.PREFILL_TOKENS] - (chunk + 1.0) / 2.0
    sizes = (prefills, chunk, past, decodes, step[at.DECODE_KV] / decodes)
    sender, last, joules = 0.0, 0.0, 0.0
    for corner in range(1 << len(MIXED_NODES)):
        weight, node = 1.0, 0
        for axis in range(len(MIXED_NODES)):
            x = place(max(sizes[axis] / MIXED_FIRST[axis], 1.0), 1) - 1.0
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
    """Return the seconds of the last stage of a batch, interpolated between tabulated ones."""
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

    It is that of equal prompts with the same number, tokens and pairs, between two tables of fewer
    or more keys than these would read.
    """
    tokens, prefills = step[at.PREFILL_TOKENS], step[at.PREFILLS]
    chunk = tokens / prefills
    past = max(0.0, step[at.PREFILL_PAIRS] / tokens - (chunk + 1.0) / 2.0)
    x, y = place(chunk, shape[CHUNK_STEPS]), place(past, shape[PAST_STEPS])
    z = place(prefills, 1) - 1.0
    batch = min(int(z), shape[PREFILL_NODES] - 2)
    rows, columns = shape[CHUNK_NODES], shape[PAST_NODES]
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
