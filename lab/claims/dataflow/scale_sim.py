"""Cycles of systolic arrays against SCALE-Sim's."""

from __future__ import annotations

import math
from pathlib import Path

from lab.claims.lines import at_least
from lab.parity.scale_sim import systolic_cycles
from lab.tables.rows import read_records
from simulators.core.contract import PARITY, Check

NEEDS = (TABLE,) = ("dataflow/scalesim_32x32.csv",)
KIND = PARITY


def checks(reference: Path, _rows: str) -> list[Check]:
    """Return the share of products whose cycles are equal; nothing was fitted."""
    equal = []
    for row in read_records(reference / TABLE):
        high, wide = (int(side) for side in row["array"].split("x"))
        m, n, k = (int(row[name]) for name in "MNK")
        cycles = systolic_cycles(m, n, k, rows=high, columns=wide, dataflow=row["dataflow"])
        equal.append(cycles == int(row["total_cycles"]))
    share = 100.0 * sum(equal) / len(equal) if equal else math.nan
    return [at_least("dataflow/systolic cycles equal", share, 100.0, len(equal), "at least")]
