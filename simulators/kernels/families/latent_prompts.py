"""Prompts of latent attention by warps that multiply: products, and exponentials beside them.

Where tensor cores are fed from registers (mma.sync), the warps that multiply also take the
exponentials, so a scored pair costs both (`P` padded pairs, as in `fused.py`, of `heads` each):

    pair    = 2 (192 + 128) / (compute peak) + exponentials / (16 a clock, by every SM)
    compute = heads P pair
    block   = 2 tile KV/R pair SMs
    t       = copies + start + ((compute + tail block)^4 + memory^4)^(1/4)

A peak in FLOPs alone would say that an SM which multiplies half as fast takes exponentials half as
fast, too. With 8-bit keys TensorRT-LLM multiplies in 8 bits where a GPU can, and a kernel before
writes queries, keys and values so: 16 bits read and 8 written of 192 + 192 + 128 numbers a head, at
the memory's rate unless L2 holds them. Its launch and rate are read off what prompts of H100, H200,
B200 and GB200 take longer with such keys.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.families.latent_decode import multiplied
from simulators.kernels.tiling import four_norm, lost_of_l2
from simulators.workload.operators import Attention

COPY_S = 3.5e-6
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
    copied_s = lost_of_l2(copied / gpu.l2_bytes) * copied / gpu.hbm_bytes_per_s
    copied_s = copied_s + COPY_S * (dtype != a.dtype)
    busy_s = four_norm(compute_s + numbers["tail"] * longest_s, memory_s)
    return np.asarray(copied_s + numbers["start_s"] + busy_s, np.float64)
