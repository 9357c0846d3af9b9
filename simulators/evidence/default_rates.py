"""Default fp32 rates of a GPU by its data sheet: means and lines over all measured GPUs.

The sustained part of the fp32 peak follows a line through the measured GPUs, by FLOPs per joule;
the other rates are means, and tiles are those of one measured GPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulators.catalog.gpu import Gpu, as_sold
from simulators.core.calibration import read_calibration
from simulators.core.folder import once
from simulators.core.jit import Floats
from simulators.evidence.calibration_files import SUMMARY, Stamp, calibration_file, stamp
from simulators.evidence.intervals import COVERED, Band, everywhere

MIN_GPUS_OF_LINE = 3
"""A line through fewer GPUs than this says nothing about another; their mean stands in."""


@dataclass(frozen=True)
class Identity:
    """The properties by which sources are chosen; scaled variants of a device share them."""

    name: str
    vendor: str
    architecture: str
    flops_per_j: float  # fp32 peak over the power limit: how hard the GPU presses on it


@dataclass(frozen=True)
class MeasuredGpu(Identity):
    """A calibrated GPU in a few numbers that can be transferred to other GPUs."""

    rates: Mapping[str, Mapping[str, Any]]  # by operator class: compute, bandwidth, dispatch_s ...


def identity_of(gpu: Gpu) -> Identity:
    """Return the identity of a GPU; a what-if GPU has the identity of the real device."""
    sold = as_sold(gpu)
    per_j = sold.peak_flops.get("fp32", 0.0) / sold.tdp_w
    return Identity(gpu.measured_as or gpu.name, sold.vendor, sold.architecture, per_j)


def measured_gpus() -> tuple[MeasuredGpu, ...]:
    """Return all calibrated GPUs that shipped calibrations sum up."""
    file = calibration_file("fp32", SUMMARY)
    return () if file is None else _measured_gpus(file, stamp())


@functools.lru_cache(maxsize=4)
def _measured_gpus(file: Path, _now: Stamp) -> tuple[MeasuredGpu, ...]:
    return tuple(MeasuredGpu(**table) for table in read_calibration(file)["gpu"])


def of_architecture(architecture: str, peers: Sequence[MeasuredGpu]) -> Sequence[MeasuredGpu]:
    """Return the GPUs of an architecture; all if there is none."""
    return [gpu for gpu in peers if gpu.architecture == architecture] or peers


def nearest_gpu(kin: Sequence[MeasuredGpu]) -> str:
    """Return the source of tiles: the GPU that sustains the largest share of peak.

    A GPU that reaches its data sheet's clock shows its tiles without the effect of a power limit.
    """

    def sustained(gpu: MeasuredGpu) -> tuple[float, str]:
        return float(gpu.rates.get("linear", {}).get("compute", 0.0)), gpu.name

    return max(kin, key=sustained).name


def mean_of(label: str, number: str, among: Sequence[MeasuredGpu], otherwise: float) -> float:
    """Return the geometric mean of a number over GPUs: rates and overheads differ by factors."""
    values = [gpu.rates[label][number] for gpu in among if label in gpu.rates]
    return float(np.exp(np.mean(np.log(values)))) if values else otherwise


def sustained_by_line(label: str, peers: Sequence[MeasuredGpu], flops_per_j: float) -> float:
    """Return the part of the peak a GPU sustains, by the FLOPs asked of each joule.

    A straight line through the other GPUs, between the least seen and one.
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
    """Return the part of the dense peak of a precision that large products sustain.

    A what-if GPU has the share of the real GPU. A vendor without measurements has a factor of 1.
    """
    line, vendors = _sustained_peaks()["line"], _sustained_peaks()["vendor"]
    asked = math.log(flops_per_j(gpu, dtype))
    return share_of(asked, factor=float(vendors.get(gpu.vendor, 1.0)), **line)


def share_of(asked: float, level: float, slope: float, most: float, factor: float = 1.0) -> float:
    """Return the sustained part where the logarithm of the TFLOPs per joule is `asked`.

    The line ends at the peak; with the vendor's factor, at the largest measured share.

    >>> [round(share_of(math.log(x), -0.2, -0.3, 0.9), 3) for x in (0.1, 1.0, 2.0)]
    [0.9, 0.819, 0.665]
    """
    return min(most, factor * math.exp(min(0.0, level + slope * asked)))


def flops_per_j(gpu: Gpu, dtype: str) -> float:
    """Return the TFLOPs that the peak asks of each joule at the power limit."""
    sold = as_sold(gpu)
    return sold.peak(dtype) / sold.tdp_w / 1e12


def sheet_bands(vendor: str) -> dict[str, Band]:
    """Return the prediction intervals of products priced by data sheet, for a vendor's GPUs.

    `plain` is for formats without quantization of activations, `quantised` for the others. Both
    were measured on GPUs of the vendor with a factor of one. Another's factor comes from other
    formats, so it may as well be absent or twice as large in logarithms, and adds by squares; where
    there is none, the farthest that was seen may be missing.
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
    """Return the bands of a GPU whose data sheet alone is known, by class of operators."""
    return {
        label: band_of_gpus([np.array(errors["sheet"]) for errors in found])
        for label, found in errors_of(gpus).items()
    }


def band_of_gpus(errors: Collection[Floats], unit: float = 1.0) -> Band:
    """Return the 90 % prediction interval for rows of a new GPU.

    Errors are quantiles of each GPU, as many of each, of logarithms of measured over predicted.
    """
    ends = np.quantile(np.concatenate([*errors]), COVERED) * unit * (1.0 + 1.0 / len(errors))
    return everywhere(*np.exp(ends).tolist())


def errors_of(gpus: Collection[str]) -> Mapping[str, list[Mapping[str, Any]]]:
    """Return the errors of some GPUs, by class of operators."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    known = once(read_calibration, FP32_ERRORS)["gpu"]
    for gpu in gpus:
        for label, errors in known.get(gpu, {}).items():
            found.setdefault(label, []).append(errors)
    return found
