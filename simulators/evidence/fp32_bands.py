"""90 % intervals of fp32 operators on a GPU without measurements, by errors on other GPUs.

Each measured GPU was predicted as if it were new (`lab.fits fp32_errors`), from its data sheet and
from ten of its rows. The interval covers nine tenths of the pooled errors, each GPU weighted alike,
widened by `1 + 1 / n` for `n` GPUs. With a few rows, errors are scaled by the root mean square of
the GPU's own leave-one-out errors, with one more row that has the error of other GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulators.core.calibration import read_calibration
from simulators.core.folder import once
from simulators.core.jit import Floats
from simulators.evidence.intervals import COVERED, Band, everywhere

CALIBRATION = Path(__file__).parent / "calibration" / "fp32_errors.toml"


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
    known = once(read_calibration, CALIBRATION)["gpu"]
    for gpu in gpus:
        for label, errors in known.get(gpu, {}).items():
            found.setdefault(label, []).append(errors)
    return found
