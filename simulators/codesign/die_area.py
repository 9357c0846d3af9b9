"""Die area of what-if GPUs, from the number of SMs, the L2 and the memory channels.

    mm2 = s lanes / density + l cells of L2 + m channels / sqrt(density)

`density` is transistors per mm2, the median of the dies of a node. An SM's lanes are those of fp32,
twice those of fp64, and an eighth of the products its matrix units add in a clock; a stack of HBM
takes the edge of two channels of GDDR. Analogue circuits shrink less than logic: half as fast here.
Three numbers are fitted to dies whose makers state what is on them; that there are three, and the
weights of lanes, were chosen by leaving a die out. A device of other sizes has the area of its own
die, times what the form says that the change is worth.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulators.catalog.die import Die, cell_um2, die_of, dies
from simulators.catalog.gpu import Gpu, as_sold
from simulators.core.jit import Floats

FP64_LANES, PRODUCTS_PER_LANE, CHANNELS_PER_STACK = 2.0, 8.0, 2.0
"""What a lane of fp64, products of matrix units and a stack of HBM count for, in lanes of fp32 and
channels of GDDR."""

BITS_PER_MIB = 8.0 * 2**20
UM2_PER_MM2 = 1e6
PER_MM2 = 1e6
"""Densities are in millions of transistors per mm2."""


@dataclass(frozen=True)
class AreaModel:
    """What lanes, cells and channels occupy, fitted to some dies."""

    weights: tuple[float, float, float]
    density: tuple[tuple[str, float], ...]  # of each node, millions of transistors per mm2

    def mm2(self, die: Die) -> float:
        """Return the area that the form gives a die.

        Raises:
            KeyError: no die of its node was fitted.
        """
        return float(_parts(die, dict(self.density)[die.node]) @ np.array(self.weights))


def fitted(known: Sequence[Die]) -> AreaModel:
    """Return the model of some dies: least squares of relative errors."""
    nodes = dict.fromkeys(die.node for die in known)
    density = {
        node: float(
            np.median([die.transistors / die.mm2 / PER_MM2 for die in known if die.node == node])
        )
        for node in nodes
    }
    parts = np.stack([_parts(die, density[die.node]) / die.mm2 for die in known])
    weights = np.linalg.lstsq(parts, np.ones(len(known)), rcond=None)[0]
    lanes, cells, channels = (float(f"{weight:.6g}") for weight in weights)
    return AreaModel((lanes, cells, channels), tuple(density.items()))


def has_die(gpu: Gpu) -> bool:
    """Return whether the die area of a GPU, or of the GPU behind a what-if design, is known."""
    return die_of(as_sold(gpu).name) is not None


def gpu_area_mm2(gpu: Gpu) -> float:
    """Return the area of the die of a GPU, or of one with other SMs, L2 and memory.

    SMs and L2 that are made and not sold grow with those that are, and paths to memory with its
    bandwidth. The clock costs none.

    It must have a die.
    """
    sold = as_sold(gpu)
    die = die_of(sold.name)
    assert die is not None
    wider = gpu.hbm_bytes_per_s / sold.hbm_bytes_per_s
    changed = replace(
        die,
        sms=die.sms * gpu.sm_count / sold.sm_count,
        l2_mib=die.l2_mib * gpu.l2_bytes / sold.l2_bytes,
        hbm=die.hbm * wider,
        gddr=die.gddr * wider,
    )
    model = _of_all()
    return die.mm2 * model.mm2(changed) / model.mm2(die)


@functools.cache
def _of_all() -> AreaModel:
    return fitted(dies())


def _parts(die: Die, density: float) -> Floats:
    """Return lanes, mm2 of cells and channels of a die, as large as they are on its node."""
    lanes = die.fp32 + FP64_LANES * die.fp64 + die.products / PRODUCTS_PER_LANE
    cells_mm2 = die.l2_mib * BITS_PER_MIB * cell_um2(die.node) / UM2_PER_MM2
    channels = CHANNELS_PER_STACK * die.hbm + die.gddr
    return np.array([die.sms * lanes / density, cells_mm2, channels / np.sqrt(density)])
