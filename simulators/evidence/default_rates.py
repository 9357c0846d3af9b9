"""Default rates of a GPU without measurements, from its data sheet and all measured GPUs.

fp32: the sustained share of the peak follows a line through the measured GPUs in FLOPs per joule.
The other rates are means, and the tiles are those of one measured GPU. Intervals come from the
errors of measured GPUs that were predicted as if they were new (`lab.fits fp32_errors`): quantiles
of the pooled errors, with equal weight per GPU, widened by `1 + 1 / n` for `n` GPUs.

Matrix units: the more FLOPs per joule a data sheet promises, the smaller the sustained share of the
peak. Over architectures and dtypes of 4 to 16 bits its logarithm falls along a line in the
logarithm of FLOPs per joule. Vendors with measured products have a factor. Line, factors and
intervals are fitted with one architecture left out in turn (`lab.fits sustained_peaks`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulators.catalog.gpu import Gpu, base_gpu
from simulators.core.calibration import read_calibration
from simulators.core.folder import once
from simulators.core.jit import Floats
from simulators.evidence.intervals import COVERED, Band, uniform_band
from simulators.evidence.lookup import SUMMARY, Stamp, calibration_file, stamp

MIN_GPUS_OF_LINE = 3
"""Least number of GPUs for a line; the mean replaces a line through fewer GPUs."""


@dataclass(frozen=True)
class Identity:
    """The properties by which sources are chosen. What-if variants of a GPU share them."""

    name: str
    vendor: str
    architecture: str
    flops_per_j: float  # fp32 peak over the power limit


@dataclass(frozen=True)
class MeasuredGpu(Identity):
    """A calibrated GPU, with the rates that can be transferred to other GPUs."""

    rates: Mapping[str, Mapping[str, Any]]  # by operator class: compute, bandwidth, dispatch_s ...


def identity_of(gpu: Gpu) -> Identity:
    """Return the identity of a GPU; a what-if GPU has the identity of the real device."""
    base = base_gpu(gpu)
    per_j = base.peak_flops.get("fp32", 0.0) / base.tdp_w
    return Identity(gpu.measured_as or gpu.name, base.vendor, base.architecture, per_j)


def measured_gpus() -> tuple[MeasuredGpu, ...]:
    """Return all GPUs in the summary of the shipped calibrations."""
    file = calibration_file("fp32", SUMMARY)
    return () if file is None else _measured_gpus(file, stamp())


@functools.lru_cache(maxsize=4)
def _measured_gpus(file: Path, _now: Stamp) -> tuple[MeasuredGpu, ...]:
    return tuple(MeasuredGpu(**table) for table in read_calibration(file)["gpu"])


def of_architecture(architecture: str, peers: Sequence[MeasuredGpu]) -> Sequence[MeasuredGpu]:
    """Return the GPUs of an architecture, or all GPUs if none has this architecture."""
    return [gpu for gpu in peers if gpu.architecture == architecture] or peers


def nearest_gpu(kin: Sequence[MeasuredGpu]) -> str:
    """Return the name of the GPU that sustains the largest share of its peak: the source of tiles.

    The rates of a GPU that reaches the clock of its data sheet show no effect of a power limit.
    """

    def sustained(gpu: MeasuredGpu) -> tuple[float, str]:
        return float(gpu.rates.get("linear", {}).get("compute", 0.0)), gpu.name

    return max(kin, key=sustained).name


def mean_of(label: str, number: str, among: Sequence[MeasuredGpu], otherwise: float) -> float:
    """Return the geometric mean of a rate over GPUs, or `otherwise` if no GPU has the rate."""
    values = [gpu.rates[label][number] for gpu in among if label in gpu.rates]
    return float(np.exp(np.mean(np.log(values)))) if values else otherwise


def sustained_by_line(label: str, peers: Sequence[MeasuredGpu], flops_per_j: float) -> float:
    """Return the sustained share of the fp32 peak, by a line in FLOPs per joule.

    The line is fitted to the other GPUs. Its values are limited to the range from the least
    measured share to 1.
    """
    seen = [(b.flops_per_j, float(b.rates[label]["compute"])) for b in peers if label in b.rates]
    x, s = np.array(seen).T
    if len(seen) < MIN_GPUS_OF_LINE:
        return float(np.mean(s))
    slope = np.sum((x - x.mean()) * (s - s.mean())) / np.sum((x - x.mean()) ** 2)
    guess = s.mean() + min(float(slope), 0.0) * (flops_per_j - x.mean())
    return float(np.clip(guess, s.min(), max(1.0, s.max())))


SUSTAINED_PEAKS = Path(__file__).parent / "calibration" / "sustained_peaks.toml"


def sustained_share(gpu: Gpu, dtype: str) -> float:
    """Return the share of a precision's dense peak that large matrix products sustain.

    A what-if GPU has the share of its base GPU. A vendor without measurements has a factor of 1.
    """
    line, vendors = _sustained_peaks()["line"], _sustained_peaks()["vendor"]
    asked = math.log(flops_per_j(gpu, dtype))
    return share_of(asked, factor=float(vendors.get(gpu.vendor, 1.0)), **line)


def share_of(asked: float, level: float, slope: float, most: float, factor: float = 1.0) -> float:
    """Return the sustained share of the peak. `asked`: logarithm of the peak's TFLOPs per joule.

    The line ends at the peak. With the vendor's factor it ends at `most`, the largest measured
    share.

    >>> [round(share_of(math.log(x), -0.2, -0.3, 0.9), 3) for x in (0.1, 1.0, 2.0)]
    [0.9, 0.819, 0.665]
    """
    return min(most, factor * math.exp(min(0.0, level + slope * asked)))


def flops_per_j(gpu: Gpu, dtype: str) -> float:
    """Return the TFLOPs per joule at peak rate and power limit."""
    base = base_gpu(gpu)
    return base.peak(dtype) / base.tdp_w / 1e12


def sheet_bands(vendor: str) -> dict[str, Band]:
    """Return the prediction intervals of products that are priced by data sheet.

    `plain` is for formats without quantization of activations, `quantised` for the others. Both
    were measured on GPUs of the vendor whose factor is 1. For another vendor the logarithm of its
    factor widens the interval by squares; without a factor, the largest known one does.
    """
    factors = _sustained_peaks()["vendor"]
    known = {name: abs(math.log(factor)) for name, factor in factors.items()}
    unsure = known.get(vendor, max(known.values()))
    return {
        name: Band(
            tuple(math.exp(-math.hypot(math.log(lo), unsure)) for lo in table["lo"]),
            tuple(math.exp(math.hypot(math.log(hi), unsure)) for hi in table["hi"]),
        )
        for name, table in _sustained_peaks()["band"].items()
    }


@functools.cache
def _sustained_peaks() -> Mapping[str, Any]:
    return read_calibration(SUSTAINED_PEAKS)


FP32_ERRORS = Path(__file__).parent / "calibration" / "fp32_errors.toml"


def bands_by_sheet(gpus: Collection[str]) -> dict[str, Band]:
    """Return the bands of a GPU without measurements, by class of operators."""
    return {
        label: band_of_gpus([np.array(errors["sheet"]) for errors in found])
        for label, found in errors_of(gpus).items()
    }


def band_of_gpus(errors: Collection[Floats], unit: float = 1.0) -> Band:
    """Return the 90 % prediction interval for rows of a new GPU.

    Args:
        errors: per measured GPU, the same number of quantiles of log(measured / predicted).
        unit: factor on the errors, such as the scale of a GPU's own errors.
    """
    ends = np.quantile(np.concatenate([*errors]), COVERED) * unit * (1.0 + 1.0 / len(errors))
    return uniform_band(*np.exp(ends).tolist())


def errors_of(gpus: Collection[str]) -> Mapping[str, list[Mapping[str, Any]]]:
    """Return the calibrated errors of GPUs, by class of operators."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    known = once(read_calibration, FP32_ERRORS)["gpu"]
    for gpu in gpus:
        for label, errors in known.get(gpu, {}).items():
            found.setdefault(label, []).append(errors)
    return found
