"""Measured collectives, as nccl-tests print them: one median per curve and size.

A curve is a collective, a precision and a number of ranks, of one library on the GPUs of one node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.tables.catalog_names import gpu_name
from lab.tables.rows import Bools, read_records
from simulators.core.jit import Floats, Ints

Key = tuple[str, str, int]  # collective, dtype, ranks

NCCL = "collectives/nccl_measured.parquet"
COLUMNS = ("collective", "dtype", "ranks", "bytes", "time_us")
SHORT_NAMES = {"half": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, eq=False)
class Curves:
    """All medians of one GPU and library, sorted by curve and size."""

    keys: tuple[Key, ...]
    curve: Ints  # of each row: the position of its curve in `keys`
    octave: Floats  # log2 of bytes
    log_s: Floats

    def take(self, where: Bools | Ints) -> Curves:
        """Return some of the rows."""
        return replace(
            self, curve=self.curve[where], octave=self.octave[where], log_s=self.log_s[where]
        )

    def of(self, key: Key) -> Bools:
        """Say which rows belong to a curve."""
        mine: Bools = self.curve == self.keys.index(key)
        return mine


Libraries = dict[str, dict[str, Curves]]
"""Measured curves, by GPU and library."""


def read_libraries(reference: Path) -> Libraries:
    """Return the medians of the measured table."""
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in read_records(reference / NCCL):
        is_eager = str(row["implementation"]).endswith("_eager")
        key = (gpu_name(row["gpu"]), row["library"] + "_eager" * is_eager)
        parts.setdefault(key, []).append(row)
    table: Libraries = {}
    for (gpu, library), rows in sorted(parts.items()):
        table.setdefault(gpu, {})[library] = _medians(rows)
    return table


def read_own(path: Path) -> Curves:
    """Return measurements of one's own.

    Raises:
        UserError: the file cannot be read or lacks a column.
    """
    return _medians(read_records(path, COLUMNS))


def _medians(rows: Iterable[dict[str, Any]]) -> Curves:
    found: dict[tuple[Key, int], list[float]] = {}
    for row in rows:
        key = (row["collective"], SHORT_NAMES.get(row["dtype"], row["dtype"]), int(row["ranks"]))
        found.setdefault((key, int(row["bytes"])), []).append(row["time_us"] * 1e-6)
    entries = sorted(found)
    keys = tuple(sorted({key for key, _ in entries}))
    return Curves(
        keys,
        curve=np.array([keys.index(key) for key, _ in entries]),
        octave=np.log2([size for _, size in entries]),
        log_s=np.log([float(np.median(found[entry])) for entry in entries]),
    )
