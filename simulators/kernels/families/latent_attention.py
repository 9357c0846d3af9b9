"""Latent attention on GPUs whose tensor cores are fed from registers (mma.sync).

C++ libraries have one decode kernel: a tile of 64 query heads is the work of two blocks, which read
all keys of a request; blocks beyond one per SM run in waves. Their prefill warps multiply and
compute exponentials. Triton kernels (SGLang, vLLM) have blocks of 16 query heads in decode, with
splits of a request, and of 32 queries of one head in prefill. Equations and sources:
`docs/explanation/kernels.md`, "Latent attention".
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
"""Query heads and keys of a tile, and blocks that share the values of a tile."""

SCORED, SUMMED = 576.0, 512.0
"""Numbers of a cached key, and of its value (DeepSeek-V2, 2024)."""

CLUSTER, SCORERS, CLUSTER_HEADS = 4, 2.0, 128.0
"""SMs of a cluster, SMs that score, and the only number of heads that the kernel supports."""

CLUSTERED = ("blackwell_rtx", "blackwell_spark")
"""Architectures that the cluster kernel is compiled for."""


def warp_latent_seconds(
    a: Attention, gpu: Gpu, numbers: Mapping[str, float], moved_bytes: Floats
) -> Floats:
    """Return the uncorrected seconds of single new tokens."""
    requests = np.maximum(np.asarray(a.requests, np.float64), 1.0)
    keys = np.maximum(np.asarray(a.kv_tokens, np.float64) / requests, TILE_KEYS)
    waves = BLOCKS * requests * np.ceil(np.asarray(a.heads) / TILE_HEADS) / gpu.sm_count
    more = np.maximum(0.5 * (waves + np.ceil(waves)) - 1.0, 0.0)
    flop_clocks = gpu.sm_count * gpu.clock_hz / gpu.peak(product_dtype(a, gpu))
    products = 2.0 * TILE_HEADS * (SCORED + SUMMED / BLOCKS) * flop_clocks
    alone = numbers["start_clocks"] + keys * (products + numbers["key_clocks"])
    wave = numbers["wave_clocks"] + keys * (products + numbers["gap_clocks"])
    clocks = alone + more * wave
    if gpu.architecture in CLUSTERED and product_dtype(a, gpu) == "fp8":
        scores = 2.0 * CLUSTER_HEADS * SCORED / SCORERS * flop_clocks
        turns = np.ceil(requests / (gpu.sm_count // CLUSTER))
        clustered = numbers["start_clocks"] + turns * keys * scores
        clocks = np.where(np.asarray(a.heads) == CLUSTER_HEADS, clustered, clocks)
    busy_s = numbers["start_s"] + clocks / gpu.clock_hz
    return np.asarray(four_norm(busy_s, moved_bytes / gpu.hbm_bytes_per_s), np.float64)


def product_dtype(a: Attention, gpu: Gpu) -> str:
    """Return the precision of the products: fp8 for 8-bit keys on GPUs with an fp8 rate."""
    is_narrow = BYTES[a.kv_dtype] < BYTES[a.dtype] and "fp8" in gpu.peak_flops
    return "fp8" if is_narrow else a.dtype


QUANTIZATION_S = 3.5e-6
"""Extra time of the smallest prompts with 8-bit keys on H100, H200, B200 and GB200."""

COPIED_BYTES = (192.0 + 192.0 + 128.0) * (2.0 + 1.0)
"""Bytes per token and head: query, key and value, read in 16 bits and written in 8 bits."""


def warp_prompt_seconds(
    a: Attention, gpu: Gpu, numbers: Mapping[str, float], moved_bytes: Floats
) -> Floats:
    """Return the uncorrected seconds of prompts."""
    queries, pairs, keys, requests = (
        np.asarray(column, np.float64)
        for column in (a.query_tokens, a.pairs, a.kv_tokens, a.requests)
    )
    dtype, tile, step = product_dtype(a, gpu), numbers["tile"], numbers["step"]
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
"""Constant with the number of splits; 0: SGLang's number."""

MOST_SPLITS = "most_splits"
"""Constant with the largest number of splits; without it, SMs rounded up to a power of two."""

BLOCK_HEADS, TRITON_TILE_KEYS, OCTAVE_KEYS = 16.0, 32.0, 64.0
"""Heads per block, keys per step, and keys above which splits increase, in the kernel's source."""

TRITON_START_S = 8e-6
"""Two launches, each as long as a launch of an A100's other latent kernels."""

STEP_CLOCKS = 800.0
"""An L2 hit with arithmetic and branches: a wait of Triton's prefill, fitted to 783 on an H100 and
820 on an H200. No measurement of latent attention was used."""

L2_BYTES_PER_CLOCK = 64.0
"""Bytes from L2 to an SM per clock (NVIDIA Ampere GA100 white paper)."""

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
    """Return the splits per request that have keys, and the launched splits per request."""
    if fixed := numbers[SPLITS]:
        return np.minimum(fixed, keys), fixed
    heads = np.maximum(np.asarray(a.split_heads, np.float64), a.heads)
    most = numbers.get(MOST_SPLITS) or 2.0 ** np.ceil(np.log2(gpu.sm_count))
    dealt = gpu.sm_count * np.maximum(np.log2(keys / OCTAVE_KEYS), 1.0)
    splits = np.minimum(np.ceil(dealt / (requests * np.ceil(heads / BLOCK_HEADS))), most)
    whole = TRITON_TILE_KEYS * np.ceil(keys / splits / TRITON_TILE_KEYS)  # tiles of a split
    return np.ceil(keys / whole), float(most)


TILE_QUERIES, FEW_KEYS, MANY_KEYS, WARPS = 32.0, 32.0, 64.0, 8.0
"""Tile sizes and warps in the kernel's source, for more than 256 numbers per head."""

SMALL_SM_BYTES = 131_072
"""Shared memory and L1 of SMs with 100 KB of shared memory, which use `FEW_KEYS`."""

COLUMNS = 8.0
"""Keys per instruction of a warp (mma.m16n8k16, NVIDIA PTX ISA)."""

SHARED_BYTES_PER_CLOCK = 128.0
"""Shared memory bandwidth per SM: 32 banks of 4 bytes (NVIDIA CUDA C++ Programming Guide)."""

WARP_SHARE = {"hopper": 0.629}
"""Share of the tensor cores' peak that warps reach, where the peak is that of warp groups (Luo et
al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024)."""

PROMPT_BYTES = 2.0
"""Bytes per number: 8-bit caches are widened, and new keys are not in the cache yet."""


def triton_prompt_seconds(
    a: Attention,
    gpu: Gpu,
    numbers: Mapping[str, float],
    moved_bytes: Floats,  # noqa: ARG001 - counts uncompressed keys of other libraries
) -> Floats:
    """Return the uncorrected seconds of Triton prefill, of latents or of ordinary wide heads."""
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
    """Return the clocks of a step: products, loads from L2 and shared memory traffic."""
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
