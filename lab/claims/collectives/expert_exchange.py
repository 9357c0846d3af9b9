"""DeepEP's dispatch and combine, as its authors measured them, by rates of other numbers of ranks.

Its second version is in no fit: it is predicted by the rates of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.fits.networks.expert_exchange import FITTED, fitted, left_out, log_errors
from lab.tables.collectives import DeepEpExchange, read_exchanges
from lab.tables.rows import Floats


def exchanges(reference: Path) -> pl.DataFrame:
    """Return predicted over measured seconds of each kernel, by mode; the later version is one."""
    rows = read_exchanges(reference)
    first = [row for row in rows if row.kernel.startswith(FITTED)]
    later = [row for row in rows if not row.kernel.startswith(FITTED)]
    frames = [_frame(mine, errors) for mine, errors in left_out(first)]
    version_2 = _frame(later, log_errors(later, fitted(first))).with_columns(
        mode=pl.lit("version 2")
    )
    return together([*frames, version_2])


def _frame(rows: Sequence[DeepEpExchange], log_error: Floats) -> pl.DataFrame:
    return columns(
        predicted=np.exp(log_error),
        measured=np.ones(len(rows)),
        mode=[row.mode for row in rows],
        label=[f"{row.op} of {row.ranks}" for row in rows],
    )
