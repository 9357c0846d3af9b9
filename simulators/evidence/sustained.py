"""Sustained part of the matrix-unit peak in large products, by the data sheet alone.

The more FLOPs per joule a data sheet promises, the less of the peak is sustained: over
architectures and dtypes of 4 to 16 bits the log of the sustained part falls along a line in the log
of FLOPs per joule, up to the most that was measured. Each vendor with measured products has a
factor. Line, factors and interval are fitted leaving one architecture out in turn (`lab.fits
sustained_peaks`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulators.catalog.gpu import Gpu, as_sold
from simulators.core.calibration import read_calibration
from simulators.evidence.intervals import Band

CALIBRATION = Path(__file__).parent / "calibration" / "sustained_peaks.toml"


def sustained_share(gpu: Gpu, dtype: str) -> float:
    """Return the part of the dense peak of a precision that large products sustain.

    A what-if GPU has the share of the real GPU. A vendor without measurements has a factor of 1.
    """
    line, vendors = _fitted()["line"], _fitted()["vendor"]
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
    factors = _fitted()["vendor"]
    known = {name: abs(math.log(factor)) for name, factor in factors.items()}
    unsure = known.get(vendor, max(known.values()))
    return {
        name: Band(
            tuple(math.exp(-math.hypot(math.log(lo), unsure)) for lo in table["lo"]),
            tuple(math.exp(math.hypot(math.log(hi), unsure)) for hi in table["hi"]),
        )
        for name, table in _fitted()["band"].items()
    }


@functools.cache
def _fitted() -> Mapping[str, Any]:
    return read_calibration(CALIBRATION)
