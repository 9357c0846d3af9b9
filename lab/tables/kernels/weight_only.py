"""Marlin's products of 4-bit weights by 16 rows, as times that 16-bit ones take: `quantization/`.

Read off a figure to a twentieth: the products of one layer of a model together. Their sizes are
those of the authors' benchmark (IST-DASLab/marlin, `bench.py`), which rounds widths up and fuses
what a parallel layer may.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.tables.rows import Floats, column, read_table, words
from simulators.workload.operators import Gemm

TABLE = "quantization/marlin_layers_bs16.parquet"
ROWS = 16.0

GPUS = {"A10": "a10", "RTX3090": "rtx_3090", "A100": "a100_sxm"}
"""Names of the boards in the table; the A6000 has no data sheet here."""

MATRICES = {
    "Llama7B": ((4096, 3 * 4096), (4096, 4096), (4096, 2 * 10752), (10752, 4096)),
    "Llama13B": ((5120, 3 * 5120), (5120, 5120), (5120, 2 * 13568), (13568, 5120)),
    "Llama33B": ((6656, 3 * 6656), (6656, 6656), (6656, 2 * 17664), (17664, 6656)),
    "Llama65B": ((8192, 3 * 8192), (8192, 8192), (8192, 2 * 21760), (21760, 8192)),
    "Falcon180B": ((14848, 14848 * 5 + 1024), (14848 * 5, 14848)),
}
"""Inner length and columns of each product of a layer."""


@dataclass(frozen=True)
class Layer:
    """The products of one layer on a GPU, as one operator, and how much faster 4 bits are."""

    gpu: str
    k: Floats
    n: Floats
    speedup: float

    def products(self, weight_dtype: str) -> Gemm:
        """Return the products with weights of a format; of 16 bits if it is empty."""
        m = np.full(self.k.size, ROWS)
        return Gemm(name="layer", m=m, n=self.n, k=self.k, dtype="fp16", weight_dtype=weight_dtype)


def read_layers_of_marlin(reference: Path) -> list[Layer]:
    """Return the layers on boards with a data sheet; none without a table."""
    if not (file := reference / TABLE).is_file():
        return []
    table = read_table(file)
    named = zip(
        words(table, "gpu"),
        words(table, "model_layer_shapes"),
        column(table, "speedup_vs_fp16_bs16").tolist(),
        strict=True,
    )
    found = []
    for gpu, model, speedup in named:
        if gpu in GPUS and model in MATRICES:
            k, n = np.array(MATRICES[model], np.float64).T
            found.append(Layer(gpu=GPUS[gpu], k=k, n=n, speedup=speedup))
    return found
