"""Fit vLLM's unified Triton attention, which GPUs without attention sinks in FlashAttention run.

It was timed on GPUs that run other models with it, under 8-bit keys, which it widens. Rows have
the group size of models with sinks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration
from lab.fits.methods.forms import form
from lab.fits.methods.held_out import leave_one_out, quantile
from lab.tables.fused_kernels import NAMED, measured_in, tables_of
from lab.tables.rows import Rows, read_table
from simulators.catalog.gpu import load_gpu
from simulators.evidence.intervals import COVERED
from simulators.kernels.families.attention import UNIFIED_CALIBRATION, unified_seconds

FOLDER = UNIFIED_CALIBRATION.parent
FRAMEWORK, KERNEL, PHASE = "vllm", "vllm_triton_attn", "prefill"
GPUS = "b200_sxm", "b300_sxm", "gb200", "gb300", "rtx_pro_6000"
GROUP = 8.0
"""Query heads per key head: gpt-oss has 64 and 8."""

RIDGE, FEWEST = 0.1, 50


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the kernel's numbers, which all GPUs share."""
    table = tables_of(PHASE)[0]
    gpus = [rows for gpu in GPUS for rows in _rows(reference / table, gpu)]
    ratio = np.concatenate(
        [
            rows.seconds / unified_seconds(rows.operator, load_gpu(rows.gpu), numbers)
            for [rows], numbers in leave_one_out(gpus, lambda rows: rows.gpu, _fit)
        ]
    )
    low, high = quantile(ratio, COVERED)
    yield Calibration(
        name=UNIFIED_CALIBRATION.stem,
        content={"numbers": _fit(gpus), "ends": {"lo": float(low), "hi": float(high)}},
        tables=[table],
        rows=sum(map(len, gpus)),
        split="each GPU in turn",
        errors=1.0 / ratio - 1.0,
    )


def _rows(file: Path, gpu: str) -> Iterator[Rows]:
    table = read_table(file, gpu=NAMED.get(gpu, gpu), kernel=KERNEL)
    for part in measured_in(table, gpu, PHASE, FEWEST):
        if part.framework == FRAMEWORK:
            yield part.where(part.sizes["num_heads"] == GROUP * part.sizes["num_key_value_heads"])


def _fit(gpus: Sequence[Rows]) -> dict[str, float]:
    return form("triton_unified").fit(
        lambda numbers: np.concatenate(
            [unified_seconds(rows.operator, load_gpu(rows.gpu), numbers) for rows in gpus]
        ),
        np.concatenate([rows.seconds for rows in gpus]),
        ridge=RIDGE,
    )
