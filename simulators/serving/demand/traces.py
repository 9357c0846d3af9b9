"""Reads traces: arrival times and lengths of recorded requests.

Parquet with `arrival_s`, `prompt_tokens`, `output_tokens` (lengths alone will do); CSV with these
columns or those of the Azure LLM inference traces (`TIMESTAMP`, `ContextTokens`,
`GeneratedTokens`); JSONL as published with Mooncake (`timestamp` in ms, `input_length`,
`output_length`). Parquet and JSONL may have `hash_ids`: of each prompt a list of its blocks'
hashes, each of the block and all before it, so that equal ones say where prompts begin alike.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.prefixes import hashed_tokens

SUFFIXES = (".parquet", ".csv", ".jsonl")

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
HASHES = "hash_ids"
MOONCAKE = ("timestamp", "input_length", "output_length")
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")


@dataclass(frozen=True)
class Hashes:
    """Hashes of the token blocks of all prompts."""

    hashes: Ints  # of all prompts, concatenated
    stops: Ints  # where those of each prompt stop
    tokens: int  # per hash


@dataclass(frozen=True)
class Trace:
    """Requests of a trace, in order; `arrival_s` starts at 0 and is None without timestamps."""

    arrival_s: Floats | None
    prompt_tokens: Ints
    output_tokens: Ints
    hashes: Hashes | None = None


def is_trace(workload: str) -> bool:
    """Return whether a workload is a trace's path rather than a name.

    >>> is_trace("traces/azure.csv"), is_trace("chat")
    (True, False)
    """
    return workload.endswith(SUFFIXES)


def load_trace(path: str) -> Trace:
    """Return a trace, read once per version of the file.

    Raises:
        UserError: it cannot be read or is malformed; names the file, the row and the column.
    """
    file = Path(path)
    try:
        stat = file.stat()
    except OSError as error:
        raise UserError(f"trace '{path}': {error.strerror}") from error
    return _trace(file, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=8)
def _trace(file: Path, _mtime_ns: int, _size: int) -> Trace:
    try:
        columns = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}[file.suffix](file)
    except (OSError, pa.ArrowException, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"trace '{file}' cannot be read: {error}") from error
    arrival, prompt, output, rows, lists = columns
    if prompt.size == 0:
        raise UserError(f"trace '{file}' has no rows")
    for name, tokens in (("prompt tokens", prompt), ("output tokens", output)):
        if (tokens < 1).any():
            wrong = int((tokens < 1).argmax())
            raise UserError(
                f"trace '{file}', row {rows[wrong]}: {name} are {tokens[wrong]}; at least 1 is "
                "needed"
            )
    if arrival is not None:
        if not np.isfinite(arrival).all():
            wrong = int((~np.isfinite(arrival)).argmax())
            raise UserError(f"trace '{file}', row {rows[wrong]}: arrives at {arrival[wrong]}")
        falls = np.flatnonzero(np.diff(arrival) < 0)
        if falls.size:
            raise UserError(
                f"trace '{file}' is not in time order: row {rows[falls[0] + 1]} arrives before "
                f"row {rows[falls[0]]}. Sort it by arrival"
            )
        arrival = arrival - arrival[0]
    return Trace(arrival, prompt, output, None if lists is None else _hashes(file, lists, prompt))


def _hashes(file: Path, lists: pa.Array, prompt: Ints) -> Hashes:
    """Return the hashes of a trace's prompts, which must have equal block sizes."""
    counts = np.asarray(lists.value_lengths().fill_null(0), np.int64)
    try:
        hashes = np.asarray(lists.flatten().cast(pa.int64()), np.int64)
        return Hashes(hashes, np.cumsum(counts), hashed_tokens(prompt, counts))
    except (UserError, pa.ArrowException) as error:
        raise UserError(f"trace '{file}': {error}") from error


Columns = tuple[Floats | None, Ints, Ints, Ints, pa.Array | None]
"""Arrivals, prompt and output tokens, the row of the file where each stands, from 1 on, and lists
of hashes, where there are any."""


def _parquet(file: Path) -> Columns:
    table = pq.read_table(file)
    if missing := [name for name in COLUMNS[1:] if name not in table.column_names]:
        raise UserError(
            f"trace '{file}' lacks the column {', '.join(missing)}. It has: "
            f"{', '.join(table.column_names)}"
        )
    for name in COLUMNS:
        if name in table.column_names and (nulls := table[name].null_count):
            row = table[name].is_null().to_pylist().index(True)
            raise UserError(f"trace '{file}', row {row + 1}: {name} is empty ({nulls} in all)")
        if name in table.column_names and not _is_number(table[name].type):
            raise UserError(f"trace '{file}': {name} is of type {table[name].type}, not a number")
    arrival = None
    if COLUMNS[0] in table.column_names:
        arrival = np.asarray(table[COLUMNS[0]].to_numpy(), np.float64)
    prompt, output = (np.asarray(table[name].to_numpy(), np.int64) for name in COLUMNS[1:])
    lists = table[HASHES].combine_chunks() if HASHES in table.column_names else None
    return arrival, prompt, output, np.arange(1, prompt.size + 1), lists


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)  # type: ignore[no-any-return]


def _csv(file: Path) -> Columns:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream)
        header = rows.fieldnames or ()
        layout = next((kind for kind in (AZURE, COLUMNS) if set(kind) <= set(header)), None)
        if layout is None:
            raise UserError(
                f"trace '{file}': the header must name {', '.join(AZURE)} or {', '.join(COLUMNS)}"
                f". It has: {', '.join(header) or 'nothing'}"
            )
        return _columns(file, layout, ((rows.line_num, row) for row in rows), 1.0)


def _jsonl(file: Path) -> Columns:
    with file.open(encoding="utf-8") as stream:
        return _columns(file, MOONCAKE, _json_lines(file, stream), 1e3)


def _json_lines(file: Path, stream: Iterable[str]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"trace '{file}', row {number}: {error}") from error


def _columns(
    file: Path, layout: Sequence[str], rows: Iterable[tuple[int, Any]], per_s: float
) -> Columns:
    """Return the columns of a trace layout, with times divided into seconds."""
    cells: list[list[Any]] = [[], [], []]
    hashes: list[Any] = []
    numbers: list[int] = []
    for number, row in rows:
        numbers.append(number)
        for cell, name in zip(cells, layout, strict=True):
            if not isinstance(row, dict) or name not in row:
                raise UserError(f"trace '{file}', row {number}: '{name}' is missing")
            cell.append(_cell(file, number, name, row[name]))
        hashes.append(row.get(HASHES))
    prompt, output, rows_of = map(np.array, (cells[1], cells[2], numbers))
    lists = pa.array(hashes, pa.list_(pa.int64())) if layout == MOONCAKE and any(hashes) else None
    return np.array(cells[0], np.float64) / per_s, prompt, output, rows_of, lists


def _cell(file: Path, row: int, column: str, value: Any) -> float | int:
    """Return a cell as a number: seconds, milliseconds or tokens."""
    try:
        if column == AZURE[0]:
            stamp = np.datetime64(_ZONE.sub("", value.strip()), "ns")
            return int(stamp.astype(np.int64)) / 1e9
        if column in (COLUMNS[0], MOONCAKE[0]):
            return float(value)
        return int(value)
    except (TypeError, ValueError, AttributeError) as error:
        kind = "a time" if column in (AZURE[0], COLUMNS[0], MOONCAKE[0]) else "a whole number"
        shown = "empty" if value in (None, "") else f"'{value}', not {kind}"
        raise UserError(f"trace '{file}', row {row}, column {column}: {shown}") from error
