"""Fit what part of their peak matrix units sustain, by the FLOPs asked of each joule and by vendor.

A point is an architecture and a format: the median over boards, libraries and products of at least
4,096 a side of what was reached, over the data sheet's peak. AMD's fp32 products run on matrix
units and count; NVIDIA's do not. Leaving an architecture out is the error that is told; intervals
are of all its products, large and small, priced by the data sheet and what the others say: one of
formats multiplied as they come, one of those whose calls quantise activations first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, band_lines, calibration, hashes
from lab.fits.methods.bands import band_of, stretched
from lab.fits.methods.borrowing_trials import TRIAL_ROWS
from lab.tables.kernels import fp32_kernels
from lab.tables.kernels.tensor_cores import PRODUCERS, TABLE, read_tensor_rows
from lab.tables.rows import Floats, Rows
from simulators.catalog.gpu import load_gpu
from simulators.evidence.intervals import Band
from simulators.evidence.sustained import CALIBRATION, flops_per_j, share_of
from simulators.kernels.families.gemm import sizes_of
from simulators.kernels.families.tensor_cores import sustaining
from simulators.kernels.price import roofline_s
from simulators.kernels.profile import default_profile, product_seconds
from simulators.workload.precision import QUANTISED

FOLDER = CALIBRATION.parent
SPLIT = "each architecture in turn"

LARGE = 4096
"""Products of at least so many rows, columns and steps say what is sustained."""

FEWEST = 3
"""Of them, for a board and a library to say anything."""

KINDS = ("bf16", "fp8", "int8", "fp4")
"""Formats multiplied as they are stored."""


@dataclass(frozen=True)
class Point:
    """What boards of one architecture sustain in one format."""

    vendor: str
    architecture: str
    dtype: str
    asked: float  # log of TFLOPs per joule
    share: float  # log of the sustained part


@dataclass(frozen=True)
class Line:
    """What any board sustains: a line, and the logarithm of each vendor's factor."""

    level: float
    slope: float
    most: float
    vendors: dict[str, float]

    def share(self, vendor: str, asked: float) -> float:
        """Return the part of the peak that is sustained."""
        factor = math.exp(self.vendors.get(vendor, 0.0))
        return share_of(asked, self.level, self.slope, self.most, factor)


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the line, the vendors' factors and the interval."""
    tensor = [r for r in read_tensor_rows(reference, PRODUCERS) if r.dtype in KINDS]
    scalar = [r for r in fp32_kernels.read_rows(reference)[0] if r.kernel == "linear"]
    scalar = [r for r in scalar if load_gpu(r.gpu).vendor == "amd"]
    points = points_of([*tensor, *scalar])
    line, found = line_of(points), {one.architecture for one in points}
    blind = {out: line_of([p for p in points if p.architecture != out]) for out in found}
    errors = [blind[p.architecture].share(p.vendor, p.asked) / math.exp(p.share) for p in points]
    bands = {
        name: _band([rows for rows in tensor if (rows.operator.dtype in QUANTISED) == which], blind)
        for name, which in (("plain", False), ("quantised", True))
    }
    lines = [
        "[line]",
        f"level = {line.level:.4g}",
        f"slope = {line.slope:.4g}",
        f"most = {line.most:.4g}",
        "[vendor]",
        *(f"{name} = {math.exp(v):.4g}" for name, v in line.vendors.items()),
        *(line for name, band in bands.items() for line in [f"[band.{name}]", *band_lines(band)]),
    ]
    yield calibration(
        CALIBRATION.stem,
        hashes(reference, [TABLE, *fp32_kernels.TABLES]),
        rows=len(points),
        split=SPLIT,
        held_out=np.array(errors) - 1.0,
        lines=lines,
    )


def _band(parts: Sequence[Rows], blind: Mapping[str, Line]) -> Band:
    """Return the interval of products of architectures that were left out of their line."""
    pairs, seen = [], set[str]()
    for rows in parts:
        architecture = load_gpu(rows.gpu).architecture
        if architecture in blind:
            seen.add(architecture)
            some = rows.thinned(TRIAL_ROWS)
            pairs.append((sheet_seconds(some, blind[architecture]), some.seconds))
    band = band_of(*(np.concatenate(column) for column in zip(*pairs, strict=True)))
    return stretched(band, 1.0 + 1.0 / len(seen))


def points_of(parts: Sequence[Rows]) -> list[Point]:
    """Return what architectures sustain in each format, of those with enough large products."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for part in parts:
        gpu, dtype = load_gpu(part.gpu), part.operator.dtype
        m, n, k, batch = (
            np.broadcast_to(size, part.seconds.shape) for size in sizes_of(part.operator)
        )
        large = np.minimum(np.minimum(m, n), k) >= LARGE
        if np.count_nonzero(large) < FEWEST:
            continue
        reached = (2.0 * m * n * k * batch / part.seconds)[large] / gpu.peak(dtype)
        place = gpu.vendor, gpu.architecture, dtype
        asked = math.log(flops_per_j(gpu, dtype))
        found.setdefault(place, []).append((asked, float(np.log(np.median(reached)))))
    return [Point(*place, *np.median(some, axis=0).tolist()) for place, some in found.items()]


def line_of(points: Sequence[Point]) -> Line:
    """Return the line through the vendor with most points, and what others are off it.

    Architectures count alike, whatever formats they have.
    """
    names = [p.vendor for p in points]
    first = max(dict.fromkeys(names), key=names.count)
    some = [p for p in points if p.vendor == first]
    architectures = [p.architecture for p in some]
    weights = np.array([architectures.count(name) for name in architectures]) ** -0.5
    asked, share = np.array([(p.asked, p.share) for p in some]).T
    slope, level = np.polyfit(asked, share, 1, w=weights).tolist()
    line = Line(level, min(slope, 0.0), 1.0, {})
    for name in dict.fromkeys(names):
        off = [p.share - math.log(line.share("", p.asked)) for p in points if p.vendor == name]
        line.vendors[name] = 0.0 if name == first else float(np.mean(off))
    return replace(line, most=math.exp(share.max()))


def sheet_seconds(rows: Rows, line: Line) -> Floats:
    """Return the seconds of products by a data sheet and what others sustain."""
    gpu, operator = load_gpu(rows.gpu), rows.operator
    profile = default_profile(gpu.vendor)
    share = line.share(gpu.vendor, math.log(flops_per_j(gpu, operator.dtype)))
    rates = sustaining(profile.gemm["tensor"], share, gpu, operator.dtype)
    formats = operator.dtype, operator.weight_dtype
    seconds = profile.kernel_s + product_seconds(rates, sizes_of(operator), gpu, *formats)
    return np.maximum(seconds, roofline_s(operator, gpu))
