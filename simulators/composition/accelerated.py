"""An accelerator may compute in a GPU's place, its loops mapped operator by operator.

Memory, links and host stay the GPU's: the question is what another array of multipliers and its
buffers would make of a model. Sizes are mapped one at a time, each size once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.dataflow.price import price
from simulators.workload.operators import Compute

Floats = NDArray[np.float64]


def accelerated(operator: Compute, accelerator: str) -> tuple[Floats, Floats]:
    """Return the seconds and joules of one run of an operator, at each of its sizes.

    Raises:
        Infeasible: a buffer of the accelerator holds too little.
        UnknownNameError: there is no such accelerator.
    """
    sizes = {
        f.name: value
        for f in dataclasses.fields(operator)
        if isinstance(value := getattr(operator, f.name), np.ndarray)
    }
    columns = np.broadcast_arrays(*sizes.values()) if sizes else [np.zeros(())]
    table = np.stack([column.reshape(-1) for column in columns], axis=1)
    distinct, which = np.unique(table, axis=0, return_inverse=True)
    costs = np.array([_cost(operator, list(sizes), row, accelerator) for row in distinct])
    seconds, joules = (costs[which.reshape(-1), i].reshape(columns[0].shape) for i in range(2))
    return seconds, joules


def _cost(
    operator: Compute, names: list[str], sizes: Floats, accelerator: str
) -> tuple[float, float]:
    """Return the seconds and joules at one set of sizes."""
    whole: dict[str, Any] = {
        name: max(1.0, float(np.rint(size))) for name, size in zip(names, sizes, strict=False)
    }
    [cost] = price((dataclasses.replace(operator, repeat=1, **whole),), accelerator)
    return cost.latency_s, cost.energy_j
