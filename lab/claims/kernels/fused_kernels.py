"""How far attention and experts are from measured kernels whose shapes nothing was fitted to.

Tables that the calibrations were fitted to are judged by the half of their shapes that was held
out; any other folder's tables are judged whole. Decode has a region apart: short keys, many
requests, many query heads per key head, where kernels are several times slower than bandwidth and
libraries switch between them. Chunks on a prefix, mixed batches and layers of experts from other
tables follow in `checks_chunks.py`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.claims.kernels import prompt_chunks as checks_chunks
from lab.fits.fused_kernels import predicted_s
from lab.tables.kernels.fused_kernels import FOLDER as MEASURED
from lab.tables.kernels.fused_kernels import GPUS, NARROW, TABLES, Measured, read_measured
from simulators.catalog.gpu import load_gpu
from simulators.core.calibration import provenance_of, read_calibration, sha256_of
from simulators.core.contract import Check
from simulators.kernels.frameworks import FOLDER, Entry, entry_of
from simulators.kernels.levels import profile_of

Floats = NDArray[np.float64]

BAR = {"prefill": 12.0, "decode": 12.0, "mla_prefill": 20.0, "mla_decode": 20.0, "experts": 18.0}
CROWDED_BAR = 25.0
TRANSFER_BAR = 15.0
SKEWED_BAR = 25.0
FRAMEWORKS = ("vllm", "trtllm")
"""Whose transfer to another GPU is judged."""

PRINTED = ("rtx_pro_6000", "rtx_4090")
"""Boards nothing was asked of."""

SHORT_KEYS, MANY_REQUESTS, MANY_HEADS = 1024.0, 32.0, 12.0
"""The region apart: fewer keys than this, and as many requests and query heads per key head."""


def checks(reference: Path, rows: str) -> list[Check]:
    """Return errors of each kernel on each GPU, and of one GPU by another's numbers.

    Args:
        reference: a folder laid out like the reference data.
        rows: `test` for held-out shapes, `all` for every row of a folder nothing was fitted to.
    """
    found: list[Check] = []
    for kernel, table in TABLES.items():
        path = reference / MEASURED / f"{table}.parquet"
        if not path.is_file():
            found.append(Check(f"kernels: {MEASURED}/{table}", None, note="skipped: no table"))
            continue
        whole = rows == "all" and sha256_of(path) not in _fitted_hashes()
        for gpu in GPUS:
            measured = read_measured(reference, gpu, kernel)
            judged = [m if whole else m.where(m.held_out) for m in measured]
            found += _kernel_checks(gpu, kernel, judged)
    return found + checks_chunks.checks(reference) + checks_chunks.coverage(reference)


def _fitted_hashes() -> set[str]:
    """Return the hashes of all tables that shipped entries were fitted to."""
    files = sorted(FOLDER.glob("*.toml"))
    return {h for file in files for h in provenance_of(read_calibration(file), file).sha256}


def _kernel_checks(gpu: str, kernel: str, judged: list[Measured]) -> list[Check]:
    """Return one line per framework, and what stands apart."""
    found: list[Check] = []
    for framework in (*FRAMEWORKS, "sglang"):
        for spread, narrow in product(("balanced", "skewed"), (False, True)):
            mine = [
                (part, entry)
                for part in judged
                if part.framework == framework
                and (part.spread == "balanced") == (spread == "balanced")
                and (part.dtypes in NARROW) == narrow
                for entry in [_entry(part, gpu)]
                if entry is not None and entry.calibrated and entry.framework == framework
            ]
            if mine:
                errors = [_errors(part, entry) for part, entry in mine]
                label = f"narrow {kernel}" if narrow else kernel
                label = label if spread == "balanced" else f"skewed {label}"
                found += _lines(f"{gpu} {framework} {label}", kernel, spread, mine, errors)
    if gpu == "h200_sxm" and kernel == "decode":
        found += _transfer(judged)
    return found


def _lines(
    title: str,
    kernel: str,
    spread: str,
    mine: list[tuple[Measured, Entry]],
    errors: list[Floats],
) -> list[Check]:
    bar = BAR[kernel] if spread == "balanced" else SKEWED_BAR
    limit = None if title.split()[0] in PRINTED else bar
    everything = np.concatenate(errors)
    if kernel != "decode":
        return [_line(f"{title} MAPE", everything, limit)]
    crowded = np.concatenate([_crowded(part) for part, _ in mine])
    return [
        _line(f"{title} MAPE", everything[~crowded], limit),
        _line(f"{title} crowded MAPE", everything[crowded], limit and CROWDED_BAR),
    ]


def _transfer(judged: list[Measured]) -> list[Check]:
    """Return the error of H200 decode by the numbers of an H100 and the data sheet."""
    found = []
    for framework in FRAMEWORKS:
        mine = [part for part in judged if part.framework == framework]
        errors = [
            _errors(part, entry)[~_crowded(part)]
            for part in mine
            for entry in [_entry(part, "h200_sxm", "zero_shot")]
            if entry is not None
        ]
        if errors:
            name = f"h200_sxm {framework} decode MAPE, data sheet alone"
            found.append(_line(name, np.concatenate(errors), TRANSFER_BAR))
    return found


def _entry(part: Measured, gpu: str, level: str = "best") -> Entry | None:
    board = load_gpu(gpu)
    profile = replace(profile_of(board, level), framework=part.framework)
    return entry_of(board, profile, part.kernel, (part.dtypes,))


def _errors(part: Measured, entry: Entry) -> Floats:
    """Return the signed errors in percent."""
    if not part.seconds.size:
        return np.zeros(0)
    predicted = predicted_s(part, load_gpu(part.gpu), entry)
    return np.asarray(100.0 * (predicted / part.seconds - 1.0), np.float64)


def _crowded(part: Measured) -> NDArray[np.bool_]:
    s = part.sizes
    short = s["isl"] + s["step"] < SHORT_KEYS
    many = s["batch_size"] >= MANY_REQUESTS
    return np.asarray(short & many & (s["num_heads"] / s["num_key_value_heads"] >= MANY_HEADS))


def _line(name: str, errors: Floats, bar: float | None) -> Check:
    if not errors.size:
        return Check(name, None, "%", note="no rows")
    value = float(np.mean(np.abs(errors)))
    note = f"median {np.median(np.abs(errors)):.1f}, bias {np.mean(errors):+.1f}"
    ok = None if bar is None else bool(value <= bar)
    return Check(name, value, "%", bar, ok, errors.size, note)
