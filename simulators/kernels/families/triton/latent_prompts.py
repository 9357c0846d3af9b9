"""Prompts of latent attention in Triton: a block walks all keys before 32 queries of one head.

SGLang runs this kernel where tensor cores are fed from registers (`extend_attention.py`): keys stay
compressed, 576 numbers to score and 512 to sum, so that a pair costs over three times the FLOPs of
other libraries' prompts. Eight warps stand side by side across a step's keys, 32 of them, or 64
where an SM's memory holds as many, then across the columns that are summed up; where keys are too
few for eight warps some score the same. Nothing runs beside anything else, a step being one stage:

    step  = products / (tensor cores) + keys and values / (L2) + operands / (shared memory)
            + a wait at each of its products: the loads, barriers and exponentials around it
    block = block_clocks + steps step
    t     = start + (((blocks block / SMs + half the longest block) / clock)^4 + memory^4)^(1/4)

Every warp reads all queries of the tile again at every step, which no register file holds. The
longest blocks come last, so half of one is left over; blocks of prompts within one tile come in
waves. Memory moves queries and results once, and keys as often as L2 has lost them: blocks that run
beside each other share what they read. The rope part of a latent's scores is a product of its own.

Ordinary heads of 512 numbers run in tiles of the same height, too low for Hopper's warp groups:
there, too, warps multiply. What was timed of those foretells latents on other GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.families.latent_decode import SCORED, SUMMED
from simulators.kernels.families.triton.latent_decode import L2_BYTES_PER_CLOCK
from simulators.kernels.tiling import four_norm, lost_of_l2
from simulators.workload.operators import Attention

TILE_QUERIES, FEW_KEYS, MANY_KEYS, WARPS = 32.0, 32.0, 64.0, 8.0
"""Of the kernel's source, for more than 256 numbers a head."""

SMALL_SM_BYTES = 131_072
"""Shared memory and L1 of an SM whose shared memory is 100 KB: those have the fewer keys."""

COLUMNS = 8.0
"""Keys that one instruction of a warp scores (mma.m16n8k16, NVIDIA PTX ISA)."""

SHARED_BYTES_PER_CLOCK = 128.0
"""32 banks of four bytes (NVIDIA CUDA C++ Programming Guide)."""

WARP_SHARE = {"hopper": 0.629}
"""Of the tensor cores' peak where it is that of warp groups: what warps reach there in the mean
(Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024)."""

BYTES = 2.0
"""Of a number: caches of 8 bits are widened, and new keys are not in them yet."""


def triton_prompt_seconds(
    a: Attention,
    gpu: Gpu,
    numbers: Mapping[str, float],
    moved_bytes: Floats,  # noqa: ARG001 - of keys that other libraries unfold
) -> Floats:
    """Return the uncorrected seconds of prompts, of latents or of ordinary wide heads."""
    requests = np.maximum(np.asarray(a.requests, np.float64), 1.0)
    queries = np.maximum(np.asarray(a.query_tokens, np.float64) / requests, 1.0)
    keys = np.asarray(a.kv_tokens, np.float64) / requests
    width = np.where(a.latent, SCORED + SUMMED, 2.0 * np.asarray(a.head_dim))
    tile_keys = FEW_KEYS if gpu.sram_bytes_per_sm <= SMALL_SM_BYTES else MANY_KEYS
    step = _step_clocks(a, gpu, tile_keys) + np.where(a.latent, 3.0, 2.0) * numbers["wait_clocks"]

    tiles = np.ceil(queries / TILE_QUERIES)
    seen = np.asarray(a.pairs, np.float64) / (requests * queries)
    last = seen + (np.minimum(queries, TILE_QUERIES) - 1.0) / 2.0  # of a tile's keys, in the mean
    started = (1.0 - TILE_QUERIES / tile_keys) / 2.0
    steps = np.where(tiles > 1.0, last / tile_keys + started, np.ceil(last / tile_keys))
    steps = np.maximum(steps, 1.0)
    blocks = requests * a.heads * tiles
    longest = numbers["block_clocks"] + np.ceil(keys / tile_keys) * step
    spread = blocks * (numbers["block_clocks"] + steps * step) / gpu.sm_count + longest / 2.0
    waves = np.ceil(blocks / gpu.sm_count) * longest
    clocks = np.where(tiles > 1.0, np.maximum(spread, longest), waves)

    held = requests * keys * width * BYTES
    shared_by = np.maximum(gpu.sm_count / requests, 1.0)
    again = blocks * steps * tile_keys * width * BYTES / shared_by
    moved = held + requests * queries * a.heads * width * BYTES
    memory_s = (moved + lost_of_l2(held / gpu.l2_bytes) * again) / gpu.hbm_bytes_per_s
    return np.asarray(numbers["start_s"] + four_norm(clocks / gpu.clock_hz, memory_s), np.float64)


def _step_clocks(a: Attention, gpu: Gpu, tile_keys: float) -> Floats:
    """Return the clocks of a step's products and of what feeds them."""
    scored = np.where(a.latent, SCORED, a.head_dim)
    summed = np.where(a.latent, SUMMED, a.head_dim)
    alike = max(WARPS * COLUMNS / tile_keys, 1.0)  # warps that score the same keys
    flops = 2.0 * TILE_QUERIES * tile_keys * (alike * scored + summed)
    rate = WARP_SHARE.get(gpu.architecture, 1.0) * gpu.peak(a.dtype) / gpu.sm_count / gpu.clock_hz
    loaded = BYTES * tile_keys * (scored + summed)
    read = BYTES * (WARPS * TILE_QUERIES * scored + tile_keys * (alike * scored + summed))
    written = loaded
    fed = loaded / L2_BYTES_PER_CLOCK + (read + written) / SHARED_BYTES_PER_CLOCK
    return np.asarray(flops / rate + fed, np.float64)
