"""The interval of a pass is composed of those of its parts, some of which err together.

Kernels of one family on one GPU share rates, trees and a framework: they are taken to err
together, so half-widths of their intervals add up, over layers and stages too. Families err on
their own: products know nothing of links. So families add up by squares, and with them what no
kernel explains, a share of the whole that was seen on passes nothing was fitted to:

    w = ( (sum of products)^2 + (sum of attention)^2 + ... + (share of the pass)^2 )^(1/2)

The truth lies between kernels that err alone, whose squares add up, and kernels that all err
together, whose half-widths add up. Both bounds are at hand.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.composition.overhead import Runtime
from simulators.composition.pricing import Row, family_of
from simulators.core.calibration import read_calibration
from simulators.workload.operators import Collective, Column

CALIBRATION = Path(__file__).parent / "calibration" / "bands.toml"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Doubt:
    """Half-widths of a 90 % interval, below and above, in seconds."""

    below_s: Column = 0.0
    above_s: Column = 0.0

    def __add__(self, other: Doubt) -> Doubt:
        return Doubt(self.below_s + other.below_s, self.above_s + other.above_s)

    def times(self, count: float) -> Doubt:
        """Return the doubt of so many repetitions that err together."""
        return Doubt(self.below_s * count, self.above_s * count)


Doubts = Mapping[str, Doubt]
"""By family of kernels and messages."""


def doubts_of(rows: Sequence[Row]) -> Doubts:
    """Return the half-widths of rows, added up within each family."""
    found: dict[str, Doubt] = {}
    for row in rows:
        operator = row.operator
        family = "messages" if isinstance(operator, Collective) else family_of(operator)
        doubt = Doubt(row.seconds - row.lo_s, row.hi_s - row.seconds)
        found[family] = found.get(family, Doubt()) + doubt
    return found


def together(many: Sequence[Doubts]) -> Doubts:
    """Return the doubts of several stages, whose kernels of one family err together."""
    families = dict.fromkeys(family for doubts in many for family in doubts)
    return {
        family: sum((doubts.get(family, Doubt()) for doubts in many), start=Doubt())
        for family in families
    }


def interval_s(latency_s: Column, doubts: Doubts, unexplained: float) -> tuple[Floats, Floats]:
    """Return the ends of the 90 % interval of a pass, the lower one not below nothing.

    `unexplained` is the half-width, as a share of the pass, of what no kernel's interval explains.

    >>> lo, hi = interval_s(1.0, {"gemm": Doubt(0.3, 0.3), "messages": Doubt(0.4, 0.4)}, 0.0)
    >>> float(lo), float(hi)
    (0.5, 1.5)
    """
    unexplained_s = unexplained * np.asarray(latency_s, np.float64)
    below = above = unexplained_s**2
    for doubt in doubts.values():
        below = below + np.square(doubt.below_s)
        above = above + np.square(doubt.above_s)
    lo_s: Floats = np.maximum(0.0, latency_s - np.sqrt(below))
    hi_s: Floats = latency_s + np.sqrt(above)
    return lo_s, hi_s


def unexplained_share(runtime: Runtime, gpu: Gpu) -> float:
    """Return what no kernel's interval explains of a pass, wider on boards new to a runtime."""
    is_known = (gpu.measured_as or gpu.name) in runtime.boards
    return _fitted_shares()["known_boards" if is_known else "new_boards"]


@functools.lru_cache(maxsize=1)
def _fitted_shares() -> dict[str, float]:
    shares: dict[str, float] = read_calibration(CALIBRATION)["unexplained"]
    return shares
