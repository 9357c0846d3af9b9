"""Collectives over several nodes, as nccl-tests measured them on clusters.

A latency and a share of the bandwidth are fitted to a system's other numbers of ranks. InfiniBand
systems are also predicted by the numbers of the other InfiniBand system.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.fits.networks.between_nodes import INFINIBAND, fitted, large, log_errors
from lab.tables.collectives import NodesCurve, read_between_nodes
from simulators.collectives.closed.between import EXCHANGES, RINGS, family


def ranks_left_out(reference: Path) -> pl.DataFrame:
    """Return errors of curves of each system and collective under those of other ranks."""
    curves = large(read_between_nodes(reference))
    frames = []
    for curve in curves:
        alike = [c for c in curves if (c.system, c.collective) == (curve.system, curve.collective)]
        if others := [other for other in alike if other.ranks != curve.ranks]:
            frames.append(_errors(curve, others))
    return together(frames)


def systems_left_out(reference: Path) -> pl.DataFrame:
    """Return errors of each InfiniBand system under the numbers of the other one."""
    curves = large(read_between_nodes(reference))
    frames = []
    for kind in (RINGS, EXCHANGES):
        mine = [c for c in curves if family(c.collective) == kind and c.system.name in INFINIBAND]
        frames += [
            _errors(curve, [other for other in mine if other.system.name != curve.system.name])
            for curve in mine
        ]
    return together(frames)


def _errors(curve: NodesCurve, others: Sequence[NodesCurve]) -> pl.DataFrame:
    """Return predicted over measured seconds of a curve, by a network fitted to other curves."""
    ratio = np.exp(log_errors(curve, fitted(others)))
    label = f"{curve.system.name} {curve.collective} of {curve.ranks}"
    return columns(predicted=ratio, measured=1.0 + 0.0 * ratio, label=label)
