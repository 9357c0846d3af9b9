"""Errors of whole forward passes on measured ones, table by table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, answered, compared
from lab.tables.forward_passes import TABLES, Case
from simulators.composition.replica import load_runtime
from simulators.core.contract import Check

LIMITS = {
    "llama2_70b_token_time": 15.0,
    "llama2_70b_prompt_time": 12.0,
    "decode_w4a16": 15.0,
    "decode_fp16": 15.0,
    "llama3_1_tpot_h100": 9.0,
    "llama3_1_tpot_b200": 13.0,
    "static_batch": 12.0,
}
"""Of the mean error over single measurements, in percent."""


def checks(reference: Path, rows: str) -> Iterator[Check]:
    """Yield one line for each table; rows fitted to are left out unless `all` are asked for."""
    for table in TABLES:
        name = f"composition/{table.name}"
        if not (reference / table.path).is_file():
            yield absent(name, f"absent: {table.path}", "%")
            continue
        cases = [c for c in table.cases(reference) if c.is_test or rows == "all"]
        runtime = load_runtime(table.runtime)
        found = answered(name, cases, partial(Case.predicted_s, runtime=runtime))
        measured = np.array([case.measured_s for case in found.rows])
        groups = [case.group for case in found.rows]
        yield compared(name, np.array(found.answers), measured, groups, LIMITS[table.name])
        yield from found.lines
