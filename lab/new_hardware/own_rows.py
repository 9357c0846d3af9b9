"""Rows that a user has timed: fp32 operators of one device, a part for each class of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.tables.kernels.fp32_kernels import NEEDS, rows_of_table
from lab.tables.rows import Rows, read_table
from simulators.core.errors import UserError


def own_rows(measured: Path, device: str) -> list[Rows]:
    """Return the rows of a file, all as of one device.

    Raises:
        UserError: the file cannot be read, has no fp32 operator, or a time that is none.
    """
    table = read_table(measured, NEEDS)
    parts = [part for found, _ in rows_of_table(table, device) for part in found if len(part)]
    if not parts:
        raise UserError(f"{measured}: no fp32 operator; column `op` names them")
    for part in parts:
        if not np.all(np.isfinite(part.seconds) & (part.seconds > 0.0)):
            raise UserError(f"{measured}: `latency_us` of {part.kernel} holds what is no time")
    return parts
