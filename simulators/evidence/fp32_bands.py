"""The 90 % intervals of fp32 operators on a board that nobody calibrated, by those of other boards.

Each calibrated board was predicted as if it were new (`lab.fits fp32_errors`): from its data sheet,
and from ten of its rows. The next board is as far off as any of these, each of which counts as much
as the others: its interval holds nine tenths of all their rows, its ends moved out by `1 + 1 / n`
for `n` boards, since few of them show less than there is.

Where a few rows are known, errors are counted in a unit of the board's own: what these rows lie off
when left out in turn, as the root of their mean square, with one more row that lies off as those of
other boards do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulators.core.calibration import read_calibration
from simulators.core.folder import once
from simulators.core.jit import Floats
from simulators.evidence.intervals import COVERED, WIDEST, Band, everywhere

CALIBRATION = Path(__file__).parent / "calibration" / "fp32_errors.toml"


def bands_by_sheet(boards: Collection[str]) -> dict[str, Band]:
    """Return the bands of a board whose data sheet alone is known, by class of operators."""
    return {
        label: band_of_boards([np.array(errors["sheet"]) for errors in found])
        for label, found in _of_classes(boards).items()
    }


def band_by_rows(label: str, missed: Floats, boards: Collection[str]) -> Band:
    """Return the band of a board of which a few rows of a class of operators are known.

    Args:
        label: of the class.
        missed: logarithms of measured over predicted of these rows, each left out in its turn.
        boards: others.
    """
    if not (found := _of_classes(boards).get(label)):
        return WIDEST
    unit = unit_of(missed, [float(errors["unit"]) for errors in found])
    return band_of_boards([np.array(errors["rows"]) for errors in found], unit)


def unit_of(missed: Floats, others: Collection[float]) -> float:
    """Return in what the errors of a board are counted.

    >>> round(unit_of(np.array([0.1, -0.1, 0.1]), [0.2, 0.8]), 4)
    0.2179
    """
    usual = np.exp(2.0 * np.mean(np.log([*others])))
    return float(np.sqrt((np.sum(missed**2) + usual) / (missed.size + 1)))


def band_of_boards(errors: Collection[Floats], unit: float = 1.0) -> Band:
    """Return what nine of ten rows of one more board fall into.

    Args:
        errors: quantiles of each board, as many of each, of logarithms of measured over predicted.
        unit: in which they are counted.
    """
    ends = np.quantile(np.concatenate([*errors]), COVERED) * unit * (1.0 + 1.0 / len(errors))
    return everywhere(*np.exp(ends).tolist())


def _of_classes(boards: Collection[str]) -> Mapping[str, list[Mapping[str, Any]]]:
    """Return the errors of some boards, by class of operators."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    known = once(read_calibration, CALIBRATION)["board"]
    for board in boards:
        for label, errors in known.get(board, {}).items():
            found.setdefault(label, []).append(errors)
    return found
