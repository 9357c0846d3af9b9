"""A decode step of latent attention in Triton: blocks of 16 query heads share a request's keys.

SGLang and vLLM run this kernel where tensor cores are fed from registers (vLLM took it over from
SGLang, `triton_decode_attention.py`). A block scores 32 keys a step; splits of a request are added
up by a second kernel, one after the other. vLLM makes four splits of any request. SGLang deals out
`SMs log2(keys / 64)` blocks, of whole tiles of 32 keys (`get_num_kv_splits_triton`), so that fewer
have keys; it launches as many as the most splits would take, and the others look and end. Until
pull request 20479 of 2026 it made eight splits of a request at most
(`triton_attention_num_kv_splits`):

    block = block_clocks + heads head_clocks + keys / splits (products + key_clocks + loads)
    t     = start + (((W block + W' step + splits step) / clock)^4 + memory^4)^(1/4)

`W` are whole waves of blocks with keys over the SMs, `W'` blocks without keys an SM; `step` is what
an L2 hit and the arithmetic around it take. A next tile is loaded beside the products where two fit
an SM's memory, else after them (`loads`). Memory moves the cache, and each split's sums in fp32
twice. One head alone has no tile: cores multiply, and small blocks run beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.families.latent_decode import SCORED, SUMMED
from simulators.kernels.tiling import four_norm
from simulators.workload.operators import Attention

SPLITS = "splits"
"""How a number is called that says how many splits there are; 0: as many as SGLang makes."""

MOST_SPLITS = "most_splits"
"""And one that says how many it makes at most; without it as many as there are SMs, or more."""

BLOCK_HEADS, TILE_KEYS, OCTAVE_KEYS = 16.0, 32.0, 64.0
"""Of the kernel's source: heads of a block, keys of a step, and where splits begin to rise."""

START_S = 8e-6
"""Two launches of what an A100's other latent kernels take for one."""

STEP_CLOCKS = 800.0
"""As one of the waits of Triton's prompts, fitted to 783 and 820 on an H100 and an H200: an L2 hit,
arithmetic and jumps. Nothing timed of latents is in it."""

L2_BYTES_PER_CLOCK = 64.0
"""An SM reads so much of L2 in a clock (NVIDIA Ampere GA100 white paper)."""

STAGED_BYTES = 2.0 * TILE_KEYS * (SCORED + SUMMED) * 2.0
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
    walked = TILE_KEYS * np.ceil(keys / splits / TILE_KEYS)
    summed = numbers["head_clocks"] * np.minimum(heads, BLOCK_HEADS)
    block = numbers["block_clocks"] + summed + walked * pace
    tiles = requests * np.ceil(heads / BLOCK_HEADS) / gpu.sm_count
    blocks = tiles * splits
    waves = np.where(heads > 1.0, np.ceil(blocks), np.maximum(blocks, 1.0))
    clocks = waves * block + (tiles * (most - splits) + splits) * STEP_CLOCKS
    sums_bytes = 2.0 * 4.0 * SUMMED * requests * heads * splits
    memory_s = (moved_bytes + sums_bytes) / gpu.hbm_bytes_per_s
    return np.asarray(START_S + four_norm(clocks / gpu.clock_hz, memory_s), np.float64)


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
    whole = TILE_KEYS * np.ceil(keys / splits / TILE_KEYS)  # tiles of a split
    return np.ceil(keys / whole), float(most)
