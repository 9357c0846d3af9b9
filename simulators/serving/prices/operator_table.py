"""The time of an iteration as a sum of operator times tabulated by the sizes of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints, arrays, f8, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import PRICE, kernel

TOKEN_STEP = 8
"""Linear layers are tabulated at multiples of so many tokens."""

ONCE = (
    "attn_pre_proj",
    "attn_post_proj",
    "attn_rope",
    "input_layernorm",
    "mlp_up_proj",
    "mlp_down_proj",
    "mlp_act",
    "post_attention_layernorm",
    "add",
)
"""Operators of a layer whose time depends on the rounded number of tokens alone."""

KV_SAVE = "attn_kv_cache_save"

# Entries of `shape`: where each table begins, and its sides.
(
    LINEARS,
    STAGE_LINEARS,
    DECODE,
    PREFILL,
    END,
    ROWS,
    DECODE_ROWS,
    CONTEXTS,
    PASTS,
    CHUNKS,
) = range(10)


@dataclass(frozen=True)
class OpTable:
    """The times of one model, cut and GPU, as the price kernel reads them."""

    shape: Ints
    table: Floats


Times = Mapping[str, tuple[Ints, Ints, Floats]]
"""By operator two keys, `a` and `b`, and milliseconds of one layer; of one call for `all_reduce`
and `send_recv`, and of all layers together for `iteration`. The keys are batch tokens and nothing;
of `attn_decode` requests and their mean keys; of `attn_prefill` the keys of earlier chunks and the
root of the summed squares of the chunks."""


def by_operator(op: NDArray[np.str_], a: Ints, b: Ints, ms: Floats) -> Times:
    """Return the rows of each operator."""
    return {str(name): (a[op == name], b[op == name], ms[op == name]) for name in np.unique(op)}


def layer_ms(
    times: Times, *, tp: int, more: tuple[str, ...] = (), launch_ms: float = 0.0
) -> Floats:
    """Return what depends on tokens alone, of one layer, by tokens divided by `TOKEN_STEP`.

    Besides what every table has these are `more` operators, and host time of each all-reduce.

    Raises:
        UserError: an operator is missing.
    """
    needed = [*ONCE, "attn_decode", "attn_prefill", *(["all_reduce"] if tp > 1 else [])]
    if missing := [name for name in needed if name not in times]:
        raise UserError(f"the op table lacks {', '.join(missing)}")
    layer = np.sum([by_tokens(times, name) for name in (*ONCE, *more)], axis=0)
    if tp > 1:
        layer = layer + 2.0 * (by_tokens(times, "all_reduce") + launch_ms)
    return np.asarray(layer, np.float64)


def stage_table(times: Times, layer: Floats, *, layers: int) -> OpTable:
    """Return the price table of a stage, given what depends on tokens alone of one layer.

    `iteration`, which may be left out, is what the last stage adds to all its layers: the LM head,
    sampling, the host. So may be the time to send tokens on.
    """
    sends = by_tokens(times, "send_recv") if "send_recv" in times else np.zeros(layer.size)
    ends = by_tokens(times, "iteration") if "iteration" in times else np.zeros(layer.size)
    decode = _grid(*times["attn_decode"], a_step=1, b_step=at.PAST_STEP) * layers
    prefill = _grid(*times["attn_prefill"], a_step=at.PAST_STEP, b_step=1) * layers
    parts = [layer * layers + ends, layer * layers + sends, decode.ravel(), prefill.ravel()]
    starts = np.cumsum([0, *(part.size for part in parts)])
    shape = np.array([*starts, layer.size, *decode.shape, *prefill.shape], np.int64)
    return OpTable(shape, np.concatenate(parts) / 1e3)


def by_tokens(times: Times, name: str) -> Floats:
    """Return milliseconds by tokens divided by `TOKEN_STEP`; what the table lacks is NaN."""
    a, _, ms = times[name]
    out = np.full(a.max() // TOKEN_STEP + 1, np.nan)
    out[a // TOKEN_STEP] = ms
    return out


def _grid(a: Ints, b: Ints, ms: Floats, *, a_step: int, b_step: int) -> Floats:
    """Return milliseconds as a matrix over both keys; what the table lacks is NaN."""
    out = np.full((a.max() // a_step + 1, b.max() // b_step + 1), np.nan)
    out[a // a_step, b // b_step] = ms
    return out


@kernel(PRICE)
def op_price(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of the last stage by exact look-ups, at sizes rounded as the table's.

    What the table lacks is not a number, and ends the run.
    """
    price[:] = 0.0
    spent = decode_s(step, shape, table, price) + prefill_s(step, shape, table, price)
    return with_layers_s(spent, step, shape, table, price)


@kernel(PRICE)
def decode_s(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of the decodes' attention, and write until which keys they hold."""
    decodes = int(step[at.DECODES])
    if decodes == 0:
        return 0.0
    mean = int(step[at.DECODE_KV]) // decodes
    column = (mean + at.PAST_STEP - 1) // at.PAST_STEP
    price[at.UNTIL_KV] = decodes * (column * at.PAST_STEP + 1)
    if decodes >= shape[DECODE_ROWS] or column >= shape[CONTEXTS]:
        return nan
    return table[shape[DECODE] + decodes * shape[CONTEXTS] + column]  # type: ignore[no-any-return]


@kernel(PRICE)
def prefill_s(step: Floats, shape: Ints, table: Floats, _price: Floats) -> float:
    """Return the seconds of the prompts' attention."""
    if step[at.PREFILLS] == 0.0:
        return 0.0
    chunk = round(step[at.PREFILL_SQUARES] ** 0.5)
    past = int(step[at.PREFILL_PAST]) // at.PAST_STEP
    if chunk >= shape[CHUNKS] or past >= shape[PASTS]:
        return nan
    return table[shape[PREFILL] + past * shape[CHUNKS] + chunk]  # type: ignore[no-any-return]


@kernel(f8(f8, *arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 2)))
def with_layers_s(spent: float, step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Write the price of a stage that spends some seconds besides what depends on tokens alone."""
    row = (int(step[at.TOKENS]) + TOKEN_STEP - 1) // TOKEN_STEP
    if row >= shape[ROWS]:
        row, spent = shape[ROWS] - 1, nan
    price[at.STAGE_S] = price[at.STAGE_BASE_S] = spent + table[shape[STAGE_LINEARS] + row]
    price[at.LAST_STAGE_S] = price[at.BASE_S] = spent + table[shape[LINEARS] + row]
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]
