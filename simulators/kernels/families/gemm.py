"""A matrix product takes its tiles' time, and never less than its roofline.

The tile model of `tiling.py` with the rates a profile says are sustained, bent by the profile's
correction if it has one. Whatever was fitted, an answer below FLOPs over the data sheet's peak, or
below the bytes of both operands and the result over its bandwidth, is raised to that.

Libraries choose differently for single and for batched products, so fp32 rates come in two
classes, `linear` and `bmm`. A batch is never faster than one of its products alone, but for 8-bit
ones on tensor cores.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.families.family import MEASURED_DTYPE, Family, Flags
from simulators.kernels.families.tensor_cores import (
    PLAIN_BATCH,
    TensorRates,
    band_name,
    batched_kind_of,
    is_measured_format,
    kind_of,
    tensor_seconds,
)
from simulators.kernels.monotone_correction import corrected_seconds
from simulators.kernels.profile import GemmRates, Profile, machine
from simulators.kernels.tiling import four_norm, tile_seconds
from simulators.workload.operators import BYTES, Gemm

TENSOR_SPEEDUP = 3.0
"""A precision this much faster than fp32 runs on matrix units; P100's fp16 (2x) does not. Boards
with a tf32 rate have matrix units anyway: on GeForce ones these are only twice as fast as fp32."""

Floats = NDArray[np.float64]
Sizes = tuple[Floats, Floats, Floats, Floats]


def gemm_seconds(gemm: Gemm, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds products spend on the GPU, without launch or dispatch."""
    sizes = sizes_of(gemm)
    if (rates := tensor_rates_of(gemm, gpu, profile)) is not None:
        seconds = _tensor_seconds(gemm, sizes, gpu, rates, batched_rates_of(gemm, gpu, profile))
    elif on_tensor_cores(gpu, gemm.dtype):
        seconds = class_seconds(profile.gemm["tensor"], sizes, gpu, gemm.dtype, gemm.weight_dtype)
    else:
        seconds = _simt_seconds(gemm, sizes, gpu, profile)
    return np.maximum(seconds, gemm_roofline_s(gemm, gpu))


def tensor_rates_of(gemm: Gemm, gpu: Gpu, profile: Profile) -> TensorRates | None:
    """Return the measured rates of a product on tensor cores, its own or a relative's."""
    if not on_tensor_cores(gpu, gemm.dtype):
        return None
    return profile.tensor.get(kind_of(gemm.dtype, gemm.weight_dtype))


def batched_rates_of(gemm: Gemm, gpu: Gpu, profile: Profile) -> TensorRates | None:
    """Return the measured rates of products with a matrix each; none if nobody measured any."""
    if not on_tensor_cores(gpu, gemm.dtype):
        return None
    rates = profile.tensor.get(batched_kind_of(kind_of(gemm.dtype, gemm.weight_dtype)))
    return rates if rates is not None and rates.kind.startswith("bmm") else None


def class_seconds(
    rates: GemmRates, sizes: Sizes, gpu: Gpu, dtype: str, weight_dtype: str = ""
) -> Floats:
    """Return the seconds of products of m, n, k and batch with the rates of one class."""
    m, n, k, batch = sizes
    seconds = tile_seconds(
        m * batch, n, k, batch, rates.tiles, machine(gpu, rates, dtype, weight_dtype)
    )
    if rates.correction is None:
        return seconds
    return corrected_seconds(rates.correction, sizes, seconds)


def gemm_call_seconds(gemm: Gemm, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of a call timed alone."""
    if on_tensor_cores(gpu, gemm.dtype):
        dispatch_s = np.array(profile.gemm["tensor"].dispatch_s)
    else:
        batched_s = profile.gemm["bmm"].dispatch_s
        # An empty call is the host's business: one product takes no longer to send than many.
        alone_s = min(profile.gemm["linear"].dispatch_s, batched_s)
        dispatch_s = np.where(sizes_of(gemm)[3] > 1.0, batched_s, alone_s)
    return four_norm(gemm_seconds(gemm, gpu, profile), dispatch_s)


def gemm_launch_s(gemm: Gemm, gpu: Gpu, profile: Profile) -> float:
    """Return the seconds of an empty kernel, but none where a measured loop had its launches."""
    return 0.0 if tensor_rates_of(gemm, gpu, profile) is not None else profile.kernel_s


def gemm_classes(gemm: Gemm, gpu: Gpu, profile: Profile) -> NDArray[np.str_]:
    """Return the class of rates behind each product."""
    if (rates := tensor_rates_of(gemm, gpu, profile)) is not None:
        together = batched_rates_of(gemm, gpu, profile) or rates
        batched = sizes_of(gemm)[3] > 1.0
        return np.where(batched, band_name(together.kind), band_name(rates.kind))
    if on_tensor_cores(gpu, gemm.dtype):
        return np.array("tensor")
    batched = sizes_of(gemm)[3] > 1.0
    if batched.all() or not batched.any():
        return np.array("bmm" if batched.all() else "linear")
    return np.where(batched, "bmm", "linear")


def gemm_roofline_s(gemm: Gemm, gpu: Gpu) -> Floats:
    """Return the least time the data sheet allows: the larger of compute and memory time."""
    return np.maximum(
        gemm_flops(gemm) / gpu.peak(gemm.dtype), gemm_bytes(gemm) / gpu.hbm_bytes_per_s
    )


def gemm_flops(gemm: Gemm) -> Floats:
    """Return multiplications and additions.

    >>> float(gemm_flops(Gemm(name="proj", m=2, n=3, k=4)))
    48.0
    """
    m, n, k, batch = sizes_of(gemm)
    return 2.0 * batch * m * n * k


def gemm_bytes(gemm: Gemm) -> Floats:
    """Return the bytes of both operands and the result, each moved once."""
    m, n, k, batch = sizes_of(gemm)
    a = BYTES[gemm.dtype]
    b = BYTES[gemm.weight_dtype or gemm.dtype]
    return batch * (m * k * a + k * n * b + m * n * result_bytes(gemm.dtype))


def result_bytes(dtype: str) -> float:
    """Return the bytes of one number of a result: 8-bit and narrower products end as 16 bits."""
    return max(2.0, BYTES[dtype])


def on_tensor_cores(gpu: Gpu, dtype: str) -> bool:
    """Say whether a precision runs on matrix units with tiles of their own."""
    fp32 = gpu.peak_flops.get("fp32", gpu.peak(dtype))
    has_units = "tf32" in gpu.peak_flops or gpu.peak(dtype) > TENSOR_SPEEDUP * fp32
    return dtype != "fp32" and has_units


def gemm_origin(gemm: Gemm, gpu: Gpu, profile: Profile) -> tuple[bool, Flags]:
    """Say whether the rates were fitted on this device, and which rows lie outside that fit."""
    if (tensor := tensor_rates_of(gemm, gpu, profile)) is not None:
        return _tensor_origin(gemm, tensor, batched_rates_of(gemm, gpu, profile) or tensor)
    classes = gemm_classes(gemm, gpu, profile)
    sizes = sizes_of(gemm)
    outside = np.zeros(np.broadcast_shapes(*(size.shape for size in sizes)), bool)
    fitted = True
    for name in np.unique(classes):
        rates = profile.gemm[str(name)]
        fitted &= rates.calibrated and (name == "tensor" or gemm.dtype == MEASURED_DTYPE)
        for size, (least, most) in zip(sizes, rates.seen, strict=False):
            outside |= (classes == name) & ((size < least) | (size > most))
    return fitted, outside


def _tensor_origin(gemm: Gemm, plain: TensorRates, together: TensorRates) -> tuple[bool, Flags]:
    """Rates of a device's own, in the formats they were measured in, are calibrated."""
    batched = sizes_of(gemm)[3] > 1.0
    used = [plain] * (not batched.all()) + [together] * bool(batched.any())
    formats = gemm.dtype, gemm.weight_dtype
    known = all(rates.calibrated and is_measured_format(rates, *formats) for rates in used)
    return known, np.where(batched, _outside(gemm, together), _outside(gemm, plain))


def _outside(gemm: Gemm, rates: TensorRates) -> Flags:
    """Say which sizes lie beyond those of the fit."""
    outside: Flags = np.zeros(np.broadcast_shapes(*map(np.shape, sizes_of(gemm))), bool)
    for size, (least, most) in zip(sizes_of(gemm), rates.seen, strict=True):
        outside = outside | (size < least) | (size > most)
    return outside


def sizes_of(gemm: Gemm) -> Sizes:
    """Return m, n, k and batch as arrays."""
    m, n, k, batch = (np.asarray(x, np.float64) for x in (gemm.m, gemm.n, gemm.k, gemm.batch))
    return m, n, k, batch


def _tensor_seconds(
    gemm: Gemm, sizes: Sizes, gpu: Gpu, plain: TensorRates, together: TensorRates | None
) -> Floats:
    """Price products with a matrix each by rates of their own.

    They take at least what one of them alone takes; but not in 8 bits, where the call of a single
    product quantises its activations, which can take longer than a few heads' products.
    """
    m, n, k, batch = sizes
    formats = gemm.dtype, gemm.weight_dtype
    if together is None or not np.any(batch > 1.0):
        return tensor_seconds(plain, sizes, gpu, *formats)
    alone = tensor_seconds(plain, (m, n, k, np.ones_like(batch)), gpu, *formats)
    many = tensor_seconds(together, sizes, gpu, *formats)
    if together.kind == PLAIN_BATCH:
        many = np.maximum(alone, many)
    return np.where(batch > 1.0, many, alone)


def _simt_seconds(gemm: Gemm, sizes: Sizes, gpu: Gpu, profile: Profile) -> Floats:
    """Price each product by its class; a batch takes at least what one product alone takes."""
    m, n, k, batch = sizes
    batched = batch > 1.0
    alone = class_seconds(
        profile.gemm["linear"], (m, n, k, np.ones_like(batch)), gpu, gemm.dtype, gemm.weight_dtype
    )
    if not np.any(batched):
        return alone
    together = class_seconds(profile.gemm["bmm"], sizes, gpu, gemm.dtype, gemm.weight_dtype)
    return np.where(batched, np.maximum(alone, together), alone)


FAMILY = Family(
    seconds=gemm_seconds,
    call_seconds=gemm_call_seconds,
    flops=gemm_flops,
    moved_bytes=gemm_bytes,
    roofline_s=gemm_roofline_s,
    classes=gemm_classes,
    origin=gemm_origin,
    launch_s=gemm_launch_s,
)
