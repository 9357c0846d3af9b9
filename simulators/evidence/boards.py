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

LINE_BOARDS = 3
"""A line through fewer boards than this says nothing about another; their mean stands in."""


@dataclass(frozen=True)
class Identity:
    """What of a GPU decides whose numbers it gets: scaled variants of a device share one."""

    name: str
    vendor: str
    architecture: str
    flops_per_j: float  # fp32 peak over the power limit: how hard the board presses on it


@dataclass(frozen=True)
class Board(Identity):
    """A calibrated board in a few numbers: what other boards can borrow."""

    rates: Mapping[str, Mapping[str, Any]]  # by operator class: compute, bandwidth, dispatch_s ...


def identity_of(gpu: Gpu) -> Identity:
    """Return what decides whose numbers a GPU gets, of the real device behind a what-if one."""
    sold = as_sold(gpu)
    per_j = sold.peak_flops.get("fp32", 0.0) / sold.tdp_w
    return Identity(gpu.measured_as or gpu.name, sold.vendor, sold.architecture, per_j)


def boards() -> tuple[Board, ...]:
    """Return all calibrated boards that shipped calibrations sum up."""
    file = calibration_file("fp32", SUMMARY)
    return () if file is None else _boards(file, stamp())


@functools.lru_cache(maxsize=4)
def _boards(file: Path, _now: Stamp) -> tuple[Board, ...]:
    return tuple(Board(**table) for table in read_calibration(file)["board"])


def of_architecture(architecture: str, peers: Sequence[Board]) -> Sequence[Board]:
    """Return the boards of an architecture; all if there is none."""
    return [board for board in peers if board.architecture == architecture] or peers


def nearest_gpu(kin: Sequence[Board]) -> str:
    """Return the GPU whose tiles are taken: the one that sustains most of its peak.

    A GPU that reaches its data sheet's clock shows its tiles without the effect of a power limit.
    """

    def sustained(board: Board) -> tuple[float, str]:
        return float(board.rates.get("linear", {}).get("compute", 0.0)), board.name

    return max(kin, key=sustained).name


def mean_of(label: str, number: str, among: Sequence[Board], otherwise: float) -> float:
    """Return the geometric mean of a number over boards: rates and overheads differ by factors."""
    values = [board.rates[label][number] for board in among if label in board.rates]
    return float(np.exp(np.mean(np.log(values)))) if values else otherwise


def sustained_by_line(label: str, peers: Sequence[Board], flops_per_j: float) -> float:
    """Return the part of the peak a board sustains, by the FLOPs asked of each joule.

    A straight line through the other boards, between the least seen and one.
    """
    seen = [(b.flops_per_j, float(b.rates[label]["compute"])) for b in peers if label in b.rates]
    x, s = np.array(seen).T
    if len(seen) < LINE_BOARDS:
        return float(np.mean(s))
    slope = np.sum((x - x.mean()) * (s - s.mean())) / np.sum((x - x.mean()) ** 2)
    guess = s.mean() + min(float(slope), 0.0) * (flops_per_j - x.mean())
    return float(np.clip(guess, s.min(), max(1.0, s.max())))
