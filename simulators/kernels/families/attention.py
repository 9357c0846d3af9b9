"""Fused attention: compute bound in prefill, memory bound in decode.

FlashAttention (Dao et al., 2022): a block keeps a tile of query rows and streams keys and values.
Prefill takes 4 FLOPs per head dimension and scored pair, in blocks of query rows over the SMs.
Decode reads every key and value once per group of query heads; blocks split the keys
(FlashDecoding, 2023) so that a few long requests still fill the GPU, and the query heads of a
group are padded to the height of a matrix instruction.

Fitted formulas over sums of a batch (`Q` new tokens, `P` pairs, `KV` keys, `R` requests, `d` head
size). Prefill:

    padded  = P + tile KV + step Q + tile step R          half a tile is empty along each edge
    compute = heads padded (4 d + softmax) / (compute peak)
    block   = 2 tile KV/R (4 d + softmax) / (compute peak / SMs)       the longest, alone at the end
    t       = start + ((compute + tail block)^4 + memory^4)^(1/4)

or, if the longest blocks run beside all others and not after them,

    t       = start + (compute^4 + (beside block)^4 + memory^4)^(1/4)

Decode: keys that L2 keeps between calls are read faster, every query head of a group scores all
keys, a block has a fixed cost, and the keys of a request are read in order by as many blocks as the
SMs hold (`blocks = R kv_heads`):

    memory  = bytes (lost + (1 - lost) / l2_speed) / (bandwidth b)     lost: of keys in l2_share L2
    compute = heads (KV + lead R) (4 d) / (compute peak)
    chain   = KV / R key_clocks / ((1 + split SMs / blocks) clock)
    t       = start + (memory^4 + compute^4 + chain^4)^(1/4) + blocks block_clocks / (SMs clock)

A mixed launch (prefill chunks and decodes in one kernel, which then splits no keys) is a prefill
whose decodes fill a whole tile with one row (`KVd` keys, `Rd` requests). Its longest block may
belong to either:

    padded  = as above + tile KVd + tile step Rd
    t       = start + ((compute^4 + (tail block)^4) + memory^4)^(1/4)

vLLM's unified Triton kernel runs attention with sinks before Hopper. Its equations are in
`docs/explanation/kernels.md`, "Unified attention with sinks".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from simulators.catalog.engine import kernel_choices
from simulators.catalog.gpu import INSTRUCTION_ROWS, Gpu
from simulators.core.calibration import read_calibration
from simulators.core.folder import once
from simulators.core.jit import Floats
from simulators.evidence.intervals import Band, uniform_band
from simulators.evidence.lookup import CALIBRATIONS
from simulators.kernels.corrections import corrected, interpolated_s
from simulators.kernels.families.family import Entry, OperatorFamily, entry_of, seconds_by
from simulators.kernels.families.latent_attention import (
    triton_latent_seconds,
    triton_prompt_seconds,
    warp_latent_seconds,
    warp_prompt_seconds,
)
from simulators.kernels.profile import AttentionRates, Profile
from simulators.kernels.tiling import four_norm, l2_miss_rate
from simulators.workload.operators import Attention, Column
from simulators.workload.precision import BYTES

LATENT_PREFILL_DIM = (192.0 + 128.0) / 2.0
"""Mean head size of latent prefill: 192 numbers for scores, 128 for sums (DeepSeek-V2, 2024)."""

LATENT_DECODE_DIM = (576.0 + 512.0) / 2.0
"""Mean head size of latent decode: 576 cached numbers for scores, 512 for sums."""


def attention_seconds(attention: Attention, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of fused attention over a batch of requests.

    A mixed batch is one launch if the library has such a kernel, else two consecutive launches.
    """
    if is_unified(attention, gpu, profile.framework):
        return _with_sinks_seconds(attention, gpu, profile)
    if attention.phase == "mixed":
        return _mixed_seconds(attention, gpu, profile)
    entry = _entry(attention, gpu, profile)
    if entry is not None:
        return _without_launch_s(attention, gpu, profile, entry)
    rates = profile.attention
    memory_s = attention_bytes(attention) / (rates.bandwidth * gpu.hbm_bytes_per_s)
    if attention.phase == "decode":
        compute_s = _decode_compute_s(attention, gpu, rates)
    else:
        compute_s = _prefill_compute_s(attention, gpu, rates)
    return np.maximum(four_norm(compute_s, memory_s), ATTENTION.roofline_s(attention, gpu))


def _with_sinks_seconds(attention: Attention, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of attention with sinks, at least the time without sinks."""
    without = replace(attention, sinks=False)
    if attention.phase == "mixed":
        chunks, decodes = split_phases(without)
        chunks_s = np.maximum(attention_seconds(chunks, gpu, profile), unified_seconds(chunks, gpu))
        some_chunks = np.asarray(chunks.query_tokens, np.float64) > 0.0
        return attention_seconds(decodes, gpu, profile) + np.where(some_chunks, chunks_s, 0.0)
    seconds = attention_seconds(without, gpu, profile)
    if attention.phase == "decode":
        return seconds
    return np.maximum(seconds, unified_seconds(attention, gpu))


def _mixed_seconds(attention: Attention, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of a mixed batch; without chunks, of the decode kernel."""
    chunks, decodes = split_phases(attention)
    decodes_s = attention_seconds(decodes, gpu, profile)
    some_chunks = np.asarray(chunks.query_tokens, np.float64) > 0.0
    entry = _entry(attention, gpu, profile)
    if entry is not None:
        together_s = _without_launch_s(attention, gpu, profile, entry)
        return np.where(some_chunks, np.maximum(together_s, decodes_s), decodes_s)
    chunks_s = attention_seconds(chunks, gpu, profile)
    some_decodes = np.asarray(decodes.query_tokens, np.float64) > 0.0
    both_s = chunks_s + profile.kernel_s + decodes_s
    return np.where(some_chunks & some_decodes, both_s, np.where(some_chunks, chunks_s, decodes_s))


def _without_launch_s(attention: Attention, gpu: Gpu, profile: Profile, entry: Entry) -> Floats:
    """Return fitted seconds without the launch, which measurements include and `price` adds."""
    alone_s = seconds_by(entry, partial(fitted_seconds, attention, gpu)) - profile.kernel_s
    return np.maximum(alone_s, ATTENTION.roofline_s(attention, gpu))


def fitted_seconds(attention: Attention, gpu: Gpu, entry: Entry) -> Floats:
    """Return the seconds of a launch: from the grid of its entry, or from formula and trees."""
    if entry.grid is not None:
        return interpolated_s(
            entry.grid, attention, lambda a, numbers: form_seconds(a, gpu, numbers)
        )
    seconds = form_seconds(attention, gpu, entry.numbers)
    if entry.correction is None:
        return seconds
    features_of = mixed_features if attention.phase == "mixed" else attention_features
    return corrected(entry.correction, features_of(attention, seconds.shape), seconds)


def form_seconds(attention: Attention, gpu: Gpu, numbers: Numbers) -> Floats:
    """Return the seconds of one launch by the formula, without grid or trees."""
    named = (form for number, form in FORM_WITH.items() if number in numbers)
    form = next(named, FORM_OF[attention.phase])
    return np.asarray(form(attention, gpu, numbers, attention_bytes(attention)), np.float64)


def split_phases(attention: Attention) -> tuple[Attention, Attention]:
    """Return the chunks and the decodes of a mixed batch as two launches."""
    chunks, chunk_keys, decodes, decode_keys = split_sums(attention)
    queries, pairs, _, _ = sums(attention)

    def part(phase: str, requests: Floats, new: Floats, pairs: Floats, keys: Floats) -> Attention:
        load: dict[str, Any] = {"requests": requests, "query_tokens": new}
        load |= {"pairs": pairs, "kv_tokens": keys}
        return replace(attention, phase=phase, decodes=0.0, decode_kv_tokens=0.0, **load)

    prefill = part("prefill", chunks, queries - decodes, pairs - decode_keys, chunk_keys)
    return prefill, part("decode", decodes, decodes, decode_keys, decode_keys)


def kernel_of(attention: Attention) -> str:
    """Return the name of the kernel; latent attention and lists of keys have separate kernels.

    Those of lists of latents are named by the numbers of a key: 576 (DeepSeek-V3.2, GLM-5), 512
    (DeepSeek-V4). Lists of blocks (MiniMax-M3) have a kernel per phase.
    """
    if attention.listed and not attention.latent:
        return f"{LISTED}_blocks_{attention.phase}"
    if attention.listed:
        return f"{LISTED}_{2.0 * attention.kv_heads * attention.head_dim:.0f}"
    return f"mla_{attention.phase}" if attention.latent else attention.phase


def attention_flops(attention: Attention) -> Floats:
    """Return the FLOPs of scores and weighted sums: 4 per pair, head and head dimension."""
    pairs = np.asarray(attention.pairs, np.float64)
    return 4.0 * pairs * attention.heads * attention.head_dim


def padded_flops(attention: Attention) -> Floats:
    """Return the FLOPs with decode's query heads padded to a matrix instruction."""
    group = attention.heads / attention.kv_heads
    rows = np.ceil(group / INSTRUCTION_ROWS) * INSTRUCTION_ROWS
    return attention_flops(attention) * (rows / group if attention.phase == "decode" else 1.0)


def attention_bytes(attention: Attention) -> Floats:
    """Return the bytes of queries, keys, values and results, each moved once."""
    queries = np.asarray(attention.query_tokens, np.float64) * attention.heads
    kept = np.asarray(attention.kv_tokens, np.float64)
    if attention.listed:  # lists of queries share keys
        kept = np.minimum(kept, attention.context_tokens)
    keys = kept * attention.kv_heads
    moved = queries * BYTES[attention.dtype] + keys * BYTES[attention.kv_dtype]
    return np.asarray(2.0 * attention.head_dim * moved, np.float64)


def _prefill_compute_s(attention: Attention, gpu: Gpu, rates: AttentionRates) -> Floats:
    """Return the seconds of unmeasured prefill: blocks spread over SMs, plus the longest block."""
    queries = np.maximum(np.asarray(attention.query_tokens, np.float64), 1.0)
    requests = np.maximum(np.asarray(attention.requests, np.float64), 1.0)
    pairs = np.asarray(attention.pairs, np.float64)
    rate = rates.prefill_compute * gpu.peak(attention.dtype)
    # A request's last tile is half empty on average: half a tile of rows is added to each.
    padding = 1.0 + 0.5 * (rates.query_tile - 1.0) * requests / queries
    spread_s = padding * attention_flops(attention) / rate
    keys = pairs / queries
    block_s = 4.0 * rates.query_tile * keys * attention.head_dim / (rate / gpu.sm_count)
    return spread_s + block_s


def _decode_compute_s(attention: Attention, gpu: Gpu, rates: AttentionRates) -> Floats:
    """Return the seconds of unmeasured decode: padded products, plus loading one block's keys."""
    kv = np.asarray(attention.kv_tokens, np.float64)
    group = np.ceil(attention.heads / attention.kv_heads / rates.group_tile) * rates.group_tile
    flops = 4.0 * attention.kv_heads * group * attention.head_dim * kv
    block_bytes = 2.0 * rates.kv_tile * attention.head_dim * BYTES[attention.kv_dtype]
    block_s = block_bytes / (rates.load_bytes_per_clock * gpu.clock_hz)
    streamed_s: Floats = flops / (rates.decode_compute * gpu.peak(attention.dtype))
    return streamed_s + block_s


def _entry(attention: Attention, gpu: Gpu, profile: Profile) -> Entry | None:
    """Return the entry of the kernel, or None: only 16- and 8-bit attention was measured."""
    if BYTES[attention.dtype] > BYTES["bf16"]:
        return None
    dtype = "bf16" if BYTES[attention.dtype] == BYTES["bf16"] else "fp8"
    kv = "bf16" if BYTES[attention.kv_dtype] >= BYTES["bf16"] else "fp8"
    formats = stand_in_formats(dtype, kv)
    if attention.listed:  # lists in another key format are closer than no lists
        formats = (*formats, "bf16_fp8")
    found = entry_of(gpu, profile, kernel_of(attention), formats)
    if found is None and attention.listed and not attention.latent and attention.phase == "mixed":
        return None  # prompts and decodes have separate kernels
    if found is None and attention.listed:
        return _entry(replace(attention, listed=False, context_tokens=0.0), gpu, profile)
    if found is None or not is_unified(attention, gpu, profile.framework):
        return found
    return replace(found, calibrated=False, band=unified_band())


def stand_in_formats(dtype: str, kv_dtype: str) -> tuple[str, ...]:
    """Return the formats of arithmetic and cache, followed by their substitutes.

    >>> stand_in_formats("fp8", "fp8")
    ('fp8_fp8', 'bf16_fp8', 'bf16_bf16')
    """
    return tuple(dict.fromkeys((f"{dtype}_{kv_dtype}", f"bf16_{kv_dtype}", "bf16_bf16")))


Numbers = Mapping[str, float]


EXPONENTIALS = 16
"""Exponentials per SM and clock on every fitted GPU; Blackwell Ultra has twice as many."""


def prefill_seconds(a: Attention, gpu: Gpu, numbers: Numbers, moved_bytes: Floats) -> Floats:
    """Return the uncorrected seconds of prefill chunks."""
    queries, pairs, keys, requests = sums(a)
    if a.listed:  # a kernel without lists reads every key of a request once
        keys = np.minimum(keys, np.asarray(a.context_tokens, np.float64))
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
    """Return the uncorrected seconds of a mixed launch."""
    queries, pairs, keys, _ = sums(a)
    chunks, chunk_keys, decodes, decode_keys = split_sums(a)
    per_pair = a.heads * (4.0 * a.head_dim + softmax_flops(gpu, numbers))
    rate = numbers["compute"] * gpu.peak(a.dtype)
    tile, step = numbers["tile"], numbers["step"]
    padded = pairs + tile * keys + step * queries + tile * step * (chunks + decodes)
    padded = padded + tile * decode_keys + tile * step * decodes
    past, seen = chunk_keys / np.maximum(chunks, 1.0), decode_keys / np.maximum(decodes, 1.0)
    most_keys = np.maximum(past, seen)
    longest_s = 2.0 * tile * most_keys * per_pair / a.heads / (rate / gpu.sm_count)
    memory_s = moved_bytes / (numbers["bandwidth"] * gpu.hbm_bytes_per_s)
    busy_s = four_norm(padded * per_pair / rate, numbers["tail"] * longest_s, memory_s)
    return np.asarray(numbers["start_s"] + busy_s, np.float64)


def softmax_flops(gpu: Gpu, numbers: Numbers) -> float:
    """Return the FLOPs that take as long as the exponential of a scored pair."""
    return numbers["softmax"] * EXPONENTIALS / gpu.exponentials_per_clock


def decode_seconds(a: Attention, gpu: Gpu, numbers: Numbers, moved_bytes: Floats) -> Floats:
    """Return the uncorrected seconds of a decode step."""
    _, _, keys, requests = sums(a)
    kept = 2.0 * keys * a.kv_heads * a.head_dim * BYTES[a.kv_dtype]
    lost = l2_miss_rate(kept / (numbers["l2_share"] * gpu.l2_bytes))
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


EMPTY_ROWS = 128.0
"""Query rows of a tile of kernels that launch blocks without work."""


def listed_seconds(
    a: Attention,
    gpu: Gpu,
    numbers: Numbers,
    moved_bytes: Floats,  # noqa: ARG001 - gathered keys come from L2
) -> Floats:
    """Return the uncorrected seconds of queries with lists of keys, each on `shared` SMs.

    Kernels of several queries per request first collect what a request needs. Lists of blocks are
    gathered query by query, for at least `group_rows` query heads of each key head; every request
    has a block for each tile of the batch's query rows, whether or not these are its own.
    """
    queries, pairs, keys, requests = sums(a)
    heads = np.asarray(a.heads, np.float64)
    if not a.latent:
        keys, heads = pairs, np.maximum(heads, a.kv_heads * numbers["group_rows"])
    rate = numbers["compute"] * gpu.peak(a.dtype)
    compute_s = 4.0 * a.head_dim * heads * pairs / rate
    one_s = compute_s / np.maximum(queries, 1.0) * gpu.sm_count / numbers["shared"]
    gathered = 2.0 * a.kv_heads * a.head_dim * BYTES[a.kv_dtype] * keys
    gathered_s = gathered / (numbers["list_speed"] * gpu.hbm_bytes_per_s)
    chunks = np.where(queries > requests, requests, 0.0)
    collected_s = chunks * numbers["request_clocks"] / gpu.clock_hz
    if "empty_clocks" in numbers:
        launched = requests * queries * a.heads / EMPTY_ROWS / gpu.sm_count
        collected_s = collected_s + launched * numbers["empty_clocks"] / gpu.clock_hz
    seconds = numbers["start_s"] + four_norm(compute_s, one_s) + gathered_s + collected_s
    return np.asarray(seconds, np.float64)


def sums(a: Attention) -> tuple[Floats, Floats, Floats, Floats]:
    """Return queries, pairs, keys and requests of a batch; requests are at least 1."""
    queries, pairs, keys, requests = _floats(a.query_tokens, a.pairs, a.kv_tokens, a.requests)
    return queries, pairs, keys, np.maximum(requests, 1.0)


def split_sums(a: Attention) -> tuple[Floats, Floats, Floats, Floats]:
    """Return chunks, keys of chunks, decodes and keys of decodes of a mixed launch."""
    columns = _floats(a.requests, a.kv_tokens, a.decodes, a.decode_kv_tokens)
    requests, keys, decodes, decode_keys = columns
    return requests - decodes, keys - decode_keys, decodes, decode_keys


def mixed_features(a: Attention, shape: tuple[int, ...]) -> Floats:
    """Return the features of trees for mixed launches; no feature falls when a batch grows."""
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
    """Return the features of trees, one per row; no feature falls when a batch grows.

    Libraries choose a kernel by the geometry of the heads, so geometry and window are features with
    both signs. Times are monotone in requests and tokens only.
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


UNIFIED_CALIBRATION = CALIBRATIONS / "triton" / "unified.toml"

UNIFIED_TILE_KEYS = 32.0


def is_unified(attention: Attention, gpu: Gpu, framework: str) -> bool:
    """Return whether an engine runs attention with sinks by the unified kernel on a GPU."""
    return attention.sinks and gpu.architecture in kernel_choices(framework).unified_attention


def unified_seconds(a: Attention, gpu: Gpu, numbers: Mapping[str, float] | None = None) -> Floats:
    """Return the seconds of prefill by the unified kernel, with fitted or given constants."""
    found = numbers or once(read_calibration, UNIFIED_CALIBRATION)["numbers"]
    group = np.asarray(a.heads, np.float64) / a.kv_heads
    rows = np.maximum(INSTRUCTION_ROWS, 2.0 ** np.ceil(np.log2(group)))
    together = np.floor(rows / group)  # queries
    width = 2.0 ** np.ceil(np.log2(a.head_dim)) * rows / INSTRUCTION_ROWS
    blocks = np.asarray(a.query_tokens, np.float64) * a.kv_heads / together
    keys = np.asarray(a.pairs, np.float64) * a.kv_heads / together
    steps = keys / UNIFIED_TILE_KEYS + blocks / 2.0
    clocks = width * (found["number_clocks"] * steps + found["block_clocks"] * blocks)
    return np.asarray(found["start_s"] + clocks / (gpu.sm_count * gpu.clock_hz), np.float64)


def unified_band() -> Band:
    """Return the prediction interval of GPUs that were held out of the fit."""
    ends = once(read_calibration, UNIFIED_CALIBRATION)["ends"]
    return uniform_band(float(ends["lo"]), float(ends["hi"]))


LISTED = "sparse"
"""Kernels of attention to lists of keys, by the first word of their names."""

FORM_OF = {"prefill": prefill_seconds, "decode": decode_seconds, "mixed": mixed_seconds}
FORM_WITH = {
    "gap_clocks": warp_latent_seconds,
    "exponentials": warp_prompt_seconds,
    "lone_clocks": triton_latent_seconds,
    "wait_clocks": triton_prompt_seconds,
    "list_speed": listed_seconds,
}
"""Formulas of one library's kernels, by a constant that no other formula has."""

ATTENTION = OperatorFamily(
    seconds=attention_seconds,
    call=lambda _attention, _gpu, profile: (0.0, profile.attention.dispatch_s),
    flops=attention_flops,
    moved_bytes=attention_bytes,
    classes=lambda _attention, _gpu, _profile: "attention",
    entry=_entry,
)
