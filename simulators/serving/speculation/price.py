"""Price of an iteration with speculative decoding: the target model's pass plus the drafts.

One array holds the tables of the model, then those of the drafter; the last two entries of `shape`
are the offsets of the latter. Draft passes run one after another, so their times add to the model's
pass; prompts pass through the drafter once.
"""

from __future__ import annotations

from math import inf

import numpy as np

from simulators.core.jit import Floats, Ints, arrays, f8, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import PRICE, kernel
from simulators.serving.prices.iteration_table import IterationTable, iteration_table
from simulators.serving.prices.lookup import table_price
from simulators.serving.speculation.drafter import Drafter

ALONE, WIDE, WIDTH, SHAPE_END, TABLE_END = -5, -4, -3, -2, -1
"""Entries of `shape`, from its end: passes that draft one token for each sequence, those that draft
more, how many these draft, and where the drafter's shape and table begin."""


def with_drafts(table: IterationTable, drafter: Drafter, *, additive: bool) -> tuple[Ints, Floats]:
    """Return the combined shape and table of a replica and its drafter."""
    alone, wide, shape, numbers = 0, 0, table.shape, table.table
    if drafter.hardware is not None:
        drafts = iteration_table(drafter.hardware, additive=additive)
        alone, wide = drafter.alone, drafter.wide
        shape = np.concatenate([shape, drafts.shape])
        numbers = np.concatenate([numbers, drafts.table])
    sizes = table.shape.size, table.table.size
    ends = [alone, wide, drafter.width, *sizes]
    return np.concatenate([shape, np.array(ends, np.int64)]), numbers


@kernel(PRICE)
def drafted_price(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of the model's pass over prompts and drafts, and of the drafts."""
    shapes, numbers = shape[SHAPE_END], shape[TABLE_END]
    alone, wide = shape[ALONE], shape[WIDE]
    mine, draft = price[: at.PRICE_COLUMNS], price[at.PRICE_COLUMNS :]
    table_price(step, shape[:shapes], table[:numbers], mine)
    if alone + wide > 0:
        theirs, behind = shape[shapes:], table[numbers:]
        if step[at.DECODES] > 0.0:
            each = (step[at.TOKENS] - step[at.PREFILL_TOKENS]) / step[at.DECODES]
            most = int(each - 0.5)  # of all that is drafted now, none may be
            alone = min(alone, most)
            wide = min(wide, most - alone)
            if alone > 0:
                add_drafts(step, theirs, behind, mine, draft, alone, 1.0)
            if wide > 0:
                add_drafts(step, theirs, behind, mine, draft, wide, float(shape[WIDTH]))
        if step[at.PREFILLS] > 0.0:
            add_prompts(step, theirs, behind, mine, draft)
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]


@kernel(f8(*arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 3), i8, f8))
def add_drafts(
    step: Floats,
    shape: Ints,
    table: Floats,
    price: Floats,
    draft: Floats,
    passes: int,
    width: float,
) -> float:
    """Add the passes in which tokens are drafted for each sequence; return their seconds."""
    tokens, everywhere, rows = step[at.TOKENS], step[at.ALL_RANK_TOKENS], step[at.LOGITS_ROWS]
    prefills = step[at.PREFILLS]
    decodes = step[at.DECODES]
    step[at.TOKENS] = step[at.LOGITS_ROWS] = width * decodes
    step[at.ALL_RANK_TOKENS] = everywhere * width * decodes / tokens
    step[at.PREFILLS] = 0.0
    table_price(step, shape, table, draft)
    step[at.TOKENS], step[at.ALL_RANK_TOKENS], step[at.LOGITS_ROWS] = tokens, everywhere, rows
    step[at.PREFILLS] = prefills
    return add_pass(price, draft, step[at.DECODE_KV], passes)


@kernel(f8(*arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 3)))
def add_prompts(step: Floats, shape: Ints, table: Floats, price: Floats, draft: Floats) -> float:
    """Add the drafter's pass over prompts; return its seconds."""
    tokens, everywhere, rows = step[at.TOKENS], step[at.ALL_RANK_TOKENS], step[at.LOGITS_ROWS]
    decodes = step[at.DECODES]
    step[at.TOKENS] = step[at.PREFILL_TOKENS]
    step[at.ALL_RANK_TOKENS] = everywhere * step[at.PREFILL_TOKENS] / tokens
    step[at.LOGITS_ROWS] = min(rows, step[at.PREFILLS])
    step[at.DECODES] = 0.0
    table_price(step, shape, table, draft)
    step[at.TOKENS], step[at.ALL_RANK_TOKENS], step[at.LOGITS_ROWS] = tokens, everywhere, rows
    step[at.DECODES] = decodes
    return add_pass(price, draft, 0.0, 1)


@kernel(f8(*arrays(f8, 2), f8, i8))
def add_pass(price: Floats, draft: Floats, keys: float, times: int) -> float:
    """Add passes of the drafter to the price of an iteration; return their seconds.

    The model's energy counts these seconds as idle, so idle energy is subtracted. A pass takes at
    least its launches, `MIN_S`: constant in the keys until its kernels take as long, then linear.
    """
    base, slope, least_s = draft[at.BASE_S], draft[at.SLOPE_S], draft[at.MIN_S]
    turn = inf if base <= least_s else -inf
    if slope != 0.0:
        turn = (least_s - base) / slope
    is_launched = (keys < turn) == (slope >= 0.0)
    fixed, growing = (least_s, 0.0) if is_launched else (base, slope)
    waits_s = fixed + draft[at.ADDED_S] - base
    joules = draft[at.BASE_J] + draft[at.WAITING_W] * waits_s
    joules_slope = draft[at.SLOPE_J] + draft[at.WAITING_W] * (growing - slope)
    seconds = times * (fixed + draft[at.ADDED_S])
    price[at.ADDED_S] += seconds
    price[at.DRAFTS_SLOPE_S] += times * growing
    price[at.BASE_J] += times * joules - price[at.WAITING_W] * seconds
    price[at.SLOPE_J] += times * joules_slope
    until = min(draft[at.UNTIL_KV], turn if keys < turn else inf)
    price[at.UNTIL_KV] = min(price[at.UNTIL_KV], until)
    seconds += times * growing * keys
    price[at.LAST_STAGE_S] += seconds
    price[at.ENERGY_J] += times * draft[at.ENERGY_J]
    return seconds  # type: ignore[no-any-return]
