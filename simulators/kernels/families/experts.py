"""Grouped GEMMs of experts: only activated experts read their weights.

Under uniform routing `E (1 - (1 - k/E)^T)` of `E` experts are activated when `T` tokens choose `k`
each. One grouped kernel runs a product per activated expert, priced at the mean number of rows.

Fitted formula of a grouped product of `rows` over `activated` of a GPU's `experts`. `routed` are
the rows of all GPUs that share the experts; kernels sort, skip and sum these rows:

    compute = 2 n k (rows + pad activated) / (compute peak)
    weights = activated n k bytes / (bandwidth b)      moved = rows (k + n) bytes / (traffic b)
    clocks  = activated activated_clocks + experts expert_clocks
    shared  = 2 routed n / (passing b) + clocks / clock
    t       = start + (compute^4 + weights^4)^(1/4) + k step + moved + shared

DeepEP brings tokens sorted by expert, for kernels of their own (`MASKED`: a buffer of equal size
for each expert, `CONTIGUOUS`: one buffer); their passing rows are the received tokens.

Libraries with tiles for few and for many tokens pad `LOW_TILE` of `pad` up to one token per expert,
and read weights `tall` slower beyond. Products of unaligned widths are `unaligned` slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from simulators.catalog.engine import kernel_choices
from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.corrections import corrected
from simulators.kernels.families.family import Entry, OperatorFamily, entry_of, is_timed, seconds_by
from simulators.kernels.levels import on_tensor_cores, sheet_rates
from simulators.kernels.profile import GemmRates, Profile, result_bytes, tile_rates_of
from simulators.kernels.tiling import four_norm, tile_seconds
from simulators.workload.operators import GroupedGemm, active_experts
from simulators.workload.precision import BYTES, precision

MEASURED = ("bf16", "fp8", "fp8_block", "fp4", "w4a8", "w4a16", "mxfp4")
"""Measured formats of experts, by their names as precisions. `mxfp4` has 4-bit weights with shared
exponents that are multiplied in 16 bits; its kernels differ from those of `w4a16`."""

RUN_AS = {"w8a16": "w4a16"}
"""Unmeasured formats and the measured format of the same kernels: Marlin (`fused_marlin_moe` of
vLLM) unpacks 8-bit weights like 4-bit weights, so the constants are equal at twice the bytes."""

BEFORE_HOPPER = {"mxfp4": "w4a16"}
"""Formats that Marlin kernels run on `MARLIN_ARCHITECTURES`, which OpenAI's kernels do not support
(`get_mxfp4_backend` of vLLM). The engine's file lists exceptions."""

MARLIN_ARCHITECTURES = "ampere", "ada"

MARLIN = "marlin"
"""Library whose kernel of `w4a16` also runs `mxfp4`, where a launch asks for it on a newer GPU."""


@dataclass(frozen=True)
class ExpertSizes:
    """Sizes of one grouped product over the experts of a GPU, as columns."""

    tokens: Floats  # tokens that are routed among the experts of all GPUs
    routed: Floats  # rows of all GPUs: tokens times experts per token
    rows: Floats  # rows of this GPU's experts
    activated: Floats  # experts with at least one row
    experts: Floats  # experts of this GPU
    chosen: Floats  # experts of this GPU per token
    width: Floats  # of one expert's shard
    n: Floats
    k: Floats


STORED_AS = {"mxfp4": "w4a16"}
"""Precisions that have the same bytes per number, by format of experts."""

LOW_TILE, VECTOR = 0.25, 16.0
"""Rows of a low tile over rows of a tall tile (16 of 64), and numbers per vectorized load."""


MASKED, CONTIGUOUS = "masked_experts", "contiguous_experts"
"""Kernels of DeepGEMM after DeepEP's exchanges for few and for many tokens."""

TUNED = "tuned_"
"""Prefix of the constants that hold the speedup of tuned tiles."""


def grouped_gemm_seconds(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of a grouped product over the experts of this GPU."""
    if grouped.received is not None and 0.0 < grouped.masked_tokens < np.inf:
        few, many = (
            grouped_gemm_seconds(replace(grouped, masked_tokens=most), gpu, profile)
            for most in (np.inf, 0.0)
        )
        return np.where(np.asarray(grouped.tokens) <= grouped.masked_tokens, few, many)
    _, rates = _rates(grouped, gpu, profile)
    if (entry := entry_for(grouped, gpu, profile)) is not None:
        sizes, dtype = expert_sizes(grouped), _format(grouped)
        seconds = seconds_by(entry, partial(fitted_expert_seconds, sizes, dtype, gpu))
        seconds = seconds - profile.kernel_s  # measurements hold the launch that `price` adds
    elif grouped.has_narrow_weights:
        seconds = four_norm(
            grouped_gemm_flops(grouped) / (rates.compute * gpu.peak(grouped.dtype)),
            grouped_gemm_bytes(grouped) / (rates.bandwidth * gpu.hbm_bytes_per_s),
        )
    else:
        s, tiled = expert_sizes(grouped), tile_rates_of(gpu, rates, grouped.dtype)
        seconds = tile_seconds(s.rows, s.n, s.k, s.activated, rates.tiles, tiled)
    return np.maximum(seconds, EXPERTS.roofline_s(grouped, gpu))


def expert_sizes(grouped: GroupedGemm) -> ExpertSizes:
    """Return the sizes of a grouped product under uniform routing."""
    columns = (grouped.tokens, grouped.experts, grouped.top_k, grouped.n, grouped.k)
    tokens, experts, chosen, n, k = (np.asarray(column, np.float64) for column in columns)
    rows = tokens * chosen
    return ExpertSizes(
        tokens=tokens,
        routed=rows * grouped.ranks if grouped.received is None else np.asarray(grouped.received),
        rows=rows,
        activated=active_experts(grouped),
        experts=experts,
        chosen=chosen,
        width=np.asarray(grouped.width, np.float64),
        n=n,
        k=k,
    )


def fitted_expert_seconds(sizes: ExpertSizes, dtype: str, gpu: Gpu, entry: Entry) -> Floats:
    """Return the seconds of a grouped product by the formula and the trees of an entry."""
    seconds = np.asarray(expert_seconds(sizes, dtype, gpu, entry.numbers), np.float64)
    if entry.correction is None:
        return seconds
    return corrected(entry.correction, expert_features(sizes), seconds)


def expert_seconds(
    sizes: ExpertSizes, dtype: str, gpu: Gpu, numbers: Mapping[str, float]
) -> Floats:
    """Return the seconds of a grouped product by the formula, without trees."""
    rows, activated, n, k = sizes.rows, sizes.activated, sizes.n, sizes.k
    how = precision(STORED_AS.get(dtype, dtype))
    peak = numbers["compute"] * gpu.peak(how.compute)
    rate = peak * tuned_speedup(sizes, numbers)
    pad, slower = _tile(sizes, numbers)
    unaligned = np.where(sizes.width % VECTOR == 0.0, 1.0, numbers.get("unaligned", 1.0))
    compute_s = 2.0 * n * k * (rows + pad * activated) / rate * unaligned
    read_per_s = numbers["bandwidth"] * gpu.hbm_bytes_per_s
    weights_s = activated * n * k * BYTES[how.weights] / read_per_s * slower * unaligned
    moved = rows * (k * BYTES[how.compute] + 2.0 * n)
    moved_s = moved / (numbers["traffic"] * gpu.hbm_bytes_per_s)
    passing_s = 2.0 * sizes.routed * n / (numbers.get("passing", np.inf) * gpu.hbm_bytes_per_s)
    clocks = activated * numbers["activated_clocks"]
    clocks += sizes.experts * numbers.get("expert_clocks", 0.0)
    busy_s = four_norm(compute_s, weights_s) + k * numbers.get("step_s", 0.0)
    return numbers["start_s"] + busy_s + moved_s + passing_s + clocks / gpu.clock_hz


def _tile(sizes: ExpertSizes, numbers: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Return the padding rows per expert, and the slowdown of reading weights."""
    is_low = (sizes.tokens <= sizes.experts) & ("tall" in numbers)
    pad, tall = numbers["pad"], numbers.get("tall", 1.0)
    return np.where(is_low, LOW_TILE * pad, pad), np.where(is_low, 1.0, tall)


def tuned_speedup(sizes: ExpertSizes, numbers: Mapping[str, float]) -> Floats:
    """Return the speedup of products with tuned tiles, which exist for some experts and widths."""
    found = np.ones(np.broadcast_shapes(np.shape(sizes.experts), np.shape(sizes.width)))
    for name, speedup in numbers.items():
        if name.startswith(TUNED):
            experts, width = map(float, name.removeprefix(TUNED).split("_"))
            found = np.where((sizes.experts == experts) & (sizes.width == width), speedup, found)
    return found


def expert_features(sizes: ExpertSizes) -> Floats:
    """Return the features of trees, one per row; no feature falls with more tokens.

    Libraries tune tiles for some layer shapes only, so shapes are features with both signs. They
    use small tiles if there are fewer tokens than experts.
    """
    each = np.broadcast_arrays(*vars(sizes).values())
    tokens, routed, rows, activated, experts, chosen, _, n, k = each
    products = rows, activated, n, k, n * k, rows * n, rows * k
    routing = experts, rows / activated, chosen, tokens / experts, routed, routed * n
    columns = (*products, *routing, -n, -k, -experts, -chosen)
    return np.stack([column.reshape(-1) for column in columns])


def grouped_gemm_flops(grouped: GroupedGemm) -> Floats:
    """Return the FLOPs of a grouped product over all routed rows."""
    return 2.0 * np.asarray(grouped.tokens, np.float64) * grouped.top_k * grouped.n * grouped.k


def grouped_gemm_bytes(grouped: GroupedGemm) -> Floats:
    """Return the bytes of the activated experts' weights and of the tokens in and out."""
    rows = np.asarray(grouped.tokens, np.float64) * grouped.top_k
    weights = active_experts(grouped) * grouped.n * grouped.k
    read = weights * BYTES[grouped.weight_dtype or grouped.dtype]
    read = read + rows * grouped.k * BYTES[grouped.dtype]
    return read + rows * grouped.n * result_bytes(grouped.dtype)


def entry_for(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> Entry | None:
    """Return the entry of the experts' kernel, or None if the format was not measured."""
    name = _format(grouped).replace("fp16", "bf16")
    if name not in (*MEASURED, *RUN_AS):
        return None
    if (received := _received_by(grouped, gpu, profile, name)) is not None:
        return received
    timed = _timed_as(name, gpu, profile)
    found = entry_of(gpu, profile, "experts", stand_in_formats(timed))
    if found is None or timed == name:
        return found
    return replace(found, calibrated=False)


def _received_by(grouped: GroupedGemm, gpu: Gpu, profile: Profile, name: str) -> Entry | None:
    """Return the entry of the kernel of received tokens; None if all are gathered or none fits."""
    if grouped.received is None:
        return None
    return entry_of(gpu, profile, MASKED if grouped.masked_tokens > 0.0 else CONTIGUOUS, (name,))


def is_foreign(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> bool:
    """Return whether experts in this format were timed on no GPU of the architecture."""
    name = _format(grouped).replace("fp16", "bf16")
    return not is_timed(gpu, profile, "experts", stand_in_formats(_timed_as(name, gpu, profile)))


def _timed_as(name: str, gpu: Gpu, profile: Profile) -> str:
    """Return the measured format whose kernels run a format on a GPU."""
    if name in BEFORE_HOPPER and profile.framework == MARLIN:
        return BEFORE_HOPPER[name]
    if name in BEFORE_HOPPER and gpu.architecture in MARLIN_ARCHITECTURES:
        has_own = gpu.architecture in kernel_choices(profile.framework).own_mxfp4_experts
        return name if has_own else BEFORE_HOPPER[name]
    return RUN_AS.get(name, name)


def stand_in_formats(name: str) -> tuple[str, ...]:
    """Return a format of experts, followed by its substitutes."""
    others = {
        "fp8": ("bf16",),
        "fp8_block": ("fp8", "bf16"),
        "w4a16": ("mxfp4",),
        "mxfp4": ("w4a16",),
    }
    return (name, *others.get(name, ()))


def _format(grouped: GroupedGemm) -> str:
    if not grouped.has_narrow_weights:
        blocks = grouped.weight_dtype == "fp8_block"
        return grouped.weight_dtype if blocks else grouped.dtype
    if grouped.dtype == "fp8":
        return "w4a8"
    if grouped.has_widened_weights:
        return "w8a16"
    return "mxfp4" if grouped.weight_dtype == "fp4" else "w4a16"


def _rates(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> tuple[str, GemmRates]:
    """Return interval class and rates of plain products, which price unmeasured experts."""
    if on_tensor_cores(gpu, grouped.dtype):
        return sheet_rates(gpu, profile, grouped.dtype)
    return "bmm", profile.gemm["bmm"]


EXPERTS = OperatorFamily(
    seconds=grouped_gemm_seconds,
    call=lambda grouped, gpu, profile: (0.0, _rates(grouped, gpu, profile)[1].dispatch_s),
    flops=grouped_gemm_flops,
    moved_bytes=grouped_gemm_bytes,
    classes=lambda grouped, gpu, profile: _rates(grouped, gpu, profile)[0],
    entry=entry_for,
)
