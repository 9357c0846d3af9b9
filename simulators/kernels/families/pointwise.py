"""Pointwise kernels take bytes over bandwidth, plus the ramp of a stream that starts from nothing.

A chain of pointwise operations that is fused into one kernel moves its inputs and its result once,
whatever it computes in between. Two input streams and one share the memory system differently, so
they have rates of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.families.cache_resident import resident_entry, resident_seconds
from simulators.kernels.families.family import MEASURED_DTYPE, Family, Flags
from simulators.kernels.intervals import Band
from simulators.kernels.profile import Profile, VectorRates
from simulators.kernels.tiling import four_norm
from simulators.workload.operators import BYTES, Elementwise

Floats = NDArray[np.float64]


def vector_seconds(vector: Elementwise, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of one memory-bound kernel while it streams.

    Chains of a transformer's layer that find their input in L2 have numbers of their own.
    """
    resident_s = resident_seconds(vector, gpu, profile)
    if resident_s is not None:  # its start holds the launch that `price` adds
        return np.maximum(resident_s - profile.kernel_s, 0.0)
    rates = vector_rates(vector, profile)
    return vector_bytes(vector) / (rates.bandwidth * gpu.hbm_bytes_per_s)


def vector_call_seconds(vector: Elementwise, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of a call timed alone: the stream starts, runs and drains."""
    rates = vector_rates(vector, profile)
    return four_norm(vector_seconds(vector, gpu, profile) + rates.ramp_s, rates.dispatch_s)


def vector_rates(vector: Elementwise, profile: Profile) -> VectorRates:
    """Return the rates of the operator's class."""
    return profile.vector[vector_class(vector, profile)]


def vector_class(vector: Elementwise, profile: Profile) -> str:
    """Return the class of rates: the operator's own, where measured, else by its inputs."""
    if vector.name in profile.vector:
        return vector.name
    return "binary" if vector.reads > 1.0 else "unary"


def vector_bytes(vector: Elementwise) -> Floats:
    """Return the bytes moved once each.

    >>> float(vector_bytes(Elementwise(name="add", elements=10.0, reads=2.0, dtype="fp32")))
    120.0
    """
    numbers = np.asarray(vector.elements, np.float64) * (vector.reads + vector.writes)
    return numbers * BYTES[vector.dtype]


def vector_flops(vector: Elementwise) -> Floats:
    """Return a count of arithmetic operations: one per number that comes in."""
    return np.asarray(vector.elements, np.float64) * vector.reads


def vector_roofline_s(vector: Elementwise, gpu: Gpu) -> Floats:
    """Return the least time the data sheet allows."""
    return vector_bytes(vector) / gpu.hbm_bytes_per_s


def _class(vector: Elementwise, _gpu: Gpu, profile: Profile) -> NDArray[np.str_]:
    return np.array(vector_class(vector, profile))


def _band(vector: Elementwise, gpu: Gpu, profile: Profile) -> Band | None:
    entry = resident_entry(vector, gpu, profile)
    return None if entry is None else entry.band


def _origin(vector: Elementwise, gpu: Gpu, profile: Profile) -> tuple[bool, Flags]:
    if (entry := resident_entry(vector, gpu, profile)) is not None:
        return entry.calibrated, False
    return vector_rates(vector, profile).calibrated and vector.dtype == MEASURED_DTYPE, False


FAMILY = Family(
    seconds=vector_seconds,
    call_seconds=vector_call_seconds,
    flops=vector_flops,
    moved_bytes=vector_bytes,
    roofline_s=vector_roofline_s,
    classes=_class,
    origin=_origin,
    band=_band,
)
