"""A decode's layer of experts takes a time linear in the experts that wake, whatever their tokens.

LLMServingSim timed vLLM's layer of Qwen3-30B-A3B on an RTX PRO 6000 and counted experts; nothing
was fitted to it, and ours are the numbers of TensorRT-LLM's kernels on that board. Judged are the
times of up to 256 tokens, and the seconds that each expert adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.judged import entry_errors, entry_for
from lab.claims.lines import at_most, error_line
from lab.tables.kernels.expert_layers import SERVING, SERVING_GPUS, read_layers
from simulators.core.contract import Check
from simulators.core.jit import Floats

NEEDS = (SERVING,)
MOST_TOKENS = 256.0
BAR = 10.0
"""Percent."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of layers and of their slope over activated experts, by board."""
    for gpu in SERVING_GPUS:
        for part in read_layers(reference, gpu):
            few = part.where(part.sizes["num_tokens"] <= MOST_TOKENS)
            entry, awake = entry_for(few), few.sizes["awake"]
            assert entry is not None, f"nobody lends {few.name}"
            errors = entry_errors(few, entry)
            whose = f"by the numbers of {entry.framework}; up to {MOST_TOKENS:.0f} tokens"
            yield error_line(f"{gpu} decode by activated experts MAPE", [errors], BAR, whose)
            ours, theirs = (
                _slope_s(awake, seconds)
                for seconds in (few.seconds * (1.0 + errors / 100.0), few.seconds)
            )
            note = f"{1e6 * ours:.2f} us an expert of {1e6 * theirs:.2f}"
            off = 100.0 * abs(ours / theirs - 1.0)
            yield at_most(f"{gpu} seconds of an activated expert", off, BAR, awake.size, note)


def _slope_s(awake: Floats, seconds: Floats) -> float:
    """Return the seconds that each expert adds, by least squares."""
    return float(np.polyfit(awake, seconds, 1)[0])
