"""What a board's own meter shows of a kernel in a loop is not what the kernel draws.

Loops of the measured tables last 0.3 s for kernels below 0.1 ms and about a second above; the meter
is read ten times a second and shows a mean over the time before, part of which the board was idle
or did something else (ai-dynamo/aiconfigurator, `collector/helper.py`). So readings of short
kernels lie between rest and the settled draw, by how long the loop was, which depends on what the
host did before: new buffers, kernels loaded for the first time. Trees carry the settled watts of
`energy.py` to what the meter shows, by shape and time; they may bend either way. Only comparisons
with such readings need this: bills follow settled watts.
"""

from __future__ import annotations

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.energy import measured_power, shape_features
from simulators.kernels.monotone_correction import Correction, corrected, correction_from
from simulators.kernels.price import flops, moved_bytes
from simulators.workload.operators import Attention, Gemm

SETTLED_S = 1e-4
"""Kernels at least this long were repeated for about a second, and the meter settles."""


def reading_w(
    bend: Correction, operator: Gemm | Attention, latency_s: Floats, watts: Floats
) -> Floats:
    """Return what the meter shows of a loop of launches that draw `watts` once settled."""
    shape = latency_s.shape
    shown = corrected(bend, meter_features(operator, latency_s), watts.reshape(-1))
    return shown.reshape(shape)


def meter_of(gpu: Gpu, name: str) -> Correction | None:
    """Return a board's trees for a kernel such as `gemm_bf16` or `decode`, if there are any."""
    table = (measured_power(gpu.name) or {}).get("meter", {}).get(name)
    return None if table is None else correction_from(table)


def meter_features(operator: Gemm | Attention, latency_s: Floats) -> Floats:
    """Return what the trees look at, one row per feature, each also with its sign changed."""
    moved = moved_bytes(operator)
    columns = (latency_s, flops(operator) / latency_s, moved / latency_s, moved)
    flat = np.stack([np.broadcast_to(c, latency_s.shape).reshape(-1) for c in columns])
    return np.concatenate([flat, -flat, shape_features(operator, latency_s.shape)])
