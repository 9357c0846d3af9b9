"""Fit vLLM's attention in Triton, which boards without sinks in FlashAttention run.

It was timed on boards that run other models by it, under keys of 8 bits, which it widens. Rows are
of as many heads a key head as models with sinks have. Each board is left out in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, hashes, table_lines
from lab.tables.kernels.fused_kernels import NAMED, measured_in, tables_of
from lab.tables.rows import Rows, read_table
from planning.calibrate.least_squares import fit_named
from simulators.catalog.gpu import load_gpu
from simulators.core.jit import Floats
from simulators.kernels.families.triton.unified import CALIBRATION, unified_seconds

FOLDER = CALIBRATION.parent
NAME = CALIBRATION.stem
SPLIT = "each board in turn"

FRAMEWORK, KERNEL, PHASE = "vllm", "vllm_triton_attn", "prefill"
BOARDS = "b200_sxm", "b300_sxm", "gb200", "gb300", "rtx_pro_6000"
GROUP = 8.0
"""Query heads a key head: gpt-oss's 64 over 8."""

START = {"start_s": 1e-5, "number_clocks": 7.0, "block_clocks": 7.0}
"""A block loads its queries and stores their sums: about a step's work."""

REACH, RIDGE = 3.0, 0.1
FEWEST = 50


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the kernel's numbers, of all boards alike."""
    if only and NAME not in only:
        return
    table = tables_of(PHASE)[0]
    boards = [rows for gpu in BOARDS for rows in _rows(reference / table, gpu)]
    predicted = [
        _predicted_s(rows, _fit([other for other in boards if other is not rows]))
        for rows in boards
    ]
    ratio = np.concatenate([rows.seconds for rows in boards]) / np.concatenate(predicted)
    errors, ends = 1.0 / ratio - 1.0, np.quantile(ratio, (0.05, 0.95))
    numbers, band = _fit(boards), dict(zip(("lo", "hi"), ends.tolist(), strict=True))
    yield Calibration(
        name=NAME,
        tables=hashes(reference, [table]),
        rows=sum(map(len, boards)),
        split=SPLIT,
        held_out_rows=errors.size,
        error=float(np.abs(errors).mean()),
        lines=[*table_lines("numbers", numbers, ".4g"), *table_lines("ends", band, ".4g")],
    )


def _rows(file: Path, gpu: str) -> Iterator[Rows]:
    table = read_table(file, gpu=NAMED.get(gpu, gpu), kernel=KERNEL)
    for part in measured_in(table, gpu, PHASE, FEWEST):
        if part.framework == FRAMEWORK:
            yield part.where(part.sizes["num_heads"] == GROUP * part.sizes["num_key_value_heads"])


def _fit(boards: Sequence[Rows]) -> dict[str, float]:
    first = np.log(list(START.values()))
    return fit_named(
        lambda n: np.concatenate([_predicted_s(rows, n) for rows in boards]),
        list(START),
        first,
        np.concatenate([rows.seconds for rows in boards]),
        low=first - REACH,
        high=first + REACH,
        ridge=RIDGE,
    )


def _predicted_s(rows: Rows, numbers: Mapping[str, float]) -> Floats:
    return unified_seconds(rows.operator, load_gpu(rows.gpu), numbers)
