"""Rows timed on one GPU, written as what they would take on another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from lab.new_hardware.carried import carried_s, in_common, ratios, telling
from lab.new_hardware.own_rows import own_rows
from lab.tables.kernels.fp32_kernels import CLASS_OF
from lab.tables.rows import Floats, Rows, evenly, mape
from simulators.catalog.gpu import Gpu, load_gpu


@dataclass(frozen=True)
class Carried:
    """One class of operators, carried: its times, and errors where the target has rows."""

    name: str
    rows: Rows  # of the source
    seconds: Floats  # on the target
    own: int  # rows of the target that were looked at
    error: float  # on rows of the target that were left out; not a number without any
    naive: float  # the better of the ratios of bandwidth and FLOP/s, on the same rows

    @property
    def ratio(self) -> float:
        """Time on the target over that on the source, of the median row."""
        return float(np.median(self.seconds / self.rows.seconds))


def transfer(source: str, target: str, measured: Path, own: Path | None) -> list[Carried]:
    """Return the classes of operators of a file, carried from one GPU to another.

    Args:
        source: the data sheet of the GPU they were timed on.
        target: that of the other.
        measured: the rows.
        own: rows of the target, if there are any: half of them are looked at to judge, all of them
            to answer.

    Raises:
        UserError: a file cannot be read or has no fp32 operator; there is no such data sheet.
    """
    start, end = load_gpu(source), load_gpu(target)
    theirs = {part.kernel: part for part in own_rows(own, end.name)} if own else {}
    parts = own_rows(measured, start.name)
    return [_carried(part, start, end, theirs.get(part.kernel)) for part in parts]


def _carried(part: Rows, start: Gpu, end: Gpu, own: Rows | None) -> Carried:
    nothing = part.where(np.zeros(len(part), bool))
    if own is None:
        return Carried(part.kernel, part, carried_s(part, start, end, nothing), 0, np.nan, np.nan)
    error = naive = np.nan
    one, other = in_common(part, own)
    known = np.arange(len(other)) % 2 == 0
    if len(other) >= 2:
        seen = other.seconds[~known]
        error = mape(carried_s(one, start, end, other.where(known))[~known], seen)
        plain = ratios(start, end).values()
        naive = min(mape(one.seconds[~known] * ratio, seen) for ratio in plain)
    return Carried(part.kernel, part, carried_s(part, start, end, own), len(own), error, naive)


MOST_WEIGHED = 2000
"""Rows of a class that are weighed against each other: of more, evenly spaced ones."""

OP_OF = {label: op for op, label in reversed(CLASS_OF.items())}
"""An operator of each class, by which readers of its rows know the class."""


def write(carried: list[Carried], target: str, file: Path) -> None:
    """Write what was carried with the columns of the profiler."""
    rows = [
        {**call, "gpu": target, "kernel": "carried", "latency_us": seconds * 1e6}
        for one in carried
        for call, seconds in zip(_calls(one.rows), one.seconds.tolist(), strict=True)
    ]
    pa.parquet.write_table(pa.Table.from_pylist(rows), file)


def write_telling(source: str, measured: Path, count: int, file: Path) -> int:
    """Write the calls to time on another GPU, and return how many they are.

    Of each class so many are asked for that tell most of the others; `lab.profiler` times them.

    Raises:
        UserError: the file cannot be read or has no fp32 operator; there is no such data sheet.
    """
    parts = own_rows(measured, load_gpu(source).name)
    some = [part.where(evenly(len(part), min(MOST_WEIGHED, len(part)))) for part in parts]
    rows = [call for part in some for call in _calls(part.where(telling(part, count)))]
    pa.parquet.write_table(pa.Table.from_pylist(rows), file)
    return len(rows)


def _calls(rows: Rows) -> list[dict[str, Any]]:
    """Return each call under the names of the reference tables."""
    return [
        {
            "op": OP_OF[rows.kernel],
            "dtype": rows.dtype,
            **{name: int(size[i]) for name, size in rows.sizes.items()},
        }
        for i in range(len(rows))
    ]
