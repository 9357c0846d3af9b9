"""A decode step of latent attention by warps that multiply: blocks walk all keys of a request.

Where tensor cores are fed from registers (mma.sync), libraries have one kernel for latent decode on
all GPUs: a tile of 64 query heads is the work of two blocks, each of which scores the 576 numbers
of a key and sums half of its 512 values, and no block shares a request's keys with another. So a
lone block's pace decides, in clocks a key: those of its products at the tensor cores' rate, and as
many again in which loads and exponentials wait for each other. Blocks beyond one an SM come in
waves, half of which run beside the wave before (`W` waves, `k` keys of a request):

    t = start + [start_clocks + k (products + key_clocks)
                 + (W - 1) (wave_clocks + k (products + gap_clocks))] / clock

to the fourth power beside the bytes, as elsewhere, which move at the full rate: no such kernel is
slow for them, and a fit to one GPU would find none but a chance rate. Numbers fitted to an A100
foretell an RTX PRO 6000, and the other way round, for what differs is on the data sheet: clock,
SMs and their rate.

All 128 heads on 8-bit keys have a kernel of their own on workstations' Blackwell (TensorRT-LLM,
`cpp/kernels/xqa/mla_sm120.cu`): clusters of four SMs, of which two score every other tile of keys
and two sum half of the values each. One group of a block's warps multiplies while the other waits
for loads and exponentials, so keys pass as fast as two SMs score them, a request a cluster. No
other GPU runs it, and nothing was fitted to it: its launch is taken for that of the blocks above.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.tiling import four_norm
from simulators.workload.operators import Attention
from simulators.workload.precision import BYTES

TILE_HEADS, TILE_KEYS, BLOCKS = 64.0, 64.0, 2.0
"""Query heads and keys of a tile, as times step in both, and blocks that share a tile's values."""

SCORED, SUMMED = 576.0, 512.0
"""Numbers of a cached key, and those of its value (DeepSeek-V2, 2024)."""

CLUSTER, SCORERS, CLUSTER_HEADS = 4, 2.0, 128.0
"""SMs of a cluster, those of them that score, and the only count of heads it was written for."""

CLUSTERED = ("blackwell_rtx",)
"""Architectures that the clusters' kernel is compiled for."""


def warp_latent_seconds(
    a: Attention, gpu: Gpu, numbers: Mapping[str, float], moved_bytes: Floats
) -> Floats:
    """Return the uncorrected seconds of single new tokens."""
    requests = np.maximum(np.asarray(a.requests, np.float64), 1.0)
    keys = np.maximum(np.asarray(a.kv_tokens, np.float64) / requests, TILE_KEYS)
    waves = BLOCKS * requests * np.ceil(np.asarray(a.heads) / TILE_HEADS) / gpu.sm_count
    more = np.maximum(0.5 * (waves + np.ceil(waves)) - 1.0, 0.0)
    flop_clocks = gpu.sm_count * gpu.clock_hz / gpu.peak(multiplied(a, gpu))
    products = 2.0 * TILE_HEADS * (SCORED + SUMMED / BLOCKS) * flop_clocks
    alone = numbers["start_clocks"] + keys * (products + numbers["key_clocks"])
    wave = numbers["wave_clocks"] + keys * (products + numbers["gap_clocks"])
    clocks = alone + more * wave
    if gpu.architecture in CLUSTERED and multiplied(a, gpu) == "fp8":
        scores = 2.0 * CLUSTER_HEADS * SCORED / SCORERS * flop_clocks
        turns = np.ceil(requests / (gpu.sm_count // CLUSTER))
        clustered = numbers["start_clocks"] + turns * keys * scores
        clocks = np.where(np.asarray(a.heads) == CLUSTER_HEADS, clustered, clocks)
    busy_s = numbers["start_s"] + clocks / gpu.clock_hz
    return np.asarray(four_norm(busy_s, moved_bytes / gpu.hbm_bytes_per_s), np.float64)


def multiplied(a: Attention, gpu: Gpu) -> str:
    """Return the precision of products: keys of 8 bits stay as they are where a GPU can."""
    is_narrow = BYTES[a.kv_dtype] < BYTES[a.dtype] and "fp8" in gpu.peak_flops
    return "fp8" if is_narrow else a.dtype
