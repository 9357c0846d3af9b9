"""Collectives over several nodes, as nccl-tests measured them on clusters.

A latency and a share of the bandwidth are fitted to a system's other numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.fits.networks.between_nodes import fitted, large, log_errors
from lab.tables.collectives import NodesCurve, read_between_nodes


def ranks_left_out(reference: Path) -> pl.DataFrame:
    """Return errors of curves of each system and collective under those of other ranks."""
    curves = large(read_between_nodes(reference))
    frames = []
    for curve in curves:
        alike = [c for c in curves if (c.system, c.collective) == (curve.system, curve.collective)]
        if others := [other for other in alike if other.ranks != curve.ranks]:
            frames.append(_errors(curve, others))
    return together(frames)


def _errors(curve: NodesCurve, others: Sequence[NodesCurve]) -> pl.DataFrame:
    """Return predicted over measured seconds of a curve, by a network fitted to other curves."""
    ratio = np.exp(log_errors(curve, fitted(others)))
    label = f"{curve.system.name} {curve.collective} of {curve.ranks}"
    return columns(predicted=ratio, measured=1.0 + 0.0 * ratio, label=label)
