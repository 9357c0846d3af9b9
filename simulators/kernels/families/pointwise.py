"""Pointwise kernels: bytes over memory bandwidth, or over that of L2 inside a layer.

A fused chain of pointwise operations moves its inputs and its result once. One and two input
streams have separate rates. Inside a layer a chain finds in L2 what the product before it wrote:

    kept = traffic, one copy of each number: half of it where a kernel works in place
    lost = f^6 / (1 + f^6),  f = kept / (share L2)
    far  = lost max(0, traffic - rest L2)
    t    = start + (traffic - far) / (l2 SMs clock) + far / (bandwidth b)

with five numbers per GPU and kernel, fitted to layers timed in an engine and never transferred.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.entries import Entry, entry_of
from simulators.kernels.families.family import OperatorFamily, streaming
from simulators.kernels.profile import Profile, VectorRates
from simulators.kernels.tiling import lost_of_l2
from simulators.workload.operators import Elementwise
from simulators.workload.precision import BYTES


def vector_seconds(vector: Elementwise, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of one memory-bound kernel while it streams."""
    if (entry := _chain_entry(vector, gpu, profile)) is not None:
        # Its start holds the launch that `price` adds.
        return np.maximum(chain_seconds(vector, gpu, entry.numbers) - profile.kernel_s, 0.0)
    return vector_bytes(vector) / (_rates(vector, profile).bandwidth * gpu.hbm_bytes_per_s)


def chain_seconds(vector: Elementwise, gpu: Gpu, numbers: Mapping[str, float]) -> Floats:
    """Return the seconds of a chain as engines run it, its start included."""
    moved = vector_bytes(vector)
    kept = moved / 2.0 if vector.reads == vector.writes else moved
    lost = lost_of_l2(kept / (numbers["share"] * gpu.l2_bytes))
    far = lost * np.maximum(moved - numbers["rest"] * gpu.l2_bytes, 0.0)
    slow = numbers["bandwidth"] * gpu.hbm_bytes_per_s
    fast = np.maximum(numbers["l2"] * gpu.sm_count * gpu.clock_hz, slow)
    seconds = numbers["start_s"] + (moved - far) / fast + far / slow
    return np.asarray(seconds, np.float64)


def chain_of(name: str) -> str:
    """Return which of a layer's chains an operator is.

    >>> chain_of("ffn_norm"), chain_of("rotary_cache_write"), chain_of("weighted_sum")
    ('chain_norm', 'chain_rotary', '')
    """
    if name.endswith("_norm"):
        return "chain_norm"
    if name.endswith("_activation"):
        return "chain_activation"
    return "chain_rotary" if name.startswith("rotary") else ""


def vector_bytes(vector: Elementwise) -> Floats:
    """Return the bytes moved once each.

    >>> float(vector_bytes(Elementwise(name="add", elements=10.0, reads=2.0, dtype="fp32")))
    120.0
    """
    numbers = np.asarray(vector.elements, np.float64) * (vector.reads + vector.writes)
    return numbers * BYTES[vector.dtype]


def _chain_entry(vector: Elementwise, gpu: Gpu, profile: Profile) -> Entry | None:
    """Return the entry of an elementwise chain of a transformer; None for other operators."""
    kernel = chain_of(vector.name)
    if not kernel or BYTES[vector.dtype] != BYTES["bf16"]:
        return None
    return entry_of(gpu, profile, kernel, ("bf16",))


def _class(vector: Elementwise, profile: Profile) -> str:
    """Return the class of rates: the operator's own, where measured, else by its inputs."""
    if vector.name in profile.vector:
        return vector.name
    return "binary" if vector.reads > 1.0 else "unary"


def _rates(vector: Elementwise, profile: Profile) -> VectorRates:
    return profile.vector[_class(vector, profile)]


FAMILY = OperatorFamily(
    seconds=vector_seconds,
    flops=lambda vector: np.asarray(vector.elements, np.float64) * vector.reads,
    moved_bytes=vector_bytes,
    classes=lambda vector, _gpu, profile: _class(vector, profile),
    entry=_chain_entry,
    **streaming(_rates),
)
