"""Experts share tokens: few tokens wake few experts, and each awake expert reads all its weights.

With balanced random routing, `E (1 - (1 - k/E)^T)` of `E` experts see a token when `T` tokens
choose `k` each. One grouped kernel then runs a product per awake expert, of unequal heights; the
tile model prices it as that many products of the mean height.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.families.family import Family, Flags
from simulators.kernels.families.fused import ExpertSizes, expert_features, expert_seconds
from simulators.kernels.families.gemm import on_tensor_cores, result_bytes
from simulators.kernels.frameworks import Entry, entry_of
from simulators.kernels.intervals import Band
from simulators.kernels.monotone_correction import bent_seconds
from simulators.kernels.profile import GemmRates, Profile, machine
from simulators.kernels.tiling import four_norm, tile_seconds
from simulators.workload.operators import BYTES, GroupedGemm


def grouped_gemm_seconds(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> NDArray[np.float64]:
    """Return the seconds of one grouped product over the experts of this GPU."""
    tokens, n, k = (np.asarray(x, np.float64) for x in (grouped.tokens, grouped.n, grouped.k))
    entry = _entry(grouped, gpu, profile)
    if entry is None and _is_narrow(grouped):
        rates = _rates(grouped, gpu, profile)
        return np.asarray(
            four_norm(
                grouped_gemm_flops(grouped) / (rates.compute * gpu.peak(grouped.dtype)),
                grouped_gemm_bytes(grouped) / (rates.bandwidth * gpu.hbm_bytes_per_s),
            )
        )
    if entry is not None:
        sizes = (tokens * grouped.top_k, active_experts(grouped), n, k)
        alone_s = fitted_expert_seconds(
            sizes, float(grouped.experts), grouped.top_k, _format(grouped), gpu, entry
        )
        # Isolated measurements hold the launch that `price` adds.
        return np.maximum(alone_s - profile.kernel_s, grouped_gemm_roofline_s(grouped, gpu))
    rates = _rates(grouped, gpu, profile)
    tiled = tile_seconds(
        tokens * grouped.top_k,
        n,
        k,
        active_experts(grouped),
        rates.tiles,
        machine(gpu, rates, grouped.dtype),
    )
    return np.maximum(tiled, grouped_gemm_roofline_s(grouped, gpu))


def is_timed_as_layer(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> bool:
    """Say whether the time of a product is its share of a measured layer of experts.

    Such a time has the gathering of rows, the activation and the weighted sum in it.
    """
    return _entry(grouped, gpu, profile) is not None


def fitted_expert_seconds(
    sizes: ExpertSizes,
    experts: float | NDArray[np.float64],
    top_k: float | NDArray[np.float64],
    dtype: str,
    gpu: Gpu,
    entry: Entry,
) -> NDArray[np.float64]:
    """Return the seconds of one product by a fitted form and the trees that bend it.

    Args:
        sizes: routed rows, awake experts, n and k.
        experts: all experts of this GPU, awake or not.
        top_k: how many of them a token goes to.
        dtype: of the products.
        gpu: where they run.
        entry: the fitted numbers.
    """
    seconds = np.asarray(expert_seconds(sizes, dtype, gpu, entry.numbers), np.float64)
    if entry.bend is None:
        return seconds
    features = expert_features(sizes, experts, top_k)
    return bent_seconds(entry.bend, features, seconds.reshape(-1)).reshape(seconds.shape)


def grouped_gemm_roofline_s(grouped: GroupedGemm, gpu: Gpu) -> NDArray[np.float64]:
    """Return the least time the data sheet allows."""
    return np.maximum(
        grouped_gemm_flops(grouped) / gpu.peak(grouped.dtype),
        grouped_gemm_bytes(grouped) / gpu.hbm_bytes_per_s,
    )


def active_experts(grouped: GroupedGemm) -> NDArray[np.float64]:
    """Return how many experts see at least one token, on average.

    `top_k` may exceed `experts` where several GPUs' tokens meet on one; then all are awake.

    >>> mixture = GroupedGemm(name="up", tokens=1.0, n=1, k=1, experts=8, top_k=2.0)
    >>> float(active_experts(mixture))
    2.0
    """
    tokens = np.asarray(grouped.tokens, np.float64)
    chance = min(1.0, grouped.top_k / grouped.experts)
    return np.maximum(grouped.experts * (1.0 - (1.0 - chance) ** tokens), np.finfo(np.float64).tiny)


def grouped_gemm_flops(grouped: GroupedGemm) -> NDArray[np.float64]:
    """Return multiplications and additions over all routed tokens."""
    return 2.0 * np.asarray(grouped.tokens, np.float64) * grouped.top_k * grouped.n * grouped.k


def grouped_gemm_bytes(grouped: GroupedGemm) -> NDArray[np.float64]:
    """Return the bytes of the awake experts' weights and of the tokens in and out."""
    rows = np.asarray(grouped.tokens, np.float64) * grouped.top_k
    weights = active_experts(grouped) * grouped.n * grouped.k
    read = weights * BYTES[grouped.weight_dtype or grouped.dtype]
    read = read + rows * grouped.k * BYTES[grouped.dtype]
    return read + rows * grouped.n * result_bytes(grouped.dtype)


def grouped_gemm_call_seconds(
    grouped: GroupedGemm, gpu: Gpu, profile: Profile
) -> NDArray[np.float64]:
    """Return the seconds of a call timed alone."""
    rates = _rates(grouped, gpu, profile)
    return four_norm(grouped_gemm_seconds(grouped, gpu, profile), rates.dispatch_s)


def _class(grouped: GroupedGemm, gpu: Gpu, _profile: Profile) -> NDArray[np.str_]:
    return np.array("tensor" if on_tensor_cores(gpu, grouped.dtype) else "bmm")


def _rates(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> GemmRates:
    return profile.gemm[str(_class(grouped, gpu, profile))]


def _is_narrow(grouped: GroupedGemm) -> bool:
    """Return whether weights are stored narrower than they are multiplied."""
    return BYTES[grouped.weight_dtype or grouped.dtype] < BYTES[grouped.dtype]


def _entry(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> Entry | None:
    """Return the fitted numbers that apply, if tables hold the format."""
    name = _format(grouped).replace("fp16", "bf16")
    if name not in MEASURED:
        return None
    wide = {"fp8": ("bf16",), "fp8_block": ("fp8", "bf16")}.get(name, ())
    return entry_of(gpu, profile, "experts", (name, *wide))


MEASURED = ("bf16", "fp8", "fp8_block", "fp4", "w4a8", "w4a16")
"""Formats of experts that tables hold, by their names as precisions."""


def _format(grouped: GroupedGemm) -> str:
    """Return what the precision of a product is called, or nothing if it has no name."""
    if not _is_narrow(grouped):
        blocks = grouped.weight_dtype == "fp8_block"
        return grouped.weight_dtype if blocks else grouped.dtype
    bits = {"bf16": "16", "fp16": "16", "fp8": "8"}.get(grouped.dtype, "")
    return f"w4a{bits}" if BYTES[grouped.weight_dtype] == BYTES["int4"] else ""


def _band(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> Band | None:
    entry = _entry(grouped, gpu, profile)
    return None if entry is None else entry.band


def _origin(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> tuple[bool, Flags]:
    """Without a table of grouped products the rates are those of plain ones."""
    entry = _entry(grouped, gpu, profile)
    return entry is not None and entry.calibrated, False


FAMILY = Family(
    seconds=grouped_gemm_seconds,
    call_seconds=grouped_gemm_call_seconds,
    flops=grouped_gemm_flops,
    moved_bytes=grouped_gemm_bytes,
    roofline_s=grouped_gemm_roofline_s,
    classes=_class,
    origin=_origin,
    band=_band,
)
