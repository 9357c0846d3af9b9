"""Speed-up of Marlin's products of 16 rows with 4-bit weights over 16-bit ones.

Read off a figure to a twentieth: the products of one layer of a model together. Their sizes are
those of the authors' benchmark (IST-DASLab/marlin, `bench.py`), which rounds widths up and fuses
the projections of a parallel layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.tables.records import declared, file_of, records
from lab.tables.rows import Floats
from simulators.workload.operators import Gemm

TABLE = file_of("marlin")
ROWS = 16.0


@dataclass(frozen=True)
class Layer:
    """The products of one layer on a GPU as one operator, and their speed-up with 4 bits."""

    gpu: str
    k: Floats
    n: Floats
    speedup: float

    def products(self, weight_dtype: str) -> Gemm:
        """Return the products with weights of a precision; empty: of 16 bits."""
        m = np.full(self.k.size, ROWS)
        return Gemm(name="layer", m=m, n=self.n, k=self.k, dtype="fp16", weight_dtype=weight_dtype)


def read_layers_of_marlin(reference: Path) -> list[Layer]:
    """Return the layers on GPUs with a data sheet; none without a table."""
    if not (reference / TABLE).is_file():
        return []
    gpus, matrices = declared("marlin")["gpu_names"], declared("marlin")["matrices"]
    found = []
    for row in records(reference, "marlin"):
        if row.gpu in gpus and row.shapes in matrices:
            k, n = np.array(matrices[row.shapes], np.float64).T
            found.append(Layer(gpus[row.gpu], k, n, row.speedup))
    return found
