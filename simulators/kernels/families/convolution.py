"""The time of a convolution: that of one matrix product or, for 3 x 3 kernels, of sixteen smaller.

Implicit GEMM: output pixels by output channels by (input channels x kernel area). Winograd's
F(2x2, 3x3) turns each 2 x 2 patch of outputs into 16 independent products over the channels, with
2.25 times fewer multiplications (Lavin and Gray, 2016), and moves the transformed patches through
memory once each way. The library takes the faster.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.families.family import MEASURED_DTYPE, Flags, OperatorFamily, outside
from simulators.kernels.monotone_correction import corrected_seconds
from simulators.kernels.profile import GemmRates, Profile, Sizes, product_seconds
from simulators.workload.operators import Convolution
from simulators.workload.precision import BYTES

SIZES = ("batch", "in_channels", "out_channels", "kernel_size", "input_size", "stride")
"""Fields that are positive sizes."""

WINOGRAD_KERNEL = 3.0
WINOGRAD_SAVING = 4.0
"""F(4x4, 3x3) does 36 multiplications for 16 outputs instead of 144: the most any library uses."""

PATCH, PRODUCTS = 2.0, 16.0
"""F(2x2, 3x3): outputs per side of a patch, and products over the channels per patch."""


def convolution_seconds(conv: Convolution, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds on the GPU, without launch or dispatch."""
    rates = profile.gemm["conv"]
    seconds = algorithm_seconds(conv, gpu, rates)
    if rates.correction is not None:
        seconds = corrected_seconds(rates.correction, implicit_sizes(conv), seconds)
    return np.maximum(seconds, FAMILY.roofline_s(conv, gpu))


def algorithm_seconds(conv: Convolution, gpu: Gpu, rates: GemmRates) -> Floats:
    """Return the uncorrected seconds of the faster of both algorithms."""
    plain = replace(rates, correction=None)
    batch, channels, filters, *_ = _sizes(conv)
    out = output_size(conv)
    direct_s = product_seconds(plain, implicit_sizes(conv), gpu, conv.dtype)
    patches = batch * np.ceil(out / PATCH) ** 2
    winograd = (patches, filters, channels, np.full_like(out, PRODUCTS))
    moved = PRODUCTS * patches * (channels + filters) * BYTES[conv.dtype]
    winograd_s = product_seconds(plain, winograd, gpu, conv.dtype) + moved / (
        rates.bandwidth * gpu.hbm_bytes_per_s
    )
    return np.where(_fits_winograd(conv), np.minimum(direct_s, winograd_s), direct_s)


def implicit_sizes(conv: Convolution) -> Sizes:
    """Return m, n, k and batch of the product a convolution is in disguise."""
    batch, channels, filters, kernel, _, _ = _sizes(conv)
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
    batch, channels, filters, kernel, _, _ = _sizes(conv)
    return 2.0 * batch * output_size(conv) ** 2 * filters * channels * kernel**2


def convolution_bytes(conv: Convolution) -> Floats:
    """Return the bytes of images, filters and results, each moved once."""
    batch, channels, filters, kernel, size, _ = _sizes(conv)
    images = batch * channels * size**2
    results = batch * filters * output_size(conv) ** 2
    return (images + results + filters * channels * kernel**2) * BYTES[conv.dtype]


def output_size(conv: Convolution) -> Floats:
    """Return the side of a result."""
    _, _, _, kernel, size, stride = _sizes(conv)
    padded = size + 2.0 * np.asarray(conv.padding, np.float64)
    return np.maximum(np.floor((padded - kernel) / stride) + 1.0, 1.0)


def _sizes(conv: Convolution) -> tuple[Floats, ...]:
    return tuple(np.asarray(getattr(conv, name), np.float64) for name in SIZES)


def _fits_winograd(conv: Convolution) -> Flags:
    _, _, _, kernel, _, stride = _sizes(conv)
    return np.asarray((kernel == WINOGRAD_KERNEL) & (stride == 1.0))


def _origin(conv: Convolution, _gpu: Gpu, profile: Profile) -> tuple[bool, Flags]:
    rates = profile.gemm["conv"]
    calibrated = rates.calibrated and conv.dtype == MEASURED_DTYPE
    return calibrated, outside(implicit_sizes(conv), rates.seen)


FAMILY = OperatorFamily(
    seconds=convolution_seconds,
    call=lambda _conv, _gpu, profile: (0.0, profile.gemm["conv"].dispatch_s),
    flops=convolution_flops,
    moved_bytes=convolution_bytes,
    saving=lambda conv: np.where(_fits_winograd(conv), WINOGRAD_SAVING, 1.0),
    classes=lambda _conv, _gpu, _profile: "conv",
    origin=_origin,
)
