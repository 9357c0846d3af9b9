"""Claims about operators of recent models, by GPU: recurrent states and the blocks around them.

Rows are held-out shapes. `predicted` is the product's answer, `elsewhere` its answer as if the GPU
had no measurements: by the constants of other GPUs and its own data sheet.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from lab.claims.claim import columns
from lab.claims.kernels import held_out, shipped_price
from lab.tables import kernels as tables
from lab.tables.rows import Rows
from simulators.catalog.gpu import load_gpu
from simulators.evidence.lookup import LEVELS
from simulators.kernels.price import price

NAMES = {"kda": "Kimi delta attention", "mamba2": "Mamba-2 convolutions", "gdn": "gated delta rule"}


def states(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield held-out shapes of recurrent states and of the convolutions before them."""
    for gpu in dict.fromkeys((*tables.STATES.gpus, *tables.AUXILIARY.gpus)):
        timed = [
            part
            for part in tables.read_auxiliary_rows(reference, gpu)
            if tables.is_state(part.kernel)
        ]
        for part in held_out([*timed, *tables.read_state_rows(reference, gpu)]):
            answer = shipped_price(part)
            other = price(part.operator, load_gpu(gpu), LEVELS[0], part.framework)
            yield columns(
                predicted=answer.latency_s,
                elsewhere=other.latency_s,
                measured=part.seconds,
                lo=answer.lo_s,
                hi=answer.hi_s,
                gpu=gpu,
                operator=NAMES[table_of(part)],
                kernel=part.name,
                is_own=answer.calibrated,
            )


def table_of(part: Rows) -> str:
    """Return the table that rows of states come from."""
    return next(
        (table for table, rule in tables.AUXILIARY.rules.items() if rule == part.dtype), "gdn"
    )
