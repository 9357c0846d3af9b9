"""Operators on a device whose kernels nobody timed: the least time its data sheet allows.

A roofline (Williams, Waterman and Patterson, 2009) over what its sheet says of arithmetic, DRAM and
the levels around it. CPUs, TPUs, PIM and pooled memory are priced so. It is a bound from below: no
library reaches it, and nothing says by how far none does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.catalog.memory import CACHE, CHIPLET, PIM, POOL, MemoryLevel, load_memory
from simulators.core.jit import Floats
from simulators.kernels.families.family import OperatorFamily
from simulators.workload.operators import Compute, Embedding


def sheet_seconds(operator: Compute, gpu: Gpu, family: OperatorFamily[Any]) -> Floats:
    """Return the seconds of an operator by a device's sheet, shaped as its sizes are.

    Work inside the memory counts where it is quicker; what is sent there and back is not counted.

    Raises:
        UserError: the device has no such precision.
    """
    moved = np.asarray(family.moved_bytes(operator), np.float64)
    compute_s: Floats = np.zeros(())
    flops: Floats = np.zeros(())
    if not family.streams:
        flops = np.asarray(family.flops(operator) / family.saving(operator), np.float64)
        compute_s = flops / gpu.peak(operator.dtype)
    is_random = isinstance(operator, Embedding)
    memory_s = _memory_s(moved, gpu, is_random=is_random)
    for level in gpu.levels:
        if level.kind == CACHE and family.streams and not is_random:
            memory_s = np.where(moved <= level.bytes, moved / level.bytes_per_s, memory_s)
    seconds = np.maximum(compute_s, memory_s)
    for level in gpu.levels:
        if level.kind == PIM:
            inside_s = np.maximum(flops / level.flops, moved / level.bytes_per_s)
            seconds = np.minimum(seconds, inside_s)
    return np.asarray(seconds, np.float64)


def _memory_s(moved: Floats, gpu: Gpu, *, is_random: bool) -> Floats:
    """Return the seconds to move bytes: from DRAM and pools at once, over the links of dies."""
    rate = gpu.hbm_bytes_per_s
    if gpu.memory:
        memory = load_memory(gpu.memory)
        rate *= memory.random if is_random else memory.streaming
    pools = [level for level in gpu.levels if level.kind == POOL]
    near = 1.0 - sum(_part(pool, gpu) for pool in pools)
    seconds = moved * near / rate
    for pool in pools:
        seconds = np.maximum(seconds, moved * _part(pool, gpu) / pool.bytes_per_s)
    for level in gpu.levels:
        if level.kind == CHIPLET:
            links = level.count * level.bytes_per_s
            seconds = np.maximum(seconds, moved * level.crossing / links)
    return np.asarray(seconds, np.float64)


def _part(pool: MemoryLevel, gpu: Gpu) -> float:
    """Return the part of what a device addresses that lies in a pool."""
    return pool.bytes / gpu.hbm_bytes
