"""vLLM's attention in Triton, which runs where attention sinks are wanted before Hopper.

FlashAttention 2 knows no sinks ("Sinks are only supported in FlashAttention 3", vLLM), so models
that have them (gpt-oss) are run by `kernel_unified_attention_2d`. A block of it holds 16 rows: the
query heads that share a key head, of as many neighbouring queries as fill it. It walks the keys
before them, 32 a step:

    step  = number_clocks width rows / 16          width: a head's numbers, up to a power of two
    block = (block_clocks / number_clocks + keys / 32 + 1/2) step
    t     = start + blocks block / (SMs clock)

Rows are too few for tensor cores to matter: five GPUs of two instruction sets take the same
clocks within a twelfth, and what was timed there foretells others. Decodes are left to memory,
which such blocks keep up with.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulators.catalog.engine import kernel_choices
from simulators.catalog.gpu import INSTRUCTION_ROWS, Gpu
from simulators.core.calibration import read_calibration
from simulators.core.jit import Floats
from simulators.evidence.calibration_files import CALIBRATIONS
from simulators.evidence.intervals import Band, everywhere
from simulators.workload.operators import Attention

CALIBRATION = CALIBRATIONS / "triton" / "unified.toml"

TILE_KEYS = 32.0


def is_unified(attention: Attention, gpu: Gpu, framework: str) -> bool:
    """Return whether an engine runs attention with sinks by this kernel on a GPU."""
    return attention.sinks and gpu.architecture in kernel_choices(framework).unified_attention


def unified_seconds(a: Attention, gpu: Gpu, numbers: Mapping[str, float] | None = None) -> Floats:
    """Return the seconds of prompts; of fitted numbers unless others are given."""
    found = numbers or _calibration()["numbers"]
    group = np.asarray(a.heads, np.float64) / a.kv_heads
    rows = np.maximum(INSTRUCTION_ROWS, 2.0 ** np.ceil(np.log2(group)))
    together = np.floor(rows / group)  # queries
    width = 2.0 ** np.ceil(np.log2(a.head_dim)) * rows / INSTRUCTION_ROWS
    blocks = np.asarray(a.query_tokens, np.float64) * a.kv_heads / together
    keys = np.asarray(a.pairs, np.float64) * a.kv_heads / together
    steps = keys / TILE_KEYS + blocks / 2.0
    clocks = width * (found["number_clocks"] * steps + found["block_clocks"] * blocks)
    return np.asarray(found["start_s"] + clocks / (gpu.sm_count * gpu.clock_hz), np.float64)


def unified_band() -> Band:
    """Return how far off GPUs lie that were left out of the fit."""
    ends = _calibration()["ends"]
    return everywhere(float(ends["lo"]), float(ends["hi"]))


def _calibration() -> Mapping[str, Any]:
    return _read(CALIBRATION, CALIBRATION.stat().st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _read(file: Path, _mtime_ns: int) -> Mapping[str, Any]:
    return read_calibration(file)
