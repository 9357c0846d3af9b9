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
from simulators.kernels.tiling import four_norm, l2_miss_rate
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


QUANTIZATION_S = 3.5e-6
"""What the smallest prompts take longer with 8-bit keys on H100, H200, B200 and GB200."""

COPIED_BYTES = (192.0 + 192.0 + 128.0) * (2.0 + 1.0)
"""Of a token and head: query, key and value read in 16 bits and written in 8."""


def warp_prompt_seconds(
    a: Attention, gpu: Gpu, numbers: Mapping[str, float], moved_bytes: Floats
) -> Floats:
    """Return the uncorrected seconds of prompts."""
    queries, pairs, keys, requests = (
        np.asarray(column, np.float64)
        for column in (a.query_tokens, a.pairs, a.kv_tokens, a.requests)
    )
    dtype, tile, step = multiplied(a, gpu), numbers["tile"], numbers["step"]
    exponential_s = numbers["exponentials"] / (gpu.exponentials_per_clock * gpu.clock_hz)
    product_s = 4.0 * a.head_dim * gpu.sm_count / (numbers["compute"] * gpu.peak(dtype))
    pair_s = product_s + exponential_s  # on one SM
    padded = pairs + tile * keys + step * queries + tile * step * requests
    compute_s = a.heads * padded * pair_s / gpu.sm_count
    longest_s = 2.0 * tile * keys / np.maximum(requests, 1.0) * pair_s
    memory_s = moved_bytes / (numbers["bandwidth"] * gpu.hbm_bytes_per_s)
    copied = COPIED_BYTES * a.heads * queries * (dtype != a.dtype)
    copied_s = l2_miss_rate(copied / gpu.l2_bytes) * copied / gpu.hbm_bytes_per_s
    copied_s = copied_s + QUANTIZATION_S * (dtype != a.dtype)
    busy_s = four_norm(compute_s + numbers["tail"] * longest_s, memory_s)
    return np.asarray(copied_s + numbers["start_s"] + busy_s, np.float64)


SPLITS = "splits"
"""How a number is called that says how many splits there are; 0: as many as SGLang makes."""

MOST_SPLITS = "most_splits"
"""And one that says how many it makes at most; without it as many as there are SMs, or more."""

BLOCK_HEADS, TRITON_TILE_KEYS, OCTAVE_KEYS = 16.0, 32.0, 64.0
"""Of the kernel's source: heads of a block, keys of a step, and where splits begin to rise."""

TRITON_START_S = 8e-6
"""Two launches of what an A100's other latent kernels take for one."""

STEP_CLOCKS = 800.0
"""As one of the waits of Triton's prompts, fitted to 783 and 820 on an H100 and an H200: an L2 hit,
arithmetic and jumps. Nothing timed of latents is in it."""

L2_BYTES_PER_CLOCK = 64.0
"""An SM reads so much of L2 in a clock (NVIDIA Ampere GA100 white paper)."""

STAGED_BYTES = 2.0 * TRITON_TILE_KEYS * (SCORED + SUMMED) * 2.0
"""Two tiles of keys and values in 16 bits."""


def triton_latent_seconds(
    a: Attention, gpu: Gpu, numbers: Mapping[str, float], moved_bytes: Floats
) -> Floats:
    """Return the uncorrected seconds of single new tokens."""
    requests = np.maximum(np.asarray(a.requests, np.float64), 1.0)
    keys = np.maximum(np.asarray(a.kv_tokens, np.float64) / requests, 1.0)
    heads = np.asarray(a.heads, np.float64)
    splits, most = _splits(a, gpu, numbers, requests, keys)
    flop_clocks = gpu.sm_count * gpu.clock_hz / gpu.peak(a.dtype)
    products = 2.0 * BLOCK_HEADS * (SCORED + SUMMED) * flop_clocks
    is_staged = gpu.sram_bytes_per_sm >= STAGED_BYTES
    loads = 0.0 if is_staged else 2.0 * (SCORED + SUMMED) / L2_BYTES_PER_CLOCK
    pace = loads + np.where(heads > 1.0, products + numbers["key_clocks"], numbers["lone_clocks"])
    walked = TRITON_TILE_KEYS * np.ceil(keys / splits / TRITON_TILE_KEYS)
    summed = numbers["head_clocks"] * np.minimum(heads, BLOCK_HEADS)
    block = numbers["block_clocks"] + summed + walked * pace
    tiles = requests * np.ceil(heads / BLOCK_HEADS) / gpu.sm_count
    blocks = tiles * splits
    waves = np.where(heads > 1.0, np.ceil(blocks), np.maximum(blocks, 1.0))
    clocks = waves * block + (tiles * (most - splits) + splits) * STEP_CLOCKS
    sums_bytes = 2.0 * 4.0 * SUMMED * requests * heads * splits
    memory_s = (moved_bytes + sums_bytes) / gpu.hbm_bytes_per_s
    return np.asarray(TRITON_START_S + four_norm(clocks / gpu.clock_hz, memory_s), np.float64)


def _splits(
    a: Attention, gpu: Gpu, numbers: Mapping[str, float], requests: Floats, keys: Floats
) -> tuple[Floats, float]:
    """Return the splits of a request that have keys, and how many are launched."""
    if fixed := numbers[SPLITS]:
        return np.minimum(fixed, keys), fixed
    heads = np.maximum(np.asarray(a.split_heads, np.float64), a.heads)
    most = numbers.get(MOST_SPLITS) or 2.0 ** np.ceil(np.log2(gpu.sm_count))
    dealt = gpu.sm_count * np.maximum(np.log2(keys / OCTAVE_KEYS), 1.0)
    splits = np.minimum(np.ceil(dealt / (requests * np.ceil(heads / BLOCK_HEADS))), most)
    whole = TRITON_TILE_KEYS * np.ceil(keys / splits / TRITON_TILE_KEYS)  # tiles of a split
    return np.ceil(keys / whole), float(most)


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

PROMPT_BYTES = 2.0
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

    held = requests * keys * width * PROMPT_BYTES
    shared_by = np.maximum(gpu.sm_count / requests, 1.0)
    again = blocks * steps * tile_keys * width * PROMPT_BYTES / shared_by
    moved = held + requests * queries * a.heads * width * PROMPT_BYTES
    memory_s = (moved + l2_miss_rate(held / gpu.l2_bytes) * again) / gpu.hbm_bytes_per_s
    return np.asarray(numbers["start_s"] + four_norm(clocks / gpu.clock_hz, memory_s), np.float64)


def _step_clocks(a: Attention, gpu: Gpu, tile_keys: float) -> Floats:
    """Return the clocks of a step's products and of what feeds them."""
    scored = np.where(a.latent, SCORED, a.head_dim)
    summed = np.where(a.latent, SUMMED, a.head_dim)
    alike = max(WARPS * COLUMNS / tile_keys, 1.0)  # warps that score the same keys
    flops = 2.0 * TILE_QUERIES * tile_keys * (alike * scored + summed)
    rate = WARP_SHARE.get(gpu.architecture, 1.0) * gpu.peak(a.dtype) / gpu.sm_count / gpu.clock_hz
    loaded = PROMPT_BYTES * tile_keys * (scored + summed)
    read = PROMPT_BYTES * (WARPS * TILE_QUERIES * scored + tile_keys * (alike * scored + summed))
    written = loaded
    fed = loaded / L2_BYTES_PER_CLOCK + (read + written) / SHARED_BYTES_PER_CLOCK
    return np.asarray(flops / rate + fed, np.float64)
