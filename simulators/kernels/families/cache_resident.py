"""Pointwise chains inside a model find in L2 what the product before them left there.

    kept = traffic, one copy of each number: half of it where a kernel works in place
    lost = f^6 / (1 + f^6),  f = kept / (share L2)
    far  = lost max(0, traffic - rest L2)
    t    = start + (traffic - far) / (l2 SMs clock) + far / (bandwidth b)

Five numbers per GPU and kernel, fitted by `resident_fit.py` to layers timed in an engine. Nobody
borrows them: how much of L2 survives depends on its size and policy, and whole batches on an L40S
are foretold worse with a sister's numbers. What fits is faster than device memory allows, and so
than the roofline of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.families.row_reductions import lost_of_l2
from simulators.kernels.frameworks import Entry, entry_of
from simulators.kernels.profile import Profile
from simulators.workload.operators import BYTES, Elementwise

Floats = NDArray[np.float64]

UNMEASURED = {"start_s": 2e-6, "l2": 10.0, "share": 0.6, "rest": 0.05, "bandwidth": 0.9}
"""Where a fit begins: `l2` is bytes per clock of an SM, `share` of L2 still holds the input.
However much more passes through, `rest` of it does."""


def resident_seconds(vector: Elementwise, gpu: Gpu, profile: Profile) -> Floats | None:
    """Return the seconds of a chain as engines run it, its start included; none if never timed."""
    entry = resident_entry(vector, gpu, profile)
    return None if entry is None else chain_seconds(vector, gpu, entry.numbers)


def resident_entry(vector: Elementwise, gpu: Gpu, profile: Profile) -> Entry | None:
    """Return the numbers that apply to a chain; none to what is not one of a transformer's."""
    kernel = chain_of(vector.name)
    if not kernel or BYTES[vector.dtype] != BYTES["bf16"]:
        return None
    entry = entry_of(gpu, profile, kernel, ("bf16",))
    at_home = entry is not None and entry.lender == (gpu.measured_as or gpu.name)
    return entry if at_home else None


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


def chain_seconds(vector: Elementwise, gpu: Gpu, numbers: Mapping[str, float]) -> Floats:
    """Return the seconds by given numbers."""
    elements = np.asarray(vector.elements, np.float64)
    moved = elements * (vector.reads + vector.writes) * BYTES[vector.dtype]
    kept = moved / 2.0 if vector.reads == vector.writes else moved
    lost = lost_of_l2(kept / (numbers["share"] * gpu.l2_bytes))
    far = lost * np.maximum(moved - numbers["rest"] * gpu.l2_bytes, 0.0)
    slow = numbers["bandwidth"] * gpu.hbm_bytes_per_s
    fast = np.maximum(numbers["l2"] * gpu.sm_count * gpu.clock_hz, slow)
    seconds = numbers["start_s"] + (moved - far) / fast + far / slow
    return np.asarray(seconds, np.float64)
