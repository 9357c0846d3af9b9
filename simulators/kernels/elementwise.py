"""Kernels that only move numbers take bytes over bandwidth.

Pointwise chains, embeddings and row reductions (norms, softmax) do little arithmetic per number.
What differs is how often a row is read: one block keeps a short row on chip and reads it once; a
longer one is read again for every statistic that does not fit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.profile import Profile
from simulators.workload.operators import BYTES, Elementwise, Embedding, Norm

Floats = NDArray[np.float64]
Vector = Elementwise | Norm | Embedding


def vector_seconds(vector: Vector, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of one memory-bound kernel."""
    return vector_bytes(vector) / (profile.vector_bandwidth * gpu.hbm_bytes_per_s)


def vector_roofline_s(vector: Vector, gpu: Gpu) -> Floats:
    """Return the least time the data sheet allows."""
    return vector_bytes(vector) / gpu.hbm_bytes_per_s


def vector_bytes(vector: Vector) -> Floats:
    """Return the bytes moved once each.

    >>> float(vector_bytes(Elementwise(name="add", elements=10.0, reads=2.0, dtype="fp32")))
    120.0
    """
    if isinstance(vector, Elementwise):
        numbers = np.asarray(vector.elements, np.float64) * (vector.reads + vector.writes)
    else:
        numbers = 2.0 * np.asarray(vector.rows, np.float64) * np.asarray(vector.cols, np.float64)
    return numbers * BYTES[vector.dtype]


def vector_flops(vector: Vector) -> Floats:
    """Return a count of arithmetic operations: one per number moved in, four in a row reduction."""
    if isinstance(vector, Elementwise):
        return np.asarray(vector.elements, np.float64) * vector.reads
    per_number = 4.0 if isinstance(vector, Norm) else 0.0
    return per_number * np.asarray(vector.rows, np.float64) * np.asarray(vector.cols, np.float64)
