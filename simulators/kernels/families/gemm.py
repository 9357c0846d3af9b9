"""The time of matrix products: tiles in waves over the SMs, and never less than the roofline.

The tile model of `tiling.py` with the rates a profile says are sustained, and the profile's
correction if it has one. Whatever was fitted, an answer below FLOPs over the data sheet's peak, or
below the bytes of both operands and the result over its bandwidth, is raised to that.

Libraries choose differently for single and for batched products, so each has rates of its own. A
batch is never faster than one of its products alone, but for 8-bit ones on tensor cores.
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
from simulators.workload.precision import BYTES, QUANTISED

Named = tuple[str, GemmRates | TensorRates]


def gemm_seconds(gemm: Gemm, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds products spend on the GPU, without launch or dispatch.

    A batch takes at least what one of its products alone takes; but not in 8 bits, where the call
    of a single product quantises its activations, which can take longer than a few heads' products.

    Weights narrower than the arithmetic never cost time by another framework's kernel: how long
    that one takes to start on small matrices is its own habit. Nor does another GPU's kernel read
    them at a higher rate than this GPU's memory serves its plain product at, or multiply at a
    higher one than plain products are multiplied at: the instructions are the same.
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
    """Return the rates of single and of batched products, and the classes of their bands.

    On tensor cores they are measured ones, the GPU's own or a relative's, where there are any.
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
    """Return the seconds that a measured product spends on quantizing its activations.

    The time is the start of the product less that of a 16-bit product by the same framework.
    Products of heads were timed without.
    """
    if gemm.dtype not in QUANTISED or np.any(np.asarray(gemm.batch) > 1.0):
        return 0.0
    (_, rates), _ = rates_of(gemm, gpu, profile)
    plain = profile.tensor.get(PLAIN)
    if plain is None or not isinstance(rates, TensorRates) or rates.kind == PLAIN:
        return 0.0
    return max(0.0, rates.start_s - plain.start_s)


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


def sizes_of(gemm: Gemm) -> Sizes:
    """Return m, n, k and batch as arrays."""
    m, n, k, batch = (np.asarray(x, np.float64) for x in (gemm.m, gemm.n, gemm.k, gemm.batch))
    return m, n, k, batch


def _gemm_launch_s(gemm: Gemm, gpu: Gpu, profile: Profile) -> float:
    """Return the seconds of an empty kernel, but none where a measured loop had its launches."""
    (_, rates), _ = rates_of(gemm, gpu, profile)
    return 0.0 if isinstance(rates, TensorRates) else profile.kernel_s


def _gemm_call(gemm: Gemm, gpu: Gpu, profile: Profile) -> tuple[float, Floats]:
    """Return the dispatch of a call: one product takes no longer to send than many."""
    classes = ("tensor",) * 2 if on_tensor_cores(gpu, gemm.dtype) else ("linear", "bmm")
    alone_s, batched_s = (profile.gemm[name].dispatch_s for name in classes)
    return 0.0, np.where(sizes_of(gemm)[3] > 1.0, batched_s, min(alone_s, batched_s))


def _gemm_classes(gemm: Gemm, gpu: Gpu, profile: Profile) -> dict[str, Flags]:
    """Return the interval class of single and of batched products, and the rows of each."""
    (single, _), (batched, _) = rates_of(gemm, gpu, profile)
    many = sizes_of(gemm)[3] > 1.0
    return {single: True} if single == batched else {single: ~many, batched: many}


def _gemm_origin(gemm: Gemm, gpu: Gpu, profile: Profile) -> tuple[bool, Flags]:
    """Rates of a device's own, in the formats they were measured in, are calibrated."""
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
"""Fields that are positive sizes."""

WINOGRAD_KERNEL = 3.0
WINOGRAD_SAVING = 4.0
"""F(4x4, 3x3) does 36 multiplications for 16 outputs instead of 144: the most any library uses."""

PATCH, PATCH_PRODUCTS = 2.0, 16.0
"""F(2x2, 3x3): outputs per side of a patch, and products over the channels per patch."""


def convolution_seconds(conv: Convolution, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds on the GPU, without launch or dispatch."""
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
    winograd_s = product_seconds(plain, winograd, gpu, conv.dtype) + moved / (
        rates.bandwidth * gpu.hbm_bytes_per_s
    )
    return np.where(_fits_winograd(conv), np.minimum(direct_s, winograd_s), direct_s)


def implicit_sizes(conv: Convolution) -> Sizes:
    """Return m, n, k and batch of the product a convolution is in disguise."""
    batch, channels, filters, kernel, _, _ = _convolution_sizes(conv)
    pixels, filters, depth = np.broadcast_arrays(
        batch * output_size(conv) ** 2, filters, channels * kernel * kernel
    )
    return pixels, filters, depth, np.ones(pixels.shape)


def convolution_flops(conv: Convolution) -> Floats:
    """Return the direct algorithm's multiplications and additions.

    >>> one = Convolution(name="c", batch=1, in_channels=1, out_channels=1, kernel_size=3,
    ...                   input_size=3)
    >>> float(convolution_flops(one))
    18.0
    """
    batch, channels, filters, kernel, _, _ = _convolution_sizes(conv)
    return 2.0 * batch * output_size(conv) ** 2 * filters * channels * kernel**2


def convolution_bytes(conv: Convolution) -> Floats:
    """Return the bytes of images, filters and results, each moved once."""
    batch, channels, filters, kernel, size, _ = _convolution_sizes(conv)
    images = batch * channels * size**2
    results = batch * filters * output_size(conv) ** 2
    return (images + results + filters * channels * kernel**2) * BYTES[conv.dtype]


def output_size(conv: Convolution) -> Floats:
    """Return the side of a result."""
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
