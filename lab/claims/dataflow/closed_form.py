"""Products in closed form beside the best mapping that the mapper finds for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from simulators.catalog.accelerator import load_accelerator
from simulators.core.folder import ACCELERATORS
from simulators.dataflow.closed_form import products
from simulators.dataflow.search.mapper import find
from simulators.workload.loop_nest import matmul

EVALUATIONS = 10_000
SHAPES = ((1, 8192, 7168), (64, 8192, 1280), (512, 128, 4096), (2048, 8192, 3584), (8, 2048, 128))
"""Rows, reduction and columns of products as Llama-2-70B has them, cut four and eight ways."""


def products_of(_reference: Path) -> pl.DataFrame:
    """Return cycles and joules of products on each accelerator that ships."""
    n, c, m = np.array(SHAPES, np.float64).T
    frames = []
    for name in ACCELERATORS.names():
        accelerator = load_accelerator(name)
        closed = products(accelerator, np.ones(n.size), n, c, m, dataflow=accelerator.dataflow)
        layers = [matmul("product", n=rows, c=reduced, m=cols) for rows, reduced, cols in SHAPES]
        found = [
            find(layer, accelerator, evaluations=EVALUATIONS, remainders=True).evaluation
            for layer in layers
        ]
        cycles = np.array([float(one.cycles) for one in found])
        energy_pj = np.array([one.energy_pj for one in found])
        for figure, ours, theirs in (
            ("cycles", closed.cycles, cycles),
            ("joules", closed.energy_pj, energy_pj),
        ):
            labels = {"accelerator": name, "figure": figure}
            frames.append(columns(predicted=ours, measured=theirs, **labels))
    return together(frames)
