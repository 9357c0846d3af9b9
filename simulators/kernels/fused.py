"""Fused kernels by framework: a form with a few fitted numbers, and trees that bend it.

Numbers belong to one GPU, one framework and one kernel of it. A GPU nobody measured borrows those
of the nearest one (same architecture, else the vendor's newest before it), and its data sheet says
the rest.

Prefill, over sums of a batch (`Q` new tokens, `P` pairs, `KV` keys, `R` requests, `d` head size):

    padded  = P + tile KV + step Q + tile step R          half a tile is empty along each edge
    compute = heads padded (4 d + softmax) / (compute peak)
    block   = 2 tile KV/R (4 d + softmax) / (compute peak / SMs)       the longest, alone at the end
    t       = start + ((compute + tail block)^4 + memory^4)^(1/4)

Decode; every query head of a group scores all keys, and a block has a fixed cost:

    compute = heads (KV + lead R) (4 d) / (compute peak)
    blocks  = R kv_heads block_clocks / (SMs clock)
    t       = start + (memory^4 + compute^4)^(1/4) + blocks

Experts, for one grouped product of `rows` over `awake` experts:

    compute = 2 n k (rows + pad awake) / (compute peak)
    weights = awake n k bytes / (bandwidth b)      moved = rows (k + n) bytes / (traffic b)
    t       = start + (compute^4 + weights^4)^(1/4) + moved
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.tiling import four_norm
from simulators.workload.operators import BYTES, Attention

Floats = NDArray[np.float64]
Numbers = Mapping[str, float]
ExpertSizes = tuple[Floats, Floats, Floats, Floats]  # routed rows, awake experts, n, k

PREFILL = {
    "start_s": 5e-6, "compute": 0.6, "bandwidth": 0.7, "tile": 64.0, "step": 32.0,
    "softmax": 64.0, "tail": 0.5,
}  # fmt: skip
"""Where a fit begins: tiles of 128 queries by 64 keys, and an exponential's worth of 64 FLOPs."""

DECODE = {"start_s": 5e-6, "compute": 0.2, "bandwidth": 0.8, "lead": 64.0, "block_clocks": 500.0}
"""Where a fit begins: query heads padded to a matrix instruction leave a fifth of the peak."""

EXPERTS = {
    "start_s": 5e-6, "compute": 0.6, "bandwidth": 0.8, "traffic": 0.3, "pad": 32.0,
    "awake_clocks": 50.0,
}  # fmt: skip
"""Where a fit begins: half a tile of 64 rows is empty in each expert."""

FORMS = {"prefill": PREFILL, "decode": DECODE, "experts": EXPERTS}
PARTS = ("compute", "bandwidth", "traffic")
"""Numbers that are parts of a data sheet's rate: at most one."""


def prefill_seconds(a: Attention, gpu: Gpu, numbers: Numbers, moved_bytes: Floats) -> Floats:
    """Return the uncorrected seconds of prompt chunks."""
    queries, pairs, keys, requests = sums(a)
    per_pair = a.heads * (4.0 * a.head_dim + numbers["softmax"])
    rate = numbers["compute"] * gpu.peak(a.dtype)
    tile, step = numbers["tile"], numbers["step"]
    padded = pairs + tile * keys + step * queries + tile * step * requests
    longest = 2.0 * tile * keys / requests * per_pair / a.heads
    compute_s = padded * per_pair / rate + numbers["tail"] * longest / (rate / gpu.sm_count)
    memory_s = moved_bytes / (numbers["bandwidth"] * gpu.hbm_bytes_per_s)
    return np.asarray(numbers["start_s"] + four_norm(compute_s, memory_s), np.float64)


def decode_seconds(a: Attention, gpu: Gpu, numbers: Numbers, moved_bytes: Floats) -> Floats:
    """Return the uncorrected seconds of single new tokens."""
    _, _, keys, requests = sums(a)
    memory_s = moved_bytes / (numbers["bandwidth"] * gpu.hbm_bytes_per_s)
    scored = a.heads * (keys + numbers["lead"] * requests)
    compute_s = 4.0 * a.head_dim * scored / (numbers["compute"] * gpu.peak(a.dtype))
    blocks = requests * np.maximum(a.kv_heads, 1.0)
    blocks_s = blocks * numbers["block_clocks"] / (gpu.sm_count * gpu.clock_hz)
    return np.asarray(numbers["start_s"] + four_norm(memory_s, compute_s) + blocks_s, np.float64)


def expert_seconds(sizes: ExpertSizes, dtype: str, gpu: Gpu, numbers: Numbers) -> Floats:
    """Return the uncorrected seconds of one grouped product: rows, awake experts, n, k."""
    rows, awake, n, k = sizes
    width = BYTES[dtype]
    compute_s = (
        2.0 * n * k * (rows + numbers["pad"] * awake) / (numbers["compute"] * gpu.peak(dtype))
    )
    weights_s = awake * n * k * width / (numbers["bandwidth"] * gpu.hbm_bytes_per_s)
    moved_s = rows * (k * width + 2.0 * n) / (numbers["traffic"] * gpu.hbm_bytes_per_s)
    awake_s = awake * numbers["awake_clocks"] / gpu.clock_hz
    return numbers["start_s"] + four_norm(compute_s, weights_s) + moved_s + awake_s


def sums(a: Attention) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the batch's queries, pairs, keys and requests, of which there is at least one."""
    queries, pairs, keys, requests = (
        np.asarray(column, np.float64)
        for column in (a.query_tokens, a.pairs, a.kv_tokens, a.requests)
    )
    return queries, pairs, keys, np.maximum(requests, 1.0)


def attention_features(a: Attention, shape: tuple[int, ...]) -> Floats:
    """Return what trees look at, one row per feature; none falls when a batch grows.

    Libraries choose a kernel by the geometry of the heads, whose times rise and fall with it; so
    the geometry is let bend both ways, and the laws are those of requests and tokens.
    """
    queries, pairs, keys, requests = sums(a)
    group = np.asarray(a.heads, np.float64) / np.asarray(a.kv_heads, np.float64)
    columns = (
        np.asarray(a.heads, np.float64),
        np.asarray(a.kv_heads, np.float64),
        np.asarray(a.head_dim, np.float64),
        requests,
        queries / requests,
        keys / requests,
        pairs / np.maximum(queries, 1.0),
        requests * a.heads,
        requests * a.kv_heads,
        queries * a.heads,
        keys * a.kv_heads * a.head_dim,
        group,
        -group,
        -np.asarray(a.kv_heads, np.float64),
        -np.asarray(a.head_dim, np.float64),
    )
    return np.stack([np.broadcast_to(column, shape).reshape(-1) for column in columns])


def expert_features(sizes: ExpertSizes, experts: float | Floats) -> Floats:
    """Return what trees look at, one row per feature; none falls when a size grows."""
    rows, awake, n, k = np.broadcast_arrays(*sizes)
    columns = (rows, awake, n, k, n * k, rows * n, rows * k, np.broadcast_to(experts, rows.shape))
    return np.stack([column.reshape(-1) for column in columns])
