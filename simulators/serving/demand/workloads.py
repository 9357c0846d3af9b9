"""Workloads (distributions of prompt and output lengths) and traces (recorded requests).

The length of a prompt is correlated with the length of its output, so both are drawn together, by
quantiles: equal draws give comparable lengths. A workload is a distribution of the prompt and, for
ranges of prompt length, of the output. `chat` and `code` were fitted to production traces; a user's
own workload is a file of the same form in `catalog/workloads/`:

    [prompt]
    probability = [0, 0.9, 1]       # omitted: even steps
    tokens = [16, 200, 4000]        # quantiles there; a single one: all alike
    [[output]]
    prompt_up_to = 1000             # omitted in the last table
    tokens = [100, 300]
    [[output]]
    distribution = "lognormal"      # or uniform, zipf (with an exponent); omitted: quantiles
    mean = 200
    sigma = 0.8
    least = 1
    most = 2048

A trace is a Parquet file with `arrival_s`, `prompt_tokens`, `output_tokens` (`arrival_s` is
optional), a CSV file with these columns or those of VIDUR or of the Azure LLM traces, or a JSONL
file as published with Mooncake (`timestamp` in ms, `input_length`, `output_length`) or as
exported by AIPerf (`profile_export.jsonl`, whose failed requests are left out), or sessions of
agents in one of the formats of `formats/session_traces.py`. Parquet and JSONL
may have `hash_ids`: for each prompt the list of its blocks' hashes, each of the block and all
blocks before it, so that equal hashes mean equal prefixes.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simulators.core.calibration import read_choice
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import WORKLOADS
from simulators.core.jit import Floats, Ints


class Distribution(Protocol):
    """A distribution of token counts."""

    def at(self, probability: Floats) -> Ints:
        """Return the quantiles at an array of probabilities, whole and at least 1."""


@dataclass(frozen=True)
class Workload:
    """Distribution of prompt lengths, and of output lengths by range of the prompt length."""

    name: str
    prompt: Distribution
    prompt_up_to: tuple[float, ...]  # upper ends of the ranges; the last is infinite
    output: tuple[Distribution, ...]

    def draw(self, uniforms: Floats) -> tuple[Ints, Ints]:
        """Return prompt and output tokens for uniform numbers of shape (requests, 2)."""
        prompt = self.prompt.at(uniforms[:, 0])
        which = np.searchsorted(np.array(self.prompt_up_to[:-1]), prompt, side="left")
        output = np.empty(prompt.size, np.int64)
        for table in range(len(self.output)):
            rows = which == table
            output[rows] = self.output[table].at(uniforms[rows, 1])
        return prompt, output


Positive = Annotated[float, msgspec.Meta(gt=0)]
TokenCount = Annotated[int, msgspec.Meta(ge=1)]


class Quantiles(msgspec.Struct, frozen=True):
    """A distribution of token counts by quantiles, at equally spaced probabilities by default."""

    tokens: tuple[Annotated[float, msgspec.Meta(ge=1)], ...]
    probability: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        known = self.probability
        if not self.tokens or sorted(self.tokens) != list(self.tokens):
            raise ValueError("tokens must hold at least one quantile and must not fall")
        if known and (len(known) != len(self.tokens) or sorted(set(known)) != list(known)):
            raise ValueError("probability must rise, with one number per quantile")
        if known and (known[0] != 0 or (len(known) > 1 and known[-1] != 1)):
            raise ValueError("probability must rise from 0 to 1")

    def at(self, probability: Floats) -> Ints:
        """Return token counts at an array of probabilities, interpolated, at least 1.

        >>> Quantiles((10.0, 20.0, 100.0)).at(np.array([0.0, 0.25, 1.0]))
        array([ 10,  15, 100])
        """
        known = self.probability or np.linspace(0.0, 1.0, len(self.tokens))
        tokens = np.interp(probability, known, self.tokens)
        return np.maximum(np.rint(tokens), 1.0).astype(np.int64)


class Bounded(msgspec.Struct, frozen=True):
    """A distribution of token counts from `least` to `most`."""

    least: TokenCount
    most: TokenCount

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(f"needs least <= most, has least {self.least}, most {self.most}")


class Uniform(Bounded, frozen=True):
    """All counts from `least` to `most` are equally likely."""

    def at(self, probability: Floats) -> Ints:
        """Return token counts at an array of probabilities.

        >>> Uniform(1, 6).at(np.array([0.0, 0.5, 0.99, 1.0]))
        array([1, 4, 6, 6])
        """
        steps = np.floor(probability * (self.most - self.least + 1)).astype(np.int64)
        return np.minimum(self.least + steps, self.most)


class Lognormal(Bounded, frozen=True):
    """A log-normal distribution, clipped to `least` and `most`."""

    mean: Positive  # before clipping
    sigma: Positive

    def at(self, probability: Floats) -> Ints:
        """Return token counts at an array of probabilities.

        >>> Lognormal(16, 4096, 100.0, 1.0).at(np.array([0.0, 0.5, 1.0]))
        array([  16,   61, 4096])
        """
        z = np.interp(probability, *_normal())
        tokens = self.mean * np.exp(self.sigma * z - self.sigma**2 / 2.0)
        return np.rint(np.clip(tokens, self.least, self.most)).astype(np.int64)


class Zipf(Bounded, frozen=True):
    """Zipf's law: the probability of a count `n` is proportional to `n ** -exponent`."""

    exponent: Positive

    def at(self, probability: Floats) -> Ints:
        """Return token counts at an array of probabilities.

        >>> Zipf(1, 4, 1.0).at(np.array([0.0, 0.47, 0.49, 1.0]))
        array([1, 1, 2, 4])
        """
        below = _zipf(self.exponent, self.least, self.most)
        return np.minimum(self.least + np.searchsorted(below, probability, "right"), self.most)


QUANTILES = "quantiles"
KINDS: dict[str, type] = {
    QUANTILES: Quantiles,
    "uniform": Uniform,
    "lognormal": Lognormal,
    "zipf": Zipf,
}
"""Distributions by their name in a workload file."""


def load_workload(name: str) -> Workload:
    """Return a workload by name or by the path of a TOML file.

    Raises:
        UnknownNameError: no workload has this name.
        UserError: a table is missing or invalid.

    >>> bool(load_workload("chat").draw(np.array([[0.5, 0.5]]))[0][0] > 500)
    True
    """
    return WORKLOADS.load(name, _workload)


def _workload(path: Path) -> Workload:
    sheet = read_choice(path)
    outputs = sheet.get("output")
    if not isinstance(outputs, list) or not outputs:
        raise UserError(f"{path}: a workload needs at least one [[output]] table")
    ends = [float(table.get("prompt_up_to", np.inf)) for table in outputs]
    if ends[-1] != np.inf or sorted(set(ends)) != ends:
        raise UserError(
            f"{path}: prompt_up_to must rise from table to table and be omitted in the last"
        )
    return Workload(
        name=path.stem,
        prompt=distribution_of(path, "[prompt]", sheet.get("prompt")),
        prompt_up_to=tuple(ends),
        output=tuple(
            distribution_of(path, f"[[output]] {i + 1}", t) for i, t in enumerate(outputs)
        ),
    )


def distribution_of(path: Path, where: str, table: Any) -> Distribution:
    """Return the distribution of one table of a workload file.

    Raises:
        UserError: a field is missing, unknown or invalid.
    """
    table = {"distribution": QUANTILES, **(table if isinstance(table, dict) else {})}
    table.pop("prompt_up_to", None)
    kind = str(table["distribution"])
    try:
        if kind not in KINDS:
            raise UnknownNameError("distribution", kind, KINDS)
        found: Distribution = msgspec.convert(table, KINDS[kind])
    except (msgspec.ValidationError, UserError) as error:
        raise UserError(f"{path}: {where} {error}") from error
    return found


@functools.cache
def _normal() -> tuple[Floats, Floats]:
    """Return the normal distribution function on a grid: probabilities, then deviations."""
    z = np.linspace(-8.0, 8.0, 8001)
    return np.array([0.5 * math.erfc(-x / math.sqrt(2.0)) for x in z.tolist()]), z


@functools.lru_cache(maxsize=16)
def _zipf(exponent: float, least: int, most: int) -> Floats:
    """Return the cumulative probabilities of the counts from `least` to `most`."""
    weight = np.arange(least, most + 1, dtype=np.float64) ** -exponent
    below: Floats = np.cumsum(weight) / weight.sum()
    return below


SUFFIXES = (".parquet", ".csv", ".jsonl", ".jsonl.gz", ".json")

TRACE_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
VIDUR = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
CSV_LAYOUTS = (AZURE, TRACE_COLUMNS, VIDUR)
HASHES = "hash_ids"
MOONCAKE = ("timestamp", "input_length", "output_length")
_TIMES = (TRACE_COLUMNS[0], VIDUR[0], MOONCAKE[0])
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")


_LEAST_READ = 1 << 17
"""Rows of a trace that are read at least: enough to find the number of tokens per hash."""

LONGEST_HASHED = 1 << 16
"""Most tokens per hash of a trace."""


@dataclass(frozen=True)
class Hashes:
    """Hashes of the token blocks of all prompts."""

    hashes: Ints  # of all prompts, concatenated
    stops: Ints  # end of each prompt's hashes
    tokens: int  # per hash


@dataclass(frozen=True)
class Trace:
    """Requests of a trace, in order; `arrival_s` starts at 0 and is None without timestamps."""

    arrival_s: Floats | None
    prompt_tokens: Ints
    output_tokens: Ints
    hashes: Hashes | None = None


def is_trace(workload: str) -> bool:
    """Return whether a workload is the path of a trace.

    >>> is_trace("traces/azure.csv"), is_trace("chat")
    (True, False)
    """
    return workload.endswith(SUFFIXES)


def load_trace(path: str, requests: int = 0) -> Trace:
    """Return a trace, cached until the file changes; 0 requests are all of them.

    Of a long trace no more than the first `requests` rows, or 131,072 if that is more, are read.

    Raises:
        UserError: the file cannot be read or is malformed; the message names row and column.
    """
    file = Path(path)
    try:
        stat = file.stat()
    except OSError as error:
        raise UserError(f"trace '{path}': {error.strerror}") from error
    rows = max(requests, _LEAST_READ) if requests else sys.maxsize
    return _trace(file, rows, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=8)
def _trace(file: Path, limit: int, _mtime_ns: int, _size: int) -> Trace:
    try:
        columns = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}[file.suffix](file, limit)
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


def hashed_tokens(prompt: Ints, counts: Ints) -> int:
    """Return the tokens per hash: a power of two that gives every prompt its number of hashes.

    Raises:
        UserError: no power of two does.

    >>> hashed_tokens(np.array([1000, 513]), np.array([2, 2]))
    512
    """
    tokens = 1
    while tokens <= LONGEST_HASHED:
        if (-(-prompt // tokens) == counts).all():
            return tokens
        tokens *= 2
    row = int(np.argmax(counts != -(-prompt // 512)))
    raise UserError(
        f"hash_ids must be one for each block of a prompt, of 16, 512 or another power of two "
        f"tokens; row {row + 1} has {counts[row]} for {prompt[row]:,} tokens"
    )


Columns = tuple[Floats | None, Ints, Ints, Ints, pa.Array | None]
"""Arrival times or None, prompt tokens, output tokens, row numbers in the file from 1, lists of
block hashes or None."""


def _parquet(file: Path, limit: int) -> Columns:
    with pq.ParquetFile(file) as stored:
        wanted = [name for name in (*TRACE_COLUMNS, HASHES) if name in stored.schema_arrow.names]
        batches: list[pa.RecordBatch] = []
        for batch in stored.iter_batches(columns=wanted):
            batches.append(batch)
            if (limit := limit - batch.num_rows) <= 0:
                batches[-1] = batch[: batch.num_rows + limit]
                break
        schema = stored.schema_arrow.empty_table().select(wanted).schema
        table = pa.Table.from_batches(batches, schema)
    if missing := [name for name in TRACE_COLUMNS[1:] if name not in table.column_names]:
        raise UserError(
            f"trace '{file}' lacks the column {', '.join(missing)}. It has: "
            f"{', '.join(stored.schema_arrow.names)}"
        )
    for name in TRACE_COLUMNS:
        if name in table.column_names and (nulls := table[name].null_count):
            row = table[name].is_null().index(True).as_py()
            raise UserError(f"trace '{file}', row {row + 1}: {name} is empty ({nulls} in all)")
        kind = table[name].type if name in table.column_names else pa.float64()
        if not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
            raise UserError(f"trace '{file}': {name} is of type {kind}, not a number")
    arrival = None
    if TRACE_COLUMNS[0] in table.column_names:
        arrival = np.asarray(table[TRACE_COLUMNS[0]].to_numpy(), np.float64)
    prompt, output = (np.asarray(table[name].to_numpy(), np.int64) for name in TRACE_COLUMNS[1:])
    lists = table[HASHES].combine_chunks() if HASHES in table.column_names else None
    return arrival, prompt, output, np.arange(1, prompt.size + 1), lists


def _csv(file: Path, limit: int) -> Columns:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream)
        header = rows.fieldnames or ()
        layout = _layout(CSV_LAYOUTS, header)
        if layout is None:
            known = " or ".join(", ".join(kind) for kind in CSV_LAYOUTS)
            raise UserError(
                f"trace '{file}': the header must name {known}. It has: "
                f"{', '.join(header) or 'nothing'}"
            )
        numbered = ((rows.line_num, row) for row in itertools.islice(rows, limit))
        return _parse_rows(file, layout, numbered, 1.0)


def _jsonl(file: Path, limit: int) -> Columns:
    with file.open(encoding="utf-8") as stream:
        lines = ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
        first, rows = _peeked(_parsed(file, *numbered) for numbered in lines)
        if isinstance(first, dict) and {"metadata", "metrics"} <= set(first):
            # AIPerf writes requests as they complete.
            try:
                sent = sorted(_sent(rows), key=lambda row: row[1][MOONCAKE[0]])
            except (AttributeError, KeyError, TypeError) as error:
                raise UserError(f"trace '{file}' is no export of AIPerf: {error}") from error
            return _parse_rows(file, MOONCAKE, sent[:limit], 1e3)
        layout = _layout((MOONCAKE,), first if isinstance(first, dict) else ())
        return _parse_rows(file, layout or MOONCAKE, itertools.islice(rows, limit), 1e3)


def _layout(kinds: Iterable[Sequence[str]], names: Iterable[str]) -> Sequence[str] | None:
    """Return the first layout whose columns are named; arrival times may be missing."""
    known, kinds = set(names), list(kinds)
    for columns in (*kinds, *(kind[1:] for kind in kinds)):
        if set(columns) <= known:
            return columns
    return None


def _peeked(rows: Iterable[tuple[int, Any]]) -> tuple[Any, Iterator[tuple[int, Any]]]:
    """Return the first row, and all rows."""
    left = iter(rows)
    first = list(itertools.islice(left, 1))
    return (first[0][1] if first else None), itertools.chain(first, left)


def _sent(rows: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield the requests of AIPerf's records that got an answer, in the layout of Mooncake."""
    for number, row in rows:
        metrics = row.get("metrics") or {}
        sizes = [metrics.get(f"{side}_sequence_length", {}) for side in ("input", "output")]
        if all(sizes):
            values = (row["metadata"]["request_start_ns"] / 1e6, *(s["value"] for s in sizes))
            yield number, dict(zip(MOONCAKE, values, strict=True))


def _parsed(file: Path, number: int, line: str) -> tuple[int, Any]:
    try:
        return number, json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"trace '{file}', row {number}: {error}") from error


def _parse_rows(
    file: Path, layout: Sequence[str], rows: Iterable[tuple[int, Any]], per_s: float
) -> Columns:
    """Return the columns of a trace layout; `per_s` is the number of its time units per second."""
    cells: list[list[Any]] = [[] for _ in layout]
    hashes: list[Any] = []
    numbers: list[int] = []
    for number, row in rows:
        numbers.append(number)
        if len(layout) < len(MOONCAKE) and isinstance(row, dict) and MOONCAKE[0] in row:
            raise UserError(f"trace '{file}', row {number}: only some rows have a {MOONCAKE[0]}")
        for cell, name in zip(cells, layout, strict=True):
            if not isinstance(row, dict) or name not in row:
                raise UserError(f"trace '{file}', row {number}: '{name}' is missing")
            cell.append(_cell(file, number, name, row[name]))
        hashes.append(row.get(HASHES))
    prompt, output, rows_of = map(np.array, (*cells[-2:], numbers))
    lists = pa.array(hashes, pa.list_(pa.int64())) if per_s > 1.0 and any(hashes) else None
    arrival = np.array(cells[0], np.float64) / per_s if len(layout) > 2 else None
    return arrival, prompt, output, rows_of, lists


def _cell(file: Path, row: int, column: str, value: Any) -> float | int:
    """Return a cell as a number, in the unit of its column."""
    try:
        if column == AZURE[0]:
            stamp = np.datetime64(_ZONE.sub("", value.strip()), "ns")
            return int(stamp.astype(np.int64)) / 1e9
        if column in _TIMES:
            return float(value)
        return int(value)
    except (TypeError, ValueError, AttributeError) as error:
        kind = "a time" if column in (AZURE[0], *_TIMES) else "a whole number"
        shown = "empty" if value in (None, "") else f"'{value}', not {kind}"
        raise UserError(f"trace '{file}', row {row}, column {column}: {shown}") from error
