"""A convolution is a matrix product in disguise, or, for 3 x 3 kernels, sixteen smaller ones.

Implicit GEMM: output pixels by output channels by (input channels x kernel area). Winograd's
F(2x2, 3x3) turns each 2 x 2 patch of outputs into 16 independent products over the channels, with
2.25 times fewer multiplications (Lavin and Gray, 2016), and moves the transformed patches through
memory once each way. The library takes the faster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.families.family import MEASURED_DTYPE, Family, Flags
from simulators.kernels.families.gemm import Sizes, class_seconds
from simulators.kernels.monotone_correction import corrected_seconds
from simulators.kernels.profile import GemmRates, Profile
from simulators.kernels.tiling import four_norm
from simulators.workload.operators import BYTES, Column

Floats = NDArray[np.float64]

WINOGRAD_KERNEL = 3.0
WINOGRAD_SAVING = 4.0
"""F(4x4, 3x3) does 36 multiplications for 16 outputs instead of 144: the most any library uses."""

PATCH, PRODUCTS = 2.0, 16.0
"""F(2x2, 3x3): outputs per side of a patch, and products over the channels per patch."""


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A square 2-D convolution over `batch` square images."""

    name: str
    batch: Column
    in_channels: Column
    out_channels: Column
    kernel_size: Column
    input_size: Column
    stride: Column = 1.0
    padding: Column = 0.0
    dtype: str = "fp32"
    repeat: int = 1


def convolution_seconds(conv: Convolution, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds on the GPU, without launch or dispatch."""
    rates = profile.gemm["conv"]
    seconds = algorithm_seconds(conv, gpu, rates)
    if rates.correction is not None:
        seconds = corrected_seconds(rates.correction, implicit_sizes(conv), seconds)
    return np.maximum(seconds, convolution_roofline_s(conv, gpu))


def algorithm_seconds(conv: Convolution, gpu: Gpu, rates: GemmRates) -> Floats:
    """Return the uncorrected seconds of the faster of both algorithms."""
    plain = replace(rates, correction=None)
    batch, channels, filters, kernel, _, stride = _sizes(conv)
    out = output_size(conv)
    direct_s = class_seconds(plain, implicit_sizes(conv), gpu, conv.dtype)
    patches = batch * np.ceil(out / PATCH) ** 2
    winograd = (patches, filters, channels, np.full_like(out, PRODUCTS))
    moved = PRODUCTS * patches * (channels + filters) * BYTES[conv.dtype]
    winograd_s = class_seconds(plain, winograd, gpu, conv.dtype) + moved / (
        rates.bandwidth * gpu.hbm_bytes_per_s
    )
    fits = (kernel == WINOGRAD_KERNEL) & (stride == 1.0)
    return np.where(fits, np.minimum(direct_s, winograd_s), direct_s)


def implicit_sizes(conv: Convolution) -> Sizes:
    """Return m, n, k and batch of the product a convolution is in disguise."""
    batch, channels, filters, kernel, _, _ = _sizes(conv)
    pixels, filters, depth = np.broadcast_arrays(
        batch * output_size(conv) ** 2, filters, channels * kernel * kernel
    )
    return pixels, filters, depth, np.ones(pixels.shape)


def convolution_roofline_s(conv: Convolution, gpu: Gpu) -> Floats:
    """Return the least time the data sheet allows with the best algorithm known."""
    _, _, _, kernel, _, stride = _sizes(conv)
    saving = np.where((kernel == WINOGRAD_KERNEL) & (stride == 1.0), WINOGRAD_SAVING, 1.0)
    return np.maximum(
        convolution_flops(conv) / saving / gpu.peak(conv.dtype),
        convolution_bytes(conv) / gpu.hbm_bytes_per_s,
    )


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
    sizes = (
        conv.batch, conv.in_channels, conv.out_channels, conv.kernel_size, conv.input_size,
        conv.stride,
    )  # fmt: skip
    return tuple(np.asarray(size, np.float64) for size in sizes)


def convolution_call_seconds(conv: Convolution, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of a call timed alone."""
    return four_norm(convolution_seconds(conv, gpu, profile), profile.gemm["conv"].dispatch_s)


def _class(_conv: Convolution, _gpu: Gpu, _profile: Profile) -> NDArray[np.str_]:
    return np.array("conv")


def _origin(conv: Convolution, _gpu: Gpu, profile: Profile) -> tuple[bool, Flags]:
    rates = profile.gemm["conv"]
    sizes = implicit_sizes(conv)
    outside = np.zeros(sizes[0].shape, bool)
    for size, (least, most) in zip(sizes, rates.seen, strict=False):
        outside |= (size < least) | (size > most)
    return rates.calibrated and conv.dtype == MEASURED_DTYPE, outside


FAMILY = Family(
    seconds=convolution_seconds,
    call_seconds=convolution_call_seconds,
    flops=convolution_flops,
    moved_bytes=convolution_bytes,
    roofline_s=convolution_roofline_s,
    classes=_class,
    origin=_origin,
)
