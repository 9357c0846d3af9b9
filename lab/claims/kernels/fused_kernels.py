"""How far attention is from measured kernels whose shapes nothing was fitted to.

Tables that the calibrations were fitted to are judged by the half of their shapes that was held
out; any other folder's tables are judged whole. Decode has a region apart: short keys, many
requests, many query heads per key head, where kernels are several times slower than bandwidth and
libraries switch between them. Intervals are judged together with those of `prompt_chunks.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.claims.kernels.judged import entry_errors, entry_for, entry_holds, own_entry
from lab.claims.lines import absent, error_line, was_fitted, within
from lab.tables.kernels.fused_kernels import FOLDER as MEASURED
from lab.tables.kernels.fused_kernels import GPUS, TABLES, read_measured
from lab.tables.kernels.prompt_chunks import read_chunks
from lab.tables.rows import BANDED, Bools, Floats, Rows
from simulators.core.contract import Check
from simulators.evidence.lookup import CALIBRATIONS

BAR = {"prefill": 12.0, "decode": 12.0, "mla_prefill": 20.0, "mla_decode": 20.0}
CROWDED_BAR = 25.0
TRANSFER_BAR = 15.0
COVERAGE_BAR = (87.0, 94.0)
FRAMEWORKS = ("vllm", "trtllm")
"""Whose transfer to another GPU is judged."""

PRINTED = ("rtx_pro_6000", "rtx_4090")
"""Boards nothing was asked of."""

SHORT_KEYS, MANY_REQUESTS, MANY_HEADS = 1024.0, 32.0, 12.0
"""The region apart: fewer keys than this, and as many requests and query heads per key head."""


def checks(reference: Path, rows: str) -> list[Check]:
    """Return errors of each kernel on each GPU, of one GPU by another's numbers, and coverage."""
    found: list[Check] = []
    for kernel in BAR:
        table = TABLES[kernel]
        path = reference / MEASURED / f"{table}.parquet"
        if not path.is_file():
            found.append(absent(f"kernels: {MEASURED}/{table}", "skipped: no table"))
            continue
        whole = rows == "all" and not was_fitted((CALIBRATIONS / "fused").glob("*.toml"), [path])
        for gpu in GPUS:
            measured = read_measured(reference, gpu, kernel)
            judged = [part if whole else part.where(part.held_out) for part in measured]
            found += _kernel_checks(gpu, kernel, [part for part in judged if len(part)])
    return found + _coverage(reference)


def _kernel_checks(gpu: str, kernel: str, judged: list[Rows]) -> list[Check]:
    """Return one line per framework, and what stands apart."""
    found: list[Check] = []
    for framework in (*FRAMEWORKS, "sglang"):
        mine = [
            (part, entry_errors(part, entry))
            for part in judged
            if part.framework == framework and (entry := own_entry(part)) is not None
        ]
        if mine:
            limit = None if gpu in PRINTED else BAR[kernel]
            found += _lines(f"{gpu} {framework} {kernel}", mine, limit)
    if gpu == "h200_sxm" and kernel == "decode":
        found += _transfer(judged)
    return found


def _lines(title: str, mine: list[tuple[Rows, Floats]], limit: float | None) -> list[Check]:
    """Return the error of a kernel; of decode apart where it is crowded."""
    if mine[0][0].kernel != "decode":
        return [error_line(f"{title} MAPE", [errors for _, errors in mine], limit)]
    calm = [errors[~_is_crowded(part)] for part, errors in mine]
    crowded = [errors[_is_crowded(part)] for part, errors in mine]
    return [
        error_line(f"{title} MAPE", calm, limit),
        error_line(f"{title} crowded MAPE", crowded, limit and CROWDED_BAR),
    ]


def _transfer(judged: list[Rows]) -> list[Check]:
    """Return the error of H200 decode by the numbers of an H100 and the data sheet."""
    found = []
    for framework in FRAMEWORKS:
        errors = [
            entry_errors(part, entry)[~_is_crowded(part)]
            for part in judged
            if part.framework == framework and (entry := entry_for(part, "zero_shot")) is not None
        ]
        if errors:
            name = f"h200_sxm {framework} decode MAPE, data sheet alone"
            found.append(error_line(name, errors, TRANSFER_BAR))
    return found


def _coverage(reference: Path) -> list[Check]:
    """Return how many rows the 90 % intervals hold that neither fit nor interval has seen."""
    found = []
    for kernel in (*BAR, "mixed"):
        inside = [
            entry_holds(unseen, entry)
            for gpu in GPUS
            for part in read_measured(reference, gpu, kernel) + read_chunks(reference, gpu, kernel)
            if (entry := own_entry(part)) is not None
            and len(unseen := part.where(part.bucket >= BANDED))
        ]
        note = "rows neither fit nor interval has seen"
        found += within(f"{kernel} coverage", inside, COVERAGE_BAR, note)
    return found


def _is_crowded(part: Rows) -> Bools:
    s = part.sizes
    short = s["isl"] + s["step"] < SHORT_KEYS
    many = s["batch_size"] >= MANY_REQUESTS
    return np.asarray(short & many & (s["num_heads"] / s["num_key_value_heads"] >= MANY_HEADS))
