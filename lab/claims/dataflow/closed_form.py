"""Products in closed form, beside what our own mapper finds for them: no measurement is in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import mean_error
from simulators.catalog.accelerator import load_accelerator
from simulators.core.contract import PARITY, Check
from simulators.core.folder import ACCELERATORS
from simulators.dataflow.closed_form import products
from simulators.dataflow.search.mapper import find
from simulators.workload.loop_nest import matmul

NEEDS: tuple[str, ...] = ()
KIND = PARITY
EVALUATIONS = 10_000
LIMITS = {"cycles": 20.0, "joules": 25.0}
"""Percent of mean error that we allow the closed form on any accelerator."""

SHAPES = ((1, 8192, 7168), (64, 8192, 1280), (512, 128, 4096), (2048, 8192, 3584), (8, 2048, 128))
"""Rows, reduction and columns of products as Llama-2-70B has them, cut four and eight ways."""


def checks(_reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of cycles and of joules on each accelerator that ships."""
    n, c, m = np.array(SHAPES, np.float64).T
    for name in ACCELERATORS.names():
        accelerator = load_accelerator(name)
        closed = products(accelerator, np.ones(n.size), n, c, m, dataflow=accelerator.dataflow)
        found = []
        for rows, reduced, columns in SHAPES:
            layer = matmul("product", n=rows, c=reduced, m=columns)
            best = find(layer, accelerator, evaluations=EVALUATIONS, remainders=True)
            found.append((best.evaluation.cycles, best.evaluation.energy_pj))
        cycles, energy_pj = np.array(found).T
        for what, ratio in (
            ("cycles", closed.cycles / cycles),
            ("joules", closed.energy_pj / energy_pj),
        ):
            said = (
                f"over the mapper's {EVALUATIONS:,} tries; {ratio.min():.2f} to {ratio.max():.2f}"
            )
            yield mean_error(
                f"dataflow/closed form, {name}, {what}", ratio - 1.0, LIMITS[what], said
            )
