"""Claims about operators of recent models, by GPU: recurrent states and sparse attention.

Rows are held-out shapes. `predicted` is the product's answer, `elsewhere` its answer as if the GPU
had no measurements: by the constants of other GPUs and its own data sheet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from lab.claims.claim import columns
from lab.claims.kernels import held_out, shipped_price
from lab.tables import indexers
from lab.tables import kernels as tables
from lab.tables.hyper_connections import read_mixing_rows
from lab.tables.rows import Rows
from simulators.catalog.gpu import load_gpu
from simulators.evidence.lookup import LEVELS
from simulators.kernels.families.attention import LISTED
from simulators.kernels.price import price

NAMES = {
    "gdn": "gated delta rule",
    "mamba2": "Mamba-2 convolutions",
    "kda": "Kimi delta attention",
    "mixing": "hyper-connections",
    "index_scores_prefill": "indexer scores of prompts",
    "index_scores_decode": "indexer scores of decodes",
    "index_choice": "choice of keys",
    LISTED: "attention to lists of keys",
}
"""Operators by table, rule or kernel."""


def operators(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield held-out shapes of states, hyper-connections and sparse attention, by GPU."""
    for gpu in dict.fromkeys((*tables.STATES.gpus, *tables.AUXILIARY.gpus)):
        timed = [p for p in tables.read_auxiliary_rows(reference, gpu) if tables.is_state(p.kernel)]
        for part in held_out([*timed, *tables.read_state_rows(reference, gpu)]):
            yield answered(part, NAMES[table_of(part)])
        for part in held_out(read_mixing_rows(reference, gpu)):
            yield answered(part, NAMES["mixing"])
    for gpu in indexers.FACTS.gpus:
        lists = indexers.read_index_rows(reference, gpu), indexers.read_list_rows(reference, gpu)
        for part in held_out(itertools.chain(*lists)):
            yield answered(part, NAMES[part.kernel])


def answered(part: Rows, operator: str) -> pl.DataFrame:
    """Return measured seconds, the product's answer, and its answer without the GPU's own rows."""
    answer = shipped_price(part)
    other = price(part.operator, load_gpu(part.gpu), LEVELS[0], part.framework)
    return columns(
        predicted=answer.latency_s,
        elsewhere=other.latency_s,
        measured=part.seconds,
        lo=answer.lo_s,
        hi=answer.hi_s,
        gpu=part.gpu,
        operator=operator,
        kernel=part.name,
        is_own=answer.calibrated,
    )


def table_of(part: Rows) -> str:
    """Return the table that rows of states come from."""
    return next(
        (table for table, rule in tables.AUXILIARY.rules.items() if rule == part.dtype), "gdn"
    )
