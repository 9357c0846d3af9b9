"""Default fp32 rates of a GPU by its data sheet: means and lines over all measured GPUs.

The sustained part of the fp32 peak follows a line through the measured GPUs, by FLOPs per joule;
the other rates are means, and tiles are those of one measured GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulators.catalog.gpu import Gpu, as_sold
from simulators.core.calibration import read_calibration
from simulators.evidence.calibration_files import SUMMARY, Stamp, calibration_file, stamp

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
