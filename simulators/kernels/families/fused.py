"""Forms of fused attention and expert kernels: a few fitted numbers, and what trees look at.

Prefill, over sums of a batch (`Q` new tokens, `P` pairs, `KV` keys, `R` requests, `d` head size):

    padded  = P + tile KV + step Q + tile step R          half a tile is empty along each edge
    compute = heads padded (4 d + softmax) / (compute peak)
    block   = 2 tile KV/R (4 d + softmax) / (compute peak / SMs)       the longest, alone at the end
    t       = start + ((compute + tail block)^4 + memory^4)^(1/4)

or, where the longest blocks run beside all others and not after them,

    t       = start + (compute^4 + (beside block)^4 + memory^4)^(1/4)

Decode; keys that L2 holds from one call to the next are read faster, every query head of a group
scores all keys, a block has a fixed cost, and the keys of one are walked in order, by as many
blocks as SMs can hold beside few pairs of request and key head (`blocks = R kv_heads`):

    memory  = bytes (lost + (1 - lost) / l2_speed) / (bandwidth b)     lost: of keys in l2_share L2
    compute = heads (KV + lead R) (4 d) / (compute peak)
    chain   = KV / R key_clocks / ((1 + split SMs / blocks) clock)
    t       = start + (memory^4 + compute^4 + chain^4)^(1/4) + blocks block_clocks / (SMs clock)

A mixed launch (chunks and decodes in one kernel, which then splits no keys) is a prefill whose
decodes fill a whole tile with one row (`KVd` keys, `Rd` requests), and whose longest block may be
either's:

    padded  = as above + tile KVd + tile step Rd
    t       = start + ((compute^4 + (tail block)^4) + memory^4)^(1/4)

Experts, for one grouped product of `rows` over `activated` of a GPU's `experts`; `routed` are
the rows of all GPUs that share the experts; kernels sort, skip and sum these rows:

    compute = 2 n k (rows + pad activated) / (compute peak)
    weights = activated n k bytes / (bandwidth b)      moved = rows (k + n) bytes / (traffic b)
    clocks  = activated activated_clocks + experts expert_clocks
    shared  = 2 routed n / (passing b) + clocks / clock
    t       = start + (compute^4 + weights^4)^(1/4) + k step + moved + shared

Libraries with tiles for few and for many tokens pad `LOW_TILE` of `pad` up to a token an expert and
read weights `tall` slower beyond; both products take `unaligned` longer in layers of odd widths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.tiling import four_norm, lost_of_l2
from simulators.workload.operators import Attention, Column
from simulators.workload.precision import BYTES, precision

Numbers = Mapping[str, float]


@dataclass(frozen=True)
class ExpertSizes:
    """One product over the experts of a GPU, as columns."""

    tokens: Floats  # that choose among the experts of all GPUs
    routed: Floats  # rows of all GPUs: so many experts were chosen in all
    rows: Floats  # of this GPU's experts
    activated: Floats  # experts with a row at least
    experts: Floats  # of this GPU, activated or not
    chosen: Floats  # of them, by a token
    width: Floats  # of one, as cut
    n: Floats
    k: Floats


STORED_AS = {"mxfp4": "w4a16"}
"""Formats of experts that are precisions by another name: what a number takes is the same."""

LOW_TILE, VECTOR = 0.25, 16.0
"""Rows of a low tile over those of a tall one, 16 of 64; and numbers that a wide load takes."""

EXPONENTIALS = 16
"""Of an SM in a clock, on every GPU that a form was fitted to; Blackwell Ultra has twice that."""

TUNED = "tuned_"
"""How numbers begin that say how much faster tuned tiles are."""


def prefill_seconds(a: Attention, gpu: Gpu, numbers: Numbers, moved_bytes: Floats) -> Floats:
    """Return the uncorrected seconds of prompt chunks."""
    queries, pairs, keys, requests = sums(a)
    per_pair = a.heads * (4.0 * a.head_dim + softmax_flops(gpu, numbers))
    rate = numbers["compute"] * gpu.peak(a.dtype)
    tile, step = numbers["tile"], numbers["step"]
    padded = pairs + tile * keys + step * queries + tile * step * requests
    longest = 2.0 * tile * keys / requests * per_pair / a.heads
    compute_s, longest_s = padded * per_pair / rate, longest / (rate / gpu.sm_count)
    memory_s = moved_bytes / (numbers["bandwidth"] * gpu.hbm_bytes_per_s)
    if "beside" in numbers:
        busy_s = four_norm(compute_s, numbers["beside"] * longest_s, memory_s)
    else:
        busy_s = four_norm(compute_s + numbers["tail"] * longest_s, memory_s)
    return np.asarray(numbers["start_s"] + busy_s, np.float64)


def mixed_seconds(a: Attention, gpu: Gpu, numbers: Numbers, moved_bytes: Floats) -> Floats:
    """Return the uncorrected seconds of one launch over prompt chunks and single new tokens."""
    queries, pairs, keys, _ = sums(a)
    chunks, chunk_keys, decodes, decode_keys = split_sums(a)
    per_pair = a.heads * (4.0 * a.head_dim + softmax_flops(gpu, numbers))
    rate = numbers["compute"] * gpu.peak(a.dtype)
    tile, step = numbers["tile"], numbers["step"]
    padded = pairs + tile * keys + step * queries + tile * step * (chunks + decodes)
    padded = padded + tile * decode_keys + tile * step * decodes
    most_keys = np.maximum(
        chunk_keys / np.maximum(chunks, 1.0), decode_keys / np.maximum(decodes, 1.0)
    )
    longest_s = 2.0 * tile * most_keys * per_pair / a.heads / (rate / gpu.sm_count)
    memory_s = moved_bytes / (numbers["bandwidth"] * gpu.hbm_bytes_per_s)
    busy_s = four_norm(padded * per_pair / rate, numbers["tail"] * longest_s, memory_s)
    return np.asarray(numbers["start_s"] + busy_s, np.float64)


def softmax_flops(gpu: Gpu, numbers: Numbers) -> float:
    """Return the FLOPs that the exponential of a scored pair is worth on a GPU's special units."""
    return numbers["softmax"] * EXPONENTIALS / gpu.exponentials_per_clock


def decode_seconds(a: Attention, gpu: Gpu, numbers: Numbers, moved_bytes: Floats) -> Floats:
    """Return the uncorrected seconds of single new tokens."""
    _, _, keys, requests = sums(a)
    kept = 2.0 * keys * a.kv_heads * a.head_dim * BYTES[a.kv_dtype]
    lost = lost_of_l2(kept / (numbers["l2_share"] * gpu.l2_bytes))
    slowed = lost + (1.0 - lost) / numbers["l2_speed"]
    memory_s = moved_bytes * slowed / (numbers["bandwidth"] * gpu.hbm_bytes_per_s)
    scored = a.heads * (keys + numbers["lead"] * requests)
    compute_s = 4.0 * a.head_dim * scored / (numbers["compute"] * gpu.peak(a.dtype))
    blocks = requests * np.maximum(a.kv_heads, 1.0)
    splits = 1.0 + numbers["split"] * gpu.sm_count / blocks
    chain_s = keys / requests * numbers["key_clocks"] / (splits * gpu.clock_hz)
    blocks_s = blocks * numbers["block_clocks"] / (gpu.sm_count * gpu.clock_hz)
    busy_s = four_norm(memory_s, compute_s, chain_s)
    return np.asarray(numbers["start_s"] + busy_s + blocks_s, np.float64)


def expert_seconds(sizes: ExpertSizes, dtype: str, gpu: Gpu, numbers: Numbers) -> Floats:
    """Return the uncorrected seconds of one grouped product."""
    rows, activated, n, k = sizes.rows, sizes.activated, sizes.n, sizes.k
    how = precision(STORED_AS.get(dtype, dtype))
    peak = numbers["compute"] * gpu.peak(how.compute)
    rate = peak * tuned_speedup(sizes, numbers)
    pad, slower = _tile(sizes, numbers)
    unaligned = np.where(sizes.width % VECTOR == 0.0, 1.0, numbers.get("unaligned", 1.0))
    compute_s = 2.0 * n * k * (rows + pad * activated) / rate * unaligned
    weights_s = (
        activated * n * k * BYTES[how.weights] / (numbers["bandwidth"] * gpu.hbm_bytes_per_s)
    )
    weights_s = weights_s * slower * unaligned
    moved = rows * (k * BYTES[how.compute] + 2.0 * n)
    moved_s = moved / (numbers["traffic"] * gpu.hbm_bytes_per_s)
    passing_s = 2.0 * sizes.routed * n / (numbers["passing"] * gpu.hbm_bytes_per_s)
    clocks = activated * numbers["activated_clocks"] + sizes.experts * numbers["expert_clocks"]
    busy_s = four_norm(compute_s, weights_s) + k * numbers["step_s"]
    return numbers["start_s"] + busy_s + moved_s + passing_s + clocks / gpu.clock_hz


def _tile(sizes: ExpertSizes, numbers: Numbers) -> tuple[Floats, Floats]:
    """Return the rows an expert's tiles leave empty, and how much slower they read weights."""
    is_low = (sizes.tokens <= sizes.experts) & ("tall" in numbers)
    pad, tall = numbers["pad"], numbers.get("tall", 1.0)
    return np.where(is_low, LOW_TILE * pad, pad), np.where(is_low, 1.0, tall)


def tuned_speedup(sizes: ExpertSizes, numbers: Numbers) -> Floats:
    """Return how much faster products run whose tiles a library has tuned, by experts and width."""
    found = np.ones(np.broadcast_shapes(np.shape(sizes.experts), np.shape(sizes.width)))
    for name, speedup in numbers.items():
        if name.startswith(TUNED):
            experts, width = map(float, name.removeprefix(TUNED).split("_"))
            found = np.where((sizes.experts == experts) & (sizes.width == width), speedup, found)
    return found


def sums(a: Attention) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the batch's queries, pairs, keys and requests, of which there is at least one."""
    queries, pairs, keys, requests = _floats(a.query_tokens, a.pairs, a.kv_tokens, a.requests)
    return queries, pairs, keys, np.maximum(requests, 1.0)


def split_sums(a: Attention) -> tuple[Floats, Floats, Floats, Floats]:
    """Return chunks and their keys, decodes and theirs, of a mixed launch."""
    columns = _floats(a.requests, a.kv_tokens, a.decodes, a.decode_kv_tokens)
    requests, keys, decodes, decode_keys = columns
    return requests - decodes, keys - decode_keys, decodes, decode_keys


def mixed_features(a: Attention, shape: tuple[int, ...]) -> Floats:
    """Return what trees look at in a mixed launch; none falls when a batch grows."""
    chunks, chunk_keys, decodes, decode_keys = split_sums(a)
    queries, pairs, _, _ = sums(a)
    heads, kv_heads, head_dim, _ = _geometry(a)
    past = chunk_keys / np.maximum(chunks, 1.0)
    seen = decode_keys / np.maximum(decodes, 1.0)
    new = queries - decodes
    geometry = heads, kv_heads, head_dim
    load = new, past, decodes, seen, np.maximum(past, seen)
    work = new * heads, decodes * heads, decode_keys * heads, (pairs - decode_keys) * heads
    return _rows((*geometry, *load, *work, -kv_heads), shape)


def attention_features(a: Attention, shape: tuple[int, ...]) -> Floats:
    """Return the features of trees, one row each; no feature falls when a batch grows.

    Libraries choose a kernel by the geometry of the heads, whose times rise and fall with it; so
    the geometry is let bend both ways, and the laws are those of requests and tokens. A window is
    part of the geometry.
    """
    queries, pairs, keys, requests = sums(a)
    heads, kv_heads, head_dim, window = _geometry(a)
    group = heads / kv_heads
    geometry = heads, kv_heads, head_dim
    per_request = queries / requests, keys / requests, pairs / np.maximum(queries, 1.0)
    blocks = requests * heads, requests * kv_heads
    work = queries * heads, keys * kv_heads * head_dim
    signed = group, -group, -kv_heads, -head_dim, window, -window
    return _rows((*geometry, requests, *per_request, *blocks, *work, *signed), shape)


def _geometry(a: Attention) -> tuple[Floats, ...]:
    return _floats(a.heads, a.kv_heads, a.head_dim, a.window)


def _floats(*columns: Column) -> tuple[Floats, ...]:
    return tuple(np.asarray(column, np.float64) for column in columns)


def _rows(columns: tuple[Floats, ...], shape: tuple[int, ...]) -> Floats:
    return np.stack([np.broadcast_to(column, shape).reshape(-1) for column in columns])


def expert_features(sizes: ExpertSizes) -> Floats:
    """Return the features of trees, one row each; no feature falls with more tokens.

    Libraries tune tiles for some shapes of layers and not for others: the shape is let bend both
    ways. They take small tiles where there are fewer tokens than experts.
    """
    tokens, routed, rows, activated, experts, chosen, _, n, k = np.broadcast_arrays(
        *vars(sizes).values()
    )
    products = rows, activated, n, k, n * k, rows * n, rows * k
    routing = experts, rows / activated, chosen, tokens / experts, routed, routed * n
    columns = (*products, *routing, -n, -k, -experts, -chosen)
    return np.stack([column.reshape(-1) for column in columns])
