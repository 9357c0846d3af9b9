"""Grouped GEMMs of experts: only activated experts read their weights.

Under uniform routing `E (1 - (1 - k/E)^T)` of `E` experts are activated when `T` tokens choose `k`
each. One grouped kernel runs a product per activated expert, priced at the mean height.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from simulators.catalog.engine import kernel_choices
from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.entries import Entry, entry_of, is_timed, seconds_by
from simulators.kernels.families.family import OperatorFamily
from simulators.kernels.families.fused import ExpertSizes, expert_features, expert_seconds
from simulators.kernels.families.tensor_cores import on_tensor_cores, sheet_rates
from simulators.kernels.monotone_correction import corrected
from simulators.kernels.profile import GemmRates, Profile, machine, result_bytes
from simulators.kernels.tiling import four_norm, tile_seconds
from simulators.workload.operators import GroupedGemm, active_experts
from simulators.workload.precision import BYTES

MEASURED = ("bf16", "fp8", "fp8_block", "fp4", "w4a8", "w4a16", "mxfp4")
"""Formats of experts that tables hold, by their names as precisions; `mxfp4` are four bits that
share exponents, multiplied in 16, which other kernels unpack than those of `w4a16`."""

RUN_AS = {"w8a16": "w4a16"}
"""Formats that no table holds, and the one whose kernels run them: Marlin's (`fused_marlin_moe` of
vLLM) unpack 8 bits as they do 4, so theirs are the same numbers, over twice the bytes."""

BEFORE_HOPPER = {"mxfp4": "w4a16"}
"""Formats that Marlin's kernels also run on `MARLIN_ARCHITECTURES`, for which OpenAI's kernels were
not written (`get_mxfp4_backend` of vLLM). Engines' files name those that run OpenAI's there."""

MARLIN_ARCHITECTURES = "ampere", "ada"


def grouped_gemm_seconds(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of one grouped product over the experts of this GPU."""
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
        s, tiled = expert_sizes(grouped), machine(gpu, rates, grouped.dtype)
        seconds = tile_seconds(s.rows, s.n, s.k, s.activated, rates.tiles, tiled)
    return np.maximum(seconds, FAMILY.roofline_s(grouped, gpu))


def expert_sizes(grouped: GroupedGemm) -> ExpertSizes:
    """Return the sizes of a grouped product, tokens choosing at random."""
    columns = (grouped.tokens, grouped.experts, grouped.top_k, grouped.n, grouped.k)
    tokens, experts, chosen, n, k = (np.asarray(column, np.float64) for column in columns)
    rows = tokens * chosen
    return ExpertSizes(
        tokens=tokens,
        routed=rows * grouped.ranks,
        rows=rows,
        activated=active_experts(grouped),
        experts=experts,
        chosen=chosen,
        width=np.asarray(grouped.width, np.float64),
        n=n,
        k=k,
    )


def fitted_expert_seconds(sizes: ExpertSizes, dtype: str, gpu: Gpu, entry: Entry) -> Floats:
    """Return the seconds of one product by a fitted form and its correction trees."""
    seconds = np.asarray(expert_seconds(sizes, dtype, gpu, entry.numbers), np.float64)
    if entry.correction is None:
        return seconds
    return corrected(entry.correction, expert_features(sizes), seconds)


def grouped_gemm_flops(grouped: GroupedGemm) -> Floats:
    """Return multiplications and additions over all routed tokens."""
    return 2.0 * np.asarray(grouped.tokens, np.float64) * grouped.top_k * grouped.n * grouped.k


def grouped_gemm_bytes(grouped: GroupedGemm) -> Floats:
    """Return the bytes of the activated experts' weights and of the tokens in and out."""
    rows = np.asarray(grouped.tokens, np.float64) * grouped.top_k
    weights = active_experts(grouped) * grouped.n * grouped.k
    read = weights * BYTES[grouped.weight_dtype or grouped.dtype]
    read = read + rows * grouped.k * BYTES[grouped.dtype]
    return read + rows * grouped.n * result_bytes(grouped.dtype)


def entry_for(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> Entry | None:
    """Return the fitted numbers that apply, if tables hold the format."""
    name = _format(grouped).replace("fp16", "bf16")
    if name not in (*MEASURED, *RUN_AS):
        return None
    timed = _timed_as(name, gpu, profile)
    found = entry_of(gpu, profile, "experts", stand_in_formats(timed))
    if found is None or timed == name:
        return found
    return replace(found, calibrated=False)


def is_foreign(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> bool:
    """Say whether no GPU of a GPU's architecture was timed at experts in this format.

    Then nothing is known of how its engines run them.
    """
    name = _format(grouped).replace("fp16", "bf16")
    return not is_timed(gpu, profile, "experts", stand_in_formats(_timed_as(name, gpu, profile)))


def _timed_as(name: str, gpu: Gpu, profile: Profile) -> str:
    """Return the format whose kernels run another on a GPU."""
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
    """Return what the precision of a product is called, or nothing if it has no name."""
    if not grouped.has_narrow_weights:
        blocks = grouped.weight_dtype == "fp8_block"
        return grouped.weight_dtype if blocks else grouped.dtype
    if grouped.dtype == "fp8":
        return "w4a8"
    if grouped.has_widened_weights:
        return "w8a16"
    return "mxfp4" if grouped.weight_dtype == "fp4" else "w4a16"


def _class(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> str:
    """Without a table of grouped products the rates are those of plain ones."""
    return _rates(grouped, gpu, profile)[0]


def _rates(grouped: GroupedGemm, gpu: Gpu, profile: Profile) -> tuple[str, GemmRates]:
    if on_tensor_cores(gpu, grouped.dtype):
        return sheet_rates(gpu, profile, grouped.dtype)
    return "bmm", profile.gemm["bmm"]


FAMILY = OperatorFamily(
    seconds=grouped_gemm_seconds,
    call=lambda grouped, gpu, profile: (0.0, _rates(grouped, gpu, profile)[1].dispatch_s),
    flops=grouped_gemm_flops,
    moved_bytes=grouped_gemm_bytes,
    classes=_class,
    entry=entry_for,
)
