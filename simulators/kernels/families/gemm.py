"""Matrix products and convolutions: tiles in waves over the SMs, at least the roofline.

A product has the time of the tile model (`tiling.py`) with the sustained rates of a profile, and
the profile's correction if it has one. Libraries choose other kernels for batched products, so
single and batched products have separate rates. A batch is never faster than one of its products
alone, except 8-bit batches on tensor cores.

A convolution takes the faster of two algorithms. Implicit GEMM is one product: output pixels by
output channels by (input channels x kernel area). Winograd's F(2x2, 3x3) for 3 x 3 kernels turns
each 2 x 2 patch of outputs into 16 independent products over the channels, with 2.25 times fewer
multiplications (Lavin and Gray, 2016), and moves the transformed patches through memory once each
way.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.corrections import corrected_seconds
from simulators.kernels.families.family import MEASURED_DTYPE, Flags, OperatorFamily, outside
from simulators.kernels.levels import (
    MEASURED,
    PLAIN,
    PLAIN_BATCH,
    SHEET_CLASSES,
    WEIGHT_ONLY,
    band_name,
    kind_of,
    on_tensor_cores,
    sheet_rates,
)
from simulators.kernels.profile import (
    GemmRates,
    Profile,
    Sizes,
    TensorRates,
    product_seconds,
    result_bytes,
)
from simulators.workload.operators import Convolution, Gemm
from simulators.workload.precision import BYTES, QUANTISED, QUANTISED_IN_CALL

Named = tuple[str, GemmRates | TensorRates]


def gemm_seconds(gemm: Gemm, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of matrix products on the GPU, without launch or dispatch.

    A batch takes at least the time of one of its products. 8-bit batches are an exception: the call
    of a single 8-bit product includes the quantization of its activations.

    Weight-only products have two limits. With another framework's kernel they are never slower than
    the plain product. With another GPU's kernel they read weights and multiply at most at the rates
    of this GPU's plain product, because the instructions are the same.
    """
    seconds = _tiled_seconds(gemm, gpu, profile)
    (_, rates), _ = rates_of(gemm, gpu, profile)
    if isinstance(rates, TensorRates) and kind_of(gemm.dtype, gemm.weight_dtype) in WEIGHT_ONLY:
        plain = replace(gemm, weight_dtype="")
        plain_s = _tiled_seconds(plain, gpu, profile)
        if rates.framework != profile.framework:
            seconds = np.minimum(seconds, plain_s)
        if not rates.calibrated:
            (_, whole), _ = rates_of(plain, gpu, profile)
            multiplied_s = gemm_flops(gemm) / (whole.compute * gpu.peak(gemm.dtype))
            read_s = gemm_bytes(gemm) / gemm_bytes(plain) * plain_s
            seconds = np.maximum(seconds, np.maximum(read_s, np.minimum(multiplied_s, plain_s)))
    return np.maximum(seconds, GEMM.roofline_s(gemm, gpu))


def _tiled_seconds(gemm: Gemm, gpu: Gpu, profile: Profile) -> Floats:
    m, n, k, batch = sizes = sizes_of(gemm)
    formats = gemm.dtype, gemm.weight_dtype
    (name, single), (batch_name, batched) = rates_of(gemm, gpu, profile)
    if batch_name == name:
        seconds = product_seconds(single, sizes, gpu, *formats)
    else:
        seconds = product_seconds(single, (m, n, k, np.ones_like(batch)), gpu, *formats)
        if np.any(batch > 1.0):
            many = product_seconds(batched, sizes, gpu, *formats)
            if isinstance(batched, GemmRates) or batched.kind == PLAIN_BATCH:
                many = np.maximum(seconds, many)
            seconds = np.where(batch > 1.0, many, seconds)
    return seconds


def rates_of(gemm: Gemm, gpu: Gpu, profile: Profile) -> tuple[Named, Named]:
    """Return interval class and rates, of single and of batched products.

    Rates on tensor cores are measured on the GPU or transferred, if any were measured.
    """
    if not on_tensor_cores(gpu, gemm.dtype):
        return ("linear", profile.gemm["linear"]), ("bmm", profile.gemm["bmm"])
    kind = kind_of(gemm.dtype, gemm.weight_dtype)
    if (rates := profile.tensor.get(kind)) is None:
        return (sheet_rates(gpu, profile, gemm.dtype),) * 2
    single = band_name(kind), rates
    batched_kind = "bmm_fp8" if kind.startswith("fp8") else PLAIN_BATCH  # with a matrix each
    batched = profile.tensor.get(batched_kind)
    if batched is None or not batched.kind.startswith(PLAIN_BATCH):
        return single, single
    return single, (band_name(batched_kind), batched)


def quantising_s(gemm: Gemm, gpu: Gpu, profile: Profile) -> float:
    """Return the seconds in which a measured product quantizes its activations.

    The result is the start time of the product minus that of a 16-bit product of the same
    framework. Batched products were timed without quantization. The result is 0 for weights in
    `QUANTISED_IN_CALL`, whose call is the same inside an engine.
    """
    if (
        gemm.weight_dtype in QUANTISED_IN_CALL
        or gemm.dtype not in QUANTISED
        or np.any(np.asarray(gemm.batch) > 1.0)
    ):
        return 0.0
    (_, rates), _ = rates_of(gemm, gpu, profile)
    plain = profile.tensor.get(PLAIN)
    if plain is None or not isinstance(rates, TensorRates) or rates.kind == PLAIN:
        return 0.0
    return max(0.0, rates.start_s - plain.start_s)


def gemm_flops(gemm: Gemm) -> Floats:
    """Return the FLOPs of matrix products: multiplications and additions.

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


def sizes_of(gemm: Gemm) -> Sizes:
    """Return m, n, k and batch as arrays."""
    m, n, k, batch = (np.asarray(x, np.float64) for x in (gemm.m, gemm.n, gemm.k, gemm.batch))
    return m, n, k, batch


def _gemm_launch_s(gemm: Gemm, gpu: Gpu, profile: Profile) -> float:
    """Return the seconds of an empty kernel; 0 for measured rates, which include launches."""
    (_, rates), _ = rates_of(gemm, gpu, profile)
    return 0.0 if isinstance(rates, TensorRates) else profile.kernel_s


def _gemm_call(gemm: Gemm, gpu: Gpu, profile: Profile) -> tuple[float, Floats]:
    """Return ramp and dispatch seconds of a call; a single product is not slower than a batch."""
    classes = ("tensor",) * 2 if on_tensor_cores(gpu, gemm.dtype) else ("linear", "bmm")
    alone_s, batched_s = (profile.gemm[name].dispatch_s for name in classes)
    return 0.0, np.where(sizes_of(gemm)[3] > 1.0, batched_s, min(alone_s, batched_s))


def _gemm_classes(gemm: Gemm, gpu: Gpu, profile: Profile) -> dict[str, Flags]:
    """Return the mask of rows of each interval class, of single and of batched products."""
    (single, _), (batched, _) = rates_of(gemm, gpu, profile)
    many = sizes_of(gemm)[3] > 1.0
    return {single: True} if single == batched else {single: ~many, batched: many}


def _gemm_origin(gemm: Gemm, gpu: Gpu, profile: Profile) -> tuple[bool, Flags]:
    """Return whether the rates were measured on this GPU in these formats, and a mask of rows."""
    single, batched = rates_of(gemm, gpu, profile)
    sizes = sizes_of(gemm)
    many = sizes[3] > 1.0
    used = [single] * (not many.all()) + [batched] * bool(many.any())
    beyond = (outside(sizes, rates.seen) for _, rates in (batched, single))
    return all(_is_measured(gemm, *one) for one in used), np.where(many, *beyond)


def _is_measured(gemm: Gemm, name: str, rates: GemmRates | TensorRates) -> bool:
    if isinstance(rates, TensorRates):
        formats = gemm.dtype, gemm.weight_dtype or gemm.dtype
        return rates.calibrated and MEASURED[rates.kind] == formats
    return rates.calibrated and (name in SHEET_CLASSES or gemm.dtype == MEASURED_DTYPE)


GEMM = OperatorFamily(
    seconds=gemm_seconds,
    launch_s=_gemm_launch_s,
    call=_gemm_call,
    flops=gemm_flops,
    moved_bytes=gemm_bytes,
    classes=_gemm_classes,
    origin=_gemm_origin,
)


CONVOLUTION_SIZES = ("batch", "in_channels", "out_channels", "kernel_size", "input_size", "stride")
"""Size columns of a convolution; each must be positive."""

WINOGRAD_KERNEL = 3.0
WINOGRAD_SAVING = 4.0
"""Saving of F(4x4, 3x3), the largest tile in libraries: 36 multiplications instead of 144."""

PATCH, PATCH_PRODUCTS = 2.0, 16.0
"""F(2x2, 3x3): outputs per side of a patch, and products over the channels per patch."""


def convolution_seconds(conv: Convolution, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of convolutions on the GPU, without launch or dispatch."""
    rates = profile.gemm["conv"]
    seconds = algorithm_seconds(conv, gpu, rates)
    if rates.correction is not None:
        seconds = corrected_seconds(rates.correction, implicit_sizes(conv), seconds)
    return np.maximum(seconds, CONVOLUTION.roofline_s(conv, gpu))


def algorithm_seconds(conv: Convolution, gpu: Gpu, rates: GemmRates) -> Floats:
    """Return the uncorrected seconds of the faster of both algorithms."""
    plain = replace(rates, correction=None)
    batch, channels, filters, *_ = _convolution_sizes(conv)
    out = output_size(conv)
    direct_s = product_seconds(plain, implicit_sizes(conv), gpu, conv.dtype)
    patches = batch * np.ceil(out / PATCH) ** 2
    winograd = (patches, filters, channels, np.full_like(out, PATCH_PRODUCTS))
    moved = PATCH_PRODUCTS * patches * (channels + filters) * BYTES[conv.dtype]
    moved_s = moved / (rates.bandwidth * gpu.hbm_bytes_per_s)
    winograd_s = product_seconds(plain, winograd, gpu, conv.dtype) + moved_s
    return np.where(_fits_winograd(conv), np.minimum(direct_s, winograd_s), direct_s)


def implicit_sizes(conv: Convolution) -> Sizes:
    """Return m, n, k and batch of a convolution's implicit GEMM."""
    batch, channels, filters, kernel, _, _ = _convolution_sizes(conv)
    pixels, filters, depth = np.broadcast_arrays(
        batch * output_size(conv) ** 2, filters, channels * kernel * kernel
    )
    return pixels, filters, depth, np.ones(pixels.shape)


def convolution_flops(conv: Convolution) -> Floats:
    """Return the FLOPs of the direct algorithm.

    >>> one = Convolution(name="c", batch=1, in_channels=1, out_channels=1, kernel_size=3,
    ...                   input_size=3)
    >>> float(convolution_flops(one))
    18.0
    """
    batch, channels, filters, kernel, _, _ = _convolution_sizes(conv)
    return 2.0 * batch * output_size(conv) ** 2 * filters * channels * kernel**2


def convolution_bytes(conv: Convolution) -> Floats:
    """Return the bytes of inputs, filters and outputs, each moved once."""
    batch, channels, filters, kernel, size, _ = _convolution_sizes(conv)
    images = batch * channels * size**2
    results = batch * filters * output_size(conv) ** 2
    return (images + results + filters * channels * kernel**2) * BYTES[conv.dtype]


def output_size(conv: Convolution) -> Floats:
    """Return the side of the output image."""
    _, _, _, kernel, size, stride = _convolution_sizes(conv)
    padded = size + 2.0 * np.asarray(conv.padding, np.float64)
    return np.maximum(np.floor((padded - kernel) / stride) + 1.0, 1.0)


def _convolution_sizes(conv: Convolution) -> tuple[Floats, ...]:
    return tuple(np.asarray(getattr(conv, name), np.float64) for name in CONVOLUTION_SIZES)


def _fits_winograd(conv: Convolution) -> Flags:
    _, _, _, kernel, _, stride = _convolution_sizes(conv)
    return np.asarray((kernel == WINOGRAD_KERNEL) & (stride == 1.0))


def _convolution_origin(conv: Convolution, _gpu: Gpu, profile: Profile) -> tuple[bool, Flags]:
    rates = profile.gemm["conv"]
    calibrated = rates.calibrated and conv.dtype == MEASURED_DTYPE
    return calibrated, outside(implicit_sizes(conv), rates.seen)


CONVOLUTION = OperatorFamily(
    seconds=convolution_seconds,
    call=lambda _conv, _gpu, profile: (0.0, profile.gemm["conv"].dispatch_s),
    flops=convolution_flops,
    moved_bytes=convolution_bytes,
    saving=lambda conv: np.where(_fits_winograd(conv), WINOGRAD_SAVING, 1.0),
    classes=lambda _conv, _gpu, _profile: "conv",
    origin=_convolution_origin,
)
