"""Iteration times from a user's file of measured operator times.

The file (Parquet or CSV) has the columns `op`, `a`, `b` and `ms`, measured on one GPU of a tensor
parallel group. Times are interpolated between measured sizes. A run that needs a size beyond the
largest stops with an error.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints, arrays, f8, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import PRICE, kernel

COLUMNS = ("op", "a", "b", "ms")
STEPS = {"attn_decode": (1, at.PAST_STEP), "attn_prefill": (at.PAST_STEP, 1)}
"""Granularity of both keys of attention; other operators depend on the tokens of the batch."""

TOKEN_STEP = 8
"""Linear layers are tabulated at multiples of this number of tokens."""

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
LINEARS, STAGE_LINEARS, DECODE, PREFILL, END = range(5)
ROWS, DECODE_ROWS, CONTEXTS, PASTS, CHUNKS = range(5, 10)


@dataclass(frozen=True)
class OpTable:
    """Operator times of one model, parallelism and GPU, in the layout of the price kernel."""

    shape: Ints
    table: Floats


Times = Mapping[str, tuple[Ints, Ints, Floats]]
"""By operator: keys `a` and `b`, and milliseconds of one layer (of one call for `all_reduce` and
`send_recv`, of all layers for `iteration`). `a` is the number of batch tokens and `b` is unused,
except for `attn_decode`: requests and mean keys, and for `attn_prefill`: keys of earlier chunks and
square root of the summed squares of the chunks."""


def by_operator(op: NDArray[np.str_], a: Ints, b: Ints, ms: Floats) -> Times:
    """Return the rows of each operator."""
    return {str(name): (a[op == name], b[op == name], ms[op == name]) for name in np.unique(op)}


def layer_ms(
    times: Times, *, tp: int, more: tuple[str, ...] = (), launch_ms: float = 0.0
) -> Floats:
    """Return the milliseconds of one layer without attention, by tokens divided by `TOKEN_STEP`.

    `more` names additional operators; `launch_ms` is the host time of each all-reduce.

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
    """Return the price table of a stage, given the result of `layer_ms`.

    The optional operator `iteration` is the time of the last stage besides its layers: LM head,
    sampling, host. `send_recv` is optional too.
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
    """Return milliseconds by tokens divided by `TOKEN_STEP`; missing entries are NaN."""
    a, _, ms = times[name]
    out = np.full(a.max() // TOKEN_STEP + 1, np.nan)
    out[a // TOKEN_STEP] = ms
    return out


def _grid(a: Ints, b: Ints, ms: Floats, *, a_step: int, b_step: int) -> Floats:
    """Return milliseconds as a matrix over both keys; missing entries are NaN."""
    out = np.full((a.max() // a_step + 1, b.max() // b_step + 1), np.nan)
    out[a // a_step, b // b_step] = ms
    return out


def load_op_table(path: str, *, layers: int, tp: int) -> OpTable:
    """Return the price table of a stage with `layers` layers from a file of operator times.

    Raises:
        UserError: the file cannot be read, or an operator is missing (with `tp` above 1, also
            `all_reduce`).
    """
    file = Path(path)
    try:
        version = file.stat().st_mtime_ns
    except OSError as error:
        raise UserError(f"iteration_table '{path}': {error.strerror}") from error
    try:
        return _op_table(file, version, layers, tp)
    except UserError as error:
        raise UserError(f"iteration_table '{path}': {error}") from error


@functools.lru_cache(maxsize=4)
def _op_table(file: Path, _mtime_ns: int, layers: int, tp: int) -> OpTable:
    times = {
        name: _plane(name, (a, b), ms) if name in STEPS else _line(a, ms)
        for name, (a, b, ms) in _read(file).items()
    }
    layer = layer_ms(times, tp=tp, more=(KV_SAVE,) if KV_SAVE in times else ())
    return stage_table(times, layer, layers=layers)


def _read(file: Path) -> Times:
    try:
        table = pq.read_table(file) if file.suffix == ".parquet" else pa.csv.read_csv(file)
        names = table.column_names
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise UserError(f"it cannot be read: {error}") from error
    if missing := [name for name in COLUMNS if name not in names]:
        raise UserError(f"it lacks the column {', '.join(missing)}. It has: {', '.join(names)}")
    try:
        op = np.array(table["op"].to_pylist(), np.str_)
        a, b, ms = (np.asarray(table[name].to_numpy(), np.float64) for name in COLUMNS[1:])
    except ValueError as error:
        raise UserError("op must be text, a, b and ms numbers") from error
    good = np.isfinite(a) & np.isfinite(b) & np.isfinite(ms) & (np.minimum(a, b) >= 0) & (ms >= 0)
    if not good.all():
        row = int((~good).argmax())
        raise UserError(f"row {row + 1}: a, b and ms must be numbers and not negative")
    return by_operator(op, a.astype(np.int64), b.astype(np.int64), ms)


def _line(tokens: Ints, ms: Floats) -> tuple[Ints, Ints, Floats]:
    """Return the times of an operator interpolated at every multiple of `TOKEN_STEP` tokens."""
    order = np.argsort(tokens)
    sizes = np.arange(0, tokens.max() + 1, TOKEN_STEP)
    return sizes, np.zeros_like(sizes), np.interp(sizes, tokens[order], ms[order])


def _plane(name: str, keys: tuple[Ints, Ints], ms: Floats) -> tuple[Ints, Ints, Floats]:
    """Return the times of attention interpolated at every multiple of the keys' steps."""
    known = [np.unique(key) for key in keys]
    measured = np.full((known[0].size, known[1].size), np.nan)
    measured[np.searchsorted(known[0], keys[0]), np.searchsorted(known[1], keys[1])] = ms
    if np.isnan(measured).any():
        i, j = np.argwhere(np.isnan(measured))[0]
        raise UserError(f"{name} has no time at a = {known[0][i]}, b = {known[1][j]}")
    sizes = [np.arange(0, k.max() + 1, step) for k, step in zip(known, STEPS[name], strict=True)]
    rows = np.stack([np.interp(sizes[1], known[1], row) for row in measured])
    whole = np.stack([np.interp(sizes[0], known[0], column) for column in rows.T], axis=1)
    first, second = np.meshgrid(*sizes, indexing="ij")
    return first.ravel(), second.ravel(), whole.ravel()


@kernel(PRICE)
def op_price(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of the last stage by lookup, with sizes rounded up to the table's steps.

    A batch beyond the table has the price NaN, which ends the run with an error.
    """
    price[:] = 0.0
    spent = decode_s(step, shape, table, price) + prefill_s(step, shape, table, price)
    return with_layers_s(spent, step, shape, table, price)


@kernel(PRICE)
def decode_s(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of decode attention; write the number of keys up to which they hold."""
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
    """Return the seconds of prefill attention."""
    if step[at.PREFILLS] == 0.0:
        return 0.0
    chunk = round(step[at.PREFILL_SQUARES] ** 0.5)
    past = int(step[at.PREFILL_PAST]) // at.PAST_STEP
    if chunk >= shape[CHUNKS] or past >= shape[PASTS]:
        return nan
    return table[shape[PREFILL] + past * shape[CHUNKS] + chunk]  # type: ignore[no-any-return]


@kernel(f8(f8, *arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 2)))
def with_layers_s(spent: float, step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Write the price of a stage: linear layers plus `spent` seconds of attention."""
    row = (int(step[at.TOKENS]) + TOKEN_STEP - 1) // TOKEN_STEP
    if row >= shape[ROWS]:
        row, spent = shape[ROWS] - 1, nan
    price[at.STAGE_S] = price[at.STAGE_BASE_S] = spent + table[shape[STAGE_LINEARS] + row]
    price[at.LAST_STAGE_S] = price[at.BASE_S] = spent + table[shape[LINEARS] + row]
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]
