"""Fit the share of peak FLOP/s that tensor cores sustain, against FLOPs per joule, by vendor.

A point is an architecture and a format: the median over GPUs, libraries and products of at least
4,096 a side of the FLOP/s reached over the data sheet's peak. AMD's fp32 products run on matrix
units and count; NVIDIA's do not. Errors and intervals are of architectures left out: one interval
of formats multiplied as stored, one of those whose activations are quantised first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, rounded
from lab.fits.methods.held_out import band_of, leave_one_out
from lab.fits.methods.transfer_trials import TRIAL_ROWS
from lab.tables import fp32
from lab.tables.rows import Floats, Rows
from lab.tables.tensor_kernels import PRODUCERS, PRODUCTS, read_tensor_rows
from simulators.catalog.gpu import load_gpu
from simulators.evidence.default_rates import SUSTAINED_PEAKS, flops_per_j, share_of
from simulators.evidence.intervals import Band
from simulators.kernels.families.gemm import sizes_of
from simulators.kernels.levels import sustaining
from simulators.kernels.price import roofline_s
from simulators.kernels.profile import default_profile, product_seconds
from simulators.workload.precision import QUANTISED

FOLDER = SUSTAINED_PEAKS.parent
LARGE, FEWEST = 4096, 3
"""Least side of products that show sustained rates, and how many of them a GPU must have."""

KINDS = ("bf16", "fp8", "int8", "fp4")


@dataclass(frozen=True)
class Point:
    """Share of peak FLOP/s sustained by GPUs of an architecture in a dtype."""

    vendor: str
    architecture: str
    dtype: str
    asked: float  # log of TFLOPs per joule
    share: float  # log of the sustained share


@dataclass(frozen=True)
class SustainedLine:
    """Sustained share as a line in log-log space, and the log of each vendor's factor."""

    level: float
    slope: float
    most: float
    vendors: dict[str, float]

    def share(self, vendor: str, asked: float) -> float:
        """Return the share of the peak that is sustained."""
        factor = math.exp(self.vendors.get(vendor, 0.0))
        return share_of(asked, self.level, self.slope, self.most, factor)


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the line, the vendors' factors and the intervals."""
    tensor = [r for r in read_tensor_rows(reference, PRODUCERS) if r.dtype in KINDS]
    scalar = [r for r in fp32.read_rows(reference)[0] if r.kernel == "linear"]
    scalar = [r for r in scalar if load_gpu(r.gpu).vendor == "amd"]
    points = points_of([*tensor, *scalar])
    line = line_of(points)
    left_out = list(leave_one_out(points, lambda point: point.architecture, line_of))
    others = {out[0].architecture: fitted for out, fitted in left_out}
    plain = [rows for rows in tensor if rows.operator.dtype not in QUANTISED]
    quantised = [rows for rows in tensor if rows.operator.dtype in QUANTISED]
    bands = {"plain": _band(plain, others), "quantised": _band(quantised, others)}
    yield Calibration(
        name=SUSTAINED_PEAKS.stem,
        content={
            "line": rounded({n: getattr(line, n) for n in ("level", "slope", "most")}, ".4g"),
            "vendor": rounded({n: math.exp(value) for n, value in line.vendors.items()}, ".4g"),
            "band": {name: rounded(vars(band), ".4f") for name, band in bands.items()},
        },
        style=".6g",
        tables=[PRODUCTS, *fp32.TABLES],
        rows=len(points),
        split="each architecture in turn",
        errors=[
            fitted.share(point.vendor, point.asked) / math.exp(point.share) - 1.0
            for out, fitted in left_out
            for point in out
        ],
    )


def _band(parts: Sequence[Rows], others: Mapping[str, SustainedLine]) -> Band:
    """Return the interval of products, by lines that their architecture was left out of."""
    pairs, seen = [], set[str]()
    for rows in parts:
        architecture = load_gpu(rows.gpu).architecture
        if architecture in others:
            seen.add(architecture)
            some = rows.thinned(TRIAL_ROWS)
            pairs.append((sheet_seconds(some, others[architecture]), some.seconds))
    predicted_s, measured_s = map(np.concatenate, zip(*pairs, strict=True))
    return band_of(predicted_s, measured_s, widen=1.0 + 1.0 / len(seen))


def points_of(parts: Sequence[Rows]) -> list[Point]:
    """Return a point for each architecture and format with enough large products."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for part in parts:
        gpu, dtype = load_gpu(part.gpu), part.operator.dtype
        m, n, k, batch = np.broadcast_arrays(*sizes_of(part.operator), part.seconds)[:4]
        large = np.minimum(np.minimum(m, n), k) >= LARGE
        if np.count_nonzero(large) >= FEWEST:
            reached = (2.0 * m * n * k * batch / part.seconds)[large] / gpu.peak(dtype)
            asked = math.log(flops_per_j(gpu, dtype))
            place = gpu.vendor, gpu.architecture, dtype
            found.setdefault(place, []).append((asked, float(np.log(np.median(reached)))))
    return [Point(*place, *np.median(some, axis=0).tolist()) for place, some in found.items()]


def line_of(points: Sequence[Point]) -> SustainedLine:
    """Return the line through the vendor with most points, and the other vendors' factors.

    Architectures have equal weights, however many formats they have.
    """
    names = [p.vendor for p in points]
    first = max(dict.fromkeys(names), key=names.count)
    some = [p for p in points if p.vendor == first]
    architectures = [p.architecture for p in some]
    weights = np.array([architectures.count(name) for name in architectures]) ** -0.5
    asked, share = np.array([(p.asked, p.share) for p in some]).T
    slope, level = np.polyfit(asked, share, 1, w=weights).tolist()
    line = SustainedLine(level, min(slope, 0.0), 1.0, {})
    for name in dict.fromkeys(names):
        off = [p.share - math.log(line.share("", p.asked)) for p in points if p.vendor == name]
        line.vendors[name] = 0.0 if name == first else float(np.mean(off))
    return replace(line, most=math.exp(share.max()))


def sheet_seconds(rows: Rows, line: SustainedLine) -> Floats:
    """Return the seconds of products by the data sheet and a line of sustained shares."""
    gpu, operator = load_gpu(rows.gpu), rows.operator
    profile = default_profile(gpu.vendor)
    share = line.share(gpu.vendor, math.log(flops_per_j(gpu, operator.dtype)))
    rates = sustaining(profile.gemm["tensor"], share, gpu, operator.dtype)
    formats = operator.dtype, operator.weight_dtype
    seconds = profile.kernel_s + product_seconds(rates, sizes_of(operator), gpu, *formats)
    return np.maximum(seconds, roofline_s(operator, gpu))
