"""Iteration times from operator times one has measured oneself, given as a file.

Parquet or CSV with the columns `op`, `a`, `b` and `ms`, of one GPU's share under tensor
parallelism. Layers are summed up by `operator_table`. Between measured sizes times are
interpolated; beyond the largest nothing is known, and a run that gets there ends saying so.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from simulators.serving.engine import replica as at
from simulators.serving.prices.operator_table import (
    KV_SAVE,
    TOKEN_STEP,
    OpTable,
    Times,
    by_operator,
    layer_ms,
    stage_table,
)

COLUMNS = ("op", "a", "b", "ms")
STEPS = {"attn_decode": (1, at.PAST_STEP), "attn_prefill": (at.PAST_STEP, 1)}
"""Granularity of both keys where an operator has two; the others have the tokens of the batch."""


def load_op_table(path: str, *, layers: int, tp: int) -> OpTable:
    """Return the price table of a stage of so many layers from a file of operator times.

    With tensor parallelism the file must tell what an all-reduce takes.
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
    """Return what was measured of each operator."""
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
    """Return the times of an operator by tokens alone, at every multiple of `TOKEN_STEP`."""
    order = np.argsort(tokens)
    at = np.arange(0, tokens.max() + 1, TOKEN_STEP)
    return at, np.zeros_like(at), np.interp(at, tokens[order], ms[order])


def _plane(name: str, keys: tuple[Ints, Ints], ms: Floats) -> tuple[Ints, Ints, Floats]:
    """Return the times of an operator of two keys, at every multiple of their steps."""
    known = [np.unique(key) for key in keys]
    measured = np.full((known[0].size, known[1].size), np.nan)
    measured[np.searchsorted(known[0], keys[0]), np.searchsorted(known[1], keys[1])] = ms
    if np.isnan(measured).any():
        i, j = np.argwhere(np.isnan(measured))[0]
        raise UserError(f"{name} is not known at a = {known[0][i]}, b = {known[1][j]}")
    at = [np.arange(0, k.max() + 1, step) for k, step in zip(known, STEPS[name], strict=True)]
    rows = np.stack([np.interp(at[1], known[1], row) for row in measured])
    whole = np.stack([np.interp(at[0], known[0], column) for column in rows.T], axis=1)
    first, second = np.meshgrid(*at, indexing="ij")
    return first.ravel(), second.ravel(), whole.ravel()
