"""Drawing tokens from the likeliest whose probabilities add up to a share (nucleus sampling).

Engines sort the logits of the whole vocabulary for it, on every tensor rank, in passes over fp32
numbers. Counted here are those of vLLM 0.11's sampler (vllm/v1/sample, in PyTorch): logits to fp32
and over the temperature; sorted; softmax and running sum; what lies beyond the share masked, and
all put back in place; softmax, and a race of exponentials whose first is drawn.

PyTorch sorts fewer than 128 rows together by a radix sort of 32 bits in four passes, with indices
of 8 bytes, then by row; more rows each by itself, in six passes that read the keys twice
(aten/native/cuda/SortStable.cu, and CUB's device radix sorts). Taking the likeliest token reads
logits once, which is counted with the LM head.

Holtzman et al., "The curious case of neural text degeneration" (ICLR 2020).
"""

from __future__ import annotations

import numpy as np

from simulators.workload.llm.shard import Shard
from simulators.workload.operators import Column, Compute

FP32 = 4.0
READ = 2 + 4 + 8 + 4 + 4 + 5 + 12 + 8 + 8 + 4
WRITTEN = 4 + 4 + 4 + 4 + 1 + 4 + 4 + 4 + 4 + 4
"""Bytes of a logit in the order of the passes above, without the sort."""

TOGETHER_ROWS = 128
SORTED_TOGETHER = 8 + (4 + 4 * (12 + 12)) + (8 + 8 + 8) + (8 + 4 + 4 + 8)
SORTED_EACH = 8 + 6 * (4 + 12 + 12)
"""Bytes of a logit: indices made, sorted by key, then by row, put apart; and the same by rows."""


def nucleus_operators(shard: Shard, rows: Column) -> tuple[Compute, ...]:
    """Return the passes over the logits of so many rows, on the stage that has the LM head."""
    if not shard.part.has_head:
        return ()
    logits = rows * float(shard.model.vocab)
    sort = np.where(np.asarray(rows) < TOGETHER_ROWS, SORTED_TOGETHER, SORTED_EACH)
    return (
        shard.pointwise("nucleus_sort", logits * sort / (2.0 * FP32), 1, dtype="fp32"),
        shard.pointwise("nucleus_draw", logits, 1, READ / FP32, WRITTEN / FP32, "fp32"),
    )
